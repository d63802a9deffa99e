"""What workers report of sites, quarantine by the count, networks, and how much a worker may hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
import pytest

from rendezvous.ledger.act_ops import KeepApart, Quarantine
from rendezvous.ledger.ops import DoneItem, FailedItem, HoldHost, LeaseRef, SetHostPace, TakeTurn
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.records import QUARANTINE_S
from swarm.model import Refusal, RefusalCode, Status, TaskId
from tests.rendezvous.ledger_world import ALICE, BOB, CAROL, CID, DAVE, FAST, World, check_consistency, facts, new_task

#: Each worker's network: alice and carol are neighbours.
HOME = {ALICE: "192.0.2.0/24", BOB: "198.51.100.0/24", CAROL: "192.0.2.0/24", DAVE: "203.0.113.0/24"}
OTHER = "other.test"


class Fleet:
    """Workers with their networks in a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def said(self, worker: WorkerRef) -> dict[str, Any]:
        return {"facts": facts(prefix=HOME[worker]), "partial": True}

    def claim(self, worker: WorkerRef, want: int = 1) -> list[LeaseRef]:
        return self.world.claim(worker, want, **self.said(worker))

    def fail(self, worker: WorkerRef, lease: LeaseRef, **item: Any) -> Any:
        return self.world.fail(worker, lease, item.pop("reason", "blocked"), **item)

    def prove(self, *workers: WorkerRef) -> None:
        """Have some work of theirs accepted."""
        for worker in workers:
            self.world.one(host="proof.test", priority=9)
            (lease,) = self.claim(worker)
            assert self.world.complete(worker, lease, cid=CID) is Status.COMPLETED

    def refusal(self, worker: WorkerRef, task: TaskId) -> Refusal | None:
        """Why a claim of this very task is refused; ``why`` must say the same. Nothing is granted for good."""
        result = self.world.turn(worker, offers=(task,), explain=True, **self.said(worker))
        for grant in result.granted:
            self.world.release(worker, LeaseRef(grant.task.id, grant.fence))
        refusal = result.refused.get(task)
        others = [(other, facts(prefix=HOME[other])) for other in HOME]
        why = dict(self.world.reader.refusals(task, others, now=self.world.now))[worker]
        if refusal is not None:
            assert why == refusal
        return refusal

    def code(self, worker: WorkerRef, task: TaskId) -> RefusalCode | None:
        refusal = self.refusal(worker, task)
        return None if refusal is None else refusal.code

    def turn_away(self, worker: WorkerRef, times: int = 3, **item: Any) -> None:
        """Have a site turn a worker away so often, one after the other."""
        for _ in range(times):
            (lease,) = self.claim(worker)
            self.fail(worker, lease, **item)
            self.world.later(61.0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "ledger.sqlite")
    yield world
    check_consistency(world)
    world.close()


@pytest.fixture
def fleet(world: World) -> Fleet:
    return Fleet(world)


# ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_report_keeps_its_own_worker_off_that_host_and_nobody_else_off_anything(fleet: Fleet) -> None:
    task = fleet.world.submit(*(new_task() for _ in range(3)))[2]
    elsewhere = fleet.world.one(host=OTHER)
    (lease,) = fleet.claim(ALICE)
    fleet.fail(ALICE, lease, detail="HTTP 429", retry_after_s=300.0)
    refusal = fleet.refusal(ALICE, task)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.COOLING_OFF, 300.0)
    assert "HTTP 429" in refusal.message
    assert fleet.code(ALICE, elsewhere) is None
    assert fleet.code(BOB, task) is None
    fleet.world.later(301.0)
    assert fleet.code(ALICE, task) is None


def test_a_liar_with_an_absurd_retry_after_slows_nobody_but_itself(fleet: Fleet) -> None:
    tasks = fleet.world.submit(*(new_task() for _ in range(21)))
    (lease,) = fleet.claim(ALICE)
    fleet.fail(ALICE, lease, retry_after_s=1e9)
    assert (fleet.world.task(lease.task).not_before or 0.0) - fleet.world.now <= 60.0, "the task waits as for a block"
    assert len(fleet.claim(BOB, 19)) == 19
    assert fleet.code(ALICE, tasks[20]) is RefusalCode.COOLING_OFF
    assert fleet.world.reader.openings(fleet.world.now) == (None, 0)
    fleet.world.later(3_601.0)
    assert fleet.code(ALICE, tasks[20]) is None


def test_a_host_rests_for_all_when_a_worker_of_another_network_agrees(fleet: Fleet) -> None:
    tasks = fleet.world.submit(*(new_task() for _ in range(5)))
    leases = {worker: fleet.claim(worker)[0] for worker in (ALICE, CAROL, BOB)}
    fleet.fail(ALICE, leases[ALICE], retry_after_s=500.0)
    fleet.fail(CAROL, leases[CAROL], retry_after_s=500.0)
    assert fleet.code(DAVE, tasks[4]) is None, "two of one network are one voice"
    fleet.fail(BOB, leases[BOB], retry_after_s=200.0)
    refusal = fleet.refusal(DAVE, tasks[4])
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.HOST_HELD, 200.0)
    assert "different networks" in refusal.message
    fleet.world.later(201.0)
    assert fleet.code(DAVE, tasks[4]) is None


# ── quarantine by the count ───────────────────────────────────────────────────────────────────────────────────────


def test_the_count_puts_a_worker_in_quarantine_and_its_work_goes_back(fleet: Fleet) -> None:
    fleet.world.submit(*(new_task() for _ in range(5)))
    elsewhere = fleet.world.one(host=OTHER, priority=0)
    fleet.prove(ALICE, BOB)
    fleet.turn_away(ALICE, times=2)
    leases = fleet.claim(ALICE, 6)
    held = [lease for lease in leases if lease.task != elsewhere]
    fleet.fail(ALICE, held[0])
    for lease in held[1:]:
        assert fleet.world.task(lease.task).status == Status.PENDING
        history = fleet.world.reader.history(lease.task)
        assert (history[-1].move, history[-1].by) == ("quarantined", "ledger")
        assert fleet.fail(ALICE, lease, reason="timeout").code is RefusalCode.LEASE_EXPIRED
    assert fleet.world.task(elsewhere).status == Status.ACTIVE
    refusal = fleet.refusal(ALICE, held[1].task)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.QUARANTINED, QUARANTINE_S)
    (act,) = fleet.world.reader.acts()
    assert (act.who, act.act) == ("policy", "quarantined")
    (view,) = fleet.world.reader.quarantines(now=fleet.world.now)
    assert (view.worker, view.host, view.who) == (ALICE, "site.test", None)
    fleet.world.later(QUARANTINE_S + 1)
    assert fleet.world.reader.quarantines(now=fleet.world.now) == []


def test_what_a_turn_ends_beside_the_last_straw_ends_as_it_says_and_the_rest_goes_back(fleet: Fleet) -> None:
    fleet.world.submit(*(new_task(max_attempts=9) for _ in range(6)))
    fleet.turn_away(ALICE, times=2)
    blocked, failed, done, kept = fleet.claim(ALICE, 4)
    turn = TakeTurn(
        worker=ALICE,
        boot=f"boot-of-{ALICE.instance}",
        facts=facts(prefix=HOME[ALICE]),
        done=(DoneItem(task=done.task, fence=done.fence, cid=CID, size_bytes=1),),
        failed=(
            FailedItem(task=blocked.task, fence=blocked.fence, reason="blocked"),
            FailedItem(task=failed.task, fence=failed.fence, reason="http_4xx"),
        ),
    )
    first, again = fleet.world.all(turn, turn)
    outcomes = [Status.COMPLETED, Status.WAITING, Status.FAILED]
    assert [ended.outcome for ended in first.ended] == outcomes
    assert [ended.outcome for ended in again.ended] == outcomes, "said twice within a group, answered alike"
    assert first.granted == again.granted == (), "what isn't held is sent again, but not what was just taken back"
    assert fleet.world.task(kept.task).status == Status.PENDING
    assert fleet.world.moves(kept.task)[-1] == "quarantined"


def test_an_agreed_rest_doesnt_shorten_a_longer_one(fleet: Fleet) -> None:
    fleet.world.submit(new_task(), new_task(), new_task())
    leases = {worker: fleet.claim(worker)[0] for worker in (ALICE, BOB)}
    fleet.world.do(HoldHost(host="site.test", for_s=2_000.0, why="its robots.txt can't be read (timeout)"))
    for worker, lease in leases.items():
        fleet.fail(worker, lease, retry_after_s=100.0)
    assert fleet.world.reader.openings(fleet.world.now)[0] == fleet.world.now + 2_000.0


def test_a_burst_of_what_was_under_way_counts_once(fleet: Fleet) -> None:
    fleet.world.submit(*(new_task() for _ in range(9)))
    for lease in fleet.claim(ALICE, 8):
        fleet.fail(ALICE, lease)
    assert fleet.world.reader.quarantines(now=fleet.world.now) == []


def test_work_from_a_quarantine_never_goes_to_the_same_or_a_brand_new_worker(fleet: Fleet) -> None:
    fleet.prove(ALICE, BOB)
    task = fleet.world.one()
    fleet.claim(ALICE)
    fleet.world.do(Quarantine(worker=ALICE, host="site.test", for_s=1.0, who="olga", why="a test"))
    fleet.world.later(2.0)
    assert fleet.code(ALICE, task) is RefusalCode.PASSED_OVER, "not even when its quarantine is over"
    assert fleet.code(DAVE, task) is RefusalCode.NEWCOMER
    assert fleet.claim(DAVE) == []
    assert fleet.claim(ALICE) == []
    assert [lease.task for lease in fleet.claim(BOB)] == [task]


def test_work_from_a_quarantine_goes_by_preference_to_a_clean_record(fleet: Fleet) -> None:
    fleet.prove(ALICE, BOB, DAVE)
    fleet.world.one()
    fleet.turn_away(BOB, times=1)
    fleet.world.later(10.0)
    task = fleet.world.one(priority=9)
    (lease,) = fleet.claim(ALICE)
    assert lease.task == task
    fleet.world.do(Quarantine(worker=ALICE, host="site.test", for_s=600.0, who="olga", why="a test"))
    fleet.claim(DAVE, 0)
    assert fleet.code(BOB, task) is RefusalCode.PASSED_OVER
    others = [lease.task for lease in fleet.claim(BOB, 5)]
    assert task not in others
    fleet.world.later(40.0)  # dave is silent by now
    assert task in [lease.task for lease in fleet.claim(BOB, 5)]


def test_a_fleet_of_newcomers_isnt_stuck_for_good(fleet: Fleet) -> None:
    task = fleet.world.one()
    fleet.claim(ALICE)
    fleet.world.do(Quarantine(worker=ALICE, host="site.test", for_s=600.0, who="olga", why="a test"))
    assert fleet.claim(BOB) == []
    fleet.world.later(3_601.0)
    assert [lease.task for lease in fleet.claim(BOB)] == [task]


def test_quarantines_of_those_who_took_over_are_counted_apart(fleet: Fleet) -> None:
    fleet.prove(ALICE, BOB)
    fleet.world.submit(*(new_task(max_attempts=9) for _ in range(2)))
    fleet.turn_away(ALICE, times=2)
    leases = fleet.claim(ALICE, 2)
    fleet.fail(ALICE, leases[0])
    counts = fleet.world.reader.quarantine_counts()
    assert (counts.counted, counts.second_order) == (1, 0)
    fleet.world.later(61.0)
    fleet.turn_away(BOB, times=3)
    counts = fleet.world.reader.quarantine_counts()
    assert (counts.counted, counts.second_order) == (2, 1)


@pytest.mark.parametrize("agreed", [True, False])
def test_a_quarantine_raises_nobody_elses_rate_and_the_word_of_one_worker_slows_nobody(
    tmp_path: Path, agreed: bool
) -> None:
    world = World(tmp_path / "ledger.sqlite", attrs.evolve(FAST, host_rate_per_s=1.0, host_burst=4.0))
    fleet = Fleet(world)
    world.submit(*(new_task(max_attempts=9) for _ in range(400)))

    def each_gets(seconds: int, *workers: WorkerRef) -> list[int]:
        got = [0 for _ in workers]
        for _ in range(seconds):
            world.later(1.0)
            for index, worker in enumerate(workers):
                for lease in fleet.claim(worker, 1):
                    got[index] += 1
                    world.complete(worker, lease, cid=CID)
        return got

    for worker in (ALICE, BOB, CAROL, DAVE):
        fleet.claim(worker)
    before = sum(each_gets(60, ALICE, BOB, CAROL, DAVE))
    for _ in range(3):
        world.later(61.0)
        (lease,) = fleet.claim(ALICE)
        fleet.claim(BOB), fleet.claim(CAROL)
        (others,) = fleet.claim(DAVE)
        if agreed:
            fleet.fail(DAVE, others)
        fleet.fail(ALICE, lease)
    assert ALICE in {each.worker for each in fleet.world.reader.quarantines(now=world.now)}
    world.later(61.0)
    fleet.claim(BOB, 9)
    after = sum(each_gets(60, BOB, CAROL))
    assert after <= before * 3 / 4 + 2 if agreed else after >= before - 2
    world.close()


# ── networks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_network_is_flagged_when_several_of_its_workers_are_in_quarantine(fleet: Fleet) -> None:
    fleet.prove(ALICE, CAROL, BOB)
    task = fleet.world.submit(*(new_task(max_attempts=20) for _ in range(9)))[-1]
    fleet.turn_away(ALICE)
    neighbour = WorkerRef("0x" + "e" * 40, "newly-there")
    moved = {neighbour: HOME[ALICE]}
    with patch.dict(HOME, moved):
        assert fleet.code(neighbour, task) is None, "one worker is no network"
        fleet.turn_away(CAROL)
        assert fleet.code(neighbour, task) is RefusalCode.EGRESS_FLAGGED
        assert fleet.claim(neighbour) == []
        assert fleet.code(BOB, task) is None
    with patch.dict(HOME, {neighbour: HOME[BOB], ALICE: HOME[BOB]}):
        assert fleet.code(neighbour, task) is None, "it is the network that is flagged"
        assert fleet.code(ALICE, task) is RefusalCode.QUARANTINED, "and the worker stays so wherever it goes"


def test_no_two_workers_of_a_network_hold_tasks_of_a_host_where_they_are_kept_apart(fleet: Fleet) -> None:
    tasks = fleet.world.submit(*(new_task() for _ in range(6)))
    elsewhere = fleet.world.one(host=OTHER, priority=0)
    fleet.world.do(KeepApart(host="site.test", who="olga", why="its owner asked"))
    alice, carol, bob = fleet.world.all(
        *(TakeTurn(worker=worker, boot="some-boot", want=1, **fleet.said(worker)) for worker in (ALICE, CAROL, BOB))
    )
    assert [grant.task.id for grant in alice.granted] == [tasks[0]]
    assert [grant.task.id for grant in carol.granted] == [elsewhere]
    assert [grant.task.id for grant in bob.granted] == [tasks[1]]
    assert fleet.code(CAROL, tasks[2]) is RefusalCode.PREFIX_TAKEN
    assert fleet.code(ALICE, tasks[2]) is None, "the one that is there may have more"
    fleet.world.release(ALICE, LeaseRef(tasks[0], alice.granted[0].fence))
    assert fleet.code(CAROL, tasks[2]) is None
    fleet.world.do(KeepApart(host="site.test", apart=False, who="olga"))
    assert len(fleet.claim(ALICE) + fleet.claim(CAROL)) == 2
    assert [act.act for act in fleet.world.reader.acts()] == ["let_together", "kept_apart"]


# ── how much a worker may hold ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Fleet]:
    world = World(tmp_path / "strict.sqlite", LedgerSettings(host_rate_per_s=0))
    yield Fleet(world)
    check_consistency(world)
    world.close()


def test_a_newcomer_holds_sixteen_and_more_with_each_accepted_piece(strict: Fleet) -> None:
    tasks = strict.world.submit(*(new_task() for _ in range(200)))
    leases = strict.claim(ALICE, 100)
    assert len(leases) == 16
    assert strict.code(ALICE, tasks[50]) is RefusalCode.CLAIM_BUDGET
    assert strict.code(BOB, tasks[50]) is None
    for lease in leases:
        strict.world.complete(ALICE, lease, cid=CID)
    assert len(strict.claim(ALICE, 100)) == 32
    assert len(strict.claim(ALICE, 100)) == 0


def test_a_budget_holds_for_whole_turns_and_within_a_group(strict: Fleet) -> None:
    strict.world.submit(*(new_task() for _ in range(100)))
    turn = TakeTurn(worker=ALICE, boot="some-boot", facts=facts(prefix=HOME[ALICE]), want=10)
    first, second = strict.world.all(turn, turn)
    assert len(first.granted) + len(second.granted) == 16


def test_leases_that_run_out_halve_the_budget_once_and_it_outlives_the_process(strict: Fleet) -> None:
    strict.world.submit(*(new_task(max_attempts=20) for _ in range(100)))
    assert len(strict.claim(ALICE, 100)) == 16
    strict.world.later(61.0)
    strict.world.close()
    strict.world.open()
    assert len(strict.claim(ALICE, 100)) == 8
    strict.world.later(61.0)
    leases = strict.claim(ALICE, 100)
    assert len(leases) == 4
    for lease in leases:
        strict.world.complete(ALICE, lease, cid=CID)
    assert len(strict.claim(ALICE, 100)) == 8


def test_a_worker_that_very_many_sites_turn_away_gets_nothing_for_a_while(fleet: Fleet) -> None:
    for number in range(100):
        fleet.world.one(host=f"host{number}.test")
    good = fleet.world.one(host="good.test", priority=0)
    for lease in fleet.claim(ALICE, 100):
        fleet.fail(ALICE, lease)
    refusal = fleet.refusal(ALICE, good)
    assert refusal is not None
    assert refusal.code is RefusalCode.QUARANTINED
    assert "100 sites" in refusal.message
    assert fleet.claim(ALICE) == []
    assert fleet.code(BOB, good) is None
    fleet.world.later(61.0)
    assert fleet.code(ALICE, good) is None


def test_a_pace_that_is_set_anew_keeps_what_a_quarantine_left_of_it(fleet: Fleet) -> None:
    fleet.world.one()
    fleet.world.do(SetHostPace(host="site.test", rate_per_s=5.0, burst=1.0))
    assert fleet.world.value("SELECT share FROM hosts WHERE host = 'site.test'") is None
