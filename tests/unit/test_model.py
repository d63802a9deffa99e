"""A task's life, seen from each status and from each actor; which failures are tried again."""

from __future__ import annotations

import pytest

from swarm.model import (
    MOVES,
    RETRYABLE_REASONS,
    TERMINAL,
    TURNS_AWAY,
    Actor,
    Move,
    Reason,
    RefusalCode,
    Status,
    is_retryable,
    sources,
    targets,
)

WAITING, PENDING, ACTIVE = Status.WAITING, Status.PENDING, Status.ACTIVE
COMPLETED, FAILED, CANCELLED = Status.COMPLETED, Status.FAILED, Status.CANCELLED

#: Whence, by which moves, whither.
LIFE: dict[Status | None, dict[Move, set[Status]]] = {
    None: {Move.SUBMIT: {PENDING, WAITING}},
    WAITING: {
        Move.WAKE: {PENDING},
        Move.FAIL_BY_HAND: {WAITING, FAILED},
        Move.EXPIRE: {FAILED},
        Move.UNFUND: {FAILED},
        Move.CANCEL: {CANCELLED},
    },
    PENDING: {
        Move.GRANT: {ACTIVE},
        Move.FAIL_BY_HAND: {WAITING, FAILED},
        Move.EXPIRE: {FAILED},
        Move.UNFUND: {FAILED},
        Move.CANCEL: {CANCELLED},
    },
    ACTIVE: {
        Move.RENEW: {ACTIVE},
        Move.COMPLETE: {COMPLETED},
        Move.RELEASE: {PENDING},
        Move.EXPIRE_LEASE: {PENDING, FAILED},
        Move.QUARANTINE: {PENDING},
        Move.RETRY: {WAITING},
        Move.FAIL: {FAILED},
        Move.FAIL_BY_HAND: {WAITING, FAILED},
        Move.EXPIRE: {FAILED},
        Move.UNFUND: {FAILED},
        Move.CANCEL: {CANCELLED},
    },
    COMPLETED: {Move.REJECT: {PENDING, FAILED}},
    FAILED: {Move.REPLAY: {PENDING}},
    CANCELLED: {Move.COMPLETE: {COMPLETED}},
}

POWERS: dict[Actor, set[Move]] = {
    Actor.REQUESTER: {Move.SUBMIT, Move.CANCEL, Move.REPLAY},
    Actor.WORKER: {Move.GRANT},
    Actor.ASSIGNEE: {Move.RENEW, Move.COMPLETE, Move.RELEASE, Move.RETRY, Move.FAIL},
    Actor.LEDGER: {
        Move.WAKE, Move.RELEASE, Move.EXPIRE_LEASE, Move.QUARANTINE, Move.FAIL, Move.EXPIRE, Move.UNFUND
    },
    Actor.OPERATOR: {Move.RELEASE, Move.QUARANTINE, Move.FAIL_BY_HAND, Move.CANCEL, Move.REPLAY},
    Actor.POLICY: {Move.REJECT},
}  # fmt: skip


@pytest.mark.parametrize("status", [None, *Status])
def test_from_each_status_a_task_moves_only_where_its_life_goes(status: Status | None) -> None:
    assert {move: set(rule.targets) for move, rule in MOVES.items() if status in rule.sources} == LIFE[status]


@pytest.mark.parametrize("actor", Actor)
def test_each_actor_moves_tasks_only_as_is_its_own_to_do(actor: Actor) -> None:
    assert {move for move, rule in MOVES.items() if actor in rule.actors} == POWERS[actor]


@pytest.mark.parametrize("move", Move)
def test_every_move_is_in_the_table_and_a_new_task_comes_from_no_status(move: Move) -> None:
    assert targets(move) == MOVES[move].targets
    assert sources(move) == MOVES[move].sources - {None}
    assert (sources(move) == set()) == (move is Move.SUBMIT)


def test_a_task_that_ended_is_granted_to_nobody() -> None:
    assert {status for status in Status if not {Move.GRANT, Move.WAKE, Move.RENEW} & set(LIFE[status])} == TERMINAL


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_of_ours_decides_by_itself_whether_it_is_tried_again(reason: Reason) -> None:
    passing = {"dns", "connect", "timeout", "http_5xx", "http_408", "worker_lost", "blocked", "executor_error"}
    for said in (None, True, False):
        assert is_retryable(reason, said) == (reason in RETRYABLE_REASONS) == (reason.value in passing)


def test_an_executors_own_word_is_tried_again_only_where_it_says_so() -> None:
    assert is_retryable("odd-page", True) is True
    assert is_retryable("odd-page", False) is False
    assert is_retryable("odd-page") is False


def test_a_worker_stops_only_where_asking_again_can_change_nothing() -> None:
    assert {RefusalCode.KEY_REVOKED, RefusalCode.VERSION_UNSUPPORTED, RefusalCode.FORBIDDEN} == TURNS_AWAY
