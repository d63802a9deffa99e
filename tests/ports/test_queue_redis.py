"""What a queue in Redis promises beyond the port: consumers that are killed, other programs' messages, outages."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.errors import ConfigurationError, QueueUnreachable
from swarm.model import RefusalCode
from swarm.queue import open_queue
from swarm.queue.redis_link import read_redis_url
from swarm.queue.redis_queue import RedisQueue
from swarm.wire import Dedupe, NewTask
from tests.acceptance.harness import PROJECT, until
from tests.free_port import free_port
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, running_redis
from tests.tied import tied

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
    with opened(server, name) as queue:
        yield queue


def opened(server: RedisServer, name: str, **options: object) -> RedisQueue:
    said = "".join(f"&{option}={value}" for option, value in options.items())
    queue = open_queue(f"{server.url}?queue={name}{said}")
    assert isinstance(queue, RedisQueue)
    return queue


def urls(queue: RedisQueue) -> list[str]:
    found = []
    while (delivery := queue.pop()) is not None:
        found += delivery.task.urls
    return found


def test_retries_come_behind_fresh_work_however_urgent_they_are(queue: RedisQueue) -> None:
    queue.push(NewTask(kind="fetch", urls=("https://site.test/retry",), priority=9))
    tried = queue.pop()
    assert tried is not None
    queue.nack(tried, reason="timeout")
    queue.push(NewTask(kind="fetch", urls=("https://site.test/fresh",), priority=0))
    assert urls(queue) == ["https://site.test/fresh", "https://site.test/retry"]


def test_a_consumer_that_is_killed_loses_nothing(server: RedisServer, name: str) -> None:
    with opened(server, name, visible="300ms") as queue:
        ids = queue.batch_submit(f"https://site.test/{number}" for number in range(20))
        greedy = (
            "import sys, time\nfrom swarm.queue import open_queue\n"
            "queue = open_queue(sys.argv[1])\n"
            "while True:\n    print(queue.pop(wait_s=60).id, flush=True)\n"
        )
        consumer = subprocess.Popen(
            tied([sys.executable, "-c", greedy, f"{server.url}?queue={name}&visible=300ms"]),
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        assert consumer.stdout is not None
        taken = [consumer.stdout.readline().strip() for _ in range(5)]
        consumer.kill()
        consumer.wait(PATIENCE_S)
        consumer.stdout.close()
        assert set(taken) <= set(ids)
        done = []
        while len(done) < len(ids):
            delivery = queue.pop(wait_s=PATIENCE_S)
            assert delivery is not None
            assert queue.ack(delivery) is None
            done.append(delivery.id)
        assert sorted(done) == sorted(ids)
        assert queue.stats().done == 20


def test_a_task_that_kills_its_consumers_ends_as_a_dead_letter(server: RedisServer, name: str) -> None:
    with opened(server, name, visible="50ms", deliveries=2) as queue:
        task = queue.push("https://site.test/poison")
        assert [queue.pop(wait_s=PATIENCE_S) is not None for _ in range(2)] == [True, True]
        until(lambda: queue.stats().dead or None, "the dead letter")
        (letter,) = queue.dead()
        assert (letter.id, letter.reason, letter.deliveries) == (task, "worker_lost", 2)
        assert "https://site.test/poison" in letter.message


def test_dead_letters_are_revived_as_fresh_work_with_their_priority(server: RedisServer, name: str) -> None:
    with opened(server, name, deliveries=1) as queue:
        for path, priority in (("late", 2), ("urgent", 8)):
            queue.push(NewTask(kind="fetch", urls=(f"https://site.test/{path}",), priority=priority))
        server.client.lpush(name, "rubbish")
        for _ in range(2):
            delivery = queue.pop()
            assert delivery is not None
            queue.nack(delivery, reason="dns")
        assert (queue.pop(), queue.stats().dead) == (None, 3)
        assert queue.revive() == 3
        assert urls(queue) == ["https://site.test/urgent", "https://site.test/late"]
        assert [letter.reason.partition(":")[0] for letter in queue.dead()] == ["malformed"]
        assert queue.revive(0) == 0


@pytest.mark.parametrize(
    ("front", "push", "expected"),
    [
        ("right", "lpush", ["https://site.test/1", "https://site.test/2", "https://site.test/3"]),
        ("left", "rpush", ["https://site.test/1", "https://site.test/2", "https://site.test/3"]),
    ],
)
def test_a_list_that_others_push_to_is_drained_in_their_order(
    server: RedisServer, name: str, front: str, push: str, expected: list[str]
) -> None:
    for number in (1, 2, 3):
        getattr(server.client, push)(name, f"https://site.test/{number}")
    with opened(server, name, front=front) as queue:
        assert len(queue) == 3
        assert [line for line in queue.export() if b"/1" in line]
        assert urls(queue) == expected
        assert server.client.exists(name) == 0
        assert queue.in_flight() == 3


def test_a_set_and_a_sorted_set_of_start_urls_are_drained_too(server: RedisServer, name: str) -> None:
    server.client.sadd(name, "https://site.test/a", "https://site.test/b")
    with opened(server, name) as queue:
        assert sorted(urls(queue)) == ["https://site.test/a", "https://site.test/b"]
        server.client.zadd(name, {"https://site.test/low": 1, "https://site.test/high": 10})
        assert urls(queue) == ["https://site.test/high", "https://site.test/low"]


def test_a_priority_in_anothers_json_counts(server: RedisServer, name: str, queue: RedisQueue) -> None:
    server.client.lpush(name, "https://site.test/plain", '{"url": "https://site.test/urgent", "priority": 9}')
    assert urls(queue) == ["https://site.test/urgent", "https://site.test/plain"]


def test_what_cant_be_read_is_a_dead_letter_with_its_reason_and_the_rest_goes_on(
    server: RedisServer, name: str, queue: RedisQueue
) -> None:
    bad = [b"rubbish", b"\x80\x05pickled", b"\xff\xfe", b'{"url": 5}', b'{"a":' + b"[" * 5_000, b"x" * 80_000]
    server.client.lpush(name, *bad, b"https://site.test/good")
    assert urls(queue) == ["https://site.test/good"]
    reasons = [letter.reason for letter in queue.dead()]
    assert len(reasons) == len(bad)
    assert all(reason.startswith("malformed: ") for reason in reasons)
    assert any("pickled" in reason for reason in reasons)


def test_a_key_that_holds_something_else_is_refused_with_its_name(
    server: RedisServer, name: str, queue: RedisQueue
) -> None:
    server.client.xadd(name, {"url": "https://site.test/"})
    with pytest.raises(ConfigurationError, match=f"{name} holds a stream"):
        queue.pop()


def test_an_unreachable_redis_is_an_error_with_address_and_reason() -> None:
    port = free_port()
    with pytest.raises(QueueUnreachable) as refused:
        open_queue(f"redis://:hunter2@127.0.0.1:{port}/3?queue=pages")
    assert refused.value.address == f"redis://127.0.0.1:{port}/3"
    assert "refused" in refused.value.reason
    assert "no other queue" in str(refused.value.hint)
    assert "hunter2" not in f"{refused.value!r} {refused.value} {refused.value.hint}"


def test_a_wrong_password_is_an_error_that_doesnt_show_it(server: RedisServer) -> None:
    with pytest.raises(QueueUnreachable, match="127") as refused:
        open_queue(server.url.replace("redis://", "redis://:hunter2@"))
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


def test_a_url_shows_no_secrets() -> None:
    where = read_redis_url("rediss://bob:hunter2@redis.example?queue=a%2Fb", known=("queue",))
    assert where.shown == "rediss://redis.example:6379"
    assert where.options == {"queue": "a/b"}
    assert "hunter2" not in repr(where)


def test_without_the_redis_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigurationError, match="isn't installed") as refused:
        open_queue("redis://127.0.0.1")
    assert refused.value.hint == "pip install 'task-swarm[redis]'"


def test_a_queue_goes_on_after_its_redis_was_killed_and_came_back(tmp_path: Path) -> None:
    with running_redis(tmp_path) as own, opened(own, "pages") as queue:
        queue.push("https://site.test/before")
        held = queue.pop()
        assert held is not None
        own.kill()
        with pytest.raises(QueueUnreachable):
            queue.push("https://site.test/during", task_id="the-same")
        own.start()
        queue.push("https://site.test/during", task_id="the-same")
        assert queue.ack(held) is None
        assert urls(queue) == ["https://site.test/during"]


def test_a_name_that_would_break_the_keys_is_refused(server: RedisServer) -> None:
    for bad in ("a{b}", "x" * 300, ""):
        with pytest.raises(ConfigurationError):
            opened(server, bad)


def test_a_giant_message_is_a_dead_letter_cut_short_and_never_read_whole(
    server: RedisServer, queue: RedisQueue
) -> None:
    server.client.lpush(queue.name, b"{" + b"x" * 3_000_000)
    (taken,) = queue.take_raw(1)
    assert len(taken.message) < 100_000
    queue.bury(taken, "too long")
    (letter,) = queue.dead()
    assert len(letter.message) < 100_000


def test_a_message_that_somebody_deleted_under_way_is_a_dead_letter_and_the_next_one_comes(
    server: RedisServer, queue: RedisQueue
) -> None:
    queue.push("https://site.test/gone")
    server.client.delete(f"{{{queue.name}}}:tasks")
    queue.push("https://site.test/next")
    assert urls(queue) == ["https://site.test/next"]
    (letter,) = queue.dead()
    assert letter.message == ""
    assert queue.revive() == 1  # harmless: it is read, and buried again
    assert urls(queue) == []


@pytest.mark.parametrize(
    "notes",
    [
        b"not json",
        b"7",
        b"{}",
        b'{"rank":"high","n":0}',
        b'{"rank":99,"n":0}',
        b'{"rank":4,"n":NaN}',
        b'{"rank":4,"n":0,"token":[]}',
        b'{"rank":4,"n":0,"key":"k"}',
        b"[" * 5_000,
    ],
    ids=lambda notes: repr(notes[:24]),
)
def test_a_task_with_damaged_notes_is_a_dead_letter_and_the_rest_flows(
    server: RedisServer, queue: RedisQueue, name: str, notes: bytes
) -> None:
    first, damaged, last = queue.batch_submit(f"https://site.test/{number}" for number in range(3))
    server.client.hset(f"{{{name}}}:about", damaged, notes)
    assert urls(queue) == ["https://site.test/0", "https://site.test/2"]
    (letter,) = queue.dead()
    assert (letter.id, letter.reason) == (damaged, "damaged: what the queue keeps of it can't be read")
    assert "https://site.test/1" in letter.message
    assert queue.damaged == 1
    assert queue.revive() == 1
    assert urls(queue) == ["https://site.test/1"]
    assert {first, last} & {letter.id for letter in queue.dead()} == set()


def test_a_delivery_whose_notes_are_damaged_is_lost_and_the_others_end_as_ever(server: RedisServer, name: str) -> None:
    with opened(server, name, visible="300ms") as queue:
        queue.batch_submit(f"https://site.test/{number}" for number in range(3))
        held = [queue.pop() for _ in range(3)]
        assert all(held)
        server.client.hset(f"{{{name}}}:about", held[0].id, b"\xff")  # type: ignore[union-attr]
        server.client.hset(f"{{{name}}}:about", held[1].id, b"")  # type: ignore[union-attr]
        refusal = queue.ack(held[0])  # type: ignore[arg-type]
        assert refusal is not None
        assert refusal.code is RefusalCode.LEASE_EXPIRED
        assert queue.ack(held[2]) is None  # type: ignore[arg-type]
        until(lambda: queue.stats().in_flight == 0, "the other one's time to be up")
        assert (queue.stats().done, queue.stats().dead) == (1, 2)


def test_a_dedupe_key_of_a_damaged_task_is_free_again(server: RedisServer, queue: RedisQueue, name: str) -> None:
    task = NewTask(kind="fetch", urls=("https://site.test/",), dedupe=Dedupe(key="k", ttl_s=1000.0))
    lost = queue.push(task)
    server.client.hset(f"{{{name}}}:about", lost, b"rubbish")
    assert queue.pop() is None
    again = queue.push(task)
    assert again != lost
    assert urls(queue) == ["https://site.test/"]


def test_damaged_dead_letters_and_totals_stop_nothing(server: RedisServer, queue: RedisQueue, name: str) -> None:
    queue.push("https://site.test/")
    tried = queue.pop()
    assert tried is not None
    queue.bury(tried, "malformed: by hand")
    server.client.rpush(f"{{{name}}}:dead", b"rubbish", b'{"id":7}', b"null")
    assert [letter.reason for letter in queue.dead()] == ["malformed: by hand", "damaged", "damaged", "damaged"]
    assert queue.revive(10) == 1
    server.client.hset(f"{{{name}}}:totals", mapping={"done": "many", "arrivals": "x", "dead": "", "damaged": "?"})
    queue.push("https://site.test/again")
    again = [queue.pop(), queue.pop()]
    assert [delivery.task.urls for delivery in again if delivery] == [
        ("https://site.test/",),
        ("https://site.test/again",),
    ]
    assert queue.ack(again[0]) is None  # type: ignore[arg-type]
    assert queue.stats().pending == 0
