"""May this worker have a task of this demand on this host now?

A *demand* is what a set of tasks asks of a worker: kind, requirements, and whom they pass over. All tasks of one demand
and one host stand in one line, so one answer serves the whole line. ``why`` and the grants run this same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Protocol

import attrs

from rendezvous.policy.budget import check_budget
from rendezvous.policy.contexts import Context, check_profile, check_session
from rendezvous.policy.egress import Flag, check_apart, check_egress
from rendezvous.policy.hours import Hours, check_hours
from rendezvous.policy.pacing import Bucket, check_host, check_swarm
from rendezvous.policy.pauses import Pauses, check_paused
from rendezvous.policy.records import CLEAN, Record, check_careful, check_record, check_troubled
from rendezvous.policy.retry import PASSED_OVER_S
from rendezvous.policy.slowness import check_slow
from rendezvous.policy.versions import check_approved
from swarm.model import JobId, Refusal, RefusalCode
from swarm.wire import Requires

__all__ = [
    "Candidate",
    "Contexts",
    "Demand",
    "Facts",
    "Rules",
    "check_contexts",
    "check_demand",
    "check_passed_over",
    "check_suspect",
    "decide",
]


class Facts(Protocol):
    """What a worker said it is."""

    @property
    def kinds(self) -> Set[str]:
        """The kinds of task it runs."""

    @property
    def labels(self) -> Set[str]:
        """Free words of its owner."""

    @property
    def region(self) -> str | None:
        """Where it is."""

    @property
    def prefix(self) -> str | None:
        """The network that it comes from, where that is known."""

    @property
    def slots(self) -> int:
        """How many tasks it runs at once; 0 where it never said."""

    @property
    def versions(self) -> Mapping[str, str]:
        """What it runs, by name."""


@attrs.frozen(kw_only=True)
class Demand:
    """What a set of tasks asks of a worker.

    Args:
        tier: the share of the capacity that they belong to.
        kind: what runs them.
        requires: what the requester asks of the worker.
        passed_over: workers that lost these tasks lately (the ledger's numbers of them).
        suspect: these tasks may be what ended their workers (``retry.is_suspect``).
        careful: they were taken from a worker in quarantine (``records.check_careful``).
        parked: their jobs are paused; they stand aside, so that they aren't in the way of others.
    """

    tier: str
    kind: str
    requires: Requires
    passed_over: frozenset[int] = frozenset()
    suspect: bool = False
    careful: bool = False
    parked: bool = False

    @property
    def has_context(self) -> bool:
        """Whether it names a profile or a session."""
        return self.requires.profile is not None or self.requires.session is not None


@attrs.frozen(kw_only=True)
class Contexts:
    """What is known of the profile and the session that a demand names; None before their first tasks."""

    profile: Context | None = None
    session: Context | None = None


@attrs.frozen(kw_only=True)
class Candidate:
    """A worker that asks for a task of a host, and what is known of it there.

    Args:
        number: the ledger's number of it.
        facts: what it said it is.
        record: what is held against it on the host.
        flag: what is held against its network on the host.
        troubled: how many hosts it is kept off now.
        crowded: see ``egress.check_apart``.
        proven: whether some of its work was ever accepted.
        held: how many tasks it holds.
        budget: how many it may hold; None is no limit.
        holds_suspect: see ``check_suspect``.
        slow_held: how many tasks of slow hosts it holds (``slowness``).
        others: whether it could have work of a host that isn't slow, now or soon.
    """

    number: int
    facts: Facts
    record: Record = CLEAN
    flag: Flag | None = None
    troubled: int = 0
    crowded: bool = False
    proven: bool = True
    held: int = 0
    budget: int | None = None
    holds_suspect: bool = False
    slow_held: int = 0
    others: bool = False


@attrs.frozen(kw_only=True)
class Rules:
    """What the operator said that holds for the whole swarm.

    Args:
        pauses: what is paused.
        approved: the pinned versions by name; a name that isn't there is free.
        hours: when workers of a region work; a region that isn't there works at any time.
    """

    pauses: Pauses = attrs.field(factory=Pauses)
    approved: Mapping[str, Set[str]] = attrs.field(factory=dict)
    hours: Mapping[str, Hours] = attrs.field(factory=dict)


def check_demand(demand: Demand, facts: Facts) -> Refusal | None:
    """Refuse a worker that can't run the kind, or lacks what is required."""
    if demand.kind not in facts.kinds:
        return Refusal(RefusalCode.KIND_UNSUPPORTED, f"this worker doesn't run tasks of the kind {demand.kind}")
    profile = demand.requires.profile
    if profile is not None and f"profile:{profile}" not in facts.labels:
        return Refusal(RefusalCode.PROFILE, f"the task is of the profile {profile}, which this worker doesn't have")
    missing = _missing(demand.requires, facts)
    if missing is not None:
        return Refusal(RefusalCode.REQUIRES_UNMET, f"the task asks for {missing}, which this worker doesn't have")
    return None


def _missing(requires: Requires, facts: Facts) -> str | None:
    """The first requirement that isn't met; profiles and sessions have rules of their own (``contexts.py``)."""
    if requires.region is not None and requires.region != facts.region:
        return f"the region {requires.region}"
    for label in requires.labels:
        if label not in facts.labels:
            return f"the label {label}"
    for name, version in requires.versions.items():
        if facts.versions.get(name) != version:
            return f"{name} {version}"
    return None


def check_contexts(demand: Demand, contexts: Contexts, worker: int, *, now: float) -> Refusal | None:
    """Refuse a profile or session that isn't this worker's to use now.

    Args:
        demand: which names them.
        contexts: what is known of them.
        worker: the ledger's number of who asks.
        now: ledger time, seconds.
    """
    profile, session = demand.requires.profile, demand.requires.session
    refusal = None if profile is None else check_profile(profile, contexts.profile, worker, now=now)
    if refusal is None and session is not None:
        refusal = check_session(session, contexts.session, worker, now=now)
    return refusal


def check_passed_over(demand: Demand, worker: int, *, another: bool) -> Refusal | None:
    """Refuse a worker that lost the task lately, while another could run it.

    Args:
        demand: the task's.
        worker: the ledger's number of the worker.
        another: whether a live worker that isn't passed over meets the demand.
    """
    if worker not in demand.passed_over or not (another or demand.careful):
        return None
    return Refusal(
        RefusalCode.PASSED_OVER,
        f"this worker lost the task before; others are asked first for up to {PASSED_OVER_S / 60:.0f} min",
        retry_after_s=PASSED_OVER_S,
    )


def check_suspect(demand: Demand, *, holds_suspect: bool) -> Refusal | None:
    """Refuse a task that may have ended its workers to one that holds such a task already.

    Args:
        demand: the task's.
        holds_suspect: whether the worker holds a suspect task now.
    """
    if not (demand.suspect and holds_suspect):
        return None
    return Refusal(
        RefusalCode.SUSPECT_HELD,
        "workers were lost with this task in hand, and this worker holds another such task: one at a time, so that "
        "it shows which of them it was",
    )


def decide(
    demand: Demand,
    host: str,
    bucket: Bucket,
    candidate: Candidate,
    *,
    rules: Rules,
    job: JobId | None,
    contexts: Contexts | None = None,
    another: bool,
    cleaner: bool = False,
    slow: bool = False,
    swarm: Bucket | None = None,
    now: float,
) -> Refusal | None:
    """Whether a task of this demand, host and job may go to this worker now.

    Args:
        demand: what the tasks ask for.
        host: which site they go to.
        bucket: what may be asked of that site.
        candidate: the worker, and what is known of it on that site.
        rules: the operator's.
        job: the task's.
        contexts: what is known of the profile and session that the demand names.
        another: see ``check_passed_over``.
        cleaner: see ``records.check_careful``.
        slow: whether the host keeps its tasks for long (``slowness``).
        swarm: what the whole swarm may send; None where that has no limit.
        now: ledger time, seconds.
    """
    facts, prefix = candidate.facts, candidate.facts.prefix
    return (
        check_paused(rules.pauses, host=host, job=job)
        or check_demand(demand, facts)
        or check_approved(demand.kind, facts.versions, rules.approved)
        or check_hours(facts.region, rules.hours, now=now)
        or (None if contexts is None else check_contexts(demand, contexts, candidate.number, now=now))
        or check_budget(candidate.held, candidate.budget)
        or check_troubled(candidate.troubled)
        or check_egress(candidate.flag, host, prefix, now=now)
        or check_record(candidate.record, host, now=now)
        or check_apart(host, prefix, crowded=candidate.crowded)
        or (
            check_careful(candidate.record, proven=candidate.proven, cleaner=cleaner, now=now)
            if demand.careful
            else None
        )
        or check_passed_over(demand, candidate.number, another=another)
        or check_suspect(demand, holds_suspect=candidate.holds_suspect)
        or (
            check_slow(
                host,
                worker=candidate.number,
                slots=facts.slots,
                held=candidate.slow_held,
                others=candidate.others,
                now=now,
            )
            if slow
            else None
        )
        or (None if swarm is None else check_swarm(swarm, now=now))
        or check_host(host, bucket, now=now)
    )
