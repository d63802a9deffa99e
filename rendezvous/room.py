"""Make room in a full store: what the ledger doesn't name goes before anybody is told that the store is full.

A put that doesn't fit starts a collection, seldom, and waits for it a little; whoever comes meanwhile waits with it.
What was put lately is spared, since its result may not be recorded yet. Where a collection can't be had, or doesn't
help, the put is refused as it would have been.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

import structlog

from rendezvous.store import RootStore
from swarm.blocks import ABANDONED_AFTER_S
from swarm.errors import StoreFull, SwarmError
from swarm.model import Cid

__all__ = ["make_room"]

log = structlog.get_logger()

#: It reads every result of the ledger; what it couldn't free now it can't free a moment later.
COLLECT_EVERY_S: Final = 600.0
#: How long a put waits for it; workers give up on an upload after 30 s, and come again.
WAIT_S: Final = 10.0

#: Removes what isn't needed; how many blocks, and their bytes.
_Collect = Callable[[], Awaitable[tuple[int, int]]]


@contextlib.asynccontextmanager
async def make_room(
    store: RootStore, collect: _Collect, *, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[RootStore]:
    """The same store, that collects when it is full.

    Args:
        store: the one that may be full.
        collect: removes what the ledger doesn't name.
        clock: monotonic seconds.

    *Resource handling*: a collection that is under way ends with the block.
    """
    roomy = _RoomyStore(store, collect, clock=clock)
    try:
        yield roomy
    finally:
        await roomy.stop()


class _RoomyStore:
    """See ``make_room``."""

    def __init__(self, store: RootStore, collect: _Collect, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._collect = collect
        self._clock = clock
        self._collecting: asyncio.Task[None] | None = None
        self._collected_at: float | None = None

    async def put(self, cid: Cid, data: bytes) -> None:
        """See ``RootStore``."""
        try:
            await self._store.put(cid, data)
        except StoreFull:
            if not await self._room():
                raise
            await self._store.put(cid, data)

    async def _room(self) -> bool:
        """Whether a collection ended just now, so that it is worth another try."""
        if self._collecting is None:
            if self._collected_at is not None and self._clock() - self._collected_at < COLLECT_EVERY_S:
                return False
            self._collecting = asyncio.create_task(self._make_room())
        done, _ = await asyncio.wait({self._collecting}, timeout=WAIT_S)
        return bool(done)

    async def _make_room(self) -> None:
        began = self._clock()
        try:
            removed, freed_bytes = await self._collect()
            log.info("store_collected", blocks=removed, freed_bytes=freed_bytes, took_s=round(self._clock() - began, 3))
        except SwarmError as fault:  # the put that asked for it is refused; the next one tries again, later
            log.warning("store_not_collected", reason=str(fault))
        finally:
            self._collected_at = self._clock()
            self._collecting = None

    async def stop(self) -> None:
        """End what is under way."""
        if (collecting := self._collecting) is not None:
            collecting.cancel()
            await asyncio.wait({collecting})  # awaited by itself its cancellation couldn't be told from our own

    async def get(self, cid: Cid) -> bytes | None:
        """See ``RootStore``."""
        return await self._store.get(cid)

    async def has(self, cid: Cid) -> bool:
        """See ``RootStore``."""
        return await self._store.has(cid)

    async def missing(self, cid: Cid, *, size_bytes: int | None = None) -> list[Cid]:
        """See ``RootStore``."""
        return await self._store.missing(cid, size_bytes=size_bytes)

    async def read(self, cid: Cid, max_bytes: int) -> bytes | None:
        """See ``RootStore``."""
        return await self._store.read(cid, max_bytes)

    async def delete(self, cid: Cid) -> bool:
        """See ``RootStore``."""
        return await self._store.delete(cid)

    async def peer_ids(self) -> tuple[str, ...]:
        """See ``RootStore``."""
        return await self._store.peer_ids()

    async def cids(self) -> list[Cid]:
        """See ``RootStore``."""
        return await self._store.cids()

    async def collect(self, keep: Iterable[Cid], *, min_age_s: float = ABANDONED_AFTER_S) -> tuple[int, int]:
        """See ``RootStore``."""
        return await self._store.collect(keep, min_age_s=min_age_s)
