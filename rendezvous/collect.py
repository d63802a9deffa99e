"""Which contents must stay: the results that the ledger names, and all that their manifests name.

A content that no ledger row names any more (its task was archived, its upload was never completed) may go. What was
stored lately is spared: its completion may still be on its way.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Final

import structlog

from rendezvous.directory import RootDirectory
from rendezvous.ledger.engine import open_reading_engine
from rendezvous.ledger.queries import LedgerReader
from rendezvous.settings import RootSettings
from rendezvous.store import RootStore, open_store
from swarm.blocks import ABANDONED_AFTER_S
from swarm.content.manifest import decode_manifest
from swarm.errors import ConfigurationError, MalformedInput
from swarm.model import Cid
from swarm.wire import MAX_MANIFEST_BYTES

__all__ = ["collect", "collect_from", "kept_contents"]

log = structlog.get_logger()

#: Results whose names are read from the ledger at once.
RESULTS_AT_ONCE: Final = 1_000


async def collect(settings: RootSettings, directory: RootDirectory, *, min_age_s: float) -> tuple[int, int]:
    """Remove the blocks that no result needs. The root may be running.

    Returns:
        How many blocks were removed, and their bytes.
    """
    engine = open_reading_engine(settings.ledger or directory.ledger_url)
    try:
        reader = LedgerReader(engine)

        async def inline(cid: Cid) -> bytes | None:
            return reader.manifest(cid)

        async with open_store(directory.blocks, ipfs=settings.ipfs, inline=inline) as store:
            return await collect_from(store, reader, min_age_s=min_age_s)
    finally:
        engine.dispose()


async def collect_from(
    store: RootStore, reader: LedgerReader, *, min_age_s: float = ABANDONED_AFTER_S
) -> tuple[int, int]:
    """Remove from a store what no result of a ledger needs.

    Args:
        store: any of the root's.
        reader: asked in threads, a page of results at a time.
        min_age_s: spare what was put so lately.

    Returns:
        How many blocks were removed, and their bytes.

    Raises:
        ConfigurationError: see ``kept_contents``.
        LedgerUnavailable: the ledger can't be read.
    """
    started = time.monotonic()
    kept = await kept_contents(reader, store)
    # What was put since the ledger was read may have a result that isn't among these.
    return await store.collect(kept, min_age_s=min_age_s + time.monotonic() - started)


async def kept_contents(reader: LedgerReader, store: RootStore) -> set[Cid]:
    """The roots of all contents that the ledger's results need.

    Raises:
        ConfigurationError: a manifest that the ledger names can't be read, so what it names isn't known: better keep
            everything than lose a result.
    """
    kept: set[Cid] = set()
    results = reader.result_cids()
    while page := await asyncio.to_thread(lambda: list(itertools.islice(results, RESULTS_AT_ONCE))):
        for cid in page:
            if cid not in kept:
                kept.add(cid)
                kept.update(await _named(cid, store))
    return kept


async def _named(cid: Cid, store: RootStore) -> list[Cid]:
    """What a result's manifest names.

    Raises:
        ConfigurationError: it can't be read.
    """
    body = await store.read(cid, MAX_MANIFEST_BYTES)
    try:
        manifest = decode_manifest(body) if body is not None else None
    except MalformedInput:
        manifest = None
    if manifest is None:
        raise ConfigurationError(
            f"the result {cid} can't be read, so nothing was deleted", hint="bring the block back from a copy"
        )
    return [ref.cid for ref in manifest.named()]
