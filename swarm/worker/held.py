"""A lease that this worker holds: how far the work on it is, and until when. Values of the state machine ``turns``.

Times are the worker's own clock; a lease runs from when the turn was sent that was answered with it.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from swarm.model import TaskId

__all__ = ["Lease", "Stage"]

#: A lease is renewed when a third of it has passed (DESIGN §7).
RENEW_AFTER_SHARE: Final = 1 / 3
#: A grant that no slot has begun by then is given back; slots are counted, so this means that one is stuck.
START_WITHIN_SHARE: Final = 1 / 3


class Stage(enum.Enum):
    """How far the work on a lease is."""

    #: Granted; no slot has begun it.
    WAITING = enum.auto()
    RUNNING = enum.auto()
    #: Executed; its result is being stored and uploaded.
    STORING = enum.auto()
    #: Its outcome is said, or waits to be said, and isn't answered. It takes no slot.
    REPORTING = enum.auto()


@attrs.define(kw_only=True)
class Lease:
    """A lease that this worker holds.

    Args:
        acknowledged_at: when the turn was sent whose answer granted or last renewed it.
        lease_s: how long it runs from then.
    """

    task: TaskId
    fence: int
    acknowledged_at: float
    lease_s: float
    granted_at: float
    stage: Stage = Stage.WAITING
    renew_at: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.renew_at = self.acknowledged_at + self.lease_s * RENEW_AFTER_SHARE

    @property
    def ends_at(self) -> float:
        """When we stop unless a renewal is acknowledged before."""
        return self.acknowledged_at + self.lease_s

    @property
    def start_by(self) -> float:
        """When it is given back unless a slot has begun it."""
        return self.granted_at + self.lease_s * START_WITHIN_SHARE

    def renew(self, *, sent_at: float, lease_s: float) -> None:
        """Take in an acknowledged renewal."""
        self.acknowledged_at = sent_at
        self.lease_s = lease_s
        self.renew_at = sent_at + lease_s * RENEW_AFTER_SHARE
