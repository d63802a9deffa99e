"""Rows of the ledger as the views that travel: tasks, exported tasks, events. Reads nothing itself."""

from __future__ import annotations

from typing import Any, Final

import orjson
import sqlalchemy as sa

from rendezvous.ledger import tables as t
from rendezvous.ledger.ops import SeenWorker
from rendezvous.ledger.rows import demand_of
from rendezvous.ledger.values import WorkerRef
from swarm.model import Actor, Status
from swarm.wire import EventView, Requires, TaskView

__all__ = [
    "LEAST_LIFE_S",
    "event_view",
    "event_views",
    "exported",
    "seen_worker",
    "task_view",
    "task_views",
    "who_acted",
]

#: An exported task lives at least so long from its import on, seconds.
LEAST_LIFE_S: Final = 60.0


def task_views() -> sa.Select[Any]:
    """All tasks with what their views say."""
    return (
        sa.select(
            t.tasks,
            t.jobs.c.id.label("job_id"),
            t.jobs.c.owner,
            t.hosts.c.host,
            t.demands.c.key,
            t.task_bodies.c.body,
            t.task_bodies.c.dedupe.label("dedupe_digest"),
            t.task_bodies.c.dedupe_ttl_s,
            t.workers.c.address,
            t.workers.c.instance,
        )
        .join(t.jobs, t.jobs.c.n == t.tasks.c.job)
        .join(t.lanes, t.lanes.c.n == t.tasks.c.lane)
        .join(t.hosts, t.hosts.c.n == t.lanes.c.host)
        .join(t.demands, t.demands.c.n == t.lanes.c.demand)
        .join(t.task_bodies, t.task_bodies.c.seq == t.tasks.c.seq)
        .outerjoin(t.workers, t.workers.c.n == t.tasks.c.worker)
    )


def task_view(row: Any, *, now: float | None) -> TaskView:
    """A row of ``task_views``; without ``now`` (ledger seconds) nothing is said of what is left of a lease."""
    demand = demand_of(row.key)
    body = orjson.loads(row.body)
    assigned = row.status in (Status.ACTIVE, Status.COMPLETED)
    active = row.status == Status.ACTIVE
    return TaskView(
        id=row.id,
        job=row.job_id,
        owner=row.owner,
        kind=demand.kind,
        urls=tuple(body["urls"]),
        host=row.host,
        status=row.status,
        priority=row.priority,
        tier=demand.tier,
        created_at=row.created_at,
        spec=body.get("spec", {}),
        meta=body.get("meta", {}),
        requires=demand.requires,
        reward_wei=row.reward_wei,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        not_before=row.wake_at if row.status == Status.WAITING else None,
        expires_at=row.expires_at,
        assignee=row.address if assigned else None,
        instance=row.instance if assigned else None,
        fence=row.fence,
        via=row.via if assigned else None,
        lease_s=max(0.0, row.lease_until - now) if active and now is not None else None,
        reason=row.reason,
        detail=row.detail,
        result=row.result,
        result_bytes=row.result_bytes,
        finished_at=row.finished_at,
        on_chain=row.on_chain,
        accepted=row.accepted,
        paid=row.paid,
        refunded=row.refunded,
    )


def exported(row: Any, *, now: float) -> dict[str, Any]:
    """A row of ``task_views`` as a task of a submission, with its ``job`` and ``owner``, and its key as it is kept."""
    demand = demand_of(row.key)
    body = orjson.loads(row.body)
    task: dict[str, Any] = {
        "id": row.id,
        "job": row.job_id,
        "owner": row.owner,
        "kind": demand.kind,
        "urls": body["urls"],
        "spec": body.get("spec", {}),
        "meta": body.get("meta", {}),
        "priority": row.priority,
        "tier": demand.tier,
        "reward_wei": row.reward_wei,
        "max_attempts": row.max_attempts,
        "max_run_s": row.max_run_s,
        "kept_key": {"digest": row.dedupe_digest, "ttl_s": row.dedupe_ttl_s},
    }
    # What is left of them; a task of an hour's life that waited for half of it has half an hour to live.
    task["expires_in_s"] = max(LEAST_LIFE_S, row.expires_at - now)
    if row.status == Status.WAITING and row.wake_at is not None and row.wake_at > now:
        task["not_before_s"] = row.wake_at - now
    if demand.requires != Requires():
        task["requires"] = demand.requires
    return task


def event_views() -> sa.Select[Any]:
    """The history of all tasks."""
    return (
        sa.select(
            t.events, t.tasks.c.id.label("task"), t.jobs.c.id.label("job_id"), t.jobs.c.owner, t.workers.c.address
        )
        .join(t.tasks, t.tasks.c.seq == t.events.c.seq)
        .join(t.jobs, t.jobs.c.n == t.tasks.c.job)
        .outerjoin(t.workers, t.workers.c.n == t.events.c.worker)
    )


def event_view(row: Any) -> EventView:
    """A row of ``event_views``."""
    by_owner = row.actor == Actor.REQUESTER
    return EventView(
        id=row.id,
        task=row.task,
        seq=row.n,
        to=row.target,
        by=row.actor,
        at=row.at,
        move=row.move,
        source=row.source,
        who=row.who or (row.owner if by_owner else row.address),
        fence=row.fence,
        reason=row.reason,
        detail=row.detail,
        job=row.job_id,
    )


def who_acted(who: str | None, by: Actor, *, owner: str, worker: WorkerRef | None) -> str | None:
    """Whose name listeners hear with an event: as noted, else the owner's or the worker's, whose act it was."""
    if who is not None:
        return who
    if by is Actor.REQUESTER:
        return owner
    return worker.address if worker is not None and (by is Actor.ASSIGNEE or by is Actor.WORKER) else None


def seen_worker(row: Any) -> SeenWorker:
    """A row of ``workers``."""
    return SeenWorker(
        worker=WorkerRef(row.address, row.instance),
        payout=row.payout,
        peer_id=row.peer_id,
        boot=row.boot,
        hello=row.hello,
        stats=row.stats,
        at=row.seen_at,
    )
