"""What can be read of the ledger. Readers have connections of their own: they and the writer never wait for each other.

Every method is one short read transaction and may be called from any thread. Pages are keyset pages: the cursor is the
last row's place, so that a page costs the same wherever it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import attrs
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from rendezvous.ledger import (
    audit_queries,
    channel_queries,
    job_queries,
    money_queries,
    policy_queries,
    result_queries,
)
from rendezvous.ledger import money_tables as m
from rendezvous.ledger import tables as t
from rendezvous.ledger.act_ops import (
    ActView,
    AllowanceView,
    ApprovalView,
    ProfileView,
    QuarantineCounts,
    QuarantineView,
    VersionRate,
)
from rendezvous.ledger.audit_queries import Walked
from rendezvous.ledger.channel_queries import VoucherPage
from rendezvous.ledger.channels import ChannelRow
from rendezvous.ledger.faults import name_of, unavailable
from rendezvous.ledger.history import History
from rendezvous.ledger.money_ops import Book, Intent, Sender
from rendezvous.ledger.ops import LeaseRef, LedgerEvent, SeenWorker, SignedReceipt
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from rendezvous.ledger.views import (
    event_view,
    event_views,
    exported,
    seen_worker,
    task_view,
    task_views,
)
from rendezvous.ledger.why import why_not
from rendezvous.policy.pacing import FOREVER
from rendezvous.policy.pauses import Pause
from swarm.errors import MalformedInput
from swarm.model import Address, Cid, JobId, Refusal, Role, Status, TaskId, Wei
from swarm.wire import EventView, JobView, Page, TaskView

__all__ = ["KeyRow", "LedgerReader"]

#: The most rows of one page.
PAGE_MOST: Final = 1_000

#: Asked for twenty times a second while workers wait for paced hosts, so it is put together once.
_OPENINGS: Final = sa.select(
    sa.func.min(t.lanes.c.opens_at),
    sa.func.coalesce(sa.func.sum(sa.case((t.lanes.c.opens_at <= sa.bindparam("now", type_=sa.Float), 1), else_=0)), 0),
).where(t.lanes.c.opens_at < FOREVER, t.lanes.c.head_seq.is_not(None))


@attrs.frozen(kw_only=True)
class KeyRow:
    """An API key, as found by its hash."""

    role: Role
    owner: str
    instance: str | None
    payout: Address | None
    revoked: bool
    #: By whom and why, where an operator said so.
    revoked_by: str | None = None
    revoked_why: str | None = None


class LedgerReader:
    """Reads of one ledger.

    *Resource handling*: borrows connections of the engine for the length of a call.

    Raises:
        LedgerUnavailable: (every method) the database can't be read.
    """

    def __init__(self, engine: Engine, *, settings: LedgerSettings | None = None) -> None:
        self._engine: Final = engine
        self._settings: Final = settings or LedgerSettings()
        self._history: Final = History(engine)

    @property
    def where(self) -> str:
        """The database's name for people."""
        return name_of(self._engine.url)

    def _rows(self, statement: sa.Executable, **values: Any) -> Sequence[Any]:
        try:
            with self._engine.connect() as connection:
                return connection.execute(statement, values).all()
        except SQLAlchemyError as fault:
            raise unavailable(self._engine, fault) from fault

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def task(self, task: TaskId, owner: str | None = None, *, now: float | None = None) -> TaskView | None:
        """One task; None where it doesn't exist or isn't the owner's.

        Args:
            task: its id.
            owner: who asks; None is the operator.
            now: ledger time, for what is left of a lease; None leaves that out.
        """
        statement = task_views().where(t.tasks.c.id == task)
        if owner is not None:
            statement = statement.where(t.jobs.c.owner == owner)
        found = self._rows(statement)
        return task_view(found[0], now=now) if found else None

    def tasks(
        self,
        owner: str | None = None,
        job: JobId | None = None,
        status: Status | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        now: float | None = None,
    ) -> Page:
        """Tasks job by job, in the order of their submission.

        Raises:
            MalformedInput: the cursor isn't one of ours.
        """
        limit = min(limit, PAGE_MOST)
        from_job, after = _numbers(cursor, 2) if cursor is not None else (0, 0)
        found: list[Any] = []
        for number in self._jobs_with(owner, job, status, from_job=from_job, limit=limit + 2):
            statement = task_views().where(
                t.tasks.c.job == number, t.tasks.c.seq > (after if number == from_job else 0)
            )
            if status is not None:
                statement = statement.where(t.tasks.c.status == status.value)
            found.extend(self._rows(statement.order_by(t.tasks.c.seq).limit(limit + 1 - len(found))))
            if len(found) > limit:
                break
        last = found[limit - 1] if len(found) > limit else None
        return Page(
            items=tuple(task_view(row, now=now) for row in found[:limit]),
            next=None if last is None else f"{last.job}.{last.seq}",
        )

    def _jobs_with(
        self, owner: str | None, job: JobId | None, status: Status | None, *, from_job: int, limit: int
    ) -> list[int]:
        """The numbers of jobs that have such tasks, by the kept counts: none is looked through in vain."""
        kept = sa.exists().where(t.job_counts.c.job == t.jobs.c.n, t.job_counts.c.tasks > 0)
        if status is not None:
            kept = kept.where(t.job_counts.c.status == status.value)
        statement = sa.select(t.jobs.c.n).where(t.jobs.c.n >= from_job, kept).order_by(t.jobs.c.n).limit(limit)
        if owner is not None:
            statement = statement.where(t.jobs.c.owner == owner)
        if job is not None:
            statement = statement.where(t.jobs.c.id == job)
        return [number for (number,) in self._rows(statement)]

    def history(self, task: TaskId) -> list[EventView]:
        """All that happened to a task, in order."""
        chain = (
            sa.select(t.events.c.id, t.events.c.previous)
            .join(t.tasks, t.tasks.c.last_event == t.events.c.id)
            .where(t.tasks.c.id == task)
            .cte("chain", recursive=True)
        )
        before = t.events.alias("before")
        chain = chain.union_all(sa.select(before.c.id, before.c.previous).where(before.c.id == chain.c.previous))
        statement = event_views().join(chain, chain.c.id == t.events.c.id).order_by(t.events.c.n)
        return [event_view(row) for row in self._rows(statement)]

    def events_after(self, after: int, owner: str | None = None, limit: int = 1_000) -> list[EventView]:
        """The history of all tasks, or of an owner's, after an event."""
        statement = event_views().where(t.events.c.id > after).order_by(t.events.c.id).limit(limit)
        if owner is not None:
            statement = statement.where(t.jobs.c.owner == owner)
        return [event_view(row) for row in self._rows(statement)]

    def oldest_ready_since(self) -> float | None:
        """Since when the first submitted of the tasks that are first in their lines is ready, ledger seconds.

        Returns:
            None where none is ready.
        """
        # Of the lanes: the least number of all ready tasks would be looked for among all that were ever finished.
        first = sa.select(sa.func.min(t.lanes.c.head_seq))
        statement = (
            sa.select(t.events.c.at)
            .join(t.tasks, t.tasks.c.last_event == t.events.c.id)
            .where(t.tasks.c.seq == first.scalar_subquery())
        )
        return next((float(row.at) for row in self._rows(statement)), None)

    def ledger_events(self, after: int, through: int, limit: int) -> list[LedgerEvent]:
        """The history after one event up to another, as listeners hear it."""
        return self._history.read(after, through, limit)

    def last_event_id(self) -> int:
        """The number of the last event; 0 before the first."""
        return int(self._rows(sa.select(sa.func.coalesce(sa.func.max(t.events.c.id), 0)))[0][0])

    def last_moment(self) -> float:
        """The latest moment that is written: of the last event, or of a worker's last turn; 0 before the first."""
        newest = sa.select(t.events.c.at).order_by(t.events.c.id.desc()).limit(1)
        moments = [self._rows(newest), self._rows(sa.select(sa.func.max(t.workers.c.seen_at)))]
        return max((float(rows[0][0]) for rows in moments if rows and rows[0][0] is not None), default=0.0)

    def export_pending(self, after: int, *, now: float) -> tuple[list[dict[str, Any]], int | None]:
        """A page of the tasks that wait for a worker or for their time, each with its ``id``, ``job`` and ``owner``.

        Args:
            after: the place (of an earlier call) to go on from; 0 is the beginning.
            now: ledger time, seconds.

        Returns:
            The tasks as in a submission, and the place of the next page; None where this was the last.
        """
        statement = (
            task_views()
            .where(t.tasks.c.seq > after, t.tasks.c.status.in_([Status.PENDING.value, Status.WAITING.value]))
            .order_by(t.tasks.c.seq)
            .limit(PAGE_MOST)
        )
        found = self._rows(statement)
        return [exported(row, now=now) for row in found], found[-1].seq if len(found) == PAGE_MOST else None

    def ready_by_host(self, limit: int) -> list[tuple[str, int]]:
        """The hosts that have most ready tasks, and how many."""
        ready = (
            sa.select(t.tasks.c.lane, sa.func.count().label("ready"))
            .where(t.tasks.c.status == sa.literal_column(f"'{Status.PENDING.value}'"))
            .group_by(t.tasks.c.lane)
            .subquery()
        )
        total = sa.func.sum(ready.c.ready)
        statement = (
            sa.select(t.hosts.c.host, total)
            .select_from(ready)
            .join(t.lanes, t.lanes.c.n == ready.c.lane)
            .join(t.hosts, t.hosts.c.n == t.lanes.c.host)
            .group_by(t.hosts.c.host)
            .order_by(total.desc(), t.hosts.c.host)
            .limit(limit)
        )
        return [(host, int(tasks)) for host, tasks in self._rows(statement)]

    def existing(self, tasks: Iterable[TaskId]) -> frozenset[TaskId]:
        """Those of these tasks that the ledger has."""
        wanted = list(tasks)
        found: set[TaskId] = set()
        for first in range(0, len(wanted), PAGE_MOST):
            batch = wanted[first : first + PAGE_MOST]
            found.update(task for (task,) in self._rows(sa.select(t.tasks.c.id).where(t.tasks.c.id.in_(batch))))
        return frozenset(found)

    def finished_before(self, before: float, *, now: float, after: int, limit: int) -> list[tuple[int, TaskView]]:
        """Tasks that ended before a ledger time and whose dedupe keys are free by now, in order of submission.

        Args:
            before: ledger time, seconds.
            now: ledger time, seconds.
            after: the place (of an earlier call) to go on from; 0 is the beginning.
            limit: the most tasks.

        Returns:
            Each task with its place.
        """
        statement = (
            task_views()
            .where(t.tasks.c.seq > after, t.tasks.c.finished_at < before)
            .where(t.tasks.c.finished_at + t.task_bodies.c.dedupe_ttl_s < now)
            .order_by(t.tasks.c.seq)
            .limit(limit)
        )
        return [(row.seq, task_view(row, now=None)) for row in self._rows(statement)]

    # ── the operator's acts ───────────────────────────────────────────────────────────────────────────────────────

    def pauses(self) -> list[Pause]:
        """What is paused: the swarm first, then hosts and jobs."""
        return policy_queries.read_pauses(self._rows)

    def quarantines(
        self,
        *,
        now: float,
        after: tuple[float, str, str, str] | None = None,
        limit: int | None = None,
        of: tuple[Address, str] | None = None,
    ) -> list[QuarantineView]:
        """The quarantines that hold at a ledger time, those that last longest first; see ``read_quarantines``."""
        return policy_queries.read_quarantines(self._rows, now=now, after=after, limit=limit, of=of)

    def profiles(self, *, after: str = "", limit: int | None = None) -> list[ProfileView]:
        """The profiles that were used, by name."""
        return policy_queries.read_profiles(self._rows, after=after, limit=limit)

    def versions(self, *, after: tuple[str, str, str] = ("", "", ""), limit: int | None = None) -> list[VersionRate]:
        """How tasks came out, by kind and by what ran them; as of the last sweep."""
        return policy_queries.read_versions(self._rows, after=after, limit=limit)

    def quarantine_counts(self) -> QuarantineCounts:
        """How many quarantines the count brought, and how many of them were of the second order."""
        return policy_queries.read_second_order(self._rows)

    def approvals(self) -> list[ApprovalView]:
        """The pinned versions; a name that has none is free."""
        return policy_queries.read_approvals(self._rows)

    def acts(self, *, before: int | None = None, limit: int = 100) -> list[ActView]:
        """What operators did that concerns no single task, newest first; before an act (its ``n``)."""
        return policy_queries.read_acts(self._rows, before=before, limit=min(limit, PAGE_MOST))

    # ── money ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def book(self, sender: Address, *, now: float) -> Book | None:
        """All that a sender has to do now (ledger seconds); None where there is no such sender."""
        return money_queries.read_book(self._rows, sender, now=now)

    def sender(self, address: Address) -> Sender | None:
        """Who may sign with a key, and from which nonce on; None where it was never used."""
        return money_queries.read_sender(self._rows, address)

    def intents(self, sender: Address, *, after: int = 0) -> list[Intent]:
        """A page of a sender's intents, oldest first, after one of them (its ``n``)."""
        return money_queries.intents_of_sender(self._rows, sender, after=after)

    def audited_transactions(self, sender: Address, after: int) -> list[Walked]:
        """A page of a sender's transactions after a nonce; an audit walks them along with the chain."""
        return audit_queries.walk_transactions(self._rows, sender, after=after)

    def audited_nonces(self, sender: Address, hashes: Sequence[str]) -> dict[str, int]:
        """The nonces of those of these transactions that this ledger sent, by hash."""
        return audit_queries.nonces_of(self._rows, sender, hashes)

    def audited_intents(self, sender: Address, nonces: Sequence[int]) -> list[Intent]:
        """What a few transactions carry."""
        return audit_queries.intents_of_nonces(self._rows, sender, nonces)

    def silent_intents(self, sender: Address, *, after: int, up_to: int) -> list[Intent]:
        """Intents in a range of numbers that no transaction of this ledger's made true."""
        return audit_queries.silent_intents(self._rows, sender, after=after, up_to=up_to)

    def last_intent(self) -> int:
        """The number of the newest intent; 0 where there is none."""
        return audit_queries.last_intent(self._rows)

    def channel(self, payer: Address, payee: Address) -> ChannelRow | None:
        """How a channel stands; None where nothing was ever earned on it."""
        return channel_queries.read_channel(self._rows, payer, payee)

    def channels(self, payer: Address, *, after: Address = "", unseen: bool = False) -> list[ChannelRow]:
        """A page of a payer's channels, by payee, after one of them; all, or those never looked up on the chain."""
        return channel_queries.read_channels(self._rows, payer, after=after, unseen=unseen)

    def has_channels(self, payer: Address) -> bool:
        """Whether anything was ever earned on a payer's channels."""
        return bool(self._rows(sa.select(m.channels.c.payee).where(m.channels.c.payer == payer).limit(1)))

    def vouchers_since(self, payer: Address, payee: Address, *, since_wei: Wei) -> VoucherPage | None:
        """What is to be signed for a payee that has a voucher of so much; None where it has all."""
        return channel_queries.vouchers_since(self._rows, payer, payee, since_wei=since_wei)

    def receipt(self, task: TaskId, *, owner: str | None = None, worker: Address | None = None) -> SignedReceipt | None:
        """What was signed for a task's latest completion.

        Args:
            task: whose.
            owner: whose it must be; None is anybody's.
            worker: who must have signed; None is anybody.
        """
        statement = sa.select(m.receipts).where(m.receipts.c.task == task).order_by(m.receipts.c.generation.desc())
        if owner is not None:
            owned = sa.select(t.tasks.c.id).join(t.jobs, t.jobs.c.n == t.tasks.c.job)
            statement = statement.where(
                m.receipts.c.task.in_(owned.where(t.tasks.c.id == task, t.jobs.c.owner == owner))
            )
        if worker is not None:
            statement = statement.where(m.receipts.c.worker == worker)
        found = self._rows(statement.limit(1))
        if not found:
            return None
        row = found[0]
        return SignedReceipt(
            task=row.task,
            generation=row.generation,
            fence=row.fence,
            worker=row.worker,
            payout=row.payout,
            result=row.result,
            reward_wei=int(row.reward_wei),
            signature=row.signature,
            accepted_at=row.accepted_at,
            acceptance=row.acceptance,
        )

    def allowance(self, owner: str) -> AllowanceView:
        """What a requester may spend; nothing where the operator never said."""
        found = self._rows(sa.select(m.allowances).where(m.allowances.c.owner == owner))
        granted, spent = (found[0].granted_wei, found[0].spent_wei) if found else (0, 0)
        return AllowanceView(owner=owner, granted_wei=int(granted), spent_wei=int(spent))

    # ── jobs and numbers ──────────────────────────────────────────────────────────────────────────────────────────

    def job(self, job: JobId, owner: str | None = None) -> JobView | None:
        """How far a job is; None where it doesn't exist or isn't the owner's."""
        return job_queries.read_job(self._rows, job, owner)

    def jobs(self, owner: str | None = None, cursor: str | None = None, limit: int = 100) -> Page:
        """Jobs, newest first.

        Raises:
            MalformedInput: the cursor isn't one of ours.
        """
        before = None if cursor is None else _numbers(cursor, 1)[0]
        return job_queries.read_jobs(self._rows, owner, before=before, limit=min(limit, PAGE_MOST))

    def counts(self) -> dict[Status, int]:
        """How many tasks there are in each status; kept, not counted."""
        counts = dict.fromkeys(Status, 0)
        for status, tasks in self._rows(sa.select(t.status_counts)):
            counts[Status(status)] = tasks
        return counts

    # ── workers and keys ──────────────────────────────────────────────────────────────────────────────────────────

    def key(self, digest: bytes) -> KeyRow | None:
        """An API key by its hash."""
        statement = sa.select(t.api_keys, t.revocations.c.who, t.revocations.c.why).outerjoin(
            t.revocations, t.revocations.c.owner == t.api_keys.c.owner
        )
        found = self._rows(statement.where(t.api_keys.c.digest == digest))
        if not found:
            return None
        row = found[0]
        return KeyRow(
            role=Role(row.role),
            owner=row.owner,
            instance=row.instance,
            payout=row.payout,
            revoked=row.revoked_at is not None,
            revoked_by=row.who,
            revoked_why=row.why,
        )

    def workers(self, *, seen_since: float = 0.0) -> list[SeenWorker]:
        """The workers that the door has seen, since then in Unix seconds, and nobody has removed."""
        statement = sa.select(t.workers).where(t.workers.c.seen_at >= seen_since).order_by(t.workers.c.n)
        return [seen_worker(row) for row in self._rows(statement)]

    def worker(self, worker: WorkerRef) -> SeenWorker | None:
        """One of them."""
        statement = sa.select(t.workers).where(
            t.workers.c.address == worker.address,
            t.workers.c.instance == worker.instance,
            t.workers.c.seen_at.is_not(None),
        )
        return next((seen_worker(row) for row in self._rows(statement)), None)

    def may_end(self, worker: WorkerRef, leases: Sequence[LeaseRef]) -> frozenset[LeaseRef]:
        """Those of these leases that a result of the worker may still end, one that was called off included."""
        statement = (
            sa.select(t.tasks.c.id, t.tasks.c.fence)
            .join(t.workers, t.workers.c.n == t.tasks.c.worker)
            .where(
                t.tasks.c.id.in_([lease.task for lease in leases]),
                t.tasks.c.status.in_([Status.ACTIVE.value, Status.CANCELLED.value]),
                t.workers.c.address == worker.address,
                t.workers.c.instance == worker.instance,
            )
        )
        return frozenset(leases) & {LeaseRef(task, fence) for task, fence in self._rows(statement)}

    def leases_of(self, worker: WorkerRef) -> list[LeaseRef]:
        """What a worker holds."""
        statement = (
            sa.select(t.tasks.c.id, t.tasks.c.fence)
            .join(t.workers, t.workers.c.n == t.tasks.c.worker)
            .where(
                t.tasks.c.status == sa.literal_column(f"'{Status.ACTIVE.value}'"),
                t.workers.c.address == worker.address,
                t.workers.c.instance == worker.instance,
            )
            .order_by(t.tasks.c.fence)
        )
        return [LeaseRef(task, fence) for task, fence in self._rows(statement)]

    def active_by_worker(self) -> dict[WorkerRef, int]:
        """How many tasks each worker holds, of those that hold any."""
        statement = (
            sa.select(t.workers.c.address, t.workers.c.instance, sa.func.count())
            .join(t.tasks, t.tasks.c.worker == t.workers.c.n)
            .where(t.tasks.c.status == sa.literal_column(f"'{Status.ACTIVE.value}'"))
            .group_by(t.workers.c.address, t.workers.c.instance)
        )
        return {WorkerRef(address, instance): tasks for address, instance, tasks in self._rows(statement)}

    def holds_host(self, worker: WorkerRef, host: str) -> bool:
        """Whether a worker holds a task of a host."""
        return bool(self._rows(_held_of_host(worker, host).limit(1)))

    def outran_delay(self, worker: WorkerRef, host: str) -> bool:
        """Whether a worker holds a task of a host that was granted before the host's crawl-delay was known.

        Others may have been granted tasks of it at that moment too. Since then a grant of it is the only one, and
        comes after the last one's delay; so whatever happened to the bucket after the grant says that it isn't such.
        """
        statement = _held_of_host(worker, host).where(
            sa.or_(
                t.hosts.c.unfinished.is_(None),
                t.hosts.c.unfinished > 1,
                t.tasks.c.granted_at < t.hosts.c.refilled_at,
            ),
        )
        return bool(self._rows(statement.limit(1)))

    def refusals(
        self, task: TaskId, workers: Sequence[tuple[WorkerRef, WorkerFacts]], *, now: float
    ) -> list[tuple[WorkerRef, Refusal | None]]:
        """Why each of these workers doesn't get a task now; None where it would. The same code decides the grants.

        Args:
            task: its id; one that doesn't exist gives an empty list.
            workers: the live workers, and what they said they are.
            now: ledger time, seconds.
        """
        return why_not(self._rows, task, workers, settings=self._settings, now=now)

    def openings(self, now: float) -> tuple[float | None, int]:
        """When the next line of ready tasks opens that its host's pace keeps closed, and how many are open by now.

        Args:
            now: ledger time, seconds.

        Returns:
            A ledger time, None where no line is closed; and how many closed lines a turn would open now.
        """
        opens_at, opened = self._rows(_OPENINGS, now=now)[0]
        return opens_at, int(opened)

    # ── results ───────────────────────────────────────────────────────────────────────────────────────────────────

    def manifest(self, cid: Cid) -> bytes | None:
        """A manifest that came inline with its completion."""
        return result_queries.read_manifest(self._rows, cid)

    def inline_manifests(self, after: int, up_to: int) -> list[tuple[Cid, bytes]]:
        """The manifests that came inline with the completions after one event, up to another; each once."""
        return result_queries.read_inline_manifests(self._rows, after, up_to)

    def result_cids(self) -> Iterator[Cid]:
        """The results of all tasks that the ledger has, oldest task first."""
        return result_queries.read_result_cids(self._rows)


def _numbers(cursor: str, count: int) -> list[int]:
    parts = cursor.split(".")
    if len(parts) != count or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise MalformedInput(f"{cursor!r} isn't a cursor of this list")
    return [int(part) for part in parts]


def _held_of_host(worker: WorkerRef, host: str) -> sa.Select[tuple[str]]:
    """The tasks of a host that a worker holds."""
    return (
        sa.select(t.tasks.c.id)
        .join(t.workers, t.workers.c.n == t.tasks.c.worker)
        .join(t.lanes, t.lanes.c.n == t.tasks.c.lane)
        .join(t.hosts, t.hosts.c.n == t.lanes.c.host)
        .where(
            t.tasks.c.status == sa.literal_column(f"'{Status.ACTIVE.value}'"),
            t.workers.c.address == worker.address,
            t.workers.c.instance == worker.instance,
            t.hosts.c.host == host,
        )
    )
