"""What readers see of the operator's acts and of what is held against workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from rendezvous.ledger import tables as t
from rendezvous.ledger.act_ops import ActView, ApprovalView, ProfileView, QuarantineCounts, QuarantineView, VersionRate
from rendezvous.ledger.contexts import context_of
from rendezvous.ledger.rules import QUARANTINE, SECOND_ORDER, record_of, rules_of
from rendezvous.ledger.standing import budget_of
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from rendezvous.policy.contexts import ContextKind, state_of
from rendezvous.policy.egress import Flag
from rendezvous.policy.eligibility import Candidate, Contexts, Demand, Rules
from rendezvous.policy.hours import Hours
from rendezvous.policy.pauses import Pause
from rendezvous.policy.records import CLEAN, Record, check_record
from swarm.model import Address, Status

__all__ = [
    "read_acts",
    "read_approvals",
    "read_asking",
    "read_contexts",
    "read_pauses",
    "read_profiles",
    "read_quarantines",
    "read_rules",
    "read_second_order",
    "read_versions",
]

Rows = Callable[[sa.Executable], Sequence[Any]]

_WHERE_IT_HOLDS: Final = (t.workers.c.address, t.workers.c.instance, t.hosts.c.host)


def read_rules(rows: Rows, hours: Mapping[str, Hours]) -> Rules:
    """The rules that hold now, with the hours of the settings."""
    approved = rows(sa.select(t.approvals.c.name, t.approvals.c.version))
    return rules_of(rows(sa.select(t.pauses)), [(name, version) for name, version in approved], hours)


def read_contexts(rows: Rows, demand: Demand) -> Contexts | None:
    """What is known of the profile and session that a demand names; None where it names none."""
    if not demand.has_context:
        return None
    named = ((ContextKind.PROFILE, demand.requires.profile), (ContextKind.SESSION, demand.requires.session))
    known = {}
    for kind, name in named:
        table = t.contexts.c
        found = rows(
            sa.select(table.worker, table.used_at, table.accepted, table.challenges).where(
                table.kind == kind.value, table.name == name
            )
        )
        known[kind.value] = context_of(found[0]) if found else None
    return Contexts(**known)


def read_profiles(rows: Rows, *, after: str = "", limit: int | None = None) -> list[ProfileView]:
    """The profiles that were used, by name, behind one name."""
    statement = (
        sa.select(t.contexts, t.workers.c.address, t.workers.c.instance)
        .join(t.workers, t.workers.c.n == t.contexts.c.worker)
        .where(t.contexts.c.kind == ContextKind.PROFILE.value, t.contexts.c.name > after)
        .order_by(t.contexts.c.name)
        .limit(limit)
    )
    return [
        ProfileView(
            name=row.name,
            worker=WorkerRef(row.address, row.instance),
            state=state_of(context_of((row.worker, row.used_at, row.accepted, row.challenges))),
            accepted=row.accepted,
            challenges=row.challenges,
        )
        for row in rows(statement)
    ]


def read_versions(
    rows: Rows, *, after: tuple[str, str, str] = ("", "", ""), limit: int | None = None
) -> list[VersionRate]:
    """How tasks came out, by kind and by what ran them (worker, version), behind one of these."""
    table = t.version_counts
    place = (table.c.kind, table.c.worker, table.c.version)
    statement = sa.select(table).where(sa.tuple_(*place) > sa.tuple_(*after)).order_by(*place).limit(limit)
    return [
        VersionRate(kind=row.kind, worker=row.worker, version=row.version, done=row.done, failed=row.failed)
        for row in rows(statement)
    ]


def read_asking(
    rows: Rows,
    workers: Sequence[tuple[WorkerRef, WorkerFacts]],
    host: int,
    *,
    newcomer_budget: int,
    now: float,
) -> list[Candidate]:
    """What policy knows of these workers (and what they said they are) on a host (its number).

    Args:
        rows: runs a statement.
        workers: whom to look at; one that the ledger doesn't know is brand-new.
        host: the number of the host.
        newcomer_budget: the ledger's setting.
        now: ledger time, seconds.
    """
    identity = sa.tuple_(t.workers.c.address, t.workers.c.instance)
    wanted = [(ref.address, ref.instance) for ref, _ in workers]
    known = {
        WorkerRef(row.address, row.instance): row
        for row in (rows(sa.select(t.workers).where(identity.in_(wanted))) if wanted else ())
    }
    numbers = [row.n for row in known.values()]
    held_here = sa.select(t.tasks.c.worker, sa.func.count()).where(
        t.tasks.c.status == Status.ACTIVE.value, t.tasks.c.worker.in_(numbers)
    )
    held = {row[0]: row[1] for row in rows(held_here.group_by(t.tasks.c.worker))}
    records: dict[int, dict[int, Record]] = {}
    for row in rows(sa.select(t.records).where(t.records.c.worker.in_(numbers))):
        records.setdefault(row.worker, {})[row.host] = record_of(row)
    flags = {row.prefix: Flag(until=row.until, why=row.why) for row in rows(
        sa.select(t.egress).where(t.egress.c.host == host)
    )}  # fmt: skip
    apart = bool(rows(sa.select(t.hosts.c.n).where(t.hosts.c.n == host, t.hosts.c.apart.is_not(None))))
    holders = _holders(rows, host) if apart else {}
    asking = []
    for ref, facts in workers:
        row = known.get(ref)
        number = 0 if row is None else row.n
        mine = records.get(number, {})
        flag = None if facts.prefix is None else flags.get(facts.prefix)
        turned_away = sum(check_record(record, "", now=now) is not None for record in mine.values())
        asking.append(
            Candidate(
                number=number,
                facts=facts,
                record=mine.get(host, CLEAN),
                flag=flag,
                troubled=turned_away,
                crowded=facts.prefix is not None and bool(holders.get(facts.prefix, set()) - {number}),
                proven=row is not None and bool(row.accepted),
                held=held.get(number, 0),
                budget=budget_of(None if row is None else row.budget, newcomer=newcomer_budget),
            )
        )
    return asking


def _holders(rows: Rows, host: int) -> dict[str, set[int]]:
    """Who holds tasks of a host, by network."""
    statement = (
        sa.select(t.workers.c.prefix, t.workers.c.n)
        .distinct()
        .join(t.tasks, t.tasks.c.worker == t.workers.c.n)
        .join(t.lanes, t.lanes.c.n == t.tasks.c.lane)
        .where(t.lanes.c.host == host, t.tasks.c.status == Status.ACTIVE.value, t.workers.c.prefix.is_not(None))
    )
    holders: dict[str, set[int]] = {}
    for prefix, worker in rows(statement):
        holders.setdefault(prefix, set()).add(worker)
    return holders


def read_second_order(rows: Rows) -> QuarantineCounts:
    """How many quarantines the count brought, and how many of them were of the second order."""
    kept = {row.name: row.value for row in rows(
        sa.select(t.counters).where(t.counters.c.name.in_([QUARANTINE, SECOND_ORDER]))
    )}  # fmt: skip
    return QuarantineCounts(counted=kept.get(QUARANTINE, 0), second_order=kept.get(SECOND_ORDER, 0))


def read_pauses(rows: Rows) -> list[Pause]:
    """What is paused: the swarm first, then hosts and jobs."""
    pauses = read_rules(rows, {}).pauses
    swarm = [] if pauses.swarm is None else [pauses.swarm]
    return [*swarm, *pauses.hosts.values(), *pauses.jobs.values()]


def read_quarantines(
    rows: Rows,
    *,
    now: float,
    after: tuple[float, str, str, str] | None = None,
    limit: int | None = None,
    of: tuple[Address, str] | None = None,
) -> list[QuarantineView]:
    """The quarantines that hold at a ledger time, the longest first.

    Args:
        rows: what runs a statement.
        now: ledger time, Unix seconds.
        after: only those behind one: until when, worker, instance, host.
        limit: how many at most.
        of: only those of workers of an address, on a host.
    """
    statement = (
        sa.select(t.records, t.workers.c.address, t.workers.c.instance, t.hosts.c.host.label("host_name"))
        .join(t.workers, t.workers.c.n == t.records.c.worker)
        .join(t.hosts, t.hosts.c.n == t.records.c.host)
        .where(t.records.c.quarantined_until > now)
        .order_by(t.records.c.quarantined_until.desc(), *_WHERE_IT_HOLDS)
        .limit(limit)
    )
    if of is not None:
        statement = statement.where(t.workers.c.address == of[0], t.hosts.c.host == of[1])
    if after is not None:
        until, *place = after
        same = sa.and_(t.records.c.quarantined_until == until, sa.tuple_(*_WHERE_IT_HOLDS) > sa.tuple_(*place))
        statement = statement.where(sa.or_(t.records.c.quarantined_until < until, same))
    return [
        QuarantineView(
            worker=WorkerRef(row.address, row.instance),
            host=row.host_name,
            until=row.quarantined_until,
            left_s=row.quarantined_until - now,
            who=row.quarantined_by,
            why=row.quarantined_why or "",
            times=row.quarantines,
        )
        for row in rows(statement)
    ]


def read_approvals(rows: Rows) -> list[ApprovalView]:
    """The pinned versions."""
    statement = sa.select(t.approvals).order_by(t.approvals.c.name, t.approvals.c.version)
    return [ApprovalView(name=row.name, version=row.version, who=row.who, at=row.at) for row in rows(statement)]


def read_acts(rows: Rows, *, before: int | None, limit: int) -> list[ActView]:
    """Acts, newest first."""
    statement = sa.select(t.acts).order_by(t.acts.c.n.desc()).limit(limit)
    if before is not None:
        statement = statement.where(t.acts.c.n < before)
    return [
        ActView(n=row.n, at=row.at, who=row.who, act=row.act, subject=row.subject, why=row.why)
        for row in rows(statement)
    ]
