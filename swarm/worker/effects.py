"""What the turns' state machine tells the worker to do: plain values.

``Start`` and ``Stop`` are about executions, ``Settled`` and ``Shelved`` about outcomes, ``Promised`` about money.
Nothing here does anything.
"""

from __future__ import annotations

import enum

import attrs

from swarm.model import TaskId
from swarm.turn_wire import Done, Failed, Grant, Released, SignedVoucher
from swarm.wire import ErrorBody

Entry = Done | Failed | Released


class StopReason(enum.StrEnum):
    """Why an execution is stopped from outside."""

    #: The door says that the lease isn't ours any more.
    LOST = "lost"
    CANCELLED = "cancelled"
    #: No renewal was acknowledged for a whole lease.
    UNANSWERED = "unanswered"
    NOT_STARTED = "not_started"
    #: The same task was granted to us anew.
    SUPERSEDED = "superseded"
    #: We give it back: a drain that is over, or a fault of our own.
    RELEASED = "released"


class Verdict(enum.StrEnum):
    """What became of a reported outcome."""

    TAKEN = "taken"
    #: Refused for the lease; the result is good for a new grant.
    STALE = "stale"
    #: Refused for good.
    REFUSED = "refused"
    #: The root couldn't read what the manifest names: upload again, then report again.
    UNREADABLE = "unreadable"


@attrs.frozen(kw_only=True)
class Start:
    """Begin a granted task."""

    grant: Grant


@attrs.frozen(kw_only=True)
class Stop:
    """Stop all work on a lease at once, and send no further request to the site."""

    task: TaskId
    fence: int
    why: StopReason


@attrs.frozen(kw_only=True)
class Settled:
    """An outcome was answered."""

    entry: Entry
    verdict: Verdict
    status: str | None = None
    error: ErrorBody | None = None


@attrs.frozen(kw_only=True)
class Shelved:
    """A result whose lease ran out before it could be said: keep it for a new grant."""

    entry: Done


@attrs.frozen(kw_only=True)
class Promised:
    """The root says what it owes: check it, and keep it."""

    vouchers: tuple[SignedVoucher, ...]


Effect = Start | Stop | Settled | Shelved | Promised
