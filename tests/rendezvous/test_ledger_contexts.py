"""Profiles, sessions, hours and versions, in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from sqlalchemy import insert, select

from rendezvous.ledger.act_ops import Quarantine
from rendezvous.ledger.ops import DoneItem, FailedItem, TakeTurn
from rendezvous.ledger.tables import contexts, egress
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.contexts import MATURE_AFTER, MATURING_PACE_S, SESSION_KEPT_S, ProfileState
from rendezvous.policy.hours import parse_hours
from swarm.model import Refusal, RefusalCode, Status, TaskId
from swarm.wire import Requires
from tests.rendezvous.ledger_world import ALICE, BOB, CID, FAST, World, check_consistency, facts, new_task

OSAKA = Requires(profile="osaka")
BASKET = Requires(session="basket-7")
HAS_OSAKA = facts(labels=frozenset({"profile:osaka"}))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "ledger.sqlite")
    yield world
    check_consistency(world)
    world.close()


def code(world: World, worker: WorkerRef, task: TaskId, said: Any = HAS_OSAKA) -> RefusalCode | None:
    """Why a claim of this very task is refused; ``why`` must say the same."""
    refusal: Refusal | None = world.turn(
        worker, offers=(task,), explain=True, room=0, partial=True, facts=said
    ).refused.get(task)
    ((_, why),) = world.reader.refusals(task, [(worker, said)], now=world.now)
    assert why == refusal
    return None if refusal is None else refusal.code


def one_accepted(world: World, worker: WorkerRef) -> None:
    (lease,) = world.claim(worker, facts=HAS_OSAKA)
    assert world.complete(worker, lease, cid=CID) is Status.COMPLETED


def test_a_profile_belongs_to_the_first_worker_that_used_it(world: World) -> None:
    first, second = world.submit(new_task(requires=OSAKA), new_task(requires=OSAKA))
    assert world.claim(BOB) == []
    assert code(world, BOB, first, facts()) is RefusalCode.PROFILE
    one_accepted(world, ALICE)
    world.later(MATURING_PACE_S)
    assert code(world, BOB, second) is RefusalCode.PROFILE, "whatever it says it has"
    assert world.claim(BOB, facts=HAS_OSAKA) == []
    assert code(world, ALICE, second) is None
    (view,) = world.reader.profiles()
    assert (view.name, view.worker, view.state, view.accepted) == ("osaka", ALICE, ProfileState.MATURING, 1)


def test_two_workers_that_ask_at_once_dont_share_a_profile(world: World) -> None:
    world.submit(*(new_task(requires=OSAKA) for _ in range(2)))
    turns = [
        TakeTurn(worker=worker, boot="some-boot", facts=HAS_OSAKA, want=2, partial=True) for worker in (ALICE, BOB)
    ]
    alice, bob = world.all(*turns)
    assert (len(alice.granted), len(bob.granted)) == (1, 0)


def test_a_profile_matures_with_its_accepted_tasks(world: World) -> None:
    tasks = world.submit(*(new_task(requires=OSAKA) for _ in range(MATURE_AFTER + 5)))
    for number in range(MATURE_AFTER):
        one_accepted(world, ALICE)
        if number < MATURE_AFTER - 1:
            assert code(world, ALICE, tasks[-1]) is RefusalCode.PROFILE_MATURING
            world.later(MATURING_PACE_S)
    assert len(world.claim(ALICE, 5, facts=HAS_OSAKA)) == 5
    assert world.reader.profiles()[0].state is ProfileState.READY


def test_a_profile_is_retired_after_three_challenges_and_takes_nobody_along(world: World) -> None:
    tasks = world.submit(*(new_task(requires=OSAKA, max_attempts=9) for _ in range(4)))
    for _ in range(3):
        (lease,) = world.claim(ALICE, facts=HAS_OSAKA)
        world.fail(ALICE, lease, "blocked")
        world.later(max(MATURING_PACE_S, 61.0))
    assert code(world, ALICE, tasks[3]) is RefusalCode.PROFILE_RETIRED
    assert code(world, BOB, tasks[3]) is RefusalCode.PROFILE_RETIRED
    assert world.reader.profiles()[0].state is ProfileState.RETIRED
    world.one()
    assert len(world.claim(BOB, 5)) == 1


def test_what_is_requeued_from_a_profile_goes_nowhere_else(world: World) -> None:
    task = world.one(requires=OSAKA)
    world.claim(ALICE, facts=HAS_OSAKA)
    world.do(Quarantine(worker=ALICE, host="site.test", for_s=100.0, who="olga", why="a test"))
    assert world.task(task).status == Status.PENDING
    assert world.claim(BOB, facts=HAS_OSAKA) == []


def test_a_session_stays_with_the_worker_that_began_it(world: World) -> None:
    tasks = world.submit(*(new_task(requires=BASKET) for _ in range(4)))
    other = world.one(requires=Requires(session="basket-8"), priority=0)
    (lease,) = world.claim(ALICE)
    assert code(world, BOB, tasks[1], facts()) is RefusalCode.SESSION_ELSEWHERE
    assert [lease.task for lease in world.claim(BOB, 5)] == [other]
    world.complete(ALICE, lease, cid=CID)
    assert [lease.task for lease in world.claim(ALICE, 2)] == tasks[1:3]
    world.close()
    world.open()
    assert world.claim(BOB) == []
    world.later(3_600.0)
    assert code(world, BOB, tasks[3], facts()) is None, "a session that nobody used for an hour begins anew"


def test_sessions_that_are_over_and_networks_that_are_free_again_take_no_room(world: World) -> None:
    world.submit(*(new_task(requires=Requires(session=f"basket-{number}")) for number in range(50)))
    for lease in world.claim(ALICE, 50):
        world.complete(ALICE, lease, cid=CID)
    world.later(SESSION_KEPT_S - 60.0)
    world.submit(new_task(requires=OSAKA), new_task(requires=BASKET))
    assert len(world.claim(ALICE, 2, facts=HAS_OSAKA)) == 2
    with world.engine.begin() as connection:
        for prefix, until in (("192.0.2.0/24", world.now + 60.0), ("198.51.100.0/24", world.now + 600.0)):
            connection.execute(insert(egress).values(prefix=prefix, host=1, until=until, why="a test"))
    world.later(120.0)
    world.sweep()
    with world.reading.connect() as connection:
        assert set(connection.execute(select(contexts.c.name)).scalars()) == {"osaka", "basket-7"}
        assert connection.execute(select(egress.c.prefix)).scalars().all() == ["198.51.100.0/24"]


def test_a_region_outside_its_hours_is_granted_nothing(tmp_path: Path) -> None:
    # the world begins at 1,000,000 s: 13:46 UTC on 12 January 1970
    hours = dict([parse_hours("eu=+01:00,08:00-14:00"), parse_hours("us=-05:00,08:00-14:00")])
    world = World(tmp_path / "ledger.sqlite", attrs.evolve(FAST, region_hours=hours))
    task = world.one()
    assert code(world, ALICE, task, facts(region="eu")) is RefusalCode.OUTSIDE_HOURS
    assert world.claim(ALICE, facts=facts(region="eu")) == []
    assert code(world, ALICE, task, facts(region="us")) is None
    assert code(world, ALICE, task, facts()) is None
    world.later(18.5 * 3_600)
    assert len(world.claim(ALICE, facts=facts(region="eu"))) == 1
    world.close()


def test_how_tasks_came_out_is_kept_by_version(world: World) -> None:
    world.submit(*(new_task() for _ in range(6)))
    old, new = facts(versions={"worker": "0.1", "noop": "1"}), facts(versions={"worker": "0.2", "noop": "1"})
    for said, ends in ((old, ("done", "done", "failed")), (new, ("failed", "failed", "failed"))):
        for end in ends:
            (lease,) = world.claim(ALICE, facts=said)
            if end == "done":
                item = DoneItem(task=lease.task, fence=lease.fence, cid=CID, size_bytes=1)
                world.turn(ALICE, facts=said, partial=True, done=(item,))
            else:
                failed = FailedItem(task=lease.task, fence=lease.fence, reason="http_4xx")
                world.turn(ALICE, facts=said, partial=True, failed=(failed,))
    world.sweep()
    world.sweep()
    rates = [(rate.kind, rate.worker, rate.version, rate.done, rate.failed) for rate in world.reader.versions()]
    assert rates == [("noop", "0.1", "1", 2, 1), ("noop", "0.2", "1", 0, 3)]
    assert world.reader.versions()[0].success_rate == pytest.approx(2 / 3)


def test_a_worker_that_says_another_version_each_time_fills_no_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rendezvous.ledger.clock.VERSIONS_MOST", 3)
    honest = facts(versions={"worker": "0.1", "noop": "1"})
    world.submit(*(new_task() for _ in range(8)))

    def one_done(said: Any) -> None:
        (lease,) = world.claim(ALICE, facts=said)
        item = DoneItem(task=lease.task, fence=lease.fence, cid=CID, size_bytes=1)
        world.turn(ALICE, facts=said, partial=True, done=(item,))

    one_done(honest)
    world.sweep()
    for number in range(6):
        one_done(facts(versions={"worker": f"9.{number}", "noop": "1"}))
    one_done(honest)
    world.sweep()
    assert [(rate.worker, rate.done) for rate in world.reader.versions()] == [("0.1", 2), ("9.0", 1), ("9.1", 1)]
