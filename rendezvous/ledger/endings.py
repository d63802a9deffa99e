"""How an attempt, a lease or a task ends without a result: failed, given back, lost, expired.

Each of these is used from several places: a worker's turn, the clock, the operator. None of them knows who asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from rendezvous.ledger.lines import Lines
from rendezvous.ledger.records import note_lost
from rendezvous.ledger.rows import Loss, TaskRow
from rendezvous.ledger.unit import Unit
from rendezvous.policy.retry import PASSED_OVER_S, counts_restart, is_suspect, retry_delay_s
from swarm.model import Actor, Move, Reason, Status

__all__ = ["expire", "fail", "give_back", "lose", "lose_by_restart", "reconsider_passed_over"]

_STARTED_ANEW: Final = "the worker started anew"


def fail(
    unit: Unit,
    row: TaskRow,
    by: Actor,
    *,
    reason: str,
    detail: str,
    said_retryable: bool | None = None,
    who: str | None = None,
    again: bool = False,
) -> None:
    """Count an attempt as failed: the task waits for the next one, or is a dead letter.

    Args:
        unit: the transaction.
        row: the task.
        by: whose act it is; the operator may fail tasks that nobody holds.
        reason: a ``Reason``, or an executor's own word.
        detail: more for people.
        said_retryable: what the executor said of its own word.
        who: the operator's name.
        again: try it again while it has an attempt left, whatever the rules say of the reason.
    """
    by_hand = Move.FAIL_BY_HAND if by is Actor.OPERATOR else None
    unit.touch(row)
    row.attempts += 1
    row.reason, row.detail = reason, detail or None
    row.lease_until = None
    delay_s = retry_delay_s(
        Reason.WORKER_LOST if again else reason,
        said_retryable=said_retryable,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        rules=unit.settings.retry,
        rng=unit.rng,
    )
    if delay_s is None:
        unit.move(row, by_hand or Move.FAIL, Status.FAILED, by, who=who, reason=reason, detail=row.detail)
    else:
        row.wake_at = unit.now + delay_s
        unit.move(row, by_hand or Move.RETRY, Status.WAITING, by, who=who, reason=reason, detail=row.detail)


def give_back(unit: Unit, row: TaskRow, by: Actor, *, who: str | None = None, detail: str | None = None) -> None:
    """Make an active task pending again; the attempt isn't counted."""
    unit.touch(row)
    row.lease_until = None
    unit.move(row, Move.RELEASE, Status.PENDING, by, who=who, detail=detail)


def lose(unit: Unit, lines: Lines, row: TaskRow) -> None:
    """The lease ran out. Counted once a boot of a worker, which is then passed over for this task for a while.

    A worker that is cut off again and again is counted once; one that dies of the task comes back as another boot,
    however long its supervisor waits.
    """
    unit.touch(row)
    ran_out = {(loss.worker, loss.boot or row.boot) for loss in row.losses() if not loss.restarted}
    if row.worker is not None:
        note_lost(unit, row.worker)
    if row.worker is not None and (row.worker, row.boot) not in ran_out:
        row.attempts += 1
        row.add_loss(Loss(row.worker, unit.now, boot=row.boot))
    row.reason = Reason.WORKER_LOST.value
    if row.attempts >= row.max_attempts:
        row.detail = _names(unit, row.losses())
        unit.move(row, Move.EXPIRE_LEASE, Status.FAILED, Actor.LEDGER, reason=Reason.WORKER_LOST, detail=row.detail)
        return
    row.detail = None
    reconsider_passed_over(unit, lines, row)
    unit.move(row, Move.EXPIRE_LEASE, Status.PENDING, Actor.LEDGER, reason=Reason.WORKER_LOST)


def lose_by_restart(unit: Unit, lines: Lines, row: TaskRow) -> None:
    """The worker started anew while it held the task, and doesn't say that it gave it back: it died.

    The first time costs the task nothing, on whatever worker. From the second time on each counts as an attempt, and
    the worker is passed over for this task as after a lease that ran out; a task that kills its workers ends that way
    however soon they are started again.
    """
    if row.worker is None:
        return
    unit.touch(row)
    row.add_loss(Loss(row.worker, unit.now, restarted=True, boot=row.boot))
    if not counts_restart(_restarts(row.losses())):
        reconsider_passed_over(unit, lines, row)
        give_back(unit, row, Actor.LEDGER, detail=_STARTED_ANEW)
        return
    row.attempts += 1
    row.lease_until = unit.now
    row.reason = Reason.WORKER_LOST.value
    if row.attempts >= row.max_attempts:
        row.detail = _names(unit, row.losses())
        unit.move(row, Move.FAIL, Status.FAILED, Actor.LEDGER, reason=Reason.WORKER_LOST, detail=row.detail)
        return
    row.detail = None
    reconsider_passed_over(unit, lines, row)
    unit.move(row, Move.RELEASE, Status.PENDING, Actor.LEDGER, reason=Reason.WORKER_LOST, detail=_STARTED_ANEW)


def _restarts(losses: Iterable[Loss]) -> int:
    return sum(loss.restarted for loss in losses)


def _names(unit: Unit, losses: Iterable[Loss]) -> str:
    """Who was lost, and how often: for people."""
    times = Counter(loss.worker for loss in losses)
    unit.know_workers(set(times))
    refs = [(unit.memory.workers[worker].ref, count) for worker, count in times.items()]
    return "lost by " + ", ".join(
        f"{ref.address} ({ref.instance})" + (f" {count} times" if count > 1 else "") for ref, count in refs
    )


def reconsider_passed_over(unit: Unit, lines: Lines, row: TaskRow) -> None:
    """Pass over the workers that lost it lately, and no others; keep a suspect apart from other suspects."""
    losses = row.losses()
    restarts = _restarts(losses)
    charged = [loss for loss in losses if not loss.restarted or counts_restart(restarts)]
    recent = [loss for loss in charged if unit.now - loss.at < PASSED_OVER_S]
    unit.touch(row)
    row.passed_until = min((loss.at + PASSED_OVER_S for loss in recent), default=None)
    lines.pass_over(
        row,
        frozenset(loss.worker for loss in recent),
        suspect=is_suspect(losses=len(losses), restarts=restarts, attempts=row.attempts, max_attempts=row.max_attempts),
    )


def expire(unit: Unit, row: TaskRow) -> None:
    """Its owner's ``expires_in_s`` has passed: a dead letter, whatever it was doing."""
    unit.touch(row)
    row.reason, row.detail = Reason.EXPIRED.value, None
    unit.move(row, Move.EXPIRE, Status.FAILED, Actor.LEDGER, reason=Reason.EXPIRED)
