"""May a worker of this release work for this root, and run tasks with the versions that it has?

Releases N and N−1 meet, whichever of the two runs which. A release is "major.minor.patch"; patches never matter, and
before 1.0 a minor release may change as much as a major one after it. Beyond that all versions are approved, until the
operator pins a set of them: then only those are granted tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Final

from swarm.model import Refusal, RefusalCode

__all__ = ["WORKER", "check_approved", "check_release"]

#: What the release of the worker program is called among a worker's versions; the others are of kinds.
WORKER: Final = "worker"

_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\D.*)?\Z", re.DOTALL)


def check_release(theirs: str, ours: str) -> Refusal | None:
    """Refuse a worker more than one release away.

    Args:
        theirs: what the worker says it is.
        ours: what this root is.

    Returns:
        A ``Refusal`` saying who should upgrade, or None where both can work together.
    """
    mine, other = _release(ours), _release(theirs)
    if mine is None or other is None:
        return Refusal(
            RefusalCode.VERSION_UNSUPPORTED,
            f"{theirs!r} isn't a release of task-swarm; install one, {ours} is what this root runs",
        )
    (my_major, my_minor), (major, minor) = mine, other
    if my_major == major and abs(my_minor - minor) <= 1:
        return None
    if (major, minor) < (my_major, my_minor):
        what = f"this root runs {ours}, and a worker of {theirs} is too old for it; upgrade the worker"
    else:
        what = f"this root runs {ours}, which is too old for a worker of {theirs}; ask its operator to upgrade it"
    return Refusal(RefusalCode.VERSION_UNSUPPORTED, what, details={"root": ours, "worker": theirs})


def check_approved(kind: str, versions: Mapping[str, str], approved: Mapping[str, Set[str]]) -> Refusal | None:
    """Refuse a worker whose program, or whose executor of this kind, isn't of a version that the operator pinned.

    Args:
        kind: of the task.
        versions: what the worker runs, by name.
        approved: the pinned versions by name; a name that isn't in it, or has none, is free.
    """
    for name in (WORKER, kind):
        pinned = approved.get(name)
        runs = versions.get(name)
        if pinned and runs not in pinned:
            listed = ", ".join(sorted(pinned))
            return Refusal(
                RefusalCode.VERSION_NOT_APPROVED,
                f"{name} {runs or 'of no known version'} isn't approved here; approved: {listed}",
                details={"name": name, "version": runs, "approved": sorted(pinned)},
            )
    return None


def _release(text: str) -> tuple[int, int] | None:
    found = _RELEASE.match(text)
    return (int(found[1]), int(found[2])) if found else None
