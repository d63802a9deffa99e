"""``--intake``: what other programs push to a Redis becomes tasks of the ledger, each message one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from rendezvous.door.metrics import Metrics
from rendezvous.intake import open_intakes
from rendezvous.ledger.ledger import open_ledger
from rendezvous.ledger.ops import LedgerEvent
from rendezvous.watch import INTAKE_DEAD, INTAKE_WAITS
from swarm.errors import ConfigurationError, QueueUnreachable
from swarm.queue.open import open_redis_queue
from swarm.queue.redis_link import read_redis_url
from swarm.queue.redis_queue import RedisQueue
from tests.acceptance.harness import PROJECT, command
from tests.free_port import free_port
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, running_redis
from tests.rendezvous.door_harness import Stage, door

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"pages{next(_numbers)}"


@pytest.fixture
def queue(server: RedisServer, name: str) -> Iterator[RedisQueue]:
    with looking_at(server, name) as queue:
        yield queue


def looking_at(server: RedisServer, name: str) -> RedisQueue:
    return open_redis_queue(read_redis_url(f"{server.url}?queue={name}", known=("queue",)))


async def until(probe: Callable[[], Any], what: str) -> Any:
    """Poll until the probe, or what it awaits, is true."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = probe()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE_S} s for {what}") from None


async def tasks_of(stage: Stage) -> list[dict[str, Any]]:
    page = (await stage.operator.get("/v1/tasks?limit=500")).data
    return list(page["items"])


async def has(stage: Stage, number: int) -> list[dict[str, Any]] | None:
    found = await tasks_of(stage)
    return found if len(found) >= number else None


def counted(stage: Stage) -> dict[str, float]:
    return {
        dict(labels)["outcome"]: value
        for name, labels, value in stage.door.metrics.samples()
        if name == "swarm_intake_total"
    }


async def test_what_a_producer_pushes_becomes_tasks_of_one_job(
    server: RedisServer, name: str, queue: RedisQueue, tmp_path: Path
) -> None:
    server.client.lpush(
        name,
        "https://a.test/plain",
        json.dumps({"url": "https://b.test/json", "meta": {"depth": 2}, "priority": 8}),
        json.dumps({"kind": "scrape", "urls": ["https://c.test/"], "spec": {"extract": {"title": "h1::text"}}}),
    )
    queue.push("https://d.test/pushed")
    async with door(tmp_path, intake=(f"{server.url}?queue={name}",)) as stage:
        await until(lambda: queue.stats().done == 4, "the queue to be drained")
        tasks = {task["urls"][0]: task for task in await tasks_of(stage)}
        assert set(tasks) == {"https://a.test/plain", "https://b.test/json", "https://c.test/", "https://d.test/pushed"}
        assert {task["job"] for task in tasks.values()} == {tasks["https://c.test/"]["job"]}
        assert {task["owner"] for task in tasks.values()} == {"operator"}
        assert tasks["https://b.test/json"]["meta"] == {"depth": 2}
        assert tasks["https://b.test/json"]["priority"] == 8
        assert tasks["https://c.test/"]["kind"] == "scrape"
        assert counted(stage) == {"created": 4}
        job = (await stage.operator.get(f"/v1/jobs/{tasks['https://c.test/']['job']}")).data
        assert (job["name"], job["total"]) == (name, 4)
        server.client.lpush(name, "https://e.test/later")
        await until(lambda: queue.stats().done == 5, "a later message")


async def test_what_cant_be_a_task_is_a_dead_letter_with_its_reason_and_the_rest_goes_on(
    server: RedisServer, name: str, queue: RedisQueue, tmp_path: Path
) -> None:
    bad = {
        "rubbish": "malformed",
        '{"urls": ["https://a.test/", "https://b.test/"]}': "urls_of_many_hosts",
        '{"url": "https://"}': "bad_url",
        '{"urls": ["https://a.test/"], "reward_wei": "5"}': "unpaid_swarm",
    }
    server.client.lpush(name, *bad, "https://a.test/good")
    async with door(tmp_path, intake=(f"{server.url}?queue={name}",)) as stage:
        await until(lambda: queue.stats().dead == len(bad), "the dead letters")
        letters = {letter.message: letter.reason for letter in queue.dead()}
        assert {message: reason.partition(":")[0] for message, reason in letters.items()} == bad
        await until(lambda: has(stage, 1), "the good one")
        assert queue.stats().pending == queue.stats().in_flight == 0
        await until(lambda: counted(stage) == {"created": 1, "dead": float(len(bad))}, "the counts")


async def test_a_redis_that_dies_between_commit_and_acknowledgement_doubles_nothing(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with running_redis(tmp_path / "redis") as own:
        own.client.lpush("pages", *(f"https://h{number}.test/" for number in range(50)))
        # each message a task of its own: nothing but its id tells that it came before
        async with door(tmp_path, intake=(f"{own.url}?queue=pages&visible=200ms&dedupe=off",)) as stage:
            killed = asyncio.Event()

            def kill_once(events: Sequence[LedgerEvent]) -> None:
                if any(event.move == "submitted" for event in events) and not killed.is_set():
                    own.kill()  # committed; the intake is about to acknowledge
                    killed.set()

            stage.door.ledger.subscribe(kill_once)
            await until(killed.is_set, "the commit")
            assert len(await tasks_of(stage)) == 50
            own.start()
            with looking_at(own, "pages") as queue:
                await until(lambda: queue.stats().done == 50, "the acknowledgements")
                assert queue.stats().pending == queue.stats().in_flight == queue.stats().dead == 0
            assert len(await tasks_of(stage)) == 50
            own.client.lpush("pages", "https://after.test/")
            await until(lambda: has(stage, 51), "what came after")


async def test_two_roots_that_drain_one_queue_share_it(server: RedisServer, queue: RedisQueue, tmp_path: Path) -> None:
    server.client.lpush(queue.name, *(["https://a.test/"] * 600))
    location = f"{server.url}?queue={queue.name}&dedupe=off"
    async with (
        open_ledger(str(tmp_path / "ledger.db")) as ledger,
        open_intakes((location, location), ledger, Metrics(), network_id="one", paid=False) as intakes,
    ):
        assert len({intake.job for intake in intakes}) == 1
        running = [asyncio.create_task(intake.run()) for intake in intakes]
        await until(lambda: queue.stats().done == 600, "the messages")
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        counts = await ledger.read(lambda reader: reader.counts())
        assert sum(counts.values()) == 600


async def test_a_ledger_that_cant_be_written_leaves_messages_where_they_are(
    server: RedisServer, queue: RedisQueue, tmp_path: Path
) -> None:
    server.client.lpush(queue.name, *(f"https://h{number}.test/" for number in range(5)))
    database = tmp_path / "ledger.db"
    async with (
        open_ledger(str(database), busy_timeout_ms=50) as ledger,
        open_intakes((f"{server.url}?queue={queue.name}",), ledger, Metrics(), network_id="one", paid=False) as (
            intake,
        ),
    ):
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            running = asyncio.create_task(intake.run())
            await until(lambda: intake.trouble, "the intake to say that it waits")
            assert str(database) in str(intake.trouble)
            assert (len(queue), queue.in_flight(), queue.stats().dead) == (5, 0, 0)
            other.execute("ROLLBACK")
        await until(lambda: queue.stats().done == 5, "the messages")
        await until(lambda: intake.trouble is None, "the intake to be well")
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize(("dedupe", "tasks"), [("on", 1), ("off", 2)])
async def test_the_same_page_pushed_twice_is_one_task_unless_the_url_says_otherwise(
    server: RedisServer, queue: RedisQueue, tmp_path: Path, dedupe: str, tasks: int
) -> None:
    server.client.lpush(queue.name, "https://a.test/", "https://a.test/")
    async with door(tmp_path, intake=(f"{server.url}?queue={queue.name}&dedupe={dedupe}",)) as stage:
        await until(lambda: queue.stats().done == 2, "both messages")
        assert len(await tasks_of(stage)) == tasks


async def test_a_message_repeated_with_its_id_is_one_task(
    server: RedisServer, name: str, queue: RedisQueue, tmp_path: Path
) -> None:
    message = '{"url": "https://a.test/", "id": "order-17"}'
    server.client.lpush(name, message, message, '{"url": "https://b.test/", "id": "order-17"}')
    async with door(tmp_path, intake=(f"{server.url}?queue={name}&dedupe=off",)) as stage:
        await until(lambda: queue.stats().done == 2 and queue.stats().dead == 1, "the three messages")
        assert [task["urls"] for task in await tasks_of(stage)] == [["https://a.test/"]]
        assert queue.dead()[0].reason.startswith("idempotency_mismatch")


async def test_what_the_ledger_doesnt_need_yet_stays_in_its_queue(
    server: RedisServer, name: str, queue: RedisQueue, tmp_path: Path
) -> None:
    server.client.lpush(name, *(f"https://h{number}.test/" for number in range(10)))
    async with door(tmp_path, intake=(f"{server.url}?queue={name}&backlog=3",)) as stage:
        tasks = await until(lambda: has(stage, 3), "the first three")
        assert len(queue) == 7
        await stage.operator.post(f"/v1/tasks/{tasks[0]['id']}/cancel")
        await until(lambda: has(stage, 4), "the fourth")
        assert len(queue) == 6


async def test_tasks_are_whose_the_url_says(server: RedisServer, name: str, queue: RedisQueue, tmp_path: Path) -> None:
    server.client.lpush(name, "https://a.test/")
    async with door(tmp_path, intake=(f"{server.url}?queue={name}&owner=alice&kind=scrape",)) as stage:
        await until(lambda: queue.stats().done == 1, "the message")
        alice = await stage.requester("alice")
        (task,) = (await alice.get("/v1/tasks")).data["items"]
        assert (task["owner"], task["kind"]) == ("alice", "scrape")


async def test_a_stopped_root_leaves_nothing_in_its_hands(
    server: RedisServer, name: str, queue: RedisQueue, tmp_path: Path
) -> None:
    async with door(tmp_path, intake=(f"{server.url}?queue={name}",)):
        server.client.lpush(name, *(f"https://h{number}.test/" for number in range(2_000)))
    assert queue.stats().in_flight == 0
    assert queue.stats().pending + queue.stats().done == 2_000


async def test_a_root_doesnt_start_without_its_queue(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(QueueUnreachable, match=f"redis://127.0.0.1:{port}.*refused"):
        async with door(tmp_path, intake=(f"redis://127.0.0.1:{port}?queue=pages",)):
            raise AssertionError("it started")


async def test_an_unknown_option_of_the_url_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no option ownr") as refused:
        async with door(tmp_path, intake=("redis://127.0.0.1?ownr=alice",)):
            raise AssertionError("it started")
    assert refused.value.hint == "did you mean owner?"


def test_the_command_says_address_and_reason_and_ends_with_3(tmp_path: Path) -> None:
    port = free_port()
    done = subprocess.run(
        [
            *command("swarm-root"),
            *("run", "--data", str(tmp_path / "root"), "--p2p", "off", "--bind", f"127.0.0.1:{free_port()}"),
            *("--intake", f"redis://:hunter2@127.0.0.1:{port}/0?queue=pages"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=PROJECT,
        env={"PATH": "/usr/bin", "HOME": str(tmp_path), "PYTHONPATH": str(PROJECT)},
    )
    assert done.returncode == 3, done.stderr
    assert f"error: redis://127.0.0.1:{port}/0: " in done.stderr
    assert "no other queue was used" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


async def test_a_damaged_message_goes_aside_with_an_alert_and_the_rest_flows(
    server: RedisServer, name: str, queue: RedisQueue, tmp_path: Path
) -> None:
    damaged, _ = queue.batch_submit(("https://a.test/", "https://b.test/"))
    server.client.hset(f"{{{name}}}:about", damaged, b"rubbish")
    async with door(tmp_path, intake=(f"{server.url}?queue={name}",)) as stage:
        await until(lambda: queue.stats().done == 1, "the other one")
        await until(lambda: counted(stage) == {"created": 1, "dead": 1.0}, "the counts")
        stage.door.watch.look()
        (alert,) = stage.door.alerts.active
        assert (alert.code, alert.subject) == (INTAKE_DEAD, f"{name} of {queue.where.shown}")
        assert alert.message == f"1 dead letters of {alert.subject} in 10 min"


async def test_an_intake_that_waits_is_an_alert_until_it_goes_on(
    server: RedisServer, name: str, queue: RedisQueue, tmp_path: Path
) -> None:
    async with door(tmp_path, intake=(f"{server.url}?queue={name}",)) as stage:
        server.client.set(name, "a text, not a list")

        def looked() -> list[str]:
            stage.door.watch.look()
            return [alert.code for alert in stage.door.alerts.active]

        await until(lambda: looked() == [INTAKE_WAITS], "the alert")
        server.client.delete(name)
        await until(lambda: looked() == [], "its end")


async def test_queues_of_one_name_in_two_databases_are_told_apart_by_a_name_of_their_own(
    server: RedisServer, name: str, tmp_path: Path
) -> None:
    databases = [server.url, f"{server.url.removesuffix('/0')}/1"]
    places = [f"{url}?queue={name}" for url in databases]
    with pytest.raises(ConfigurationError, match=f"two intakes are called {name}: .*/0 and of .*/1"):
        async with door(tmp_path / "refused", intake=places):
            raise AssertionError("it was opened")
    async with door(tmp_path / "root", intake=[places[0], f"{places[1]}&as={name}-2"]) as stage:
        for url in databases:
            with Redis.from_url(url) as client:
                client.lpush(name, json.dumps({"id": "1", "kind": "noop", "urls": [f"https://site.test{url[-2:]}"]}))
        await until(lambda: counted(stage) == {"created": 2}, "a task of each, whatever their ids")
        for url in databases:
            with Redis.from_url(url) as client:
                client.set(name, "a text, not a list")

        def looked() -> list[tuple[str, str]]:
            stage.door.watch.look()
            return sorted((alert.code, alert.subject) for alert in stage.door.alerts.active)

        await until(lambda: len(looked()) == len(databases), "their alerts")
        assert looked() == [(INTAKE_WAITS, f"{name} of {url}") for url in databases]
