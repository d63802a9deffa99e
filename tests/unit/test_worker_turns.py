"""What a worker says to the door, holds, renews, repeats and drops: the state machine, with a clock of its own."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from swarm.turn_wire import Done, Failed, Grant, GrantPush, Held, Outcome, Released, Renewed, Stats, Turn, TurnAnswer
from swarm.wire import Announcement, ErrorBody, Hello, Offer, TaskBody
from swarm.worker.effects import Effect, Settled, Shelved, Start, Stop, StopReason, Verdict
from swarm.worker.turns import BEAT_S, BEGIN_AGAIN_S, Stage, Turns

ROOT = "12D3KooWGRUacmEmsDhdzQQ4RKPBoJSvLAjFVXUQzjKs1YeXKp3a"
CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
SLOTS = 3


def task_id(number: int) -> str:
    return str(uuid.UUID(int=number))


def grant(number: int, *, fence: int | None = None, lease_s: float = 60.0) -> Grant:
    body = TaskBody(id=task_id(number), job=task_id(999), kind="noop", urls=("http://site/",))
    return Grant(task=body, fence=fence or number, lease_s=lease_s, via="want")


def done(number: int, *, fence: int | None = None) -> Done:
    return Done(task=task_id(number), fence=fence or number, cid=CID)


def failed(number: int) -> Failed:
    return Failed(task=task_id(number), fence=number, reason="dns")


def news(*numbers: int, seq: int = 1, **more: Any) -> Announcement:
    offers = tuple(Offer(id=task_id(number), kind="noop", host="site") for number in numbers)
    return Announcement(v=1, root=ROOT, epoch=1, seq=seq, offers=offers, **more)


class Alice:
    """A worker's machine and its clock; ``say`` takes a turn and has it answered."""

    def __init__(self, *, want_limit: int | None = None) -> None:
        self.now = 1000.0
        hello = Hello(version="0.1.0", kinds={"noop": "1"}, slots=SLOTS)
        self.turns = Turns(boot="boot-one", hello=hello, instance="alice", now=self.now, want_limit=want_limit)

    def pass_s(self, seconds: float) -> None:
        self.now += seconds

    def take(self) -> Turn:
        turn = self.turns.take_turn(self.now)
        assert turn is not None
        return turn

    def quiet(self) -> bool:
        return self.turns.take_turn(self.now) is None

    def say(self, **answer: Any) -> tuple[Turn, list[Effect]]:
        turn = self.take()
        return turn, self.answer(turn, **answer)

    def answer(self, turn: Turn, **answer: Any) -> list[Effect]:
        return self.turns.answered(TurnAnswer(n=turn.n, **answer), self.now)

    def given(self, *numbers: int, lease_s: float = 60.0) -> None:
        """Have tasks granted and started."""
        self.turns.nudge()
        self.say(grants=tuple(grant(number, lease_s=lease_s) for number in numbers))
        for number in numbers:
            assert self.turns.started(number)


@pytest.fixture
def alice() -> Alice:
    return Alice()


def taken(number: int, status: str = "completed") -> Outcome:
    return Outcome(task=task_id(number), fence=number, status=status)


def no(number: int, code: str, *, retry_after_s: float | None = None) -> Outcome:
    error = ErrorBody(code=code, message="no", retry_after_s=retry_after_s)
    return Outcome(task=task_id(number), fence=number, error=error)


# ── boots ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_of_which_the_door_heard_another_boot_since_begins_a_new_one_and_no_loop(alice: Alice) -> None:
    alice.say(outdated=True)
    turn, _ = alice.say(outdated=True)
    assert turn.boot != "boot-one"
    assert turn.hello is not None
    alice.pass_s(BEAT_S)
    again, _ = alice.say(outdated=True)
    assert again.boot == turn.boot  # two machines with one identity would take each other's leases in turn
    alice.pass_s(BEGIN_AGAIN_S)
    alice.say(outdated=True)
    assert alice.take().boot not in ("boot-one", turn.boot)


# ── when a turn leaves ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_turn_leaves_at_once_says_hello_and_wants_all_slots(alice: Alice) -> None:
    turn = alice.take()

    assert (turn.n, turn.free, turn.want, turn.offers) == (1, SLOTS, SLOTS, ())
    assert turn.hello is not None


def test_an_idle_worker_says_something_every_ten_seconds_and_not_more_often(alice: Alice) -> None:
    alice.say()
    assert alice.quiet()
    assert alice.turns.wait_s(alice.now) == BEAT_S

    alice.pass_s(BEAT_S - 0.001)
    assert alice.quiet()
    alice.pass_s(0.001)
    turn = alice.take()
    assert (turn.n, turn.hello) == (2, None)


def test_a_heard_offer_is_asked_for_at_once_and_others_in_its_stead(alice: Alice) -> None:
    alice.say()
    alice.turns.hear(news(1), alice.now)

    turn = alice.take()

    assert (turn.offers, turn.want, turn.gossip) == ((task_id(1),), SLOTS, True)


def test_no_more_is_asked_for_than_slots_are_free(alice: Alice) -> None:
    alice.say()
    alice.turns.hear(news(*range(1, 20)), alice.now)

    turn = alice.take()

    assert len(turn.offers) == SLOTS
    assert (turn.free, turn.want) == (SLOTS, SLOTS)  # no more is granted than is free


def test_a_worker_composed_with_want_0_takes_only_what_it_heard_of() -> None:
    alice = Alice(want_limit=0)
    turn, _ = alice.say()
    assert (turn.free, turn.want) == (SLOTS, 0)

    alice.turns.hear(news(1), alice.now)
    turn = alice.take()
    assert (turn.offers, turn.want) == ((task_id(1),), 0)


def test_a_nudge_makes_the_next_turn_leave_now(alice: Alice) -> None:
    alice.say()
    alice.turns.nudge()
    assert alice.take().want == SLOTS


def test_a_nudge_during_a_turn_makes_another_one_leave_after_it(alice: Alice) -> None:
    turn = alice.take()
    alice.turns.nudge()
    alice.answer(turn)
    assert alice.take().n == 2


def test_a_gap_in_gossip_hastens_the_next_turn(alice: Alice) -> None:
    alice.say()
    alice.turns.hear(news(seq=1), alice.now)
    assert alice.quiet()
    alice.turns.hear(news(seq=3), alice.now)
    assert alice.take().n == 2


def test_without_free_slots_nothing_is_asked_and_nothing_hastens(alice: Alice) -> None:
    alice.given(1, 2, 3)
    alice.turns.hear(news(4), alice.now)
    alice.turns.nudge()

    assert alice.quiet()
    alice.pass_s(BEAT_S)
    turn = alice.take()
    assert (turn.free, turn.want, turn.offers) == (0, 0, ())


def test_gossip_that_is_silent_for_thirty_seconds_is_said_so(alice: Alice) -> None:
    alice.say()
    alice.turns.hear(news(), alice.now)
    alice.pass_s(29.0)
    turn, _ = alice.say()
    assert turn.gossip
    alice.pass_s(10.0)
    assert not alice.take().gossip


def test_hello_is_said_again_after_a_reconnection(alice: Alice) -> None:
    alice.say()
    alice.turns.reconnected()
    alice.pass_s(BEAT_S)
    assert alice.take().hello is not None


def test_stats_travel_with_the_heartbeat_not_with_each_turn(alice: Alice) -> None:
    def stats() -> Stats:
        return Stats(items=7)

    first = alice.turns.take_turn(alice.now, stats=stats)
    assert first is not None
    assert first.stats == Stats(items=7)
    alice.answer(first)
    alice.turns.nudge()
    second = alice.turns.take_turn(alice.now, stats=stats)
    assert second is not None
    assert second.stats is None


# ── repeating ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unanswered_turn_is_repeated_with_the_same_number_and_content(alice: Alice) -> None:
    alice.given(1)
    alice.turns.executed(1)
    alice.turns.report(done(1), alice.now)
    turn = alice.take()

    alice.turns.unanswered(alice.now)
    alice.turns.hear(news(2), alice.now)
    alice.pass_s(5.0)

    assert alice.take() == turn


def test_a_late_answer_for_another_number_is_ignored(alice: Alice) -> None:
    turn = alice.take()
    assert alice.turns.answered(TurnAnswer(n=7, grants=(grant(1),)), alice.now) == []
    assert alice.take() == turn


def test_a_grant_that_is_sent_again_is_started_once(alice: Alice) -> None:
    _, effects = alice.say(grants=(grant(1),))
    assert effects == [Start(grant=grant(1))]
    alice.turns.nudge()
    _, effects = alice.say(grants=(grant(1),))
    assert effects == []


def test_a_grant_that_was_just_given_back_is_not_started_when_it_is_sent_again(alice: Alice) -> None:
    alice.given(1)
    alice.turns.nudge()
    turn = alice.take()
    alice.turns.give_back(1, alice.now)

    assert alice.answer(turn, grants=(grant(1),)) == []
    assert alice.take().released == (Released(task=task_id(1), fence=1),)


def test_an_outcome_the_answer_passes_over_is_said_again(alice: Alice) -> None:
    alice.given(1)
    alice.turns.report(failed(1), alice.now)
    turn, _ = alice.say()
    assert turn.failed == (failed(1),)

    alice.pass_s(2.0)
    assert alice.take().failed == (failed(1),)


def test_a_refused_turn_is_repeated_after_the_wait_that_the_door_asked_for(alice: Alice) -> None:
    turn = alice.take()
    alice.turns.refused(ErrorBody(code="ledger_unavailable", message="disk full", retry_after_s=4.0), alice.now)

    assert alice.quiet()
    assert alice.turns.wait_s(alice.now) == 4.0
    alice.pass_s(4.0)
    assert alice.take() == turn


def test_one_bad_outcome_is_dropped_alone_and_its_neighbours_are_taken(alice: Alice) -> None:
    alice.given(1, 2, 3)
    for number in (1, 2, 3):
        alice.turns.report(failed(number), alice.now)
    bad = ErrorBody(code="bad_request", message="no")
    dropped = []

    for _ in range(10):
        turn = alice.turns.take_turn(alice.now)
        if turn is None:
            break
        if any(entry.fence == 2 for entry in turn.failed):
            dropped += alice.turns.refused(bad, alice.now)
        else:
            alice.answer(turn, outcomes=tuple(taken(entry.fence) for entry in turn.failed))

    assert dropped == [Settled(entry=failed(2), verdict=Verdict.REFUSED, error=bad)]
    assert alice.turns.settled


def test_a_turn_with_a_stale_number_is_said_again_whole_with_a_newer_one(alice: Alice) -> None:
    """As after a machine was set back to an earlier image: no outcome is dropped, and no other turn is lost for it."""
    alice.given(1, 2)
    for number in (1, 2):
        alice.turns.report(failed(number), alice.now)
    refused = alice.take()

    stale = ErrorBody(code="stale_turn", message="no", details={"n": 70})
    assert alice.turns.refused(stale, alice.now) == []
    again = alice.take()
    assert (again.n, again.failed) == (71, refused.failed)
    alice.answer(again, outcomes=(taken(1, "failed"), taken(2, "failed")))
    assert alice.turns.settled


@pytest.mark.parametrize("details", [None, {"n": 0}, {"n": "70"}, {"n": 2**63}])
def test_a_stale_number_of_a_door_that_makes_no_sense_is_no_tight_loop(
    alice: Alice, details: dict[str, Any] | None
) -> None:
    turn = alice.take()
    assert alice.turns.refused(ErrorBody(code="stale_turn", message="no", details=details), alice.now) == []
    assert alice.quiet()
    alice.pass_s(BEAT_S)
    assert alice.take() == turn


def test_a_malformed_turn_without_outcomes_is_no_tight_loop(alice: Alice) -> None:
    for _ in range(3):
        alice.take()
        alice.turns.refused(ErrorBody(code="bad_request", message="no"), alice.now)
        assert alice.quiet()
        alice.pass_s(BEAT_S)


# ── leases ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_slot_is_taken_from_the_grant_until_the_result_is_ready(alice: Alice) -> None:
    alice.say(grants=(grant(1),))
    assert alice.turns.free == SLOTS - 1
    alice.turns.started(1)
    alice.turns.executed(1)
    assert alice.turns.free == SLOTS - 1
    alice.turns.report(done(1), alice.now)
    assert alice.turns.free == SLOTS


def test_a_turn_reports_and_asks_at_once(alice: Alice) -> None:
    alice.given(1, 2, 3)
    alice.turns.executed(2)
    alice.turns.report(done(2), alice.now)

    turn = alice.take()

    assert (turn.done, turn.free, turn.want) == ((done(2),), 1, 1)
    assert {held.fence for held in turn.held} == {1, 3}


def test_a_lease_is_renewed_at_a_third_counted_from_when_the_asking_turn_was_sent(alice: Alice) -> None:
    turn = alice.take()
    alice.pass_s(2.0)
    alice.answer(turn, grants=(grant(1, lease_s=15.0),))
    alice.turns.started(1)

    alice.pass_s(2.999)
    assert alice.quiet()
    alice.pass_s(0.001)
    assert alice.take().held == (Held(task=task_id(1), fence=1, renew=True),)


def test_a_renewal_runs_from_when_it_was_asked_for(alice: Alice) -> None:
    alice.given(1, lease_s=15.0)
    alice.pass_s(5.0)
    turn = alice.take()
    alice.pass_s(4.0)
    alice.answer(turn, renewed=(Renewed(task=task_id(1), fence=1, lease_s=15.0),))

    (lease,) = alice.turns.leases
    assert lease.ends_at == alice.now - 4.0 + 15.0


def test_a_renewal_that_is_passed_over_is_asked_again_but_not_in_a_loop(alice: Alice) -> None:
    alice.given(1, lease_s=12.0)
    alice.pass_s(4.0)
    turn, _ = alice.say()
    assert turn.held[0].renew
    assert alice.quiet()
    alice.pass_s(1.0)
    assert alice.take().held[0].renew


def test_a_lost_lease_stops_its_execution_at_once(alice: Alice) -> None:
    alice.given(1, 2)
    alice.pass_s(20.0)
    _, effects = alice.say(lost=(1,))

    assert effects == [Stop(task=task_id(1), fence=1, why=StopReason.LOST)]
    assert [lease.fence for lease in alice.turns.leases] == [2]
    assert not alice.turns.report(done(1), alice.now)


def test_a_cancelled_task_stops_at_once_and_is_said_no_more(alice: Alice) -> None:
    alice.given(1, 2)

    assert alice.turns.cancel([task_id(2)]) == [Stop(task=task_id(2), fence=2, why=StopReason.CANCELLED)]

    alice.pass_s(BEAT_S)
    turn = alice.take()
    assert [held.fence for held in turn.held] == [1]
    assert turn.released == ()


def test_a_result_that_is_ready_is_reported_although_the_task_was_cancelled(alice: Alice) -> None:
    alice.given(1)
    alice.turns.executed(1)
    alice.turns.report(done(1), alice.now)

    assert alice.turns.cancel([task_id(1)]) == []
    assert alice.take().done == (done(1),)


def test_a_lease_unanswered_for_its_whole_length_is_stopped(alice: Alice) -> None:
    alice.given(1, lease_s=15.0)
    alice.pass_s(5.0)
    alice.take()  # asks for the renewal, and no answer comes
    assert alice.turns.overdue_in_s(alice.now) == 10.0
    alice.pass_s(9.999)
    assert alice.turns.overdue(alice.now) == []
    alice.pass_s(0.001)

    assert alice.turns.overdue(alice.now) == [Stop(task=task_id(1), fence=1, why=StopReason.UNANSWERED)]
    assert not alice.turns.executed(1)


def test_a_result_that_could_not_be_said_before_its_lease_ended_is_kept_for_a_new_grant(alice: Alice) -> None:
    alice.given(1, 2, lease_s=15.0)
    alice.pass_s(5.0)
    alice.take()  # under way, unanswered
    alice.turns.executed(1)
    alice.turns.report(done(1), alice.now)
    alice.pass_s(10.0)

    effects = alice.turns.overdue(alice.now)

    assert Shelved(entry=done(1)) in effects
    assert alice.turns.leases == ()


def test_an_outcome_in_the_turn_under_way_is_decided_by_its_answer(alice: Alice) -> None:
    alice.given(1, lease_s=15.0)
    alice.turns.executed(1)
    alice.turns.report(done(1), alice.now)
    turn = alice.take()
    alice.pass_s(60.0)

    assert alice.turns.overdue(alice.now) == []
    assert alice.turns.overdue_in_s(alice.now) == float("inf")
    assert alice.answer(turn, outcomes=(taken(1),)) == [
        Settled(entry=done(1), verdict=Verdict.TAKEN, status="completed")
    ]


def test_a_grant_that_no_slot_began_in_time_is_given_back(alice: Alice) -> None:
    alice.say(grants=(grant(1, lease_s=15.0),))
    alice.pass_s(5.0)

    assert alice.turns.overdue(alice.now) == [Stop(task=task_id(1), fence=1, why=StopReason.NOT_STARTED)]
    assert alice.take().released == (Released(task=task_id(1), fence=1),)


def test_a_grant_whose_lease_is_over_on_arrival_is_given_back(alice: Alice) -> None:
    turn = alice.take()
    alice.pass_s(61.0)

    assert alice.answer(turn, grants=(grant(1),)) == []
    assert alice.take().released == (Released(task=task_id(1), fence=1),)


def test_more_grants_than_slots_are_given_back(alice: Alice) -> None:
    _, effects = alice.say(grants=tuple(grant(number) for number in range(1, 6)))

    assert [effect.grant.fence for effect in effects if isinstance(effect, Start)] == [1, 2, 3]
    assert {entry.fence for entry in alice.take().released} == {4, 5}


def test_a_new_grant_of_a_task_in_hand_replaces_the_old_one(alice: Alice) -> None:
    alice.given(1)
    alice.turns.nudge()
    _, effects = alice.say(grants=(grant(1, fence=9),))

    assert effects == [
        Stop(task=task_id(1), fence=1, why=StopReason.SUPERSEDED),
        Start(grant=grant(1, fence=9)),
    ]


# ── outcomes ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", ["invalid_assignee", "lease_expired"])
def test_a_result_refused_for_its_lease_is_stale(alice: Alice, code: str) -> None:
    alice.given(1)
    alice.turns.report(done(1), alice.now)
    _, effects = alice.say(outcomes=(no(1, code),))

    (settled,) = effects
    assert isinstance(settled, Settled)
    assert settled.verdict is Verdict.STALE
    assert alice.turns.settled


def test_a_result_that_differs_is_refused_for_good(alice: Alice) -> None:
    alice.given(1)
    alice.turns.report(done(1), alice.now)
    _, (settled,) = alice.say(outcomes=(no(1, "result_differs"),))
    assert isinstance(settled, Settled)
    assert settled.verdict is Verdict.REFUSED


def test_an_outcome_the_door_cannot_take_now_is_said_again_with_growing_waits(alice: Alice) -> None:
    alice.given(1, lease_s=900.0)
    alice.turns.report(done(1), alice.now)
    waits = []
    for _ in range(4):
        alice.say(outcomes=(no(1, "ledger_unavailable"),))
        waits.append(alice.turns.wait_s(alice.now))
        alice.pass_s(waits[-1])
    assert waits == [1.0, 2.0, 4.0, 8.0]


def test_what_cannot_be_put_down_is_not_picked_up(alice: Alice) -> None:
    alice.given(1, 2, 3, lease_s=900.0)
    for number in (1, 2, 3):
        alice.turns.report(done(number), alice.now)
    alice.say(outcomes=tuple(no(number, "store_full", retry_after_s=30.0) for number in (1, 2, 3)))
    alice.turns.nudge()
    alice.pass_s(BEAT_S)

    turn = alice.take()
    assert (turn.free, turn.want) == (0, 0)


def test_a_result_the_root_cannot_read_keeps_its_lease_while_it_is_uploaded_again(alice: Alice) -> None:
    alice.given(1)
    alice.turns.executed(1)
    alice.turns.report(done(1), alice.now)
    _, (settled,) = alice.say(outcomes=(no(1, "result_unreadable"),))

    assert isinstance(settled, Settled)
    assert settled.verdict is Verdict.UNREADABLE
    assert alice.turns.leases[0].stage is Stage.STORING
    assert alice.turns.report(done(1), alice.now)


def test_outcomes_of_an_earlier_boot_are_said_first_with_their_old_fence(alice: Alice) -> None:
    alice.turns.adopt(done(7, fence=42), alice.now)

    turn, effects = alice.say(outcomes=(Outcome(task=task_id(7), fence=42, status="completed"),))

    assert (turn.n, turn.done) == (1, (done(7, fence=42),))
    assert effects == [Settled(entry=done(7, fence=42), verdict=Verdict.TAKEN, status="completed")]


# ── asking less ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_that_grants_less_than_it_wanted_forgets_the_offers_heard_before(alice: Alice) -> None:
    alice.say()
    alice.turns.hear(news(1, 2, 3, 4, 5), alice.now)
    turn = alice.take()
    alice.pass_s(0.1)
    alice.turns.hear(news(6, seq=2), alice.now)
    alice.answer(turn, grants=(grant(1),))

    assert alice.take().offers == (task_id(6),)


def test_a_turn_that_grants_all_it_wanted_forgets_nothing(alice: Alice) -> None:
    alice.say()
    alice.turns.hear(news(1, 2, 3, 4, 5), alice.now)
    alice.say(grants=(grant(1), grant(2), grant(3)))
    assert len(alice.turns.offers) == 2


def test_retry_after_stops_asking_and_then_asks_again(alice: Alice) -> None:
    alice.say(retry_after_s=3.0)
    alice.turns.nudge()
    alice.turns.hear(news(1), alice.now)
    assert alice.quiet()
    assert alice.turns.wait_s(alice.now) == 3.0

    alice.pass_s(3.0)
    assert alice.take().offers == (task_id(1),)


def test_retry_after_does_not_keep_outcomes_back(alice: Alice) -> None:
    alice.given(1)
    alice.turns.nudge()
    alice.say(retry_after_s=30.0)
    alice.turns.report(done(1), alice.now)

    turn = alice.take()
    assert (turn.done, turn.want) == ((done(1),), 0)


# ── what the door assigns ─────────────────────────────────────────────────────────────────────────────────────────


def push(*numbers: int, n: int = 1, after_s: float = 0.0, boot: str = "boot-one") -> GrantPush:
    return GrantPush(boot=boot, n=n, after_s=after_s, grants=tuple(grant(number, lease_s=60.0) for number in numbers))


def test_an_assigned_task_starts_and_its_lease_runs_from_the_turn_that_the_door_speaks_of(alice: Alice) -> None:
    alice.say()  # n = 1
    alice.pass_s(5.0)
    effects = alice.turns.assigned(push(7, n=1, after_s=4.0), alice.now)

    assert effects == [Start(grant=grant(7, lease_s=60.0))]
    (lease,) = alice.turns.leases
    assert lease.ends_at == alice.now - 5.0 + 4.0 + 60.0
    alice.pass_s(BEAT_S)
    assert [held.fence for held in alice.take().held] == [7]


def test_an_assigned_task_that_comes_again_in_an_answer_is_in_hand(alice: Alice) -> None:
    alice.say()
    alice.pass_s(BEAT_S)
    turn = alice.take()  # left before the push came
    alice.turns.assigned(push(7), alice.now)
    assert alice.answer(turn, grants=(grant(7),)) == []
    assert alice.turns.working == 1


def test_an_assigned_task_of_an_earlier_boot_is_none_of_ours(alice: Alice) -> None:
    alice.say()
    assert alice.turns.assigned(push(7, boot="boot-old"), alice.now) == []
    assert alice.turns.leases == ()


def test_an_assigned_task_that_cannot_be_dated_or_has_no_slot_is_given_back(alice: Alice) -> None:
    alice.say()
    assert alice.turns.assigned(push(7, n=99), alice.now) == []
    alice.given(*range(1, SLOTS + 1))
    assert alice.turns.assigned(push(50, n=2), alice.now) == []
    assert [released.fence for released in alice.take().released] == [50]


def test_a_pause_stops_asking_until_it_is_lifted(alice: Alice) -> None:
    alice.say(paused="maintenance")
    alice.turns.nudge()
    assert alice.quiet()
    alice.pass_s(BEAT_S)
    turn, _ = alice.say(paused="maintenance")
    assert turn.want == 0

    alice.turns.pause(None)
    assert alice.take().want == SLOTS


def test_a_hold_of_our_own_says_no_slot_is_free_until_it_is_resumed(alice: Alice) -> None:
    alice.turns.hold("ipfs")
    turn, _ = alice.say()
    assert (turn.free, turn.want) == (0, 0)
    assert alice.turns.holding(alice.now) == "ipfs"

    alice.turns.resume("ipfs")
    assert alice.take().want == SLOTS


def test_a_hold_with_an_end_ends_by_itself_once(alice: Alice) -> None:
    alice.turns.hold("deferred", until=alice.now + 2.0)
    alice.say()
    alice.pass_s(2.0)
    assert alice.take().want == SLOTS
    alice.turns.answered(TurnAnswer(n=2), alice.now)
    assert alice.quiet()


def test_on_probation_one_task_at_a_time_is_asked_for(alice: Alice) -> None:
    alice.turns.ask_limit = 1
    turn, _ = alice.say(grants=(grant(1),))
    assert turn.want == 1
    alice.turns.started(1)
    alice.pass_s(BEAT_S)
    turn, _ = alice.say()
    assert turn.want == 0
    assert alice.quiet()


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_drain_asks_for_no_more_gives_back_what_has_not_begun_and_lets_the_rest_finish(alice: Alice) -> None:
    alice.say(grants=(grant(1), grant(2)))
    alice.turns.started(1)

    assert alice.turns.drain(alice.now) == [Stop(task=task_id(2), fence=2, why=StopReason.RELEASED)]
    turn, _ = alice.say(outcomes=(taken(2, "pending"),))
    assert (turn.free, turn.want, turn.released) == (0, 0, (Released(task=task_id(2), fence=2),))
    assert not alice.turns.settled

    alice.turns.executed(1)
    alice.turns.report(done(1), alice.now)
    alice.say(outcomes=(taken(1),))
    assert alice.turns.settled


def test_after_the_grace_everything_else_is_given_back(alice: Alice) -> None:
    alice.given(1, 2)
    alice.turns.drain(alice.now)

    effects = alice.turns.release_all(alice.now)

    assert {effect.fence for effect in effects if isinstance(effect, Stop)} == {1, 2}
    turn, _ = alice.say(outcomes=(taken(1, "pending"), taken(2, "pending")))
    assert {entry.fence for entry in turn.released} == {1, 2}
    assert alice.turns.settled


def test_grants_that_arrive_during_a_drain_are_given_back(alice: Alice) -> None:
    turn = alice.take()
    alice.turns.drain(alice.now)
    assert alice.answer(turn, grants=(grant(1),)) == []
    assert alice.take().released == (Released(task=task_id(1), fence=1),)
