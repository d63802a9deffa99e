"""A worker: the real state machine of its turns, slots that ask simulated sites, a journal that outlives a kill."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs
import msgspec

from rendezvous.ledger.values import WorkerRef
from swarm.content.cid import raw_cid
from swarm.content.manifest import Manifest, encode_manifest
from swarm.model import TaskId
from swarm.turn_wire import Done, Failed, Grant, GrantPush, Turn, TurnAnswer, TurnRefused
from swarm.wire import Announcement, Hello, decode, encode
from swarm.worker.effects import Effect, Settled, Start, Stop, Verdict
from swarm.worker.turns import Turns
from tests.simulation.network import Network
from tests.simulation.root import Asked, Root
from tests.simulation.sites import Sites
from tests.simulation.time import Timeline
from tests.simulation.watch import Broken, Watch

__all__ = ["DEADLY", "Worker"]

#: As ``swarm.door_session`` and ``swarm.worker.talk`` have them.
ANSWER_S: Final = 15.0
UNANSWERED_WAIT_S: Final = 0.5
#: As ``swarm.worker.leave`` has them.
GRACE_S: Final = 8.0
LAST_WORD_S: Final = 3.0
#: In the URLs of tasks that end the process of whoever runs them; after how long, and until it is there again.
DEADLY: Final = "/deadly/"
DIES_S: Final = 0.05
RESTARTS_S: Final = (0.5, 20.0)
#: Until somebody starts it again.
AGAIN_S: Final = 1.0
#: Storing and uploading a result.
UPLOAD_S: Final = 0.01
#: What a liar says of a site: the most that can be said.
ETERNITY_S: Final = 31_536_000.0


@attrs.define
class _Session:
    """A connection to one life of the root; the pushes of the door over it."""

    worker: Worker
    root: Root
    life: int

    @property
    def is_up(self) -> bool:
        """Whether the other end lives still."""
        return self.root.is_up and self.root.life == self.life

    def nudge(self) -> None:
        self._push(self.worker.nudged)

    def cancel(self, tasks: tuple[TaskId, ...]) -> None:
        self._push(lambda: self.worker.called_off(tasks))

    def grant(self, push: GrantPush) -> None:
        self._push(lambda: self.worker.assigned(push))

    def pause(self, reason: str | None) -> None:
        self._push(lambda: self.worker.paused(reason))

    def close(self, code: int, reason: str) -> None:
        """The door turns the worker away: it leaves."""
        del code, reason
        self._push(self.worker.turned_away)

    def _push(self, deliver: Callable[[], None]) -> None:
        worker, life = self.worker, self.worker.life

        def arrive() -> None:
            if worker.session is self and worker.is_up and worker.life == life:
                worker.once_awake(deliver)

        worker.network.carry(worker.name, arrive)


@attrs.define(kw_only=True)
class Worker:
    """One worker, through all its lives.

    Args:
        lies: it reports blocks that didn't happen, asks for eternal waits, and completes what it doesn't hold any more.
        eternal: whether what it says of blocks asks for a wait without end, too.
        hears: gossip reaches it; else it lives on nudges.
        pace: how much faster than true time its clock runs.
    """

    name: str
    ref: WorkerRef
    slots: int
    timeline: Timeline
    network: Network
    sites: Sites
    watch: Watch
    roots: Sequence[Root]
    rng: random.Random
    counts: Counter[str]
    hello: Hello
    lies: bool = False
    eternal: bool = True
    hears: bool = True
    pace: float = 1.0
    #: How long a no-op takes, the mean, seconds.
    work_s: float = 1.0
    #: The IP address that it calls from.
    address: str = "192.0.2.1"
    is_up: bool = False
    #: Whether an operator revoked its keys.
    revoked: bool = False
    life: int = 0
    session: _Session | None = None
    #: What outlives a kill: outcomes that aren't answered, results of leases that are over.
    journal: dict[tuple[TaskId, int], Done | Failed] = attrs.field(factory=dict)
    kept: dict[TaskId, Done] = attrs.field(factory=dict)
    _past: list[tuple[TaskId, int]] = attrs.field(factory=list)
    turns: Turns = attrs.field(init=False)
    _running: dict[int, Grant] = attrs.field(init=False)
    _queue: list[Grant] = attrs.field(init=False)
    #: Whether a turn is under way, and which was the last.
    _exchanging: bool = attrs.field(init=False, default=False)
    _exchange: int = attrs.field(init=False, default=0)
    _looks: int = attrs.field(init=False, default=0)
    _positions: dict[str, tuple[int, int]] = attrs.field(init=False)
    _stalled_until: float = attrs.field(init=False, default=0.0)
    _back_at: float = attrs.field(init=False, default=0.0)

    # ── its lives ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> float:
        """Its own clock, seconds."""
        return self.timeline.now * self.pace

    def start(self) -> None:
        """Start, or start again after a kill."""
        self.life += 1
        self.is_up = True
        self.turns = Turns(boot=f"{self.name}-{self.life}", hello=self.hello, instance=self.ref.instance, now=self.now)
        self._running, self._queue = {}, []
        self._exchanging = False
        self._positions = {}
        self._stalled_until = 0.0
        for entry in self.journal.values():
            self.turns.adopt(entry, self.now)
        self._look()

    def kill(self) -> None:
        """SIGKILL."""
        self.is_up = False
        self.session = None
        self.counts["workers killed"] += 1

    def _die(self) -> None:
        """A task was too much for the process; whoever watches over it starts it again."""
        self.kill()
        self.come_back(self.rng.uniform(*RESTARTS_S))

    def turned_away(self) -> None:
        """The door refuses this worker for good: the program ends; its owner tries again once it is admitted."""
        self.is_up = False
        self.session = None
        self.counts["workers turned away"] += 1
        if not self.revoked:
            self.come_back(AGAIN_S)

    def come_back(self, seconds: float) -> None:
        """Start again after so long, if it is down then."""
        self._back_at = self.timeline.now + seconds
        self.timeline.at(self._back_at, lambda: None if self.is_up else self.start())

    def leave(self) -> None:
        """The first request to stop: drain, then give back what is left, then go (``swarm.worker.leave``)."""
        self.counts["workers left"] += 1
        self._apply(self.turns.drain(self.now))
        self._look()
        self._later(GRACE_S, self._give_all_back)

    def _give_all_back(self) -> None:
        self._apply(self.turns.release_all(self.now))
        self._look()
        self._later(LAST_WORD_S, self._go)

    def _go(self) -> None:
        self.kill()
        if self.timeline.now >= self._back_at:  # it was wanted again before it had gone
            self.come_back(AGAIN_S)

    def hold(self, seconds: float) -> None:
        """Ask for nothing for a while, as when its failures look like its own."""
        self.turns.hold("a test", until=self.now + seconds)
        self._look()

    def give_back(self) -> None:
        """Give some lease back, whatever is done of it."""
        if self.turns.leases:
            self._apply(self.turns.give_back(self.rng.choice(self.turns.leases).fence, self.now))
            self._look()

    def stall(self, seconds: float) -> None:
        """Stand still, as a laptop that sleeps does; its clock goes on."""
        self._stalled_until = max(self._stalled_until, self.timeline.now + seconds)

    def once_awake(self, do: Callable[[], None]) -> None:
        """Do something now, or when it doesn't stand still any more."""
        if self.timeline.now >= self._stalled_until:
            do()
            return
        life = self.life
        self.timeline.at(self._stalled_until, lambda: self.once_awake(do) if self.lives(life) else None)

    def lives(self, life: int) -> bool:
        """Whether this life isn't over."""
        return self.is_up and self.life == life

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        """Plan something of this life."""
        life = self.life
        self.timeline.after(seconds / self.pace, lambda: self.once_awake(do) if self.lives(life) else None)

    # ── what others tell it ───────────────────────────────────────────────────────────────────────────────────────

    def hear(self, announcement: Announcement) -> None:
        """Gossip; the reader of the peer passes messages in order only."""
        if self.is_up:
            self.once_awake(lambda: self._hear(announcement))

    def _hear(self, announcement: Announcement) -> None:
        position = (announcement.epoch, announcement.seq)
        if position > self._positions.get(announcement.root, (-1, -1)):
            self._positions[announcement.root] = position
            self.turns.hear(announcement, self.now)
            self._look()

    def nudged(self) -> None:
        """The door says that there may be work."""
        self.turns.nudge()
        self._look()

    def called_off(self, tasks: tuple[TaskId, ...]) -> None:
        """The door says that these aren't wanted any more."""
        self._apply(self.turns.cancel(tasks))
        self._look()

    def assigned(self, push: GrantPush) -> None:
        """The door pushes tasks."""
        self._apply(self.turns.assigned(push, self.now))
        self._look()

    def paused(self, reason: str | None) -> None:
        """The swarm was paused or resumed."""
        self.turns.pause(reason)
        self._look()

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Say what there is to say, stop what isn't covered any more, and look again in time."""
        self._apply(self.turns.overdue(self.now))
        if not self._exchanging:
            if self.session is None or not self.session.is_up:
                self._connect()
            turn = self.turns.take_turn(self.now) if self.session is not None else None
            if turn is not None:
                self._say(turn)
        wait_s = self.turns.overdue_in_s(self.now)
        if not self._exchanging:
            wait_s = min(wait_s, self.turns.wait_s(self.now) if self.session is not None else UNANSWERED_WAIT_S)
        self._later(min(max(wait_s, 0.001), 10.0), self._look_once())

    def _connect(self) -> None:
        """Go to any door that is open."""
        doors = [root for root in self.roots if root.is_up]
        self.session = None
        if doors:
            root = self.rng.choice(doors)
            self.session = _Session(self, root, root.life)
            self.turns.reconnected()

    def _look_once(self) -> Callable[[], None]:
        """Only the last planned look happens."""
        self._looks += 1
        mine = self._looks
        return lambda: self._look() if self._looks == mine else None

    def _say(self, turn: Turn) -> None:
        assert self.session is not None
        self._exchanging = True
        self._exchange += 1
        life, exchange = self.life, self._exchange

        def answer(said: TurnAnswer | TurnRefused) -> None:
            self.network.carry(self.name, lambda: self.once_awake(lambda: self._answered(life, exchange, said)))

        said = decode(encode(self._forged(turn) if self.lies else turn), Turn)  # what can't travel is found here
        asked = Asked(worker=self.ref, payout=self.ref.address, address=self.address, turn=said, answer=answer)
        root = self.session.root
        self.network.carry(self.name, lambda: root.arrive(asked))
        self._later(ANSWER_S, lambda: self._unanswered(exchange))

    def _forged(self, turn: Turn) -> Turn:
        """The turn with a completion by a lease that this worker once had."""
        said = {entry.fence for entry in (*turn.done, *turn.failed, *turn.released)}
        said |= {lease.fence for lease in self.turns.leases}
        past = [lease for lease in self._past if lease[1] not in said]
        if not past:
            return turn
        mine = {lease.task for lease in self.turns.leases}
        again = [lease for lease in past if lease[0] in mine]  # by an older lease of what it holds, where there is one
        task, fence = self.rng.choice(again or past)
        done = self._done(task, fence, "noop")
        return msgspec.structs.replace(turn, done=(*turn.done, done))

    def _done(self, task: TaskId, fence: int, kind: str) -> Done:
        manifest = Manifest(task=task, worker=self.ref.address, kind=kind, versions={"run": str(fence)})
        body = encode_manifest(manifest)
        return Done(task=task, fence=fence, cid=raw_cid(body), manifest=body, ran_s=1.0)

    def _answered(self, life: int, exchange: int, said: TurnAnswer | TurnRefused) -> None:
        if not self.is_up or self.life != life or self._exchange != exchange or not self._exchanging:
            return  # of another session
        self._exchanging = False
        if isinstance(said, TurnRefused):
            self._apply(self.turns.refused(said.error, self.now))
        else:
            self._apply(self.turns.answered(said, self.now))
        self._look()

    def _unanswered(self, exchange: int) -> None:
        if self._exchanging and self._exchange == exchange:
            self._exchanging = False
            self.session = None
            self.turns.unanswered(self.now, wait_s=UNANSWERED_WAIT_S)
            self._look()

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Start):
                self._begin(effect.grant)
            elif isinstance(effect, Stop):
                self._running.pop(effect.fence, None)
                self._queue = [grant for grant in self._queue if grant.fence != effect.fence]
                self._fill()
            elif isinstance(effect, Settled):
                entry = effect.entry
                if isinstance(entry, (Done, Failed)):
                    self.journal.pop((entry.task, entry.fence), None)
                if effect.verdict is Verdict.STALE and isinstance(entry, Done):
                    self.kept[entry.task] = entry
            else:
                self.journal.pop((effect.entry.task, effect.entry.fence), None)
                self.kept[effect.entry.task] = effect.entry

    # ── slots ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, grant: Grant) -> None:
        self._past.append((grant.task.id, grant.fence))
        kept = self.kept.pop(grant.task.id, None)
        if kept is not None and self.turns.stored(grant.fence):
            self.counts["kept results used"] += 1
            self._later(UPLOAD_S, lambda: self._report(msgspec.structs.replace(kept, fence=grant.fence)))
            return
        self._queue.append(grant)
        self._fill()

    def _fill(self) -> None:
        while self._queue and len(self._running) < self.slots:
            grant = self._queue.pop(0)
            if self.turns.started(grant.fence):
                self._running[grant.fence] = grant
                self._run(grant, 0)
        if len(self._running) > self.slots:
            raise Broken(f"{self.name} runs {len(self._running)} tasks in {self.slots} slots")

    def _run(self, grant: Grant, place: int) -> None:
        """Ask for the task's URLs, one after another."""
        self._apply(self.turns.overdue(self.now))  # as before each request (``swarm.worker.tools``)
        if grant.fence not in self._running:
            return
        urls = grant.task.urls
        if grant.task.kind == "noop" or place == len(urls):
            wait_s = self.rng.expovariate(1 / self.work_s) if grant.task.kind == "noop" else 0.0
            self._later(wait_s, lambda: self._finish(grant, None, None))
            return
        self.watch.check_request(grant.task.id, grant.fence, self.ref)
        if DEADLY in urls[place]:
            self._later(DIES_S, self._die)
            return
        answer = self.sites.ask(urls[place].split("/")[2])
        if self.lies and self.rng.random() < 0.7:
            self._later(answer.after_s, lambda: self._finish(grant, "blocked", ETERNITY_S if self.eternal else None))
        elif answer.reason is not None:
            self._later(answer.after_s, lambda: self._finish(grant, answer.reason, answer.retry_after_s))
        else:
            self._later(answer.after_s, lambda: self._run(grant, place + 1))

    def _finish(self, grant: Grant, reason: str | None, retry_after_s: float | None) -> None:
        if self._running.pop(grant.fence, None) is None:
            return  # it was stopped
        if self.turns.executed(grant.fence):
            task, fence = grant.task.id, grant.fence
            report: Done | Failed
            if reason is not None:
                report = Failed(task=task, fence=fence, reason=reason, retry_after_s=retry_after_s, ran_s=1.0)
            else:
                report = self._done(task, fence, grant.task.kind)
            self._later(UPLOAD_S, lambda: self._report(report))
        self._fill()

    def _report(self, report: Done | Failed) -> None:
        self.journal[report.task, report.fence] = report
        if not self.turns.report(report, self.now):
            del self.journal[report.task, report.fence]
            if isinstance(report, Done):
                self.kept[report.task] = report
        self._look()
