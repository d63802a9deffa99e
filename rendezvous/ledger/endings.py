"""How an attempt, a lease or a task ends without a result: failed, given back, lost, expired.

Each of these is used from several places: a worker's turn, the clock, the operator. None of them knows who asked.
"""

from __future__ import annotations

import orjson

from rendezvous.ledger.lines import Lines
from rendezvous.ledger.rows import TaskRow
from rendezvous.ledger.unit import Unit
from rendezvous.policy.retry import PASSED_OVER_S, retry_delay_s
from swarm.model import Actor, Move, Reason, Status

__all__ = ["expire", "fail", "give_back", "lose", "reconsider_passed_over"]


def fail(
    unit: Unit,
    row: TaskRow,
    by: Actor,
    *,
    reason: str,
    detail: str,
    said_retryable: bool | None = None,
    retry_after_s: float | None = None,
) -> None:
    """Count an attempt as failed: the task waits for the next one, or is a dead letter."""
    unit.touch(row)
    row.attempts += 1
    row.reason, row.detail = reason, detail or None
    row.lease_until = None
    delay_s = retry_delay_s(
        reason,
        said_retryable=said_retryable,
        retry_after_s=retry_after_s,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        rules=unit.settings.retry,
        rng=unit.rng,
    )
    if delay_s is None:
        unit.move(row, Move.FAIL, Status.FAILED, by, reason=reason, detail=row.detail)
    else:
        row.wake_at = unit.now + delay_s
        unit.move(row, Move.RETRY, Status.WAITING, by, reason=reason, detail=row.detail)


def give_back(unit: Unit, row: TaskRow, by: Actor, *, who: str | None = None, detail: str | None = None) -> None:
    """Make an active task pending again; the attempt isn't counted."""
    unit.touch(row)
    row.lease_until = None
    unit.move(row, Move.RELEASE, Status.PENDING, by, who=who, detail=detail)


def lose(unit: Unit, lines: Lines, row: TaskRow) -> None:
    """The lease ran out. Counted once a worker, which is then passed over for this task for a while."""
    unit.touch(row)
    losses = row.losses()
    if row.worker is not None and all(worker != row.worker for worker, _ in losses):
        row.attempts += 1
        losses.append((row.worker, unit.now))
        row.lost = orjson.dumps(losses).decode()
    row.reason = Reason.WORKER_LOST.value
    if row.attempts >= row.max_attempts:
        row.detail = _names(unit, [worker for worker, _ in losses])
        unit.move(row, Move.EXPIRE_LEASE, Status.FAILED, Actor.LEDGER, reason=Reason.WORKER_LOST, detail=row.detail)
        return
    row.detail = None
    reconsider_passed_over(unit, lines, row)
    unit.move(row, Move.EXPIRE_LEASE, Status.PENDING, Actor.LEDGER, reason=Reason.WORKER_LOST)


def _names(unit: Unit, workers: list[int]) -> str:
    unit.know_workers(set(workers))
    refs = [unit.memory.workers[worker].ref for worker in workers]
    return "lost by " + ", ".join(f"{ref.address} ({ref.instance})" for ref in refs)


def reconsider_passed_over(unit: Unit, lines: Lines, row: TaskRow) -> None:
    """Pass over the workers that lost it lately, and no others."""
    recent = [(worker, at) for worker, at in row.losses() if unit.now - at < PASSED_OVER_S]
    unit.touch(row)
    row.passed_until = min((at + PASSED_OVER_S for _, at in recent), default=None)
    lines.pass_over(row, frozenset(worker for worker, _ in recent))


def expire(unit: Unit, row: TaskRow) -> None:
    """Its owner's ``expires_in_s`` has passed: a dead letter, whatever it was doing."""
    unit.touch(row)
    row.reason, row.detail = Reason.EXPIRED.value, None
    unit.move(row, Move.EXPIRE, Status.FAILED, Actor.LEDGER, reason=Reason.EXPIRED)
