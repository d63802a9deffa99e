"""The ledger against a simple model, whatever workers, owners, the clock and crashes do, in whatever order.

The model knows of each task its status, and who holds which lease until when, from the ledger's answers and events
alone. It says what each report must be answered; after each step the tables are checked against themselves.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import uuid6
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import text

from rendezvous.ledger.act_ops import FailByHand, LiftQuarantine, Pause, Quarantine, Resume, Revoke, TakeBack
from rendezvous.ledger.ops import (
    Assign,
    Assignable,
    Cancel,
    DoneItem,
    FailedItem,
    HoldHost,
    LeaseRef,
    Rearm,
    RemoveWorker,
    Replay,
    SetHostPace,
    Submit,
    Sweep,
    TakeTurn,
    TurnResult,
)
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.pauses import Scope
from swarm.model import MOVES, TERMINAL, Actor, Move, Reason, Refusal, RefusalCode, Status, is_retryable
from tests.postgres import Postgres
from tests.rendezvous.ledger_world import ALICE, BOB, CAROL, CID, NOOP, OTHER_CID, World, check_consistency, new_task

WORKERS: Final = (ALICE, BOB, CAROL)
HOSTS: Final = ("one.test", "two.test")
REASONS: Final = ("timeout", "http_4xx", "blocked")
LEASE_S: Final = 60.0

workers = st.sampled_from(WORKERS)
#: Uniform choices: hypothesis' own prefer the smallest, and most turns would then say nothing.
chances = st.integers(0, 2**32 - 1).map(random.Random)


@attrs.define
class Known:
    """What the model knows of a task."""

    status: Status
    fence: int = 0
    holder: WorkerRef | None = None
    lease_until: float = 0.0
    attempts: int = 0
    max_attempts: int = 3
    lost: set[tuple[WorkerRef, int]] = attrs.Factory(set)
    #: Which start of its holder.
    boot: int = 0
    #: How often its holder started anew.
    restarts: int = 0
    result: str | None = None
    history: list[Move] = attrs.Factory(list)

    def is_held(self, worker: WorkerRef, fence: int, now: float) -> bool:
        return self.status is Status.ACTIVE and self.holder == worker and self.fence == fence and self.lease_until > now


class LedgerMachine(RuleBasedStateMachine):
    #: Makes the place of an empty ledger.
    new_ledger: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[str, Known] = {}
        #: All leases ever granted, also stale ones: workers report them late.
        self.leases: list[tuple[WorkerRef, LeaseRef]] = []
        self.boots = dict.fromkeys(WORKERS, 1)
        self.fence = 0
        self.events = 0

    @initialize(paced=st.booleans())
    def begin(self, paced: bool) -> None:
        settings = LedgerSettings(host_rate_per_s=0.2 if paced else 0.0, host_burst=3.0)
        self.world = World(type(self).new_ledger(), settings)
        self.submit_tasks([(5, HOSTS[0], 0.0), (5, HOSTS[1], 0.0), (7, HOSTS[0], 0.0), (2, HOSTS[1], 40.0)])

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()

    # ── doing, and keeping the model ──────────────────────────────────────────────────────────────────────────────

    def do(self, *ops: Any) -> list[Any]:
        answers = self.world.all(*ops)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        self.follow()
        return answers

    def follow(self) -> None:
        """Take the new events in: each must be a step of the table, from where the model knows the task to be."""
        for event in self.world.events[self.events :]:
            rule_ = MOVES[event.move]
            assert event.source in rule_.sources
            assert event.to in rule_.targets
            assert event.by in rule_.actors
            if event.move is Move.SUBMIT:
                self.tasks[event.task] = Known(event.to)
            known = self.tasks[event.task]
            known.history.append(event.move)
            assert event.seq == len(known.history)
            if event.move is not Move.SUBMIT:
                assert event.source is known.status
            known.status = event.to
            if event.move is Move.GRANT:
                assert event.fence is not None
                assert event.fence > self.fence, "fences rise strictly over all grants"
                self.fence = known.fence = event.fence
                known.holder = event.worker
                known.boot = self.boots[event.worker]
                known.lease_until = self.world.now + LEASE_S
            if event.move is Move.RENEW:
                known.lease_until = self.world.now + LEASE_S
            failed_it = event.move is Move.FAIL and event.by is Actor.ASSIGNEE
            if failed_it or event.move in (Move.COMPLETE, Move.RETRY, Move.FAIL_BY_HAND):
                known.attempts += 1
            if event.by is Actor.LEDGER and event.move in (Move.RELEASE, Move.FAIL):  # its holder started anew
                known.restarts += 1
                known.attempts += known.restarts > 1
                assert event.reason == (Reason.WORKER_LOST if known.restarts > 1 else None)
                assert (event.to is Status.FAILED) == (known.attempts >= known.max_attempts)
            if event.move is Move.EXPIRE_LEASE:
                assert known.lease_until <= self.world.now, "no lease is reaped early"
                assert known.holder is not None
                known.attempts += (known.holder, known.boot) not in known.lost
                known.lost.add((known.holder, known.boot))
                assert (event.to is Status.FAILED) == (known.attempts >= known.max_attempts)
            if event.move is Move.REPLAY:
                known.attempts = known.restarts = 0
                known.lost = set()
        self.events = len(self.world.events)

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        tasks=st.lists(
            st.tuples(st.integers(0, 9), st.sampled_from(HOSTS), st.sampled_from((0.0, 0.0, 40.0))),
            min_size=1,
            max_size=4,
        )
    )
    def submit(self, tasks: list[tuple[int, str, float]]) -> None:
        self.submit_tasks(tasks)

    def submit_tasks(self, tasks: list[tuple[int, str, float]]) -> None:
        new = [new_task(priority=priority, host=host, not_before_s=delay) for priority, host, delay in tasks]
        self.do(
            Submit(owner="owner", job=str(uuid6.uuid7()), job_named=False, name=None, tasks=tuple(new)),
        )
        for task in new:
            assert self.tasks[task.id].status is (Status.WAITING if task.not_before_s else Status.PENDING)

    def a_turn(self, worker: WorkerRef, chance: random.Random) -> TakeTurn:
        """A turn that says some true and some outdated things."""
        own = [lease for who, lease in self.leases if who == worker]
        foreign = [lease for who, lease in self.leases if who != worker]
        live = [lease for lease in own if self.tasks[lease.task].is_held(worker, lease.fence, self.world.now)]
        pool = list(
            dict.fromkeys(live + chance.sample(own, min(len(own), 2)) + chance.sample(foreign, min(len(foreign), 1)))
        )
        chance.shuffle(pool)
        said: dict[str, list[Any]] = {"done": [], "failed": [], "released": [], "held": [], "renew": []}
        for lease in pool:
            what = chance.choice(["done", "failed", "released", "held", "renew", "renew", "nothing"])
            if what == "done":
                cid = chance.choice([CID, CID, OTHER_CID])
                said["done"].append(DoneItem(task=lease.task, fence=lease.fence, cid=cid, size_bytes=1))
            elif what == "failed":
                reason = chance.choice(REASONS)
                said["failed"].append(FailedItem(task=lease.task, fence=lease.fence, reason=reason))
            elif what != "nothing":
                said[what].append(lease)
        known = sorted(self.tasks)
        return TakeTurn(
            worker=worker,
            boot=f"boot-{self.boots[worker]}",
            facts=NOOP,
            want=chance.choice([0, 1, 3]),
            room=chance.choice([None, 0, 2]),
            offers=tuple(chance.sample(known, min(len(known), chance.choice([0, 1, 2])))),
            partial=chance.choice([True, False, False]),
            explain=chance.choice([True, False]),
            **{name: tuple(items) for name, items in said.items()},
        )

    @rule(chance=chances)
    def turns(self, chance: random.Random) -> None:
        """Some turns of some workers, one after another, with time between them."""
        for _ in range(4):
            self.world.now += chance.choice([0.1, 1.0, 10.0, 30.0])
            worker = chance.choice(WORKERS)
            op = self.a_turn(worker, chance)
            before = {task: attrs.evolve(known) for task, known in self.tasks.items()}
            (result,) = self.do(op)
            self.check_turn(op, result, before)

    @rule(chance=chances)
    def turns_of_one_group(self, chance: random.Random) -> None:
        ops = [self.a_turn(worker, chance) for worker in WORKERS]
        results = self.do(*ops)
        for op, result in zip(ops, results, strict=True):
            for ended in result.ended:
                if ended.outcome is Status.COMPLETED:
                    said = [item.cid for item in op.done if item.task == ended.task and item.fence == ended.fence]
                    self.tasks[ended.task].result = said[0]
            self.note_grants(op, result)

    def note_grants(self, op: TakeTurn, result: TurnResult) -> None:
        for grant in result.granted:
            known = self.tasks[grant.task.id]
            assert known.is_held(op.worker, grant.fence, self.world.now), "a grant is a live lease of the model's"
            assert grant.lease_s > 0
            self.leases.append((op.worker, LeaseRef(grant.task.id, grant.fence)))
        fresh = [grant for grant in result.granted if not grant.again]
        assert len(fresh) <= min(op.want + len(set(op.offers)), 99 if op.room is None else op.room)

    def check_turn(self, op: TakeTurn, result: TurnResult, before: dict[str, Known]) -> None:
        """What a single turn must be answered, from what was known before it."""
        now = self.world.now
        for item, ended in zip((*op.done, *op.failed, *op.released), result.ended, strict=True):
            known = before[item.task]
            held = known.is_held(op.worker, item.fence, now)
            if isinstance(item, DoneItem):
                same = known.status is Status.COMPLETED and known.holder == op.worker and known.result == item.cid
                if held:
                    assert ended.outcome is Status.COMPLETED
                    self.tasks[item.task].result = item.cid
                    before[item.task] = attrs.evolve(self.tasks[item.task])
                elif same:
                    assert ended.outcome is Status.COMPLETED
                else:
                    self.check_refusal(ended.outcome, known, op.worker, item.fence)
            elif held:
                if isinstance(item, FailedItem):
                    final = not is_retryable(item.reason) or known.attempts + 1 >= known.max_attempts
                    assert ended.outcome is (Status.FAILED if final else Status.WAITING)
                else:
                    assert ended.outcome is Status.PENDING
                before[item.task] = attrs.evolve(known, status=ended.outcome, attempts=known.attempts + 1)
            elif isinstance(ended.outcome, Refusal):
                self.check_refusal(ended.outcome, known, op.worker, item.fence)
            else:  # a repeated report: it changes nothing
                assert ended.outcome is known.status
        spoken = {ref.task for ref in (*op.done, *op.failed, *op.released)}
        for ref in {*op.held, *op.renew}:
            known = before[ref.task]
            if ref.task in spoken or (not op.partial and self.tasks[ref.task].history[-1] is Move.RELEASE):
                continue
            if not known.is_held(op.worker, ref.fence, now) and known.status not in TERMINAL:
                assert ref.fence in result.lost
        self.note_grants(op, result)

    def check_refusal(self, outcome: object, known: Known, worker: WorkerRef, fence: int) -> None:
        assert isinstance(outcome, Refusal)
        mine = known.holder == worker and known.fence == fence
        if not mine:
            assert outcome.code is RefusalCode.INVALID_ASSIGNEE
        elif known.status is Status.COMPLETED:
            assert outcome.code in (RefusalCode.RESULT_DIFFERS, RefusalCode.WRONG_STATUS)
        else:
            assert outcome.code in (RefusalCode.LEASE_EXPIRED, RefusalCode.WRONG_STATUS)

    @rule(free=st.integers(0, 3))
    def assign(self, free: int) -> None:
        """The root pushes to all, as the door does: what it believes of their slots may be wrong."""
        slots = 4
        workers = [
            Assignable(worker=worker, boot=f"boot-{self.boots[worker]}", facts=NOOP, free=free, slots=slots)
            for worker in WORKERS
        ]
        (assigned,) = self.do(Assign(workers=tuple(workers)))
        for one in assigned:
            assert 0 < len(one.granted) <= free
            for grant in one.granted:
                known = self.tasks[grant.task.id]
                assert known.is_held(one.worker, grant.fence, self.world.now)
                self.leases.append((one.worker, LeaseRef(grant.task.id, grant.fence)))
            holds = [each for each in self.tasks.values() if each.status is Status.ACTIVE and each.holder == one.worker]
            assert len(holds) <= slots

    @rule(seconds=st.sampled_from((0.5, 20.0, 61.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    def sweep(self) -> None:
        due_s = 0.0
        while due_s == 0.0:
            (due_s,) = self.do(Sweep())
        for known in self.tasks.values():
            assert known.status is not Status.ACTIVE or known.lease_until > self.world.now

    @rule(chance=chances)
    def time_passes_and_is_swept(self, chance: random.Random) -> None:
        self.world.now += chance.choice([20.0, 61.0, 650.0])
        self.sweep()

    @rule()
    def rearm(self) -> None:
        self.do(Rearm())
        for known in self.tasks.values():
            if known.status is Status.ACTIVE:
                known.lease_until = max(known.lease_until, self.world.now + LEASE_S)

    @precondition(lambda self: self.tasks)
    @rule(chance=chances)
    def cancel(self, chance: random.Random) -> None:
        task = chance.choice(sorted(self.tasks))
        ended_before = self.tasks[task].status in TERMINAL
        ((ended,),) = self.do(Cancel(owner="owner", who="owner", tasks=(task,)))
        assert isinstance(ended.outcome, Refusal) == ended_before

    @precondition(lambda self: self.tasks)
    @rule(chance=chances)
    def replay(self, chance: random.Random) -> None:
        task = chance.choice(sorted(self.tasks))
        failed_before = self.tasks[task].status is Status.FAILED
        ((ended,),) = self.do(Replay(owner=None, who="operator", tasks=(task,)))
        assert isinstance(ended.outcome, Refusal) != failed_before

    @precondition(lambda self: self.tasks)
    @rule(chance=chances, retry=st.booleans())
    def fail_by_hand(self, chance: random.Random, retry: bool) -> None:
        task = chance.choice(sorted(self.tasks))
        known = attrs.evolve(self.tasks[task])
        ((ended,),) = self.do(FailByHand(who="operator", tasks=(task,), retry=retry))
        if known.status in TERMINAL:
            assert isinstance(ended.outcome, Refusal)
        else:
            again = retry and known.attempts + 1 < known.max_attempts
            assert ended.outcome is (Status.WAITING if again else Status.FAILED)

    @rule(worker=workers)
    def worker_is_revoked(self, worker: WorkerRef) -> None:
        held = sum(
            known.status is Status.ACTIVE and known.holder is not None and known.holder.address == worker.address
            for known in self.tasks.values()
        )
        revoked = self.do(Revoke(owner=worker.address, who="operator", why="a test"))[0]
        assert revoked.requeued == held

    @rule(host=st.sampled_from(HOSTS), for_s=st.sampled_from((0.0, 30.0)))
    def hold_host(self, host: str, for_s: float) -> None:
        self.do(HoldHost(host=host, for_s=for_s, why="a test"))

    @rule(host=st.sampled_from(HOSTS), rate=st.sampled_from((0.0, 0.1, 5.0)), one_at_a_time=st.booleans())
    def set_pace(self, host: str, rate: float, one_at_a_time: bool) -> None:
        self.do(SetHostPace(host=host, rate_per_s=rate, burst=2.0, one_at_a_time=one_at_a_time))

    @rule(host=st.sampled_from(HOSTS), resumed=st.booleans())
    def pause_host(self, host: str, resumed: bool) -> None:
        op = Resume(scope=Scope.HOST, name=host, who="olga") if resumed else None
        self.do(op or Pause(scope=Scope.HOST, name=host, who="olga", why="a test"))

    @precondition(lambda self: self.tasks)
    @rule(chance=chances, resumed=st.booleans())
    def pause_job(self, chance: random.Random, resumed: bool) -> None:
        job = self.world.task(chance.choice(sorted(self.tasks))).job
        op = Resume(scope=Scope.JOB, name=job, who="olga") if resumed else None
        self.do(op or Pause(scope=Scope.JOB, name=job, who="olga", why="a test"))

    @rule(worker=workers, host=st.sampled_from(HOSTS), lifted=st.booleans())
    def quarantine(self, worker: WorkerRef, host: str, lifted: bool) -> None:
        if lifted:
            self.do(LiftQuarantine(worker=worker, host=host, who="olga"))
            return
        (requeued,) = self.do(Quarantine(worker=worker, host=host, for_s=100.0, who="olga", why="a test"))
        for task in requeued:
            assert self.tasks[task].status is Status.PENDING
            assert self.tasks[task].holder == worker

    @precondition(lambda self: self.tasks)
    @rule(chance=chances)
    def take_back(self, chance: random.Random) -> None:
        task = chance.choice(sorted(self.tasks))
        active_before = self.tasks[task].status is Status.ACTIVE
        ((ended,),) = self.do(TakeBack(tasks=(task,), who="olga"))
        assert isinstance(ended.outcome, Refusal) != active_before

    @rule(worker=workers)
    def worker_restarts(self, worker: WorkerRef) -> None:
        self.boots[worker] += 1

    @rule(worker=workers)
    def worker_is_removed(self, worker: WorkerRef) -> None:
        held = sum(known.status is Status.ACTIVE and known.holder == worker for known in self.tasks.values())
        assert self.do(RemoveWorker(worker=worker, who="operator")) == [held]

    @rule(chance=chances)
    def crash_before_commit_and_open_again(self, chance: random.Random) -> None:
        """A group is done but for its COMMIT when the process dies: nothing of it happened."""

        def die(_last_event: int | None, *, meanwhile: Callable[[], None]) -> None:
            meanwhile()
            raise KeyboardInterrupt

        self.world.core._connection.commit = die  # type: ignore[method-assign]
        ops = [
            Submit(owner="owner", job=str(uuid6.uuid7()), job_named=False, name=None, tasks=(new_task(),)),
            *(self.a_turn(worker, chance) for worker in WORKERS),
            Sweep(),
        ]
        with pytest.raises(KeyboardInterrupt):
            self.world.core.apply(ops, now=self.world.now)
        self.world.close()
        self.world.open()

    # ── what always holds ─────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def the_tables_agree_with_themselves_and_with_the_model(self) -> None:
        if not hasattr(self, "world"):
            return
        check_consistency(self.world)
        with self.world.reading.connect() as connection:
            rows = {row.id: row for row in connection.execute(text("SELECT * FROM tasks"))}
        assert rows.keys() == self.tasks.keys()
        for task, known in self.tasks.items():
            row = rows[task]
            assert (row.status, row.fence, row.attempts) == (known.status.value, known.fence, known.attempts)
            assert row.events == len(known.history)
            if known.status is Status.ACTIVE:
                assert row.lease_until == pytest.approx(known.lease_until)


def run_machine(new_ledger: Callable[[], str], monkeypatch: pytest.MonkeyPatch, *, examples: int) -> None:
    monkeypatch.setattr("rendezvous.policy.leases.SAMPLES_NEEDED", 10**9)  # the model's leases are all of LEASE_S
    machine = type("Machine", (LedgerMachine,), {"new_ledger": staticmethod(new_ledger)})
    case = machine.TestCase  # type: ignore[attr-defined]
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    case().runTest()


def test_no_order_of_events_leaves_the_transition_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = tmp_path / "template.sqlite"
    World(template).close()
    numbers = itertools.count()

    def copied() -> str:  # migrating a ledger for each example would be most of the time
        path = tmp_path / f"{next(numbers)}.sqlite"
        shutil.copy(template, path)
        return str(path)

    run_machine(copied, monkeypatch, examples=60)


def test_no_order_of_events_leaves_the_transition_table_on_postgresql(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def fresh() -> str:
        made.append(postgres.new_database())
        return made[-1]

    run_machine(fresh, monkeypatch, examples=15)
    for url in made:
        postgres.drop(url)
