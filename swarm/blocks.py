"""A directory of blocks by CID; used by the worker and by the root.

A block is there whole or not at all: it is written beside, synced, renamed, and its directory synced, before ``put``
returns. What is read is checked against its CID; a block that rotted on disk counts as absent and may be put again.
All methods are synchronous and may be called from many threads. Which blocks are worth keeping is not known here.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from swarm.content.cid import MAX_BLOCK_BYTES, parse_cid, verify_block
from swarm.content.walk import FileWalk, MissingWalk
from swarm.errors import ConfigurationError, ContentMismatch, MalformedInput, PeerError, StoreFull
from swarm.model import Cid

log = structlog.get_logger()

#: Blocks lie in sub-directories named by two characters of the CID: its last is not evenly spread (it has stray bits).
SHARD: Final = slice(-3, -1)
#: A file half-written by a process that died. No write takes so long, so a living process's isn't taken away.
ABANDONED_AFTER_S: Final = 3600.0
#: When the cap seems reached the disk is measured again, since another process may have removed blocks; so seldom.
REMEASURE_AFTER_S: Final = 60.0
#: What a disk says when it has no room: its own, the user's quota, or a file-size limit.
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: ``read`` without a cap of its own takes what fits memory.
MAX_READ_BYTES: Final = 1024 * 1024 * 1024


class BlockStore:
    """Blocks in one directory.

    Args:
        directory: made where it isn't there.
        max_bytes: the cap of all blocks together; None: the disk's.
        clock: Unix time, seconds; of the kind that file times are in.

    Raises:
        ConfigurationError: the directory can't be made or written.
    """

    def __init__(self, directory: Path, *, max_bytes: int | None, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._incoming = directory / "incoming"
        self._max_bytes = max_bytes
        self._clock = clock
        self._changed = threading.Condition()
        self._landing: set[Cid] = set()
        self._total_bytes: int | None = None
        self._measured_at = 0.0
        try:
            self._incoming.mkdir(parents=True, exist_ok=True)
            _sync_directory(directory.parent)
            self._remove_abandoned()
        except OSError as fault:
            raise ConfigurationError(
                f"the block directory {directory} can't be used: {fault.strerror}",
                hint="name a directory that this user may write",
            ) from fault

    # ── one block ─────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, cid: Cid, data: bytes) -> None:
        """Keep a block; durable when it returns. One that is there already is only marked as used just now.

        Raises:
            ContentMismatch: the bytes aren't those of the CID.
            MalformedInput: it is longer than a block may be.
            StoreFull: it doesn't fit the cap or the disk; nothing of it was stored.
        """
        if len(data) > MAX_BLOCK_BYTES:
            raise MalformedInput(f"a block of {len(data)} bytes where at most {MAX_BLOCK_BYTES} are taken")
        verify_block(cid, data)
        path = self._path(cid)
        with self._alone(cid):
            if path.exists():
                self._stamp(path)
                return
            self._reserve(len(data))
            try:
                self._land(path, data)
            except BaseException as fault:
                self._add(-len(data))
                if isinstance(fault, OSError) and fault.errno in FULL:
                    raise StoreFull(str(self._directory)) from fault
                raise

    def get(self, cid: Cid) -> bytes | None:
        """Read a block, checked against its CID; None where it isn't there, or has rotted (it is then removed)."""
        try:
            data = self._path(cid).read_bytes()
        except FileNotFoundError:
            return None
        try:
            verify_block(cid, data)
        except ContentMismatch:
            log.warning("block_rotted", cid=cid, size_bytes=len(data))
            self.delete(cid)
            return None
        return data

    def has(self, cid: Cid) -> bool:
        """Whether the block is there. Only ``get`` finds out whether it has rotted."""
        return self.size(cid) is not None

    def size(self, cid: Cid) -> int | None:
        """The length of a block, bytes; None where it isn't there."""
        try:
            return self._path(cid).stat().st_size
        except FileNotFoundError:
            return None

    def delete(self, cid: Cid) -> bool:
        """Remove a block. Returns whether it was there."""
        return self._remove(cid) is not None

    # ── all blocks ────────────────────────────────────────────────────────────────────────────────────────────────

    def cids(self) -> Iterator[Cid]:
        """The CIDs of all blocks, in no order. Blocks that come or go meanwhile may be left out."""
        return (entry.name for entry in self._entries())

    def total_bytes(self) -> int:
        """The length of all blocks together; measured once, then counted."""
        with self._changed:
            return self._count()

    def collect(self, keep: Iterable[Cid], *, min_age_s: float = ABANDONED_AFTER_S) -> tuple[int, int]:
        """Remove what no kept content needs.

        Args:
            keep: the roots of the contents to keep, with all blocks under them; read once the call has begun.
            min_age_s: spare what was put within so many seconds before the call, and all that is put during it: its
                result may not be recorded yet.

        Returns:
            How many blocks were removed, and their bytes.
        """
        put_before = self._clock() - min_age_s
        kept: set[Cid] = set()
        for root in keep:
            if root not in kept:
                kept |= self._reach(root)
        removed = [
            size_bytes
            for entry in self._entries()
            if entry.name not in kept
            if (size_bytes := self._remove(entry.name, put_before=put_before)) is not None
        ]
        return len(removed), sum(removed)

    # ── contents ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, cid: Cid, *, max_bytes: int = MAX_READ_BYTES) -> bytes | None:
        """Read a content by its root; None where a block of it isn't there.

        Raises:
            MalformedInput: it is longer than ``max_bytes``, or isn't a file.
            ContentMismatch: its blocks contradict each other.
        """
        walk = FileWalk(cid, max_bytes=max_bytes)
        parts = []
        while (wanted := walk.wanted) is not None:
            block = self.get(wanted)
            if block is None:
                return None
            parts.append(walk.feed(block))
        return b"".join(parts)

    def missing(self, cid: Cid, *, size_bytes: int | None = None) -> list[Cid]:
        """The blocks of a content that aren't there, as far as they can be known.

        Those that are there count as put just now: who asks is about to rely on them, so ``collect`` spares them.

        Args:
            cid: the root of the content.
            size_bytes: what somebody says that it holds; None: nothing is said.

        Raises:
            MalformedInput: it isn't a file.
            ContentMismatch: its blocks contradict each other, or what is said.
        """
        walk = MissingWalk(cid, size_bytes=size_bytes)
        self._run(walk, stamp=True)
        return walk.missing

    def _reach(self, root: Cid) -> set[Cid]:
        """The blocks of a content, as far as they can be known."""
        walk = MissingWalk(root)
        with suppress(PeerError):  # no result names such a content; what was reached is kept all the same
            self._run(walk, stamp=False)
        return walk.seen

    def _run(self, walk: MissingWalk, *, stamp: bool) -> None:
        while (wanted := walk.wanted) is not None:
            if stamp:
                with suppress(FileNotFoundError):
                    self._stamp(self._path(wanted))
            if walk.needs_bytes:
                walk.feed(self.get(wanted))
            else:
                walk.found(self.size(wanted))

    # ── the disk ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _path(self, cid: Cid) -> Path:
        parse_cid(cid)  # a name from outside never becomes a path of another shape
        return self._directory / cid[SHARD] / cid

    @contextmanager
    def _alone(self, cid: Cid) -> Iterator[None]:
        """One thread a CID: the second one finds the block landed, and durable, not on its way."""
        with self._changed:
            self._changed.wait_for(lambda: cid not in self._landing)
            self._landing.add(cid)
        try:
            yield
        finally:
            with self._changed:
                self._landing.discard(cid)
                self._changed.notify_all()

    def _reserve(self, size_bytes: int) -> None:
        """Count bytes in before they are written, so that threads together keep the cap."""
        with self._changed:
            if self._max_bytes is not None:
                room_bytes = self._max_bytes - size_bytes
                if self._count() > room_bytes and self._clock() - self._measured_at >= REMEASURE_AFTER_S:
                    self._total_bytes = None
                if self._count() > room_bytes:
                    raise StoreFull(str(self._directory), limit_bytes=self._max_bytes)
            self._add(size_bytes)

    def _add(self, size_bytes: int) -> None:
        with self._changed:
            if self._total_bytes is not None:
                self._total_bytes += size_bytes

    def _count(self) -> int:
        if self._total_bytes is None:
            self._measured_at = self._clock()
            self._total_bytes = sum(_size_of(entry) for entry in self._entries())
        return self._total_bytes

    def _remove(self, cid: Cid, *, put_before: float = math.inf) -> int | None:
        """Remove a block, unless it was put later than that; returns its length if it was removed."""
        path = self._path(cid)
        with self._alone(cid):
            try:
                status = path.stat()
                if status.st_mtime > put_before:
                    return None
                path.unlink()
            except FileNotFoundError:
                return None
            self._add(-status.st_size)
            return status.st_size

    def _land(self, path: Path, data: bytes) -> None:
        temporary = self._incoming / f"{path.name}.{secrets.token_hex(4)}"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                self._stamp(file.fileno())
                os.fsync(file.fileno())
            try:
                temporary.rename(path)
            except FileNotFoundError:
                path.parent.mkdir(exist_ok=True)
                _sync_directory(self._directory)
                temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)

    def _stamp(self, file: Path | int) -> None:
        """Note when a block was last put, by the clock that its age is later told by."""
        now = self._clock()
        os.utime(file, (now, now))

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """All block files, a shard at a time."""
        with os.scandir(self._directory) as shards:
            names = [shard.name for shard in shards if shard.name != self._incoming.name and shard.is_dir()]
        for name in names:
            with os.scandir(self._directory / name) as files:
                entries = [file for file in files if _is_block(file.name, name)]
            yield from entries

    def _remove_abandoned(self) -> None:
        for path in list(self._incoming.iterdir()):
            with suppress(FileNotFoundError):  # another process was faster
                if self._clock() - path.stat().st_mtime >= ABANDONED_AFTER_S:
                    path.unlink()


def _is_block(name: str, shard: str) -> bool:
    try:
        parse_cid(name)
    except MalformedInput:
        return False
    return name[SHARD] == shard


def _size_of(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        return 0


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
