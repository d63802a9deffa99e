"""May a worker of this release work for this root?

Releases N and N−1 meet, whichever of the two runs which. A release is "major.minor.patch"; patches never matter, and
before 1.0 a minor release may change as much as a major one after it. The rule knows nothing of kinds and executors.
"""

from __future__ import annotations

import re

from swarm.model import Refusal, RefusalCode

__all__ = ["check_release"]

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


def _release(text: str) -> tuple[int, int] | None:
    found = _RELEASE.match(text)
    return (int(found[1]), int(found[2])) if found else None
