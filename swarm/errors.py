"""Every exception of the project, split by who is to blame.

Refusals (a lost claim, a stale fence) are values, not exceptions: see ``swarm.model.Refusal``. What is raised here is
a fault::

    SwarmError
    ├── ClosedError              we closed it: used after close, or the session is shutting down
    ├── PeerError                the other side broke the protocol
    │   ├── MalformedInput       bytes that don't parse, or break a cap
    │   ├── ContentMismatch      bytes that don't hash to the CID they were asked by
    │   └── UntrustedSettings    settings that aren't signed by the key we trust
    ├── UnreachableError         nobody answered in time
    │   ├── DoorUnreachable      … the door
    │   ├── IpfsUnreachable      … the IPFS address
    │   └── LedgerUnavailable    … the database, or its disk is full
    ├── DoorRefused              the door answered with an error (its code, message, status)
    └── ConfigurationError       the operator or worker configured it wrongly
        └── DirectoryLocked      another process uses this data directory

Data is in attributes, not only in the message.
"""

from __future__ import annotations

__all__ = [
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
    "SwarmError",
    "UnreachableError",
    "UntrustedSettings",
]


class SwarmError(Exception):
    """The base of all faults; ``hint`` says what to do, where there is something to do."""

    hint: str | None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ClosedError(SwarmError):
    """We closed it ourselves."""


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


class LedgerUnavailable(UnreachableError):
    """The database didn't answer, or can't write (a full disk)."""


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
