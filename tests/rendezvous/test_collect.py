"""Collecting beside a running root."""

from __future__ import annotations

from pathlib import Path

import pytest

from rendezvous import collect as collect_module
from rendezvous.collect import collect
from rendezvous.directory import find_directory
from rendezvous.ledger.queries import LedgerReader
from rendezvous.settings import RootSettings
from rendezvous.store import RootStore
from swarm.content.cid import raw_cid
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
