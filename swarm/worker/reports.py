"""Outcomes on their way to the door, and what its refusals of them mean."""

from __future__ import annotations

from typing import Final

import attrs

from swarm.model import RefusalCode
from swarm.worker.effects import Entry

__all__ = ["MALFORMED", "STALE", "TRANSIENT", "Report"]

#: The door is willing but not able: the same outcome is reported again later.
TRANSIENT: Final = frozenset(
    {
        RefusalCode.LEDGER_UNAVAILABLE,
        RefusalCode.IPFS_UNAVAILABLE,
        RefusalCode.STORE_FULL,
        RefusalCode.RATE_LIMITED,
        RefusalCode.SHUTTING_DOWN,
        RefusalCode.INTERNAL,
    }
)
#: The lease is over, but the result is good: a new grant of the task makes it welcome.
STALE: Final = frozenset({RefusalCode.INVALID_ASSIGNEE, RefusalCode.LEASE_EXPIRED})
#: The door can't parse the turn: an entry of it is at fault, and must not take its neighbours along.
MALFORMED: Final = frozenset({RefusalCode.BAD_REQUEST, RefusalCode.UNSTORABLE_TEXT, RefusalCode.BODY_TOO_LARGE})


@attrs.define(kw_only=True)
class Report:
    """An outcome that the door is to be told, until it says what became of it."""

    entry: Entry
    not_before: float
    tries: int = 0
    #: Said alone, since a turn with it in company was malformed.
    alone: bool = False
