"""Which queue? The configuration's location decides, and nothing else: ``memory:``, a Redis URL, or a door's link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from swarm.errors import ConfigurationError
from swarm.queue.memory import MemoryQueue
from swarm.queue.messages import DEFAULT_KIND
from swarm.queue.port import MAX_DELIVERIES, VISIBLE_S, Queue
from swarm.queue.redis_link import read_redis_url
from swarm.settings import choice, count, duration_s, text

if TYPE_CHECKING:
    from swarm.queue.redis_link import RedisUrl
    from swarm.queue.redis_queue import RedisQueue

__all__ = ["DEFAULT_NAME", "QUEUE_OPTIONS", "open_queue", "open_redis_queue", "option"]

DEFAULT_NAME: Final = "swarm"
#: What a Redis queue's URL may say in its query.
QUEUE_OPTIONS: Final = ("queue", "visible", "deliveries", "front", "kind")

T = TypeVar("T")


def open_queue(
    location: str,
    *,
    key: str | None = None,
    worker: Path | None = None,
    kinds: Sequence[str] = (DEFAULT_KIND,),
) -> Queue:
    """Open the queue that a location names.

    Args:
        location: ``memory:``; ``redis://HOST:PORT/DB?queue=NAME`` (``rediss``, ``unix``; also ``visible=60s``,
            ``deliveries=3``, ``front=right|left``, ``kind=fetch``); or a door's URL or join link.
        key: a requester's or operator's key: pushes to a door.
        worker: the directory of a worker's keys, made where there is none: pops from a door.
        kinds: what a worker pops from a door.

    Raises:
        ConfigurationError: the location makes no sense.
        QueueUnreachable: the Redis doesn't answer; no other queue was used.
        DoorUnreachable: the door doesn't answer.
        DoorRefused: the swarm doesn't admit this worker.
    """
    scheme = location.partition(":")[0]
    if scheme == "memory":
        return MemoryQueue()
    if scheme in {"http", "https"}:
        from swarm.queue.door import open_door_queue

        return open_door_queue(location, key=key, worker=worker, kinds=kinds)
    if scheme not in {"redis", "rediss", "unix"}:
        raise ConfigurationError(
            f"{scheme[:20]!r} names no queue", hint="memory:, redis://HOST/DB?queue=NAME, or a door's https:// link"
        )
    return open_redis_queue(read_redis_url(location, known=QUEUE_OPTIONS))


def open_redis_queue(where: RedisUrl) -> RedisQueue:
    """Open a queue in Redis, and see that it answers.

    Raises:
        ConfigurationError: an option's value makes no sense.
        QueueUnreachable: it doesn't answer.
    """
    from swarm.queue.redis_queue import RedisQueue

    queue = RedisQueue(
        where,
        name=option(where, "queue", text, DEFAULT_NAME),
        visible_s=option(where, "visible", duration_s, VISIBLE_S),
        max_deliveries=option(where, "deliveries", count(1, 1_000), MAX_DELIVERIES),
        front=option(where, "front", choice("right", "left"), "right"),
        kind=option(where, "kind", text, DEFAULT_KIND),
    )
    try:
        queue.check()
    except BaseException:
        queue.close()
        raise
    return queue


def option(where: RedisUrl, name: str, parse: Callable[[str], Any], default: T) -> T:
    """One option of a Redis URL.

    Raises:
        ConfigurationError: its value can't be read.
    """
    said = where.options.get(name)
    if said is None:
        return default
    try:
        return parse(said)  # type: ignore[no-any-return]
    except ValueError as fault:
        raise ConfigurationError(f"{name}={said!r} in the URL of {where.shown} isn't {fault}") from fault
