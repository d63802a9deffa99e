"""Where a worker keeps contents: its block store, with what is still needed protected from eviction.

Blocks of accepted results stay until the cap is reached; then all that nothing owed needs goes. What an execution
stores is pinned by its fence until its outcome is in the journal or given up. It knows no door and no uploads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import structlog
import trio

from swarm.blocks import BlockStore
from swarm.content.cid import build
from swarm.content.manifest import ContentRef
from swarm.content.walk import MissingWalk
from swarm.errors import StoreFull, SwarmError
from swarm.model import Cid

log = structlog.get_logger()

#: Below this a content is hashed where we are; a thread costs more.
SMALL_BYTES: Final = 4 * 1024


class ContentLostError(SwarmError):
    """A block of a content isn't in the store any more."""


class Storage:
    """Contents of this worker.

    Args:
        blocks: the store.
        owed: the roots of all contents that the journal still needs.
    """

    def __init__(self, blocks: BlockStore, *, owed: Callable[[], Iterable[Cid]]) -> None:
        self._blocks = blocks
        self._owed = owed
        self._pins: dict[int, set[Cid]] = {}

    async def store(self, fence: int, data: bytes) -> ContentRef:
        """Keep a content for the execution of this fence; makes room by evicting what isn't needed.

        Raises:
            StoreFull: it doesn't fit, even so.
        """
        dag = build(data) if len(data) <= SMALL_BYTES else await trio.to_thread.run_sync(build, data)
        self._pins.setdefault(fence, set()).add(dag.root)
        blocks = tuple(dag.blocks.items())
        try:
            await trio.to_thread.run_sync(self._put, blocks)
        except StoreFull:
            await self.evict()
            await trio.to_thread.run_sync(self._put, blocks)
        return ContentRef(cid=dag.root, size_bytes=len(data))

    def _put(self, blocks: Iterable[tuple[Cid, bytes]]) -> None:
        for cid, block in blocks:
            self._blocks.put(cid, block)

    def keep(self, blocks: Iterable[tuple[Cid, bytes]]) -> None:
        """Keep blocks to serve them, where there is room; nothing of ours needs them. Sync, for a thread."""
        with contextlib.suppress(StoreFull):
            self._put(blocks)

    def release(self, fence: int) -> None:
        """The execution of this fence needs no protection any more: the journal has its outcome, or it has none."""
        self._pins.pop(fence, None)

    async def evict(self) -> None:
        """Remove every block that neither an execution under way nor the journal needs."""
        removed, freed_bytes = await trio.to_thread.run_sync(
            lambda: self._blocks.collect(self._needed_from_thread(), min_age_s=0.0)
        )
        log.info("blocks_evicted", removed=removed, freed_bytes=freed_bytes)

    def _needed_from_thread(self) -> Iterator[Cid]:
        """What is needed once the collection has begun: it spares what slots put from then on."""
        yield from trio.from_thread.run_sync(self._needed)

    def _needed(self) -> set[Cid]:
        return {cid for pinned in self._pins.values() for cid in pinned} | set(self._owed())

    async def get(self, cid: Cid) -> bytes | None:
        """One block, None where it isn't there; what is served to others."""
        return await trio.to_thread.run_sync(self._blocks.get, cid)

    def blocks_of(self, root: Cid) -> Iterator[tuple[Cid, bytes]]:
        """All blocks of a content, the root first. Sync, for a thread.

        Raises:
            ContentLostError: one isn't there.
        """
        walk = MissingWalk(root)
        while (wanted := walk.wanted) is not None:
            block = self._blocks.get(wanted)
            if block is None:
                raise ContentLostError(f"block {wanted} of {root} isn't in the store any more")
            yield wanted, block
            if walk.needs_bytes:
                walk.feed(block)
            else:
                walk.found(len(block))

    @property
    def total_bytes(self) -> int:
        """The size of all blocks."""
        return self._blocks.total_bytes()
