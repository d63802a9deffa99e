"""What operators say against what workers do at the same moment, at several roots of one ledger: one order, no gap."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
import uuid6
from sqlalchemy import text

from rendezvous.ledger.act_ops import Admit, FailByHand, LiftQuarantine, Pause, Quarantine, Resume, Revoke, TakeBack
from rendezvous.ledger.ops import (
    Cancel,
    DoneItem,
    FailedItem,
    LeaseRef,
    Op,
    RemoveWorker,
    Replay,
    Submit,
    SubmitResult,
    Sweep,
    TakeTurn,
    TurnResult,
)
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.transitions import LedgerCore
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.pauses import Scope
from swarm.model import Refusal, RefusalCode
from tests.rendezvous.ledger_world import ALICE, BOB, CAROL, CID, START, World, check_consistency, facts, new_task

WORKERS: Final = (ALICE, BOB, CAROL)
HOSTS: Final = ("a.test", "b.test")
ROOTS: Final = 3
#: Groups of each root.
GROUPS: Final = 60
#: Ledger time runs so much faster, so that leases run out and backoffs end.
FASTER: Final = 20.0
BY: Final = {"who": "operator", "why": "a race"}


@attrs.frozen
class Said:
    """An operation and its answer, and between which moments it was done."""

    began: float
    ended: float
    op: Any
    answer: Any

    def overlaps(self, other: Said) -> bool:
        return self.began <= other.ended and other.began <= self.ended


class Race:
    """Roots that do at random whatever workers, requesters and operators may ask for."""

    def __init__(self, database: str) -> None:
        self.world = World(database, LedgerSettings(host_rate_per_s=0, newcomer_budget=0, first_lease_s=15.0))
        self.said: list[Said] = []
        self.tasks: list[str] = []
        self._began = time.monotonic()

    def run(self) -> None:
        threads = [threading.Thread(target=self._root, args=(number,)) for number in range(ROOTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.world.now = self._now()

    def _now(self) -> float:
        return START + (time.monotonic() - self._began) * FASTER

    def _root(self, number: int) -> None:
        rng = random.Random(number)
        core = LedgerCore(self.world.engine, rng=random.Random(number), settings=self.world.settings)
        held: dict[WorkerRef, dict[str, int]] = defaultdict(dict)
        for _ in range(GROUPS):
            ops = [self._chosen(rng, held, number) for _ in range(rng.randint(1, 4))]
            began = time.monotonic()
            answers = core.apply(ops, now=self._now()).answers
            self.said += [Said(began, time.monotonic(), *one) for one in zip(ops, answers, strict=True)]
            for op, answer in zip(ops, answers, strict=True):
                if isinstance(answer, SubmitResult):
                    self.tasks += [task for task, _ in answer.tasks]
                elif isinstance(answer, TurnResult):
                    self._follow(held[op.worker], answer)  # type: ignore[union-attr]
        core.close()

    @staticmethod
    def _follow(held: dict[str, int], answer: TurnResult) -> None:
        gone = {ended.task for ended in answer.ended} | set(answer.cancelled)
        gone |= {task for task, fence in held.items() if fence in answer.lost}
        for task in gone:
            held.pop(task, None)
        held.update((grant.task.id, grant.fence) for grant in answer.granted)

    def _chosen(self, rng: random.Random, held: dict[WorkerRef, dict[str, int]], root: int) -> Op:
        worker, host = rng.choice(WORKERS), rng.choice(HOSTS)
        some = tuple(rng.choice(self.tasks) for _ in range(2)) if self.tasks else ()
        kinds: dict[str, Callable[[], Op]] = {
            "turn": lambda: _turn(rng, worker, held[worker], root),
            "submit": lambda: _submission(rng),
            "pause": lambda: Pause(scope=Scope.SWARM, name="", **BY),
            "resume": lambda: Resume(scope=Scope.SWARM, name="", **BY),
            "pause host": lambda: Pause(scope=Scope.HOST, name=host, **BY),
            "resume host": lambda: Resume(scope=Scope.HOST, name=host, **BY),
            "quarantine": lambda: Quarantine(worker=worker, host=host, for_s=10_000.0, **BY),
            "lift": lambda: LiftQuarantine(worker=worker, host=host, **BY),
            "revoke": lambda: Revoke(owner=worker.address, **BY),
            "admit": lambda: Admit(owner=worker.address, **BY),
            "remove": lambda: RemoveWorker(worker=worker, **BY),
            "fail": lambda: FailByHand(tasks=some, who="operator", retry=rng.random() < 0.5),
            "take back": lambda: TakeBack(tasks=some, **BY),
            "replay": lambda: Replay(owner=None, who="operator", tasks=some),
            "cancel": lambda: Cancel(owner=None, who="operator", tasks=some),
            "sweep": Sweep,
        }
        weights = [30 if kind == "turn" else 6 if kind in {"submit", "resume", "resume host"} else 3 for kind in kinds]
        return kinds[rng.choices(list(kinds), weights)[0]]()

    # ── what must hold ────────────────────────────────────────────────────────────────────────────────────────────

    def granted_between(
        self, first: Callable[[Any], bool], last: Callable[[Any], bool], *, worker: WorkerRef | None, host: str | None
    ) -> list[Said]:
        """Turns that were granted something between an act and what ends it, whoever did the two."""
        ends = [one for one in self.said if last(one.op)]
        found = []
        for act in self.said:
            if not first(act.op) or isinstance(act.answer, Refusal) or any(act.overlaps(end) for end in ends):
                continue
            until = min((end.began for end in ends if end.began > act.ended), default=float("inf"))
            found += [
                one
                for one in self.said
                if isinstance(one.op, TakeTurn)
                and act.ended < one.began
                and one.ended < until
                and (worker is None or one.op.worker == worker)
                and any(not grant.again and host in {None, grant.host} for grant in one.answer.granted)
            ]
        return found


def _turn(rng: random.Random, worker: WorkerRef, held: dict[str, int], root: int) -> TakeTurn:
    items = rng.sample(sorted(held.items()), len(held))
    done, failed, rest = items[:2], items[2:3], items[3:]
    leases = tuple(LeaseRef(*item) for item in rest)
    return TakeTurn(
        worker=worker,
        boot=f"boot-of-{worker.instance}",
        facts=facts(slots=8),
        done=tuple(DoneItem(task=task, fence=fence, cid=CID, size_bytes=1) for task, fence in done),
        failed=tuple(
            FailedItem(task=task, fence=fence, reason=rng.choice(("timeout", "tls"))) for task, fence in failed
        ),
        held=leases,
        renew=leases if root else (),
        want=rng.randint(0, 4),
        partial=True,
    )


def _submission(rng: random.Random) -> Submit:
    tasks = tuple(new_task(host=rng.choice(HOSTS)) for _ in range(rng.randint(1, 5)))
    return Submit(owner="owner", job=str(uuid6.uuid7()), job_named=False, name=None, tasks=tasks)


def _is(kind: type, **fields: Any) -> Callable[[Any], bool]:
    return lambda op: isinstance(op, kind) and all(getattr(op, name) == value for name, value in fields.items())


def completions(rows: Iterable[Any]) -> Counter[tuple[int, int]]:
    """How often each task was completed in each of its lives."""
    lives: Counter[int] = Counter()
    found: Counter[tuple[int, int]] = Counter()
    for seq, move in rows:
        lives[seq] += move == "replayed"
        found[seq, lives[seq]] += move == "completed"
    return found


def test_what_an_operator_said_holds_for_every_turn_that_comes_after_it_at_any_root(database: str) -> None:
    race = Race(database)
    race.run()
    assert not [one for one in race.said if isinstance(one.answer, Exception)]
    check_consistency(race.world)
    with race.world.reading.connect() as connection:
        found = completions(connection.execute(text("SELECT seq, move FROM events ORDER BY id")))
    assert max(found.values()) == 1
    swarm = {"scope": Scope.SWARM}
    assert not race.granted_between(_is(Pause, **swarm), _is(Resume, **swarm), worker=None, host=None)
    for host in HOSTS:
        paused = {"scope": Scope.HOST, "name": host}
        assert not race.granted_between(_is(Pause, **paused), _is(Resume, **paused), worker=None, host=host)
        for worker in WORKERS:
            kept_off = {"worker": worker, "host": host}
            first, last = _is(Quarantine, **kept_off), _is(LiftQuarantine, **kept_off)
            assert not race.granted_between(first, last, worker=worker, host=host)
    for worker in WORKERS:
        revoked = {"owner": worker.address}
        assert not race.granted_between(_is(Revoke, **revoked), _is(Admit, **revoked), worker=worker, host=None)
    race.world.close()


def test_a_turn_that_the_door_let_in_before_its_worker_was_revoked_is_granted_nothing(database: str) -> None:
    world = World(database)
    first, second = world.submit(new_task(), new_task())
    assert [lease.task for lease in world.claim(ALICE)] == [first]
    assert world.do(Revoke(owner=ALICE.address, **BY)).requeued == 1
    refusal = world.turn(ALICE, offers=(second,), want=5, explain=True).refused[second]
    assert (refusal.code, refusal.message) == (
        RefusalCode.KEY_REVOKED,
        f"operator revoked {ALICE.address}: a race",
    )
    assert len(world.claim(BOB, 5)) == 2
    world.do(Admit(owner=ALICE.address, **BY))
    third = world.one()
    assert [lease.task for lease in world.claim(ALICE)] == [third]
    check_consistency(world)
    world.close()
