"""What crosses a network boundary: requests, answers, turns, gossip. Frozen msgspec structs with their caps.

Requests forbid unknown fields; answers and gossip ignore them, so that versions N and N−1 can meet. What a peer sends
carries durations, never timestamps. This module knows no HTTP, no libp2p and no SQL.

Decode with ``decode``: it turns every msgspec fault into ``MalformedInput``, so that hostile bytes have one way out.
"""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from swarm.errors import MalformedInput
from swarm.model import Settle

#: Where a signature will stand.
UNSIGNED: Final = "0x" + "00" * 65
MAX_TASK_BYTES: Final = 64 * 1024
MAX_TASKS_PER_SUBMISSION: Final = 1_000
MAX_SUBMISSION_BYTES: Final = 4 * 1024 * 1024
MAX_META_BYTES: Final = 4 * 1024
MAX_INLINE_MANIFEST_BYTES: Final = 4 * 1024
MAX_MANIFEST_BYTES: Final = 1024 * 1024
MAX_TURN_BYTES: Final = 4 * 1024 * 1024
#: A gossip message above 64 KiB interleaves with others on a py-libp2p stream (facts/libp2p.md, trap 4).
MAX_GOSSIP_BYTES: Final = 60_000
MAX_OFFERS_PER_MESSAGE: Final = 100
MAX_CLOSED_PER_MESSAGE: Final = 1_000
MAX_SLOTS: Final = 256
#: Tasks that one voucher lists; who missed more gets several, one a turn.
MAX_VOUCHER_TASKS: Final = 256
#: Fences, sequence numbers and the like fit SQLite's and PostgreSQL's integers.
MAX_INT: Final = 2**63 - 1
#: The most frames that the interpreter may stack while a stranger's bytes are parsed. py_ecc, which the Ethereum
#: libraries bring, raises that limit to 100,000; nested input then overruns the C stack (8 MiB: from some 15,000 on),
#: and the process is gone.
MAX_RECURSION: Final = 4_000

TaskIdText = Annotated[str, Meta(min_length=36, max_length=36)]
CidText = Annotated[str, Meta(min_length=46, max_length=64)]
AddressText = Annotated[str, Meta(min_length=42, max_length=42)]
PeerIdText = Annotated[str, Meta(min_length=40, max_length=64)]
MultiaddrText = Annotated[str, Meta(min_length=1, max_length=256)]
# Python's ``$`` matches before a newline at the end, too, other languages' doesn't: (?!\n) makes all of them alike.
WeiText = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,77})$(?!\n)")]
#: An Ethereum signature: r, s, v.
SignatureText = Annotated[str, Meta(pattern=r"^0x[0-9a-f]{130}$(?!\n)")]
KindText = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_.-]{0,39}$(?!\n)")]
REASON_PATTERN: Final = r"^[a-z][a-z0-9_]{0,39}$(?!\n)"
ReasonText = Annotated[str, Meta(pattern=REASON_PATTERN)]
NameText = Annotated[str, Meta(min_length=1, max_length=64)]
Label = Annotated[str, Meta(min_length=1, max_length=64)]
Url = Annotated[str, Meta(min_length=1, max_length=4096)]
Sentence = Annotated[str, Meta(max_length=500)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Fence = Annotated[int, Meta(ge=1, le=MAX_INT)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
#: ``tier`` names a share of the capacity; the two that exist unless the operator says otherwise.
TierText = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,19}$(?!\n)")]
DEFAULT_TIER: Final = "bulk"


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client asks of the root: unknown fields are refused."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the root says: unknown fields are ignored."""


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Requires(Request, frozen=True):
    """What a worker must have to get the task; empty asks for nothing."""

    profile: NameText | None = None
    session: NameText | None = None
    region: NameText | None = None
    labels: Annotated[tuple[Label, ...], Meta(max_length=16)] = ()
    versions: Annotated[dict[Label, Label], Meta(max_length=16)] = {}


class Dedupe(Request, frozen=True):
    """The semantic key of a task's effect, and how long it is remembered."""

    key: Annotated[str, Meta(min_length=1, max_length=256)]
    ttl_s: Seconds


class NewTask(Request, frozen=True):
    """One task of a submission. Its URLs are of one host."""

    kind: KindText
    urls: Annotated[tuple[Url, ...], Meta(min_length=1, max_length=100)]
    spec: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    tier: TierText = DEFAULT_TIER
    requires: Requires = Requires()
    reward_wei: WeiText = "0"
    max_attempts: Annotated[int, Meta(ge=1, le=20)] = 3
    max_run_s: Annotated[float, Meta(gt=0, le=3600)] = 300.0
    not_before_s: Annotated[float, Meta(ge=0, le=2_592_000)] = 0.0
    expires_in_s: Annotated[float, Meta(gt=0, le=2_592_000)] = 604_800.0
    dedupe: Dedupe | None = None


class Submission(Request, frozen=True):
    """Up to 1,000 tasks of one job. ``job`` joins an existing job of the same owner; without it a new one begins."""

    tasks: Annotated[tuple[NewTask, ...], Meta(min_length=1, max_length=MAX_TASKS_PER_SUBMISSION)]
    job: TaskIdText | None = None
    name: NameText | None = None
    #: The most that the rewards of a new job's tasks may come to, in this and later submissions.
    budget_wei: WeiText | None = None
    #: How a new job's tasks are paid for, for good: each by itself (``task``, the default), or by vouchers on the
    #: workers' channels.
    settle: Settle | None = None


class SubmittedTask(Answer, frozen=True):
    """What became of one task of a submission: created, or a duplicate of ``id``."""

    id: str
    status: Literal["created", "duplicate"]


class Submitted(Answer, frozen=True):
    """The answer to a submission, in the order of its tasks."""

    job: str
    tasks: tuple[SubmittedTask, ...]
    warnings: tuple[str, ...] = ()


class TaskBody(Answer, frozen=True):
    """What a worker must know to run a task; comes with the grant."""

    id: str
    job: str
    kind: str
    urls: tuple[str, ...]
    spec: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    max_run_s: Seconds = 300.0
    attempt: Count = 1
    #: Which funding of the task this is: a completion is signed for it.
    generation: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None
    #: What it pays, where it is paid for by a voucher: who runs it holds the voucher to that.
    voucher_wei: WeiText | None = None


class TaskView(Answer, frozen=True):
    """A task as its owner and the operator see it. Times are Unix seconds of the ledger."""

    id: str
    job: str
    owner: str
    kind: str
    urls: tuple[str, ...]
    host: str
    status: str
    priority: int
    tier: str
    created_at: float
    spec: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    requires: Requires = Requires()
    reward_wei: str = "0"
    attempts: int = 0
    max_attempts: int = 3
    not_before: float | None = None
    expires_at: float | None = None
    assignee: str | None = None
    instance: str | None = None
    fence: int = 0
    via: str | None = None
    lease_s: float | None = None
    reason: str | None = None
    detail: str | None = None
    result: str | None = None
    result_bytes: int | None = None
    finished_at: float | None = None
    on_chain: float | None = None
    accepted: float | None = None
    paid: float | None = None
    refunded: float | None = None


class JobView(Answer, frozen=True):
    """How far a job is: tasks by status, and whether all have ended."""

    id: str
    owner: str
    created_at: float
    total: int
    counts: dict[str, int]
    done: bool
    name: str | None = None
    settle: Settle = Settle.TASK


class EthereumSettings(Answer, frozen=True):
    """The chain and contract of a paid swarm, and who pays from it."""

    network: str
    chain_id: int
    contract: str
    #: Whose key funds and pays: the requester in the contract, and who vouchers must be signed by.
    payer: str | None = None
    #: The JSON-RPC of a node that workers may look at the chain by.
    rpc: str | None = None


class AccountView(Answer, frozen=True):
    """What the caller may spend on rewards, and what the chain asks for now. An unpaid swarm has no ``ethereum``."""

    owner: str
    role: str
    ethereum: EthereumSettings | None = None
    #: The requester's allowance and what is spent or promised of it; an operator has no limit.
    allowance_wei: WeiText | None = None
    spent_wei: WeiText | None = None
    #: Of the newest block; None where the chain doesn't answer.
    base_fee_wei: WeiText | None = None


class ResultView(Answer, frozen=True):
    """One ended task of a job: the CID of its result, or why it has none."""

    task: str
    urls: tuple[str, ...]
    status: str
    result: str | None = None
    meta: dict[str, Any] = {}
    reason: str | None = None
    detail: str | None = None


class EventView(Answer, frozen=True):
    """One row of the history. ``id`` is the position in this root's stream."""

    id: int
    task: str
    seq: int
    to: str
    by: str
    at: float
    move: str
    source: str | None = None
    who: str | None = None
    fence: int | None = None
    reason: str | None = None
    detail: str | None = None
    job: str | None = None


class Page(Answer, frozen=True):
    """A keyset page; ``next`` is the cursor of the following one, None at the end."""

    items: tuple[Any, ...]
    next: str | None = None


# ── receipts ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Completion(Answer, frozen=True, kw_only=True):
    """What a worker signs with its Ethereum key: it has done this task, with this result, under this lease."""

    #: The swarm's ``network_id``.
    network: NameText
    task: TaskIdText
    generation: Annotated[int, Meta(ge=1, le=MAX_INT)]
    result: CidText
    fence: Fence
    worker: AddressText
    payout: AddressText
    signature: SignatureText = UNSIGNED


class PaidBy(Answer, frozen=True, kw_only=True):
    """Where the reward is paid from."""

    chain_id: Annotated[int, Meta(ge=1, le=MAX_INT)]
    contract: AddressText


class Acceptance(Answer, frozen=True, kw_only=True):
    """What a root signs: this completion counts, for this reward.

    In a paid swarm by the key that pays, whose address anyone can look up on the chain; else by the swarm's own key,
    which join links name.
    """

    reward_wei: WeiText
    #: Unix seconds.
    accepted_at: Count
    #: An Ethereum address, or a peer id.
    signer: Annotated[str, Meta(min_length=40, max_length=64)]
    #: Hexadecimal: 65 bytes by an Ethereum key, 64 by an Ed25519 key.
    signature: Annotated[str, Meta(pattern=r"^0x([0-9a-f]{130}|[0-9a-f]{128})$(?!\n)")] = UNSIGNED
    ethereum: PaidBy | None = None


class Receipt(Answer, frozen=True, kw_only=True):
    """That a task was done and accepted, signed by both sides: checked by anyone, without the swarm."""

    #: The form of it: 1.
    v: Annotated[int, Meta(ge=1, le=1_000)]
    completion: Completion
    acceptance: Acceptance


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────


class ErrorBody(Answer, frozen=True):
    """The door's "no": a stable code, a sentence, when to ask again, facts for programs."""

    code: str
    message: str
    retry_after_s: Seconds | None = None
    details: dict[str, Any] | None = None


# ── gossip ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Offer(Answer, frozen=True):
    """A task that can soon be taken. The task itself comes with the grant."""

    id: TaskIdText
    kind: KindText
    host: Annotated[str, Meta(max_length=260)]
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    tier: TierText = DEFAULT_TIER
    reward_wei: WeiText = "0"
    requires: Requires = Requires()


class Announcement(Answer, frozen=True):
    """One gossip message of a root. (epoch, seq) rises strictly, so an old message is never news."""

    v: Annotated[int, Meta(ge=1, le=1_000)]
    root: PeerIdText
    epoch: Count
    seq: Count
    offers: Annotated[tuple[Offer, ...], Meta(max_length=MAX_OFFERS_PER_MESSAGE)] = ()
    closed: Annotated[tuple[TaskIdText, ...], Meta(max_length=MAX_CLOSED_PER_MESSAGE)] = ()
    live_workers: Count = 0
    spread_s: Annotated[float, Meta(ge=0, le=600)] = 0.0


# ── settings, enrolment ───────────────────────────────────────────────────────────────────────────────────────────


class PeerSettings(Answer, frozen=True):
    """Where the root's peer is, as in the seed."""

    id: str
    addrs: tuple[str, ...]
    #: The IPFS address results are uploaded to, a multiaddr; None: the door's own guarded RPC.
    ipfs: str | None
    topic: str


class DhtSettings(Answer, frozen=True):
    """How often a worker looks for providers of the rendezvous tag, seconds."""

    interval_s: Annotated[float, Meta(gt=0, le=86_400)] = 10.0


class SwarmSettings(Answer, frozen=True):
    """What the swarm is, and its limits."""

    name: str
    network_id: str
    rendezvous_tag: str
    admission: Literal["invite", "allowlist", "open"]
    roots: tuple[str, ...]
    doors: tuple[str, ...]
    versions: dict[str, str] = {}
    limits: dict[str, int] = {}
    dht: DhtSettings = DhtSettings()
    #: The peer ids of the Kubos that keep the roots' blocks: workers serve them, and believe no gossip of theirs.
    stores: tuple[str, ...] = ()


class Settings(Answer, frozen=True):
    """``data`` of ``GET /settings``: all that a worker needs beside the one URL."""

    peer: PeerSettings | None
    ethereum: EthereumSettings | None
    swarm: SwarmSettings
    challenge: str


class Signature(Answer, frozen=True):
    """The swarm key's signature over the exact bytes of ``data``."""

    key: str
    value: bytes


class SignedSettings(Answer, frozen=True):
    """The envelope of ``GET /settings``. ``data`` stays raw: the signature is over its bytes."""

    data: msgspec.Raw
    signature: Signature


class Hello(Request, frozen=True):
    """What a worker is; said in the first turn of each boot (and at enrolment)."""

    version: Label
    kinds: Annotated[dict[KindText, Label], Meta(max_length=64)]
    slots: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] = 8
    labels: Annotated[tuple[Label, ...], Meta(max_length=32)] = ()
    region: NameText | None = None
    peer_id: PeerIdText | None = None
    addrs: Annotated[tuple[MultiaddrText, ...], Meta(max_length=16)] = ()


class Enrolment(Request, frozen=True):
    """A newcomer's request for a worker key; signed by both of its keys over the same EIP-712 digest."""

    challenge: Annotated[str, Meta(max_length=256)]
    address: AddressText
    payout: AddressText
    instance: Annotated[str, Meta(min_length=8, max_length=64)]
    peer_id: PeerIdText
    signature: SignatureText
    peer_signature: Annotated[bytes, Meta(max_length=128)]
    invite: Annotated[str, Meta(max_length=128)] | None = None
    hello: Hello | None = None


class Enrolled(Answer, frozen=True):
    """The worker's API key (shown once) and what it is bound to."""

    api_key: str
    address: str
    payout: str
    instance: str


class RobotsAnswer(Answer, frozen=True):
    """The rules of one origin's robots.txt for our agent; ``rules`` is a robots.txt of that group alone."""

    origin: str
    rules: str
    fresh_s: Seconds
    crawl_delay_s: Seconds | None = None


T = TypeVar("T")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
encode: Final = msgspec.json.Encoder().encode


def decode(data: bytes | str, shape: type[T], *, max_bytes: int | None = None) -> T:
    """Parse and check what came from outside.

    Args:
        data: JSON.
        shape: the struct (or union of frames) that it must be.
        max_bytes: refuse longer input before parsing it.

    Raises:
        MalformedInput: it is too long, isn't JSON, or breaks a constraint; the message names the field.
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise MalformedInput(f"{len(data)} bytes where at most {max_bytes} are taken")
    decoder = _decoders.get(shape)
    if decoder is None:
        decoder = _decoders.setdefault(shape, msgspec.json.Decoder(shape))
    if sys.getrecursionlimit() > MAX_RECURSION:
        sys.setrecursionlimit(MAX_RECURSION)
    try:
        return decoder.decode(data)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise MalformedInput(str(fault)) from fault


def check_storable(value: Any) -> str | None:
    """Find what no ledger can store: NUL, lone surrogates, integers over 63 bits (facts/ledger.md, pitfalls).

    Args:
        value: a decoded JSON value, or a struct.

    Returns:
        A sentence naming the first fault, or None where all is well.
    """
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if "\0" in item:
                return "text holds a NUL character"
            try:
                item.encode()
            except UnicodeEncodeError:
                return "text holds a lone surrogate"
        elif isinstance(item, bool) or item is None:
            continue
        elif isinstance(item, int):
            if not -MAX_INT - 1 <= item <= MAX_INT:
                return "an integer has more than 63 bits"
        elif isinstance(item, float):
            if not math.isfinite(item):
                return "a number isn't finite"
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, msgspec.Struct):
            pending.extend(getattr(item, field) for field in item.__struct_fields__)
    return None
