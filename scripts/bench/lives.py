"""What the ledger's benches have in common: tasks, turns, groups of them, and ledgers that are made anew."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
import uuid6

from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.migrate import migrate
from rendezvous.ledger.ops import DoneItem, Granted, PreparedTask, Submit, TakeTurn
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.transitions import LedgerCore
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from swarm.wire import Requires

NOTHING = Requires()
NOOP = WorkerFacts(kinds=frozenset({"noop"}))
#: No host's pace and no newcomer's budget: what is measured is the ledger, not how it holds back.
UNLIMITED = LedgerSettings(host_rate_per_s=0, newcomer_budget=0)
CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"


def new_task(host: str = "site.test", priority: int = 5) -> PreparedTask:
    task = str(uuid6.uuid7())
    return PreparedTask(
        id=task,
        kind="noop",
        urls=(f"https://{host}/{task}",),
        host=host,
        spec={},
        meta={},
        priority=priority,
        tier="bulk",
        requires=NOTHING,
        reward_wei=0,
        max_attempts=3,
        max_run_s=300.0,
        not_before_s=0.0,
        expires_in_s=604_800.0,
        dedupe_key=task,
        dedupe_ttl_s=90_000.0,
    )


def submission(*tasks: PreparedTask) -> Submit:
    return Submit(owner="owner", job=str(uuid6.uuid7()), job_named=False, name=None, tasks=tasks)


def turn(worker: WorkerRef, **said: Any) -> TakeTurn:
    return TakeTurn(worker=worker, boot="boot-boot", facts=NOOP, partial=True, **said)


def completing_turn(worker: WorkerRef, granted: tuple[Granted, ...]) -> TakeTurn:
    done = tuple(DoneItem(task=one.task.id, fence=one.fence, cid=CID, size_bytes=100) for one in granted)
    return turn(worker, done=done)


def worker(number: int) -> WorkerRef:
    return WorkerRef(f"0x{number:040d}", "instance")


class Spent:
    """Wall and processor time (of this process) of named steps."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[float, float]] = {}

    @contextlib.contextmanager
    def measure(self, step: str) -> Iterator[None]:
        began = time.perf_counter(), time.process_time()
        yield
        wall, cpu = self.steps.get(step, (0.0, 0.0))
        self.steps[step] = (wall + time.perf_counter() - began[0], cpu + time.process_time() - began[1])

    def wall_s(self) -> float:
        return sum(wall for wall, _ in self.steps.values())

    def cpu_s(self) -> float:
        return sum(cpu for _, cpu in self.steps.values())

    def line(self, tasks: int) -> str:
        each = "  ".join(f"{step} {tasks / wall:7.0f}/s" for step, (wall, _) in self.steps.items())
        return f"{tasks / self.wall_s():7.0f} lives/s   {each}   {self.cpu_s() / tasks * 1e6:6.1f} µs cpu a life"


def live(core: LedgerCore, *, callers: int, size: int, rounds: int) -> Spent:
    """Lives through the core, without threads or loop: each step of all callers is one group."""
    spent = Spent()

    def apply(step: str, ops: list[Any]) -> list[Any]:
        with spent.measure(step):
            return core.apply(ops, now=time.time()).answers

    for _ in range(rounds):
        submitted = [submission(*(new_task() for _ in range(size))) for _ in range(callers)]
        apply("submit", submitted)
        granted = apply("grant", [turn(worker(caller), want=size) for caller in range(callers)])
        ops = [completing_turn(worker(caller), result.granted) for caller, result in enumerate(granted)]
        ended = apply("complete", ops)
        assert sum(len(result.ended) for result in ended) == callers * size
    return spent


def in_schema(location: str, schema: str) -> str:
    """A place for a ledger of its own in a PostgreSQL database."""
    return f"{location}{'&' if '?' in location else '?'}options=-csearch_path%3D{schema}"


def new_schema(location: str, schema: str) -> str:
    """An empty ledger in a schema that is made anew; where it is."""
    engine = sa.create_engine(sa.make_url(location).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.exec_driver_sql(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
    engine.dispose()
    return migrated(in_schema(location, schema))


def migrated(location: str) -> str:
    """The same place, with the ledger's tables."""
    engine = open_engine(location)
    migrate(engine)
    engine.dispose()
    return location
