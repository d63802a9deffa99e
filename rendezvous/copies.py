"""Small manifests also in the operator's Kubo, so that its gateway shows each result (DESIGN §10).

A manifest that came inside a turn is stored by the ledger, with the completion, and by nobody else: no turn waits for
Kubo. What is copied follows the ledger's history at its own pace, from a place that is noted on disk: whatever is lost
on the way (Kubo away or full, the root killed) is copied later. Putting twice is harmless, so the place is noted
seldom, and a start goes some way back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.ops import LedgerEvent
from rendezvous.store import RootStore
from swarm.errors import ConfigurationError, ContentMismatch, MalformedInput, SwarmError
from swarm.identity import read_private, write_private
from swarm.model import Cid, Move

__all__ = ["copy_manifests", "waking"]

log = structlog.get_logger()

#: Events that are looked through at a time, at most as many manifests of 4 KiB each.
WINDOW_EVENTS: Final = 500
#: Manifests that are put at a time. Kubo takes a few milliseconds each.
AT_ONCE: Final = 4
#: The pause after so many: a flood of results is copied at some hundred a second, and the loop is left to the turns.
PAUSE_AFTER: Final = 32
PAUSE_S: Final = 0.2
#: Looked for without a sign this often: another root of the swarm may have completed something.
LOOK_S: Final = 30.0
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 60.0
#: A start goes back so many events: roots that share a ledger commit out of order, and the place is noted seldom.
GO_BACK_EVENTS: Final = 2_000


class Place(msgspec.Struct, frozen=True):
    """How far was copied, and into which Kubo; another one gets everything."""

    kubo: str
    event: int


@contextlib.contextmanager
def waking(ledger: Ledger, woken: asyncio.Event) -> Iterator[None]:
    """Set the event at each completion while the block is open."""

    def listen(events: Sequence[LedgerEvent]) -> None:
        if any(event.move is Move.COMPLETE for event in events):
            woken.set()

    unsubscribe = ledger.subscribe(listen)
    try:
        yield
    finally:
        unsubscribe()


async def copy_manifests(
    ledger: Ledger, store: RootStore, woken: asyncio.Event, *, file: Path, kubo: str, look_s: float = LOOK_S
) -> None:
    """Copy what came inline into the store, from where an earlier start left off; for ever.

    Args:
        ledger: who has them.
        store: where they go; a Kubo's.
        woken: set where there may be something new.
        file: where the place is noted.
        kubo: which Kubo the store is, by peer id or address.
        look_s: how often to look without being woken, seconds.
    """
    at = _read_place(file, kubo)
    retry = _Retry()
    while True:
        woken.clear()
        try:
            last = await ledger.read(lambda reader: reader.last_event_id())
            at = min(at, last)  # a ledger that was brought back from a copy is younger
            while at < last:
                at = await _copy_window(ledger, store, at, min(at + WINDOW_EVENTS, last))
                await asyncio.to_thread(_write_place, file, Place(kubo, at))
        except SwarmError as fault:  # Kubo is away or full, or the database is; nothing of it concerns a turn
            await retry.after(fault)
            continue
        retry.over()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(look_s):
                await woken.wait()


class _Retry:
    """Growing waits; an outage is said once at its begin and once at its end."""

    def __init__(self) -> None:
        self._wait_s = FIRST_RETRY_S
        self._is_down = False

    async def after(self, fault: SwarmError) -> None:
        if not self._is_down:
            self._is_down = True
            log.warning("manifest_copies_wait", reason=str(fault))
        await asyncio.sleep(self._wait_s)
        self._wait_s = min(self._wait_s * 2, LAST_RETRY_S)

    def over(self) -> None:
        if self._is_down:
            log.info("manifest_copies_resumed")
        self._wait_s, self._is_down = FIRST_RETRY_S, False


async def _copy_window(ledger: Ledger, store: RootStore, after: int, up_to: int) -> int:
    """Copy what was completed after one event, up to another, which is returned."""
    found = await ledger.read(lambda reader: reader.inline_manifests(after, up_to))
    for start in range(0, len(found), PAUSE_AFTER):
        await _copy(store, found[start : start + PAUSE_AFTER])
        await asyncio.sleep(PAUSE_S)
    return up_to


async def _copy(store: RootStore, manifests: Sequence[tuple[Cid, bytes]]) -> None:
    """Put some manifests, few at a time.

    Raises:
        SwarmError: the store doesn't take one of them now.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def put(cid: Cid, body: bytes) -> SwarmError | None:
        async with limit:
            try:
                await store.put(cid, body)
            except (ContentMismatch, MalformedInput) as fault:  # a damaged row must not hold up the rest for ever
                log.error("manifest_not_copied", cid=cid, reason=str(fault))
            except SwarmError as fault:
                return fault
        return None

    faults = [fault for fault in await asyncio.gather(*(put(cid, body) for cid, body in manifests)) if fault]
    if faults:
        raise faults[0]


def _read_place(file: Path, kubo: str) -> int:
    """Where to begin; at the beginning where the file is new, of another Kubo, or damaged."""
    try:
        body = read_private(file)
        place = msgspec.json.decode(body, type=Place) if body is not None else None
    except (ConfigurationError, msgspec.MsgspecError) as fault:
        log.warning("copies_begin_anew", reason=f"{file}: {fault}")
        place = None
    return max(0, place.event - GO_BACK_EVENTS) if place is not None and place.kubo == kubo else 0


def _write_place(file: Path, place: Place) -> None:
    try:
        write_private(file, msgspec.json.encode(place) + b"\n")
    except OSError as fault:  # a full disk: the next start goes back further
        log.warning("copies_place_not_noted", reason=str(fault))
