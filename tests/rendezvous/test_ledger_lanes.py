"""Hosts, pacing and lanes: what can't be granted stands before nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rendezvous.ledger.act_ops import Quarantine
from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.migrate import migrate
from rendezvous.ledger.ops import HoldHost, SetHostPace, TakeTurn
from rendezvous.ledger.picker import Picker
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.statements import Statements
from swarm.model import RefusalCode, Status
from swarm.wire import Requires
from tests.rendezvous.ledger_world import ALICE, BOB, FAST, NOOP, World, check_consistency, facts, new_task


@pytest.fixture
def world(database: str) -> Iterator[World]:
    world = World(database, LedgerSettings())
    yield world
    check_consistency(world)
    world.close()


def test_a_host_gives_its_burst_and_then_one_a_second(world: World) -> None:
    world.submit(*(new_task() for _ in range(10)))
    assert len(world.claim(ALICE, want=10)) == 5
    assert world.claim(BOB, want=10) == []
    world.now += 1.0
    assert len(world.claim(BOB, want=10)) == 1
    world.now += 2.5
    assert len(world.claim(BOB, want=10)) == 2
    world.now += 0.5
    assert len(world.claim(BOB, want=10)) == 1


def test_two_turns_of_one_group_share_a_hosts_bucket(world: World) -> None:
    world.submit(*(new_task() for _ in range(10)))
    turns = [TakeTurn(worker=worker, boot="boot-boot", facts=NOOP, want=4) for worker in (ALICE, BOB)]
    assert [len(result.granted) for result in world.all(*turns)] == [4, 1]


def test_requeued_work_takes_tokens_like_any_other(world: World) -> None:
    world.submit(*(new_task() for _ in range(5)))
    for lease in world.claim(ALICE, want=5):
        world.release(ALICE, lease)
    assert world.claim(BOB, want=5) == []


def test_a_grant_that_is_sent_again_takes_no_token(world: World) -> None:
    world.submit(*(new_task() for _ in range(5)))
    for _ in range(3):
        assert len(world.turn(ALICE, want=5).granted) == 5


def test_a_paced_host_stands_before_no_other(world: World) -> None:
    world.submit(*(new_task(host="busy.test", priority=9) for _ in range(20)))
    calm = world.one(host="calm.test", priority=0)
    assert len(world.claim(ALICE, want=5)) == 5
    assert [lease.task for lease in world.claim(ALICE, want=5)] == [calm]


def test_an_offer_of_a_paced_host_says_when_to_ask_again(world: World) -> None:
    tasks = world.submit(*(new_task() for _ in range(6)))
    world.claim(ALICE, want=5)
    refused = world.turn(BOB, offers=(tasks[5],), explain=True).refused[tasks[5]]
    assert refused.code is RefusalCode.HOST_PACED
    assert refused.retry_after_s == pytest.approx(1.0)
    world.now += refused.retry_after_s or 0.0
    assert len(world.claim(BOB, want=0, offers=(tasks[5],))) == 1


def test_a_held_host_gives_nothing_until_its_time(world: World) -> None:
    world.do(HoldHost(host="site.test", for_s=30.0, why="its robots.txt can't be read"))
    task = world.one()
    assert world.claim(ALICE) == []
    (found,) = world.reader.refusals(task, [(ALICE, NOOP)], now=world.now)
    assert found[1] is not None
    assert found[1].code is RefusalCode.HOST_HELD
    world.now += 30.0
    assert [lease.task for lease in world.claim(ALICE)] == [task]


def test_a_hold_can_be_lifted(world: World) -> None:
    world.one()
    world.do(HoldHost(host="site.test", for_s=300.0, why="a mistake"))
    assert world.claim(ALICE) == []
    world.do(HoldHost(host="site.test", for_s=0.0, why=""))
    assert len(world.claim(ALICE)) == 1


def test_a_crawl_delay_slows_a_host_and_a_lifted_pace_frees_it(world: World) -> None:
    world.submit(*(new_task() for _ in range(30)))
    world.do(SetHostPace(host="site.test", rate_per_s=0.1, burst=1.0))
    assert len(world.claim(ALICE, want=9)) == 1
    world.now += 9.0
    assert world.claim(ALICE, want=9) == []
    world.now += 1.0
    assert len(world.claim(ALICE, want=9)) == 1
    world.do(SetHostPace(host="site.test", rate_per_s=0.0, burst=1.0))
    assert len(world.claim(ALICE, want=9)) == 9


def test_a_worker_gets_what_it_meets_and_the_rest_waits_for_others(world: World) -> None:
    world.do(SetHostPace(host="site.test", rate_per_s=0.0, burst=1.0))
    other_kind = world.one(kind="fetch", priority=9)
    eu = world.one(requires=Requires(region="eu"), priority=8)
    labelled = world.one(requires=Requires(labels=("gpu",)), priority=7)
    plain = world.one(priority=1)

    assert [lease.task for lease in world.claim(ALICE, want=9)] == [plain]
    refusals = dict(world.reader.refusals(eu, [(ALICE, NOOP), (BOB, facts(region="eu"))], now=world.now))
    assert refusals[ALICE].code is RefusalCode.REQUIRES_UNMET
    assert refusals[BOB] is None
    everything = facts(kinds=frozenset({"noop", "fetch"}), region="eu", labels=frozenset({"gpu"}))
    assert [lease.task for lease in world.claim(BOB, want=9, facts=everything)] == [other_kind, eu, labelled]


def test_what_a_worker_may_not_have_is_looked_at_once_a_turn_and_left_to_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    barred = [f"barred{number}.test" for number in range(20)]
    for host in barred:
        world.do(Quarantine(worker=ALICE, host=host, for_s=600.0, who="olga", why="a test"))
    world.submit(*(new_task(host=host, priority=9) for host in barred), *(new_task() for _ in range(5)))
    looked_at: list[int] = []
    passes = Picker._passes

    def counting(self: Picker, turn: Any, demand: int, host: int) -> bool:
        looked_at.append(host)
        return passes(self, turn, demand, host)

    monkeypatch.setattr(Picker, "_passes", counting)
    assert len(world.claim(ALICE, want=5)) == 5
    assert len(looked_at) == 20 + 5
    turns = (TakeTurn(worker=who, boot="boot-boot", facts=NOOP, want=9, partial=True) for who in (ALICE, BOB))
    mine, others = (result.granted for result in world.all(*turns))
    assert (mine, [grant.host for grant in others]) == ((), barred[:9])


def test_a_failed_or_cancelled_head_makes_way(world: World) -> None:
    first, second, third = world.submit(*(new_task() for _ in range(3)))
    world.cancel(first)
    assert [lease.task for lease in world.claim(ALICE)] == [second]
    world.later(1.0)
    assert [lease.task for lease in world.claim(ALICE)] == [third]


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def steps_of_a_claim(world: World, *, claims: int = 20) -> int:
    """SQLite's own steps of the middle one of single claims: a cost that no other load on the machine changes.

    Each claim is given back, so that the ledger stays as it was.
    """
    counted = []
    world.claim(BOB, want=0)
    connection = world.core._connection._pooled.dbapi_connection
    for _ in range(claims):
        steps = [0]

        def count(steps: list[int] = steps) -> int:
            steps[0] += 1
            return 0

        connection.set_progress_handler(count, 1)
        leases = world.claim(ALICE)
        connection.set_progress_handler(None, 0)
        counted.append(steps[0])
        assert len(leases) == 1
        assert world.release(ALICE, leases[0]) is Status.PENDING
    return sorted(counted)[len(counted) // 2]


@pytest.mark.parametrize("what", ["one host", "many hosts", "blocked hosts before", "a foreign kind before"])
def test_a_claim_costs_the_same_with_many_pending(tmp_path: Path, what: str) -> None:
    steps = []
    for pending in (200, 6_000):
        world = World(tmp_path / f"{pending}.sqlite", FAST)
        blocked = [f"blocked{n}.test" for n in range(50)] if what == "blocked hosts before" else []
        world.all(*(HoldHost(host=host, for_s=1e6, why="a test") for host in blocked))
        for first in range(0, pending, 1000):
            world.submit(*(crowd(what, n, blocked) for n in range(first, min(first + 1000, pending))))
        world.submit(*(new_task(host=f"free{n}.test", priority=1) for n in range(5)))
        steps.append(steps_of_a_claim(world))
        world.close()
    assert steps[1] < 1.2 * steps[0], steps


def crowd(what: str, n: int, blocked: list[str]) -> Any:
    if what == "many hosts":
        return new_task(host=f"host{n}.test")
    if blocked:
        return new_task(host=blocked[n % len(blocked)], priority=9)
    if what == "a foreign kind before":
        return new_task(kind="fetch", priority=9)
    return new_task()


def test_no_statement_of_a_claim_scans_a_table(tmp_path: Path) -> None:
    """What is read at every claim, sweep and report uses an index; only the active tasks' index is read whole."""
    engine = open_engine(str(tmp_path / "ledger.sqlite"))
    migrate(engine)
    statements = Statements(engine.dialect)
    hot = {
        "tasks_by_id": "sqlite_autoindex_tasks_1",
        "tasks_by_seq": "INTEGER PRIMARY KEY",
        "held_seqs": "tasks_held",
        "ready_lanes": "lanes_ready",
        "ready_tasks": "tasks_ready",
        "ready_demands": "lanes_ready",
        "other_work": "lanes_ready",
        "open_lanes": "lanes_closed",
        "close_lanes": "lanes_of_host",
        "update_heads": "tasks_ready",
        "ripe_waiting": "tasks_waiting",
        "ripe_leases": "tasks_held",
        "ripe_expiring": "tasks_expiring",
        "ripe_passed_over": "tasks_passed_over",
        "live_of_job": "tasks_of_job",
    }
    with engine.connect() as connection:
        cursor = connection.connection.cursor()
        for name, index in hot.items():
            sql = getattr(statements, name).sql
            cursor.execute("EXPLAIN QUERY PLAN " + sql, ["[]"] * sql.count("?"))
            plan = "\n".join(row[3] for row in cursor.fetchall())
            assert index in plan, f"{name}: {plan}"
            scans = [line for line in plan.splitlines() if line.startswith("SCAN") and "VIRTUAL TABLE" not in line]
            # the last one is no table: the rows that the statement itself found
            assert all("tasks_held" in line or line == "SCAN ready_demands" for line in scans), f"{name}: {plan}"
    engine.dispose()
