"""The file that a command is told to write: checked before there is anything to write, whole or not there at all.

A file is written under a random name beside its place and moved there at the end; the mode of the one that was there
stays. What isn't a regular file (a device, a pipe) is written to and never replaced; a symlink stays one. This module
knows nothing of what is written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator
from types import FrameType
from typing import IO, Any, Final, NoReturn

from swarm.errors import ConfigurationError, SwarmError

__all__ = ["check_outfile", "open_outfile", "tidy_when_told_to_end"]

WRITE_BITS: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
#: What a new file may be, less the umask.
NEW_MODE: Final = 0o666


def check_outfile(name: str) -> None:
    """Refuse what can't be written, so that nobody learns it after hours. Leaves nothing, and changes nothing.

    Raises:
        ConfigurationError: it names no file, or one that is write-protected.
        OSError: why it can't be written, with ``name`` as its ``filename``.
    """
    if not name:
        raise ConfigurationError("the file to write has no name", hint="name one, or leave -o out")
    with _named(name):
        found = _stat(name)
        if stat.S_ISDIR(found.st_mode) if found else not os.path.basename(name):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if found and stat.S_ISSOCK(found.st_mode):
            raise OSError(errno.ENXIO, "is a socket")
        if found and not stat.S_ISREG(found.st_mode):
            if not os.access(name, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        if found:
            # The superuser may write it nevertheless; who took the write bits away meant them to be asked, too.
            if not found.st_mode & WRITE_BITS:
                raise ConfigurationError(f"{name} is write-protected", hint=f"chmod u+w {name}, or another name")
            os.close(os.open(name, os.O_WRONLY | os.O_CLOEXEC))
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(name))):
            pass  # the directory takes files


@contextlib.contextmanager
def open_outfile(name: str, mode: str = "w") -> Iterator[IO[Any]]:
    """Write a file, which is there when the block has ended well; what was there stays until then.

    Args:
        name: where to; a symlink is followed.
        mode: ``w`` for text (UTF-8), ``wb`` for bytes.

    Raises:
        OSError: it can't be made, with ``name`` as its ``filename``.
        SwarmError: it can't be written on; the disk is full, say.
    """
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    found = _stat(name)
    if found and not stat.S_ISREG(found.st_mode):
        with _told(name), open(name, mode, **text) as file:  # type: ignore[call-overload]
            yield file
        return
    place = os.path.realpath(name)
    unfinished = os.path.join(os.path.dirname(place), f".swarm-{secrets.token_hex(8)}.part")
    # A private file is private from its first byte on.
    first_mode = stat.S_IRUSR | stat.S_IWUSR if found else NEW_MODE
    with _named(name):
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, first_mode)
    try:
        with (
            _told(name, hint="what was written of it is gone again"),
            open(descriptor, mode, **text) as file,  # type: ignore[call-overload]
        ):
            yield file
            if found:
                _keep(found, descriptor)
        with _named(name):
            os.replace(unfinished, place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise


@contextlib.contextmanager
def tidy_when_told_to_end() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program as an error would: with what it began to write taken away."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        sys.exit(128 + number)  # as shells have it

    # Whoever ignores one of them (nohup) goes on to.
    heeded = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    try:
        for one in heeded:
            signal.signal(one, end)
        yield
    finally:
        for one in heeded:
            signal.signal(one, signal.SIG_DFL)


def _stat(name: str) -> os.stat_result | None:
    """What a name leads to; None where there is nothing yet."""
    try:
        return os.stat(name)
    except FileNotFoundError:
        return None


def _keep(found: os.stat_result, descriptor: int) -> None:
    """Give a new file the owner, where one may, and the mode of the old one."""
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (found.st_uid, found.st_gid):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, found.st_uid, found.st_gid)
    with contextlib.suppress(PermissionError):  # a file system without modes
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode))


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the file that was asked for in a fault, in place of one that nobody asked for, or none."""
    try:
        yield
    except OSError as fault:
        raise OSError(fault.errno, fault.strerror, name) from fault


@contextlib.contextmanager
def _told(name: str, *, hint: str | None = None) -> Iterator[None]:
    """Tell what a write stumbled on; its fault alone names no file. A reader that has gone is another matter."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as fault:
        if fault.filename is not None:
            raise
        raise SwarmError(f"{name} can't be written: {fault.strerror}", hint=hint) from fault
