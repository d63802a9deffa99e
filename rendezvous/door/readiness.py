"""Can the ledger be written? Tried by writing, since a full disk still lets itself be read.

Whoever asks more often than every few seconds gets the last answer, and who asks while one is being tried waits for
it: a probe that anybody may send never becomes a load on the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rendezvous.door.envelope import refusal_of
from rendezvous.ledger.ops import Probe
from swarm.errors import LedgerUnavailable, SwarmError
from swarm.model import Refusal

if TYPE_CHECKING:
    from rendezvous.ledger.ledger import Ledger

__all__ = ["Readiness"]

#: How long an answer is good, seconds: supervisors ask every five to ten.
GOOD_FOR_S: Final = 5.0
#: A commit takes milliseconds; supervisors give up after some seconds.
PATIENCE_S: Final = 3.0


class Readiness:
    """The last answer, and how old it is.

    Args:
        ledger: what is tried.
        clock: monotonic seconds.
    """

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._trying = asyncio.Lock()
        self._answer: Refusal | None = None
        self._tried_at: float | None = None

    async def check(self) -> Refusal | None:
        """Why the ledger can't be written; None where it can."""
        async with self._trying:
            if self._tried_at is None or self._clock() - self._tried_at >= GOOD_FOR_S:
                self._answer = await self._try()
                self._tried_at = self._clock()
            return self._answer

    async def _try(self) -> Refusal | None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._ledger.call(Probe())
        except TimeoutError:
            return refusal_of(LedgerUnavailable("the ledger", f"nothing was written within {PATIENCE_S:g} s"))
        except SwarmError as fault:
            refusal = refusal_of(fault)
            if refusal is None:
                raise
            return refusal
        return None
