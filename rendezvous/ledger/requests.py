"""What requesters and the operator do to tasks that exist: cancel, replay. Each answers task by task.

An operation on a whole job does a batch; whoever asks repeats it until a batch comes back that isn't full.
"""

from __future__ import annotations

from collections.abc import Callable

from rendezvous.ledger.allowances import charge_again
from rendezvous.ledger.engine import Compiled
from rendezvous.ledger.guards import not_found
from rendezvous.ledger.lines import Lines
from rendezvous.ledger.ops import Cancel, Ended, Replay
from rendezvous.ledger.rows import TaskRow
from rendezvous.ledger.submit import frees_key
from rendezvous.ledger.unit import Unit, as_json
from swarm.model import TERMINAL, Actor, Move, Refusal, RefusalCode, Status

__all__ = ["cancel", "replay"]


def cancel(unit: Unit, op: Cancel) -> tuple[Ended, ...]:
    """Call tasks off. A worker that holds one is told at its next turn, and its result is refused.

    But where the task was funded, a result that was on its way already is honoured (``money.honours``).
    """

    def one(row: TaskRow) -> Status | Refusal:
        if row.status in TERMINAL:
            return _wrong_status(row, "cancelled")
        unit.touch(row)
        if row.status is not Status.ACTIVE or row.reward_wei == "0":
            row.lease_until = None  # a funded one keeps it: until then a result on its way is honoured
        row.wake_at = None
        unit.move(row, Move.CANCEL, Status.CANCELLED, _actor(op.owner), who=_operator(op))
        return row.status

    return _each(unit, op, one, unit.statements.live_of_job)


def replay(unit: Unit, lines: Lines, op: Replay) -> tuple[Ended, ...]:
    """Give dead letters a new life: attempts, losses and the funding generation start anew."""

    def one(row: TaskRow) -> Status | Refusal:
        if row.status is not Status.FAILED:
            return _wrong_status(row, "replayed")
        refusal = _take_key_again(unit, row) or charge_again(unit, row)
        if refusal is not None:
            return refusal
        unit.touch(row)
        lasted_s = row.expires_at - row.created_at
        row.expires_at = max(row.expires_at, unit.now + lasted_s)
        row.attempts, row.funding_generation = 0, row.funding_generation + 1
        row.lost = row.reason = row.detail = row.lease_until = row.wake_at = row.finished_at = None
        lines.stand_plainly(row)
        unit.move(row, Move.REPLAY, Status.PENDING, _actor(op.owner), who=_operator(op))
        return row.status

    return _each(unit, op, one, unit.statements.failed_of_job)


def _actor(owner: str | None) -> Actor:
    return Actor.OPERATOR if owner is None else Actor.REQUESTER


def _operator(op: Cancel | Replay) -> str | None:
    """Whose name the history keeps: the operator's; a requester's is the job's owner."""
    return op.who if op.owner is None else None


def _wrong_status(row: TaskRow, done_to: str) -> Refusal:
    return Refusal(
        RefusalCode.WRONG_STATUS,
        f"the task can't be {done_to}: it is {row.status.value}",
        details={"status": row.status.value},
    )


def _take_key_again(unit: Unit, row: TaskRow) -> Refusal | None:
    """Take the dedupe key of a dead letter back, unless another task has got it since."""
    statements = unit.statements
    digest = unit.connection.rows(statements.bodies, as_json([row.seq]))[0][2]
    for _digest, seq, task, status, finished_at, ttl_s in unit.connection.rows(
        statements.dedupe_holders, as_json([digest])
    ):
        if seq != row.seq and not frees_key(status, finished_at, ttl_s, now=unit.now):
            return Refusal(
                RefusalCode.WRONG_STATUS,
                f"the task can't be replayed: task {task} has its dedupe key",
                details={"status": row.status.value, "task": task},
            )
    unit.connection.run(statements.take_dedupe, digest, row.seq)
    return None


def _each(
    unit: Unit,
    op: Cancel | Replay,
    one: Callable[[TaskRow], Status | Refusal],
    of_job: Compiled,
) -> tuple[Ended, ...]:
    ended = []
    rows = unit.tasks_by_id(op.tasks)
    for task in op.tasks:
        row = rows.get(task)
        if row is None or (op.owner is not None and unit.memory.jobs[row.job].owner != op.owner):
            ended.append(Ended(task=task, fence=0, outcome=not_found(task)))
        else:
            ended.append(Ended(task=task, fence=row.fence, outcome=one(row)))
    if op.job is not None:
        unit.flush()
        job = unit.jobs_by_id([op.job]).get(op.job)
        if job is not None and op.owner in (None, job.owner):
            after = 0 if op.after is None else unit.tasks_by_id([op.after])[op.after].seq
            batch = unit.read_tasks(of_job, job.n, after)
            ended.extend(Ended(task=row.id, fence=row.fence, outcome=one(row)) for row in batch)
    return tuple(ended)
