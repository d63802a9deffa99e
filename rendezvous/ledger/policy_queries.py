"""What readers see of the operator's acts and of what is held against workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from rendezvous.ledger import tables as t
from rendezvous.ledger.ops import ActView, ApprovalView, QuarantineView, WorkerRef
from rendezvous.ledger.rules import record_of, rules_of
from rendezvous.policy.eligibility import Rules
from rendezvous.policy.pauses import Pause
from rendezvous.policy.records import Record

__all__ = ["read_acts", "read_approvals", "read_pauses", "read_quarantines", "read_rules", "records_on"]

Rows = Callable[[sa.Executable], Sequence[Any]]


def read_rules(rows: Rows) -> Rules:
    """The rules that hold now."""
    approved = rows(sa.select(t.approvals.c.name, t.approvals.c.version))
    return rules_of(rows(sa.select(t.pauses)), [(name, version) for name, version in approved])


def records_on(rows: Rows, host: int) -> dict[int, Record]:
    """What is held against workers (their numbers) on a host (its number)."""
    return {row.worker: record_of(row) for row in rows(sa.select(t.records).where(t.records.c.host == host))}


def read_pauses(rows: Rows) -> list[Pause]:
    """What is paused: the swarm first, then hosts and jobs."""
    pauses = read_rules(rows).pauses
    swarm = [] if pauses.swarm is None else [pauses.swarm]
    return [*swarm, *pauses.hosts.values(), *pauses.jobs.values()]


def read_quarantines(rows: Rows, *, now: float) -> list[QuarantineView]:
    """The quarantines that hold at a ledger time."""
    statement = (
        sa.select(t.records, t.workers.c.address, t.workers.c.instance, t.hosts.c.host.label("host_name"))
        .join(t.workers, t.workers.c.n == t.records.c.worker)
        .join(t.hosts, t.hosts.c.n == t.records.c.host)
        .where(t.records.c.quarantined_until > now)
        .order_by(t.records.c.quarantined_until.desc(), t.records.c.worker, t.records.c.host)
    )
    return [
        QuarantineView(
            worker=WorkerRef(row.address, row.instance),
            host=row.host_name,
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
