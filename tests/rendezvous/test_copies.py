"""Manifests that came inside turns get into the operator's Kubo: later, whatever happens, and not for nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rendezvous import copies
from rendezvous.copies import copy_manifests, waking
from rendezvous.store import DirectoryStore
from swarm.blocks import BlockStore
from swarm.content.cid import raw_cid
from swarm.errors import IpfsUnreachable
from swarm.model import Cid
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import Stage, Worker, door

KUBO = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


class Away(DirectoryStore):
    """A store that can be away, and counts what is put."""

    def __init__(self, path: Path) -> None:
        super().__init__(BlockStore(path, max_bytes=None))
        self.is_away = False
        self.puts: list[Cid] = []

    async def put(self, cid: Cid, data: bytes) -> None:
        if self.is_away:
            raise IpfsUnreachable("/ip4/127.0.0.1/tcp/5001", "connection refused")
        await super().put(cid, data)
        self.puts.append(cid)


@contextlib.asynccontextmanager
async def copying(stage: Stage, store: Away, file: Path, *, kubo: str = KUBO) -> AsyncIterator[None]:
    woken = asyncio.Event()
    with waking(stage.door.ledger, woken):
        job = asyncio.create_task(copy_manifests(stage.door.ledger, store, woken, file=file, kubo=kubo))
        try:
            yield
        finally:
            job.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await job


async def complete(stage: Stage, worker: Worker, number: int) -> list[Cid]:
    """Complete tasks with their manifests inline; the CIDs."""
    requester = await stage.requester("alice")
    await stage.submit(requester, number)
    grants = (await worker.take(want=number, free=number))["grants"]
    done = [worker.done(grant) for grant in grants]
    answer = await worker.take(done=done)
    assert [one.get("error") for one in answer["outcomes"]] == [None] * number
    return [one["cid"] for one in done]


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - it happens in a thread and a file
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "PAUSE_S", 0.0)
    monkeypatch.setattr(copies, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(copies, "LAST_RETRY_S", 0.01)


async def test_manifests_from_before_the_start_and_of_a_moment_ago_are_copied(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        worker, store = await stage.worker("bob"), Away(tmp_path / "kubo")
        before = await complete(stage, worker, 3)
        async with copying(stage, store, tmp_path / "copies.json"):
            await eventually(lambda: len(store.puts) == 3)
            after = await complete(stage, worker, 2)
            await eventually(lambda: len(store.puts) == 5)

        assert set(store.puts) == {*before, *after}
        for cid in store.puts:
            body = await store.get(cid)
            assert body is not None
            assert raw_cid(body) == cid


async def test_a_store_that_is_away_holds_up_no_turn_and_gets_all_later(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        worker, store = await stage.worker("bob"), Away(tmp_path / "kubo")
        store.is_away = True
        with capture_logs() as logs:
            async with copying(stage, store, tmp_path / "copies.json"):
                made = await complete(stage, worker, 4)
                await eventually(lambda: any(line["event"] == "manifest_copies_wait" for line in logs))
                made += await complete(stage, worker, 1)
                store.is_away = False
                await eventually(lambda: set(store.puts) == set(made))
                await eventually(lambda: any(line["event"] == "manifest_copies_resumed" for line in logs))

        assert len([line for line in logs if line["event"] == "manifest_copies_wait"]) == 1


async def test_the_next_start_goes_on_where_the_last_one_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "GO_BACK_EVENTS", 0)
    file = tmp_path / "copies.json"
    async with door(tmp_path) as stage:
        worker, store = await stage.worker("bob"), Away(tmp_path / "kubo")
        async with copying(stage, store, file):
            first = await complete(stage, worker, 2)
            last = await stage.door.ledger.read(lambda reader: reader.last_event_id())
            await eventually(lambda: file.exists() and json.loads(file.read_text())["event"] == last)
        second = await complete(stage, worker, 2)
        async with copying(stage, store, file):
            await eventually(lambda: len(store.puts) == 4)

        assert set(store.puts[:2]) == set(first)
        assert set(store.puts[2:]) == set(second)


@pytest.mark.parametrize("note", [None, b"nonsense", b'{"kubo": "another", "event": 1000000}'])
async def test_a_new_kubo_gets_everything(tmp_path: Path, note: bytes | None) -> None:
    file = tmp_path / "copies.json"
    if note is not None:
        file.write_bytes(note)
        file.chmod(0o600)
    async with door(tmp_path) as stage:
        worker, store = await stage.worker("bob"), Away(tmp_path / "kubo")
        made = await complete(stage, worker, 3)
        async with copying(stage, store, file):
            await eventually(lambda: set(store.puts) == set(made))


async def test_a_damaged_row_doesnt_hold_up_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with door(tmp_path) as stage:
        worker, store = await stage.worker("bob"), Away(tmp_path / "kubo")
        made = await complete(stage, worker, 2)

        class Damaged:
            async def read(self, query: Callable[..., object]) -> object:
                found = await stage.door.ledger.read(query)  # type: ignore[arg-type]
                return [(made[0], b"rotten"), *found] if isinstance(found, list) else found

            subscribe = stage.door.ledger.subscribe

        job = asyncio.create_task(
            copy_manifests(Damaged(), store, asyncio.Event(), file=tmp_path / "copies.json", kubo=KUBO)  # type: ignore[arg-type]
        )
        await eventually(lambda: set(store.puts) == set(made))
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job
