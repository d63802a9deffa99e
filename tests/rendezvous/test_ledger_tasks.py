"""A task's life in the ledger: who gets it, who may end it, and what is answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import uuid6

from rendezvous.ledger.ops import (
    Cancel,
    DoneItem,
    Ended,
    LeaseRef,
    Rearm,
    RemoveWorker,
    Replay,
    Submit,
    Sweep,
    TakeTurn,
)
from rendezvous.ledger.values import WorkerRef
from swarm.model import Refusal, RefusalCode, Status, Via
from tests.rendezvous.ledger_world import (
    ALICE,
    BOB,
    CAROL,
    CID,
    DAVE,
    NOOP,
    OTHER_CID,
    World,
    check_consistency,
    new_task,
)


@pytest.fixture
def world(database: str) -> Iterator[World]:
    world = World(database)
    yield world
    check_consistency(world)
    world.close()


def code(outcome: object) -> RefusalCode:
    assert isinstance(outcome, Refusal), outcome
    return outcome.code


# ── granting ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_submitted_task_is_granted_once_and_completed(world: World) -> None:
    task = world.one(spec={"deep": [1, {"a": "ü"}]}, meta={"row": 7})
    result = world.turn(ALICE, want=2)
    (grant,) = result.granted

    assert grant.task.id == task
    assert grant.task.spec == {"deep": [1, {"a": "ü"}]}
    assert grant.task.meta == {"row": 7}
    assert (grant.task.attempt, grant.fence, grant.lease_s, grant.again) == (1, 1, 60.0, False)
    assert world.claim(BOB) == []
    assert world.complete(ALICE, LeaseRef(task, grant.fence), manifest=b"the manifest") is Status.COMPLETED
    view = world.task(task)
    assert (view.status, view.assignee, view.result, view.result_bytes) == ("completed", ALICE.address, CID, 10)
    assert view.accepted == view.finished_at == world.now
    assert world.reader.manifest(CID) == b"the manifest"
    assert world.moves(task) == ["submitted", "granted", "completed"]


def test_tasks_are_granted_by_priority_and_then_by_age(world: World) -> None:
    tasks = world.submit(*(new_task(priority=priority, host=f"{host}.test") for priority in (2, 9, 5) for host in "ab"))
    order = [lease.task for lease in world.claim(ALICE, want=6)]
    assert order == [tasks[2], tasks[3], tasks[4], tasks[5], tasks[0], tasks[1]]


def test_fences_rise_over_all_grants_of_all_tasks(world: World) -> None:
    world.submit(*(new_task() for _ in range(4)))
    first = world.claim(ALICE, want=2)
    for lease in first:
        world.release(ALICE, lease)
    second = world.claim(BOB, want=4)
    assert [lease.fence for lease in first + second] == [1, 2, 3, 4, 5, 6]


def test_a_turn_whose_offer_is_gone_takes_another_and_none_takes_more_than_fit(world: World) -> None:
    offered, *others = (world.one() for _ in range(4))
    world.turn(BOB, offers=(offered,), want=1, room=1)

    granted = world.turn(ALICE, offers=(offered,), want=2, room=2).granted

    assert [(grant.task.id, grant.via) for grant in granted] == [(others[0], Via.WANT), (others[1], Via.WANT)]


def test_offers_are_granted_before_wanted_ones(world: World) -> None:
    low, high = world.submit(new_task(priority=0), new_task(priority=9))
    result = world.turn(ALICE, offers=(low,), want=1)
    assert [(grant.task.id, grant.via.value) for grant in result.granted] == [(low, "offer"), (high, "want")]


def test_an_offer_that_another_has_is_refused_with_invalid_assignee(world: World) -> None:
    task = world.one()
    world.claim(ALICE)
    refused = world.turn(BOB, offers=(task, "no such task"), explain=True).refused
    assert code(refused[task]) is RefusalCode.INVALID_ASSIGNEE
    assert code(refused["no such task"]) is RefusalCode.NOT_FOUND


def test_two_workers_that_race_for_one_task_in_one_group_get_one_grant(world: World) -> None:
    task = world.one()
    turns = [
        TakeTurn(worker=worker, boot="boot-boot", facts=NOOP, offers=(task,), explain=True, partial=True)
        for worker in (ALICE, BOB)
    ]
    first, second = world.all(*turns)
    assert len(first.granted) == 1
    assert code(second.refused[task]) is RefusalCode.INVALID_ASSIGNEE


def test_a_claim_repeated_by_the_holder_is_granted_again_with_the_same_fence(world: World) -> None:
    task = world.one()
    (lease,) = world.claim(ALICE, want=0, offers=(task,))
    (again,) = world.turn(ALICE, offers=(task,), explain=True, partial=True).granted
    assert (again.fence, again.again) == (lease.fence, True)


# ── ending ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_result_again_answers_completed_and_another_one_result_differs(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    assert world.complete(ALICE, lease) is Status.COMPLETED
    assert world.complete(ALICE, lease) is Status.COMPLETED
    assert code(world.complete(ALICE, lease, OTHER_CID)) is RefusalCode.RESULT_DIFFERS
    assert world.moves(lease.task) == ["submitted", "granted", "completed"]


def test_the_same_result_twice_in_one_turn_counts_once(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    done = DoneItem(task=lease.task, fence=lease.fence, cid=CID, size_bytes=10)
    ended = world.turn(ALICE, done=(done, done)).ended
    assert [item.outcome for item in ended] == [Status.COMPLETED, Status.COMPLETED]
    assert world.moves(lease.task) == ["submitted", "granted", "completed"]


def test_only_the_assignee_ends_a_task(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    outcome = world.complete(BOB, lease)
    assert code(outcome) is RefusalCode.INVALID_ASSIGNEE
    assert code(world.fail(BOB, lease)) is RefusalCode.INVALID_ASSIGNEE
    assert code(world.release(BOB, lease)) is RefusalCode.INVALID_ASSIGNEE
    assert world.complete(ALICE, lease) is Status.COMPLETED
    assert code(world.complete(BOB, lease)) is RefusalCode.INVALID_ASSIGNEE


def test_a_stale_fence_is_said_so(world: World) -> None:
    world.one()
    (old,) = world.claim(ALICE)
    world.release(ALICE, old)
    (new,) = world.claim(BOB)
    refusal = world.complete(ALICE, old)
    assert code(refusal) is RefusalCode.INVALID_ASSIGNEE
    assert refusal.details["reason"] == "fenced"
    assert refusal.details["fence"] == new.fence


def test_ones_own_expired_lease_is_said_so_before_and_after_it_is_reaped(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    world.now += 60.0
    assert code(world.complete(ALICE, lease)) is RefusalCode.LEASE_EXPIRED
    world.sweep()
    assert world.task(lease.task).status == "pending"
    assert code(world.complete(ALICE, lease)) is RefusalCode.LEASE_EXPIRED


def test_an_unknown_task_is_not_found(world: World) -> None:
    assert code(world.complete(ALICE, LeaseRef("nowhere", 1))) is RefusalCode.NOT_FOUND


def test_a_retryable_failure_waits_longer_each_time_and_then_is_a_dead_letter(world: World) -> None:
    task = world.one()
    waits = []
    for attempt in (1, 2):
        (lease,) = world.claim(ALICE)
        assert world.fail(ALICE, lease, "http_5xx", detail="503") is Status.WAITING
        waits.append((world.task(task).not_before or 0.0) - world.now)
        assert world.task(task).attempts == attempt
        assert world.claim(BOB) == []
        world.later(waits[-1])
    assert 15.0 <= waits[0] <= 18.75
    assert 30.0 <= waits[1] <= 37.5
    (lease,) = world.claim(ALICE)
    assert world.fail(ALICE, lease, "http_5xx", detail="503") is Status.FAILED
    view = world.task(task)
    assert (view.status, view.reason, view.detail, view.attempts) == ("failed", "http_5xx", "503", 3)


def test_a_reason_that_is_not_retryable_fails_at_once(world: World) -> None:
    task = world.one()
    (lease,) = world.claim(ALICE)
    assert world.fail(ALICE, lease, "http_4xx") is Status.FAILED
    assert world.task(task).attempts == 1


def test_a_failure_reported_again_answers_what_it_brought_about(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    assert world.fail(ALICE, lease) is Status.WAITING
    assert world.fail(ALICE, lease) is Status.WAITING
    assert world.task(lease.task).attempts == 1


def test_a_release_is_not_counted_and_may_be_said_twice(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    assert world.release(ALICE, lease) is Status.PENDING
    assert world.release(ALICE, lease) is Status.PENDING
    assert world.task(lease.task).attempts == 0
    assert world.moves(lease.task) == ["submitted", "granted", "released"]


# ── holding ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_renewed_lease_runs_on_with_the_same_fence_until_max_run_s(world: World) -> None:
    world.one(max_run_s=100.0)
    (lease,) = world.claim(ALICE)
    for _ in range(2):
        world.now += 45.0
        (renewed,) = world.turn(ALICE, held=(lease,), renew=(lease,)).renewed
        assert (renewed.fence, renewed.lease_s) == (lease.fence, 60.0)
    world.now += 15.0
    (renewed,) = world.turn(ALICE, held=(lease,), renew=(lease,)).renewed
    assert renewed.lease_s == 45.0  # what was left; more there is not
    world.later(45.0)
    assert world.task(lease.task).status == "pending"


def test_a_lease_that_ran_out_is_lost(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    world.now += 61.0
    result = world.turn(ALICE, held=(lease,), renew=(lease,))
    assert (result.lost, result.renewed) == ((lease.fence,), ())


def test_a_grant_that_the_next_turn_does_not_hold_is_sent_again_uncounted(world: World) -> None:
    world.submit(new_task(), new_task())
    (first,) = world.turn(ALICE, want=1).granted
    result = world.turn(ALICE, want=1)
    (again,) = result.granted  # it takes the slot that was asked for
    assert (again.task.id, again.fence, again.again) == (first.task.id, first.fence, True)
    held = LeaseRef(first.task.id, first.fence)
    assert world.turn(ALICE, held=(held,)).granted == ()
    assert world.task(first.task.id).attempts == 0


def test_an_earlier_boots_leases_are_given_back_uncounted(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE, partial=False, boot="first-boot")
    result = world.turn(ALICE, boot="second-boot", held=(lease,))
    assert result.lost == (lease.fence,)
    assert world.task(lease.task).status == "pending"
    assert world.task(lease.task).attempts == 0
    (new,) = world.claim(BOB)
    assert new.fence > lease.fence


def test_a_journalled_result_of_an_earlier_boot_still_counts(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE, partial=False, boot="first-boot")
    done = DoneItem(task=lease.task, fence=lease.fence, cid=CID, size_bytes=10)
    result = world.turn(ALICE, boot="second-boot", done=(done,))
    assert result.ended[0].outcome is Status.COMPLETED


def test_a_late_turn_of_an_earlier_boot_takes_nothing_from_the_present_one(world: World) -> None:
    world.submit(new_task(), new_task())
    world.turn(ALICE, boot="first-boot")
    (lease,) = world.claim(ALICE, partial=False, boot="second-boot")
    late = world.turn(ALICE, boot="first-boot", want=1)
    assert late.granted == ()
    assert world.task(lease.task).status == "active"
    assert world.turn(ALICE, boot="second-boot", held=(lease,)).lost == ()


def test_a_boot_whose_predecessor_was_heard_after_it_is_told_so_and_a_new_one_gets_tasks(world: World) -> None:
    world.one()
    assert not world.turn(ALICE, boot="second-boot").outdated
    assert not world.turn(ALICE, boot="first-boot").outdated  # its only turn had been held up, and came as news
    told = world.turn(ALICE, boot="second-boot", want=1)
    assert (told.outdated, told.granted) == (True, ())
    assert len(world.turn(ALICE, boot="third-boot", want=1).granted) == 1


def test_two_instances_of_one_address_hold_leases_apart(world: World) -> None:
    twin = WorkerRef(ALICE.address, "another-instance")
    world.one()
    (lease,) = world.claim(ALICE)
    assert code(world.complete(twin, lease)) is RefusalCode.INVALID_ASSIGNEE
    assert world.turn(twin, held=(lease,)).lost == (lease.fence,)


# ── losing workers ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lost_worker_is_passed_over_while_another_eligible_one_lives(world: World) -> None:
    task = world.one()
    world.claim(ALICE)
    world.now += 50.0
    world.turn(BOB)
    world.later(10.0)
    assert world.task(task).attempts == 1

    assert world.claim(ALICE) == []
    refused = world.turn(ALICE, offers=(task,), explain=True, partial=True).refused[task]
    assert code(refused) is RefusalCode.PASSED_OVER
    assert [lease.task for lease in world.claim(BOB)] == [task]


def test_a_lost_worker_that_is_alone_gets_the_task_back(world: World) -> None:
    task = world.one()
    world.claim(ALICE)
    world.later(60.0)
    assert [lease.task for lease in world.claim(ALICE)] == [task]


def test_a_worker_is_passed_over_for_ten_minutes_at_most(world: World) -> None:
    task = world.one()
    world.claim(ALICE)
    world.later(60.0)
    world.later(599.0)
    world.turn(BOB)
    assert world.claim(ALICE) == []
    world.later(1.0)
    assert [lease.task for lease in world.claim(ALICE)] == [task]


def test_a_worker_that_loses_a_task_again_is_counted_once(world: World) -> None:
    task = world.one()
    for _ in range(4):
        (lease,) = world.claim(ALICE)
        assert lease.task == task
        world.later(60.0)
    assert world.task(task).attempts == 1


def test_a_lone_worker_that_dies_of_a_task_and_comes_back_late_is_counted_each_time(world: World) -> None:
    """Its supervisor waits for longer than a lease runs: there is nothing left for the new boot to give back."""
    task = world.one()
    for boot in ("first", "second", "third"):
        assert len(world.claim(ALICE, partial=False, boot=boot)) == 1
        world.later(60.0)
    view = world.task(task)
    assert (view.status, view.reason, view.attempts) == ("failed", "worker_lost", 3)
    assert view.detail == f"lost by {ALICE.address} ({ALICE.instance}) 3 times"


def test_three_lost_workers_make_a_dead_letter_that_names_them(world: World) -> None:
    task = world.one()
    neighbour = world.one()
    for worker in (ALICE, BOB, CAROL):
        (lease,) = world.claim(worker, want=0, offers=(task,))
        world.later(60.0)
    view = world.task(task)
    assert (view.status, view.reason) == ("failed", "worker_lost")
    assert all(worker.address in (view.detail or "") for worker in (ALICE, BOB, CAROL))
    assert code(world.complete(CAROL, lease)) is RefusalCode.LEASE_EXPIRED
    assert [lease.task for lease in world.claim(DAVE)] == [neighbour]


def test_a_restart_costs_a_task_nothing_and_each_further_one_an_attempt(world: World) -> None:
    task = world.one()
    attempts = []
    for boot in range(4):
        world.claim(ALICE, partial=False, boot=f"boot-{boot}")
        attempts.append(world.task(task).attempts)
    assert attempts == [0, 0, 1, 2]
    world.turn(ALICE, boot="the-last")
    view = world.task(task)
    assert (view.status, view.reason, view.attempts) == ("failed", "worker_lost", 3)
    assert view.detail == f"lost by {ALICE.address} ({ALICE.instance}) 4 times"
    assert world.moves(task)[-3:] == ["released", "granted", "failed"]


def test_restarts_of_different_workers_with_the_same_task_add_up(world: World) -> None:
    task = world.one()
    for boot, worker in enumerate((ALICE, BOB, CAROL)):
        assert len(world.claim(worker, partial=False, boot=f"boot-{boot}")) == 1
        world.turn(worker, boot=f"boot-{boot}-killed")
    assert world.task(task).attempts == 2


def test_a_worker_that_started_anew_is_passed_over_once_it_is_counted(world: World) -> None:
    task = world.one()
    world.turn(BOB)
    world.claim(ALICE, partial=False, boot="first")
    assert [lease.task for lease in world.claim(ALICE, partial=False, boot="second")] == [task]
    assert world.claim(ALICE, partial=False, boot="third") == []
    assert [lease.task for lease in world.claim(BOB)] == [task]


def test_a_result_of_a_boot_that_was_given_up_is_late(world: World) -> None:
    task = world.one(max_attempts=1)
    world.claim(ALICE, partial=False, boot="first")
    (lease,) = world.claim(ALICE, partial=False, boot="second")
    world.turn(ALICE, boot="third")
    assert world.task(task).status == "failed"
    assert code(world.complete(ALICE, lease)) is RefusalCode.LEASE_EXPIRED


def test_a_replayed_task_is_forgiven_its_restarts(world: World) -> None:
    task = world.one(max_attempts=1)
    for boot in ("first", "second", "third"):
        world.claim(ALICE, partial=False, boot=boot)
    assert world.replay(task) == [Status.PENDING]
    world.claim(ALICE, partial=False, boot="third")
    world.turn(ALICE, boot="fourth")
    assert (world.task(task).status, world.task(task).attempts) == ("pending", 0)


@pytest.mark.parametrize("max_attempts", [1, 3])
@pytest.mark.parametrize("workers", [(ALICE,), (ALICE, BOB)], ids=["a lone worker", "two workers"])
def test_who_is_held_beside_a_task_that_kills_its_workers_completes(
    world: World, workers: tuple[WorkerRef, ...], max_attempts: int
) -> None:
    slots = 8
    before = [new_task(max_attempts=max_attempts) for _ in range(5)]
    after = [new_task(max_attempts=max_attempts) for _ in range(40)]
    poison = new_task()
    neighbours = {task.id for task in (*before, *after)}
    world.submit(*before, poison, *after)
    deaths = 0
    boots = dict.fromkeys(workers, 0)
    held: dict[WorkerRef, list[LeaseRef]] = {worker: [] for worker in workers}
    while any(world.task(task).status not in ("completed", "failed") for task in (*neighbours, poison.id)):
        for worker in workers:
            world.now += 1.0
            leases = held[worker]
            # one at a time is done, so that the others are still held when the worker dies
            done = tuple(DoneItem(task=ref.task, fence=ref.fence, cid=CID, size_bytes=1) for ref in leases[:1])
            boot = f"boot-{boots[worker]}"
            kept = leases[1:]
            result = world.turn(worker, boot=boot, done=done, held=tuple(kept), want=slots - len(kept))
            held[worker] = [*kept, *(LeaseRef(grant.task.id, grant.fence) for grant in result.granted)]
            if any(ref.task == poison.id for ref in held[worker]):
                deaths += 1
                boots[worker] += 1
                held[worker] = []
    assert deaths == 4
    assert (world.task(poison.id).status, world.task(poison.id).reason) == ("failed", "worker_lost")
    assert {world.task(task).status for task in neighbours} == {"completed"}
    check_consistency(world)


def test_tasks_that_expired_together_run_their_last_attempt_apart(world: World) -> None:
    poison, *neighbours = world.submit(*(new_task() for _ in range(3)))
    for worker in (ALICE, BOB):
        assert len(world.claim(worker, want=3)) == 3
        world.later(60.0)
    (held,) = world.claim(CAROL, want=3)
    assert held.task == poison
    refused = world.turn(CAROL, offers=(neighbours[0],), explain=True, partial=True).refused[neighbours[0]]
    assert code(refused) is RefusalCode.SUSPECT_HELD
    assert [lease.task for lease in world.claim(DAVE, want=3)] == neighbours[:1]
    refusals = world.reader.refusals(neighbours[1], [(CAROL, NOOP), (DAVE, NOOP)], now=world.now)
    assert [code(refusal) for _, refusal in refusals] == [RefusalCode.SUSPECT_HELD] * 2
    world.later(60.0)
    assert world.task(poison).status == "failed"


def test_removing_a_worker_gives_its_leases_back_uncounted(world: World) -> None:
    world.submit(new_task(), new_task())
    leases = world.claim(ALICE, want=2)
    assert world.do(RemoveWorker(worker=ALICE, who="operator")) == 2
    assert {world.task(lease.task).attempts for lease in leases} == {0}
    assert len(world.claim(BOB, want=2)) == 2


# ── cancel, replay ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_tasks_holder_is_told_and_its_result_refused(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    assert world.cancel(lease.task) == [Status.CANCELLED]
    result = world.turn(ALICE, held=(lease,), renew=(lease,))
    assert (result.cancelled, result.lost) == ((lease.task,), ())
    assert code(world.complete(ALICE, lease)) is RefusalCode.WRONG_STATUS


def test_only_the_owner_and_the_operator_cancel(world: World) -> None:
    task = world.one()
    assert code(world.cancel(task, owner="somebody")[0]) is RefusalCode.NOT_FOUND
    assert world.cancel(task, owner=None) == [Status.CANCELLED]
    assert code(world.cancel(task)[0]) is RefusalCode.WRONG_STATUS
    assert world.reader.history(task)[-1].who == "operator"


def test_a_job_is_cancelled_whole(world: World) -> None:
    job = str(uuid6.uuid7())
    tasks = world.submit(*(new_task() for _ in range(5)), job=job)
    (lease,) = world.claim(ALICE)
    world.complete(ALICE, lease)
    ended: tuple[Ended, ...] = world.do(Cancel(owner="owner", who="owner", job=job))
    assert [item.outcome for item in ended] == [Status.CANCELLED] * 4
    assert {item.task for item in ended} == set(tasks) - {lease.task}
    view = world.reader.job(job)
    assert view is not None
    assert (view.done, view.counts) == (True, {"completed": 1, "cancelled": 4})
    assert world.do(Cancel(owner="somebody", who="somebody", job=job)) == ()


def test_a_replayed_dead_letter_starts_anew(world: World) -> None:
    task = world.one()
    (lease,) = world.claim(ALICE)
    world.fail(ALICE, lease, "http_4xx")
    assert world.replay(task) == [Status.PENDING]
    view = world.task(task)
    assert (view.attempts, view.reason, view.finished_at) == (0, None, None)
    assert world.row(task).funding_generation == 2
    (again,) = world.claim(ALICE)
    assert again.fence > lease.fence
    assert code(world.replay(task)[0]) is RefusalCode.WRONG_STATUS


def test_the_failed_ones_of_a_job_are_replayed(world: World) -> None:
    job = str(uuid6.uuid7())
    world.submit(*(new_task() for _ in range(3)), job=job)
    for lease in world.claim(ALICE, want=2):
        world.fail(ALICE, lease, "robots")
    ended = world.do(Replay(owner=None, who="operator", job=job))
    assert [item.outcome for item in ended] == [Status.PENDING] * 2


def test_a_replayed_task_that_had_expired_gets_its_time_again(world: World) -> None:
    task = world.one(expires_in_s=100.0)
    world.later(100.0)
    assert (world.task(task).status, world.task(task).reason) == ("failed", "expired")
    world.replay(task)
    world.later(99.0)
    assert world.task(task).status == "pending"


# ── the clock ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_delayed_task_wakes_when_its_time_has_come(world: World) -> None:
    task = world.one(not_before_s=50.0)
    assert world.task(task).status == "waiting"
    assert world.sweep() == 50.0
    world.later(49.0)
    assert world.claim(ALICE) == []
    world.later(1.0)
    assert [lease.task for lease in world.claim(ALICE)] == [task]
    assert world.moves(task) == ["submitted", "woken", "granted"]


@pytest.mark.parametrize("status", ["pending", "waiting", "active"])
def test_a_task_expires_whatever_it_was_doing(world: World, status: str) -> None:
    task = world.one(expires_in_s=40.0, not_before_s=1000.0 if status == "waiting" else 0.0)
    if status == "active":
        assert world.turn(ALICE, want=1).granted[0].lease_s == 40.0
    assert world.task(task).status == status
    world.later(40.0)
    assert (world.task(task).status, world.task(task).reason) == ("failed", "expired")


def test_a_task_whose_time_is_over_is_not_granted_even_before_the_sweep(world: World) -> None:
    task = world.one(expires_in_s=40.0)
    world.now += 40.0
    assert world.claim(ALICE) == []
    assert world.task(task).reason == "expired"


def test_rearmed_leases_are_not_reaped(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    world.now += 500.0
    assert world.all(Rearm(), Sweep())[0] == 1
    assert world.complete(ALICE, lease) is Status.COMPLETED


def test_the_lease_follows_what_tasks_of_the_kind_took(world: World) -> None:
    world.submit(*(new_task() for _ in range(20)))
    leases = world.claim(ALICE, want=20)
    world.now += 20.0
    for lease in leases:
        world.complete(ALICE, lease)
    world.one()
    (grant,) = world.turn(BOB, want=1).granted
    assert 60.0 <= grant.lease_s <= 66.0  # three times 20 s, within one bucket


# ── submitting ────────────────────────────────────────────────────────────────────────────────────────────────────


def submission(*tasks: object, **changes: object) -> Submit:
    values = {"owner": "owner", "job": str(uuid6.uuid7()), "job_named": False, "name": None, "tasks": tasks}
    return Submit(**{**values, **changes})  # type: ignore[arg-type]


def test_a_repeated_submission_answers_the_stored_answer(world: World) -> None:
    first = submission(new_task(), idempotency_key="key", body_digest=b"body")
    again = submission(new_task(), idempotency_key="key", body_digest=b"body")
    answer = world.do(first)
    assert world.do(again) == answer
    other = submission(new_task(), idempotency_key="key", body_digest=b"another body")
    assert code(world.do(other)) is RefusalCode.IDEMPOTENCY_MISMATCH
    assert world.value("SELECT count(*) FROM tasks") == 1


def test_a_submission_repeated_within_a_group_is_done_once(world: World) -> None:
    first = submission(new_task(), idempotency_key="key", body_digest=b"body")
    again = submission(new_task(), idempotency_key="key", body_digest=b"body")
    other = submission(new_task(), idempotency_key="key", body_digest=b"another")
    answers = world.all(first, again, other)
    assert answers[0] == answers[1]
    assert code(answers[2]) is RefusalCode.IDEMPOTENCY_MISMATCH


def test_one_owners_idempotency_key_is_not_anothers(world: World) -> None:
    world.do(submission(new_task(), idempotency_key="key", body_digest=b"a"))
    answer = world.do(submission(new_task(), owner="another", idempotency_key="key", body_digest=b"b"))
    assert answer.tasks[0][1] is True


def test_a_task_with_a_taken_key_is_a_duplicate_of_the_holder(world: World) -> None:
    tasks = [new_task(dedupe_key="k"), new_task(dedupe_key="k"), new_task(dedupe_key="other")]
    answer = world.do(submission(*tasks))
    assert answer.tasks == ((tasks[0].id, True), (tasks[0].id, False), (tasks[2].id, True))
    again = world.do(submission(new_task(dedupe_key="k"), new_task(dedupe_key="k")))
    assert again.tasks == ((tasks[0].id, False), (tasks[0].id, False))
    assert world.do(submission(new_task(dedupe_key="k"), owner="another")).tasks[0][1] is True


def test_failed_and_cancelled_tasks_free_their_key(world: World) -> None:
    world.one(dedupe_key="k")
    (lease,) = world.claim(ALICE)
    world.fail(ALICE, lease, "http_4xx")
    second = new_task(dedupe_key="k")
    assert world.do(submission(second)).tasks == ((second.id, True),)
    assert code(world.replay(lease.task)[0]) is RefusalCode.WRONG_STATUS  # the second has the key now
    world.cancel(second.id)
    assert world.replay(lease.task) == [Status.PENDING]
    assert world.do(submission(new_task(dedupe_key="k"))).tasks == ((lease.task, False),)


def test_a_completed_tasks_key_holds_for_its_ttl(world: World) -> None:
    task = world.one(dedupe_key="k", dedupe_ttl_s=1000.0)
    (lease,) = world.claim(ALICE)
    world.complete(ALICE, lease)
    world.later(999.0)
    assert world.do(submission(new_task(dedupe_key="k"))).tasks == ((task, False),)
    world.later(1.0)
    assert world.do(submission(new_task(dedupe_key="k"))).tasks[0][1] is True


def test_a_job_is_joined_by_its_owner_alone(world: World) -> None:
    job = str(uuid6.uuid7())
    world.submit(new_task(), job=job, name="mine")
    world.submit(new_task(), job=job, job_named=True)
    view = world.reader.job(job)
    assert view is not None
    assert (view.total, view.name) == (2, "mine")
    stranger = submission(new_task(), owner="another", job=job, job_named=True)
    assert code(world.do(stranger)) is RefusalCode.NOT_FOUND
    nowhere = submission(new_task(), job_named=True)
    assert code(world.do(nowhere)) is RefusalCode.NOT_FOUND
