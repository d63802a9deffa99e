"""Who may end or renew a lease, and what a report is answered that comes again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.ledger.guards import (
    check_lease,
    is_live,
    lease_ended,
    not_found,
    repeated_failure,
    repeated_release,
    repeated_result,
)
from rendezvous.ledger.ops import DoneItem, FailedItem
from rendezvous.ledger.rows import TaskRow
from swarm.model import Refusal, RefusalCode, Status

ALICE, BOB = 1, 2
FENCE = 5
NOW = 1_000.0
RESULT = "bafkrei" + "a" * 52
OTHER = "bafkrei" + "b" * 52
ENDED = "the lease of this task ended before the report came: discard the result, or keep it for a new grant"


def row(status: Status, **changes: Any) -> TaskRow:
    """A task that was granted to alice at ``FENCE``, with a lease until a minute from now."""
    values: dict[str, Any] = {
        "seq": 1, "id": "t", "job": 1, "priority": 5, "reward_wei": "0", "max_attempts": 3, "max_run_s": 300.0,
        "created_at": 0.0, "expires_at": 1e9, "lane": 1, "worker": ALICE, "fence": FENCE, "lease_until": NOW + 60.0,
    }  # fmt: skip
    return TaskRow(status=status.value, **{**values, **changes})


def refused(task: TaskRow, worker: int = ALICE, fence: int = FENCE) -> Refusal:
    refusal = check_lease(task, worker, fence, now=NOW)
    assert refusal is not None
    return refusal


def test_the_holder_of_a_live_lease_may_move_its_task() -> None:
    assert check_lease(row(Status.ACTIVE), ALICE, FENCE, now=NOW) is None


def test_a_lease_is_over_at_the_moment_it_runs_until() -> None:
    task = row(Status.ACTIVE, lease_until=NOW)
    assert is_live(task, now=NOW - 0.001)
    assert not is_live(task, now=NOW)
    assert refused(task).code is RefusalCode.LEASE_EXPIRED


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ACTIVE])
def test_only_an_active_task_has_a_live_lease(status: Status) -> None:
    assert not is_live(row(status), now=NOW)


def test_a_task_without_a_lease_is_not_live() -> None:
    assert not is_live(row(Status.ACTIVE, lease_until=None), now=NOW)
    assert refused(row(Status.ACTIVE, lease_until=None)).code is RefusalCode.LEASE_EXPIRED


def test_who_speaks_of_an_earlier_grant_is_told_that_it_was_fenced() -> None:
    refusal = refused(row(Status.ACTIVE), fence=FENCE - 1)
    assert refusal.code is RefusalCode.INVALID_ASSIGNEE
    assert refusal.message == "invalid assignee: another grant was given since (a stale fence)"
    assert refusal.details == {"reason": "fenced", "status": "active", "fence": FENCE, "own": True}


def test_a_second_worker_is_told_that_it_is_granted_to_another() -> None:
    refusal = refused(row(Status.ACTIVE), BOB)
    assert refusal.code is RefusalCode.INVALID_ASSIGNEE
    assert refusal.message == "invalid assignee: it is granted to another worker"
    assert refusal.details == {"reason": "not_assignee", "status": "active", "fence": FENCE, "own": False}


def test_a_worker_with_an_old_fence_is_fenced_whatever_became_of_the_task() -> None:
    refusal = refused(row(Status.COMPLETED), BOB, FENCE - 1)
    assert refusal.message == "invalid assignee: another grant was given since (a stale fence)"
    assert refusal.details == {"reason": "fenced", "status": "completed", "fence": FENCE, "own": False}


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ACTIVE])
def test_nobody_else_holds_a_task_that_is_not_active(status: Status) -> None:
    refusal = refused(row(status), BOB)
    assert refusal.code is RefusalCode.INVALID_ASSIGNEE
    assert refusal.message == "invalid assignee: this worker doesn't hold it"


@pytest.mark.parametrize("status", [Status.PENDING, Status.WAITING, Status.FAILED])
def test_a_report_after_its_lease_ran_out_is_told_so(status: Status) -> None:
    refusal = refused(row(status))
    assert (refusal.code, refusal.message) == (RefusalCode.LEASE_EXPIRED, ENDED)
    assert refusal.details == {"status": status.value, "fence": FENCE}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.COMPLETED, "the task has completed"),
        (Status.FAILED, "the task has failed"),
        (Status.CANCELLED, "the task was cancelled"),
    ],
)
def test_the_last_holder_of_a_task_that_ended_is_told_how_it_ended(status: Status, words: str) -> None:
    refusal = refused(row(status, lease_until=None))
    assert (refusal.code, refusal.message) == (RefusalCode.WRONG_STATUS, words)
    assert refusal.details == {"status": status.value}


def test_a_task_that_ended_otherwise_is_no_expired_lease() -> None:
    assert refused(row(Status.CANCELLED)).code is RefusalCode.WRONG_STATUS
    assert refused(row(Status.COMPLETED)).code is RefusalCode.WRONG_STATUS


@given(st.sampled_from(Status), st.integers(1, 3), st.integers(1, 9), st.floats(0.0, 2_000.0) | st.none())
def test_nobody_but_the_holder_of_the_live_lease_moves_a_task(
    status: Status, worker: int, fence: int, lease_until: float | None
) -> None:
    held = status is Status.ACTIVE and worker == ALICE and fence == FENCE and (lease_until or 0.0) > NOW
    assert (check_lease(row(status, lease_until=lease_until), worker, fence, now=NOW) is None) == held


def test_what_is_not_there_is_said_with_its_name() -> None:
    assert not_found("a-task") == Refusal(RefusalCode.NOT_FOUND, "there is no task a-task")


def test_a_lease_that_ended_is_said_with_the_fence_that_the_task_has_now() -> None:
    assert lease_ended(row(Status.PENDING, fence=9)).details == {"status": "pending", "fence": 9}


# ── reports that come again ───────────────────────────────────────────────────────────────────────────────────────────


def done(cid: str = RESULT, fence: int = FENCE) -> DoneItem:
    return DoneItem(task="t", fence=fence, cid=cid, size_bytes=1)


def test_the_same_result_again_is_answered_as_at_first_at_whatever_fence() -> None:
    completed = row(Status.COMPLETED, result=RESULT)
    assert repeated_result(completed, ALICE, done()) is Status.COMPLETED
    assert repeated_result(completed, ALICE, done(fence=FENCE - 1)) is Status.COMPLETED


def test_another_result_of_the_same_grant_is_refused_and_the_first_one_stays() -> None:
    refusal = repeated_result(row(Status.COMPLETED, result=RESULT), ALICE, done(OTHER))
    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.RESULT_DIFFERS
    assert refusal.message == "this task was completed by this worker with another result; the first one stays"
    assert refusal.details == {"result": RESULT}


def test_a_result_is_no_repetition_of_another_grants_of_another_workers_or_of_none() -> None:
    completed = row(Status.COMPLETED, result=RESULT)
    assert repeated_result(completed, ALICE, done(OTHER, FENCE - 1)) is None
    assert repeated_result(completed, BOB, done()) is None
    assert repeated_result(row(Status.ACTIVE, result=RESULT), ALICE, done()) is None
    assert repeated_result(row(Status.PENDING, result=RESULT), BOB, done()) is None


def failed(reason: str = "timeout", fence: int = FENCE) -> FailedItem:
    return FailedItem(task="t", fence=fence, reason=reason)


@pytest.mark.parametrize("status", Status)
def test_the_same_failure_again_is_answered_with_what_it_brought_about(status: Status) -> None:
    brought_about = status if status in (Status.WAITING, Status.FAILED) else None
    assert repeated_failure(row(status, reason="timeout"), ALICE, failed()) is brought_about


@pytest.mark.parametrize(
    ("worker", "item"), [(BOB, failed()), (ALICE, failed(fence=FENCE - 1)), (ALICE, failed("tls"))]
)
def test_a_failure_of_another_worker_grant_or_reason_is_news(worker: int, item: FailedItem) -> None:
    assert repeated_failure(row(Status.WAITING, reason="timeout"), worker, item) is None


@pytest.mark.parametrize("status", Status)
def test_the_same_release_again_is_answered_with_what_it_brought_about(status: Status) -> None:
    brought_about = status if status is Status.PENDING else None
    assert repeated_release(row(status, lease_until=None), ALICE, FENCE) is brought_about


def test_a_release_of_another_worker_or_grant_or_of_a_lease_that_ran_out_is_news() -> None:
    released = row(Status.PENDING, lease_until=None)
    assert repeated_release(released, BOB, FENCE) is None
    assert repeated_release(released, ALICE, FENCE - 1) is None
    assert repeated_release(row(Status.PENDING), ALICE, FENCE) is None
