"""What can be asked of the ledger, and what it answers: values only.

One operation is one row of these classes; ``transitions.py`` turns a group of them into set-based statements, and
``ledger.py`` runs the groups. The door, the announcer and the tests build these; none of them sees SQL.
Each operation names its answer's type in its docstring. A refusal is a ``swarm.model.Refusal`` in the answer.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from rendezvous.ledger.act_ops import (
    Admit,
    ApproveVersion,
    Enrol,
    FailByHand,
    KeepApart,
    LiftQuarantine,
    Pause,
    PutInvite,
    PutKey,
    Quarantine,
    Resume,
    Revoke,
    SetAllowance,
    TakeBack,
)
from rendezvous.ledger.money_ops import MoneyOp
from rendezvous.ledger.values import Value, WorkerFacts, WorkerRef
from swarm.model import Actor, Address, Cid, JobId, Move, Refusal, Settle, Status, TaskId, Via, Wei
from swarm.wire import Requires, TaskBody

# ── submit ────────────────────────────────────────────────────────────────────────────────────────────────────────


class PreparedTask(Value, frozen=True, kw_only=True):
    """A task that the door has checked: URLs canonical and of one host, caps held, an id chosen."""

    id: TaskId
    kind: str
    urls: tuple[str, ...]
    host: str
    spec: dict[str, Any]
    meta: dict[str, Any]
    priority: int
    tier: str
    requires: Requires
    reward_wei: int
    max_attempts: int
    max_run_s: float
    not_before_s: float
    expires_in_s: float
    #: Already scoped: the requester's own key, or ``job:<job>:<digest>`` by default.
    dedupe_key: str
    dedupe_ttl_s: float
    #: Of a task that comes from another ledger: its key as it was kept there (``submit.dedupe_digest``), instead.
    kept_digest: str | None = None


class Submit(Value, frozen=True, kw_only=True):
    """New tasks of one job. Answer: ``SubmitResult`` or ``Refusal``.

    It is refused as a whole: ``idempotency_mismatch``, ``not_found`` (the job), ``budget_exceeded``,
    ``allowance_exceeded``.
    """

    owner: str
    job: JobId
    #: True where the requester named the job itself: it must exist already and be the owner's.
    job_named: bool
    name: str | None
    tasks: tuple[PreparedTask, ...]
    #: Rewards are charged to the owner's allowance; an operator's aren't.
    charged: bool = False
    #: The cap of a job that is made by this.
    budget_wei: Wei | None = None
    #: How a job that is made by this is settled.
    settle: Settle = Settle.TASK
    idempotency_key: str | None = None
    #: sha256 of the request; the same key with another body is refused.
    body_digest: bytes = b""


class SubmitResult(Value, frozen=True, kw_only=True):
    """``(id, created)`` in the order of the tasks; where created is False the id is of the task that has the key."""

    job: JobId
    tasks: tuple[tuple[TaskId, bool], ...]


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class SignedCompletion(Value, frozen=True, kw_only=True):
    """What a worker signed at completion; the door has checked the signature."""

    generation: int
    payout: Address
    signature: str


class DoneItem(Value, frozen=True, kw_only=True):
    """A result that the door has verified: the manifest and all that it names are readable.

    One that wasn't ``verified``, since the door saw no lease that it could end, is answered and ends nothing.
    """

    task: TaskId
    fence: int
    cid: Cid
    size_bytes: int
    #: The inline manifest, to be stored with the completion; None where it is already in the block store.
    manifest: bytes | None = None
    ran_s: float = 0.0
    signed: SignedCompletion | None = None
    verified: bool = True


class FailedItem(Value, frozen=True, kw_only=True):
    """An execution that failed."""

    task: TaskId
    fence: int
    reason: str
    detail: str = ""
    retryable: bool | None = None
    retry_after_s: float | None = None
    ran_s: float = 0.0


class LeaseRef(Value, frozen=True):
    """One lease: the task and the fence of the grant."""

    task: TaskId
    fence: int


class TakeTurn(Value, frozen=True, kw_only=True):
    """One worker's turn. Answer: ``TurnResult``.

    Order within a turn: done, failed, released; leases of this worker that an earlier ``boot`` was granted are taken
    back (``endings.lose_by_restart``); renewals; then grants: offers first, then ``want`` others, and every live lease
    of this boot that is in none of ``held``, ``done``, ``failed``, ``released`` is granted again, same fence, uncounted
    (its grant was lost).
    """

    worker: WorkerRef
    boot: str
    facts: WorkerFacts
    done: tuple[DoneItem, ...] = ()
    failed: tuple[FailedItem, ...] = ()
    released: tuple[LeaseRef, ...] = ()
    held: tuple[LeaseRef, ...] = ()
    renew: tuple[LeaseRef, ...] = ()
    offers: tuple[TaskId, ...] = ()
    want: int = 0
    #: No more new grants than this, whatever is asked: the free slots. None: as many as are asked for.
    room: int | None = None
    #: Fill ``TurnResult.refused`` for each offer that isn't granted (the seed's single claim); costs a query each.
    explain: bool = False
    #: The single calls (claim, complete, …) are turns that say nothing of other leases: nothing is sent again for
    #: them, and nothing given back.
    partial: bool = False


class Ended(Value, frozen=True, kw_only=True):
    """What became of one done, failed or released entry: the status the task has now, or the refusal."""

    task: TaskId
    fence: int
    outcome: Status | Refusal


class Granted(Value, frozen=True, kw_only=True):
    """A grant. ``again`` says it is one whose answer was lost."""

    task: TaskBody
    host: str
    fence: int
    lease_s: float
    via: Via
    again: bool = False


class RenewedLease(Value, frozen=True, kw_only=True):
    """A lease extended by ``lease_s`` from now."""

    task: TaskId
    fence: int
    lease_s: float


class TurnResult(Value, frozen=True, kw_only=True):
    """What a turn brought."""

    ended: tuple[Ended, ...] = ()
    granted: tuple[Granted, ...] = ()
    renewed: tuple[RenewedLease, ...] = ()
    #: Fences in ``held`` or ``renew`` that this worker doesn't hold any more.
    lost: tuple[int, ...] = ()
    #: Tasks in ``held`` or ``renew`` that were cancelled.
    cancelled: tuple[TaskId, ...] = ()
    refused: dict[TaskId, Refusal] = field(default_factory=dict)
    #: Why nothing is granted at all: the swarm is paused.
    paused: str | None = None
    #: Whether something was accepted that is paid for by a voucher.
    earned: bool = False
    #: When asking again can help, seconds: the swarm's own pace is used up.
    retry_after_s: float | None = None
    #: Another boot of this worker has spoken since: leases are that one's.
    outdated: bool = False


# ── assigning ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Assignable(Value, frozen=True, kw_only=True):
    """A worker that tasks can be pushed to: its present boot, and how many slots it says are free."""

    worker: WorkerRef
    boot: str
    facts: WorkerFacts
    free: int
    slots: int


class Assign(Value, frozen=True, kw_only=True):
    """Give ready tasks to workers that didn't ask, the least loaded first. Answer: ``tuple[Assigned, ...]``."""

    workers: tuple[Assignable, ...]


class Assigned(Value, frozen=True, kw_only=True):
    """What a worker got."""

    worker: WorkerRef
    granted: tuple[Granted, ...]


# ── by the requester, the operator and the clock ──────────────────────────────────────────────────────────────────


class KeepAcceptance(Value, frozen=True, kw_only=True):
    """Keep the root's signature of a receipt, once it was made. Answer: None."""

    task: TaskId
    generation: int
    #: Of the completion that it accepts: another one's isn't kept.
    signature: str
    #: JSON.
    acceptance: str


class SignedReceipt(Value, frozen=True, kw_only=True):
    """What a worker signed for, as the ledger has it."""

    task: TaskId
    generation: int
    fence: int
    worker: Address
    payout: Address
    result: Cid
    reward_wei: Wei
    signature: str
    accepted_at: float
    #: The root's signature (JSON), where it was asked for before.
    acceptance: str | None


class Cancel(Value, frozen=True, kw_only=True):
    """Call tasks off: those named, or all of a job. ``owner`` None is the operator. Answer: ``tuple[Ended, ...]``.

    A task that isn't there or isn't the owner's is ``not_found``; one that has ended is ``wrong_status``.
    """

    owner: str | None
    who: str
    tasks: tuple[TaskId, ...] = ()
    job: JobId | None = None
    #: A job is done in batches, in order: go on after this task.
    after: TaskId | None = None


class Replay(Value, frozen=True, kw_only=True):
    """Give dead letters a new life: those named, or all failed ones of a job. Answer: ``tuple[Ended, ...]``."""

    owner: str | None
    who: str
    tasks: tuple[TaskId, ...] = ()
    job: JobId | None = None
    #: A job is done in batches, in order: go on after this task.
    after: TaskId | None = None


class Sweep(Value, frozen=True, kw_only=True):
    """What the clock does: wake waiting tasks, reap leases, expire tasks. Answer: ``float``, seconds to the next."""


class Rearm(Value, frozen=True, kw_only=True):
    """After a stall of the root or the database: every lease runs for another while. Answer: int, how many.

    Without it a sweep would reap leases whose holders could not renew them through no fault of their own.
    """


class HearOf(Value, frozen=True, kw_only=True):
    """Know of workers that took a turn at another root: whether a task has another to go to. Answer: None.

    Each is who it is, what it is, and when it spoke (ledger seconds).
    """

    workers: tuple[tuple[WorkerRef, WorkerFacts, float], ...]


class Probe(Value, frozen=True, kw_only=True):
    """Write a number that nobody reads: whether the ledger can write at all. Answer: None."""


class Forget(Value, frozen=True, kw_only=True):
    """Delete finished tasks that have been archived, with their history. Answer: int, how many were deleted.

    Only tasks that ended before ``ended_before`` (ledger seconds) go; the others of the list stay.
    """

    tasks: tuple[TaskId, ...]
    ended_before: float


class HoldHost(Value, frozen=True, kw_only=True):
    """Grant nothing of this host for a while (its robots.txt can't be read). Answer: None."""

    host: str
    for_s: float
    why: str


class SetHostPace(Value, frozen=True, kw_only=True):
    """Change a host's pace: its crawl-delay says so, or the operator. Answer: None."""

    host: str
    rate_per_s: float
    burst: float
    #: It asks for a delay between requests: one unfinished grant at a time, the next ``1 / rate_per_s`` after it.
    one_at_a_time: bool = False


class SeeWorkers(Value, frozen=True, kw_only=True):
    """What the door has heard of workers since it last said so; written for restarts. Answer: None."""

    seen: tuple[SeenWorker, ...]


class SeenWorker(Value, frozen=True, kw_only=True):
    """A worker as the door knows it. ``hello`` and ``stats`` are JSON."""

    worker: WorkerRef
    payout: Address
    peer_id: str | None
    boot: str
    hello: str
    stats: str
    at: float


class RemoveWorker(Value, frozen=True, kw_only=True):
    """Take a worker off the list; its leases go back uncounted. Answer: int, how many leases it held."""

    worker: WorkerRef
    who: str
    why: str = ""


Op = (
    Submit
    | TakeTurn
    | Assign
    | Cancel
    | Replay
    | Sweep
    | Rearm
    | HearOf
    | Probe
    | Forget
    | HoldHost
    | SetHostPace
    | SeeWorkers
    | RemoveWorker
    | PutKey
    | Revoke
    | Admit
    | SetAllowance
    | KeepAcceptance
    | PutInvite
    | Enrol
    | Pause
    | Resume
    | Quarantine
    | LiftQuarantine
    | KeepApart
    | ApproveVersion
    | FailByHand
    | TakeBack
    | MoneyOp
)


# ── what the ledger tells its listeners after each commit ─────────────────────────────────────────────────────────


class LedgerEvent(Value, frozen=True, kw_only=True):
    """One row of the history, with what the announcer and the event stream need to know of the task."""

    id: int
    task: TaskId
    #: The task's own count of events, from 1.
    seq: int
    move: Move
    source: Status | None
    to: Status
    by: Actor
    #: The worker's address, the requester, or the operator's name.
    who: str | None
    #: The assignee concerned, where there is one (also of a lease that was just taken away).
    worker: WorkerRef | None
    fence: int | None
    reason: str | None
    detail: str | None
    #: Ledger time, Unix seconds.
    at: float
    job: JobId
    owner: str
    kind: str
    host: str
    priority: int
    tier: str
    reward_wei: int
    requires: Requires
