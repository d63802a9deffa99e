"""When is it time to call the operator? Pure rules over counts of a sliding window, with room between on and off.

An alert that began ends only once things are clearly better, so that a count on the edge isn't told again and again.
"""

from __future__ import annotations

from typing import Final

import attrs

__all__ = ["WINDOW_S", "AlarmRules", "Counts", "check_count", "check_queue_age", "check_success"]

#: What is counted is what happened in the last ten minutes, the window of the published fleet's own alarms.
WINDOW_S: Final = 600.0
#: Below so many outcomes a share says nothing.
OUTCOMES_LEAST: Final = 20
#: A dip is over when the share is so much above the threshold again.
SUCCESS_ROOM: Final = 0.1
#: A count or an age is over when it is below this share of its threshold.
END_SHARE: Final = 0.8


@attrs.frozen(kw_only=True)
class AlarmRules:
    """The thresholds; 0 turns a rule off.

    Args:
        success: the share of a worker's attempts that should succeed.
        queue_age_s: how long a ready task may wait.
        expiries: leases or tasks that may run out in the window.
        blocks: blocks of one host in the window.
    """

    success: float = 0.5
    queue_age_s: float = 3_600.0
    expiries: int = 20
    blocks: int = 5


@attrs.frozen(kw_only=True)
class Counts:
    """A worker's outcomes in the window."""

    done: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """How many there are."""
        return self.done + self.failed

    @property
    def share(self) -> float:
        """Of those, how many succeeded; 1 where there is none."""
        return self.done / self.total if self.total else 1.0


def check_success(counts: Counts, rules: AlarmRules, *, lasts: bool) -> bool:
    """Whether a worker's success has dipped.

    Args:
        counts: of the window.
        rules: the thresholds.
        lasts: whether the alert has begun already.
    """
    if not rules.success or counts.total < (OUTCOMES_LEAST // 2 if lasts else OUTCOMES_LEAST):
        return False
    return counts.share < rules.success + (SUCCESS_ROOM if lasts else 0.0)


def check_count(count: float, threshold: float, *, lasts: bool) -> bool:
    """Whether something happens too often, or lasts too long.

    Args:
        count: of the window, or seconds.
        threshold: from which on it is too much; 0 is never.
        lasts: whether the alert has begun already.
    """
    return threshold > 0 and count >= threshold * (END_SHARE if lasts else 1.0)


def check_queue_age(age_s: float | None, rules: AlarmRules, *, lasts: bool) -> bool:
    """Whether the task that has been ready for longest waits for too long; None is "none is ready"."""
    return age_s is not None and check_count(age_s, rules.queue_age_s, lasts=lasts)
