"""What went wrong in a nursery: the faults in a group of groups, without the cancellations that follow from them."""

from __future__ import annotations

import trio

__all__ = ["faults_in", "the_one_fault"]


def faults_in(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """All faults of a group and of the groups in it, in order."""
    found: list[BaseException] = []
    for fault in group.exceptions:
        if isinstance(fault, BaseExceptionGroup):
            found += faults_in(fault)
        elif not isinstance(fault, trio.Cancelled):
            found.append(fault)
    return found


def the_one_fault(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The one fault in a group, so that callers can name what they catch; None where there are several."""
    faults = faults_in(group)
    return faults[0] if len(faults) == 1 else None
