"""Wakes idle workers when a paced host may be asked again.

A worker that was refused for a host's pace would else come back at its next heartbeat, up to 10 s later. The ledger
knows when the next line of tasks opens; then as many hungry workers are nudged as lines opened. It costs nothing while
nobody is hungry.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

import structlog

from rendezvous.door.metrics import Metrics
from rendezvous.fleet import Fleet
from rendezvous.ledger.ledger import Ledger
from swarm.errors import SwarmError

__all__ = ["Pacer"]

log = structlog.get_logger()

#: At most this often, seconds; what opens meanwhile is served together.
ROUND_S: Final = 0.05
#: Workers woken a round: one turn takes as many tasks as the worker has slots.
NUDGES_A_ROUND: Final = 4
#: Longest sleep before the ledger is asked again: a nearer opening may have come since, seconds.
LOOK_S: Final = 1.0


class Pacer:
    """Nudges the hungry when there is something to have.

    Args:
        ledger: knows when lines open.
        fleet: knows who is hungry.
        rng: who is nudged.
    """

    def __init__(self, ledger: Ledger, fleet: Fleet, metrics: Metrics, *, rng: random.Random) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._metrics = metrics
        self._rng = rng
        self._hungry = asyncio.Event()

    def hungry(self) -> None:
        """A worker asked for more than it got."""
        self._hungry.set()

    async def run(self) -> None:
        """Nudge until cancelled."""
        while True:
            await self._hungry.wait()
            self._hungry.clear()
            try:
                while await self._round():
                    pass
            except SwarmError as fault:
                log.warning("pacer_waits", error=str(fault))
            await asyncio.sleep(ROUND_S)

    async def _round(self) -> bool:
        """Serve what opens next; False where nothing does, or nobody is hungry."""
        if not self._fleet.hungry():
            return False
        opens_at, opened = await self._ledger.read(lambda reader: reader.openings(self._ledger.now()))
        if opened:
            hungry = self._fleet.hungry()
            self._rng.shuffle(hungry)
            for worker in hungry[: min(opened, NUDGES_A_ROUND)]:
                if worker.session is not None:
                    worker.nudged = True
                    worker.session.nudge()
                    self._metrics.count("swarm_nudges_total")
            await asyncio.sleep(ROUND_S)
            return True
        if opens_at is None:
            return False
        await asyncio.sleep(min(LOOK_S, max(ROUND_S / 10, opens_at - self._ledger.now())))
        return True
