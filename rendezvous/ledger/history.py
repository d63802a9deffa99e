"""The history as listeners hear it, read from the database: what other roots committed.

Of two roots each reads whatever the other one writes, so an event is cheap here: the statement reads events and their
tasks, and what never changes (jobs, lanes, workers) is remembered. Measured: 39 to 70 µs of processor time an event as
one join of six tables through rows of SQLAlchemy, and about a tenth of it so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import BigInteger, Integer, bindparam
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from rendezvous.ledger import tables as t
from rendezvous.ledger.engine import Compiled
from rendezvous.ledger.faults import unavailable
from rendezvous.ledger.json_rows import json_column
from rendezvous.ledger.memory import Standing
from rendezvous.ledger.ops import LedgerEvent
from rendezvous.ledger.rows import demand_of
from rendezvous.ledger.unit import as_json
from rendezvous.ledger.values import WorkerRef
from rendezvous.ledger.views import who_acted
from swarm.model import Actor, JobId, Move, Status

__all__ = ["History"]

#: Of so many jobs, lanes or workers each is remembered: about 200 bytes.
KEPT: Final = 100_000

_MOVES: Final = {move.value: move for move in Move}
_STATUSES: Final = {status.value: status for status in Status}
_ACTORS: Final = {actor.value: actor for actor in Actor}

K = TypeVar("K")


class History:
    """Reads the history of all tasks.

    *Resource handling*: borrows a connection of the engine for the length of a call.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._faults: Final = (SQLAlchemyError, engine.dialect.loaded_dbapi.Error)
        #: What is remembered, by number: the job's id and owner; what a lane's tasks have in common; who a worker is.
        self._jobs: dict[int, tuple[JobId, str]] = {}
        self._lanes: dict[int, Standing] = {}
        self._workers: dict[int, WorkerRef] = {}
        events, tasks = t.events.c, t.tasks.c
        self._events: Final = self._compile(
            sa.select(
                *(events.id, events.n, events.move, events.source, events.target, events.actor, events.who),
                *(events.worker, events.fence, events.reason, events.detail, events.at),
                *(tasks.id, tasks.job, tasks.lane, tasks.priority, tasks.reward_wei),
            )
            .join(t.tasks, tasks.seq == events.seq)
            .where(
                events.id > bindparam("after", type_=BigInteger), events.id <= bindparam("through", type_=BigInteger)
            )
            .order_by(events.id)
            .limit(bindparam("most", type_=Integer)),
            "after",
            "through",
            "most",
        )
        numbers, number = json_column("numbers", BigInteger())
        jobs, workers = t.jobs.c, t.workers.c
        self._jobs_by_number: Final = self._compile(
            sa.select(jobs.n, jobs.id, jobs.owner).select_from(numbers).join(t.jobs, jobs.n == number), "numbers"
        )
        self._workers_by_number: Final = self._compile(
            sa.select(workers.n, workers.address, workers.instance)
            .select_from(numbers)
            .join(t.workers, workers.n == number),
            "numbers",
        )
        self._lanes_by_number: Final = self._compile(
            sa.select(t.lanes.c.n, t.demands.c.key, t.hosts.c.host)
            .select_from(numbers)
            .join(t.lanes, t.lanes.c.n == number)
            .join(t.demands, t.demands.c.n == t.lanes.c.demand)
            .join(t.hosts, t.hosts.c.n == t.lanes.c.host),
            "numbers",
        )

    def _compile(self, statement: sa.Select[Any], *names: str) -> Compiled:
        return Compiled(statement, names, self._engine.dialect)

    def read(self, after: int, through: int, limit: int) -> list[LedgerEvent]:
        """The events after one up to another, the same as the units that wrote them told.

        Raises:
            LedgerUnavailable: the database can't be read.
        """
        try:
            with contextlib.closing(self._engine.raw_connection()) as connection:
                cursor: Any = connection.cursor()

                def rows(statement: Compiled, *values: Any) -> list[Any]:
                    cursor.execute(statement.sql, statement.bind(values))
                    return cursor.fetchall()  # type: ignore[no-any-return]

                found = rows(self._events, after, through, limit)
                self._learn(rows, found)
        except self._faults as fault:
            raise unavailable(self._engine, fault) from fault
        return [self._event(columns) for columns in found]

    def _learn(self, rows: Callable[..., list[Any]], events: Iterable[Any]) -> None:
        """Remember what these events speak of."""
        jobs, lanes, workers = set(), set(), set()
        for columns in events:
            workers.add(columns[7])
            jobs.add(columns[13])
            lanes.add(columns[14])
        workers.discard(None)
        self._jobs, missing = _beside(self._jobs, jobs)
        if missing:
            self._jobs.update((n, (job, owner)) for n, job, owner in rows(self._jobs_by_number, as_json(missing)))
        self._workers, missing = _beside(self._workers, workers)
        if missing:
            found = rows(self._workers_by_number, as_json(missing))
            self._workers.update((n, WorkerRef(address, instance)) for n, address, instance in found)
        self._lanes, missing = _beside(self._lanes, lanes)
        if missing:
            for n, key, host in rows(self._lanes_by_number, as_json(missing)):
                demand = demand_of(key)
                self._lanes[n] = Standing(demand.kind, demand.tier, demand.requires, host)

    def _event(self, columns: Any) -> LedgerEvent:
        number, n, move, source, target, actor, who, worker, fence, reason, detail, at, *rest = columns
        task, job, lane, priority, reward_wei = rest
        job_id, owner = self._jobs[job]
        line, by = self._lanes[lane], _ACTORS[actor]
        ref = None if worker is None else self._workers[worker]
        return LedgerEvent(
            id=number,
            task=task,
            seq=n,
            move=_MOVES[move],
            source=None if source is None else _STATUSES[source],
            to=_STATUSES[target],
            by=by,
            who=who_acted(who, by, owner=owner, worker=ref),
            worker=ref,
            fence=fence,
            reason=reason,
            detail=detail,
            at=at,
            job=job_id,
            owner=owner,
            kind=line.kind,
            host=line.host,
            priority=priority,
            tier=line.tier,
            reward_wei=int(reward_wei),
            requires=line.requires,
        )


def _beside(known: dict[int, K], wanted: set[int]) -> tuple[dict[int, K], set[int]]:
    """What is remembered from now on, and what of the wanted is to be read."""
    if len(known) > KEPT:
        known = {}
    return known, wanted - known.keys()
