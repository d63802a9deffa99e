"""One signal for everything that waits for news; who waits looks again at what it needs."""

from __future__ import annotations

import math
from typing import Final

import trio

#: Who wakes something all the time doesn't keep the waiter for ever.
ROUNDS_MOST: Final = 4


class Wake:
    """Wakes all waiters at each ``poke``. Between looking and waiting there must be no checkpoint."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def poke(self) -> None:
        """Something changed."""
        self._event.set()
        self._event = trio.Event()

    async def wait(self, timeout_s: float = math.inf) -> None:
        """Wait for the next poke, or until the time is over."""
        event = self._event
        with trio.move_on_after(timeout_s):
            await event.wait()

    async def calm(self) -> None:
        """Let others run until a round of the scheduler brings no more pokes, for ``ROUNDS_MOST`` at most."""
        for _ in range(ROUNDS_MOST):
            event = self._event
            await trio.lowlevel.checkpoint()
            if event is self._event:
                return
