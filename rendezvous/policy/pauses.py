"""Is the swarm, this host or this job paused? Who did it, why, and since when.

A pause stops grants and nothing else: what is held already may be finished, renewed and reported.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping

import attrs

from swarm.model import JobId, Refusal, RefusalCode

__all__ = ["Pause", "Pauses", "Scope", "check_paused", "pauses_of"]


class Scope(enum.StrEnum):
    """What is paused."""

    #: Everything.
    SWARM = "swarm"
    #: The tasks of one site.
    HOST = "host"
    #: The tasks of one job.
    JOB = "job"


@attrs.frozen(kw_only=True)
class Pause:
    """One pause.

    Args:
        scope: what it stops.
        name: the host, or the job's id; empty for the swarm.
        who: the operator.
        why: the operator's reason, for people.
        since: ledger time, Unix seconds.
    """

    scope: Scope
    name: str
    who: str
    why: str
    since: float


@attrs.frozen(kw_only=True)
class Pauses:
    """All pauses that hold now."""

    swarm: Pause | None = None
    hosts: Mapping[str, Pause] = attrs.field(factory=dict)
    jobs: Mapping[JobId, Pause] = attrs.field(factory=dict)


def pauses_of(pauses: Iterable[Pause]) -> Pauses:
    """Sort pauses by what they stop."""
    swarm: Pause | None = None
    hosts: dict[str, Pause] = {}
    jobs: dict[JobId, Pause] = {}
    for pause in pauses:
        if pause.scope is Scope.SWARM:
            swarm = pause
        elif pause.scope is Scope.HOST:
            hosts[pause.name] = pause
        else:
            jobs[pause.name] = pause
    return Pauses(swarm=swarm, hosts=hosts, jobs=jobs)


def check_paused(pauses: Pauses, *, host: str | None = None, job: JobId | None = None) -> Refusal | None:
    """Refuse what is paused, the widest pause first.

    Args:
        pauses: those that hold now.
        host: the task's; None asks about no host.
        job: the task's; None asks about no job.
    """
    found = pauses.swarm
    if found is None and host is not None:
        found = pauses.hosts.get(host)
    if found is None and job is not None:
        found = pauses.jobs.get(job)
    if found is None:
        return None
    what = "the swarm" if found.scope is Scope.SWARM else f"{found.scope.value} {found.name}"
    return Refusal(
        RefusalCode.PAUSED,
        f"{what} was paused by {found.who} at {_clock(found.since)}: {found.why or 'no reason given'}",
        details={
            "scope": found.scope.value,
            "name": found.name,
            "who": found.who,
            "why": found.why,
            "since": found.since,
        },
    )


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
