"""The keys of one member of the swarm on disk: an Ethereum key says who works, a libp2p key who is dialled.

A data directory is one *instance*: it is locked while it is used, so that two processes never share a lease identity.
Files are 0600 and written atomically (temporary file, fsync, rename, fsync of the directory); the directory is 0700.
Secrets never show in ``repr``. This module knows no door and no network.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import msgspec

from swarm.errors import ConfigurationError, DirectoryLocked
from swarm.model import Address
from swarm.signing import peer_id_from_seed

__all__ = [
    "Identity",
    "load_identity",
    "lock_directory",
    "open_identity",
    "parse_private_key",
    "read_address",
    "read_eth_key",
    "read_private",
    "write_private",
]

LOCK_FILE: Final = "lock"
ETH_FILE: Final = "eth.key"
PEER_FILE: Final = "peer.key"
INSTANCE_FILE: Final = "instance"

_PRIVATE_FILE: Final = 0o600
_PRIVATE_DIRECTORY: Final = 0o700
_KEY_BYTES: Final = 32


@attrs.frozen(kw_only=True)
class Identity:
    """Who this data directory is.

    Args:
        directory: the locked data directory.
        address: the EIP-55 address of ``eth_key``.
        eth_key: 32 bytes, secret.
        peer_seed: the Ed25519 seed of the libp2p key, 32 bytes, secret.
        peer_id: the libp2p id of ``peer_seed``.
        instance: tells this data directory from any other of the same address.
    """

    directory: Path
    address: Address
    eth_key: bytes = attrs.field(repr=False)
    peer_seed: bytes = attrs.field(repr=False)
    peer_id: str
    instance: str


class _EthKeyFile(msgspec.Struct, frozen=True):
    """``eth.key``; the address stands beside the key so that a start needs no elliptic curve (half a second)."""

    address: str
    private_key: str


@contextlib.contextmanager
def open_identity(directory: Path) -> Iterator[Identity]:
    """Lock a data directory and read its identity; a first use makes directory and keys.

    Resource handling: the lock is held until the context is left, and ends with the process whatever happens.

    Raises:
        DirectoryLocked: another process uses it.
        ConfigurationError: it can't be used, or a key in it is damaged or readable by others.
    """
    with lock_directory(directory):
        yield load_identity(directory)


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[Path]:
    """Make a data directory where there is none, and hold its lock.

    Raises:
        DirectoryLocked: another process holds it.
        ConfigurationError: it can't be made or belongs to something else.
    """
    _prepare(directory)
    path = directory / LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE_FILE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise DirectoryLocked(
                f"{directory} is used by another process" + (f" (pid {holder})" if holder else ""),
                hint="stop it, or give this one a directory of its own with --data",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield directory
    finally:
        os.close(descriptor)


def _prepare(directory: Path) -> None:
    try:
        if not directory.exists():
            directory.mkdir(parents=True, mode=_PRIVATE_DIRECTORY)
        ours = (directory / LOCK_FILE).exists() or not any(directory.iterdir())
        if not ours:
            raise ConfigurationError(
                f"{directory} holds other files and isn't a data directory of the swarm",
                hint="name an empty or a new directory with --data",
            )
        if stat.S_IMODE(directory.stat().st_mode) != _PRIVATE_DIRECTORY:
            directory.chmod(_PRIVATE_DIRECTORY)
    except OSError as fault:
        raise ConfigurationError(
            f"the data directory {directory} can't be used: {fault.strerror}", hint="name another one with --data"
        ) from fault


def load_identity(directory: Path) -> Identity:
    """Read the keys of a directory that the caller has locked; make those that are missing.

    Raises:
        ConfigurationError: a key is damaged or readable by others.
    """
    address, eth_key = _eth_key(directory / ETH_FILE)
    seed = _peer_seed(directory / PEER_FILE)
    return Identity(
        directory=directory,
        address=address,
        eth_key=eth_key,
        peer_seed=seed,
        peer_id=peer_id_from_seed(seed),
        instance=_instance(directory / INSTANCE_FILE),
    )


def read_address(directory: Path) -> Address:
    """Whose directory it is; it isn't locked and nothing is made.

    Raises:
        ConfigurationError: no worker ran there, or the key is damaged or readable by others.
    """
    return _read_eth_key(directory)[0]


def read_eth_key(directory: Path) -> bytes:
    """The Ethereum key of a directory, 32 bytes, secret; it isn't locked and nothing is made.

    Raises:
        ConfigurationError: no worker ran there, or the key is damaged or readable by others.
    """
    return _read_eth_key(directory)[1]


def _read_eth_key(directory: Path) -> tuple[Address, bytes]:
    if read_private(directory / ETH_FILE) is None:
        raise ConfigurationError(f"no worker ran in {directory}", hint="name its data directory with --data")
    return _eth_key(directory / ETH_FILE)


def parse_private_key(text: str, *, place: Path) -> bytes:
    """A private key as people keep it: 64 hex digits, with or without ``0x``.

    Raises:
        ConfigurationError: it isn't one; the text isn't repeated.
    """
    try:
        key = bytes.fromhex(text.strip().removeprefix("0x"))
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES or not any(key):
        raise ConfigurationError(f"{place} holds no private key", hint="it has 64 hex digits, with or without 0x")
    return key


def _eth_key(path: Path) -> tuple[Address, bytes]:
    body = read_private(path)
    if body is None:
        from eth_account import Account

        account = Account.from_key(secrets.token_bytes(_KEY_BYTES))
        made = _EthKeyFile(address=account.address, private_key=account.key.hex().removeprefix("0x"))
        write_private(path, msgspec.json.encode(made))
        return made.address, bytes.fromhex(made.private_key)
    try:
        kept = msgspec.json.decode(body, type=_EthKeyFile)
        key = bytes.fromhex(kept.private_key)
    except (msgspec.MsgspecError, ValueError) as fault:
        raise _damaged(path) from fault
    if len(key) != _KEY_BYTES:
        raise _damaged(path)
    return kept.address, key


def _peer_seed(path: Path) -> bytes:
    body = read_private(path)
    if body is None:
        body = secrets.token_hex(_KEY_BYTES).encode()
        write_private(path, body)
    try:
        seed = bytes.fromhex(body.decode())
    except ValueError as fault:
        raise _damaged(path) from fault
    if len(seed) != _KEY_BYTES:
        raise _damaged(path)
    return seed


def _instance(path: Path) -> str:
    body = read_private(path)
    if body is None:
        body = uuid.uuid4().hex.encode()
        write_private(path, body)
    try:
        return uuid.UUID(body.decode().strip()).hex
    except ValueError as fault:
        raise _damaged(path) from fault


def _damaged(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is damaged", hint="bring it back from a copy; removing it makes this a new member of the swarm"
    )


def read_private(path: Path) -> bytes | None:
    """Read a file that nobody else may read; None where there is none.

    Raises:
        ConfigurationError: it can't be read, or others may read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise ConfigurationError(f"{path} can't be read: {fault.strerror}") from fault
    with open(descriptor, "rb") as file:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            raise ConfigurationError(f"{path} is readable by others", hint=f"chmod 600 {path}")
        return file.read()


def write_private(path: Path, body: bytes) -> None:
    """Write a 0600 file atomically and durably: after a crash there is the old content or the new one.

    Raises:
        OSError: the disk is full or the directory can't be written; nothing is half-written.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600 by itself
    try:
        with open(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
