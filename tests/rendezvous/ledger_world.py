"""A ledger on either database, its time and randomness owned by the test, and short words for what happens to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uuid6
from sqlalchemy import text
from sqlalchemy.engine import Engine

from rendezvous.ledger.engine import open_engine, open_reading_engine
from rendezvous.ledger.ops import (
    Cancel,
    DoneItem,
    FailedItem,
    LeaseRef,
    LedgerEvent,
    Op,
    PreparedTask,
    Replay,
    Submit,
    SubmitResult,
    Sweep,
    TakeTurn,
    TurnResult,
)
from rendezvous.ledger.queries import LedgerReader
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.transitions import LedgerCore
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from swarm.model import TaskId
from swarm.wire import Requires, TaskView
from tests.empty_ledger import write_empty_ledger

NOOP = WorkerFacts(kinds=frozenset({"noop"}))
ALICE = WorkerRef("0x" + "a" * 40, "alice-instance")
BOB = WorkerRef("0x" + "b" * 40, "bob-instance")
CAROL = WorkerRef("0x" + "c" * 40, "carol-instance")
DAVE = WorkerRef("0x" + "d" * 40, "dave-instance")
FAST = LedgerSettings(host_rate_per_s=0, newcomer_budget=0)
START = 1_000_000.0
CID = "bafkrei" + "a" * 52
OTHER_CID = "bafkrei" + "b" * 52


def new_task(**changes: Any) -> PreparedTask:
    """A task as the door would hand it over."""
    task = str(uuid6.uuid7())
    host = changes.get("host", "site.test")
    values: dict[str, Any] = {
        "id": task,
        "kind": "noop",
        "urls": (f"https://{host}/{task}",),
        "host": host,
        "spec": {},
        "meta": {},
        "priority": 5,
        "tier": "bulk",
        "requires": Requires(),
        "reward_wei": 0,
        "max_attempts": 3,
        "max_run_s": 300.0,
        "not_before_s": 0.0,
        "expires_in_s": 604_800.0,
        "dedupe_key": task,
        "dedupe_ttl_s": 90_000.0,
    }
    return PreparedTask(**{**values, **changes})


class World:
    """One ledger and its moment.

    Args:
        location: a URL, or the path of a SQLite file.
        settings: the ledger's.
        engines: the writer's and the readers' of that location, where somebody has them already.
    """

    def __init__(
        self,
        location: Path | str,
        settings: LedgerSettings = FAST,
        *,
        engines: tuple[Engine, Engine] | None = None,
    ) -> None:
        self.location = str(location)
        self.settings = settings
        self.now = START
        self.events: list[LedgerEvent] = []
        self.engine, self.reading = engines or (open_engine(self.location), open_reading_engine(self.location))
        self.open()

    def open(self) -> None:
        """Open, or open again after a crash."""
        if not self._is_there():
            write_empty_ledger(self.path)
        self.core = LedgerCore(self.engine, rng=random.Random(7), settings=self.settings)
        self.reader = LedgerReader(self.reading, settings=self.settings)

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return Path(self.location)

    def _is_there(self) -> bool:
        return "://" in self.location or self.path.exists()  # a fixture made the one on a server

    def close(self) -> None:
        """Give all connections back."""
        self.core.close()
        self.engine.dispose()
        self.reading.dispose()

    def all(self, *ops: Op) -> list[Any]:
        """Do a group."""
        group = self.core.apply(ops, now=self.now)
        self.events.extend(group.events)
        return group.answers

    def do(self, op: Op) -> Any:
        """Do one operation; its fault is raised."""
        (answer,) = self.all(op)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def submit(self, *tasks: PreparedTask, owner: str = "owner", **op: Any) -> list[TaskId]:
        """Submit tasks; the ids they got."""
        values = {"owner": owner, "job": str(uuid6.uuid7()), "job_named": False, "name": None, **op}
        answer = self.do(Submit(tasks=tasks, **values))
        assert isinstance(answer, SubmitResult), answer
        return [task for task, _ in answer.tasks]

    def one(self, **changes: Any) -> TaskId:
        """Submit one task."""
        return self.submit(new_task(**changes))[0]

    def turn(self, worker: WorkerRef, **turn: Any) -> TurnResult:
        """A worker's turn."""
        values = {"boot": f"boot-of-{worker.instance}", "facts": NOOP, **turn}
        answer = self.do(TakeTurn(worker=worker, **values))
        assert isinstance(answer, TurnResult)
        return answer

    def claim(self, worker: WorkerRef, want: int = 1, **turn: Any) -> list[LeaseRef]:
        """Ask for tasks; the new leases."""
        result = self.turn(worker, want=want, **{"partial": True, **turn})
        return [LeaseRef(grant.task.id, grant.fence) for grant in result.granted]

    def complete(self, worker: WorkerRef, lease: LeaseRef, cid: str = CID, **item: Any) -> Any:
        """Report a result; the status or refusal."""
        done = DoneItem(task=lease.task, fence=lease.fence, cid=cid, size_bytes=10, **item)
        return self.turn(worker, done=(done,), partial=True).ended[0].outcome

    def fail(self, worker: WorkerRef, lease: LeaseRef, reason: str = "timeout", **item: Any) -> Any:
        """Report a failure; the status or refusal."""
        failed = FailedItem(task=lease.task, fence=lease.fence, reason=reason, **item)
        return self.turn(worker, failed=(failed,), partial=True).ended[0].outcome

    def release(self, worker: WorkerRef, lease: LeaseRef) -> Any:
        """Give a lease back; the status or refusal."""
        return self.turn(worker, released=(lease,), partial=True).ended[0].outcome

    def cancel(self, *tasks: TaskId, owner: str | None = "owner") -> list[Any]:
        """Call tasks off; status or refusal of each."""
        return [ended.outcome for ended in self.do(Cancel(owner=owner, who=owner or "operator", tasks=tasks))]

    def replay(self, *tasks: TaskId, owner: str | None = "owner") -> list[Any]:
        """Give dead letters a new life; status or refusal of each."""
        return [ended.outcome for ended in self.do(Replay(owner=owner, who=owner or "operator", tasks=tasks))]

    def sweep(self) -> float:
        """What the clock does."""
        due_s = self.do(Sweep())
        assert isinstance(due_s, float)
        return due_s

    def later(self, seconds: float) -> None:
        """Let time pass, and sweep."""
        self.now += seconds
        while self.sweep() == 0.0:
            pass

    def task(self, task: TaskId) -> TaskView:
        """The task as its owner sees it."""
        view = self.reader.task(task, now=self.now)
        assert view is not None
        return view

    def moves(self, task: TaskId) -> list[str]:
        """The steps of its history."""
        return [event.move for event in self.reader.history(task)]

    def value(self, sql: str) -> Any:
        """A number out of the tables."""
        with self.reading.connect() as connection:
            return connection.execute(text(sql)).scalar()

    def row(self, task: TaskId) -> Any:
        """The task's row as it is stored."""
        with self.reading.connect() as connection:
            return connection.execute(text("SELECT * FROM tasks WHERE id = :id"), {"id": task}).one()


def check_consistency(world: World) -> None:
    """What must hold of every ledger at every moment: kept numbers, lanes, histories, leases."""
    with world.reading.connect() as connection:

        def rows(sql: str) -> Sequence[Any]:
            return connection.execute(text(sql)).all()

        counted = dict(tuple(row) for row in rows("SELECT status, count(*) FROM tasks GROUP BY status"))
        kept = {status: tasks for status, tasks in rows("SELECT status, tasks FROM status_counts") if tasks}
        assert kept == counted
        by_job = {(job, status): tasks for job, status, tasks in rows("SELECT * FROM job_counts") if tasks}
        assert by_job == {
            (job, status): tasks
            for job, status, tasks in rows("SELECT job, status, count(*) FROM tasks GROUP BY job, status")
        }
        heads = {
            lane: (rank, seq)
            for lane, rank, seq in rows(
                "SELECT lane, rank, seq FROM tasks WHERE status = 'pending' ORDER BY rank DESC, seq DESC"
            )
        }
        assert {
            lane: (rank, seq)
            for lane, rank, seq in rows("SELECT n, head_rank, head_seq FROM lanes WHERE head_seq IS NOT NULL")
        } == heads
        histories: dict[int, list[Any]] = {}
        for event in rows("SELECT * FROM events ORDER BY id"):
            histories.setdefault(event.seq, []).append(event)
        for task in rows("SELECT seq, status, fence, events, last_event, worker, lease_until FROM tasks"):
            history = histories[task.seq]
            assert [event.n for event in history] == list(range(1, task.events + 1))
            assert [event.previous for event in history] == [None, *(event.id for event in history[:-1])]
            assert history[-1].id == task.last_event
            assert history[-1].target == task.status
            assert [event.source for event in history[1:]] == [event.target for event in history[:-1]]
            fences = [event.fence for event in history if event.move == "granted"]
            assert fences == sorted(set(fences))
            assert task.fence == (fences[-1] if fences else 0)
            if task.status == "active":
                assert task.worker is not None
                assert task.lease_until is not None
        events = sorted((event for history in histories.values() for event in history), key=lambda event: event.id)
        fences = [event.fence for event in events if event.move == "granted"]
        assert fences == sorted(set(fences)), "fences rise strictly over all grants"
        counters = dict(tuple(row) for row in rows("SELECT name, value FROM counters"))
        assert counters.get("fence", 0) >= max(fences, default=0)
        assert counters.get("event", 0) >= max((event.id for event in events), default=0)
        assert not rows("SELECT seq FROM tasks EXCEPT SELECT seq FROM task_bodies")
        delayed = rows(
            "SELECT hosts.host, unfinished, count(tasks.seq) FROM hosts "
            "LEFT JOIN lanes ON lanes.host = hosts.n "
            "LEFT JOIN tasks ON tasks.lane = lanes.n AND tasks.status = 'active' "
            "WHERE unfinished IS NOT NULL GROUP BY hosts.host, unfinished"
        )
        for host, unfinished, active in delayed:
            assert unfinished == active, f"what is unfinished of {host}, which asks for a delay"


def facts(**changes: Any) -> WorkerFacts:
    """What a worker says it is, with changes."""
    return msgspec.structs.replace(NOOP, **changes)
