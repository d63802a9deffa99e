"""Why doesn't this worker get that task? The grants' own rules, asked of what can be read; nothing is granted here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import sqlalchemy as sa

from rendezvous.ledger import tables as t
from rendezvous.ledger.lines import EVERYWHERE
from rendezvous.ledger.policy_queries import read_asking, read_contexts, read_rules
from rendezvous.ledger.rows import demand_of
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from rendezvous.policy.eligibility import Candidate, check_demand, decide
from rendezvous.policy.pacing import Bucket
from rendezvous.policy.slowness import SOON_S
from swarm.model import Refusal, Status, TaskId

__all__ = ["why_not"]

#: Runs a statement in a short read transaction.
_Rows = Callable[[sa.Executable], Sequence[Any]]


def why_not(
    read: _Rows,
    task: TaskId,
    workers: Sequence[tuple[WorkerRef, WorkerFacts]],
    *,
    settings: LedgerSettings,
    now: float,
) -> list[tuple[WorkerRef, Refusal | None]]:
    """See ``LedgerReader.refusals``; ``read`` runs its statements."""
    statement = (
        sa.select(t.demands.c.key, t.hosts, t.jobs.c.id.label("job_id"))
        .join(t.lanes, t.lanes.c.demand == t.demands.c.n)
        .join(t.hosts, t.hosts.c.n == t.lanes.c.host)
        .join(t.tasks, t.tasks.c.lane == t.lanes.c.n)
        .join(t.jobs, t.jobs.c.n == t.tasks.c.job)
        .where(t.tasks.c.id == task)
    )
    found = read(statement)
    if not found:
        return []
    row = found[0]
    demand = demand_of(row.key)
    bucket = _bucket(row)
    swarm = _swarm(read) if settings.swarm_rate_per_s > 0 else None
    asking = read_asking(read, workers, row.n, newcomer_budget=settings.newcomer_budget, now=now)
    suspicious = _with_suspects(read) if demand.suspect else set()
    rules = read_rules(read, settings.region_hours)
    contexts = read_contexts(read, demand)
    slow = (row.slow_until or 0.0) > now
    if slow:
        asking = _beside_slow(read, asking, now=now)
    may = [one for one in asking if check_demand(demand, one.facts) is None]
    another = any(one.number not in demand.passed_over for one in may)
    return [
        (
            ref,
            decide(
                demand,
                row.host,
                bucket,
                attrs.evolve(one, holds_suspect=one.number in suspicious),
                rules=rules,
                job=row.job_id,
                contexts=contexts,
                another=another,
                cleaner=any(other is not one and other.proven and other.record.is_clean(now) for other in may),
                slow=slow,
                swarm=swarm,
                now=now,
            ),
        )
        for (ref, _), one in zip(workers, asking, strict=True)
    ]


def _bucket(row: Any) -> Bucket:
    """The bucket of a row with the columns of ``hosts``."""
    return Bucket(
        tokens=row.tokens,
        refilled_at=row.refilled_at,
        rate_per_s=row.rate_per_s,
        burst=row.burst,
        held_until=row.held_until,
        held_why=row.held_why,
        paused=bool(row.paused),
        unfinished=row.unfinished,
        share=row.share or 1.0,
        share_until=row.share_until or 0.0,
    )


def _swarm(read: _Rows) -> Bucket | None:
    """The bucket of the whole swarm, where anything was ever taken of it."""
    found = read(sa.select(t.hosts).where(t.hosts.c.host == EVERYWHERE))
    return _bucket(found[0]) if found else None


def _beside_slow(read: _Rows, asking: Sequence[Candidate], *, now: float) -> list[Candidate]:
    """The same workers, with what they hold of slow hosts, and whether they could have other work."""
    slow, opens_at = t.hosts.c.slow_until > now, t.lanes.c.opens_at
    holders = (
        sa.select(t.tasks.c.worker, sa.func.count())
        .join(t.lanes, t.lanes.c.n == t.tasks.c.lane)
        .join(t.hosts, t.hosts.c.n == t.lanes.c.host)
        .where(t.tasks.c.status == Status.ACTIVE.value, slow)
        .group_by(t.tasks.c.worker)
    )
    held = dict(map(tuple, read(holders)))
    ready = sa.and_(t.lanes.c.head_seq.is_not(None), sa.or_(opens_at.is_(None), opens_at < now + SOON_S))
    statement = (
        sa.select(t.demands.c.key)
        .distinct()
        .join(t.lanes, t.lanes.c.demand == t.demands.c.n)
        .join(t.hosts, t.hosts.c.n == t.lanes.c.host)
        .where(ready, sa.or_(t.hosts.c.slow_until.is_(None), t.hosts.c.slow_until <= now))
    )
    others = [demand for (key,) in read(statement) if not (demand := demand_of(key)).parked]
    return [
        attrs.evolve(
            one,
            slow_held=held.get(one.number, 0),
            others=any(check_demand(demand, one.facts) is None for demand in others),
        )
        for one in asking
    ]


def _with_suspects(read: _Rows) -> set[int]:
    """The workers that hold a suspect task."""
    statement = (
        sa.select(t.tasks.c.worker, t.demands.c.key)
        .join(t.lanes, t.lanes.c.n == t.tasks.c.lane)
        .join(t.demands, t.demands.c.n == t.lanes.c.demand)
        .where(t.tasks.c.status == Status.ACTIVE.value, t.tasks.c.lost.is_not(None))
        .distinct()
    )
    return {row.worker for row in read(statement) if demand_of(row.key).suspect}
