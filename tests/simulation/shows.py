"""What is measured of a calm fleet in virtual time: tiers, a retry storm, a liar, questions a task.

``scripts/bench`` prints these at full size; ``test_shows`` guards small ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.migrate import migrate
from rendezvous.ledger.settings import LedgerSettings
from swarm.model import Move
from tests.simulation.fleet import open_fleet
from tests.simulation.sites import Site

__all__ = [
    "Questions",
    "Storm",
    "Waits",
    "count_questions",
    "honest_work",
    "live_storm",
    "most_within",
    "new_database",
    "quantile",
    "wait_in_tiers",
]

UNPACED: Final = LedgerSettings(host_rate_per_s=0.0)
STORMY: Final = "storm.test"


def new_database(path: Path) -> Path:
    """An empty ledger's file."""
    engine = open_engine(str(path))
    migrate(engine)
    engine.dispose()
    return path


def quantile(rising: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    return rising[min(int(len(rising) * share), len(rising) - 1)]


# ── tiers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class Waits:
    """How the interactive tier fared.

    Args:
        granted: how many of its tasks were, of those submitted.
        submitted: how many there were.
        p50_s: from submission to the grant.
        p95_s: the same.
        bulk: how many bulk tasks were completed meanwhile.
    """

    granted: int
    submitted: int
    p50_s: float
    p95_s: float
    bulk: int


def wait_in_tiers(
    database: Path,
    *,
    bulk: int,
    interactive: int,
    every_s: float = 0.2,
    workers: int = 10,
    slots: int = 8,
    hosts: int = 20,
    seed: int = 0,
) -> Waits:
    """Submit interactive tasks one by one, at random moments, into a swarm that has so many bulk tasks to do.

    Args:
        every_s: between two interactive tasks, the mean.
    """
    sites = [Site(name=f"site-{number}.test", latency_s=0.5) for number in range(hosts)]
    names = [site.name for site in sites]
    with open_fleet(database, sites, UNPACED, workers=workers, slots=slots, seed=seed) as fleet:
        fleet.run(20.0)  # every worker has said what it is, and hears gossip
        fleet.submit([names[number % hosts] for number in range(bulk)], tier="bulk", priority=9)
        fleet.run(5.0)
        done = fleet.completed
        tasks = []
        for number in range(interactive):
            tasks += fleet.submit([names[number % hosts]], tier="interactive", priority=5)
            fleet.run(fleet.rng.expovariate(1 / every_s))
        bulk_done = fleet.completed - done - sum(task in fleet.diary.completed_at for task in tasks)
        fleet.run(10.0)
        waits_s = fleet.waits_s(tasks)
    return Waits(
        granted=len(waits_s),
        submitted=interactive,
        p50_s=quantile(waits_s, 0.5),
        p95_s=quantile(waits_s, 0.95),
        bulk=bulk_done,
    )


# ── a retry storm ─────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class Storm:
    """What a fleet did in the same time, with one host broken or not.

    Args:
        others: completions of the other hosts.
        requests: what the stormy host was asked.
        retries: how often its tasks were put back.
        most: the most requests to it that came within ``window_s``.
        allowed: what its bucket gives in so long a window.
        window_s: seconds.
    """

    others: int
    requests: int
    retries: int
    most: int
    allowed: float
    window_s: float


def live_storm(
    database: Path,
    *,
    broken: bool,
    hangs_s: float | None = None,
    seconds: float = 300.0,
    rate_per_s: float = 2.0,
    others: int = 9,
    workers: int = 6,
    slots: int = 4,
    window_s: float = 10.0,
    seed: int = 0,
) -> Storm:
    """Ask ten hosts as fast as they may be asked; one of them fails at everything, or doesn't.

    Args:
        hangs_s: how long it takes to fail; None: as long as an answer.
    """
    names = [STORMY, *(f"site-{number}.test" for number in range(others))]
    settings = LedgerSettings(host_rate_per_s=rate_per_s, host_burst=5.0)
    sites = [Site(name=name, latency_s=0.3) for name in names]
    with open_fleet(database, sites, settings, workers=workers, slots=slots, seed=seed) as fleet:
        if broken:
            fleet.sites.all[STORMY].broken_until = float("inf")
            fleet.sites.all[STORMY].hangs_s = hangs_s
        each = int(rate_per_s * seconds * 1.2)
        fleet.submit([name for _ in range(each) for name in names], max_attempts=20)
        fleet.run(seconds)
        asked_at = fleet.sites.all[STORMY].asked_at
        done = Counter(fleet.diary.host_of[task] for task in fleet.diary.completed_at)
        return Storm(
            others=sum(done[name] for name in names[1:]),
            requests=len(asked_at),
            retries=fleet.diary.moves[Move.RETRY.value],
            most=most_within(asked_at, window_s),
            allowed=settings.host_burst + rate_per_s * window_s,
            window_s=window_s,
        )


def most_within(moments: Sequence[float], window_s: float) -> int:
    """The most of these moments, in rising order, that lie within so long a window."""
    most = first = 0
    for last, moment in enumerate(moments):
        while moments[first] < moment - window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


# ── a liar ────────────────────────────────────────────────────────────────────────────────────────────────────────


def honest_work(
    database: Path,
    *,
    liars: int,
    eternal: bool = True,
    seconds: float = 600.0,
    rate_per_s: float = 1.0,
    hosts: int = 4,
    workers: int = 6,
    seed: int = 0,
) -> int:
    """How many tasks honest workers complete, beside liars or alone; hosts are asked as fast as they may be.

    Args:
        eternal: whether a liar asks for a wait without end, or just says that it was turned away.
    """
    sites = [Site(name=f"site-{number}.test", latency_s=3.0) for number in range(hosts)]
    settings = LedgerSettings(host_rate_per_s=rate_per_s, host_burst=5.0)
    with open_fleet(
        database, sites, settings, workers=workers, slots=4, liars=liars, eternal=eternal, seed=seed
    ) as fleet:
        each = int(rate_per_s * seconds * 1.2)
        fleet.submit([site.name for _ in range(each) for site in sites])
        fleet.run(seconds)
        honest = {worker.ref for worker in fleet.workers.values() if not worker.lies}
        return sum(fleet.diary.tasks[task].worker in honest for task in fleet.diary.completed_at)


# ── questions ─────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class Questions:
    """How many workers asked for a task.

    Args:
        asks: (worker, task) pairs, a task.
        p50_s: from submission to the grant.
        p95_s: the same.
    """

    asks: float
    p50_s: float
    p95_s: float


def count_questions(
    database: Path, *, tasks: int = 60, workers: int = 200, every_s: float = 2.0, seed: int = 0
) -> Questions:
    """Submit tasks one by one to workers that have nothing to do."""
    sites = [Site(name=f"site-{number}.test", latency_s=0.2) for number in range(20)]
    with open_fleet(database, sites, UNPACED, workers=workers, slots=8, seed=seed) as fleet:
        fleet.run(20.0)
        before = fleet.root.counts["asks"]
        submitted = []
        for number in range(tasks):
            submitted += fleet.submit([f"site-{number % 20}.test"])
            fleet.run(fleet.rng.expovariate(1 / every_s))
        fleet.run(15.0)
        waits_s = fleet.waits_s(submitted)
        return Questions(
            asks=(fleet.root.counts["asks"] - before) / tasks,
            p50_s=quantile(waits_s, 0.5),
            p95_s=quantile(waits_s, 0.95),
        )
