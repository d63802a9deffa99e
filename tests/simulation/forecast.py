"""How long will a job take? The same ledger, announcer and workers in calm weather, with the operator's numbers.

A job of more pages than ``SAMPLE`` is lived in part: with hosts paced, or workers busy, its rate doesn't hang on its
length, so the rest is reckoned at the rate of the middle half.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Final

import attrs
import structlog

from rendezvous.ledger.ops import Submit, WorkerRef
from rendezvous.ledger.settings import LedgerSettings
from swarm.model import Move
from swarm.wire import Announcement, Hello
from tests.rendezvous.ledger_world import START, World, new_task
from tests.simulation.network import Network, Weather
from tests.simulation.root import Root
from tests.simulation.sites import Site, Sites
from tests.simulation.time import Timeline
from tests.simulation.watch import Pace, Watch
from tests.simulation.worker import Worker

__all__ = ["Forecast", "Job"]

#: So many pages are lived, at most; the others are reckoned.
SAMPLE: Final = 20_000
#: Tasks of one submission.
CHUNK: Final = 1_000
#: Nothing takes longer than this, virtual seconds.
FOREVER_S: Final = 10 * 365 * 86_400.0


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
        rng = random.Random(seed)
        self.job = job
        self.timeline = Timeline()
        network = Network(self.timeline, rng, Weather(delay_s=0.02))
        rate = 1 / job.every_s if job.every_s else 0.0
        names = [f"site-{number}.test" for number in range(job.hosts)]
        sites = Sites(self.timeline, rng, [Site(name=name, latency_s=job.latency_s) for name in names])
        self.watch = Watch({name: Pace(rate_per_s=rate, burst=5.0) for name in names})
        self.world = World(database, LedgerSettings(host_rate_per_s=rate, host_burst=5.0))
        self.workers: dict[WorkerRef, Worker] = {}
        self.root = Root(
            self.world,
            self.timeline,
            rng,
            started_at=START,
            watch=self.watch,
            gossip=self._gossip,
            session=lambda ref: self.workers[ref].session,
        )
        self._network = network
        hello = Hello(version="0.1.0", kinds={"scrape": "1"}, slots=job.slots)
        for number in range(job.workers):
            ref = WorkerRef(f"0x{number:040x}", f"instance-{number}")
            self.workers[ref] = Worker(
                name=f"worker-{number}",
                ref=ref,
                slots=job.slots,
                timeline=self.timeline,
                network=network,
                sites=sites,
                watch=self.watch,
                root=self.root,
                rng=rng,
                counts=Counter(),
                hello=hello,
            )
            self.timeline.after(number / job.workers, self.workers[ref].start)
        self._names = names

    def _gossip(self, announcement: Announcement) -> None:
        for worker in self.workers.values():
            self._network.carry(worker.name, lambda worker=worker: worker.hear(announcement))

    def run(self) -> Outcome:
        """Live it."""
        with structlog.testing.capture_logs():
            try:
                return self._run()
            finally:
                self.world.close()

    def _run(self) -> Outcome:
        job, lived = self.job, min(self.job.pages, SAMPLE)
        self.timeline.run_until(2.0)
        for first in range(0, lived, CHUNK):
            tasks = tuple(
                new_task(kind="scrape", host=host, urls=(f"https://{host}/{page}",), expires_in_s=FOREVER_S)
                for page in range(first, min(first + CHUNK, lived))
                for host in (self._names[page % job.hosts],)
            )
            self.root.do(Submit(owner="owner", job=f"job-{first}", job_named=False, name=None, tasks=tasks))
        began = self.timeline.now
        ends: list[float] = []
        while self.watch.moves[Move.COMPLETE.value] < lived and self.timeline.now < FOREVER_S:
            before = self.watch.moves[Move.COMPLETE.value]
            self.timeline.run_until(self.timeline.now + 1.0)
            ends += [self.timeline.now] * (self.watch.moves[Move.COMPLETE.value] - before)
        low, high = ends[lived // 4], ends[lived * 3 // 4]
        rate = (lived // 2) / (high - low) if high > low else lived / max(ends[-1] - began, 1.0)
        return Outcome(
            lived=lived,
            rate_per_s=rate,
            done_s=ends[-1] - began + (job.pages - lived) / rate,
            asks=self.root.counts["asks"] / lived,
            turns=self.root.counts["turns"] / lived,
            paced_rate_per_s=job.hosts / job.every_s if job.every_s else None,
            slots_rate_per_s=job.workers * job.slots / job.latency_s,
        )
