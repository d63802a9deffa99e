"""Which task is granted next, and how fast: tiers, ageing, the swarm's own pace, hosts that ask for a delay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from rendezvous.ledger.act_ops import TakeBack
from rendezvous.ledger.ops import LeaseRef, SetHostPace
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.policy.order import AGEING_S
from swarm.model import Refusal, RefusalCode, Status, TaskId
from tests.rendezvous.ledger_world import ALICE, BOB, CID, FAST, NOOP, World, check_consistency, new_task


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "ledger.sqlite")
    yield world
    check_consistency(world)
    world.close()


def refused(world: World, task: TaskId) -> Refusal:
    """Why a claim of this very task is refused; ``why`` must say the same."""
    refusal = world.turn(ALICE, offers=(task,), explain=True, partial=True).refused[task]
    ((_, why),) = world.reader.refusals(task, [(ALICE, NOOP)], now=world.now)
    assert why == refusal
    return refusal


def tiers_of(world: World, leases: list[LeaseRef]) -> Counter[str]:
    return Counter(world.task(lease.task).tier for lease in leases)


# ── tiers and age ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_tiers_with_work_share_seventy_to_thirty(world: World) -> None:
    world.submit(*(new_task(tier="bulk", priority=9) for _ in range(200)))
    world.submit(*(new_task(tier="interactive", priority=0) for _ in range(200)))
    assert tiers_of(world, world.claim(ALICE, 100)) == {"interactive": 70, "bulk": 30}
    one_by_one = [lease for _ in range(50) for lease in world.claim(BOB)]
    assert tiers_of(world, one_by_one) == {"interactive": 35, "bulk": 15}


def test_a_tier_alone_takes_all_there_is(world: World) -> None:
    world.submit(*(new_task(tier="bulk") for _ in range(20)))
    assert len(world.claim(ALICE, 20)) == 20


def test_an_interactive_task_is_next_however_much_bulk_waits(world: World) -> None:
    world.submit(*(new_task(tier="bulk", priority=9) for _ in range(500)))
    for _ in range(20):
        world.claim(ALICE, 5)
        task = world.one(tier="interactive", priority=0)
        assert [lease.task for lease in world.claim(BOB)] == [task]


def test_a_task_of_low_priority_passes_new_ones_of_high_priority_in_time(world: World) -> None:
    old = world.one(priority=0)
    world.later(9 * AGEING_S - 60)
    urgent = world.one(priority=9)
    world.later(120)
    world.one(priority=9)
    assert [lease.task for lease in world.claim(ALICE, 2)] == [urgent, old]


# ── the swarm's pace ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_whole_swarm_has_a_bucket_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.sqlite", attrs.evolve(FAST, swarm_rate_per_s=2.0, swarm_burst=3.0))
    tasks = world.submit(*(new_task(host=f"host{n}.test") for n in range(10)))
    assert len(world.claim(ALICE, 10)) == 3
    result = world.turn(BOB, want=5)
    assert result.granted == ()
    assert result.retry_after_s == pytest.approx(0.5)
    refusal = refused(world, tasks[9])
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.SWARM_PACED, pytest.approx(0.5))
    world.later(1.0)
    assert len(world.claim(BOB, 10)) == 2
    world.close()


def test_requeued_work_takes_tokens_like_any_other(tmp_path: Path) -> None:
    pace = LedgerSettings(host_rate_per_s=0.1, host_burst=2.0, swarm_rate_per_s=1.0, swarm_burst=50.0)
    world = World(tmp_path / "ledger.sqlite", pace)
    world.submit(new_task(), new_task())
    for _ in range(2):
        (lease,) = world.claim(ALICE)
        world.release(ALICE, lease)
    assert world.claim(ALICE) == []
    world.later(10.0)
    (lease,) = world.claim(ALICE)
    world.do(TakeBack(tasks=(lease.task,), who="olga"))
    assert world.claim(BOB) == []
    check_consistency(world)
    world.close()


def test_a_pace_of_the_swarm_that_is_changed_at_a_start_holds_at_once(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.sqlite", attrs.evolve(FAST, swarm_rate_per_s=2.0, swarm_burst=3.0))
    *_, last = world.submit(*(new_task() for _ in range(50)))
    world.claim(ALICE, 1)
    world.close()
    world.settings = attrs.evolve(FAST, swarm_rate_per_s=1.0, swarm_burst=1.0)
    world.open()
    assert len(world.claim(ALICE, 10)) == 1
    world.close()
    world.settings = FAST
    world.open()
    assert world.reader.refusals(last, [(ALICE, NOOP)], now=world.now) == [(ALICE, None)]
    assert len(world.claim(ALICE, 10)) == 10
    world.close()


# ── hosts that ask for a delay ────────────────────────────────────────────────────────────────────────────────────


def slow(world: World, delay_s: float = 2.0) -> None:
    world.do(SetHostPace(host="site.test", rate_per_s=1 / delay_s, burst=1.0, one_at_a_time=True))


def test_a_host_with_a_delay_has_one_unfinished_grant_and_the_next_a_delay_after_its_end(world: World) -> None:
    tasks = world.submit(*(new_task(priority=9) for _ in range(3)))
    other = world.one(host="other.test", priority=0)
    slow(world)
    (lease, elsewhere) = world.claim(ALICE, 5)
    assert (lease.task, elsewhere.task) == (tasks[0], other)
    world.later(50.0)
    assert world.claim(BOB, 5) == []
    refusal = refused(world, tasks[1])
    assert refusal.code is RefusalCode.HOST_BUSY
    assert "2 s between requests" in refusal.message
    assert world.complete(ALICE, lease) is Status.COMPLETED
    assert world.claim(BOB) == []
    assert refused(world, tasks[1]).code is RefusalCode.HOST_PACED
    assert world.reader.openings(world.now)[0] == pytest.approx(world.now + 2.0)
    world.later(1.9)
    assert world.claim(BOB) == []
    world.later(0.2)
    assert [lease.task for lease in world.claim(BOB, 5)] == [tasks[1]]


@pytest.mark.parametrize("end", ["complete", "fail", "release", "cancel", "expire", "take_back"])
def test_the_delay_begins_at_whatever_end_a_grant_has(world: World, end: str) -> None:
    first, second = world.submit(new_task(), new_task())
    slow(world, 20.0)
    (lease,) = world.claim(ALICE)
    world.later(10.0)
    if end == "complete":
        world.complete(ALICE, lease, cid=CID)
    elif end == "fail":
        world.fail(ALICE, lease, reason="http_4xx")
    elif end == "release":
        world.release(ALICE, lease)
    elif end == "cancel":
        world.cancel(first)
    elif end == "take_back":
        world.do(TakeBack(tasks=(first,), who="olga"))
    else:
        world.later(51.0)
    world.later(19.0)
    assert world.claim(BOB) == []
    world.later(2.0)
    assert [lease.task for lease in world.claim(BOB, 5)] in ([first], [second])


def test_a_host_that_turns_out_to_ask_for_a_delay_waits_for_what_is_under_way(world: World) -> None:
    world.submit(*(new_task() for _ in range(6)))
    leases = world.claim(ALICE, 3)
    slow(world)
    world.later(10.0)
    for lease in leases:
        assert world.claim(BOB) == []
        world.complete(ALICE, lease)
    world.later(2.1)
    assert len(world.claim(BOB, 3)) == 1


def test_a_task_that_expired_before_its_grant_doesnt_keep_a_slow_host_busy(world: World) -> None:
    _, second = world.submit(new_task(expires_in_s=5.0), new_task())
    slow(world)
    world.now += 6.0  # nobody swept yet
    assert world.claim(ALICE) == []
    world.later(2.1)
    assert [lease.task for lease in world.claim(ALICE)] == [second]


def test_a_host_that_asks_no_more_is_open_again(world: World) -> None:
    world.submit(*(new_task() for _ in range(3)))
    slow(world)
    world.claim(ALICE)
    world.do(SetHostPace(host="site.test", rate_per_s=0.0, burst=1.0))
    assert len(world.claim(BOB, 5)) == 2


def test_the_delay_outlives_the_process(world: World) -> None:
    world.submit(*(new_task() for _ in range(2)))
    slow(world)
    (lease,) = world.claim(ALICE)
    world.close()
    world.open()
    assert world.claim(BOB) == []
    world.complete(ALICE, lease)
    assert world.claim(BOB) == []
    world.later(2.1)
    assert len(world.claim(BOB)) == 1
