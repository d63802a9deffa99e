"""Memory and Redis are the same queue: whatever is done to both, in any order, both give the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarm.queue import Delivery, Queue, open_queue
from swarm.queue.memory import MemoryQueue
from swarm.wire import Dedupe, NewTask
from tests.redis_server import RedisServer, running_redis

_numbers = itertools.count(1)

push = st.tuples(st.just("push"), st.integers(0, 9), st.sampled_from([None, "a", "b"]))
pop = st.tuples(st.just("pop"))
end = st.tuples(st.sampled_from(["ack", "nack", "fail", "extend"]), st.integers(0, 5))
acts = st.lists(st.one_of(push, pop, pop, end), max_size=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as opened:
        yield opened


def shown(delivery: Delivery | None) -> object:
    return None if delivery is None else (delivery.id, delivery.task, delivery.deliveries)


def do(queue: Queue, act: tuple[object, ...], number: int, had: list[Delivery]) -> object:
    """Do one act; what a consumer sees of it. Deliveries that were ended stay in ``had``: late words are tried too."""
    match act:
        case ("push", int(priority), key):
            dedupe = Dedupe(key=str(key), ttl_s=1_000_000.0) if key is not None else None
            task = NewTask(kind="fetch", urls=(f"https://site.test/{number}",), priority=priority, dedupe=dedupe)
            return queue.push(task, task_id=f"task-{number}")
        case ("pop",):
            delivery = queue.pop()
            if delivery is not None:
                had.append(delivery)
            return shown(delivery)
        case (str(word), int(which)) if had:
            delivery = had[which % len(had)]
            refused = {
                "ack": lambda: queue.ack(delivery),
                "nack": lambda: queue.nack(delivery),
                "fail": lambda: queue.nack(delivery, reason="timeout"),
                "extend": lambda: queue.extend(delivery),
            }[word]()
            return None if refused is None else refused.code
    return None


@given(acts=acts)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_the_same_acts_have_the_same_outcomes(server: RedisServer, acts: list[tuple[object, ...]]) -> None:
    with MemoryQueue() as memory, open_queue(f"{server.url}?queue=alike{next(_numbers)}") as redis:
        in_memory: list[Delivery] = []
        in_redis: list[Delivery] = []
        for number, act in enumerate(acts):
            assert do(memory, act, number, in_memory) == do(redis, act, number, in_redis), (number, act)
            assert memory.stats() == redis.stats()
        assert list(memory.export()) == list(redis.export())
