"""What can be read of jobs: how far each is. ``queries`` offers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from rendezvous.ledger import tables as t
from swarm.model import JobId, Settle, Status
from swarm.wire import JobView, Page

__all__ = ["read_job", "read_jobs"]

Rows = Callable[[sa.Executable], Sequence[Any]]


def read_job(rows: Rows, job: JobId, owner: str | None) -> JobView | None:
    """How far a job is; None where it doesn't exist or isn't the owner's."""
    statement = sa.select(t.jobs).where(t.jobs.c.id == job)
    if owner is not None:
        statement = statement.where(t.jobs.c.owner == owner)
    views = _job_views(rows, rows(statement))
    return views[0] if views else None


def read_jobs(rows: Rows, owner: str | None, *, before: int | None, limit: int) -> Page:
    """Jobs, newest first; ``before`` is the number of the one that the last page ended with."""
    statement = sa.select(t.jobs).order_by(t.jobs.c.n.desc()).limit(limit + 1)
    if owner is not None:
        statement = statement.where(t.jobs.c.owner == owner)
    if before is not None:
        statement = statement.where(t.jobs.c.n < before)
    found = rows(statement)
    return Page(
        items=tuple(_job_views(rows, found[:limit])),
        next=str(found[limit - 1].n) if len(found) > limit else None,
    )


def _job_views(rows: Rows, jobs: Sequence[Any]) -> list[JobView]:
    counts: dict[int, dict[str, int]] = {row.n: {} for row in jobs}
    kept = sa.select(t.job_counts).where(t.job_counts.c.job.in_(list(counts)), t.job_counts.c.tasks > 0)
    for job, status, tasks in rows(kept) if counts else ():
        counts[job][status] = tasks
    live = (Status.WAITING.value, Status.PENDING.value, Status.ACTIVE.value)
    return [
        JobView(
            id=row.id,
            owner=row.owner,
            created_at=row.created_at,
            total=sum(counts[row.n].values()),
            counts=counts[row.n],
            done=not any(status in counts[row.n] for status in live),
            name=row.name,
            settle=Settle(row.settle or Settle.TASK),
        )
        for row in jobs
    ]
