"""Which heard offers to ask for, and when: a book of offers. Values and a clock in, task ids out.

Gossip is a hint: an offer that is late, lost or forged costs a question at most. Against storms a worker waits
``spread_s × u`` before it asks, ``u = hash(instance, task) / 2⁶⁴``, so that a few of many idle workers ask first and
the others hear ``closed`` in time (DESIGN §5). The book is bounded. It knows no turns, no leases and no network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable
from typing import Final

import attrs

from swarm.model import TaskId
from swarm.wire import Announcement, Hello, Offer, Requires

#: Roots announce at most twice the free slots of a swarm; this is as much as one worker can ever use, with room for
#: several roots. Beyond it the offers that were heard first go.
MAX_OFFERS: Final = 1_000
#: Most offers require nothing, and each worker looks at all.
_NOTHING: Final = Requires()


def spread_share(instance: str, task: TaskId) -> float:
    """The share of ``spread_s`` that this instance waits before it asks for this task, in [0, 1)."""
    digest = hashlib.blake2b(f"{instance}/{task}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def can_do(hello: Hello, offer: Offer) -> bool:
    """Whether asking for this offer can help. The root decides; what it would certainly refuse isn't asked for."""
    if offer.kind not in hello.kinds:
        return False
    requires = offer.requires
    return requires == _NOTHING or (
        set(requires.labels) <= set(hello.labels)
        and requires.region in (None, hello.region)
        and all(hello.kinds.get(kind, version) == version for kind, version in requires.versions.items())
    )


@attrs.frozen(kw_only=True)
class _Heard:
    heard_at: float
    due_at: float
    priority: int


@attrs.frozen(kw_only=True)
class _Position:
    epoch: int
    seq: int


class OfferBook:
    """Offers that were heard and not yet asked for.

    Args:
        hello: what this worker is; offers that it can't do are not kept.
        instance: tells this worker's waits from others'.
    """

    def __init__(self, hello: Hello, *, instance: str) -> None:
        self._hello = hello
        self._instance = instance
        self._offers: dict[TaskId, _Heard] = {}
        self._positions: dict[str, _Position] = {}

    def __len__(self) -> int:
        return len(self._offers)

    def hear(self, announcement: Announcement, now: float, *, held: Container[TaskId] = ()) -> bool:
        """Take in one message of a root.

        Args:
            announcement: messages of one root come in order, some may be missing.
            now: seconds of the worker's clock.
            held: tasks that this worker has already.

        Returns:
            Whether something was missed before it: a gap, or a new epoch.
        """
        last = self._positions.get(announcement.root)
        self._positions[announcement.root] = _Position(epoch=announcement.epoch, seq=announcement.seq)
        for offer in announcement.offers:
            if offer.id in held or offer.id in self._offers or not can_do(self._hello, offer):
                continue
            wait_s = announcement.spread_s and announcement.spread_s * spread_share(self._instance, offer.id)
            self._offers[offer.id] = _Heard(heard_at=now, due_at=now + wait_s, priority=offer.priority)
        self.close(announcement.closed)
        while len(self._offers) > MAX_OFFERS:
            del self._offers[next(iter(self._offers))]
        if last is None:
            return False
        return announcement.epoch != last.epoch or announcement.seq != last.seq + 1

    def close(self, tasks: Iterable[TaskId]) -> None:
        """Drop offers that somebody has taken, or that this worker got another way."""
        for task in tasks:
            self._offers.pop(task, None)

    def take(self, now: float, *, limit: int) -> tuple[TaskId, ...]:
        """Take out up to ``limit`` offers whose wait is over: the most urgent first, then the longest due."""
        if limit <= 0 or not self._offers:
            return ()
        due = [(-heard.priority, heard.due_at, task) for task, heard in self._offers.items() if heard.due_at <= now]
        taken = tuple(task for _, _, task in sorted(due)[:limit])
        self.close(taken)
        return taken

    def due_in_s(self, now: float) -> float | None:
        """Seconds until the first offer may be asked for (0: now); None where there is none."""
        if not self._offers:
            return None
        return max(0.0, min(heard.due_at for heard in self._offers.values()) - now)

    def forget_heard_until(self, moment: float) -> None:
        """Drop what was heard up to when a turn left that granted less than it wanted: others have had it since.

        Measured (facts/skeleton.md §1): without this rule ten workers made 11,000 useless asks after a burst.
        """
        self._offers = {task: heard for task, heard in self._offers.items() if heard.heard_at > moment}
