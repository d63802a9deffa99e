"""The root's data directory: its lock, the swarm's key, the operator's key, and what the swarm is called.

``swarm.key`` is the Ed25519 seed that signs ``/settings`` and is the root's peer key: who loses it loses the swarm.
Roots that share a ledger share it too, and have a ``peer.key`` of their own for their peers.
Files are 0600 and written whole. Commands beside a running root (invite, keys) open the directory without its lock;
they touch the ledger alone.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import attrs
import msgspec
from msgspec import Meta

from swarm.errors import ConfigurationError, MalformedInput
from swarm.identity import lock_directory, read_private, write_private
from swarm.wire import MAX_INT, AddressText, Count, decode

__all__ = ["ContractFile", "RootDirectory", "SwarmFile", "adopt_swarm", "find_directory", "open_directory"]

SWARM_KEY: Final = "swarm.key"
PEER_KEY: Final = "peer.key"
OPERATOR_KEY: Final = "operator.key"
SWARM_FILE: Final = "swarm.json"
LEDGER: Final = "ledger.sqlite"
BLOCKS: Final = "blocks"
KNOWN_PEERS: Final = "peers.json"
COPIES: Final = "copies.json"
WALLET: Final = "wallet.json"
CONTRACT_FILE: Final = "contract.json"
_SEED_BYTES: Final = 32


class SwarmFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """``swarm.json``: what is chosen once, and where the door was last. No secrets."""

    network_id: str
    name: str
    url: str | None = None
    p2p_port: int | None = None


class ContractFile(msgspec.Struct, frozen=True, kw_only=True):
    """``contract.json``: the escrow contract that was deployed from here. No secrets."""

    chain_id: Annotated[int, Meta(ge=1, le=MAX_INT)]
    contract: AddressText
    block: Count
    payer: AddressText
    exit_delay_s: Count
    transaction: Annotated[str, Meta(max_length=128)]


@attrs.frozen(kw_only=True)
class RootDirectory:
    """A data directory that is in order.

    Args:
        seed: the swarm's Ed25519 seed, 32 bytes, secret.
    """

    path: Path
    seed: bytes = attrs.field(repr=False)
    swarm: SwarmFile

    @property
    def ledger_url(self) -> str:
        """The SQLite ledger of this directory."""
        return f"sqlite:///{self.path / LEDGER}"

    @property
    def blocks(self) -> Path:
        """Where blocks are kept."""
        return self.path / BLOCKS

    @property
    def known_peers(self) -> Path:
        """Where the peer keeps whom it met."""
        return self.path / KNOWN_PEERS

    @property
    def copies(self) -> Path:
        """How far small manifests were copied into Kubo."""
        return self.path / COPIES

    @property
    def wallet(self) -> Path:
        """The encrypted keystore of the key that pays, where this root has one."""
        return self.path / WALLET

    @property
    def contract_file(self) -> Path:
        """Where the contract that was deployed from here is noted."""
        return self.path / CONTRACT_FILE

    def contract(self) -> ContractFile | None:
        """The contract that was deployed from here; None where none was.

        Raises:
            ConfigurationError: the file is damaged.
        """
        body = read_private(self.contract_file)
        if body is None:
            return None
        try:
            return decode(body, ContractFile)
        except MalformedInput as fault:
            raise ConfigurationError(
                f"{self.contract_file} is damaged: {fault}", hint="bring it back from a copy, or give --contract"
            ) from fault

    def keep_contract(self, deployed: ContractFile) -> None:
        """Note a contract that was deployed from here."""
        write_private(self.contract_file, msgspec.json.format(msgspec.json.encode(deployed)) + b"\n")

    def own_seed(self) -> bytes:
        """The Ed25519 seed of this root alone, 32 bytes, secret; made at the first call.

        Roots that share the swarm's key need one each: two peers can't have the same id.

        Raises:
            ConfigurationError: its file is damaged or readable by others.
        """
        body = read_private(self.path / PEER_KEY)
        if body is None:
            body = secrets.token_hex(_SEED_BYTES).encode() + b"\n"
            write_private(self.path / PEER_KEY, body)
        try:
            seed = bytes.fromhex(body.decode().strip())
        except ValueError:
            seed = b""
        if len(seed) != _SEED_BYTES:
            raise ConfigurationError(f"{self.path / PEER_KEY} is damaged", hint="delete it; a new one is made")
        return seed

    @property
    def operator_key_file(self) -> Path:
        """The file of the operator's API key."""
        return self.path / OPERATOR_KEY

    def operator_key(self) -> str | None:
        """The operator's API key; None where none was made yet.

        Raises:
            ConfigurationError: its file is damaged.
        """
        body = read_private(self.operator_key_file)
        if body is None:
            return None
        key = body.decode("ascii", errors="replace").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigurationError(
                f"{self.operator_key_file} is damaged", hint="delete it; the next start makes a new one"
            )
        return key

    def keep_operator_key(self, key: str) -> None:
        """Store the operator's API key."""
        write_private(self.operator_key_file, key.encode() + b"\n")

    def keep(self, *, url: str, name: str | None, p2p_port: int | None) -> RootDirectory:
        """Note where the door is, what the swarm is called, and the peer's port for the next start."""
        swarm = msgspec.structs.replace(
            self.swarm, url=url, name=name or self.swarm.name, p2p_port=p2p_port or self.swarm.p2p_port
        )
        if swarm != self.swarm:
            write_private(self.path / SWARM_FILE, msgspec.json.format(msgspec.json.encode(swarm)) + b"\n")
        return attrs.evolve(self, swarm=swarm)


@contextlib.contextmanager
def open_directory(path: Path, *, name: str | None = None) -> Iterator[RootDirectory]:
    """Lock the data directory; a first use makes it, its key and its network id.

    *Resource handling*: the lock is held until the block is left.

    Raises:
        DirectoryLocked: another root uses it.
        ConfigurationError: it can't be used, or a file in it is damaged or readable by others.
    """
    with lock_directory(path):
        if (path / SWARM_KEY).exists() != (path / SWARM_FILE).exists():
            missing = SWARM_KEY if (path / SWARM_FILE).exists() else SWARM_FILE
            raise ConfigurationError(
                f"{path} has no {missing} any more", hint="bring it back from a copy; a new one is another swarm"
            )
        if not (path / SWARM_KEY).exists():
            write_private(path / SWARM_KEY, secrets.token_hex(_SEED_BYTES).encode() + b"\n")
            fresh = SwarmFile(network_id=secrets.token_hex(8), name=name or socket.gethostname()[:64] or "swarm")
            write_private(path / SWARM_FILE, msgspec.json.format(msgspec.json.encode(fresh)) + b"\n")
        yield find_directory(path)


def adopt_swarm(path: Path, source: Path) -> None:
    """Make a data directory for a further root of a swarm.

    Args:
        path: the new directory.
        source: another root's data directory, or one with copies of its swarm.key and swarm.json.

    Raises:
        DirectoryLocked: a root uses the new directory.
        ConfigurationError: the source is none, or the new directory is another swarm's already.
    """
    if not (source / SWARM_KEY).exists():
        raise ConfigurationError(
            f"there is no {SWARM_KEY} in {source}",
            hint=f"name the first root's data directory, or one with copies of its {SWARM_KEY} and {SWARM_FILE}",
        )
    first = find_directory(source)
    with lock_directory(path):
        if (path / SWARM_KEY).exists() or (path / SWARM_FILE).exists():
            raise ConfigurationError(f"{path} belongs to a swarm already", hint="name a new directory with --data")
        write_private(path / SWARM_KEY, first.seed.hex().encode() + b"\n")
        swarm = SwarmFile(network_id=first.swarm.network_id, name=first.swarm.name)
        write_private(path / SWARM_FILE, msgspec.json.format(msgspec.json.encode(swarm)) + b"\n")


def find_directory(path: Path) -> RootDirectory:
    """Read a data directory that was made before, without locking it.

    Raises:
        ConfigurationError: there is none there, or a file in it is damaged or readable by others.
    """
    seed_text, body = read_private(path / SWARM_KEY), read_private(path / SWARM_FILE)
    if seed_text is None or body is None:
        raise ConfigurationError(
            f"{path} is no root's data directory", hint="swarm-root init --data DIR makes one; or name it with --data"
        )
    try:
        seed = bytes.fromhex(seed_text.decode().strip())
        swarm = msgspec.json.decode(body, type=SwarmFile)
    except (ValueError, msgspec.MsgspecError) as fault:
        raise ConfigurationError(f"a file in {path} is damaged: {fault}", hint="bring it back from a copy") from fault
    if len(seed) != _SEED_BYTES:
        raise ConfigurationError(f"{path / SWARM_KEY} is damaged", hint="bring it back from a copy")
    return RootDirectory(path=path, seed=seed, swarm=swarm)
