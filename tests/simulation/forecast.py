"""How long will a job take? The same ledger, announcer and workers in calm weather, with the operator's numbers.

A job of more pages than ``SAMPLE`` is lived in part: with hosts paced, or workers busy, its rate doesn't hang on its
length, so the rest is reckoned at the rate of the middle half.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from rendezvous.ledger.settings import LedgerSettings
from tests.simulation.fleet import FOREVER_S, Fleet, open_fleet
from tests.simulation.sites import Site

__all__ = ["Forecast", "Job"]

#: So many pages are lived, at most; the others are reckoned.
SAMPLE: Final = 20_000


@attrs.frozen(kw_only=True)
class Job:
    """What an operator plans.

    Args:
        pages: how many.
        hosts: over how many sites they are spread evenly.
        every_s: one request to a host in so many seconds; 0 is no limit.
        latency_s: the mean time that a site takes to answer.
        workers: how many.
        slots: of each.
    """

    pages: int
    hosts: int
    every_s: float
    latency_s: float
    workers: int
    slots: int


@attrs.frozen(kw_only=True)
class Outcome:
    """What came of it.

    Args:
        lived: pages that were run.
        rate_per_s: completions a second in the middle half.
        done_s: until the last page of the whole job, seconds.
        asks: questions a task, of a worker for a task.
        turns: turns a task.
        paced_rate_per_s: what the hosts' paces allow, at most; None without a pace.
        slots_rate_per_s: what the slots allow, at most.
    """

    lived: int
    rate_per_s: float
    done_s: float
    asks: float
    turns: float
    paced_rate_per_s: float | None
    slots_rate_per_s: float


class Forecast:
    """One forecast.

    Args:
        database: an empty ledger's file, of this forecast alone.
    """

    def __init__(self, job: Job, database: Path, *, seed: int = 0) -> None:
        self._job: Final = job
        self._database: Final = database
        self._seed: Final = seed

    def run(self) -> Outcome:
        """Live it."""
        job = self._job
        rate = 1 / job.every_s if job.every_s else 0.0
        sites = [Site(name=f"site-{number}.test", latency_s=job.latency_s) for number in range(job.hosts)]
        settings = LedgerSettings(host_rate_per_s=rate, host_burst=5.0)
        how = {"workers": job.workers, "slots": job.slots, "seed": self._seed}
        with open_fleet(self._database, sites, settings, **how) as fleet:
            return self._run(fleet, [site.name for site in sites])

    def _run(self, fleet: Fleet, names: list[str]) -> Outcome:
        job, lived = self._job, min(self._job.pages, SAMPLE)
        fleet.submit([names[page % job.hosts] for page in range(lived)])
        began = fleet.now
        ends: list[float] = []
        while (before := fleet.completed) < lived and fleet.now < FOREVER_S:
            fleet.run(1.0)
            ends += [fleet.now] * (fleet.completed - before)
        low, high = ends[lived // 4], ends[lived * 3 // 4]
        rate = (lived // 2) / (high - low) if high > low else lived / max(ends[-1] - began, 1.0)
        return Outcome(
            lived=lived,
            rate_per_s=rate,
            done_s=ends[-1] - began + (job.pages - lived) / rate,
            asks=fleet.root.counts["asks"] / lived,
            turns=fleet.root.counts["turns"] / lived,
            paced_rate_per_s=job.hosts / job.every_s if job.every_s else None,
            slots_rate_per_s=job.workers * job.slots / job.latency_s,
        )
