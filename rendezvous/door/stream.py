"""``GET /v1/events``: the history as it is written, as server-sent events.

The newest events are kept in a ring, encoded once for all readers; each reader has only a cursor, so that a slow one
costs no memory. A cursor older than the ring is served from the ledger. Chunks leave at most every ``GATHER_S``: it
takes 2 % of a core for 50 readers at 500 events/s, where single writes take 24 % (facts/ledger.md §6).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs
from aiohttp import web

from rendezvous.door.call import Call, Caller
from rendezvous.door.numbers import whole_number
from rendezvous.door.resources import Door
from rendezvous.ledger.ops import LedgerEvent
from swarm.model import Refusal, RefusalCode, Role
from swarm.wire import MAX_INT, EventView, encode

if TYPE_CHECKING:
    from rendezvous.ledger.queries import LedgerReader

__all__ = ["EventStream", "events", "view_of"]

PING_S: Final = 20.0
GATHER_S: Final = 0.05
RING: Final = 10_000
#: Events of one chunk, and of one read from the ledger.
CHUNK: Final = 500
#: A reader that doesn't take a chunk in this time is cut, seconds.
SEND_TIMEOUT_S: Final = 20.0
#: All readers together; each is a socket and a cursor.
MAX_READERS: Final = 512
#: Of one key: nobody takes all the places.
MAX_READERS_A_KEY: Final = 32


def view_of(event: LedgerEvent) -> EventView:
    """An event as its owner and the operator see it."""
    return EventView(
        id=event.id,
        task=event.task,
        seq=event.seq,
        source=event.source.value if event.source else None,
        to=event.to.value,
        by=event.by.value,
        who=event.who,
        fence=event.fence,
        reason=event.reason,
        detail=event.detail,
        at=event.at,
        move=event.move.value,
        job=event.job,
    )


@attrs.define
class _Kept:
    """An event of the ring; encoded when the first reader wants it, for all of them."""

    id: int
    owner: str | None
    worker: str | None
    job: str | None
    task: str
    event: LedgerEvent | EventView
    _chunk: bytes | None = None

    @property
    def chunk(self) -> bytes:
        """The event as it is sent."""
        if self._chunk is None:
            view = view_of(self.event) if isinstance(self.event, LedgerEvent) else self.event
            self._chunk = b"id: %d\nevent: %s\ndata: %s\n\n" % (view.id, view.move.encode(), encode(view))
        return self._chunk


class EventStream:
    """The newest events, encoded, and who waits for more.

    Args:
        last_id: the newest event of the ledger at start.
    """

    def __init__(self, last_id: int) -> None:
        self._ring: deque[_Kept] = deque(maxlen=RING)
        self._more: asyncio.Event = asyncio.Event()
        self._readers: Counter[bytes] = Counter()
        self.last_id = last_id

    @property
    def readers(self) -> int:
        """How many streams are open."""
        return self._readers.total()

    @contextlib.contextmanager
    def reading(self, key: bytes) -> Iterator[bool]:
        """Take a place while the block is open; False where there is none."""
        if self.readers >= MAX_READERS or self._readers[key] >= MAX_READERS_A_KEY:
            yield False
            return
        self._readers[key] += 1
        try:
            yield True
        finally:
            self._readers[key] -= 1
            self._readers += Counter()  # drops those without streams

    def take(self, new: Sequence[LedgerEvent]) -> None:
        """Keep what was just committed, and wake who waits."""
        for event in new:
            worker = event.worker.address if event.worker else None
            self._ring.append(_Kept(event.id, event.owner, worker, event.job, event.task, event))
            self.last_id = event.id
        self.wake()

    def wake(self) -> None:
        """Let everybody who waits look again: there is more, or the root is stopping."""
        more, self._more = self._more, asyncio.Event()
        more.set()

    def covers(self, cursor: int) -> bool:
        """Whether all events after the cursor are in the ring."""
        return cursor >= self.last_id or (bool(self._ring) and self._ring[0].id <= cursor + 1)

    def after(self, cursor: int) -> list[_Kept]:
        """Up to ``CHUNK`` events after the cursor."""
        found: list[_Kept] = []
        for kept in reversed(self._ring):
            if kept.id <= cursor:
                break
            found.append(kept)
        found.reverse()
        return found[:CHUNK]

    def more(self) -> asyncio.Event:
        """Set at the next commit."""
        return self._more


def _wanted(caller: Caller, job: str | None, task: str | None) -> Callable[[_Kept], bool]:
    """Which events a caller gets: an owner its own, a worker those of its leases, the operator all."""

    def is_wanted(kept: _Kept) -> bool:
        if caller.role is Role.REQUESTER and kept.owner != caller.owner:
            return False
        if caller.role is Role.WORKER and kept.worker != caller.owner:
            return False
        return (job is None or kept.job == job) and (task is None or kept.task == task)

    return is_wanted


async def events(door: Door, call: Call) -> web.StreamResponse | Refusal:
    """Stream events from ``Last-Event-ID`` on, or from now."""
    said = call.request.headers.get("Last-Event-ID") or call.queries["after"]
    cursor = (
        whole_number(said, at_most=MAX_INT) if said else await door.ledger.read(lambda reader: reader.last_event_id())
    )
    if cursor is None:
        return Refusal(RefusalCode.BAD_REQUEST, "Last-Event-ID is the id of an event: a whole number")
    with door.stream.reading(call.who.digest) as has_place:
        if not has_place:
            return Refusal(RefusalCode.RATE_LIMITED, "too many event streams are open; close one, or wait", PING_S)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        await response.prepare(call.request)
        # A reader that left, or is too slow, comes back with Last-Event-ID.
        with contextlib.suppress(ConnectionError, TimeoutError):
            await _send(response, b": open\n\n")
            await _follow(door, call, response, cursor)
        return response


async def _follow(door: Door, call: Call, response: web.StreamResponse, cursor: int) -> None:
    is_wanted = _wanted(call.who, call.queries["job"], call.queries["task"])
    while not door.is_stopping():
        more = door.stream.more()
        found, through = await _next(door, call.who, cursor)
        cursor = max(cursor, through)
        wanted = [kept.chunk for kept in found if is_wanted(kept)]
        if wanted:
            await _send(response, b"".join(wanted))
        if found:
            await asyncio.sleep(GATHER_S)
            continue
        try:
            async with asyncio.timeout(PING_S):
                await more.wait()
        except TimeoutError:
            await _send(response, b": ping\n\n")


async def _next(door: Door, caller: Caller, cursor: int) -> tuple[list[_Kept], int]:
    if door.stream.covers(cursor):
        found = door.stream.after(cursor)
        return found, found[-1].id if found else cursor
    owner = caller.owner if caller.role is Role.REQUESTER else None

    def look(reader: LedgerReader) -> tuple[int, Sequence[EventView]]:
        newest = reader.last_event_id()  # first: what is committed meanwhile must not be skipped
        return newest, reader.events_after(cursor, owner, CHUNK)

    newest, views = await door.ledger.read(look)
    kept = [_Kept(view.id, owner, view.who, view.job, view.task, view) for view in views]
    if len(kept) < CHUNK:
        return kept, max(cursor, newest, kept[-1].id if kept else 0)
    return kept, kept[-1].id


async def _send(response: web.StreamResponse, chunk: bytes) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await response.write(chunk)
