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
    """The one fault in a group, so that callers can name what they catch; None where there are several.

    Several tasks may meet the same: a door that turns a worker away says so to the session, and to the turn under way.
    """
    faults = faults_in(group)
    said = {(type(fault), str(fault)) for fault in faults}
    return faults[0] if len(said) == 1 else None
