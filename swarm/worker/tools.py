"""What an executor may use: guarded fetching, counted, and a place for contents, bound to one grant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import trio

from swarm.content.manifest import ContentRef
from swarm.door_client import DoorClient
from swarm.executors.base import Capture, TaskFailed, Tools
from swarm.executors.parser import Parser
from swarm.identity import Identity
from swarm.model import Address, Reason
from swarm.turn_wire import Grant
from swarm.web.fetcher import Fetcher, FetchSettings, open_fetcher
from swarm.worker.dispatch import Counters
from swarm.worker.settings import WorkerSettings
from swarm.worker.storage import Storage

#: Rules that came with a grant are good for about its lease; then the door is asked.
GRANTED_RULES_FRESH_S: Final = 300.0
#: A page may grow so much when it is decompressed.
DECOMPRESSED_PER_BYTE: Final = 4


def fetcher_for(settings: WorkerSettings, identity: Identity, door: DoorClient) -> AbstractAsyncContextManager[Fetcher]:
    """A fetcher under the owner's limits, which asks the door for robots.txt."""
    limits = FetchSettings(
        max_bytes=settings.max_body_bytes,
        max_decompressed_bytes=DECOMPRESSED_PER_BYTE * settings.max_body_bytes,
        timeout_s=settings.fetch_timeout_s,
        allow_private=settings.allow_private,
        contact=settings.contact,
    )
    return open_fetcher(limits, robots=door.robots, worker=identity.address)


def learn_rules(fetcher: Fetcher, grant: Grant) -> None:
    """Take the rules of robots.txt that came with a grant, so that the door needn't be asked."""
    if grant.robots is not None:
        fetcher.learn(grant.task.urls[0], grant.robots, fresh_s=GRANTED_RULES_FRESH_S)


def tools_for(
    get: Callable[[str], Awaitable[Capture]],
    learn: Callable[[Grant], None],
    parser: Parser,
    storage: Storage,
    counters: Counters,
    *,
    worker: Address,
    max_bytes: int,
    stop_overdue: Callable[[], None] = lambda: None,
) -> Callable[[Grant], Tools]:
    """Makes the tools of each grant.

    Args:
        get: gets one page under the guard.
        learn: told the rules of robots.txt that came with a grant.
        parser: runs selectors over pages; its processes serve one task after another.
        storage: where contents are kept.
        counters: count what is fetched.
        worker: the worker's address.
        max_bytes: a content of more could never be kept here, so it fails its task instead of waiting for room.
        stop_overdue: stops what its lease doesn't cover any more. The machine may have slept: then whatever watches the
            leases hasn't woken yet, and no request may leave before it.
    """

    async def fetch(url: str) -> Capture:
        stop_overdue()
        await trio.lowlevel.checkpoint_if_cancelled()
        counters.requests_sent += 1
        try:
            capture = await get(url)
        except TaskFailed:
            counters.requests_failed += 1
            raise
        counters.bytes_downloaded += len(capture.body)
        return capture

    async def store(fence: int, data: bytes) -> ContentRef:
        if len(data) > max_bytes:
            raise TaskFailed(Reason.TOO_LARGE, f"{len(data)} bytes where this worker keeps at most {max_bytes}")
        return await storage.store(fence, data)

    def make(grant: Grant) -> Tools:
        learn(grant)
        return Tools(fetch=fetch, store=partial(store, grant.fence), worker=worker, parser=parser)

    return make
