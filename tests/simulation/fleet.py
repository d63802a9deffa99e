"""A swarm in calm weather, in virtual time: the same ledger, announcer and workers as in a life, and no kills.

Whoever measures something (``forecast``, ``scripts/bench``) names the sites, submits tasks, and looks at what was
granted and completed, and when. Paces are watched: a grant that a bucket doesn't cover is ``Broken``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from rendezvous.ledger.ops import LedgerEvent, Submit
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerRef
from swarm.model import Move, TaskId
from swarm.wire import Announcement, Hello
from tests.rendezvous.ledger_world import START, World, new_task
from tests.simulation.network import Network, Weather
from tests.simulation.root import Root
from tests.simulation.sites import Site, Sites
from tests.simulation.time import Timeline
from tests.simulation.watch import Pace, Watch
from tests.simulation.worker import Worker

__all__ = ["FOREVER_S", "Diary", "Fleet", "open_fleet"]

#: Tasks of one submission.
CHUNK: Final = 1_000
#: No task expires before this, virtual seconds.
FOREVER_S: Final = 10 * 365 * 86_400.0
#: What a message takes on its way, the mean, seconds.
DELAY_S: Final = 0.02


class Diary(Watch):
    """A watch that keeps when tasks were granted and completed, and how often they were granted.

    Args:
        paces: of the hosts.
    """

    def __init__(self, paces: dict[str, Pace]) -> None:
        super().__init__(paces)
        self.submitted_at: Final[dict[TaskId, float]] = {}
        self.granted_at: Final[dict[TaskId, float]] = {}
        self.completed_at: Final[dict[TaskId, float]] = {}
        self.host_of: Final[dict[TaskId, str]] = {}

    def take(self, events: list[LedgerEvent]) -> None:
        """Note what was committed."""
        for event in events:
            if event.id > self.last_event:
                at = event.at - START
                if event.move is Move.SUBMIT:
                    self.submitted_at[event.task] = at
                    self.host_of[event.task] = event.host
                elif event.move is Move.GRANT:
                    self.granted_at.setdefault(event.task, at)
                elif event.move is Move.COMPLETE:
                    self.completed_at[event.task] = at
        super().take(events)


class Fleet:
    """One swarm.

    Args:
        database: an empty ledger's file, of this swarm alone.
        sites: who is asked.
        settings: of the ledger.
        workers: how many; they come one by one in the first second.
        slots: of each.
        liars: how many more there are that lie about most things (``Worker.lies``).
        eternal: of liars (``Worker.eternal``).
        seed: all of its chance.
    """

    def __init__(
        self,
        database: Path,
        sites: Sequence[Site],
        settings: LedgerSettings,
        *,
        workers: int,
        slots: int,
        liars: int = 0,
        eternal: bool = True,
        seed: int = 0,
    ) -> None:
        rng = random.Random(seed)
        self.rng: Final = rng
        self.timeline: Final = Timeline()
        self._network: Final = Network(self.timeline, rng, Weather(delay_s=DELAY_S))
        self.sites: Final = Sites(self.timeline, rng, list(sites))
        pace = {"rate_per_s": settings.host_rate_per_s, "burst": settings.host_burst}
        self.diary: Final = Diary({site.name: Pace(**pace) for site in sites})
        self.world: Final = World(database, settings)
        self.workers: Final[dict[WorkerRef, Worker]] = {}
        self.root: Final = Root(
            self.world,
            self.timeline,
            rng,
            wall=lambda: START + self.timeline.now,
            watch=self.diary,
            gossip=self._gossip,
            session=lambda _root, ref: self.workers[ref].session,
        )
        self._jobs = 0
        for number in range(workers + liars):
            worker = self._new_worker(number, slots, lies=number >= workers, eternal=eternal)
            self.workers[worker.ref] = worker
            self.timeline.after(number / (workers + liars), worker.start)

    def _new_worker(self, number: int, slots: int, *, lies: bool, eternal: bool) -> Worker:
        ref = WorkerRef(f"0x{number:040x}", f"instance-{number}")
        return Worker(
            name=f"worker-{number}",
            ref=ref,
            slots=slots,
            timeline=self.timeline,
            network=self._network,
            sites=self.sites,
            watch=self.diary,
            roots=(self.root,),
            rng=self.rng,
            counts=Counter(),
            hello=Hello(version="0.1.0", kinds={"noop": "1", "scrape": "1"}, slots=slots),
            lies=lies,
            eternal=eternal,
        )

    def _gossip(self, announcement: Announcement) -> None:
        for worker in self.workers.values():
            self._network.carry(worker.name, lambda worker=worker: worker.hear(announcement))

    @property
    def now(self) -> float:
        """Virtual time, seconds."""
        return self.timeline.now

    @property
    def completed(self) -> int:
        """How many tasks are."""
        return self.diary.moves[Move.COMPLETE.value]

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        self.timeline.run_until(self.now + seconds)

    def submit(self, hosts: Sequence[str], **task: Any) -> list[TaskId]:
        """Submit a task of each of these hosts now.

        Args:
            hosts: one may be named several times.
            task: further fields of ``new_task``.

        Returns:
            Their ids, in the order of the hosts.
        """
        submitted: list[TaskId] = []
        for first in range(0, len(hosts), CHUNK):
            tasks = tuple(
                new_task(**{"kind": "scrape", "host": host, "expires_in_s": FOREVER_S, **task})
                for host in hosts[first : first + CHUNK]
            )
            self._jobs += 1
            self.root.do(Submit(owner="owner", job=f"job-{self._jobs}", job_named=False, name=None, tasks=tasks))
            submitted += [each.id for each in tasks]
        return submitted

    def waits_s(self, tasks: Sequence[TaskId]) -> list[float]:
        """From submission to the first grant, of those of these tasks that were granted, in rising order."""
        granted = self.diary.granted_at
        return sorted(granted[task] - self.diary.submitted_at[task] for task in tasks if task in granted)


@contextmanager
def open_fleet(database: Path, sites: Sequence[Site], settings: LedgerSettings, **how: Any) -> Iterator[Fleet]:
    """A fleet whose workers have come.

    *Resource handling*: its ledger is closed at the end; what it logs isn't shown.
    """
    with structlog.testing.capture_logs():
        fleet = Fleet(database, sites, settings, **how)
        try:
            fleet.run(2.0)
            yield fleet
        finally:
            fleet.world.close()
