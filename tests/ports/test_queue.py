"""What every queue promises; one suite, run against memory, a real redis-server and a real door."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import msgspec
import pytest

from swarm.errors import ConfigurationError, MalformedInput, QueueClosed
from swarm.model import Refusal, RefusalCode
from swarm.queue import Delivery, Queue, QueueStats, open_queue
from swarm.queue.memory import MemoryQueue
from swarm.wire import Dedupe, NewTask
from tests.acceptance.harness import Root, Scene
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, running_redis

#: How long a delivery lasts, seconds, in the tests that wait for its end; the door's is its first lease.
SHORT_S = 3.0

_numbers = itertools.count(1)


@attrs.frozen(kw_only=True)
class Backend:
    """A queue with two consumers, and how time passes for it."""

    queue: Queue
    #: Another consumer of the same queue.
    other: Queue
    #: Its tasks are of a kind of their own, so that tests don't meet at the door that they share.
    kind: str
    open_again: Callable[[], Queue]
    #: Let every delivery's time run out, where time can be moved.
    run_out: Callable[[], None] = lambda: None

    def task(self, path: str, *, priority: int = 5) -> NewTask:
        return NewTask(kind=self.kind, urls=(f"https://site.test/{self.kind}/{path}",), priority=priority)

    def path(self, delivery: Delivery | None) -> str | None:
        return delivery.task.urls[0].rpartition("/")[2] if delivery is not None else None


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def patient_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    with Scene(tmp_path_factory.mktemp("door")) as scene:
        yield scene.root("--p2p", "off", "--host-rate", "0", "--first-lease", f"{PATIENCE_S}s")


@pytest.fixture(scope="module")
def hasty_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    with Scene(tmp_path_factory.mktemp("hasty-door")) as scene:
        yield scene.root("--p2p", "off", "--host-rate", "0", "--first-lease", f"{SHORT_S}s")


@pytest.fixture
def visible_s() -> float:
    """How long a delivery lasts; a test that waits for its end says ``SHORT_S``."""
    return PATIENCE_S


@pytest.fixture(params=["memory", "redis", "door"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, visible_s: float) -> Iterator[Backend]:
    kind = f"kind{next(_numbers)}"
    opened: list[Queue] = []

    def opening(location: str, **how: object) -> Queue:
        queue = open_queue(location, **how)  # type: ignore[arg-type]
        opened.append(queue)
        return queue

    if request.param == "memory":
        now = [0.0]

        def run_out() -> None:
            now[0] += visible_s + 0.001

        memory = MemoryQueue(visible_s=visible_s, clock=lambda: now[0])
        opened.append(memory)
        yield Backend(queue=memory, other=memory, kind=kind, open_again=lambda: memory, run_out=run_out)
    elif request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        location = f"{server.url}?queue={kind}&visible={visible_s}s"
        yield Backend(queue=opening(location), other=opening(location), kind=kind, open_again=lambda: opening(location))
    else:
        door: Root = request.getfixturevalue("hasty_root" if visible_s == SHORT_S else "patient_root")

        def consumer(name: str) -> Queue:
            return opening(door.door_url, key=door.operator_key, worker=tmp_path / name, kinds=(kind,))

        yield Backend(queue=consumer("alice"), other=consumer("bob"), kind=kind, open_again=lambda: consumer("carol"))
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return backend.queue


def popped(queue: Queue, wait_s: float = PATIENCE_S) -> Delivery:
    delivery = queue.pop(wait_s=wait_s)
    assert delivery is not None, "nothing to pop"
    return delivery


def test_what_is_pushed_is_popped_once_and_gone_when_acknowledged(backend: Backend, queue: Queue) -> None:
    pushed = queue.push(backend.task("one"))
    assert len(queue) == 1
    delivery = popped(queue)
    assert (delivery.id, backend.path(delivery), delivery.deliveries) == (pushed, "one", 1)
    assert delivery.task.kind == backend.kind
    assert (len(queue), queue.in_flight()) == (0, 1)
    assert backend.other.pop() is None

    assert queue.ack(delivery) is None

    assert queue.stats() == QueueStats(pending=0, in_flight=0, done=1, dead=0)
    assert queue.pop() is None


def test_the_urgent_comes_before_the_old_and_the_old_before_the_new(backend: Backend, queue: Queue) -> None:
    for path, priority in (("late", 1), ("first", 5), ("second", 5), ("urgent", 9)):
        queue.push(backend.task(path, priority=priority))
    assert [backend.path(popped(queue)) for _ in range(4)] == ["urgent", "first", "second", "late"]


def test_an_empty_queue_has_nothing_and_pop_waits_for_a_push(backend: Backend, queue: Queue) -> None:
    assert queue.pop() is None
    found: list[Delivery | None] = []
    waiting = threading.Thread(target=lambda: found.append(queue.pop(wait_s=PATIENCE_S)))
    waiting.start()
    backend.queue.push(backend.task("awaited"))
    waiting.join(PATIENCE_S)
    assert [backend.path(delivery) for delivery in found] == ["awaited"]


def test_what_is_given_back_is_had_again_at_once_and_not_counted(backend: Backend, queue: Queue) -> None:
    queue.push(backend.task("again"))
    first = popped(queue)
    assert queue.nack(first) is None
    second = popped(backend.other)
    assert (second.id, second.deliveries) == (first.id, 1)
    refused = queue.ack(first)
    assert isinstance(refused, Refusal)
    assert backend.other.ack(second) is None


@pytest.mark.parametrize("visible_s", [SHORT_S])
def test_a_consumer_that_falls_silent_loses_its_task_to_another(backend: Backend, queue: Queue) -> None:
    queue.push(backend.task("lost"))
    silent = popped(queue)
    backend.run_out()
    taken = popped(backend.other)
    assert (taken.id, taken.deliveries) == (silent.id, 2)
    for refused in (queue.ack(silent), queue.nack(silent), queue.extend(silent)):
        assert refused is not None
        assert refused.code in {RefusalCode.LEASE_EXPIRED, RefusalCode.INVALID_ASSIGNEE}
    assert backend.other.ack(taken) is None
    assert queue.stats().done == 1


def test_a_delivery_that_is_extended_can_be_acknowledged_and_one_that_ended_not(backend: Backend, queue: Queue) -> None:
    queue.push(backend.task("long"))
    delivery = popped(queue)
    assert queue.extend(delivery) is None
    assert queue.ack(delivery) is None
    assert queue.extend(delivery) is not None


def test_what_fails_for_the_last_time_is_dead(backend: Backend, queue: Queue) -> None:
    queue.push(changed(backend.task("bad"), max_attempts=3))
    delivery = popped(queue)
    while True:
        assert queue.nack(delivery, reason="http_4xx") is None
        again = queue.pop()
        if again is None:
            break
        delivery = again
    assert queue.stats() == QueueStats(pending=0, in_flight=0, done=0, dead=1)


def changed(task: NewTask, **changes: object) -> NewTask:
    return msgspec.structs.replace(task, **changes)


def test_many_are_submitted_in_batches_in_order(backend: Backend, queue: Queue) -> None:
    ids = queue.batch_submit(backend.task(str(number)) for number in range(1_203))
    assert len(set(ids)) == 1_203
    assert len(queue) == 1_203
    assert [popped(queue).id for _ in range(3)] == ids[:3]
    assert queue.batch_submit([]) == []


def test_an_export_can_be_imported_and_leaves_the_queue_as_it_was(backend: Backend, queue: Queue) -> None:
    queue.push(backend.task("slow", priority=2))
    queue.push(backend.task("quick", priority=8))
    lines = list(queue.export())
    assert [json.loads(line)["urls"][0].rpartition("/")[2] for line in lines] == ["quick", "slow"]
    assert len(queue) == 2

    with MemoryQueue() as elsewhere:
        assert elsewhere.import_([*lines, b"\n"]) == 2
        assert [backend.path(elsewhere.pop()) for _ in range(2)] == ["quick", "slow"]
    for _ in range(2):
        queue.ack(popped(queue))
    assert queue.import_(line.replace(b"/slow", b"/slow2").replace(b"/quick", b"/quick2") for line in lines) == 2
    assert [backend.path(popped(queue)) for _ in range(2)] == ["quick2", "slow2"]


def test_an_import_names_the_line_that_is_no_task(queue: Queue) -> None:
    with pytest.raises(MalformedInput, match=r"line 2: .*neither a URL nor a JSON object"):
        queue.import_([b'{"kind":"fetch","urls":["https://site.test/good"]}', "rubbish"])


def test_the_same_push_repeated_with_its_id_is_one_task(backend: Backend, queue: Queue) -> None:
    ids = {queue.push(backend.task("once"), task_id="0192-mine") for _ in range(2)}
    assert len(ids) == 1
    assert len(queue) == 1


def test_a_dedupe_key_belongs_to_one_task_while_it_lives_and_after_it_is_done(backend: Backend, queue: Queue) -> None:
    def keyed(path: str) -> NewTask:
        return changed(backend.task(path), dedupe=Dedupe(key="effect", ttl_s=86_400.0))

    first = queue.push(keyed("a"))
    assert queue.push(keyed("b")) == first
    queue.ack(popped(queue))
    assert queue.push(keyed("c")) == first
    assert queue.pop() is None


def test_a_closed_queue_says_so_and_wakes_who_waits(backend: Backend) -> None:
    queue = backend.open_again()
    ended: list[BaseException] = []
    began = threading.Event()

    def wait() -> None:
        began.set()
        try:
            queue.pop(wait_s=PATIENCE_S)
        except QueueClosed as fault:
            ended.append(fault)

    waiting = threading.Thread(target=wait)
    waiting.start()
    began.wait()
    queue.close()
    waiting.join(PATIENCE_S)
    assert len(ended) == 1
    calls: list[Callable[[], object]] = [
        lambda: queue.push(backend.task("late")),
        queue.pop,
        queue.stats,
        lambda: len(queue),
        queue.export,
    ]
    for call in calls:
        with pytest.raises(QueueClosed):
            call()
    queue.close()


@pytest.mark.parametrize("visible_s", [SHORT_S])
def test_what_was_in_flight_survives_close(backend: Backend) -> None:
    queue = backend.open_again()
    backend.queue.push(backend.task("held"))
    delivery = popped(queue)
    if queue is not backend.other:
        queue.close()
    backend.run_out()
    again = popped(backend.other)
    assert again.id == delivery.id


def test_two_consumers_never_get_the_same_task(backend: Backend, queue: Queue) -> None:
    ids = queue.batch_submit(backend.task(str(number)) for number in range(40))
    taken: list[str] = []

    def consume(consumer: Queue) -> None:
        while (delivery := consumer.pop()) is not None:
            taken.append(delivery.id)
            consumer.ack(delivery)

    consumers = [threading.Thread(target=consume, args=(one,)) for one in (queue, backend.other)]
    for thread in consumers:
        thread.start()
    for thread in consumers:
        thread.join(PATIENCE_S)
    assert sorted(taken) == sorted(ids)
    assert queue.stats().done == 40


def test_a_location_that_names_no_queue_is_refused() -> None:
    for location, said in (
        ("amqp://localhost", "names no queue"),
        ("redis://localhost/pages", "isn't the number of a Redis database"),
        ("redis://localhost?quue=pages", "there is no option quue"),
        ("redis://localhost?visible=soon", "isn't a duration"),
        ("http://127.0.0.1:1", "somebody with a key"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            open_queue(location)


def test_a_consumer_that_forgets_its_tasks_has_others_once_their_time_is_up(
    hasty_root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.queue.door.MAX_HELD", 2)
    kind = f"kind{next(_numbers)}"
    with open_queue(
        hasty_root.door_url, key=hasty_root.operator_key, worker=tmp_path / "alice", kinds=(kind,)
    ) as queue:
        pushed = {queue.push(NewTask(kind=kind, urls=(f"https://site.test/{kind}/{path}",))) for path in range(3)}
        had = {popped(queue).id, popped(queue).id}
        assert queue.pop() is None  # it holds as many as a turn can name
        assert popped(queue).id in pushed
        assert had < pushed
