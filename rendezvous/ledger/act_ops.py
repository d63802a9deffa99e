"""What operators ask of the ledger, and whom they let in: values only, as in ``ops.py``."""

from __future__ import annotations

from rendezvous.ledger.values import Value, WorkerRef
from rendezvous.policy.contexts import ProfileState
from rendezvous.policy.pauses import Scope
from swarm.model import Address, Role, TaskId, Wei

# ── the operator's acts ───────────────────────────────────────────────────────────────────────────────────────────
#
# ``who`` is the operator's name, ``why`` a sentence for people. Tasks that an act moves have both in their history; the
# act itself is in ``LedgerReader.acts``.


class Pause(Value, frozen=True, kw_only=True):
    """Grant nothing any more: of the swarm, of a host, or of a job. What is held goes on. Answer: None or ``Refusal``.

    A job that isn't there is ``not_found``. Pausing again replaces who and why. ``LedgerReader.pauses`` lists them.
    """

    scope: Scope
    #: The host, or the job's id; empty for the swarm.
    name: str = ""
    who: str
    why: str


class Resume(Value, frozen=True, kw_only=True):
    """End a pause. Answer: None or ``Refusal`` (``not_found`` where there is no such pause).

    A job's tasks come back into line a batch a sweep.
    """

    scope: Scope
    name: str = ""
    who: str
    why: str = ""


class Quarantine(Value, frozen=True, kw_only=True):
    """Grant a worker nothing of a host for a while; what it holds of it goes back uncounted, and not to it.

    Answer: ``tuple[TaskId, ...]``, what went back. Again replaces until when, who and why.
    ``LedgerReader.quarantines`` lists them.
    """

    worker: WorkerRef
    host: str
    for_s: float
    who: str
    why: str


class LiftQuarantine(Value, frozen=True, kw_only=True):
    """End a quarantine before its time. Answer: None or ``Refusal`` (``not_found`` where there is none)."""

    worker: WorkerRef
    host: str
    who: str
    why: str = ""


class ApproveVersion(Value, frozen=True, kw_only=True):
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


class FailByHand(Value, frozen=True, kw_only=True):
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


class TakeBack(Value, frozen=True, kw_only=True):
    """Take leases away from whoever has them; the attempt isn't counted. Answer: ``tuple[Ended, ...]``.

    A task that isn't there is ``not_found``; one that nobody holds is ``wrong_status``.
    """

    tasks: tuple[TaskId, ...]
    who: str
    why: str = ""


class KeepApart(Value, frozen=True, kw_only=True):
    """Have no two workers of one network hold tasks of a host at once; or, not ``apart``, let them. Answer: None."""

    host: str
    apart: bool = True
    who: str
    why: str = ""


class QuarantineView(Value, frozen=True, kw_only=True):
    """One quarantine that holds now. ``who`` is None where the count did it; ``times`` counts those before it too."""

    worker: WorkerRef
    host: str
    #: Ledger time, seconds.
    until: float
    left_s: float
    who: str | None
    why: str
    times: int


class ProfileView(Value, frozen=True, kw_only=True):
    """A profile that was used, and how far it is."""

    name: str
    worker: WorkerRef
    state: ProfileState
    #: Of its tasks.
    accepted: int
    #: How often a site turned it away.
    challenges: int


class VersionRate(Value, frozen=True, kw_only=True):
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


class QuarantineCounts(Value, frozen=True, kw_only=True):
    """Quarantines that the count brought.

    Of the second order are those of workers that had taken over the work of another one in quarantine: near zero, or
    requeueing itself is what gets workers turned away.
    """

    counted: int
    second_order: int


class ApprovalView(Value, frozen=True, kw_only=True):
    """One pinned version. ``at`` is ledger time, Unix seconds."""

    name: str
    version: str
    who: str
    at: float


class ActView(Value, frozen=True, kw_only=True):
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


class PutKey(Value, frozen=True, kw_only=True):
    """Store an API key by its hash; one name of one role has one key: a new one replaces it.

    Answer: bool, whether it replaced one.
    """

    digest: bytes
    role: Role
    #: Who tasks belong to and who is charged; a worker's address.
    owner: str
    instance: str | None = None
    payout: Address | None = None


class Revoke(Value, frozen=True, kw_only=True):
    """Revoke all keys of an owner; what its workers hold goes back uncounted. Answer: ``Revoked``.

    A worker's address isn't enrolled again until it is admitted (``Admit``); a name gets a new key by ``PutKey``.
    """

    owner: str
    who: str
    why: str


class Revoked(Value, frozen=True, kw_only=True):
    """How many keys were revoked, which workers are the owner's, and how many tasks of theirs went back."""

    keys: int
    workers: tuple[WorkerRef, ...] = ()
    requeued: int = 0


class Admit(Value, frozen=True, kw_only=True):
    """Let a revoked address enrol again. Answer: bool, whether it was revoked."""

    owner: str
    who: str
    why: str


class SetAllowance(Value, frozen=True, kw_only=True):
    """Set what a requester may spend, or change it by so much. Answer: ``AllowanceView`` or ``Refusal``."""

    owner: str
    amount_wei: Wei
    relative: bool = False


class AllowanceView(Value, frozen=True, kw_only=True):
    """What a requester may spend in all, and what is spent or promised of it."""

    owner: str
    granted_wei: Wei
    spent_wei: Wei

    @property
    def left_wei(self) -> Wei:
        """What may still be spent."""
        return max(0, self.granted_wei - self.spent_wei)


class PutInvite(Value, frozen=True, kw_only=True):
    """Store an invite by its hash. Answer: None."""

    digest: bytes
    uses: int
    expires_in_s: float


class Enrol(Value, frozen=True, kw_only=True):
    """Bind a worker and give it a key. Answer: None or ``Refusal`` (``challenge_used``, ``invite_invalid``)."""

    challenge: str
    worker: WorkerRef
    payout: Address
    peer_id: str
    key_digest: bytes
    #: Hash of the invite; None where admission doesn't ask for one.
    invite_digest: bytes | None
