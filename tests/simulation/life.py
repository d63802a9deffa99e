"""One seed, one life of a swarm: ledger, policy, announcer and workers are the real ones; time and everything else
is simulated, in one thread, from the seed.

First chaos: a network that loses and reorders, kills at any commit and between them, stalls, partitions, sites that
slow down, break and ban, liars, operators who pause and quarantine. Then everything heals, and every task must end,
with the books in order.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import structlog

from rendezvous.ledger.ops import (
    Cancel,
    Op,
    Pause,
    PreparedTask,
    Quarantine,
    Replay,
    Resume,
    SetHostPace,
    Submit,
    WorkerRef,
)
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.policy.pauses import Scope
from swarm.model import JobId, Status, TaskId
from swarm.wire import Announcement, Hello, Requires
from tests.rendezvous.ledger_world import START, World, new_task
from tests.simulation.network import Network, Weather
from tests.simulation.planted import Bug, plant
from tests.simulation.root import Root
from tests.simulation.sites import Site, Sites
from tests.simulation.time import Timeline
from tests.simulation.watch import Broken, Pace, Watch, check_books
from tests.simulation.worker import Worker

__all__ = ["Simulation"]

#: Healing may take so long, seconds: backoffs, cooling off and leases of 15 min included.
HEALING_S: Final = 4 * 3600.0
OPERATOR: Final = "operator"


@attrs.frozen(kw_only=True)
class Plan:
    """What a life is made of; drawn from its seed."""

    workers: int
    tasks: int
    chaos_s: float
    weather: Weather

    @classmethod
    def drawn(cls, rng: random.Random) -> Plan:
        """Mostly small, so that many are lived; one in eight is as big as they get."""
        big = rng.random() < 0.125
        return cls(
            workers=rng.randint(1, 20 if big else 6),
            tasks=rng.randint(20, 300) if big else rng.randint(3, 50),
            chaos_s=rng.uniform(20, 240 if big else 120),
            weather=Weather(
                loss=rng.choice((0.0, 0.02, 0.2)), repeat=rng.choice((0.0, 0.1)), delay_s=rng.choice((0.002, 0.05, 1.0))
            ),
        )


class Simulation:
    """One run.

    Args:
        seed: all of its chance.
        database: an empty ledger's file, of this run alone.
        tell: gets a line for each step, when a seed is replayed.
        bug: what is wrong with the ledger in this life.
    """

    def __init__(
        self, seed: int, database: Path, *, tell: Callable[[str], None] | None = None, bug: Bug | None = None
    ) -> None:
        self.rng = rng = random.Random(seed)
        self._tell = tell
        self.counts: Counter[str] = Counter()
        self.plan = plan = Plan.drawn(rng)
        self.timeline = Timeline()
        self.network = Network(self.timeline, random.Random(rng.random()), plan.weather)
        rate = rng.choice((0.0, 0.5, 2.0, 20.0))
        settings = LedgerSettings(host_rate_per_s=rate, host_burst=5.0, first_lease_s=rng.choice((15.0, 60.0)))
        self.sites = Sites(self.timeline, random.Random(rng.random()), self._new_sites())
        self.watch = Watch(
            {
                name: Pace(rate_per_s=rate, burst=5.0)
                if site.crawl_delay_s is None
                else Pace(rate_per_s=1 / site.crawl_delay_s, burst=1.0, delay_s=site.crawl_delay_s)
                for name, site in self.sites.all.items()
            }
        )
        self.world = World(database, settings)
        self.world.core._rng.seed(rng.random())
        plant(bug)
        self.workers: dict[WorkerRef, Worker] = {}
        self.root = Root(
            self.world,
            self.timeline,
            random.Random(rng.random()),
            started_at=START,
            watch=self.watch,
            gossip=self._gossip,
            session=self._session,
        )
        self.jobs: list[JobId] = []
        self.tasks: list[TaskId] = []
        self.paused: set[tuple[str, str]] = set()
        for number in range(plan.workers):
            self._add_worker(number)

    def _new_sites(self) -> list[Site]:
        rng = self.rng
        return [
            Site(
                name=f"site-{number}.test",
                latency_s=rng.choice((0.05, 0.5, 3.0)),
                crawl_delay_s=rng.choice((1.0, 5.0)) if rng.random() < 0.25 else None,
            )
            for number in range(rng.randint(1, 5))
        ]

    def _add_worker(self, number: int) -> None:
        rng = self.rng
        slots = rng.choice((1, 2, 8))
        ref = WorkerRef(f"0x{number:040x}", f"instance-{number}")
        worker = Worker(
            name=f"worker-{number}",
            ref=ref,
            slots=slots,
            timeline=self.timeline,
            network=self.network,
            sites=self.sites,
            watch=self.watch,
            root=self.root,
            rng=random.Random(rng.random()),
            counts=self.counts,
            hello=Hello(
                version="0.1.0",
                kinds={"noop": "1", "scrape": "1"},
                slots=slots,
                labels=("big",) if rng.random() < 0.5 or number == 0 else (),
            ),
            lies=number > 0 and rng.random() < 0.2,
            hears=rng.random() < 0.8,
            pace=rng.choice((1.0, 1.0, 0.99, 1.01)),
            work_s=rng.choice((0.01, 1.0, 10.0)),
        )
        self.workers[ref] = worker
        self.timeline.after(rng.uniform(0, 5), worker.start)

    def _session(self, ref: WorkerRef) -> object | None:
        session = self.workers[ref].session
        return session if session is not None and session.life == self.root.life else None

    def _gossip(self, announcement: Announcement) -> None:
        for worker in self.workers.values():
            if worker.is_up and worker.hears:
                self.network.carry(worker.name, lambda worker=worker: worker.hear(announcement))

    # ── a life ────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Chaos, healing, comparison.

        Raises:
            Broken: an invariant didn't hold.
        """
        with structlog.testing.capture_logs():
            try:
                self._run()
            finally:
                if self.root.is_up:
                    self.world.close()
        self.counts.update(self.root.counts)
        self.counts.update({f"task {move}": number for move, number in self.watch.moves.items()})

    def _run(self) -> None:
        for name, site in self.sites.all.items():
            if site.crawl_delay_s is not None:
                delay_s = site.crawl_delay_s
                self.root.do(SetHostPace(host=name, rate_per_s=1 / delay_s, burst=1.0, one_at_a_time=True))
        self._submit(self.rng.randint(1, self.plan.tasks))
        self._plan_next()
        self.timeline.run_until(self.plan.chaos_s)
        self._heal()
        ends_at = self.timeline.now + HEALING_S
        self.timeline.run_until(ends_at, unless=lambda: not self.watch.unfinished)
        if left := self.watch.unfinished:
            raise Broken(f"{len(left)} tasks never ended; the first, {left[0]}, is {self.watch.tasks[left[0]].status}")
        self.timeline.run_until(self.timeline.now + 30.0)  # what is still under way arrives
        check_books(self.world, self.watch)

    def _plan_next(self) -> None:
        self.timeline.after(self.rng.expovariate(1.0), self._act)

    def _act(self) -> None:
        if self.timeline.now > self.plan.chaos_s:
            return
        names, weights = zip(*_ACTS, strict=True)
        name = self.rng.choices(names, weights)[0]
        self.say(name)
        getattr(self, f"_{name}")()
        self._plan_next()

    def say(self, line: str) -> None:
        """A step, for whoever replays."""
        if self._tell is not None:
            self._tell(f"{self.timeline.now:9.3f} {line}")

    def _heal(self) -> None:
        self.say("healing")
        self.network.heal()
        self.sites.heal()
        self.root.fates.clear()
        if not self.root.is_up:
            self.root.start()
        for scope, name in sorted(self.paused):
            self._resume(scope, name)
        for worker in self.workers.values():
            if not worker.is_up:
                worker.start()

    # ── what people do ────────────────────────────────────────────────────────────────────────────────────────────

    def _id(self) -> str:
        """A UUIDv7 of this life's own chance and time."""
        stamp = int((START + self.timeline.now) * 1000)
        bits = (stamp << 80) | (0x7 << 76) | (self.rng.getrandbits(12) << 64) | (0b10 << 62) | self.rng.getrandbits(62)
        return str(uuid.UUID(int=bits))

    def _new_task(self) -> PreparedTask:
        rng, task = self.rng, self._id()
        host = rng.choice(list(self.sites.all))
        kind = rng.choice(("noop", "scrape", "scrape"))
        key = f"key-{rng.randrange(20)}" if rng.random() < 0.1 else task
        return new_task(
            id=task,
            kind=kind,
            host=host,
            urls=tuple(f"https://{host}/{task}/{page}" for page in range(rng.choice((1, 1, 3)))),
            priority=rng.randrange(10),
            tier=rng.choice(("interactive", "bulk")),
            requires=Requires(labels=("big",)) if rng.random() < 0.1 else Requires(),
            max_run_s=rng.choice((30.0, 300.0)),
            not_before_s=rng.choice((0.0, 0.0, 0.0, 20.0)),
            expires_in_s=rng.choice((300.0, 86_400.0, 86_400.0)),
            dedupe_key=key,
        )

    def _submit(self, number: int | None = None) -> None:
        if len(self.tasks) >= self.plan.tasks:
            return
        number = min(number or self.rng.randint(1, 10), self.plan.tasks - len(self.tasks))
        named = bool(self.jobs) and self.rng.random() < 0.3
        job = self.rng.choice(self.jobs) if named else self._id()
        tasks = tuple(self._new_task() for _ in range(number))
        for answer in self._do(Submit(owner="owner", job=job, job_named=named, name=None, tasks=tasks)):
            self.tasks += [task for task, created in answer.tasks if created]
            if job not in self.jobs:
                self.jobs.append(job)

    def _do(self, *ops: Op) -> list[Any]:
        """What people ask: the answers, none where the root is down, stands still, fails, or dies of it."""
        answers: list[Any] = []

        def do() -> None:
            answers.extend(answer for answer in self.root.do(*ops) if not isinstance(answer, Exception))

        if self.root.is_up and not self.root.stands_still:
            self.root.in_life(do)()
        return answers

    def _cancel(self) -> None:
        if self.tasks:
            self._do(Cancel(owner="owner", who="owner", tasks=(self.rng.choice(self.tasks),)))

    def _replay(self) -> None:
        failed = [task for task, seen in self.watch.tasks.items() if seen.status is Status.FAILED]
        if failed:
            self._do(Replay(owner="owner", who="owner", tasks=(self.rng.choice(failed),)))

    def _pause(self) -> None:
        host = self.rng.choice(list(self.sites.all))
        scope, name = self.rng.choice([("swarm", ""), ("host", host), *(("job", job) for job in self.jobs[:1])])
        if (scope, name) in self.paused:
            return
        self.paused.add((scope, name))  # where the answer is lost it may be, so that it has to be resumed
        if self._do(Pause(scope=Scope(scope), name=name, who=OPERATOR, why="a test")):
            self.watch.paused.add((scope, name))
        self.timeline.after(self.rng.uniform(1, 30), lambda: self._resume(scope, name))

    def _resume(self, scope: str, name: str) -> None:
        """End a pause; again until the root says that it did."""
        if (scope, name) not in self.paused:
            return
        self.watch.paused.discard((scope, name))
        if self._do(Resume(scope=Scope(scope), name=name, who=OPERATOR)):
            self.paused.discard((scope, name))
        else:
            self.timeline.after(1.0, lambda: self._resume(scope, name))

    def _quarantine(self) -> None:
        worker, host = self.rng.choice(list(self.workers)), self.rng.choice(list(self.sites.all))
        for_s = self.rng.uniform(5, 60)
        if self.root.is_up and self._do(Quarantine(worker=worker, host=host, for_s=for_s, who=OPERATOR, why="a test")):
            self.watch.quarantined[worker, host] = self.root.now + for_s

    # ── what befalls them ─────────────────────────────────────────────────────────────────────────────────────────

    def _kill_root(self) -> None:
        if not self.root.is_up:
            return
        if self.rng.random() < 0.3:
            self.root.kill()
        else:
            self.root.fates.append(self.rng.choice(("kill before", "kill after")))
        self.timeline.after(self.rng.uniform(0.5, 20), self._start_root)

    def _start_root(self) -> None:
        if not self.root.is_up:
            self.root.start()

    def _fail_commit(self) -> None:
        self.root.fates += [self.rng.choice(("fail before", "fail after"))] * self.rng.choice((1, 1, 5))

    def _stall_root(self) -> None:
        self.root.stall(self.rng.choice((1.0, 6.0, 40.0)))

    def _kill_worker(self) -> None:
        worker = self.rng.choice(list(self.workers.values()))
        if worker.is_up:
            worker.kill()
            self.timeline.after(self.rng.uniform(0.5, 60), lambda: None if worker.is_up else worker.start())

    def _cut_off(self) -> None:
        name = self.rng.choice([worker.name for worker in self.workers.values()])
        self.network.cut_off.add(name)
        self.timeline.after(self.rng.uniform(1, 60), lambda: self.network.cut_off.discard(name))

    def _site_trouble(self) -> None:
        self.sites.trouble()


#: What happens in chaos, and how often beside the others.
_ACTS: Final = (
    ("submit", 30),
    ("cancel", 6),
    ("replay", 6),
    ("pause", 3),
    ("quarantine", 3),
    ("kill_root", 4),
    ("fail_commit", 6),
    ("stall_root", 2),
    ("kill_worker", 10),
    ("cut_off", 8),
    ("site_trouble", 10),
)
