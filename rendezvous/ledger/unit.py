"""One transaction's work: rows read and changed, events, kept numbers; and ``move``, the one way a status changes.

A group's operations change rows in memory, in arrival order, exactly as if each had run alone; ``flush`` then writes
every changed row with one statement, guarded by what it was read as, and ``finish`` the numbers that are kept. So a
group of any size is the same few statements.

What is believed beyond a transaction is in ``memory.py``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import ne
from typing import TYPE_CHECKING, Any, Final

import orjson

from rendezvous.ledger.batch_statements import MUTABLE, EventKind
from rendezvous.ledger.engine import Compiled
from rendezvous.ledger.memory import Fleet, Memory
from rendezvous.ledger.money import Purse
from rendezvous.ledger.ops import LedgerEvent
from rendezvous.ledger.rows import Job, Lane, TaskRow, WorkerRow, demand_of
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.statements import Statements
from rendezvous.ledger.values import WorkerRef
from rendezvous.ledger.views import who_acted
from rendezvous.ledger.writer import WriterConnection
from rendezvous.policy import leases
from swarm.errors import SwarmError
from swarm.model import MOVES, TERMINAL, Actor, Address, JobId, Move, Status, TaskId

if TYPE_CHECKING:
    from rendezvous.ledger.shared_pace import SharedPace

__all__ = ["IllegalMove", "Unit", "as_json"]


#: For so long it is believed how long tasks take, whatever other roots add meanwhile, seconds.
DURATIONS_S: Final = 10.0

_FENCE: Final = MUTABLE.index("fence")
_LAST_EVENT: Final = MUTABLE.index("last_event")
#: A changed row, with its status and other columns as they were read.
_Changed = tuple[TaskRow, Status, tuple[Any, ...]]
#: The columns of an event that are mostly NULL.
_EXTRA: Final = ("who", "reason", "detail")


class IllegalMove(SwarmError):
    """A transition that ``swarm.model.MOVES`` doesn't know: a defect of the ledger itself."""


def as_json(values: Iterable[Any]) -> str:
    """The text of a ``json_rows`` parameter."""
    return orjson.dumps(list(values)).decode()


class Unit:
    """One transaction."""

    def __init__(
        self,
        connection: WriterConnection,
        statements: Statements,
        memory: Memory,
        fleet: Fleet,
        *,
        settings: LedgerSettings,
        rng: random.Random,
        now: float,
        pace: SharedPace | None = None,
    ) -> None:
        self.connection: Final = connection
        self.statements: Final = statements
        self.memory: Final = memory
        self.fleet: Final = fleet
        self.settings: Final = settings
        self.rng: Final = rng
        self.now: Final = now
        #: The pace of hosts that is shared with others.
        self.pace: Final = pace
        #: What listeners will hear of each event: the task's id, job, lane, priority and reward, the kind of event,
        #: what was written of it, who, why, and more.
        self._history: Final[list[tuple[Any, ...]]] = []
        #: Lanes whose first ready task may be another one now.
        self.stale_heads: Final[set[int]] = set()
        #: Lanes of the grants that ended in this transaction.
        self.finished_lanes: Final[list[int]] = []
        #: Lanes of those that began in it.
        self.granted_lanes: Final[list[int]] = []
        #: Workers (their numbers) whose leases ran out in this transaction.
        self.losers: Final[set[int]] = set()
        #: What workers report of hosts that turned them away: the task, who says so, why, and for how long.
        self.reports: Final[list[tuple[TaskRow, WorkerRow, str, float | None]]] = []
        #: What came out of tasks: (kind, the worker's versions, whether it was done).
        self.outcomes: Final[list[tuple[str, Mapping[str, str], bool]]] = []
        self.manifests: Final[list[tuple[str, bytes]]] = []
        #: Rows of ``receipts``.
        self.receipts: Final[list[tuple[Any, ...]]] = []
        #: What this transaction's moves mean in money.
        self.purse: Final = Purse(payer=settings.payer)
        self._dirty: dict[int, _Changed] = {}
        #: Events by what they have in common.
        self._event_rows: Final[dict[tuple[EventKind, tuple[str, ...]], list[tuple[Any, ...]]]] = {}
        self._counted: Final[defaultdict[tuple[int, Status], int]] = defaultdict(int)
        self._numbered: Final[defaultdict[str, int]] = defaultdict(int)
        self._sampled: Final[defaultdict[tuple[str, int], int]] = defaultdict(int)
        self._leases: Final[dict[str, float]] = {}
        # The hottest counter: kept in an attribute, and counted in ``finish``.
        self._first_event: Final = self.next("event", by=0)
        self._last_event = self._first_event - 1

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def read_ahead(self, workers: Iterable[WorkerRef], tasks: Iterable[TaskId]) -> None:
        """Read at once those of these workers and tasks that aren't known: what turns speak of."""
        memory = self.memory
        numbers = {memory.worker_of[ref] for ref in workers if ref in memory.worker_of} - memory.workers.keys()
        missing = [task for task in dict.fromkeys(tasks) if task not in memory.seq_of]
        asked = []
        if numbers:
            asked.append((self.statements.workers_by_number, (as_json(numbers),)))
        if missing:
            asked.append((self.statements.tasks_by_id, (as_json(missing),)))
        if not asked:
            return
        found = self.connection.rows_of(*asked)
        if numbers:
            for columns in found[0]:
                self._keep_worker(columns)
        if missing:
            self._keep_tasks(found[-1])

    def tasks_by_id(self, ids: Iterable[TaskId]) -> dict[TaskId, TaskRow]:
        """The rows of those tasks that exist."""
        memory = self.memory
        wanted = dict.fromkeys(ids)
        missing = [task for task in wanted if task not in memory.seq_of]
        if missing:
            self.read_tasks(self.statements.tasks_by_id, as_json(missing))
        seqs = memory.seq_of
        return {task: memory.rows[seqs[task]] for task in wanted if task in seqs}

    def task(self, task: TaskId) -> TaskRow | None:
        """One of the tasks that were read by their ids in this unit; None where it doesn't exist."""
        seq = self.memory.seq_of.get(task)
        return None if seq is None else self.memory.rows[seq]

    def tasks_by_seq(self, seqs: Sequence[int]) -> list[TaskRow]:
        """The rows of these tasks, in this order; all exist."""
        rows = self.memory.rows
        missing = [seq for seq in seqs if seq not in rows]
        if missing:
            self.read_tasks(self.statements.tasks_by_seq, as_json(missing))
        return [rows[seq] for seq in seqs]

    def read_tasks(self, statement: Compiled, *values: Any) -> list[TaskRow]:
        """Run a statement that selects whole tasks; what was changed in this unit stays as changed."""
        return self._keep_tasks(self.connection.rows(statement, *values))

    def _keep_tasks(self, found: Iterable[Any]) -> list[TaskRow]:
        rows = [self.memory.keep(TaskRow(*columns)) for columns in found]
        self._know(rows)
        return rows

    def _know(self, rows: Sequence[TaskRow]) -> None:
        """Load the jobs, lanes and workers that events of these tasks speak of."""
        self.know_jobs({row.job for row in rows})
        self.know_lanes({row.lane for row in rows})
        self.know_workers({row.worker for row in rows if row.worker is not None})

    def know_jobs(self, numbers: set[int]) -> None:
        """Load jobs by their numbers."""
        missing = numbers - self.memory.jobs.keys()
        if missing:
            self._keep_jobs(self.connection.rows(self.statements.jobs_by_number, as_json(missing)))

    def jobs_by_id(self, ids: Iterable[JobId]) -> dict[JobId, Job]:
        """Those of these jobs that exist."""
        wanted = set(ids)
        missing = wanted - self.memory.job_of.keys()
        if missing:
            self._keep_jobs(self.connection.rows(self.statements.jobs_by_id, as_json(missing)))
        return {job: self.memory.jobs[self.memory.job_of[job]] for job in wanted if job in self.memory.job_of}

    def _keep_jobs(self, found: Iterable[Any]) -> None:
        for columns in found:
            self.keep_job(Job(*columns))

    def keep_job(self, job: Job) -> None:
        """Believe this job."""
        self.memory.jobs[job.n] = job
        self.memory.job_of[job.id] = job.n

    def know_lanes(self, numbers: set[int]) -> None:
        """Load lanes, with their demands and hosts."""
        missing = numbers - self.memory.lanes.keys()
        if missing:
            self.keep_lanes(self.connection.rows(self.statements.lanes_by_number, as_json(missing)))

    def keep_lanes(self, found: Iterable[Any]) -> None:
        """Believe these lanes; load their demands and hosts."""
        memory = self.memory
        lanes = [Lane(*columns) for columns in found]
        for lane in lanes:
            memory.lanes[lane.n] = lane
            memory.lane_of[lane.demand, lane.host] = lane.n
        self.know_demands({lane.demand for lane in lanes})
        hosts = {lane.host for lane in lanes} - memory.hosts.keys()
        if hosts:
            for columns in self.connection.rows(self.statements.hosts_by_number, as_json(hosts)):
                self.keep_host(columns[0], columns[1])

    def know_demands(self, numbers: set[int]) -> None:
        """Load demands by their numbers."""
        missing = numbers - self.memory.demands.keys()
        if missing:
            self.keep_demands(self.connection.rows(self.statements.demands_by_number, as_json(missing)))

    def keep_demands(self, found: Iterable[Any]) -> None:
        """Believe these demands."""
        for number, key in found:
            self.memory.demands[number] = demand_of(key)
            self.memory.demand_of[key] = number

    def keep_host(self, number: int, host: str) -> None:
        """Believe this host's number."""
        self.memory.hosts[number] = host
        self.memory.host_of[host] = number

    def know_workers(self, numbers: set[int]) -> None:
        """Load workers by their numbers."""
        missing = numbers - self.memory.workers.keys()
        if missing:
            for columns in self.connection.rows(self.statements.workers_by_number, as_json(missing)):
                self._keep_worker(columns)

    def worker(self, ref: WorkerRef) -> WorkerRow:
        """A worker's row; one that isn't known yet gets a number."""
        known = self.memory.worker_of.get(ref)
        if known is not None:
            self.know_workers({known})
            return self.memory.workers[known]
        found = self.connection.rows(self.statements.worker_by_identity, ref.address, ref.instance)
        if found:
            return self._keep_worker(found[0])
        number = self.next("worker")
        self.connection.later_once(self.statements.insert_worker, number, ref.address, ref.instance, "[]", *[None] * 9)
        return self._keep_worker((number, ref.address, ref.instance, "[]", None, None, None))

    def workers_of(self, address: Address) -> list[WorkerRef]:
        """All instances of an address that were ever seen."""
        found = self.connection.rows(self.statements.workers_of_address, address)
        for columns in found:
            if columns[0] not in self.memory.workers:
                self._keep_worker(columns)
        return [WorkerRef(columns[1], columns[2]) for columns in found]

    def _keep_worker(self, columns: Sequence[Any]) -> WorkerRow:
        number, address, instance, boots, budget, accepted, prefix = columns
        row = WorkerRow(
            number, WorkerRef(address, instance), orjson.loads(boots), budget=budget, accepted=accepted, prefix=prefix
        )
        self.memory.workers[number] = row
        self.memory.worker_of[row.ref] = number
        return row

    def bodies(self, seqs: Iterable[int]) -> dict[int, str]:
        """The bodies of these tasks."""
        wanted = list(seqs)
        self._read_bodies(wanted, also=())
        return {seq: self.memory.bodies[seq] for seq in wanted}

    def tasks_with_bodies(self, seqs: Sequence[int]) -> list[tuple[TaskRow, str]]:
        """The rows of these tasks and their bodies, in this order; all exist."""
        self._read_bodies(seqs, also=[seq for seq in seqs if seq not in self.memory.rows])
        return [(self.memory.rows[seq], self.memory.bodies[seq]) for seq in seqs]

    def _read_bodies(self, seqs: Sequence[int], *, also: Sequence[int]) -> None:
        """Read bodies that aren't known, and rows of tasks with them."""
        statements = self.statements
        missing = [seq for seq in seqs if seq not in self.memory.bodies]
        asked = [(statements.bodies, (as_json(missing),))] if missing else []
        if also:
            asked.append((statements.tasks_by_seq, (as_json(also),)))
        if not asked:
            return
        found = self.connection.rows_of(*asked)
        if missing:
            for seq, body, _digest, _ttl_s in found[0]:
                self.memory.bodies[seq] = body
        if also:
            self._keep_tasks(found[-1])

    def kind(self, row: TaskRow) -> str:
        """What runs this task."""
        return self.memory.standing(row.lane).kind

    # ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def next(self, name: str, by: int = 1) -> int:
        """Take the next number of a kept counter; with ``by`` the first of so many."""
        counters = self.memory.counters
        if counters is None:
            counters = self.memory.counters = dict(self.connection.rows(self.statements.counters))
        first = counters.get(name, 0) + 1
        counters[name] = first + by - 1
        self._numbered[name] += by
        return first

    def counter(self, name: str) -> int:
        """The last number that was taken of a kept counter; 0 where none was."""
        return (self.memory.counters or {}).get(name, 0)

    def count(self, job: int, status: Status, by: int) -> None:
        """Keep the number of tasks of a job in a status."""
        self._counted[job, status] += by

    def live_tasks(self, job: int) -> int:
        """How many tasks of a job haven't ended."""
        ((kept,),) = self.connection.rows(self.statements.channels.live_tasks, job)
        return int(kept) + sum(by for (of, status), by in self._counted.items() if of == job and status not in TERMINAL)

    def sample(self, kind: str, duration_s: float) -> None:
        """Note how long a task of a kind took."""
        self._sampled[kind, leases.bucket_of(duration_s)] += 1

    def lease_s(self, kind: str) -> float:
        """How long a lease of this kind runs now."""
        known = self._leases.get(kind)
        if known is None:
            known = self._leases[kind] = leases.lease_s(
                self._durations().get(kind, {}), first_s=self.settings.first_lease_s
            )
        return known

    def _durations(self) -> dict[str, dict[int, int]]:
        durations = self.memory.durations
        if durations is None or self.now >= self.memory.durations_until:
            durations = self.memory.durations = {}
            self.memory.durations_until = self.now + DURATIONS_S
            for kind, bucket, samples in self.connection.rows(self.statements.durations):
                durations.setdefault(kind, {})[bucket] = samples
        return durations

    # ── changing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def touch(self, row: TaskRow) -> None:
        """Say that a row is about to change."""
        if row.seq not in self._dirty:
            self._dirty[row.seq] = (row, row.status, row.mutable())

    def move(
        self,
        row: TaskRow,
        move: Move,
        to: Status,
        by: Actor,
        *,
        who: str | None = None,
        reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Change a task's status and write its history. Every change of a status is this one.

        Args:
            row: the task; its other columns are the caller's to set, before or after.
            move: which step of a task's life.
            to: the status it has then.
            by: whose act it is.
            who: the requester's or operator's name.
            reason: why, for the history.
            detail: more for people.

        Raises:
            IllegalMove: the transition table has no such step.
        """
        source = row.status
        rule = MOVES[move]
        if source not in rule.sources or to not in rule.targets or by not in rule.actors:
            raise IllegalMove(f"{move} from {source} to {to} by {by} isn't in the transition table")
        self.touch(row)
        row.status = to
        if source is not to:
            self.count(row.job, source, -1)
            self.count(row.job, to, 1)
            if source is Status.ACTIVE:
                self.finished_lanes.append(row.lane)
            elif to is Status.ACTIVE:
                self.granted_lanes.append(row.lane)
            if source is Status.PENDING or to is Status.PENDING:
                self.stale_heads.add(row.lane)
            if to in TERMINAL:
                row.finished_at = self.now
                row.passed_until = None
        self.record(row, move, source, by, who=who, reason=reason, detail=detail)

    def record(
        self,
        row: TaskRow,
        move: Move,
        source: Status | None,
        by: Actor,
        *,
        who: str | None = None,
        reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Append to a task's history; ``move`` does, and the submission of a new row."""
        memory = self.memory
        if row.reward_wei != "0":
            self.purse.note(row, move, memory.jobs[row.job])
        event = self._last_event = self._last_event + 1
        previous = row.last_event or None
        row.events += 1
        row.last_event = event
        status = row.status
        held = source is Status.ACTIVE or status is Status.ACTIVE
        worker = row.worker if held else None
        fence = row.fence if held else None
        values: tuple[Any, ...] = (event, row.seq, row.events, previous, worker, fence, self.now)
        extra: tuple[str, ...] = ()
        if who is not None or reason is not None or detail is not None:
            extra = _EXTRA
            values = (*values, who, reason, detail)
        shape = ((move, source, status, by), extra)
        rows = self._event_rows.get(shape)
        if rows is None:
            rows = self._event_rows[shape] = []
        rows.append(values)
        task = (row.id, row.job, row.lane, row.priority, row.reward_wei)
        self._history.append((*task, shape[0], values[:7], who, reason, detail))

    @property
    def last_event(self) -> int | None:
        """The last event of this transaction; None where it has none."""
        return self._last_event if self._history else None

    def events(self) -> list[LedgerEvent]:
        """What listeners hear of this transaction, in order."""
        return [self._event(noted) for noted in self._history]

    def _event(self, noted: tuple[Any, ...]) -> LedgerEvent:
        task, job, lane, priority, reward_wei, kind, written, who, reason, detail = noted
        number, _seq, n, _previous, worker, fence, at = written
        memory = self.memory
        of = memory.jobs[job]
        line = memory.standing(lane)
        move, source, status, by = kind
        ref = None if worker is None else memory.workers[worker].ref
        return LedgerEvent(
            id=number,
            task=task,
            seq=n,
            move=move,
            source=source,
            to=status,
            by=by,
            who=who_acted(who, by, owner=of.owner, worker=ref),
            worker=ref,
            fence=fence,
            reason=reason,
            detail=detail,
            at=at,
            job=of.id,
            owner=of.owner,
            kind=line.kind,
            host=line.host,
            priority=priority,
            tier=line.tier,
            reward_wei=int(reward_wei),
            requires=line.requires,
        )

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Write the changed rows and the lanes' heads, so that statements that follow see them.

        Raises:
            StatementFailed: a row isn't what it was read as; another root moved it.
        """
        dirty, self._dirty = self._dirty, {}
        if dirty:
            self._write_rows(dirty)
        if self.purse:
            self.purse.write(self)
        if dirty:
            for row, _, _ in dirty.values():
                if row.status in TERMINAL:
                    self.memory.drop(row)
        if self.stale_heads:
            self.connection.later(self.statements.update_heads, [(as_json(sorted(self.stale_heads)),)])
            self.stale_heads.clear()

    def _write_rows(self, dirty: dict[int, _Changed]) -> None:
        """Write what changed of each row; rows that changed alike share a statement."""
        shapes: dict[tuple[Status, Status, tuple[str, ...]], list[tuple[Any, ...]]] = {}
        for seq, (row, source, before) in sorted(dirty.items()):
            after = row.mutable()
            changed = tuple(map(ne, before, after))
            columns = tuple(compress(MUTABLE, changed))
            values = (*compress(after, changed), seq, before[_FENCE], before[_LAST_EVENT])
            batch = shapes.get((source, row.status, columns))
            if batch is None:
                batch = shapes[source, row.status, columns] = []
            batch.append(values)
        for shape, batch in shapes.items():
            if shape[2]:
                self.connection.later(self.statements.batches.update_task(*shape), batch, each=True)

    def finish(self) -> None:
        """Write everything that is left: rows, history, manifests and kept numbers. Commit comes next."""
        self.flush()
        connection, statements = self.connection, self.statements
        for (kind, extra), rows in self._event_rows.items():
            connection.later(statements.batches.insert_event(kind, extra), rows)
        if self.manifests:
            connection.later(statements.insert_manifest, self.manifests)
        if self.receipts:
            connection.later(statements.put_receipt, self.receipts)
        changed = [(job, status._value_, by) for (job, status), by in self._counted.items() if by]
        if changed:
            totals: defaultdict[str, int] = defaultdict(int)
            for _job, status_text, by in changed:
                totals[status_text] += by
            connection.later(statements.add_to_job_count, changed)
            connection.later(statements.add_to_status_count, list(totals.items()))
        if self._sampled:
            self._keep_samples()
        self.next("event", by=self._last_event - self._first_event + 1)
        numbered = [(name, by) for name, by in self._numbered.items() if by]
        if numbered:
            connection.later(statements.add_to_counter, numbered)

    def _keep_samples(self) -> None:
        durations = self._durations()
        batch = [(kind, bucket, samples) for (kind, bucket), samples in self._sampled.items()]
        self.connection.later(self.statements.add_to_durations, batch)
        for kind, bucket, samples in batch:
            counts = durations.setdefault(kind, {})
            counts[bucket] = counts.get(bucket, 0) + samples
        for kind in {kind for kind, _ in self._sampled}:
            counts = durations[kind]
            if sum(counts.values()) > leases.SAMPLES_KEPT:
                self.connection.later(self.statements.halve_durations, [(kind,)])
                durations[kind] = {bucket: samples // 2 for bucket, samples in counts.items()}
