"""Collecting beside a running root."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rendezvous import collect as collect_module
from rendezvous.collect import collect, collect_from
from rendezvous.directory import find_directory
from rendezvous.ledger.queries import LedgerReader
from rendezvous.room import COLLECT_EVERY_S, make_room
from rendezvous.settings import RootSettings
from rendezvous.store import DirectoryStore, RootStore
from swarm.blocks import BlockStore
from swarm.content.cid import raw_cid
from swarm.content.manifest import ContentRef, UrlOutcome
from swarm.errors import LedgerUnavailable, StoreFull
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import door


async def test_what_is_put_after_the_ledger_was_read_is_not_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_ledger = collect_module.kept_contents

    async def read_then_put(reader: LedgerReader, store: RootStore) -> set[str]:
        kept = await read_ledger(reader, store)
        await store.put(raw_cid(b"just now"), b"just now")
        return kept

    monkeypatch.setattr(collect_module, "kept_contents", read_then_put)
    settings = RootSettings(data=tmp_path / "root", p2p=False)
    async with door(tmp_path) as stage:
        await stage.door.store.put(raw_cid(b"abandoned"), b"abandoned")
        assert await collect(settings, find_directory(settings.data), min_age_s=0.0) == (1, 9)
        assert await stage.door.store.get(raw_cid(b"just now")) == b"just now"


def age(directory: Path, *, by_s: float) -> None:
    """Make all stored blocks older."""
    then = time.time() - by_s
    for block in directory.rglob("bafkrei*"):
        os.utime(block, (then, then))


async def test_a_full_store_makes_room_by_what_no_result_names_and_keeps_what_one_does(tmp_path: Path) -> None:
    async with door(tmp_path, max_disk=3_000) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 1)
        (grant,) = (await alice.take(want=1))["grants"]
        body = os.urandom(1_000)
        manifest = alice.manifest(
            grant["task"]["id"],
            outcomes=(UrlOutcome(url=grant["task"]["urls"][0], body=ContentRef(cid=raw_cid(body), size_bytes=1_000)),),
        )
        store = stage.door.store
        await store.put(raw_cid(body), body)
        done = {"task": grant["task"]["id"], "fence": grant["fence"], "cid": raw_cid(manifest), "manifest": manifest}
        (outcome,) = (await alice.take(done=[done]))["outcomes"]
        assert outcome["status"] == "completed"
        abandoned, fresh, late = (os.urandom(1_000) for _ in range(3))
        await store.put(raw_cid(abandoned), abandoned)
        age(tmp_path, by_s=7_200.0)
        await store.put(raw_cid(fresh), fresh)

        await store.put(raw_cid(late), late)

        assert not await store.has(raw_cid(abandoned))
        assert await store.get(raw_cid(body)) == body
        assert await store.get(raw_cid(fresh)) == fresh
        assert await store.get(raw_cid(late)) == late
        with pytest.raises(StoreFull):
            await store.put(raw_cid(b"more"), b"more")


class Collector:
    """Counts how often it is asked to collect."""

    def __init__(self, store: DirectoryStore) -> None:
        self.times = 0
        self.fault: LedgerUnavailable | None = None
        self._store = store

    async def __call__(self) -> tuple[int, int]:
        self.times += 1
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return await self._store.collect([], min_age_s=-1.0)


async def test_a_store_that_stays_full_is_collected_seldom(tmp_path: Path) -> None:
    full = DirectoryStore(BlockStore(tmp_path, max_bytes=4))
    collector, now = Collector(full), 0.0
    async with make_room(full, collector, clock=lambda: now) as store:
        for _ in range(3):
            with pytest.raises(StoreFull):
                await store.put(raw_cid(b"12345"), b"12345")
        assert collector.times == 1
        now += COLLECT_EVERY_S
        with pytest.raises(StoreFull):
            await store.put(raw_cid(b"12345"), b"12345")
        assert collector.times == 2


async def test_those_who_come_together_wait_for_one_collection(tmp_path: Path) -> None:
    full = DirectoryStore(BlockStore(tmp_path, max_bytes=4))
    collector = Collector(full)
    async with make_room(full, collector) as store:
        await store.put(raw_cid(b"1234"), b"1234")
        async with asyncio.TaskGroup() as group:
            for body in (b"ab", b"cd"):
                group.create_task(store.put(raw_cid(body), body))
        assert collector.times == 1
        assert await store.has(raw_cid(b"ab"))
        assert await store.has(raw_cid(b"cd"))


async def test_a_full_store_whose_ledger_is_away_is_full(tmp_path: Path) -> None:
    full = DirectoryStore(BlockStore(tmp_path, max_bytes=4))
    collector = Collector(full)
    collector.fault = LedgerUnavailable("ledger.sqlite", "gone")
    async with make_room(full, collector) as store:
        with pytest.raises(StoreFull):
            await store.put(raw_cid(b"12345"), b"12345")
    assert collector.times == 1


async def test_who_is_cancelled_while_a_collection_ends_is_cancelled(tmp_path: Path) -> None:
    full = DirectoryStore(BlockStore(tmp_path, max_bytes=4))
    begun, ending, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    puts: list[asyncio.Task[None]] = []

    async def collect_slowly() -> tuple[int, int]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await may_end.wait()
        return 0, 0

    async def serve() -> None:
        async with make_room(full, collect_slowly) as store:
            puts.append(asyncio.create_task(store.put(raw_cid(b"12345"), b"12345")))
            await begun.wait()

    async with asyncio.timeout(PATIENCE_S):
        serving = asyncio.create_task(serve())
        await ending.wait()
        serving.cancel()
        await asyncio.wait({serving})
        may_end.set()
        assert serving.cancelled()
        assert isinstance((await asyncio.gather(*puts, return_exceptions=True))[0], StoreFull)


async def test_the_ledger_is_read_for_a_collection_while_the_loop_goes_on(tmp_path: Path) -> None:
    goes_on = threading.Event()

    class SlowReader:
        def result_cids(self) -> Iterator[str]:
            assert goes_on.wait(PATIENCE_S), "the loop stood still while the ledger was read"
            yield from ()

    store = DirectoryStore(BlockStore(tmp_path, max_bytes=None))
    await store.put(raw_cid(b"old"), b"old")
    collecting = asyncio.create_task(collect_from(store, cast(Any, SlowReader()), min_age_s=-10.0))
    await asyncio.sleep(0)
    goes_on.set()
    assert (await collecting)[0] == 1
