"""One transaction's work: rows read and changed, events, kept numbers; and ``move``, the one way a status changes.

A group's operations change rows in memory, in arrival order, exactly as if each had run alone; ``flush`` then writes
every changed row with one statement, guarded by what it was read as, and ``finish`` the numbers that are kept. So a
group of any size is the same few statements.

What is believed beyond a transaction (``Memory``): what never changes once it is written, always; the rest only while
nobody else wrote to the database. It is dropped whole on any fault; what a worker said of itself (``Fleet``) never was
in the database and stays.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import ne
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson

from rendezvous.ledger.engine import Compiled, WriterConnection
from rendezvous.ledger.money import Purse
from rendezvous.ledger.ops import LedgerEvent, WorkerFacts, WorkerRef
from rendezvous.ledger.rows import Job, Lane, TaskRow, WorkerRow, demand_of
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.statements import MUTABLE, EventKind, Statements
from rendezvous.policy import leases
from rendezvous.policy.contexts import Context
from rendezvous.policy.egress import Flag
from rendezvous.policy.eligibility import Demand, Rules, check_demand
from rendezvous.policy.order import Shares
from rendezvous.policy.records import Record
from rendezvous.policy.versions import WORKER
from swarm.errors import SwarmError
from swarm.model import MOVES, TERMINAL, Actor, Address, JobId, Move, Status, TaskId
from swarm.wire import Requires

if TYPE_CHECKING:
    from rendezvous.ledger.shared_pace import SharedPace

__all__ = ["Fleet", "IllegalMove", "Memory", "Unit", "as_json"]

#: Rows of tasks kept in memory between transactions: about 1 KB each.
ROWS_KEPT: Final = 20_000
#: Lanes and jobs kept: about 200 bytes each.
LANES_KEPT: Final = 100_000
#: A worker is live while its last turn is at most three heartbeats of 10 s old.
LIVE_S: Final = 30.0
#: Of so many combinations of versions the outcomes are counted between two sweeps.
TALLIES_MOST: Final = 1_000

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


@attrs.frozen
class Standing:
    """What all tasks of a lane have in common."""

    kind: str
    tier: str
    requires: Requires
    host: str


class Memory:
    """What is believed of the database between transactions."""

    def __init__(self) -> None:
        self.rows: dict[int, TaskRow] = {}
        self.seq_of: dict[TaskId, int] = {}
        self.bodies: dict[int, str] = {}
        self.jobs: dict[int, Job] = {}
        self.job_of: dict[JobId, int] = {}
        self.demands: dict[int, Demand] = {}
        self.demand_of: dict[str, int] = {}
        self.hosts: dict[int, str] = {}
        self.host_of: dict[str, int] = {}
        self.lanes: dict[int, Lane] = {}
        self.lane_of: dict[tuple[int, int], int] = {}
        self.workers: dict[int, WorkerRow] = {}
        self.worker_of: dict[WorkerRef, int] = {}
        self.standings: dict[int, Standing] = {}
        self.counters: dict[str, int] | None = None
        self.durations: dict[str, dict[int, int]] | None = None
        self.rules: Rules | None = None
        #: The hosts that ask for a delay between requests.
        self.delayed: set[int] | None = None
        #: What is held against workers that were looked up: by worker, then by host.
        self.records: dict[int, dict[int, Record]] = {}
        #: What is held against networks that were looked up: by prefix, then by host.
        self.egress: dict[str, dict[int, Flag]] = {}
        #: Profiles and sessions that were looked up.
        self.contexts: dict[tuple[str, str], Context | None] = {}
        #: The hosts where workers of one network are kept apart.
        self.apart: frozenset[int] | None = None
        #: The hosts that were found slow, and until when.
        self.slow: dict[int, float] | None = None

    def standing(self, lane: int) -> Standing:
        """What all tasks of a lane have in common, for their events and grants."""
        known = self.standings.get(lane)
        if known is None:
            row = self.lanes[lane]
            demand = self.demands[row.demand]
            known = self.standings[lane] = Standing(demand.kind, demand.tier, demand.requires, self.hosts[row.host])
        return known

    @property
    def too_big(self) -> bool:
        """Whether it is time to begin anew."""
        return len(self.rows) > ROWS_KEPT or len(self.lanes) > LANES_KEPT or len(self.jobs) > LANES_KEPT

    def doubted(self) -> Memory:
        """What is left when another wrote: what nobody changes once it is there. Whatever else is read anew."""
        kept = Memory()
        kept.jobs, kept.job_of = self.jobs, self.job_of
        kept.demands, kept.demand_of = self.demands, self.demand_of
        kept.hosts, kept.host_of = self.hosts, self.host_of
        kept.lanes, kept.lane_of, kept.standings = self.lanes, self.lane_of, self.standings
        kept.worker_of = self.worker_of
        return kept

    def keep(self, row: TaskRow, body: str | None = None) -> TaskRow:
        """Believe this row; one that is believed already wins, since it may have been changed."""
        kept = self.rows.setdefault(row.seq, row)
        self.seq_of[row.id] = row.seq
        if body is not None:
            self.bodies[row.seq] = body
        return kept

    def drop(self, row: TaskRow) -> None:
        """Believe nothing of this row any more."""
        self.rows.pop(row.seq, None)
        self.seq_of.pop(row.id, None)
        self.bodies.pop(row.seq, None)


class Fleet:
    """What workers said they are, and when they last did; and which tier of work is to be served next."""

    def __init__(self, tier_shares: Mapping[str, float]) -> None:
        self.shares: Final = Shares(tier_shares)
        #: How much of each worker's work was accepted since its budget changed; a restart begins anew.
        self.accepted: Final[dict[int, int]] = {}
        #: How tasks came out, by (kind, release of the worker, version of the executor): done, failed. Written by the
        #: sweeps; what isn't by then is lost with the process.
        self.tally: dict[tuple[str, str, str], list[int]] = {}
        self._said: dict[WorkerRef, tuple[WorkerFacts, float]] = {}
        #: Of hosts that had slow tasks lately: which share of their last ones was slow (``slowness``).
        self.slow_shares: Final[dict[int, float]] = {}
        #: The fences of the old leases that each worker had at its last turn.
        self.old_leases: Final[dict[WorkerRef, frozenset[int]]] = {}
        #: When it was looked, which demands have work of hosts that aren't slow; and which.
        self.other_work: tuple[float, frozenset[int]] | None = None

    def hear(self, worker: WorkerRef, facts: WorkerFacts, *, now: float) -> None:
        """Note a turn."""
        self._said[worker] = (facts, now)

    def hear_of(self, workers: Iterable[tuple[WorkerRef, WorkerFacts, float]]) -> None:
        """Note turns that were taken elsewhere, where nothing later is known here."""
        for worker, facts, at in workers:
            known = self._said.get(worker)
            if known is None or known[1] < at:
                self._said[worker] = (facts, at)

    def forget(self, worker: WorkerRef) -> None:
        """Drop a worker that was removed."""
        self._said.pop(worker, None)
        self.old_leases.pop(worker, None)

    def forget_silent(self, *, now: float) -> None:
        """Drop those that aren't live any more."""
        self._said = {ref: said for ref, said in self._said.items() if now - said[1] <= LIVE_S}
        for silent in self.old_leases.keys() - self._said.keys():
            del self.old_leases[silent]

    def count(self, outcomes: Iterable[tuple[str, Mapping[str, str], bool]]) -> None:
        """Note what came out of tasks, once that is durable."""
        for kind, versions, done in outcomes:
            key = (kind, versions.get(WORKER, ""), versions.get(kind, ""))
            counted = self.tally.get(key)
            if counted is None:
                if len(self.tally) >= TALLIES_MOST:
                    continue
                counted = self.tally[key] = [0, 0]
            counted[0 if done else 1] += 1

    def who_meet(self, demand: Demand, *, now: float) -> list[WorkerRef]:
        """The live workers that meet the demand."""
        return [
            ref for ref, (facts, at) in self._said.items() if now - at <= LIVE_S and check_demand(demand, facts) is None
        ]

    def meets(self, demand: Demand, *, but_not: Iterable[WorkerRef], now: float) -> bool:
        """Whether a live worker, none of these, meets the demand."""
        left_out = set(but_not)
        return any(
            ref not in left_out and now - at <= LIVE_S and check_demand(demand, facts) is None
            for ref, (facts, at) in self._said.items()
        )


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
        self.events: Final[list[LedgerEvent]] = []
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
        found = [self.memory.keep(TaskRow(*columns)) for columns in self.connection.rows(statement, *values)]
        self._know(found)
        return found

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

    def know_workers_by_ref(self, refs: Iterable[WorkerRef]) -> None:
        """Load at once those of these workers whose numbers are known."""
        numbers = self.memory.worker_of
        self.know_workers({numbers[ref] for ref in refs if ref in numbers})

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
        missing = [seq for seq in wanted if seq not in self.memory.bodies]
        if missing:
            for seq, body, _digest, _ttl_s in self.connection.rows(self.statements.bodies, as_json(missing)):
                self.memory.bodies[seq] = body
        return {seq: self.memory.bodies[seq] for seq in wanted}

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
        if durations is None:
            durations = self.memory.durations = {}
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
        job = memory.jobs[row.job]
        line = memory.standing(row.lane)
        ref = None if worker is None else memory.workers[worker].ref
        if who is None:
            if by is Actor.REQUESTER:
                who = job.owner
            elif ref is not None and (by is Actor.ASSIGNEE or by is Actor.WORKER):
                who = ref.address
        self.events.append(
            LedgerEvent(
                id=event,
                task=row.id,
                seq=row.events,
                move=move,
                source=source,
                to=status,
                by=by,
                who=who,
                worker=ref,
                fence=fence,
                reason=reason,
                detail=detail,
                at=self.now,
                job=job.id,
                owner=job.owner,
                kind=line.kind,
                host=line.host,
                priority=row.priority,
                tier=line.tier,
                reward_wei=int(row.reward_wei),
                requires=line.requires,
            )
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
                self.connection.later(self.statements.update_task(*shape), batch, expect=len(batch))

    def finish(self) -> None:
        """Write everything that is left: rows, history, manifests and kept numbers. Commit comes next."""
        self.flush()
        connection, statements = self.connection, self.statements
        for (kind, extra), rows in self._event_rows.items():
            connection.later(statements.insert_event(kind, extra), rows)
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
