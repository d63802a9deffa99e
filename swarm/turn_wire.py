"""The turn between a worker and the door, and what the door says first: the frames of the session, and ``/v1/turns``.

The words that these are made of, and how they are decoded, are in ``wire.py``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from swarm.wire import (
    MAX_INLINE_MANIFEST_BYTES,
    MAX_INT,
    MAX_SLOTS,
    MAX_VOUCHER_TASKS,
    AddressText,
    Answer,
    CidText,
    Count,
    ErrorBody,
    Fence,
    Hello,
    ReasonText,
    Request,
    Seconds,
    Sentence,
    SignatureText,
    TaskBody,
    TaskIdText,
    WeiText,
)


class CompletionProof(Request, frozen=True):
    """The worker's signature (EIP-712) of a completion: of ``swarm.receipts.completion_digest``."""

    #: As the grant said it: which funding of the task it is.
    generation: Annotated[int, Meta(ge=1, le=MAX_INT)]
    signature: SignatureText


class Done(Request, frozen=True):
    """A result that this worker reports. ``manifest`` carries it inline (base64) where it is at most 4 KiB."""

    task: TaskIdText
    fence: Fence
    cid: CidText
    manifest: Annotated[bytes, Meta(max_length=MAX_INLINE_MANIFEST_BYTES)] | None = None
    ran_s: Seconds = 0.0
    #: For the receipt; sent where the grant named a generation, so that older roots aren't sent what they don't know.
    proof: CompletionProof | None = None


class Failed(Request, frozen=True):
    """A failure that this worker reports. ``retryable`` is asked only for an executor's own reasons."""

    task: TaskIdText
    fence: Fence
    reason: ReasonText
    detail: Sentence = ""
    retryable: bool | None = None
    retry_after_s: Seconds | None = None
    ran_s: Seconds = 0.0


class Released(Request, frozen=True):
    """A lease given back; the attempt isn't counted."""

    task: TaskIdText
    fence: Fence


class Held(Request, frozen=True):
    """A lease that this worker holds; ``renew`` asks for more time."""

    task: TaskIdText
    fence: Fence
    renew: bool = False


class Stats(Request, frozen=True):
    """What a node counted since its boot."""

    uptime_s: Seconds = 0.0
    requests_sent: Count = 0
    requests_failed: Count = 0
    items: Count = 0
    bytes_downloaded: Count = 0
    tasks_done: Count = 0
    tasks_failed: Count = 0
    peers: Count = 0
    blocks_bytes: Count = 0


class VoucherTask(Answer, frozen=True, kw_only=True):
    """A task that a voucher pays for."""

    task: TaskIdText
    generation: Annotated[int, Meta(ge=1, le=MAX_INT)]
    result: CidText
    reward_wei: WeiText


class SignedVoucher(Answer, frozen=True, kw_only=True):
    """All that a payer ever owed to a payee, signed: anyone may have it paid out by the contract."""

    chain_id: Annotated[int, Meta(ge=1, le=MAX_INT)]
    contract: AddressText
    payer: AddressText
    payee: AddressText
    cumulative_wei: WeiText
    #: The hash chain over the tasks paid for, 32 bytes.
    tasks_root: Annotated[str, Meta(pattern=r"^0x[0-9a-f]{64}$(?!\n)")]
    #: r and vs (EIP-2098), 64 bytes.
    signature: Annotated[str, Meta(pattern=r"^0x[0-9a-f]{128}$(?!\n)")]
    #: The amount of the voucher that ``tasks`` follow: that of the worker's last one, or 0.
    since_wei: WeiText = "0"
    tasks: Annotated[tuple[VoucherTask, ...], Meta(max_length=MAX_VOUCHER_TASKS)] = ()


class Turn(Request, frozen=True):
    """The one thing a worker says (DESIGN §4)."""

    boot: Annotated[str, Meta(min_length=8, max_length=64)]
    n: Annotated[int, Meta(ge=1, le=MAX_INT)]
    #: No turn is granted more than this.
    free: Annotated[int, Meta(ge=0, le=MAX_SLOTS)]
    #: How many others it would take, should its offers be gone or too few.
    want: Annotated[int, Meta(ge=0, le=MAX_SLOTS)] = 0
    offers: Annotated[tuple[TaskIdText, ...], Meta(max_length=MAX_SLOTS)] = ()
    held: Annotated[tuple[Held, ...], Meta(max_length=2 * MAX_SLOTS)] = ()
    done: Annotated[tuple[Done, ...], Meta(max_length=2 * MAX_SLOTS)] = ()
    failed: Annotated[tuple[Failed, ...], Meta(max_length=2 * MAX_SLOTS)] = ()
    released: Annotated[tuple[Released, ...], Meta(max_length=2 * MAX_SLOTS)] = ()
    #: True while gossip reaches this worker; where it doesn't the door sends nudges instead.
    gossip: bool = False
    hello: Hello | None = None
    stats: Stats | None = None
    #: Of each payer's vouchers the last one that this worker has, by its amount.
    vouchers_seen: Annotated[dict[AddressText, WeiText], Meta(max_length=64)] = field(default_factory=dict)
    #: That voucher, said with ``hello``: a root whose ledger was restored from an older copy learns what it signed.
    voucher: SignedVoucher | None = None


class Outcome(Answer, frozen=True):
    """What became of one entry of ``done``, ``failed`` or ``released``: the task's status, or the refusal."""

    task: str
    fence: int
    status: str | None = None
    error: ErrorBody | None = None


class Grant(Answer, frozen=True):
    """A task, and the lease on it. ``lease_s`` runs from when the worker *sent* the turn that this answers."""

    task: TaskBody
    fence: Fence
    lease_s: Seconds
    via: str
    #: The rules of robots.txt for our agent, where the root has them at hand; else the worker asks the door.
    robots: str | None = None


class Renewed(Answer, frozen=True):
    """A lease that runs for ``lease_s`` from when the worker sent the asking turn."""

    task: str
    fence: Fence
    lease_s: Seconds


class TurnAnswer(Answer, frozen=True, tag="turn", tag_field="frame"):
    """The door's answer to a turn."""

    n: Count
    outcomes: tuple[Outcome, ...] = ()
    grants: tuple[Grant, ...] = ()
    renewed: tuple[Renewed, ...] = ()
    #: Fences of leases that aren't this worker's any more: stop, discard.
    lost: tuple[Fence, ...] = ()
    #: Tasks that were called off while this worker held them.
    cancelled: tuple[str, ...] = ()
    paused: str | None = None
    retry_after_s: Seconds | None = None
    live_workers: Count = 0
    spread_s: Seconds = 0.0
    roots: tuple[str, ...] = ()
    #: What is owed to this worker since the voucher that it said it has.
    vouchers: tuple[SignedVoucher, ...] = ()
    #: The door has heard another boot of this worker since, and grants to that one: whoever lives begins a new boot.
    outdated: bool = False


class TurnRefused(Answer, frozen=True, tag="refused", tag_field="frame"):
    """The door's "no" to a whole turn, over a session (over HTTP it is the error envelope)."""

    n: Count
    error: ErrorBody


class Nudge(Answer, frozen=True, tag="nudge", tag_field="frame"):
    """There is work: take a turn."""


class CancelPush(Answer, frozen=True, tag="cancel", tag_field="frame"):
    """These tasks were called off."""

    tasks: tuple[str, ...]


class PausePush(Answer, frozen=True, tag="pause", tag_field="frame"):
    """The swarm was paused (a reason) or resumed (None)."""

    reason: str | None = None


class GrantPush(Answer, frozen=True, tag="grants", tag_field="frame"):
    """Tasks that the door assigned without being asked.

    The leases run from ``after_s`` after the worker first sent turn ``n`` of ``boot``: by its own clock, and never
    longer than the door's.
    """

    boot: str
    n: Count
    after_s: Seconds
    grants: tuple[Grant, ...]


Frame = TurnAnswer | TurnRefused | Nudge | CancelPush | PausePush | GrantPush
