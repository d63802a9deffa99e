"""Hosts that keep their tasks for long leave half of each worker's slots to the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from rendezvous.ledger import slowness
from rendezvous.ledger.act_ops import Pause, Resume
from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.ops import FailedItem, LeaseRef, SetHostPace
from rendezvous.ledger.statements import Statements
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from rendezvous.ledger.writer import open_writer
from rendezvous.policy.pauses import Scope
from rendezvous.policy.slowness import SLOW_FOR_S, SLOW_S
from swarm.model import Refusal, RefusalCode, TaskId
from tests.postgres import Postgres
from tests.rendezvous.ledger_world import ALICE, BOB, CAROL, World, check_consistency, facts, new_task

EIGHT = facts(slots=8)


@pytest.fixture
def world(database: str) -> Iterator[World]:
    world = World(database)
    yield world
    check_consistency(world)
    world.close()


def ask(world: World, worker: WorkerRef, held: Sequence[LeaseRef] = (), said: WorkerFacts = EIGHT) -> list[LeaseRef]:
    """A whole turn of a worker that asks for all its free slots; what it holds then."""
    turn = world.turn(worker, facts=said, held=tuple(held), renew=tuple(held), want=said.slots - len(held))
    return [*held, *(LeaseRef(grant.task.id, grant.fence) for grant in turn.granted)]


def hosts_of(world: World, leases: Sequence[LeaseRef]) -> Counter[str]:
    return Counter(world.task(lease.task).host for lease in leases)


def submit(world: World, host: str, tasks: int = 40) -> list[TaskId]:
    return world.submit(*(new_task(host=host) for _ in range(tasks)))


def find_slow(world: World, worker: WorkerRef = CAROL) -> list[LeaseRef]:
    """Let a worker hold eight tasks of a host for long."""
    held = ask(world, worker)
    world.later(SLOW_S + 1)
    return ask(world, worker, held)


def fail_all(world: World, worker: WorkerRef, leases: Sequence[LeaseRef]) -> None:
    """Say that these failed in a way that isn't tried again."""
    failed = tuple(FailedItem(task=lease.task, fence=lease.fence, reason="tls") for lease in leases)
    world.turn(worker, facts=EIGHT, failed=failed)


def test_a_slow_host_gets_half_of_a_workers_slots_while_another_host_has_work(world: World) -> None:
    submit(world, "slow.test")
    find_slow(world)
    submit(world, "fast.test", 20)
    alice = ask(world, ALICE)
    assert hosts_of(world, alice) == {"slow.test": 4, "fast.test": 4}
    fail_all(world, ALICE, [lease for lease in alice if world.task(lease.task).host == "fast.test"])
    alice = [lease for lease in alice if world.task(lease.task).host == "slow.test"]
    assert hosts_of(world, ask(world, ALICE, alice)) == {"slow.test": 4, "fast.test": 4}


def test_it_gets_them_all_where_no_other_host_has_work_that_the_worker_may_have(world: World) -> None:
    submit(world, "slow.test")
    find_slow(world)
    world.submit(*(new_task(host="fast.test", kind="another") for _ in range(5)))
    assert hosts_of(world, ask(world, ALICE)) == {"slow.test": 8}


def test_slots_are_kept_for_a_host_that_opens_soon_and_not_for_one_that_doesnt(world: World) -> None:
    submit(world, "slow.test")
    find_slow(world)
    world.do(SetHostPace(host="fast.test", rate_per_s=0.5, burst=1.0))
    submit(world, "fast.test", 5)
    alice = ask(world, ALICE)
    assert hosts_of(world, alice) == {"slow.test": 4, "fast.test": 1}
    world.do(Pause(scope=Scope.HOST, name="fast.test", who="operator", why="its owner asked"))
    world.later(slowness.BELIEVED_S + 0.1)
    assert hosts_of(world, ask(world, ALICE, alice)) == {"slow.test": 7, "fast.test": 1}
    world.do(Resume(scope=Scope.HOST, name="fast.test", who="operator", why=""))


def test_several_slow_hosts_share_the_half(world: World) -> None:
    hosts = [f"slow-{number}.test" for number in range(3)]
    for number, host in enumerate(hosts):
        submit(world, host, 8)
        find_slow(world, WorkerRef(CAROL.address, f"carol-{number}"))
    for host in hosts:
        submit(world, host, 3)
    submit(world, "fast.test", 20)
    assert hosts_of(world, ask(world, ALICE)) == {"slow-0.test": 3, "slow-1.test": 1, "fast.test": 4}


def test_the_refusal_says_so_and_why_says_the_same(world: World) -> None:
    tasks = submit(world, "slow.test")
    find_slow(world)
    submit(world, "fast.test", 20)
    alice = ask(world, ALICE)
    pending = next(task for task in reversed(tasks) if world.task(task).status == "pending")
    refusal = world.turn(ALICE, facts=EIGHT, offers=(pending,), explain=True, partial=True).refused[pending]
    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.HOST_SLOW
    why: dict[WorkerRef, Refusal | None] = dict(
        world.reader.refusals(pending, [(ALICE, EIGHT), (BOB, EIGHT)], now=world.now)
    )
    assert why == {ALICE: refusal, BOB: None}
    assert len(alice) == 8


def test_a_host_whose_tasks_come_back_at_once_is_never_slow_whatever_one_of_them_does(world: World) -> None:
    submit(world, "site.test", 80)
    stuck, *quick = ask(world, ALICE)
    fail_all(world, ALICE, quick)
    for _ in range(5):
        world.later(SLOW_S + 1)
        held = ask(world, ALICE, [stuck])
        fail_all(world, ALICE, [lease for lease in held if lease != stuck])
    assert world.value("SELECT count(*) FROM hosts WHERE slow_until IS NOT NULL") == 0


def test_a_slow_host_stays_slow_while_its_tasks_are_held_and_not_much_longer(world: World) -> None:
    submit(world, "slow.test", 60)
    held = find_slow(world)
    submit(world, "fast.test", 60)
    for _ in range(8):
        world.later(20.0)
        held = ask(world, CAROL, held)
    assert hosts_of(world, ask(world, ALICE)) == {"slow.test": 4, "fast.test": 4}
    fail_all(world, CAROL, held)
    world.later(SLOW_FOR_S + 1)
    assert hosts_of(world, ask(world, BOB))["slow.test"] > 4


def test_another_root_and_the_next_start_go_by_what_was_found(database: str) -> None:
    one = World(database)
    submit(one, "slow.test")
    find_slow(one)
    submit(one, "fast.test", 20)
    other = World(database)
    other.now = one.now
    assert hosts_of(other, ask(other, ALICE)) == {"slow.test": 4, "fast.test": 4}
    other.close()
    one.close()


def test_a_host_is_found_slow_however_many_others_had_a_slow_task_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slowness, "HOSTS_MOST", 3)
    for number in range(4):
        submit(world, f"once-{number}.test", 1)
        find_slow(world, WorkerRef(CAROL.address, f"carol-{number}"))
    submit(world, "slow.test")
    find_slow(world, BOB)
    assert world.value("SELECT count(*) FROM hosts WHERE slow_until IS NOT NULL") == 1


def test_the_server_looks_for_other_work_at_one_lane_of_a_demand_and_not_at_all(postgres: Postgres) -> None:
    url = postgres.new_database()
    world = World(url)
    world.submit(*(new_task(host=f"host-{number}.test") for number in range(300)))
    engine = open_engine(url)
    looking = Statements(engine.dialect).other_work
    writer = open_writer(engine)
    writer.begin()
    with writer._pooled.driver_connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN ANALYZE {looking.sql}", looking.bind((world.now + 10.0, world.now)))
        plan = [line for (line,) in cursor.fetchall()]
    read = [int(rows) * int(loops) for rows, loops in re.findall(r"actual time=\S+ rows=(\d+) loops=(\d+)", str(plan))]
    assert max(read) < 10, "\n".join(plan)
    writer.close()
    engine.dispose()
    world.close()
    postgres.drop(url)


def test_a_host_that_answers_again_isnt_slow_any_more(world: World) -> None:
    marked = "SELECT count(*) FROM hosts WHERE slow_until IS NOT NULL"
    submit(world, "fast.test", 60)
    held = find_slow(world)  # a machine's bad moment
    assert world.value(marked) == 1
    fail_all(world, CAROL, held)
    fail_all(world, CAROL, ask(world, CAROL))
    assert world.value(marked) == 0
