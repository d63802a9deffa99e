"""Virtual time: things happen at moments, in order; nothing waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

__all__ = ["Timeline"]


class Timeline:
    """What is to happen, and when. Seconds from 0; what is due at one moment happens in the order it was planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: Final[list[tuple[float, int, Callable[[], None]]]] = []
        self._count = 0

    def at(self, moment: float, do: Callable[[], None]) -> None:
        """Plan something; what lies in the past happens next."""
        self._count += 1
        heapq.heappush(self._planned, (max(moment, self.now), self._count, do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Plan something for later."""
        self.at(self.now + seconds, do)

    def run_until(self, moment: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Let all happen that is planned up to a moment, or until ``unless`` holds."""
        while self._planned and self._planned[0][0] <= moment and not unless():
            self.now, _, do = heapq.heappop(self._planned)
            do()
        if not unless():
            self.now = max(self.now, moment)
