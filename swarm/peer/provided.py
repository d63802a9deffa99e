"""The contents that we say in the DHT to have: a bounded list, and which of them is to be said next. Pure.

The newest results are the ones that are asked for, so what was never said comes newest first, and the oldest is
forgotten at the cap. What is due again comes before it, or a busy worker's records would run out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import trio

from swarm.model import Cid

__all__ = ["AGAIN_S", "MAX_KEPT", "Provided"]

#: Contents that are kept provided. At one in five seconds all are said in 22 minutes, before the first is due again.
MAX_KEPT: Final = 256
#: Well before a record is forgotten (``hardened_dht.PROVIDER_TTL_S``, 30 minutes with us; Kubo keeps it for longer).
AGAIN_S: Final = 1500.0


class Provided:
    """What there is to say."""

    def __init__(self) -> None:
        #: When it was said last; None where it never was.
        self._said_at: OrderedDict[Cid, float | None] = OrderedDict()
        self._told: set[Cid] = set()
        self._forgotten: list[Cid] = []
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._said_at)

    def add(self, cid: Cid) -> None:
        """Say from now on that we have this content; the oldest beyond the cap isn't said again."""
        self._said_at.setdefault(cid, None)
        self._said_at.move_to_end(cid)
        if len(self._said_at) > MAX_KEPT:
            self.forget(next(iter(self._said_at)))
        self._changed.set()
        self._changed = trio.Event()

    def forget(self, cid: Cid) -> None:
        """Say it no more: it isn't here any more."""
        self._said_at.pop(cid, None)
        if cid in self._told:
            self._told.discard(cid)
            self._forgotten.append(cid)

    def take_forgotten(self) -> list[Cid]:
        """What was said and isn't to be said again, once each."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def next_due(self, *, now: float) -> Cid | None:
        """What is to be said now, None where nothing is."""
        due = [(said_at, cid) for cid, said_at in self._said_at.items() if said_at is not None]
        if due and (oldest := min(due))[0] + AGAIN_S <= now:
            return oldest[1]
        return next((cid for cid in reversed(self._said_at) if self._said_at[cid] is None), None)

    def said(self, cid: Cid, was_heard: bool, *, now: float) -> None:
        """Note that it was said; where nobody heard it, it is due as before."""
        if cid not in self._said_at:  # forgotten meanwhile
            self._forgotten.append(cid)
            return
        self._told.add(cid)
        if was_heard:
            self._said_at[cid] = now

    def say_all_again(self) -> None:
        """Somebody is there who doesn't know yet."""
        for cid in self._said_at:
            self._said_at[cid] = None

    async def changed(self) -> None:
        """Wait until something is added."""
        await self._changed.wait()
