"""One seed, one life of a swarm: ledger, policy, announcer and workers are the real ones; time and everything else
is simulated, in one thread, from the seed.

First chaos: a network that loses and reorders, kills at any commit and between them, stalls, partitions, clocks that
are set, sites that slow down, break and ban, liars, and what people do meanwhile (``people``). Then everything heals,
and every task must end, with the books in order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

import attrs
import structlog
from sqlalchemy.engine import Engine

from rendezvous.ledger.engine import open_engine, open_reading_engine
from rendezvous.ledger.ops import SetHostPace
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.egress import prefix_of
from swarm.wire import Announcement, Hello
from tests.rendezvous.ledger_world import START, World
from tests.simulation.network import Network, Weather
from tests.simulation.people import PEOPLE, PROFILES, People
from tests.simulation.planted import Bug, plant
from tests.simulation.root import Root, Together
from tests.simulation.sites import Site, Sites
from tests.simulation.time import Timeline
from tests.simulation.watch import Broken, Pace, Watch, check_books
from tests.simulation.worker import Worker

__all__ = ["Simulation", "Size"]

#: Healing may take so long, seconds: backoffs, cooling off and leases of 15 min included.
HEALING_S: Final = 4 * 3600.0
#: In a life of a size that was asked for: so many tasks are of one site, at least, and so many workers see one thing
#: happen a second.
TASKS_A_SITE: Final = 1_000
WORKERS_AN_ACT: Final = 20
#: Where the whole swarm has a pace, too.
WHOLE_BURST: Final = 5.0
#: The most tasks of one submission.
CHUNK: Final = 1_000
#: Once all is well a root sweeps when something is due, and seldom else: half of a life's commits are sweeps that find
#: nothing. Less than what counts as a stall, seconds.
CALM_TICK_S: Final = 4.5
#: How often a life is looked at while it goes on, virtual seconds.
LOOK_S: Final = 1.0
#: What a wall clock is set by, seconds: what a time server corrects, and what people do.
NUDGED_S: Final = (-0.5, 0.5)
SET_S: Final = (-7_200.0, -30.0, 30.0, 7_200.0)


@attrs.frozen(kw_only=True)
class Size:
    """How big a life is, where its seed doesn't draw that."""

    workers: int
    tasks: int


@attrs.frozen(kw_only=True)
class Plan:
    """What a life is made of; drawn from its seed.

    Args:
        least_sites: so many there are at least.
        chaos_s: how long things go wrong.
        acts_per_s: how many things people do, or happen, meanwhile.
    """

    workers: int
    tasks: int
    chaos_s: float
    weather: Weather
    roots: int
    assigns: bool
    acts_per_s: float = 1.0
    least_sites: int = 1

    @classmethod
    def drawn(cls, rng: random.Random, size: Size | None) -> Plan:
        """Mostly small, so that many are lived; one in eight is as big as they get. Or of a given size."""
        plan = cls._drawn(rng)
        if size is None:
            return plan
        return attrs.evolve(
            plan,
            workers=size.workers,
            tasks=size.tasks,
            least_sites=size.tasks // TASKS_A_SITE,
            acts_per_s=max(1.0, size.workers / WORKERS_AN_ACT),
        )

    @classmethod
    def _drawn(cls, rng: random.Random) -> Plan:
        big = rng.random() < 0.125
        return cls(
            workers=rng.randint(1, 20 if big else 6),
            tasks=rng.randint(20, 300) if big else rng.randint(3, 50),
            chaos_s=rng.uniform(20, 240 if big else 120),
            weather=Weather(
                loss=rng.choice((0.0, 0.02, 0.2)), repeat=rng.choice((0.0, 0.1)), delay_s=rng.choice((0.002, 0.05, 1.0))
            ),
            roots=2 if rng.random() < 0.25 else 1,
            assigns=rng.random() < 0.2,
        )


@lru_cache(maxsize=4)
def _engines(database: str, root: int) -> tuple[Engine, Engine]:
    """A root's engines of a file that one life after another uses: what was compiled for it is kept."""
    del root
    return open_engine(database), open_reading_engine(database)


class Simulation:
    """One run.

    Args:
        seed: all of its chance.
        database: an empty ledger's file, of this run alone.
        tell: gets a line for each step, when a seed is replayed.
        bug: what is wrong with the ledger in this life.
        size: of this life; drawn from the seed where it isn't given.
        look: called every now and then while it goes on.
    """

    def __init__(
        self,
        seed: int,
        database: Path,
        *,
        tell: Callable[[str], None] | None = None,
        bug: Bug | None = None,
        size: Size | None = None,
        look: Callable[[Simulation], None] = lambda _: None,
    ) -> None:
        self._size = size
        self._look = look
        self.rng = rng = random.Random(seed)
        self._tell = tell
        self.counts: Counter[str] = Counter()
        self.plan = plan = Plan.drawn(rng, size)
        self.timeline = Timeline()
        self.network = Network(self.timeline, random.Random(rng.random()), plan.weather)
        rate = rng.choice((0.0, 0.5, 2.0, 20.0))
        whole = rng.choice((0.0, 0.0, 0.0, 3.0))
        settings = LedgerSettings(
            host_rate_per_s=rate,
            host_burst=5.0,
            swarm_rate_per_s=whole * max(1, plan.tasks // 100),
            swarm_burst=WHOLE_BURST,
            first_lease_s=rng.choice((15.0, 60.0)),
        )
        self.sites = Sites(self.timeline, random.Random(rng.random()), self._new_sites())
        self.watch = Watch(
            {
                name: Pace(rate_per_s=rate, burst=5.0)
                if site.crawl_delay_s is None
                else Pace(rate_per_s=1 / site.crawl_delay_s, burst=1.0, delay_s=site.crawl_delay_s)
                for name, site in self.sites.all.items()
            },
            whole=Pace(rate_per_s=settings.swarm_rate_per_s, burst=WHOLE_BURST),
        )
        plant(bug)
        self.workers: dict[WorkerRef, Worker] = {}
        #: How far the wall clock of the ledger's machine is off.
        self.wall_off_s = 0.0
        #: When the last task had ended, virtual seconds.
        self.done_s = 0.0
        self.roots: list[Root] = []
        together = Together()
        for number in range(plan.roots):
            world = World(database, settings, engines=_engines(str(database), number))
            world.core._rng.seed(rng.random())
            root = Root(
                world,
                self.timeline,
                random.Random(rng.random()),
                wall=lambda: START + self.timeline.now + self.wall_off_s,
                watch=self.watch,
                gossip=self._gossip,
                session=self._session,
                together=together,
                assigns=plan.assigns,
            )
            self.roots.append(root)
        self.people = People(self, most_tasks=plan.tasks)
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
            for number in range(max(rng.randint(1, 5), self.plan.least_sites))
        ]

    def _add_worker(self, number: int) -> None:
        rng = self.rng
        slots = rng.choice((1, 2, 8))
        ref = WorkerRef(f"0x{number:040x}", f"instance-{number}")
        labels = [*(["big"] if rng.random() < 0.5 or number == 0 else ())]
        labels += [f"profile:{profile}" for profile in PROFILES if rng.random() < 0.5]
        versions = {"noop": "1", "scrape": rng.choice(("1", "1", "2"))}
        self.watch.versions[ref] = versions
        lies = number > 0 and rng.random() < 0.2
        # All liars are of one network: two that agree from two networks are believed of a site, for an hour each time.
        address = f"198.51.100.{number}" if lies else f"192.0.{rng.randrange(3)}.{number + 1}"
        self.watch.networks[ref] = prefix_of(address) or ""
        worker = Worker(
            name=f"worker-{number}",
            ref=ref,
            slots=slots,
            timeline=self.timeline,
            network=self.network,
            sites=self.sites,
            watch=self.watch,
            roots=self.roots,
            rng=random.Random(rng.random()),
            counts=self.counts,
            address=address,
            hello=Hello(version="0.1.0", kinds=versions, slots=slots, labels=tuple(labels)),
            lies=lies,
            eternal=rng.random() < 0.5,
            hears=rng.random() < 0.8,
            pace=rng.choice((1.0, 1.0, 0.99, 1.01)),
            work_s=rng.choice((0.01, 1.0, 10.0)),
        )
        self.workers[ref] = worker
        self.timeline.after(rng.uniform(0, 5), worker.start)

    def _session(self, root: Root, ref: WorkerRef) -> object | None:
        session = self.workers[ref].session
        return session if session is not None and session.root is root and session.is_up else None

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
                for root in self.roots:
                    if root.is_up:
                        root.world.close()
        for root in self.roots:
            self.counts.update(root.counts)
        self.counts.update({f"task {move}": number for move, number in self.watch.moves.items()})

    def _run(self) -> None:
        for name, site in self.sites.all.items():
            if site.crawl_delay_s is not None:
                delay_s = site.crawl_delay_s
                self.roots[0].do(SetHostPace(host=name, rate_per_s=1 / delay_s, burst=1.0, one_at_a_time=True))
        self._begin()
        self._plan_next()
        self._live_until(self.plan.chaos_s)
        self._heal()
        self._live_until(self.timeline.now + HEALING_S, unless=lambda: self.watch.is_done)
        if left := self.watch.unfinished:
            raise Broken(f"{len(left)} tasks never ended; the first, {left[0]}, is {self.watch.tasks[left[0]].status}")
        self.done_s = self.timeline.now
        self.timeline.run_until(self.timeline.now + 30.0)  # what is still under way arrives
        check_books(self.roots[0].world, self.watch)

    def _begin(self) -> None:
        """Submit what is there from the start."""
        if self._size is None:
            self.people.submit(self.rng.randint(1, self.plan.tasks))
            return
        for first in range(0, self.plan.tasks, CHUNK):
            self.people.submit(min(CHUNK, self.plan.tasks - first))

    def _live_until(self, moment: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        while self.timeline.now < moment and not unless():
            self.timeline.run_until(min(moment, self.timeline.now + LOOK_S), unless=unless)
            self._look(self)

    def _plan_next(self) -> None:
        self.timeline.after(self.rng.expovariate(self.plan.acts_per_s), self._act)

    def _act(self) -> None:
        if self.timeline.now > self.plan.chaos_s:
            return
        names, weights = zip(*PEOPLE, *_CHAOS, strict=True)
        name = self.rng.choices(names, weights)[0]
        self.say(name)
        if name in dict(PEOPLE):
            getattr(self.people, name)()
        else:
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
        for root in self.roots:
            root.tick_s = CALM_TICK_S
            root.fates.clear()
            if not root.is_up:
                root.start()
        self.people.relent()
        for worker in self.workers.values():
            if not worker.is_up:
                worker.start()

    # ── what befalls them ─────────────────────────────────────────────────────────────────────────────────────────

    def _root(self) -> Root:
        return self.rng.choice(self.roots)

    def _kill_root(self) -> None:
        root = self._root()
        if not root.is_up:
            return
        if self.rng.random() < 0.3:
            root.kill()
        else:
            root.fates.append(self.rng.choice(("kill before", "kill after")))
        self.timeline.after(self.rng.uniform(0.5, 20), lambda: None if root.is_up else root.start())

    def _fail_commit(self) -> None:
        self._root().fates.extend([self.rng.choice(("fail before", "fail after"))] * self.rng.choice((1, 1, 5)))

    def _stall_root(self) -> None:
        self._root().stall(self.rng.choice((1.0, 6.0, 40.0)))

    def _set_clock(self) -> None:
        """Set the wall clock; who starts after that begins at it."""
        self.wall_off_s += self.rng.choice((*NUDGED_S, *SET_S))

    def _up(self) -> Worker | None:
        worker = self.rng.choice(list(self.workers.values()))
        return worker if worker.is_up else None

    def _kill_worker(self) -> None:
        worker = self._up()
        if worker is not None:
            worker.kill()
            self._come_back(worker, 0.0)

    def _come_back(self, worker: Worker, after_s: float) -> None:
        worker.come_back(after_s + self.rng.uniform(0.5, 60))

    def _worker_leaves(self) -> None:
        worker = self._up()
        if worker is not None:
            worker.leave()
            self._come_back(worker, 12.0)

    def _worker_holds(self) -> None:
        worker = self._up()
        if worker is not None:
            worker.hold(self.rng.uniform(1, 60))

    def _worker_gives_back(self) -> None:
        worker = self._up()
        if worker is not None:
            worker.give_back()

    def _worker_sleeps(self) -> None:
        worker = self._up()
        if worker is not None:
            worker.stall(self.rng.choice((1.0, 20.0, 120.0)))

    def _cut_off(self) -> None:
        name = self.rng.choice([worker.name for worker in self.workers.values()])
        self.network.cut_off.add(name)
        self.timeline.after(self.rng.uniform(1, 60), lambda: self.network.cut_off.discard(name))

    def _site_trouble(self) -> None:
        self.sites.trouble()


#: What happens beside what people do, and how often.
_CHAOS: Final = (
    ("kill_root", 4),
    ("fail_commit", 6),
    ("stall_root", 2),
    ("set_clock", 2),
    ("kill_worker", 10),
    ("worker_leaves", 2),
    ("worker_holds", 2),
    ("worker_gives_back", 3),
    ("worker_sleeps", 3),
    ("cut_off", 8),
    ("site_trouble", 10),
)
