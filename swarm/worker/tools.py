"""What an executor may use: guarded fetching, counted, and a place for contents, bound to one grant."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from swarm.door_client import DoorClient
from swarm.executors.base import Capture, TaskFailed, Tools
from swarm.identity import Identity
from swarm.web.fetcher import Fetcher, FetchSettings, open_fetcher
from swarm.wire import Grant
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


def tools_for(fetcher: Fetcher, storage: Storage, counters: Counters, identity: Identity) -> Callable[[Grant], Tools]:
    """Makes the tools of each grant."""

    def make(grant: Grant) -> Tools:
        if grant.robots is not None:
            fetcher.learn(grant.task.urls[0], grant.robots, fresh_s=GRANTED_RULES_FRESH_S)

        async def fetch(url: str) -> Capture:
            counters.requests_sent += 1
            try:
                capture = await fetcher.get(url)
            except TaskFailed:
                counters.requests_failed += 1
                raise
            counters.bytes_downloaded += len(capture.body)
            return capture

        return Tools(fetch=fetch, store=lambda data: storage.store(grant.fence, data), worker=identity.address)

    return make
