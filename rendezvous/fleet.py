"""Who is out there, and who has a free slot? The workers as their turns show them, in memory.

The door writes here at each turn; the announcer and ``spread_s`` read. Nothing that must survive lives here: what a
worker said it is goes to the ledger (``SeeWorkers``) and comes back at a restart. A worker is live while its last turn
is at most ``LIVE_S`` old. One that is silent for ``KEPT_S`` is forgotten, and comes back from the ledger
when it speaks.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

import attrs
import msgspec

from rendezvous.ledger.memory import LIVE_S
from rendezvous.ledger.ops import SeenWorker
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from rendezvous.policy.egress import prefix_of
from swarm.model import Address, TaskId
from swarm.turn_wire import GrantPush, Stats
from swarm.wire import Hello, Requires, encode

__all__ = ["KEPT_S", "Fleet", "Pushes", "Worker", "WorkerState", "facts_of"]

T = TypeVar("T")

#: How long a ``closed`` takes to arrive (measured, DESIGN §5), seconds.
CLOSED_LAG_S: Final = 0.06
#: Gossip reaches a new worker within seconds, or is cut off from it, seconds.
NEWCOMER_S: Final = 30.0
#: Up to so many workers with free slots may ask at once.
ASKERS_AT_ONCE: Final = 4
#: Counting the fleet at each turn would be quadratic; it is believed for so long, seconds.
COUNT_FRESH_S: Final = 0.05
#: A silent worker is listed as offline for so long, seconds: anybody may enrol where admission is open.
KEPT_S: Final = 3600.0


class Pushes(Protocol):
    """What the door may say over a session without being asked. None of these waits."""

    def nudge(self) -> None:
        """Tell the worker to take a turn."""

    def cancel(self, tasks: tuple[TaskId, ...]) -> None:
        """Tell the worker that these tasks were called off."""

    def grant(self, push: GrantPush) -> None:
        """Push tasks that were assigned to the worker."""

    def pause(self, reason: str | None) -> None:
        """Tell the worker that the swarm was paused, or resumed (None)."""

    def close(self, code: int, reason: str) -> None:
        """End the session."""


class WorkerState:
    """What ``GET /v1/workers`` says of a worker."""

    READY: Final = "ready"
    BUSY: Final = "busy"
    OFFLINE: Final = "offline"


def facts_of(hello: Hello | None) -> WorkerFacts:
    """What policy needs of a hello; nothing is known of a worker that has said none."""
    if hello is None:
        return WorkerFacts()
    return WorkerFacts(
        kinds=frozenset(hello.kinds),
        labels=frozenset(hello.labels),
        region=hello.region,
        versions={"worker": hello.version, **hello.kinds},
        slots=hello.slots,
    )


@attrs.define(kw_only=True, eq=False)
class Worker:
    """One worker. ``last_turn`` is in monotonic seconds, ``seen_at`` in Unix seconds."""

    ref: WorkerRef
    payout: Address
    peer_id: str | None = None
    hello: Hello | None = None
    facts: WorkerFacts = attrs.field(factory=WorkerFacts)
    boot: str = ""
    #: The number of its last turn.
    turn_n: int = 0
    #: When tasks were last pushed to it, monotonic seconds.
    pushed_at: float = 0.0
    slots: int = 0
    free: int = 0
    gossip: bool = False
    stats: Stats = attrs.field(factory=Stats)
    last_turn: float | None = None
    #: When it last said what it is, monotonic seconds.
    introduced: float = float("-inf")
    seen_at: float = 0.0
    #: When it was last dealt with, monotonic seconds.
    touched: float = 0.0
    session: Pushes | None = None
    #: Nudged since its last turn: once is enough.
    nudged: bool = False
    #: It wanted more in its last turn than it was granted.
    hungry: bool = False
    unsaved: bool = False
    removed: bool = False


async def _nothing_kept(_ref: WorkerRef) -> None:
    return None


class Fleet:
    """The workers that the root has heard of lately.

    Args:
        clock: monotonic seconds.
        fits: whether a worker may have tasks of this kind that require this.
        rng: spreads nudges over the idle.
        recall: what the ledger keeps of a worker.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        fits: Callable[[WorkerFacts, str, Requires], bool],
        rng: random.Random,
        recall: Callable[[WorkerRef], Awaitable[SeenWorker | None]] = _nothing_kept,
    ) -> None:
        self._clock = clock
        self._fits = fits
        self._rng = rng
        self._recall = recall
        self._workers: dict[WorkerRef, Worker] = {}
        self._counted_at = -1.0
        self._live = 0
        self._with_free = 0

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, seen: Iterable[SeenWorker]) -> None:
        """Take over what the ledger kept: all offline until they speak."""
        for one in seen:
            worker = self.known(one.worker, one.payout)
            worker.peer_id = one.peer_id
            worker.seen_at = one.at
            worker.boot = one.boot
            worker.hello = _read(one.hello, Hello)
            worker.facts = facts_of(worker.hello)
            worker.slots = worker.hello.slots if worker.hello else 0
            worker.stats = _read(one.stats, Stats) or Stats()

    def hear_of(self, seen: Iterable[SeenWorker], *, now: float) -> tuple[tuple[WorkerRef, WorkerFacts, float], ...]:
        """Take in who took a turn at another root's door, as the ledger has it; such a worker has no free slot here.

        Args:
            seen: who spoke lately, wherever.
            now: ledger time, Unix seconds.

        Returns:
            Those that spoke elsewhere later than here: who, what, and when (ledger seconds).
        """
        elsewhere = []
        for one in seen:
            known = self._workers.get(one.worker)
            if known is not None and (known.unsaved or known.session is not None or one.at <= known.seen_at):
                continue
            self.load((one,))
            worker = self._workers[one.worker]
            worker.last_turn = self._clock() - max(0.0, now - one.at)
            worker.gossip, worker.free = False, 0
            elsewhere.append((one.worker, worker.facts, one.at))
        self._counted_at = -1.0
        return tuple(elsewhere)

    def known(self, ref: WorkerRef, payout: Address) -> Worker:
        """The worker of this identity; from now on it is known."""
        worker = self._workers.get(ref)
        if worker is None:
            worker = self._workers[ref] = Worker(ref=ref, payout=payout)
        worker.touched = self._clock()
        return worker

    async def met(self, ref: WorkerRef, payout: Address) -> Worker:
        """The same, with what the ledger keeps of it where it was forgotten here.

        Raises:
            LedgerUnavailable: it isn't known here, and the ledger can't be asked.
        """
        if ref not in self._workers:
            kept = await self._recall(ref)
            if kept is not None and ref not in self._workers:
                self.load((kept,))
        return self.known(ref, payout)

    def forget_silent(self) -> None:
        """Forget the workers without a session that were silent for ``KEPT_S``."""
        since = self._clock() - KEPT_S
        for worker in list(self._workers.values()):
            if worker.touched < since and worker.session is None and not worker.unsaved:
                del self._workers[worker.ref]

    def __contains__(self, ref: WorkerRef) -> bool:
        return ref in self._workers

    def introduce(self, worker: Worker, hello: Hello) -> None:
        """Note what a worker says it is."""
        worker.hello = hello
        worker.facts = msgspec.structs.replace(facts_of(hello), prefix=worker.facts.prefix)
        worker.introduced = self._clock()
        worker.slots = hello.slots
        worker.peer_id = hello.peer_id or worker.peer_id
        worker.unsaved = True

    def comes_from(self, worker: Worker, address: str) -> None:
        """Note from which address a worker calls: what counts is the network that it is of."""
        prefix = prefix_of(address)
        if prefix != worker.facts.prefix:
            worker.facts = msgspec.structs.replace(worker.facts, prefix=prefix)

    def heard(self, worker: Worker, *, free: int, gossip: bool, seen_at: float) -> None:
        """Note that a worker took a turn just now."""
        worker.last_turn = self._clock()
        worker.seen_at = seen_at
        worker.gossip = gossip
        worker.nudged = False
        worker.removed = False
        worker.unsaved = True
        self.set_free(worker, free)

    def set_free(self, worker: Worker, free: int) -> None:
        """Note how many slots a worker has left."""
        worker.free = max(0, free)

    def leave(self, worker: Worker) -> None:
        """Note that a worker said goodbye: it is offline until it speaks again."""
        worker.last_turn = None
        worker.free = 0
        self._counted_at = -1.0

    def remove(self, ref: WorkerRef) -> None:
        """Take a worker off the list until it speaks again."""
        worker = self._workers.get(ref)
        if worker is not None:
            worker.removed = True
            worker.last_turn = None
            self._counted_at = -1.0

    def take_unsaved(self) -> tuple[SeenWorker, ...]:
        """What the ledger should keep of the workers that spoke since the last call."""
        unsaved = [worker for worker in self._workers.values() if worker.unsaved and not worker.removed]
        for worker in unsaved:
            worker.unsaved = False
        return tuple(
            SeenWorker(
                worker=worker.ref,
                payout=worker.payout,
                peer_id=worker.peer_id,
                boot=worker.boot,
                hello=encode(worker.hello).decode() if worker.hello else "",
                stats=encode(worker.stats).decode(),
                at=worker.seen_at,
            )
            for worker in unsaved
        )

    def put_back(self, seen: Iterable[SeenWorker]) -> None:
        """What couldn't be written is unsaved again."""
        for one in seen:
            worker = self._workers.get(one.worker)
            if worker is not None:
                worker.unsaved = True

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, ref: WorkerRef) -> Worker | None:
        """The worker of this identity, if it is known."""
        worker = self._workers.get(ref)
        return None if worker is None or worker.removed else worker

    def all(self) -> list[Worker]:
        """Every worker on the list, in the order of their identity."""
        found = [worker for worker in self._workers.values() if not worker.removed]
        return sorted(found, key=lambda worker: (worker.ref.address, worker.ref.instance))

    def is_live(self, worker: Worker) -> bool:
        """Whether the worker spoke within ``LIVE_S``."""
        return worker.last_turn is not None and self._clock() - worker.last_turn <= LIVE_S

    def state(self, worker: Worker) -> str:
        """Ready, busy or offline."""
        if not self.is_live(worker):
            return WorkerState.OFFLINE
        return WorkerState.READY if worker.free > 0 else WorkerState.BUSY

    def live(self) -> Iterator[Worker]:
        """The workers that spoke within ``LIVE_S``."""
        return (worker for worker in self._workers.values() if self.is_live(worker))

    def live_count(self) -> int:
        """How many workers are live."""
        self._count()
        return self._live

    def has_newcomer(self) -> bool:
        """Whether a worker that came lately has a peer, and hasn't heard gossip yet."""
        since = self._clock() - NEWCOMER_S
        return any(
            not worker.gossip and worker.introduced > since and worker.hello is not None and bool(worker.hello.addrs)
            for worker in self.live()
        )

    def spread_s(self) -> float:
        """Over how long askers should spread: ``L × max(0, f − 4)`` (DESIGN §5), seconds."""
        self._count()
        return round(CLOSED_LAG_S * max(0, self._with_free - ASKERS_AT_ONCE), 3)

    def free_slots(self, kind: str, requires: Requires) -> int:
        """Free slots of the live workers that hear gossip and may have such a task."""
        return sum(
            worker.free
            for worker in self.live()
            if worker.free > 0 and worker.gossip and self._fits(worker.facts, kind, requires)
        )

    def kinds(self) -> frozenset[str]:
        """The kinds of task that a live worker runs."""
        return frozenset(kind for worker in self.live() for kind in worker.facts.kinds)

    def versions(self, name: str) -> frozenset[str]:
        """The versions of the worker program (``worker``), or of a kind's executor, that live workers have."""
        return frozenset(worker.facts.versions[name] for worker in self.live() if name in worker.facts.versions)

    def anyone_fits(self, kind: str, requires: Requires) -> bool:
        """Whether a live worker may have such a task."""
        return any(self._fits(worker.facts, kind, requires) for worker in self.live())

    def deaf_idle(self, kind: str, requires: Requires, at_most: int) -> list[Worker]:
        """Up to so many idle workers with a session and without gossip that may have such a task; at random."""
        found = [
            worker
            for worker in self.live()
            if worker.session is not None
            and worker.free > 0
            and not worker.gossip
            and not worker.nudged
            and self._fits(worker.facts, kind, requires)
        ]
        return found if len(found) <= at_most else self._rng.sample(found, at_most)

    def pause(self, reason: str | None) -> None:
        """Tell every worker with a session that the swarm was paused, or resumed (None)."""
        for worker in self._workers.values():
            if worker.session is not None:
                worker.session.pause(reason)

    def wake_idle(self) -> None:
        """Nudge every idle worker with a session: something opened that no event tells of."""
        for worker in self.live():
            if worker.session is not None and worker.free > 0 and not worker.nudged:
                worker.nudged = True
                worker.session.nudge()

    def assignable(self) -> list[Worker]:
        """The workers that tasks can be pushed to: live, with a session and a free slot.

        Who was pushed something longest ago comes first: of the equally loaded it is next.
        """
        found = [worker for worker in self.live() if worker.session is not None and worker.free > 0 and worker.boot]
        return sorted(found, key=lambda worker: worker.pushed_at)

    def hungry(self) -> list[Worker]:
        """The workers with a session that asked for more than they got."""
        return [w for w in self.live() if w.session is not None and w.hungry and w.free > 0 and not w.nudged]

    def _count(self) -> None:
        now = self._clock()
        if self._counted_at >= 0 and now - self._counted_at < COUNT_FRESH_S:
            return
        live = [worker for worker in self._workers.values() if self.is_live(worker)]
        self._live = len(live)
        self._with_free = sum(1 for worker in live if worker.free > 0)
        self._counted_at = now


def _read(text: str, shape: type[T]) -> T | None:
    """What an older root may have written; unreadable means unknown."""
    try:
        return msgspec.json.decode(text, type=shape) if text else None
    except msgspec.MsgspecError:
        return None
