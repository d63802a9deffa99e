"""Every exception of the project, split by who is to blame.

Refusals (a lost claim, a stale fence) are values, not exceptions: see ``swarm.model.Refusal``. What is raised here is
a fault::

    SwarmError
    ├── ClosedError              we closed it: used after close, or the session is shutting down
    │   └── QueueClosed          … a queue
    ├── PeerError                the other side broke the protocol
    │   ├── MalformedInput       bytes that don't parse, or break a cap
    │   ├── ContentMismatch      bytes that don't hash to the CID they were asked by
    │   ├── UntrustedSettings    settings that aren't signed by the key we trust
    │   └── RpcSaid              the chain's node answered with an error (its code, message, data)
    ├── UnreachableError         nobody answered in time
    │   ├── DoorUnreachable      … the door
    │   ├── IpfsUnreachable      … the IPFS address
    │   │   └── BlockNotFound    … for one block: it answered that it doesn't have it
    │   ├── LedgerUnavailable    … the database, or its disk is full
    │   ├── QueueUnreachable     … the server that keeps a queue
    │   └── RpcUnreachable       … the chain's node
    ├── StoreFull                a block doesn't fit: our cap is reached, or the disk is full
    ├── DoorRefused              the door answered with an error (its code, message, status)
    └── ConfigurationError       the operator or worker configured it wrongly
        └── DirectoryLocked      another process uses this data directory

Data is in attributes, not only in the message.
"""

from __future__ import annotations

__all__ = [
    "BlockNotFound",
    "ClosedError",
    "ConfigurationError",
    "ContentMismatch",
    "DirectoryLocked",
    "DoorRefused",
    "DoorUnreachable",
    "IpfsUnreachable",
    "LedgerUnavailable",
    "MalformedInput",
    "PeerError",
    "QueueClosed",
    "QueueUnreachable",
    "RpcSaid",
    "RpcUnreachable",
    "StoreFull",
    "SwarmError",
    "UnreachableError",
    "UntrustedSettings",
]


class SwarmError(Exception):
    """The base of all faults; ``hint`` says what to do, where there is something to do.

    A traceback shows the hint as a note: in a program of others nobody else prints it.
    """

    hint: str | None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint is not None:
            self.add_note(hint)


class ClosedError(SwarmError):
    """We closed it ourselves."""


class QueueClosed(ClosedError):
    """The queue was closed; what is in flight stays in flight."""


class PeerError(SwarmError):
    """The other side broke the protocol."""


class MalformedInput(PeerError):
    """Bytes from outside that don't parse, or break a cap."""


class ContentMismatch(PeerError):
    """Bytes that don't hash to the CID they were asked by."""

    def __init__(self, cid: str, message: str) -> None:
        super().__init__(message)
        self.cid = cid


class UntrustedSettings(PeerError):
    """Settings that aren't signed by the key this worker trusts."""


class UnreachableError(SwarmError):
    """Nobody answered in time; ``address`` is what was tried."""

    def __init__(self, address: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{address}: {reason}", hint=hint)
        self.address = address
        self.reason = reason


class DoorUnreachable(UnreachableError):
    """The door didn't answer."""


class IpfsUnreachable(UnreachableError):
    """The IPFS address didn't answer, or answered with a fault of its own."""


class BlockNotFound(IpfsUnreachable):
    """The IPFS address answered, but doesn't have the block; ``cid`` is the block."""

    def __init__(self, address: str, cid: str) -> None:
        super().__init__(address, f"it doesn't have {cid}")
        self.cid = cid


class LedgerUnavailable(UnreachableError):
    """The database didn't answer, or can't write (a full disk)."""


class QueueUnreachable(UnreachableError):
    """The server that keeps a queue didn't answer, or can't do what was asked of it now."""


class RpcUnreachable(UnreachableError):
    """The chain's node didn't answer in time, or with something that is no JSON-RPC."""


class RpcSaid(PeerError):
    """The chain's node answered with an error.

    Attributes:
        code: JSON-RPC's.
        message: the node's own words; they differ from client to client.
        data: what a reverting call returned: the contract's error, ABI-encoded; empty where there is none.
    """

    def __init__(self, code: int, message: str, data: bytes = b"") -> None:
        super().__init__(f"the chain's node said: {message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class StoreFull(SwarmError):
    """A block doesn't fit; nothing of it was stored.

    Attributes:
        where: the directory or address.
        limit_bytes: the cap that was reached; None where the disk itself is full.
        why: what else keeps it from being written, such as a damaged file.
    """

    def __init__(self, where: str, *, limit_bytes: int | None = None, why: str | None = None) -> None:
        reason = "no space is left on its disk" if limit_bytes is None else f"its cap of {limit_bytes} bytes is reached"
        hint = "free some space, or raise --max-disk" if why is None else "bring it back from a copy"
        super().__init__(f"{where}: {why or reason}", hint=hint)
        self.where = where
        self.limit_bytes = limit_bytes


class DoorRefused(SwarmError):
    """The door answered with an error.

    Attributes:
        code: the stable code (``swarm.model.RefusalCode`` where this version knows it).
        status: the HTTP status.
        retry_after_s: when to ask again, seconds, or None.
        details: what the door added.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 400,
        retry_after_s: float | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s
        self.details = details or {}


class ConfigurationError(SwarmError):
    """The operator or the worker's owner configured it wrongly."""


class DirectoryLocked(ConfigurationError):
    """Another process uses this data directory."""
