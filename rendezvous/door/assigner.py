"""``--mode assign``: the root pushes tasks over the sessions to whoever has least to do; nobody asks.

It wakes when a task is ready, a worker has a free slot, or a paced host opens, and assigns all that fits in one
operation of the ledger, which alone knows who holds how much. A push that is lost costs nothing: what a worker's next
turn doesn't hold is granted to it again. Workers without a session ask by their turns as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from rendezvous.door.metrics import Metrics
from rendezvous.door.turns import grant_of
from rendezvous.fleet import Fleet, Worker
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.ops import Assign, Assignable, Assigned
from swarm.errors import SwarmError
from swarm.model import Status
from swarm.turn_wire import GrantPush

__all__ = ["Assigner"]

log = structlog.get_logger()

#: What comes within this is assigned together, seconds.
ROUND_S: Final = 0.02
#: After the ledger couldn't be had, seconds.
RETRY_S: Final = 1.0
#: Longest sleep while a host's pace keeps something closed: a nearer opening may have come since, seconds.
LOOK_S: Final = 1.0


class Assigner:
    """Assigns ready tasks to free slots.

    Args:
        ledger: assigns, and knows when lines open.
        fleet: knows who has a session and free slots.
        rules_of: the rules of robots.txt for a URL, where they are at hand.
        clock: monotonic seconds, the fleet's.
    """

    def __init__(
        self,
        ledger: Ledger,
        fleet: Fleet,
        metrics: Metrics,
        *,
        rules_of: Callable[[str], str | None],
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._metrics = metrics
        self._rules_of = rules_of
        self._clock = clock
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be something to assign."""
        self._woken.set()

    async def run(self) -> None:
        """Assign until cancelled."""
        again_in_s: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_in_s):
                    await self._woken.wait()
            self._woken.clear()
            try:
                again_in_s = await self._round()
            except SwarmError as fault:
                log.warning("assigner_waits", error=str(fault))
                again_in_s = RETRY_S
            await asyncio.sleep(ROUND_S)

    async def _round(self) -> float | None:
        """Assign what fits now.

        Returns:
            When to look again although nothing woke it, seconds; None where nothing can open by itself.
        """
        free = {worker.ref: worker for worker in self._fleet.assignable()}
        if not free:
            return None
        # Before the ledger's own "now", so that a lease that is counted from here ends no later at the worker.
        asked_at = self._clock()
        known = {
            ref: (worker.boot, worker.turn_n, asked_at - (worker.last_turn or 0.0)) for ref, worker in free.items()
        }
        assigned = await self._ledger.call(
            Assign(
                workers=tuple(
                    Assignable(
                        worker=worker.ref, boot=worker.boot, facts=worker.facts, free=worker.free, slots=worker.slots
                    )
                    for worker in free.values()
                )
            )
        )
        for one in assigned:
            self._push(free[one.worker], one, *known[one.worker])
        opens_at, _ = await self._ledger.read(lambda reader: reader.openings(self._ledger.now()))
        if opens_at is not None:
            return min(LOOK_S, max(ROUND_S, opens_at - self._ledger.now()))
        # What else keeps ready tasks back (the pace of the whole swarm, others' turns at a host) opens untold.
        counts = await self._ledger.read(lambda reader: reader.counts())
        return LOOK_S if counts[Status.PENDING] else None

    def _push(self, worker: Worker, assigned: Assigned, boot: str, n: int, after_s: float) -> None:
        self._fleet.set_free(worker, worker.free - len(assigned.granted))
        worker.pushed_at = self._clock()
        for grant in assigned.granted:
            self._metrics.count("swarm_grants_total", via=grant.via.value)
        if worker.session is not None:
            worker.session.grant(
                GrantPush(
                    boot=boot,
                    n=n,
                    after_s=max(0.0, after_s),
                    grants=tuple(grant_of(grant, self._rules_of(grant.task.urls[0])) for grant in assigned.granted),
                )
            )
