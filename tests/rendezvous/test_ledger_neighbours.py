"""Several roots on one ledger: offices, news, who is there, who may join, and a database that goes away."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy as sa
import uuid6
from structlog.testing import capture_logs

from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.ledger import Ledger, LedgerClock, open_ledger
from rendezvous.ledger.neighbours import Alone, Office
from rendezvous.ledger.ops import DoneItem, LedgerEvent, Submit, SubmitResult, TakeTurn
from rendezvous.ledger.roots import RootCard, live_roots
from swarm.errors import ConfigurationError, LedgerUnavailable
from swarm.model import Move, Status
from tests.patience import PATIENCE_S
from tests.postgres import Postgres, postgres_cluster
from tests.rendezvous.ledger_world import ALICE, BOB, CID, FAST, NOOP, World, new_task

KEY = "12D3KooWkey"


def card(name: str, **changes: Any) -> RootCard:
    values: dict[str, Any] = {
        "id": name,
        "key_id": KEY,
        "network_id": "network",
        "door": f"http://{name}.test",
        "peer_id": f"peer-of-{name}",
        "stores": ("kubo",),
    }
    return RootCard(**{**values, **changes})


@asynccontextmanager
async def opened(location: str, name: str | None = None, **options: Any) -> AsyncIterator[Ledger]:
    async with asyncio.timeout(PATIENCE_S), open_ledger(location, FAST, **options) as ledger:
        if name is not None:
            await asyncio.to_thread(ledger.neighbours.introduce, card(name))
        yield ledger


async def until(holds: Callable[[], bool]) -> None:
    """Poll; the caller's deadline ends it."""
    while not holds():  # noqa: ASYNC110 -- what is waited for happens in other threads
        await asyncio.sleep(0.01)


def submission(*tasks: Any) -> Submit:
    return Submit(owner="owner", job=str(uuid6.uuid7()), job_named=False, name=None, tasks=tasks)


def turn(worker: Any, **changes: Any) -> TakeTurn:
    return TakeTurn(worker=worker, boot="boot-boot", facts=NOOP, partial=True, **changes)


async def test_each_root_hears_all_events_once_and_in_order(postgres_database: str) -> None:
    heard: dict[str, list[LedgerEvent]] = {"one": [], "two": []}
    async with opened(postgres_database) as one, opened(postgres_database) as two:
        one.subscribe(heard["one"].extend)
        two.subscribe(heard["two"].extend)

        async def lives(ledger: Ledger, worker: Any) -> None:
            for _ in range(20):
                await ledger.call(submission(new_task()))
                for grant in (await ledger.call(turn(worker, want=1))).granted:
                    done = DoneItem(task=grant.task.id, fence=grant.fence, cid=CID, size_bytes=1)
                    await ledger.call(turn(worker, done=(done,)))

        await asyncio.gather(lives(one, ALICE), lives(two, BOB))
        last = await one.read(lambda reader: reader.last_event_id())
        await until(lambda: all(events and events[-1].id == last for events in heard.values()))
    assert [event.id for event in heard["one"]] == list(range(1, last + 1))
    assert heard["one"] == heard["two"]


async def test_a_root_whose_clock_lies_behind_catches_up_with_the_others(postgres_database: str) -> None:
    behind, ahead = LedgerClock(wall=5_000.0), LedgerClock(wall=8_600.0)
    async with opened(postgres_database, clock=behind) as one, opened(postgres_database, clock=ahead) as two:
        await two.call(submission(new_task()))
        await until(lambda: one.now() >= 8_600.0)
        assert two.now() - one.now() < 1.0


def test_events_that_were_read_are_the_same_as_those_that_were_told(database: str) -> None:
    world = World(database)
    world.submit(new_task(reward_wei=5), new_task(not_before_s=10.0))
    (lease,) = world.claim(ALICE)
    world.fail(ALICE, lease)
    world.later(700.0)
    (lease, _) = world.claim(BOB, want=2)
    world.complete(BOB, lease)
    world.later(700.0)
    assert len(world.events) > 8
    assert world.reader.ledger_events(0, 10**9, 1_000) == world.events
    world.close()


async def test_one_root_reaps_and_another_takes_over_when_it_leaves(postgres_database: str) -> None:
    async with opened(postgres_database) as two:
        async with opened(postgres_database) as one:
            await until(lambda: one.neighbours.holds(Office.REAPER) != two.neighbours.holds(Office.REAPER))
            first, other = (one, two) if one.neighbours.holds(Office.REAPER) else (two, one)
            woken = asyncio.get_running_loop().create_future()

            def look(events: Sequence[LedgerEvent]) -> None:
                if any(event.move is Move.WAKE for event in events) and not woken.done():
                    woken.set_result(None)

            other.subscribe(look)
            await other.call(submission(new_task(not_before_s=0.05)))
            await woken  # the reaper did it, and the other heard of it
            assert first.neighbours.holds(Office.REAPER)
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: two.neighbours.holds(Office.REAPER))
            await until(lambda: two.neighbours.holds(Office.PAYER))


@pytest.fixture
def busy_process() -> Iterator[None]:
    """As many open files as a root with a thousand sessions has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 4_096), before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("busy_process")
async def test_a_root_with_a_thousand_sessions_hears_of_others_and_takes_its_offices(postgres_database: str) -> None:
    async with opened(postgres_database) as one:
        await until(lambda: one.neighbours.holds(Office.REAPER))
        with capture_logs() as logs:
            async with opened(postgres_database) as two:
                heard = asyncio.get_running_loop().create_future()
                one.subscribe(lambda events: None if heard.done() else heard.set_result(events[0].move))
                await two.call(submission(new_task()))
                assert await heard is Move.SUBMIT
        assert [line for line in logs if line["event"].startswith("ledger_neighbours")] == []
        assert one.neighbours.holds(Office.REAPER)


async def test_an_office_is_free_when_its_session_ends_however_it_ended(postgres: Postgres) -> None:
    url = postgres.new_database()
    async with opened(url) as one, opened(url) as two:
        await until(lambda: one.neighbours.holds(Office.REAPER) or two.neighbours.holds(Office.REAPER))
        with capture_logs() as logs:
            postgres.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                url.rsplit("/", 1)[1],
            )
            async with asyncio.timeout(PATIENCE_S):
                await until(lambda: any(line["event"] == "ledger_neighbours_back" for line in logs))
                await until(lambda: one.neighbours.holds(Office.REAPER) != two.neighbours.holds(Office.REAPER))
    postgres.drop(url)


async def test_roots_know_each_other_while_they_run(postgres_database: str) -> None:
    async with opened(postgres_database, "one") as one:
        async with opened(postgres_database, "two"):
            await until(lambda: len(one.neighbours.roots()) == 2)
            assert [root.door for root in one.neighbours.roots()] == ["http://one.test", "http://two.test"]
        await until(lambda: len(one.neighbours.roots()) == 1)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"key_id": "12D3KooWother"}, "belongs to the swarm with the key 12D3KooWkey"),
        ({"network_id": "other"}, "belongs to the network network"),
        ({"stores": ()}, "would keep its blocks to itself"),
        ({"stores": ("another kubo",)}, "keeps its blocks in the Kubo kubo"),
        ({"id": "one"}, "a root with this one's peer.key runs at http://one.test"),
    ],
)
async def test_a_root_that_may_not_share_the_ledger_is_refused_with_the_reason(
    postgres_database: str, second: dict[str, Any], why: str
) -> None:
    async with opened(postgres_database, "one"), opened(postgres_database) as other:
        with pytest.raises(ConfigurationError, match=why) as refused:
            await asyncio.to_thread(other.neighbours.introduce, card("two", **second))
        assert refused.value.hint
        engine = open_engine(postgres_database)
        with engine.connect() as connection:
            assert [root.id for root in live_roots(connection)] == ["one"]
        engine.dispose()


async def test_a_root_that_was_killed_comes_back_at_once(postgres_database: str) -> None:
    engine = open_engine(postgres_database)
    async with opened(postgres_database, "one"):
        pass
    with engine.begin() as connection:  # as if it had not signed off
        connection.execute(
            sa.text("INSERT INTO roots VALUES ('one', 'http://one.test', NULL, '[]', extract(epoch FROM now()))")
        )
    engine.dispose()
    async with opened(postgres_database, "one") as again:
        assert len(again.neighbours.roots()) == 1


async def test_a_file_has_no_neighbours(tmp_path: Any) -> None:
    async with opened(str(tmp_path / "ledger.sqlite"), "one") as ledger:
        assert isinstance(ledger.neighbours, Alone)
        assert ledger.neighbours.holds(Office.PAYER)
        assert [root.id for root in ledger.neighbours.roots()] == ["one"]


# ── a database that goes away ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def own_cluster() -> Iterator[Postgres]:
    with postgres_cluster(durable=True) as cluster:
        yield cluster


async def test_a_database_that_crashes_is_waited_for_and_nothing_answered_is_lost(own_cluster: Postgres) -> None:
    url = own_cluster.new_database()
    async with opened(url, "one") as ledger:
        heard: list[LedgerEvent] = []
        ledger.subscribe(heard.extend)
        answer = await ledger.call(submission(new_task(), new_task()))
        assert isinstance(answer, SubmitResult)
        (grant,) = (await ledger.call(turn(ALICE, want=1))).granted
        with capture_logs() as logs:
            await asyncio.to_thread(own_cluster.crash)
            with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1"):
                await ledger.call(turn(ALICE, want=1))
            with pytest.raises(LedgerUnavailable):
                await ledger.read(lambda reader: reader.counts())
            await until(lambda: any(line["event"] == "ledger_unavailable" for line in logs))
            own_cluster.start()
            await until(lambda: any(line["event"] == "ledger_available" for line in logs))
            await until(lambda: ledger.neighbours.holds(Office.REAPER))
        done = DoneItem(task=grant.task.id, fence=grant.fence, cid=CID, size_bytes=1)
        assert (await ledger.call(turn(ALICE, done=(done,)))).ended[0].outcome is Status.COMPLETED
        last = await ledger.read(lambda reader: reader.last_event_id())
        assert [event.id for event in heard] == list(range(1, last + 1))


async def test_a_plain_role_that_owns_its_database_is_enough(postgres: Postgres) -> None:
    postgres.execute("CREATE ROLE plain LOGIN")
    postgres.execute("CREATE DATABASE of_plain TEMPLATE template0 ENCODING 'UTF8' OWNER plain")
    url = postgres.url("of_plain").replace("//root@", "//plain@")
    async with opened(url, "one") as ledger:
        await ledger.call(submission(new_task()))
        (grant,) = (await ledger.call(turn(ALICE, want=1))).granted
        done = DoneItem(task=grant.task.id, fence=grant.fence, cid=CID, size_bytes=1)
        assert (await ledger.call(turn(ALICE, done=(done,)))).ended[0].outcome is Status.COMPLETED
        assert ledger.neighbours.holds(Office.PAYER)
    postgres.drop(url)
    postgres.execute("DROP ROLE plain")
