"""May a site that answers slowly take another of a worker's slots?

A site that hangs before it fails keeps a slot for as long as it hangs, whatever its pace is: at two requests a second
and 30 s each that is sixty slots. So the tasks of slow sites together take half of a worker's slots at most, while it
could have work of another site now or soon. Where there is none, slow sites take them all.

A site is slow while most of its tasks are held for long; one that hangs now and then isn't.
"""

from __future__ import annotations

from typing import Final

from swarm.model import Refusal, RefusalCode

__all__ = ["SLOW_FOR_S", "SLOW_S", "SOON_S", "check_slow", "is_slow", "next_share", "slots_for_slow"]

#: A task that was held for longer is a slow one: a page is fetched, parsed and uploaded in a fraction of that.
SLOW_S: Final = 3.0
#: How long a site counts as slow after the last slow task of it was seen.
SLOW_FOR_S: Final = 60.0
#: What counts as work of others is there now, or will be so soon: a bucket fills, a crawl-delay passes.
SOON_S: Final = 10.0
#: What one more task counts in the share of slow ones: a burst of five slow ones makes a fast site slow.
_WEIGHT: Final = 1 / 7
_MOSTLY: Final = 0.5
#: Less is none: it would only be remembered.
_NONE: Final = 0.01
#: Whether the odd slot is for slow sites changes so often: each of a worker's slots serves everybody in the end.
_ODD_S: Final = 60.0


def next_share(share: float, *, slow: bool) -> float:
    """The share of slow tasks among a site's last ones, after one more."""
    share += _WEIGHT * ((1.0 if slow else 0.0) - share)
    return 0.0 if share < _NONE else share


def is_slow(share: float) -> bool:
    """Whether a site of which this share of tasks is slow counts as slow itself."""
    return share > _MOSTLY


def slots_for_slow(slots: int, worker: int, *, now: float) -> int:
    """How many of a worker's slots slow sites may take together, while there is other work.

    Half of them. Where that isn't a whole number it is rounded up for every other worker, and for the others in the
    next minute: a worker of one slot serves either kind by turns.

    Args:
        slots: all of the worker's.
        worker: the ledger's number of it.
        now: ledger time, seconds.
    """
    return (slots + (worker + int(now / _ODD_S)) % 2) // 2


def check_slow(host: str, *, worker: int, slots: int, held: int, others: bool, now: float) -> Refusal | None:
    """Refuse a task of a slow site to a worker that holds its share of such.

    Args:
        host: the slow site.
        worker: the ledger's number of the worker.
        slots: how many slots it has; 0 where it never said.
        held: how many tasks of slow sites it holds.
        others: whether it could have work of a site that isn't slow, now or soon.
        now: ledger time, seconds.
    """
    most = slots_for_slow(slots, worker, now=now)
    if not others or not slots or held < most:
        return None
    return Refusal(
        RefusalCode.HOST_SLOW,
        f"{host} keeps tasks for more than {SLOW_S:g} s; of its {slots} slots this worker gives such sites {most} now, "
        "and keeps the others for sites that answer",
        details={"host": host, "held": held, "most": most},
    )
