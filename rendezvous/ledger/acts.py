"""What the operator does to the swarm: pause and resume, quarantine, pin versions, fail tasks, take leases back.

Each act is kept with who and why: those on tasks in the tasks' histories, the others in ``acts``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rendezvous.ledger.act_ops import (
    ApproveVersion,
    FailByHand,
    KeepApart,
    LiftQuarantine,
    Pause,
    Quarantine,
    Resume,
    TakeBack,
)
from rendezvous.ledger.endings import fail, give_back
from rendezvous.ledger.guards import not_found
from rendezvous.ledger.lines import Lines
from rendezvous.ledger.ops import Ended
from rendezvous.ledger.records import keep_record, requeue_held
from rendezvous.ledger.rows import TaskRow
from rendezvous.ledger.rules import ACT, APART, load_rules, note, records_of
from rendezvous.ledger.statements import BATCH
from rendezvous.ledger.unit import Unit
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.pauses import Scope
from rendezvous.policy.records import CLEAN, check_record, lifted, quarantined
from swarm.model import TERMINAL, Actor, Refusal, RefusalCode, Status, TaskId

__all__ = [
    "approve",
    "fail_by_hand",
    "keep_apart",
    "lift",
    "pause",
    "quarantine",
    "resume",
    "take_back",
    "unpark",
]

#: Tasks that an act names; the others are in their own histories.
NAMED: Final = 3


# ── pauses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def pause(unit: Unit, lines: Lines, op: Pause) -> Refusal | None:
    """Grant nothing any more of what is named."""
    if op.scope is Scope.JOB and op.name not in unit.jobs_by_id([op.name]):
        return Refusal(RefusalCode.NOT_FOUND, f"there is no job {op.name}")
    if op.scope is Scope.HOST:
        lines.pause(op.name, paused=True)
    unit.connection.run(unit.statements.policy.put_pause, op.scope.value, _name(op), op.who, op.why, unit.now, None)
    note(unit, who=op.who, act="paused", subject=_subject(op), why=op.why)
    return None


def resume(unit: Unit, lines: Lines, op: Resume) -> Refusal | None:
    """End a pause; the parked tasks of a job come back with the next sweeps."""
    pauses = load_rules(unit).pauses
    known = {Scope.SWARM: {"": pauses.swarm} if pauses.swarm else {}, Scope.HOST: pauses.hosts, Scope.JOB: pauses.jobs}
    if _name(op) not in known[op.scope]:
        return Refusal(RefusalCode.NOT_FOUND, f"{_subject(op)} isn't paused")
    statements = unit.statements.policy
    if op.scope is Scope.JOB:
        unit.connection.run(statements.resume_job, 0, op.scope.value, op.name)
    else:
        unit.connection.run(statements.drop_pause, op.scope.value, _name(op))
    if op.scope is Scope.HOST:
        lines.pause(op.name, paused=False)
    note(unit, who=op.who, act="resumed", subject=_subject(op), why=op.why)
    return None


def _name(op: Pause | Resume) -> str:
    return "" if op.scope is Scope.SWARM else op.name


def _subject(op: Pause | Resume) -> str:
    return "swarm" if op.scope is Scope.SWARM else f"{op.scope.value} {op.name}"


def unpark(unit: Unit, lines: Lines) -> bool:
    """Bring a batch of tasks of resumed jobs back into line.

    Returns:
        Whether more are left.
    """
    if not unit.counter(ACT):
        return False
    statements = unit.statements.policy
    resumed = [(row[1], row[5]) for row in unit.connection.rows(statements.pauses) if row[5] is not None]
    for job, after in resumed:
        number = unit.jobs_by_id([job])[job].n
        batch = unit.read_tasks(unit.statements.live_of_job, number, after)
        for row in batch:
            lines.park(row, parked=False)
        unit.flush()
        if len(batch) == BATCH:
            unit.connection.run(statements.resume_job, batch[-1].seq, Scope.JOB.value, job)
            return True
        unit.connection.run(statements.drop_pause, Scope.JOB.value, job)
    return False


# ── workers and versions ──────────────────────────────────────────────────────────────────────────────────────────


def quarantine(unit: Unit, lines: Lines, op: Quarantine) -> tuple[TaskId, ...]:
    """Keep a worker off a host; what it holds of it goes back."""
    worker = unit.worker(op.worker).n
    host = lines.hosts_by_name([op.host])[op.host]
    record = records_of(unit, worker).get(host, CLEAN)
    keep_record(unit, worker, host, quarantined(record, for_s=op.for_s, by=op.who, why=op.why, now=unit.now))
    note(unit, who=op.who, act="quarantined", subject=_pair(op.worker, op.host), why=op.why)
    return requeue_held(unit, lines, worker, host, by=Actor.OPERATOR, who=op.who, why=op.why)


def lift(unit: Unit, lines: Lines, op: LiftQuarantine) -> Refusal | None:
    """End a quarantine before its time."""
    worker = unit.worker(op.worker).n
    host = lines.hosts_by_name([op.host])[op.host]
    record = records_of(unit, worker).get(host, CLEAN)
    if check_record(record, op.host, now=unit.now) is None:
        return Refusal(RefusalCode.NOT_FOUND, f"{_pair(op.worker, op.host)} isn't in quarantine")
    keep_record(unit, worker, host, lifted(record))
    note(unit, who=op.who, act="quarantine_lifted", subject=_pair(op.worker, op.host), why=op.why)
    return None


def keep_apart(unit: Unit, lines: Lines, op: KeepApart) -> None:
    """Have no two workers of one network on a host at once; or let them."""
    number = lines.hosts_by_name([op.host])[op.host]
    unit.connection.run(unit.statements.policy.set_apart, 1 if op.apart else None, number)
    unit.next(APART)
    unit.memory.apart = None
    note(unit, who=op.who, act="kept_apart" if op.apart else "let_together", subject=f"host {op.host}", why=op.why)


def _pair(worker: WorkerRef, host: str) -> str:
    return f"{worker.address}:{worker.instance} on {host}"


def approve(unit: Unit, op: ApproveVersion) -> tuple[str, ...]:
    """Pin a version, or take it off the pinned ones."""
    statements = unit.statements.policy
    if op.approved:
        unit.connection.run(statements.put_approval, op.name, op.version, op.who, unit.now)
    else:
        unit.connection.run(statements.drop_approval, op.name, op.version)
    act = "version_approved" if op.approved else "version_withdrawn"
    note(unit, who=op.who, act=act, subject=f"{op.name} {op.version}", why=op.why)
    return tuple(sorted(load_rules(unit).approved.get(op.name, ())))


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def fail_by_hand(unit: Unit, op: FailByHand) -> tuple[Ended, ...]:
    """Count an attempt of each of these tasks as failed."""

    def one(row: TaskRow) -> Status | Refusal:
        if row.status in TERMINAL:
            return _wrong_status(row, "failed by hand")
        fail(unit, row, Actor.OPERATOR, reason=op.reason, detail=op.detail, who=op.who, again=op.retry)
        return row.status

    ended = _each(unit, op.tasks, one)
    failed = [one.task for one in ended if not isinstance(one.outcome, Refusal)]
    if failed:
        more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        note(unit, who=op.who, act="failed", subject=", ".join(failed[:NAMED]) + more, why=op.detail or op.reason)
    return ended


def take_back(unit: Unit, op: TakeBack) -> tuple[Ended, ...]:
    """Take the leases of these tasks away."""

    def one(row: TaskRow) -> Status | Refusal:
        if row.status is not Status.ACTIVE:
            return _wrong_status(row, "taken back")
        give_back(unit, row, Actor.OPERATOR, who=op.who, detail=op.why or None)
        return row.status

    return _each(unit, op.tasks, one)


def _each(unit: Unit, tasks: Sequence[TaskId], one: Callable[[TaskRow], Status | Refusal]) -> tuple[Ended, ...]:
    rows = unit.tasks_by_id(tasks)
    ended = []
    for task in dict.fromkeys(tasks):
        row = rows.get(task)
        outcome = not_found(task) if row is None else one(row)
        ended.append(Ended(task=task, fence=0 if row is None else row.fence, outcome=outcome))
    return tuple(ended)


def _wrong_status(row: TaskRow, done_to: str) -> Refusal:
    return Refusal(
        RefusalCode.WRONG_STATUS,
        f"the task can't be {done_to}: it is {row.status.value}",
        details={"status": row.status.value},
    )
