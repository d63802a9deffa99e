"""Who calls? An API key is looked up by its hash; the answer is kept for a few seconds.

The ledger holds hashes only: a stolen database opens no door. A key revoked elsewhere (another root, the command
line) stops working within ``CACHE_S``; one revoked here, at once.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

from rendezvous.door.call import Caller
from rendezvous.ledger.values import WorkerRef
from swarm.model import Refusal, RefusalCode, Role

if TYPE_CHECKING:
    from rendezvous.ledger.ledger import Ledger
    from rendezvous.ledger.queries import KeyRow

__all__ = ["Keys", "bearer", "digest_of", "new_key"]

#: How long a look-up is believed, seconds: the longest a revoked key goes on working.
CACHE_S: Final = 5.0
MAX_CACHED: Final = 10_000
MAX_KEY_CHARS: Final = 128
_PREFIX: Final = {Role.WORKER: "swk_", Role.REQUESTER: "srq_", Role.OPERATOR: "sop_"}


def new_key(role: Role) -> str:
    """A fresh API key of 256 bits; the prefix tells people and secret scanners what it is."""
    return _PREFIX[role] + secrets.token_urlsafe(32)


def digest_of(secret: str) -> bytes:
    """What the ledger stores of a key or an invite. They are random, so a plain hash is enough."""
    return hashlib.sha256(secret.encode()).digest()


def bearer(header: str | None) -> str | None:
    """The key in an ``Authorization`` header, or None."""
    if header is None:
        return None
    scheme, _, key = header.partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key or len(key) > MAX_KEY_CHARS:
        return None
    return key


@attrs.define
class _Known:
    caller: Caller | Refusal
    until: float


class Keys:
    """API keys as the door knows them.

    Args:
        ledger: where they are stored.
        clock: monotonic seconds.
    """

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._known: dict[bytes, _Known] = {}

    async def caller(self, key: str | None) -> Caller | Refusal:
        """Who this key is, or why it opens nothing."""
        if key is None:
            return Refusal(RefusalCode.UNAUTHORIZED, "send your API key as 'Authorization: Bearer KEY'")
        try:
            digest = digest_of(key)
        except UnicodeEncodeError:
            return Refusal(RefusalCode.UNAUTHORIZED, "an API key is plain text; copy it again")
        return await self.caller_by_digest(digest)

    async def caller_by_digest(self, digest: bytes) -> Caller | Refusal:
        """Who the key of this hash is, or why it opens nothing (any more)."""
        now = self._clock()
        known = self._known.get(digest)
        if known is not None and known.until > now:
            return known.caller
        row = await self._ledger.read(lambda reader: reader.key(digest))
        if row is None:  # not kept: guesses must not push real keys out
            self._known.pop(digest, None)
            return Refusal(RefusalCode.UNAUTHORIZED, "this API key isn't known here; ask the operator for one")
        caller: Caller | Refusal
        if row.revoked:
            caller = _revoked(row)
        else:
            worker = WorkerRef(row.owner, row.instance) if row.role is Role.WORKER and row.instance else None
            caller = Caller(digest=digest, role=row.role, owner=row.owner, worker=worker, payout=row.payout)
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        self._known[digest] = _Known(caller, now + CACHE_S)
        return caller

    def forget(self) -> None:
        """Look every key up again: some were replaced or revoked."""
        self._known.clear()


def _revoked(row: KeyRow) -> Refusal:
    if row.revoked_why is None:
        return Refusal(RefusalCode.KEY_REVOKED, "this API key was revoked; ask the operator why")
    return Refusal(
        RefusalCode.KEY_REVOKED,
        f"this API key was revoked by {row.revoked_by}: {row.revoked_why}",
        details={"why": row.revoked_why},
    )
