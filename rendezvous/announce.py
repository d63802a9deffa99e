"""Ledger events → gossip batches (DESIGN §5).

Only what can soon be taken is announced: at most ``OFFERS_PER_SLOT`` times the free slots of the workers that may have
it (measured: four to five times the throughput of announcing all), and ``closed`` names only what was announced. A
lost message costs latency, never a task. ``Announcer`` is pure bookkeeping over values and a clock; ``announce`` is the
loop that sends.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs

from rendezvous.ledger.ops import LedgerEvent
from swarm.model import Status, TaskId
from swarm.wire import (
    MAX_CLOSED_PER_MESSAGE,
    MAX_GOSSIP_BYTES,
    MAX_OFFERS_PER_MESSAGE,
    Announcement,
    Offer,
    Requires,
    encode,
)

__all__ = ["Announcer", "Audience", "announce"]

VERSION: Final = 1
#: Messages leave at most this often, seconds: 20 a second is what a Python mesh carries (facts/libp2p.md).
GATHER_S: Final = 0.05
#: Something is said this often, if only an empty message, seconds.
HEARTBEAT_S: Final = 10.0
#: … and this often while a worker that has just come waits for its first word: until then it is nudged, not told.
WELCOME_S: Final = 1.0
OFFERS_PER_SLOT: Final = 2
#: An announced task that nobody asked for in this time (its host is paced, say) doesn't keep others unheard, seconds.
OFFER_LIFE_S: Final = 2.0
#: Announced tasks that are remembered in order to close them.
MAX_REMEMBERED: Final = 20_000
#: Room for all of a message that isn't an offer or a closed id.
_ENVELOPE_BYTES: Final = 400
#: A quoted id and its comma.
_CLOSED_BYTES: Final = 39

#: What decides who may have a task, as far as the announcer cares.
_Class = tuple[str, bytes]


class Audience(Protocol):
    """What the announcer asks of the fleet."""

    def free_slots(self, kind: str, requires: Requires) -> int:
        """Free slots of the workers that hear gossip and may have such a task."""

    def live_count(self) -> int:
        """How many workers are live."""

    def has_newcomer(self) -> bool:
        """Whether a worker that came lately has a peer, and hasn't heard gossip yet."""

    def spread_s(self) -> float:
        """Over how long askers should spread, seconds."""


@attrs.frozen(kw_only=True)
class _Open:
    """A task that was announced, or is about to be."""

    group: _Class
    until: float


class Announcer:
    """Decides what is said, and when.

    Args:
        audience: the fleet.
        root: our peer id.
        epoch: rises from start to start (nanoseconds since 1970).
        clock: monotonic seconds.
    """

    def __init__(self, audience: Audience, *, root: str, epoch: int, clock: Callable[[], float]) -> None:
        self._audience = audience
        self._root = root
        self._epoch = epoch
        self._clock = clock
        self._seq = 0
        self._sent_at = float("-inf")
        self._offers: OrderedDict[TaskId, bytes] = OrderedDict()
        self._offer_of: dict[TaskId, Offer] = {}
        self._closed: OrderedDict[TaskId, None] = OrderedDict()
        #: Announced and not closed yet, the oldest first; those past their life don't count against the cap.
        self._open: OrderedDict[TaskId, _Open] = OrderedDict()
        self._counted: Counter[_Class] = Counter()
        self._lives: OrderedDict[TaskId, _Open] = OrderedDict()

    def take(self, events: Sequence[LedgerEvent]) -> None:
        """Note what happened in the ledger."""
        now = self._clock()
        self._age(now)
        room: dict[_Class, int] = {}
        for event in events:
            if event.to is Status.PENDING:
                self._offer(event, now, room)
            elif event.source is Status.PENDING:
                self._close(event.task)

    def due_in_s(self) -> float:
        """How long until the next message should leave, seconds; 0 is now."""
        since = self._clock() - self._sent_at
        if self._offers or self._closed:
            return max(0.0, GATHER_S - since)
        return max(0.0, (WELCOME_S if self._audience.has_newcomer() else HEARTBEAT_S) - since)

    def message(self) -> bytes:
        """The next message: up to 100 offers and 60 KB; what doesn't fit waits for the one after."""
        self._sent_at = self._clock()
        self._seq += 1
        room_bytes = MAX_GOSSIP_BYTES - _ENVELOPE_BYTES
        offers: list[Offer] = []
        while self._offers and len(offers) < MAX_OFFERS_PER_MESSAGE:
            task, encoded = next(iter(self._offers.items()))
            if len(encoded) + 1 > room_bytes:
                break
            del self._offers[task]
            offers.append(self._offer_of.pop(task))
            room_bytes -= len(encoded) + 1
        closed: list[TaskId] = []
        while self._closed and len(closed) < MAX_CLOSED_PER_MESSAGE and room_bytes >= _CLOSED_BYTES:
            closed.append(self._closed.popitem(last=False)[0])
            room_bytes -= _CLOSED_BYTES
        return encode(
            Announcement(
                v=VERSION,
                root=self._root,
                epoch=self._epoch,
                seq=self._seq,
                offers=tuple(offers),
                closed=tuple(closed),
                live_workers=self._audience.live_count(),
                spread_s=self._audience.spread_s(),
            )
        )

    def _offer(self, event: LedgerEvent, now: float, room: dict[_Class, int]) -> None:
        self._closed.pop(event.task, None)
        if event.task in self._open:
            self._forget(event.task)
        group: _Class = (event.kind, encode(event.requires))
        if group not in room:
            slots = self._audience.free_slots(event.kind, event.requires)
            room[group] = OFFERS_PER_SLOT * slots - self._counted[group]
        if room[group] <= 0:
            return
        room[group] -= 1
        offer = Offer(
            id=event.task,
            kind=event.kind,
            host=event.host,
            priority=event.priority,
            tier=event.tier,
            reward_wei=str(event.reward_wei),
            requires=event.requires,
        )
        self._offer_of[event.task] = offer
        self._offers[event.task] = encode(offer)
        self._open[event.task] = self._lives[event.task] = _Open(group=group, until=now + OFFER_LIFE_S)
        self._counted[group] += 1
        while len(self._open) > MAX_REMEMBERED:
            self._forget(next(iter(self._open)))

    def _close(self, task: TaskId) -> None:
        if task not in self._open:
            return
        unsent = task in self._offers
        self._forget(task)
        if not unsent:
            self._closed[task] = None

    def _forget(self, task: TaskId) -> None:
        self._open.pop(task, None)
        self._offers.pop(task, None)
        self._offer_of.pop(task, None)
        self._uncount(task)

    def _uncount(self, task: TaskId) -> None:
        living = self._lives.pop(task, None)
        if living is not None:
            self._counted[living.group] -= 1
            if self._counted[living.group] <= 0:
                del self._counted[living.group]

    def _age(self, now: float) -> None:
        while self._lives:
            task, living = next(iter(self._lives.items()))
            if living.until > now:
                return
            self._uncount(task)


async def announce(announcer: Announcer, woken: asyncio.Event, publish: Callable[[bytes], None]) -> None:
    """Send until cancelled: at once when idle, else gathered; a heartbeat where there is no news.

    Args:
        announcer: the bookkeeping; somebody else feeds it ``take``.
        woken: set by whoever feeds it.
        publish: hands a message to the peer; never waits.
    """
    while True:
        wait_s = announcer.due_in_s()
        if wait_s > 0:
            woken.clear()
            try:
                async with asyncio.timeout(min(wait_s, WELCOME_S)):  # a newcomer may have come meanwhile
                    await woken.wait()
            except TimeoutError:
                pass
            continue
        publish(announcer.message())
