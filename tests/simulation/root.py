"""A root: the real ledger, fleet, turns and announcer, driven without an event loop, so that it can die anywhere.

What the door's coroutines ask of the ledger is gathered and committed in groups, as the writer's thread does it. A
group may end in any of the ways that a database knows: committed and answered, committed and unanswered, rolled back.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final, TypeVar

import attrs

from rendezvous.announce import Announcer
from rendezvous.door.assigner import RETRY_S, ROUND_S, Assigner
from rendezvous.door.envelope import error_body, refusal_of
from rendezvous.door.metrics import Metrics
from rendezvous.door.notify import Notifier
from rendezvous.door.stream import EventStream
from rendezvous.door.turns import Turns
from rendezvous.fleet import Fleet
from rendezvous.ledger.ledger import STALL_S, TICK_S, LedgerClock
from rendezvous.ledger.memory import LIVE_S
from rendezvous.ledger.ops import HearOf, LedgerEvent, Op, Probe, Rearm, SeeWorkers, Sweep
from rendezvous.ledger.queries import LedgerReader
from rendezvous.ledger.telling import Telling
from rendezvous.ledger.values import WorkerRef
from rendezvous.wiring import SAVE_S, fits
from swarm.errors import LedgerUnavailable, SwarmError
from swarm.model import Address, Refusal
from swarm.turn_wire import Turn, TurnAnswer, TurnRefused
from swarm.wire import Announcement, decode
from tests.rendezvous.ledger_world import World
from tests.simulation.time import Timeline
from tests.simulation.watch import Watch

__all__ = ["Asked", "Killed", "Root", "Together"]

NETWORK: Final = "simulated"
#: Of its peers' ids; the number comes behind it.
PEER: Final = "12D3KooWGRUacmEmsDhdzQQ4RKPBoJSvLAjFVXUQzjKs1YeXKp"
#: What the root needs for a group of turns.
SERVICE_S: Final = 0.002
#: Until a root hears of what another one committed, the mean.
NEWS_S: Final = 0.002
#: Added to what is waited for: a moment that is rounded down would come again and again.
LEAST_S: Final = 1e-4

T = TypeVar("T")


class Killed(BaseException):
    """The root's process ends here. No ``except Exception`` may hold it."""


class _Ask:
    """An operation on its way to the writer."""

    def __init__(self, op: Op) -> None:
        self.op = op

    def __await__(self) -> Generator[Op, Any, Any]:
        return (yield self.op)


class _Ledger:
    """What the door sees of the ledger."""

    def __init__(self, root: Root) -> None:
        self._root = root

    async def call(self, op: Op) -> Any:
        return await _Ask(op)

    async def read(self, query: Callable[[LedgerReader], T]) -> T:
        return query(self._root.world.reader)

    def now(self) -> float:
        return self._root.now


@attrs.frozen(kw_only=True)
class Asked:
    """A turn that has arrived, from which IP address, and where its answer goes."""

    worker: WorkerRef
    payout: Address
    address: str
    turn: Turn
    answer: Callable[[TurnAnswer | TurnRefused], None]


@attrs.define
class Together:
    """The roots of one ledger: who reaps for all, and who hears of what another one committed."""

    roots: list[Root] = attrs.field(factory=list)
    _reaper: Root | None = None

    def reaps(self, root: Root) -> bool:
        """Whether it is this root that sweeps; the office of one that died goes to whoever asks next."""
        if self._reaper is None or not self._reaper.is_up:
            self._reaper = root
        return self._reaper is root

    def tell(self, root: Root, last: int) -> None:
        """Tell the others what one committed, up to this event."""
        for other in self.roots:
            if other is not root and other.is_up:
                other.hear_news(last)


class Root:
    """One root, through all its lives.

    Args:
        world: the ledger.
        wall: its machine's clock, Unix seconds; it may be set at any time.
        watch: sees what is committed.
        gossip: carries an announcement to whoever listens.
        session: the session of a worker that is connected to this life of this root, or None.
        together: the roots of this ledger; this one joins them.
        assigns: whether it pushes tasks (``--mode assign``).
    """

    def __init__(
        self,
        world: World,
        timeline: Timeline,
        rng: random.Random,
        *,
        wall: Callable[[], float],
        watch: Watch,
        gossip: Callable[[Announcement], None],
        session: Callable[[Root, WorkerRef], Any],
        together: Together | None = None,
        assigns: bool = False,
    ) -> None:
        self.world = world
        self._timeline = timeline
        self._rng = rng
        self._wall = wall
        self._together = together or Together()
        self.peer = f"{PEER}{len(self._together.roots)}"
        self._together.roots.append(self)
        self._mode_assign = assigns
        self._watch = watch
        self._gossip = gossip
        self._session = session
        self.counts: Final[Counter[str]] = Counter()
        #: A sweep comes at least so often, seconds.
        self.tick_s = TICK_S
        self.is_up = False
        self.life = 0
        #: What becomes of the commits that come: "kill before", "kill after", "fail before", "fail after".
        self.fates: Final[list[str]] = []
        self._inbox: list[Asked] = []
        self._serving = self._pacing = False
        self._announces_at = self._assigns_at = math.inf
        self._stalled_until = 0.0
        self._swept_at: float | None = None
        self.start()

    @property
    def now(self) -> float:
        """Ledger time, Unix seconds."""
        return self._clock()

    @property
    def stands_still(self) -> bool:
        """Whether a stall isn't over."""
        return self._timeline.now < self._stalled_until

    # ── its lives ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start, or start again after a kill: what was only in memory is gone."""
        if self.life:
            self.world.open()
        self.life += 1
        self.is_up = True
        reader = self.world.reader
        self._clock = LedgerClock(
            not_before=reader.last_moment(), wall=self._wall(), steady_s=lambda: self._timeline.now
        )
        self.world.now = self.now
        core: Any = self.world.core
        self._commit = core._connection.commit
        core._connection.commit = self._fateful_commit
        self.fleet = Fleet(clock=lambda: self._timeline.now, fits=fits, rng=self._rng)
        self.fleet.load(reader.workers())
        self._metrics = Metrics()
        ledger: Any = _Ledger(self)
        self.turns = Turns(
            ledger=ledger,
            store=None,  # type: ignore[arg-type]  # results are inline: nothing is looked up
            fleet=self.fleet,
            metrics=self._metrics,
            rules_of=lambda _url: None,
            hungry=self._plan_pacing,
            assigns=self._plan_assigning if self._mode_assign else None,
            roots=lambda: tuple(root.peer for root in self._together.roots),
            network_id=NETWORK,
        )
        self._assigner = Assigner(
            ledger, self.fleet, self._metrics, rules_of=lambda _url: None, clock=lambda: self._timeline.now
        )
        self.announcer = Announcer(
            self.fleet, root=self.peer, epoch=int(self.now * 1e9), clock=lambda: self._timeline.now
        )
        last_event = reader.last_event_id()
        self._telling = Telling(last_event, read=reader.ledger_events, deliver=self._hear)
        self._notifier = Notifier(
            fleet=self.fleet,
            stream=EventStream(last_event),
            metrics=self._metrics,
            assigns=self._plan_assigning if self._mode_assign else None,
        )
        self._inbox.clear()
        self._swept_at = None
        self._serving = self._pacing = False
        self._announces_at = self._assigns_at = math.inf
        self.in_life(self._tick)()
        self._plan_announcement()
        self._timeline.after(SAVE_S, self.in_life(self._look_around))

    def kill(self) -> None:
        """SIGKILL."""
        self.counts["root killed"] += 1
        self.is_up = False
        self.world.close()
        self._catch_up()

    def stall(self, seconds: float) -> None:
        """The process stands still: nothing is served, nothing swept."""
        self._stalled_until = max(self._stalled_until, self._timeline.now + seconds)

    def in_life(self, do: Callable[[], None]) -> Callable[[], None]:
        """The same, unless the root has died meanwhile; not before a stall is over."""
        life = self.life

        def done() -> None:
            if self.life != life or not self.is_up:
                return
            if self.stands_still:
                self._timeline.at(self._stalled_until, done)
                return
            try:
                do()
            except Killed:
                self.kill()

        return done

    # ── the writer ────────────────────────────────────────────────────────────────────────────────────────────────

    def _fateful_commit(self, last_event: int | None = None, *, meanwhile: Callable[[], None]) -> None:
        fate = self.fates.pop() if self.fates else ""
        self.counts["commits"] += 1
        if fate.endswith("after") or not fate:
            self._commit(last_event, meanwhile=meanwhile)
        if fate.startswith("kill"):
            raise Killed
        if fate:
            self.counts["commits failed"] += 1
            raise LedgerUnavailable("the simulated disk", "as planned")

    def do(self, *ops: Op) -> list[Any]:
        """Commit a group, and tell of it what was committed."""
        self.world.now = self.now
        group = self.world.core.apply(ops, now=self.now)
        core: Any = self.world.core
        if core._connection._pooled is None or any(isinstance(answer, LedgerUnavailable) for answer in group.answers):
            self._catch_up()  # committed and unanswered, maybe
        if group.events:
            self._watch.take(group.events)
            self._together.tell(self, group.events[-1].id)
            self._telling.committed(group.events, self._hear)
        for answer in group.answers:
            if isinstance(answer, Exception) and not isinstance(answer, LedgerUnavailable):
                raise answer
        return group.answers

    def hear_news(self, last: int) -> None:
        """Another root committed up to this event; the news come in a moment."""
        wait_s = self._rng.expovariate(1 / NEWS_S)
        self._timeline.after(wait_s, self.in_life(lambda: self._telling.elsewhere(last)))

    def _hear(self, events: Sequence[LedgerEvent]) -> None:
        """What was committed, here or elsewhere."""
        if not events:
            return
        self._clock.follow(events[-1].at)
        self._notifier.take(events)
        self.announcer.take(events)
        self._plan_announcement()

    def _catch_up(self) -> None:
        """Let the watch see what was committed while nobody was told."""
        self._see(self.world.reader)
        if not self.is_up:
            self.world.reading.dispose()

    def _see(self, reader: LedgerReader) -> None:
        last = reader.last_event_id()
        if last > self._watch.last_event:
            self._watch.take(reader.ledger_events(self._watch.last_event, last, last + 1))
            self._together.tell(self, last)

    # ── what it does by itself ────────────────────────────────────────────────────────────────────────────────────

    def _tick(self) -> None:
        now, due_s = self.now, self.tick_s
        if self._together.reaps(self):
            stalled = self._swept_at is None or now - self._swept_at > STALL_S
            answers = self.do(*((Rearm(), Sweep()) if stalled else (Sweep(),)))
            if not any(isinstance(answer, Exception) for answer in answers):
                self._swept_at = now
                due_s = answers[-1]
        else:
            self._swept_at = None
            self.do(Probe())
        self._timeline.after(max(0.02, min(due_s, self.tick_s)), self.in_life(self._tick))

    def _look_around(self) -> None:
        """Keep what was heard of workers, and hear which ones other roots have (``wiring``, ``together``)."""
        seen = self.fleet.take_unsaved()
        if seen and isinstance(self.do(SeeWorkers(seen=seen))[0], Exception):
            self.fleet.put_back(seen)
        self.fleet.forget_silent()
        self.turns.forget_silent()
        if len(self._together.roots) > 1:
            now = self.now
            elsewhere = self.fleet.hear_of(self.world.reader.workers(seen_since=now - LIVE_S), now=now)
            if elsewhere:
                self.do(HearOf(workers=elsewhere))
        self._timeline.after(SAVE_S, self.in_life(self._look_around))

    def _plan_announcement(self) -> None:
        """Look at the announcer when it has something to say: news don't wait for the heartbeat's look."""
        wait_s = self.announcer.due_in_s()
        looks_at = self._timeline.now + min(wait_s + LEAST_S if wait_s > 0 else 0.0, 1.0)
        if looks_at < self._announces_at:
            self._announces_at = looks_at
            self._timeline.at(looks_at, self.in_life(lambda: self._announce(looks_at)))

    def _announce(self, looks_at: float) -> None:
        if looks_at != self._announces_at:
            return  # an earlier look has been planned since
        self._announces_at = math.inf
        if self.announcer.due_in_s() <= 0:
            self.counts["announcements"] += 1
            self._gossip(decode(self.announcer.message(), Announcement))
        self._plan_announcement()

    def _plan_pacing(self) -> None:
        if not self._pacing:
            self._pacing = True
            self._timeline.after(0.05, self.in_life(self._pace))

    def _pace(self) -> None:
        """Nudge as many hungry workers as lines opened (``rendezvous.door.pacer``)."""
        self._pacing = False
        hungry = self.fleet.hungry()
        if not hungry:
            return
        opens_at, opened = self.world.reader.openings(self.now)
        self._rng.shuffle(hungry)
        for worker in hungry[: min(opened, 4)]:
            if worker.session is not None:
                worker.nudged = True
                worker.session.nudge()
        if opened or opens_at is not None:
            self._pacing = True
            wait_s = 0.05 if opened else min(1.0, max(0.005, (opens_at or 0.0) - self.now))
            self._timeline.after(wait_s, self.in_life(self._pace))

    def _plan_assigning(self, wait_s: float = ROUND_S) -> None:
        """Let the assigner look in a moment, or when it said that it would."""
        looks_at = self._timeline.now + wait_s
        if looks_at < self._assigns_at:
            self._assigns_at = looks_at
            self._timeline.at(looks_at, self.in_life(lambda: self._assign(looks_at)))

    def _assign(self, looks_at: float) -> None:
        if looks_at != self._assigns_at:
            return  # an earlier look has been planned since
        self._assigns_at = math.inf
        looking, answer = self._assigner._round(), None
        again_in_s: float | None = RETRY_S
        try:
            while True:
                op = looking.throw(answer) if isinstance(answer, Exception) else looking.send(answer)
                (answer,) = self.do(op)
        except StopIteration as done:
            again_in_s = done.value
        except SwarmError:
            self.counts["assignments failed"] += 1
        finally:
            looking.close()
        if again_in_s is not None:
            self._plan_assigning(again_in_s)

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def arrive(self, asked: Asked) -> None:
        """A turn has arrived; it is served with those that arrive about then."""
        if not self.is_up:
            return
        self._inbox.append(asked)
        self.counts["turns"] += 1
        self.counts["asks"] += len(asked.turn.offers)
        if not self._serving:
            self._serving = True
            self._timeline.after(SERVICE_S, self.in_life(self._serve))

    def _serve(self) -> None:
        self._serving = False
        now, later, workers = [], [], set()
        for asked in self._inbox:  # one worker's turns are taken one after another
            (later if asked.worker in workers else now).append(asked)
            workers.add(asked.worker)
        self._inbox = later
        if later:
            self._serving = True
            self._timeline.after(SERVICE_S, self.in_life(self._serve))
        waiting: list[tuple[Asked, Coroutine[Any, Any, TurnAnswer | Refusal], Op]] = []
        for asked in now:
            self._connect(asked)
            taking = self.turns.take(asked.worker, asked.payout, asked.turn, seen_at=self.now, way="session")
            self._go_on(asked, taking, None, waiting)
        while waiting:
            group, waiting = waiting, []
            answers = self.do(*(op for _, _, op in group))
            for (asked, taking, _), answer in zip(group, answers, strict=True):
                self._go_on(asked, taking, answer, waiting)

    def _connect(self, asked: Asked) -> None:
        """Whoever says a turn has a session."""
        worker = self.fleet.known(asked.worker, asked.payout)
        worker.session = self._session(self, asked.worker)
        self.fleet.comes_from(worker, asked.address)

    def _go_on(
        self,
        asked: Asked,
        taking: Coroutine[Any, Any, TurnAnswer | Refusal],
        answer: Any,
        waiting: list[tuple[Asked, Coroutine[Any, Any, TurnAnswer | Refusal], Op]],
    ) -> None:
        """Run the door until it asks the ledger, or has an answer for the worker."""
        try:
            op = taking.throw(answer) if isinstance(answer, Exception) else taking.send(answer)
        except StopIteration as done:
            said = done.value
        except SwarmError as fault:
            said = refusal_of(fault)
            if said is None:
                raise
        else:
            waiting.append((asked, taking, op))
            return
        if isinstance(said, TurnAnswer):
            self._watch.check_outcomes(asked.worker, asked.turn, said)
        if isinstance(said, Refusal):
            said = TurnRefused(n=asked.turn.n, error=error_body(said))
        asked.answer(said)
