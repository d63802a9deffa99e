"""What can be asked of the ledger, and what it answers: values only.

One operation is one row of these classes; ``transitions.py`` turns a group of them into set-based statements, and
``ledger.py`` runs the groups. The door, the announcer and the tests build these; none of them sees SQL.
Each operation names its answer's type in its docstring. A refusal is a ``swarm.model.Refusal`` in the answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rendezvous.ledger.money_ops import MoneyOp
from rendezvous.policy.contexts import ProfileState
from rendezvous.policy.pauses import Scope
from swarm.model import Actor, Address, Cid, JobId, Move, Refusal, Role, Settle, Status, TaskId, Via, Wei
from swarm.wire import Requires, TaskBody


class _Value(msgspec.Struct, frozen=True):
    """A value of the ledger's own. A struct although it crosses no boundary.

    Measured: a task's life makes about a dozen of these, an event of 18 fields takes 6.6 µs as a frozen attrs class
    and 0.5 µs as a struct; that was half of the ledger's time.
    """


# ── who ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class WorkerRef(_Value, frozen=True):
    """The identity a lease is bound to: one address, one instance (data directory)."""

    address: Address
    instance: str


class WorkerFacts(_Value, frozen=True, kw_only=True):
    """What a worker said it is; policy matches tasks against it."""

    kinds: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    region: str | None = None
    versions: dict[str, str] = {}
    #: The network that its calls come from, as the door sees it (``policy.egress.prefix_of``).
    prefix: str | None = None
    #: How many tasks it runs at once; 0 where it never said.
    slots: int = 0


# ── submit ────────────────────────────────────────────────────────────────────────────────────────────────────────


class PreparedTask(_Value, frozen=True, kw_only=True):
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


class Submit(_Value, frozen=True, kw_only=True):
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


class SubmitResult(_Value, frozen=True, kw_only=True):
    """``(id, created)`` in the order of the tasks; where created is False the id is of the task that has the key."""

    job: JobId
    tasks: tuple[tuple[TaskId, bool], ...]


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class SignedCompletion(_Value, frozen=True, kw_only=True):
    """What a worker signed at completion; the door has checked the signature."""

    generation: int
    payout: Address
    signature: str


class DoneItem(_Value, frozen=True, kw_only=True):
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


class FailedItem(_Value, frozen=True, kw_only=True):
    """An execution that failed."""

    task: TaskId
    fence: int
    reason: str
    detail: str = ""
    retryable: bool | None = None
    retry_after_s: float | None = None
    ran_s: float = 0.0


class LeaseRef(_Value, frozen=True):
    """One lease: the task and the fence of the grant."""

    task: TaskId
    fence: int


class TakeTurn(_Value, frozen=True, kw_only=True):
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


class Ended(_Value, frozen=True, kw_only=True):
    """What became of one done, failed or released entry: the status the task has now, or the refusal."""

    task: TaskId
    fence: int
    outcome: Status | Refusal


class Granted(_Value, frozen=True, kw_only=True):
    """A grant. ``again`` says it is one whose answer was lost."""

    task: TaskBody
    host: str
    fence: int
    lease_s: float
    via: Via
    again: bool = False


class RenewedLease(_Value, frozen=True, kw_only=True):
    """A lease extended by ``lease_s`` from now."""

    task: TaskId
    fence: int
    lease_s: float


class TurnResult(_Value, frozen=True, kw_only=True):
    """What a turn brought."""

    ended: tuple[Ended, ...] = ()
    granted: tuple[Granted, ...] = ()
    renewed: tuple[RenewedLease, ...] = ()
    #: Fences in ``held`` or ``renew`` that this worker doesn't hold any more.
    lost: tuple[int, ...] = ()
    #: Tasks in ``held`` or ``renew`` that were cancelled.
    cancelled: tuple[TaskId, ...] = ()
    refused: dict[TaskId, Refusal] = {}
    #: Why nothing is granted at all: the swarm is paused.
    paused: str | None = None
    #: Whether something was accepted that is paid for by a voucher.
    earned: bool = False
    #: When asking again can help, seconds: the swarm's own pace is used up.
    retry_after_s: float | None = None
    #: Another boot of this worker has spoken since: leases are that one's.
    outdated: bool = False


# ── assigning ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Assignable(_Value, frozen=True, kw_only=True):
    """A worker that tasks can be pushed to: its present boot, and how many slots it says are free."""

    worker: WorkerRef
    boot: str
    facts: WorkerFacts
    free: int
    slots: int


class Assign(_Value, frozen=True, kw_only=True):
    """Give ready tasks to workers that didn't ask, the least loaded first. Answer: ``tuple[Assigned, ...]``."""

    workers: tuple[Assignable, ...]


class Assigned(_Value, frozen=True, kw_only=True):
    """What a worker got."""

    worker: WorkerRef
    granted: tuple[Granted, ...]


# ── by the requester, the operator and the clock ──────────────────────────────────────────────────────────────────


class KeepAcceptance(_Value, frozen=True, kw_only=True):
    """Keep the root's signature of a receipt, once it was made. Answer: None."""

    task: TaskId
    generation: int
    #: Of the completion that it accepts: another one's isn't kept.
    signature: str
    #: JSON.
    acceptance: str


class SignedReceipt(_Value, frozen=True, kw_only=True):
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


class Cancel(_Value, frozen=True, kw_only=True):
    """Call tasks off: those named, or all of a job. ``owner`` None is the operator. Answer: ``tuple[Ended, ...]``.

    A task that isn't there or isn't the owner's is ``not_found``; one that has ended is ``wrong_status``.
    """

    owner: str | None
    who: str
    tasks: tuple[TaskId, ...] = ()
    job: JobId | None = None
    #: A job is done in batches, in order: go on after this task.
    after: TaskId | None = None


class Replay(_Value, frozen=True, kw_only=True):
    """Give dead letters a new life: those named, or all failed ones of a job. Answer: ``tuple[Ended, ...]``."""

    owner: str | None
    who: str
    tasks: tuple[TaskId, ...] = ()
    job: JobId | None = None
    #: A job is done in batches, in order: go on after this task.
    after: TaskId | None = None


class Sweep(_Value, frozen=True, kw_only=True):
    """What the clock does: wake waiting tasks, reap leases, expire tasks. Answer: ``float``, seconds to the next."""


class Rearm(_Value, frozen=True, kw_only=True):
    """After a stall of the root or the database: every lease runs for another while. Answer: int, how many.

    Without it a sweep would reap leases whose holders could not renew them through no fault of their own.
    """


class HearOf(_Value, frozen=True, kw_only=True):
    """Know of workers that took a turn at another root: whether a task has another to go to. Answer: None.

    Each is who it is, what it is, and when it spoke (ledger seconds).
    """

    workers: tuple[tuple[WorkerRef, WorkerFacts, float], ...]


class Probe(_Value, frozen=True, kw_only=True):
    """Write a number that nobody reads: whether the ledger can write at all. Answer: None."""


class Forget(_Value, frozen=True, kw_only=True):
    """Delete finished tasks that have been archived, with their history. Answer: int, how many were deleted.

    Only tasks that ended before ``ended_before`` (ledger seconds) go; the others of the list stay.
    """

    tasks: tuple[TaskId, ...]
    ended_before: float


class HoldHost(_Value, frozen=True, kw_only=True):
    """Grant nothing of this host for a while (its robots.txt can't be read). Answer: None."""

    host: str
    for_s: float
    why: str


class SetHostPace(_Value, frozen=True, kw_only=True):
    """Change a host's pace: its crawl-delay says so, or the operator. Answer: None."""

    host: str
    rate_per_s: float
    burst: float
    #: It asks for a delay between requests: one unfinished grant at a time, the next ``1 / rate_per_s`` after it.
    one_at_a_time: bool = False


class SeeWorkers(_Value, frozen=True, kw_only=True):
    """What the door has heard of workers since it last said so; written for restarts. Answer: None."""

    seen: tuple[SeenWorker, ...]


class SeenWorker(_Value, frozen=True, kw_only=True):
    """A worker as the door knows it. ``hello`` and ``stats`` are JSON."""

    worker: WorkerRef
    payout: Address
    peer_id: str | None
    boot: str
    hello: str
    stats: str
    at: float


class RemoveWorker(_Value, frozen=True, kw_only=True):
    """Take a worker off the list; its leases go back uncounted. Answer: int, how many leases it held."""

    worker: WorkerRef
    who: str
    why: str = ""


# ── the operator's acts ───────────────────────────────────────────────────────────────────────────────────────────
#
# ``who`` is the operator's name, ``why`` a sentence for people. Tasks that an act moves have both in their history; the
# act itself is in ``LedgerReader.acts``.


class Pause(_Value, frozen=True, kw_only=True):
    """Grant nothing any more: of the swarm, of a host, or of a job. What is held goes on. Answer: None or ``Refusal``.

    A job that isn't there is ``not_found``. Pausing again replaces who and why. ``LedgerReader.pauses`` lists them.
    """

    scope: Scope
    #: The host, or the job's id; empty for the swarm.
    name: str = ""
    who: str
    why: str


class Resume(_Value, frozen=True, kw_only=True):
    """End a pause. Answer: None or ``Refusal`` (``not_found`` where there is no such pause).

    A job's tasks come back into line a batch a sweep.
    """

    scope: Scope
    name: str = ""
    who: str
    why: str = ""


class Quarantine(_Value, frozen=True, kw_only=True):
    """Grant a worker nothing of a host for a while; what it holds of it goes back uncounted, and not to it.

    Answer: ``tuple[TaskId, ...]``, what went back. Again replaces until when, who and why.
    ``LedgerReader.quarantines`` lists them.
    """

    worker: WorkerRef
    host: str
    for_s: float
    who: str
    why: str


class LiftQuarantine(_Value, frozen=True, kw_only=True):
    """End a quarantine before its time. Answer: None or ``Refusal`` (``not_found`` where there is none)."""

    worker: WorkerRef
    host: str
    who: str
    why: str = ""


class ApproveVersion(_Value, frozen=True, kw_only=True):
    """Pin a version of the worker program or of a kind's executor; or, not ``approved``, take it off the pinned ones.

    While a name has pinned versions, only workers that run one of them are granted such tasks; with none, all are.
    Answer: ``tuple[str, ...]``, the pinned versions of that name. ``LedgerReader.approvals`` lists them.
    """

    #: ``worker``, or a kind.
    name: str
    version: str
    approved: bool = True
    who: str
    why: str = ""


class FailByHand(_Value, frozen=True, kw_only=True):
    """Count an attempt of tasks as failed, whoever has them. Answer: ``tuple[Ended, ...]``.

    Retryable reasons (by the ledger's retry rules) make it wait for the next attempt, if it has one; else it is a dead
    letter. A task that isn't there is ``not_found``; one that has ended is ``wrong_status``.
    """

    tasks: tuple[TaskId, ...]
    who: str
    reason: str = "by_hand"
    detail: str = ""
    #: Let it wait for the next attempt, if it has one, whatever the rules say of the reason.
    retry: bool = False


class TakeBack(_Value, frozen=True, kw_only=True):
    """Take leases away from whoever has them; the attempt isn't counted. Answer: ``tuple[Ended, ...]``.

    A task that isn't there is ``not_found``; one that nobody holds is ``wrong_status``.
    """

    tasks: tuple[TaskId, ...]
    who: str
    why: str = ""


class KeepApart(_Value, frozen=True, kw_only=True):
    """Have no two workers of one network hold tasks of a host at once; or, not ``apart``, let them. Answer: None."""

    host: str
    apart: bool = True
    who: str
    why: str = ""


class QuarantineView(_Value, frozen=True, kw_only=True):
    """One quarantine that holds now. ``who`` is None where the count did it; ``times`` counts those before it too."""

    worker: WorkerRef
    host: str
    #: Ledger time, seconds.
    until: float
    left_s: float
    who: str | None
    why: str
    times: int


class ProfileView(_Value, frozen=True, kw_only=True):
    """A profile that was used, and how far it is."""

    name: str
    worker: WorkerRef
    state: ProfileState
    #: Of its tasks.
    accepted: int
    #: How often a site turned it away.
    challenges: int


class VersionRate(_Value, frozen=True, kw_only=True):
    """How tasks of a kind came out that ran with a release of the worker program and a version of the executor."""

    kind: str
    worker: str
    version: str
    done: int
    failed: int

    @property
    def success_rate(self) -> float:
        """What share of the executions was done, 0 to 1."""
        return self.done / max(1, self.done + self.failed)


class QuarantineCounts(_Value, frozen=True, kw_only=True):
    """Quarantines that the count brought.

    Of the second order are those of workers that had taken over the work of another one in quarantine: near zero, or
    requeueing itself is what gets workers turned away.
    """

    counted: int
    second_order: int


class ApprovalView(_Value, frozen=True, kw_only=True):
    """One pinned version. ``at`` is ledger time, Unix seconds."""

    name: str
    version: str
    who: str
    at: float


class ActView(_Value, frozen=True, kw_only=True):
    """One act of an operator that concerns no single task. ``at`` is ledger time, Unix seconds."""

    n: int
    at: float
    who: str
    #: paused, resumed, kept_apart, let_together, egress_flagged, quarantined, quarantine_lifted, version_approved,
    #: version_withdrawn, failed, revoked, admitted, removed
    act: str
    #: ``swarm``, ``host HOST``, ``job ID``, ``ADDRESS:INSTANCE on HOST``, ``NAME VERSION``, tasks, whose keys they were
    subject: str
    why: str


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class PutKey(_Value, frozen=True, kw_only=True):
    """Store an API key by its hash; one name of one role has one key: a new one replaces it.

    Answer: bool, whether it replaced one.
    """

    digest: bytes
    role: Role
    #: Who tasks belong to and who is charged; a worker's address.
    owner: str
    instance: str | None = None
    payout: Address | None = None


class Revoke(_Value, frozen=True, kw_only=True):
    """Revoke all keys of an owner; what its workers hold goes back uncounted. Answer: ``Revoked``.

    A worker's address isn't enrolled again until it is admitted (``Admit``); a name gets a new key by ``PutKey``.
    """

    owner: str
    who: str
    why: str


class Revoked(_Value, frozen=True, kw_only=True):
    """How many keys were revoked, which workers are the owner's, and how many tasks of theirs went back."""

    keys: int
    workers: tuple[WorkerRef, ...] = ()
    requeued: int = 0


class Admit(_Value, frozen=True, kw_only=True):
    """Let a revoked address enrol again. Answer: bool, whether it was revoked."""

    owner: str
    who: str
    why: str


class SetAllowance(_Value, frozen=True, kw_only=True):
    """Set what a requester may spend, or change it by so much. Answer: ``AllowanceView`` or ``Refusal``."""

    owner: str
    amount_wei: Wei
    relative: bool = False


class AllowanceView(_Value, frozen=True, kw_only=True):
    """What a requester may spend in all, and what is spent or promised of it."""

    owner: str
    granted_wei: Wei
    spent_wei: Wei

    @property
    def left_wei(self) -> Wei:
        """What may still be spent."""
        return max(0, self.granted_wei - self.spent_wei)


class PutInvite(_Value, frozen=True, kw_only=True):
    """Store an invite by its hash. Answer: None."""

    digest: bytes
    uses: int
    expires_in_s: float


class Enrol(_Value, frozen=True, kw_only=True):
    """Bind a worker and give it a key. Answer: None or ``Refusal`` (``challenge_used``, ``invite_invalid``)."""

    challenge: str
    worker: WorkerRef
    payout: Address
    peer_id: str
    key_digest: bytes
    #: Hash of the invite; None where admission doesn't ask for one.
    invite_digest: bytes | None


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


class LedgerEvent(_Value, frozen=True, kw_only=True):
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
