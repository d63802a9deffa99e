"""Bugs of the ledger that are planted into a simulated life, to show that the simulation finds them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from rendezvous.ledger import turns
from rendezvous.ledger.guards import check_lease
from rendezvous.ledger.rows import TaskRow
from swarm.model import Refusal, Status

__all__ = ["Bug", "plant"]


class Bug(StrEnum):
    """What is wrong."""

    #: The guard of a lease is dropped: whoever reports an outcome of an active task ends it.
    NO_GUARD = "no_guard"
    #: The guard doesn't compare the fence: a lease that is over ends the one that came after it.
    NO_FENCE = "no_fence"


def plant(bug: Bug | None) -> None:
    """Plant a bug into this process, or take out the one before."""
    guards: dict[Bug | None, Any] = {None: check_lease, Bug.NO_GUARD: _no_guard, Bug.NO_FENCE: _no_fence}
    turns.check_lease = guards[bug]


def _no_guard(row: TaskRow, worker: int, fence: int, *, now: float) -> Refusal | None:
    return None if row.status is Status.ACTIVE else check_lease(row, worker, fence, now=now)


def _no_fence(row: TaskRow, worker: int, fence: int, *, now: float) -> Refusal | None:
    del fence
    return check_lease(row, worker, row.fence, now=now)
