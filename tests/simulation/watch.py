"""What must hold at every moment, checked on what the ledger committed and on what the sites saw.

``Watch`` follows the history as it is committed, so that a fault is seen when it happens; ``check_books`` reads the
whole ledger at the end.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs

from rendezvous.ledger.ops import LedgerEvent, Submit, SubmitResult
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.contexts import SESSION_KEPT_S
from swarm.model import TERMINAL, Actor, Cid, Move, Status, TaskId
from swarm.turn_wire import Turn, TurnAnswer
from swarm.wire import Requires
from tests.rendezvous.ledger_world import World, check_consistency

__all__ = ["Broken", "Pace", "Watch", "check_books"]

#: Ledger times are floats: a bucket may be over by so many tokens from rounding.
ROUNDING: Final = 1e-6


class Broken(AssertionError):
    """An invariant doesn't hold."""


@attrs.define(kw_only=True)
class Pace:
    """What may be granted of a host: its bucket as policy describes it, replayed.

    Args:
        delay_s: of a host that wants its requests one after another; None elsewhere.
    """

    rate_per_s: float
    burst: float
    delay_s: float | None = None
    tokens: float = attrs.field(init=False)
    at: float = 0.0
    held: dict[TaskId, int] = attrs.field(factory=dict)
    ended_at: float | None = None

    def __attrs_post_init__(self) -> None:
        self.tokens = self.burst

    def grant(self, task: TaskId, fence: int, at: float) -> str | None:
        """Take a grant into account; a sentence where it may not be."""
        if self.delay_s is not None:
            if self.held:
                return f"{task} was granted while {next(iter(self.held))} of the same host wasn't finished"
            if self.ended_at is not None and at < self.ended_at + self.delay_s - ROUNDING:
                return f"{task} was granted {at - self.ended_at:.3f} s after the last one, of {self.delay_s} s"
        self.held[task] = fence
        if self.rate_per_s <= 0:
            return None
        self._refill(at)
        self.tokens -= 1
        return f"{task} was granted with {self.tokens + 1:.3f} tokens left" if self.tokens < -ROUNDING else None

    def _refill(self, at: float) -> None:
        if at > self.at:
            self.tokens = min(self.burst, self.tokens + (at - self.at) * self.rate_per_s)
            self.at = at

    def loosen(self, *, rate_per_s: float, burst: float) -> None:
        """From now on another pace may hold, or this one."""
        self.rate_per_s, self.burst = max(self.rate_per_s, rate_per_s), max(self.burst, burst)

    def repace(self, *, rate_per_s: float, burst: float, at: float) -> None:
        """From now on another pace holds."""
        self._refill(at)
        self.rate_per_s, self.burst, self.tokens = rate_per_s, burst, min(self.tokens, burst)

    def end(self, task: TaskId, at: float) -> None:
        """A grant is over."""
        if self.held.pop(task, None) is not None:
            self.ended_at = at


@attrs.define(kw_only=True)
class _Seen:
    status: Status
    fence: int = 0
    worker: WorkerRef | None = None
    completions: int = 0
    requires: Requires = attrs.field(factory=Requires)
    #: Fences that were taken back by an operator: their holder hears of it only at its next turn.
    by_hand: set[int] = attrs.field(factory=set)


class Watch:
    """Follows what is committed.

    Args:
        paces: of the hosts.
        whole: of the whole swarm; None is no limit.
    """

    def __init__(self, paces: dict[str, Pace], *, whole: Pace | None = None) -> None:
        self.paces = paces
        self._whole: Final = whole or Pace(rate_per_s=0.0, burst=0.0)
        self.tasks: Final[dict[TaskId, _Seen]] = {}
        self.moves: Final[Counter[str]] = Counter()
        self.last_event = 0
        self._last_fence = 0
        #: The results that were said for each lease.
        self._said: Final[dict[tuple[TaskId, int], set[Cid]]] = {}
        self._unfinished: Final[dict[TaskId, None]] = {}
        #: Pauses and quarantines that hold: of swarm, host and job; of a worker on a host, until when.
        self.paused: Final[set[tuple[str, str]]] = set()
        self.quarantined: Final[dict[tuple[WorkerRef, str], float]] = {}
        #: Pinned versions by name; hosts where workers of one network are kept apart; what workers are.
        self.pinned: Final[dict[str, str]] = {}
        self.apart: Final[set[str]] = set()
        self.versions: Final[dict[WorkerRef, dict[str, str]]] = {}
        self.networks: Final[dict[WorkerRef, str]] = {}
        #: Who had the last task of each profile and session, and when.
        self._profiles: Final[dict[str, WorkerRef]] = {}
        self._sessions: Final[dict[str, tuple[WorkerRef, float]]] = {}

    @property
    def unfinished(self) -> list[TaskId]:
        """The tasks that haven't ended."""
        return list(self._unfinished)

    @property
    def is_done(self) -> bool:
        """Whether all tasks have ended."""
        return not self._unfinished

    def take(self, events: list[LedgerEvent]) -> None:
        """Check what was committed."""
        for event in events:
            if event.id <= self.last_event:
                continue
            self.last_event = event.id
            self.moves[event.move.value] += 1
            self._take(event)

    def _take(self, event: LedgerEvent) -> None:
        seen = self.tasks.get(event.task)
        if seen is None:
            seen = self.tasks[event.task] = _Seen(status=event.to, requires=event.requires)
        elif event.source is not seen.status:
            raise Broken(f"{event.task} went {event.source} → {event.to}, and was {seen.status}")
        if event.source is Status.ACTIVE and event.to is not Status.ACTIVE:
            self.paces[event.host].end(event.task, event.at)
            if event.by is Actor.OPERATOR or event.move in (Move.QUARANTINE, Move.CANCEL):
                seen.by_hand.add(seen.fence)
        if event.move is Move.GRANT:
            self._granted(event, seen)
        seen.status = event.to
        if event.to in TERMINAL:
            self._unfinished.pop(event.task, None)
        else:
            self._unfinished[event.task] = None
        if event.move is Move.COMPLETE:
            seen.completions += 1
            if seen.completions > 1:
                raise Broken(f"{event.task} was completed twice")
            if event.worker != seen.worker or event.fence != seen.fence:
                raise Broken(f"{event.task} was completed by {event.worker}, fence {event.fence}: not its assignee")

    def _granted(self, event: LedgerEvent, seen: _Seen) -> None:
        assert event.worker is not None
        assert event.fence is not None
        if event.fence <= self._last_fence:
            raise Broken(f"fence {event.fence} of {event.task} comes after {self._last_fence}")
        self._last_fence = event.fence
        seen.fence, seen.worker = event.fence, event.worker
        self._check_contexts(event, seen)
        self._check_worker(event)
        fault = self.paces[event.host].grant(event.task, event.fence, event.at)
        if fault is not None:
            raise Broken(f"{event.host}: {fault}")
        fault = self._whole.grant(event.task, event.fence, event.at)
        if fault is not None:
            raise Broken(f"the whole swarm: {fault}")
        for pause in (("swarm", ""), ("host", event.host), ("job", event.job)):
            if pause in self.paused:
                raise Broken(f"{event.task} was granted while {' '.join(pause)} was paused")
        if self.quarantined.get((event.worker, event.host), 0.0) > event.at:
            raise Broken(f"{event.task} was granted to {event.worker}, which is in quarantine on {event.host}")

    def _check_contexts(self, event: LedgerEvent, seen: _Seen) -> None:
        """A profile never leaves its worker; a session does so when it wasn't used for a while."""
        assert event.worker is not None
        profile, session = seen.requires.profile, seen.requires.session
        if profile is not None and self._profiles.setdefault(profile, event.worker) != event.worker:
            raise Broken(f"{profile} went from {self._profiles[profile]} to {event.worker}")
        if session is not None:
            before, at = self._sessions.get(session, (event.worker, event.at))
            if before != event.worker and event.at < at + SESSION_KEPT_S - ROUNDING:
                raise Broken(f"{session} went from {before} to {event.worker} after {event.at - at:.0f} s")
            self._sessions[session] = (event.worker, event.at)

    def _check_worker(self, event: LedgerEvent) -> None:
        """The versions that the operator pinned, and the networks that are kept apart."""
        assert event.worker is not None
        pinned = self.pinned.get(event.kind)
        if pinned is not None and self.versions[event.worker].get(event.kind) != pinned:
            raise Broken(f"{event.task} was granted to {event.worker}, which doesn't run {event.kind} {pinned}")
        if event.host not in self.apart:
            return
        network = self.networks.get(event.worker)
        for other in self.paces[event.host].held:
            holder = self.tasks[other].worker
            if holder != event.worker and holder is not None and self.networks.get(holder) == network:
                raise Broken(f"{event.task} was granted to {event.worker} while {holder} of its network holds {other}")

    def check_submission(self, submission: Submit, answer: SubmitResult) -> None:
        """A submission is answered: what it says that there is, is there, in its job or under its key."""
        missing = [task for task, _ in answer.tasks if task not in self.tasks]
        if missing or len(answer.tasks) != len(submission.tasks):
            raise Broken(f"of {len(submission.tasks)} submitted tasks {len(missing)} aren't there: {missing}")

    def check_outcomes(self, worker: WorkerRef, turn: Turn, answer: TurnAnswer) -> None:
        """A worker is answered; a completion that was taken is of the task's last lease, and that was the worker's.

        The very result that was taken may be said again by an older lease: a kept result is used for a new one.
        """
        for done in turn.done:
            self._said.setdefault((done.task, done.fence), set()).add(done.cid)
        for outcome in answer.outcomes:
            seen = self.tasks.get(outcome.task)
            if outcome.status != Status.COMPLETED.value or seen is None:
                continue
            if (seen.worker, seen.fence) == (worker, outcome.fence):
                continue
            taken = self._said.get((outcome.task, seen.fence), set())
            if seen.worker != worker or not taken & self._said.get((outcome.task, outcome.fence), set()):
                raise Broken(
                    f"{worker} completed {outcome.task} by lease {outcome.fence}; {seen.worker} has it by {seen.fence}"
                )

    def check_request(self, task: TaskId, fence: int, worker: WorkerRef) -> None:
        """A worker is about to ask a site for something on behalf of a lease."""
        seen = self.tasks[task]
        if seen.worker == worker:
            # Its newest lease, be it over: nobody else works on it. Or an older one, where a held-up turn of an earlier
            # boot of the same worker, which lives no more, was granted the task again.
            return
        if fence in seen.by_hand:
            return
        raise Broken(
            f"{worker} asks for {task} by the lease {fence} after {seen.worker} was granted it by {seen.fence}"
        )


def check_books(world: World, watch: Watch) -> None:
    """Check the whole ledger: kept numbers, lanes, histories, leases, and the effect of each key at most once."""
    check_consistency(world)
    with world.reading.connect() as connection:
        rows = connection.exec_driver_sql("SELECT id, status FROM tasks").all()
        doubled = connection.exec_driver_sql(
            "SELECT b.dedupe, count(*) FROM tasks t JOIN task_bodies b ON b.seq = t.seq "
            "WHERE t.status = 'completed' GROUP BY b.dedupe HAVING count(*) > 1"
        ).all()
    stored: dict[TaskId, str] = dict(tuple(row) for row in rows)
    for task, seen in watch.tasks.items():
        if stored.get(task) != seen.status.value:
            raise Broken(f"{task} is {stored.get(task)} in the ledger, its history says {seen.status.value}")
    if doubled:
        raise Broken(f"the effects of {len(doubled)} keys were recorded more than once")
