"""Which worker has this profile, this session? What a site knows of a visitor stays where it began.

A *profile* is a named context that a worker's owner set up (the worker says so by the label ``profile:NAME``): its
cookies never leave that worker, nor travel with a task that is given to another. It matures with its first accepted
tasks, which come one a while; then it is ready; after several challenges it is retired, for good. A *session* is begun
by whoever is granted its first task, and its other tasks keep to that worker while it is in use.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from swarm.model import Refusal, RefusalCode

__all__ = [
    "MATURE_AFTER",
    "RETIRED_AFTER",
    "SESSION_KEPT_S",
    "Context",
    "ContextKind",
    "ProfileState",
    "challenged",
    "check_profile",
    "check_session",
    "state_of",
]

#: So many accepted tasks make a profile ready …
MATURE_AFTER: Final = 10
#: … until then it gets one in so long, seconds.
MATURING_PACE_S: Final = 60.0
#: So many challenges retire it.
RETIRED_AFTER: Final = 3
#: A session that nothing was granted of for so long may begin anew elsewhere, seconds.
SESSION_KEPT_S: Final = 3_600.0


class ContextKind(enum.StrEnum):
    """What keeps tasks together."""

    PROFILE = "profile"
    SESSION = "session"


class ProfileState(enum.StrEnum):
    """How far a profile is."""

    MATURING = "maturing"
    READY = "ready"
    RETIRED = "retired"


@attrs.frozen(kw_only=True)
class Context:
    """A profile or session that was begun.

    Args:
        worker: who has it (the ledger's number).
        used_at: when a task of it was last granted, ledger seconds.
        accepted: how many tasks of it were accepted.
        challenges: how often a site turned it away.
    """

    worker: int
    used_at: float
    accepted: int = 0
    challenges: int = 0


def state_of(context: Context | None) -> ProfileState:
    """How far a profile is; one that was never used is maturing."""
    if context is None:
        return ProfileState.MATURING
    if context.challenges >= RETIRED_AFTER:
        return ProfileState.RETIRED
    return ProfileState.READY if context.accepted >= MATURE_AFTER else ProfileState.MATURING


def challenged(context: Context) -> Context:
    """The context after a site turned it away once more."""
    return attrs.evolve(context, challenges=context.challenges + 1)


def check_profile(name: str, context: Context | None, worker: int, *, now: float) -> Refusal | None:
    """Refuse a profile that is at another worker, is retired, or matures and had a task a moment ago.

    Args:
        name: of the profile; the worker says that it has it.
        context: what is known of it; None before its first task.
        worker: who asks (the ledger's number).
        now: ledger time, seconds.
    """
    if context is None:
        return None
    state = state_of(context)
    if state is ProfileState.RETIRED:
        return Refusal(
            RefusalCode.PROFILE_RETIRED,
            f"the profile {name} was turned away {context.challenges} times and is retired: use another name",
            details={"profile": name, "challenges": context.challenges},
        )
    if context.worker != worker:
        return Refusal(RefusalCode.PROFILE, f"the profile {name} is another worker's, and never leaves it")
    left_s = context.used_at + MATURING_PACE_S - now
    if state is ProfileState.MATURING and left_s > 0:
        return Refusal(
            RefusalCode.PROFILE_MATURING,
            f"the profile {name} is maturing ({context.accepted} of {MATURE_AFTER} tasks accepted): one task in "
            f"{MATURING_PACE_S:.0f} s, the next in {left_s:.0f} s",
            retry_after_s=left_s,
            details={"profile": name, "accepted": context.accepted},
        )
    return None


def check_session(name: str, context: Context | None, worker: int, *, now: float) -> Refusal | None:
    """Refuse a session that another worker began and that is in use.

    Args:
        name: of the session.
        context: what is known of it; None before its first task.
        worker: who asks (the ledger's number).
        now: ledger time, seconds.
    """
    if context is None or context.worker == worker or now - context.used_at >= SESSION_KEPT_S:
        return None
    left_s = context.used_at + SESSION_KEPT_S - now
    return Refusal(
        RefusalCode.SESSION_ELSEWHERE,
        f"another worker began the session {name}: its tasks stay there while it is used",
        retry_after_s=left_s,
        details={"session": name},
    )
