"""The sites that are asked, and what they saw: who asked for what, and when."""

from __future__ import annotations

import random
from typing import Final

import attrs

from tests.simulation.time import Timeline

__all__ = ["Answer", "Site", "Sites"]


@attrs.frozen(kw_only=True)
class Answer:
    """What a site says to a request: after how long, and with which reason it failed; None is a page."""

    after_s: float
    reason: str | None = None
    retry_after_s: float | None = None


@attrs.define(kw_only=True)
class Site:
    """One host.

    Args:
        latency_s: the mean time of an answer.
        hangs_s: how long it thinks before it fails, while it is broken; None: no longer than otherwise.
        crawl_delay_s: what its robots.txt asks for; None for nothing.
    """

    name: str
    latency_s: float
    crawl_delay_s: float | None = None
    hangs_s: float | None = None
    slow_until: float = 0.0
    broken_until: float = 0.0
    bans_until: float = 0.0
    asked_at: list[float] = attrs.field(factory=list)


class Sites:
    """All sites."""

    def __init__(self, timeline: Timeline, rng: random.Random, sites: list[Site]) -> None:
        self._timeline: Final = timeline
        self._rng: Final = rng
        self.all: Final = {site.name: site for site in sites}

    def ask(self, host: str) -> Answer:
        """One request."""
        site, rng, now = self.all[host], self._rng, self._timeline.now
        site.asked_at.append(now)
        after_s = rng.expovariate(1 / site.latency_s) + 0.001
        if now < site.bans_until:
            return Answer(after_s=after_s, reason="blocked", retry_after_s=rng.choice((None, 5.0, 60.0)))
        if now < site.broken_until:
            fails_after_s = after_s if site.hangs_s is None else site.hangs_s
            return Answer(after_s=fails_after_s, reason=rng.choice(("http_5xx", "connect", "timeout")))
        return Answer(after_s=after_s * (20 if now < site.slow_until else 1))

    def trouble(self) -> None:
        """Something befalls one of them."""
        site, rng = self._rng.choice(list(self.all.values())), self._rng
        until = self._timeline.now + rng.uniform(1, 60)
        match rng.randrange(3):
            case 0:
                site.slow_until = until
            case 1:
                site.broken_until = until
            case _:
                site.bans_until = until

    def heal(self) -> None:
        """From now on all answer as they should."""
        for site in self.all.values():
            site.slow_until = site.broken_until = site.bans_until = 0.0
