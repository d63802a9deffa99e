"""What listeners hear of the history: every event once, in order, whoever committed it.

Event numbers rise by one in the order of commits (``postgres.py``), so what a number skips was committed elsewhere, and
is read from the database first. Both the writer thread and the one that listens to the neighbours tell; whoever has the
lock tells all that is missing up to its news.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from rendezvous.ledger.ops import LedgerEvent
from swarm.errors import LedgerUnavailable

__all__ = ["Telling"]

log = structlog.get_logger()

#: Events of one read, and of one delivery, where another root wrote many.
CHUNK: Final = 1_000

Deliver = Callable[[Sequence[LedgerEvent]], None]


class Telling:
    """Where the listeners are in the history.

    Args:
        told: the last event before the first that listeners shall hear.
        read: events after the first number, up to the second, at most ``CHUNK``, in order.
        deliver: hands events to the loop of the listeners; never waits.
    """

    def __init__(self, told: int, *, read: Callable[[int, int, int], Sequence[LedgerEvent]], deliver: Deliver) -> None:
        self._told = told
        self._read: Final = read
        self._deliver: Final = deliver
        self._lock: Final = threading.Lock()

    def committed(self, events: Sequence[LedgerEvent], deliver: Deliver) -> None:
        """Tell what our own writer committed, after all that others committed before; then answer.

        Args:
            events: of one group, in order.
            deliver: hands over this group's events together with its answers.
        """
        with self._lock:
            if events and events[0].id > self._told + 1:
                self._catch_up(events[0].id - 1)
            news = [event for event in events if event.id > self._told]
            if news:
                self._told = news[-1].id
            deliver(news)

    def elsewhere(self, last: int) -> None:
        """Tell what others committed, up to this event."""
        if last <= self._told:
            return
        with self._lock:
            self._catch_up(last)

    def _catch_up(self, last: int) -> None:
        while self._told < last:
            try:
                missed = self._read(self._told, last, CHUNK)
            except LedgerUnavailable as fault:
                log.warning("events_postponed", after=self._told, reason=str(fault))
                return
            # Where there is nothing, their tasks were archived meanwhile.
            self._told = missed[-1].id if len(missed) == CHUNK else last
            if missed:
                self._deliver(missed)
