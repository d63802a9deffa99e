"""A network that loses, delays, repeats and reorders what it carries, and parts of which are cut off at times."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import attrs

from tests.simulation.time import Timeline

__all__ = ["Network", "Weather"]


@attrs.frozen(kw_only=True)
class Weather:
    """How bad it is.

    Args:
        loss: the share of messages that never arrive.
        repeat: the share that arrive twice.
        delay_s: the mean of an exponential delay: what was sent later may arrive earlier.
    """

    loss: float = 0.0
    repeat: float = 0.0
    delay_s: float = 0.002


CALM: Final = Weather()


class Network:
    """Carries messages between the root and its workers."""

    def __init__(self, timeline: Timeline, rng: random.Random, weather: Weather) -> None:
        self._timeline = timeline
        self._rng = rng
        self.weather = weather
        #: Workers that nothing reaches, and from which nothing comes.
        self.cut_off: Final[set[str]] = set()

    def heal(self) -> None:
        """From now on everything arrives."""
        self.weather = CALM
        self.cut_off.clear()

    def carry(self, worker: str, deliver: Callable[[], None]) -> None:
        """Carry one message from or to a worker."""
        rng, weather = self._rng, self.weather
        if worker in self.cut_off or rng.random() < weather.loss:
            return
        for _ in range(2 if rng.random() < weather.repeat else 1):
            self._timeline.after(rng.expovariate(1 / weather.delay_s), deliver)
