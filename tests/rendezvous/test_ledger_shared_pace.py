"""``--pacing``: a host's grants take tokens that others take too, and the ledger says so when there are none."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from rendezvous.ledger.ledger import open_ledger
from rendezvous.ledger.ops import Submit, TakeTurn
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.shared_pace import AWAY_S, SharedPace, open_shared_pace
from rendezvous.ledger.transitions import LedgerCore
from swarm.errors import QueueUnreachable
from swarm.model import RefusalCode, Status
from swarm.queue.pace import Ask, Given, open_pace
from tests.free_port import free_port
from tests.redis_server import RedisServer, running_redis
from tests.rendezvous.door_harness import door
from tests.rendezvous.ledger_world import ALICE, BOB, NOOP, World, new_task

PACED = LedgerSettings(host_rate_per_s=1.0, host_burst=5.0)


class FakePace:
    """Shared buckets that hold what the test says; ``fault`` is raised while it is set."""

    def __init__(self) -> None:
        self.tokens: dict[str, float] = {}
        self.asked: list[list[Ask]] = []
        self.fault: QueueUnreachable | None = None

    def take(self, asks: list[Ask]) -> list[Given]:
        self.asked.append(list(asks))
        if self.fault is not None:
            raise self.fault
        given = []
        for ask in asks:
            tokens = self.tokens.setdefault(ask.host, ask.burst)
            taken = min(ask.wanted, int(tokens))
            self.tokens[ask.host] = tokens - taken
            given.append(Given(taken=taken, left=tokens - taken, at=0.0))
        return given


class Moment:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def status_of(world: World, task: str) -> str:
    view = world.reader.task(task, None)
    assert view is not None
    return view.status


@attrs.frozen
class Shared:
    world: World
    pace: FakePace
    clock: Moment


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    world, pace, clock = World(tmp_path / "ledger.db", PACED), FakePace(), Moment()
    world.core.close()
    world.core = LedgerCore(
        world.engine,
        rng=random.Random(7),
        settings=PACED,
        pace=SharedPace(pace, where="redis://shared:6379", clock=clock),
    )
    yield Shared(world, pace, clock)
    world.close()


def test_grants_take_shared_tokens_once_a_group_with_the_ledgers_own_numbers(shared: Shared) -> None:
    for host in ("a.test", "a.test", "b.test"):
        shared.world.one(host=host)
    assert len(shared.world.claim(ALICE, want=8)) == 3
    (asks,) = shared.pace.asked
    assert {(ask.host, ask.wanted, ask.rate_per_s, ask.burst) for ask in asks} == {
        ("a.test", 2, 1.0, 5.0),
        ("b.test", 1, 1.0, 5.0),
    }
    assert shared.world.claim(BOB) == []
    assert len(shared.pace.asked) == 1  # a group without grants doesn't ask


def test_what_others_took_isnt_granted_and_comes_when_its_time_has_come(shared: Shared) -> None:
    world = shared.world
    tasks = world.submit(*(new_task(host="a.test") for _ in range(3)))
    shared.pace.tokens["a.test"] = 1.25
    assert [lease.task for lease in world.claim(ALICE, want=3)] == tasks[:1]
    assert [status_of(world, task) for task in tasks] == [Status.ACTIVE, Status.PENDING, Status.PENDING]
    ((_, refusal),) = world.reader.refusals(tasks[1], [(BOB, NOOP)], now=world.now)
    assert refusal is not None
    assert refusal.code is RefusalCode.HOST_PACED
    assert refusal.retry_after_s == pytest.approx(0.75)
    assert world.claim(BOB) == []
    assert len(shared.pace.asked) == 1  # the ledger's own bucket knows: nobody is asked in vain

    world.now += 0.8
    shared.pace.tokens["a.test"] = 1.05
    assert [lease.task for lease in world.claim(BOB)] == tasks[1:2]


def test_a_task_that_is_asked_for_by_its_name_is_refused_as_paced(shared: Shared) -> None:
    task = shared.world.one(host="a.test")
    shared.pace.tokens["a.test"] = 0.5
    result = shared.world.turn(ALICE, offers=(task,), explain=True, partial=True)
    assert not result.granted
    assert result.refused[task].code is RefusalCode.HOST_PACED


def test_hosts_without_a_limit_ask_nobody(tmp_path: Path) -> None:
    world, pace = World(tmp_path / "ledger.db"), FakePace()
    world.core.close()
    world.core = LedgerCore(world.engine, settings=world.settings, pace=SharedPace(pace, where="redis://x"))
    world.one()
    assert len(world.claim(ALICE)) == 1
    assert pace.asked == []
    world.close()


def test_nothing_is_granted_while_the_shared_pace_is_away_and_it_is_asked_once_a_second(shared: Shared) -> None:
    world = shared.world
    task = world.one(host="a.test")
    world.one(host="b.test")
    shared.pace.fault = QueueUnreachable("redis://shared:6379", "connection refused")
    assert world.claim(ALICE, want=2) == []
    ((_, refusal),) = world.reader.refusals(task, [(BOB, NOOP)], now=world.now)
    assert refusal is not None
    assert refusal.code is RefusalCode.HOST_HELD
    assert "the shared pace at redis://shared:6379 doesn't answer" in refusal.message
    world.one(host="c.test")
    assert world.claim(ALICE, want=2) == []
    assert len(shared.pace.asked) == 1

    shared.pace.fault = None
    world.now += AWAY_S + 0.01
    shared.clock.now += AWAY_S + 0.01
    assert len(world.claim(ALICE, want=8)) == 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as opened:
        yield opened


async def test_two_swarms_and_a_crawler_keep_one_pace_together(server: RedisServer, tmp_path: Path) -> None:
    location = f"{server.url}?prefix=together"
    async with (
        open_shared_pace(location) as one_pace,
        open_shared_pace(location) as other_pace,
        open_ledger(str(tmp_path / "one.db"), PACED, pace=one_pace) as one,
        open_ledger(str(tmp_path / "other.db"), PACED, pace=other_pace) as other,
    ):
        granted = []
        began = time.monotonic()
        with open_pace(location) as crawler:
            (mine,) = crawler.take([Ask(host="site.test", wanted=2, rate_per_s=1.0, burst=5.0)])
            assert mine.taken == 2
        for ledger in (one, other):
            await ledger.call(
                Submit(
                    owner="owner",
                    job="0" * 36,
                    job_named=False,
                    name=None,
                    tasks=tuple(new_task() for _ in range(5)),
                )
            )
            result = await ledger.call(TakeTurn(worker=ALICE, boot="boot-one", facts=NOOP, want=5))
            granted.append(len(result.granted))
        assert sum(granted) <= 3 + int(time.monotonic() - began)
        assert granted[0] == 3


async def test_a_root_grants_no_more_of_a_host_than_a_crawler_left_of_it(server: RedisServer, tmp_path: Path) -> None:
    location = f"{server.url}?prefix=root"
    async with door(tmp_path, pacing=location, host_rate=0.01) as stage:
        with open_pace(location) as crawler:
            crawler.take([Ask(host="site.test", wanted=4, rate_per_s=0.01, burst=5.0)])
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        for path in range(3):
            await stage.submit(carol, urls=(f"http://site.test/{path}",))
        assert len((await alice.take(want=8))["grants"]) == 1
        (waiting, *_) = (await carol.get("/v1/tasks?status=pending")).data["items"]
        why = (await carol.get(f"/v1/tasks/{waiting['id']}/why")).data
        assert [row["refusal"]["code"] for row in why["workers"]] == ["host_paced"]


async def test_a_root_doesnt_start_without_its_pacing(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(QueueUnreachable, match=f"redis://127.0.0.1:{port}.*refused"):
        async with door(tmp_path, pacing=f"redis://127.0.0.1:{port}"):
            raise AssertionError("it started")


async def test_a_frozen_redis_holds_the_ledger_up_for_no_longer_than_its_deadline(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with running_redis(tmp_path / "redis") as own:
        async with (
            open_shared_pace(own.url) as pace,
            open_ledger(str(tmp_path / "ledger.db"), PACED, pace=pace) as ledger,
        ):
            submission = Submit(
                owner="owner", job="0" * 36, job_named=False, name=None, tasks=(new_task(), new_task(host="b.test"))
            )
            await ledger.call(submission)
            own.freeze()
            began = time.monotonic()
            for _ in range(5):
                result = await ledger.call(TakeTurn(worker=ALICE, boot="boot-one", facts=NOOP, want=5))
                assert not result.granted
            assert time.monotonic() - began < 10  # a call to Redis that has no deadline of the ledger takes 5 s
            own.thaw()
