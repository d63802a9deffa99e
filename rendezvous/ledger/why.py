"""Why doesn't this worker get that task? The grants' own rules, asked of what can be read; nothing is granted here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from rendezvous.ledger import tables as t
from rendezvous.ledger.lines import EVERYWHERE
from rendezvous.ledger.ops import WorkerFacts, WorkerRef
from rendezvous.ledger.policy_queries import read_rules, records_on
from rendezvous.ledger.rows import demand_of
from rendezvous.policy.eligibility import check_demand, decide
from rendezvous.policy.pacing import Bucket
from rendezvous.policy.records import CLEAN
from swarm.model import Refusal, Status, TaskId

__all__ = ["why_not"]

#: Runs a statement in a short read transaction.
_Rows = Callable[[sa.Executable], Sequence[Any]]


def why_not(
    read: _Rows, task: TaskId, workers: Sequence[tuple[WorkerRef, WorkerFacts]], *, now: float
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
    swarm = _swarm(read)
    rules = read_rules(read)
    records = records_on(read, row.n)
    numbers = _numbers_of(read, (ref for ref, _ in workers))
    another = any(
        numbers.get(ref) not in demand.passed_over and check_demand(demand, facts) is None for ref, facts in workers
    )
    suspicious = _with_suspects(read) if demand.suspect else set()
    return [
        (
            ref,
            decide(
                demand,
                row.host,
                bucket,
                rules=rules,
                job=row.job_id,
                worker=numbers.get(ref, 0),
                facts=facts,
                record=records.get(numbers.get(ref, 0), CLEAN),
                another=another,
                holds_suspect=numbers.get(ref) in suspicious,
                swarm=swarm,
                now=now,
            ),
        )
        for ref, facts in workers
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
    )


def _swarm(read: _Rows) -> Bucket | None:
    """The bucket of the whole swarm, where it ever had one."""
    found = read(sa.select(t.hosts).where(t.hosts.c.host == EVERYWHERE))
    return _bucket(found[0]) if found else None


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


def _numbers_of(read: _Rows, workers: Iterable[WorkerRef]) -> dict[WorkerRef, int]:
    wanted = [(ref.address, ref.instance) for ref in workers]
    identity = sa.tuple_(t.workers.c.address, t.workers.c.instance)
    statement = sa.select(t.workers.c.n, t.workers.c.address, t.workers.c.instance).where(identity.in_(wanted))
    return {WorkerRef(row.address, row.instance): row.n for row in read(statement)} if wanted else {}
