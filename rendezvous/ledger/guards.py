"""May this worker end or renew this lease? The one guard of all paths; and what a repeated report is answered.

An active or completed task moves only for its assignee, at the fence of the grant, while the lease runs on the ledger's
clock. A report that comes again, because its answer was lost, is answered with the status that it brought about.
"""

from __future__ import annotations

from typing import Final

from rendezvous.ledger.ops import DoneItem, FailedItem
from rendezvous.ledger.rows import TaskRow
from swarm.model import Cid, Refusal, RefusalCode, Status

__all__ = [
    "check_lease",
    "is_live",
    "lease_ended",
    "not_found",
    "repeated_failure",
    "repeated_release",
    "repeated_result",
]

_ENDED: Final = {
    Status.COMPLETED: "has completed",
    Status.FAILED: "has failed",
    Status.CANCELLED: "was cancelled",
}


def not_found(task: str) -> Refusal:
    """There is no such task, or it isn't the asker's."""
    return Refusal(RefusalCode.NOT_FOUND, f"there is no task {task}")


def is_live(row: TaskRow, *, now: float) -> bool:
    """Whether a lease runs on the task."""
    return row.status is Status.ACTIVE and row.lease_until is not None and row.lease_until > now


def check_lease(row: TaskRow, worker: int, fence: int, *, now: float) -> Refusal | None:
    """Refuse to move a task for anyone but the holder of its live lease.

    Args:
        row: the task.
        worker: the ledger's number of who asks.
        fence: of the grant that the worker speaks of.
        now: ledger time, seconds.
    """
    mine = row.worker == worker and row.fence == fence
    if row.status is Status.ACTIVE and mine:
        return None if is_live(row, now=now) else lease_ended(row)
    if not mine:
        return _invalid_assignee(row, worker, fence)
    ran_out = row.status is Status.FAILED and row.lease_until is not None
    if ran_out or row.status in (Status.PENDING, Status.WAITING):
        return lease_ended(row)
    return Refusal(RefusalCode.WRONG_STATUS, f"the task {_ENDED[row.status]}", details={"status": row.status.value})


def lease_ended(row: TaskRow) -> Refusal:
    """The worker's own lease ran out, or was taken back."""
    return Refusal(
        RefusalCode.LEASE_EXPIRED,
        "the lease of this task ended before the report came: discard the result, or keep it for a new grant",
        details={"status": row.status.value, "fence": row.fence},
    )


def _invalid_assignee(row: TaskRow, worker: int, fence: int) -> Refusal:
    fenced = fence < row.fence
    why = "another grant was given since (a stale fence)" if fenced else "it is granted to another worker"
    if not fenced and row.status is not Status.ACTIVE:
        why = "this worker doesn't hold it"
    return Refusal(
        RefusalCode.INVALID_ASSIGNEE,
        f"invalid assignee: {why}",
        details={
            "reason": "fenced" if fenced else "not_assignee",
            "status": row.status.value,
            "fence": row.fence,
            "own": row.worker == worker,
        },
    )


def repeated_result(row: TaskRow, worker: int, item: DoneItem) -> Status | Refusal | None:
    """What a result is answered whose task this worker has completed already; None where it hasn't."""
    if row.status is not Status.COMPLETED or row.worker != worker:
        return None
    if row.result == item.cid:
        return row.status
    return _differs(row.result) if row.fence == item.fence else None


def _differs(stored: Cid | None) -> Refusal:
    return Refusal(
        RefusalCode.RESULT_DIFFERS,
        "this task was completed by this worker with another result; the first one stays",
        details={"result": stored},
    )


def repeated_failure(row: TaskRow, worker: int, item: FailedItem) -> Status | None:
    """The status that this very failure brought about earlier; None where it is news."""
    same = row.worker == worker and row.fence == item.fence and row.reason == item.reason
    return row.status if same and row.status in (Status.WAITING, Status.FAILED) else None


def repeated_release(row: TaskRow, worker: int, fence: int) -> Status | None:
    """The status that this very release brought about earlier; None where it is news."""
    same = row.worker == worker and row.fence == fence and row.lease_until is None
    return row.status if same and row.status is Status.PENDING else None
