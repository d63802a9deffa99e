"""What the pay desk asks of the ledger, and what it reads there: values only.

An *intent* is one thing that is to become true on the chain (a task is funded, its reward is paid). A *transaction*
carries a frozen batch of intents under one nonce; an *attempt* is one signed form of it: all attempts of a transaction
have its nonce, so at most one of them is ever mined. The states are those of the outbox, `escrow.md` §8; those that are
only seen and at once acted upon (dropped, stuck, replaced) are no rows.

Wei are Python integers here; the database keeps them as decimal text, since no SQL integer holds them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from swarm.model import Address, Cid, TaskId, Wei

__all__ = [
    "AddIntent",
    "AdoptVoucher",
    "Attempt",
    "Book",
    "Buried",
    "ChannelSeen",
    "ClaimSender",
    "Deferred",
    "Entry",
    "Filled",
    "Finalized",
    "Foreign",
    "Intent",
    "IntentKind",
    "IntentState",
    "Item",
    "ItemOutcome",
    "Mined",
    "MoneyOp",
    "Record",
    "Reorged",
    "Replaced",
    "ResumeSender",
    "RetryParked",
    "SeeChannels",
    "Sender",
    "SenderHeld",
    "Sent",
    "Signed",
    "Stopped",
    "Transaction",
    "TxState",
    "Verdict",
]


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """A value of the ledger's own (see ``ops``)."""


class IntentKind(StrEnum):
    """What is to become true."""

    #: The task is funded.
    CREATE = "create"
    #: Its reward is paid to the assignee.
    COMPLETE = "complete"
    #: Its reward is back in the requester's balance.
    FAIL = "fail"
    #: The requester's balance in the contract is at least ``amount_wei``.
    DEPOSIT = "deposit"
    #: ``amount_wei`` of the requester's balance went to ``payee``.
    WITHDRAW = "withdraw"
    #: What is locked on the channel of ``payee``, and was ever paid from it, is at least ``amount_wei``.
    FUND = "fund"
    #: What is locked on the channel of ``payee`` may be taken back after the contract's delay.
    EXIT = "exit"
    #: It was taken back into the requester's balance.
    CLOSE = "close"

    @property
    def slot(self) -> str:
        """Of one slot and key there is one intent: a task's generation is settled once, by paying or by refunding."""
        return "settle" if self in (IntentKind.COMPLETE, IntentKind.FAIL) else self.value


class IntentState(StrEnum):
    """Where an intent is."""

    #: It waits to be signed (a settling one also for its funding to be final).
    QUEUED = "queued"
    #: It is in the transaction of its nonce.
    SIGNED = "signed"
    #: It is true on a final block.
    DONE = "done"
    #: It was named as impossible too often; the operator was alerted.
    PARKED = "parked"
    #: It was called off before it was ever signed.
    VOID = "void"


class TxState(StrEnum):
    """Where a transaction is."""

    #: Its nonce is taken and its bytes are stored; it may not have been sent yet.
    SIGNED = "signed"
    #: A node took it, or may have.
    SENT = "sent"
    #: It is in a block that isn't final yet.
    MINED = "mined"
    #: It succeeded, deep enough; its block is still watched.
    FINAL = "final"
    #: As final, and so deep that nobody looks again.
    BURIED = "buried"
    #: It failed, deep enough; its intents went elsewhere.
    REVERTED = "reverted"
    #: Its nonce was used by a transaction that isn't ours.
    FOREIGN = "foreign"
    #: As foreign, and finally so; its intents went elsewhere.
    ABANDONED = "abandoned"


# ── what is read ──────────────────────────────────────────────────────────────────────────────────────────────────


class Intent(_Value, frozen=True, kw_only=True):
    """One row of ``intents``."""

    n: int
    kind: IntentKind
    key: str
    sender: Address
    amount_wei: Wei
    state: IntentState
    created_at: float
    task: TaskId | None = None
    generation: int | None = None
    #: Who is paid: the assignee's payout address, or where a withdrawal goes.
    payee: Address | None = None
    #: The CID of the result.
    output: Cid | None = None
    nonce: int | None = None
    #: How often it was named as what makes its batch fail.
    tries: int = 0
    #: How often its batch failed without anyone being named; each halves the next batch that it is in.
    delays: int = 0
    #: Not to be signed before (ledger seconds).
    not_before: float | None = None
    note: str | None = None


class Attempt(_Value, frozen=True, kw_only=True):
    """One signed form of a transaction."""

    number: int
    hash: str
    raw: bytes
    max_fee_wei: Wei
    tip_wei: Wei


class Transaction(_Value, frozen=True, kw_only=True):
    """One row of ``transactions`` with its attempts, first to last, and its intents."""

    nonce: int
    state: TxState
    data: bytes
    value_wei: Wei
    #: What it takes from the requester's balance in the contract.
    draw_wei: Wei
    gas: int
    signed_at: float
    #: The chain's height when its last attempt was signed, and when one was sent last.
    signed_block: int
    sent_at: float | None = None
    mined_number: int | None = None
    mined_hash: str | None = None
    #: The hash of the attempt that was mined.
    mined_tx: str | None = None
    attempts: tuple[Attempt, ...] = ()
    intents: tuple[Intent, ...] = ()


class Sender(_Value, frozen=True, kw_only=True):
    """One row of ``senders``: a key, who may sign with it now, and the chain that it was first seen on.

    The anchor is a block that is final for good: at first where the chain was when this ledger first used the key, then
    that of each buried transaction. If it is another one now, or gone, this isn't the chain that the ledger speaks of.
    """

    address: Address
    chain_id: int
    contract: Address
    epoch: int
    next_nonce: int
    anchor_number: int
    anchor_hash: str
    #: The first anchor, and the requester's balance in the contract there: where the audit begins to count.
    since_number: int
    since_balance_wei: Wei
    #: Why it signs nothing until the operator says so.
    stopped: str | None = None


class Book(_Value, frozen=True, kw_only=True):
    """All that a sender has to do: transactions that are watched, by nonce, and intents that may be signed, by age."""

    sender: Sender
    transactions: tuple[Transaction, ...]
    queued: tuple[Intent, ...]
    parked: int = 0


# ── what is asked ─────────────────────────────────────────────────────────────────────────────────────────────────


class ClaimSender(_Value, frozen=True, kw_only=True):
    """Become the one that signs with a key. Answer: ``Sender`` with a new epoch, or ``SenderHeld``.

    The nonce, anchor and balance are taken at the first claim only. Another holder's claim is respected until its time
    has run out.
    """

    address: Address
    holder: str
    chain_id: int
    contract: Address
    nonce: int
    anchor_number: int
    anchor_hash: str
    balance_wei: Wei
    #: The caller knows that the other root is gone, or has lost its office: its time isn't waited for.
    takes_over: bool = False


class SenderHeld(_Value, frozen=True, kw_only=True):
    """Another process signs with this key (or took it over since)."""

    holder: str | None
    for_s: float


class Item(_Value, frozen=True, kw_only=True):
    """An intent as it is put into a batch: refused if it has become another kind meanwhile."""

    n: int
    kind: IntentKind


class Signed(_Value, frozen=True, kw_only=True):
    """Take the next nonce for a batch; to be durable before anything is sent."""

    nonce: int
    data: bytes
    value_wei: Wei
    draw_wei: Wei
    gas: int
    block: int
    attempt: Attempt
    items: tuple[Item, ...]


class Replaced(_Value, frozen=True, kw_only=True):
    """Another attempt of the same nonce, with higher fees."""

    nonce: int
    block: int
    attempt: Attempt


class Filled(_Value, frozen=True, kw_only=True):
    """Take a nonce that a reorganisation freed, with a transaction that does nothing: those behind it wait for it."""

    nonce: int
    gas: int
    block: int
    attempt: Attempt


class Sent(_Value, frozen=True, kw_only=True):
    """A node took an attempt, or may have."""

    nonce: int


class Mined(_Value, frozen=True, kw_only=True):
    """A receipt was found."""

    nonce: int
    hash: str
    number: int
    block_hash: str


class Reorged(_Value, frozen=True, kw_only=True):
    """The block that it was in is none any more; flags that rested on it are taken back."""

    nonce: int


class Verdict(StrEnum):
    """What becomes of an intent whose transaction brought nothing, or that can't be signed."""

    #: It is true already.
    DONE = "done"
    #: It goes into another batch.
    AGAIN = "again"
    #: It was named as impossible: it goes into another batch later, at the third time none.
    NAMED = "named"
    #: Its batch failed and nobody was named: later, in a smaller one.
    DELAYED = "delayed"


class ItemOutcome(_Value, frozen=True, kw_only=True):
    """The verdict on one intent."""

    n: int
    verdict: Verdict
    note: str | None = None
    retry_after_s: float = 0.0


class Finalized(_Value, frozen=True, kw_only=True):
    """It is deep enough: ``ok`` makes all its intents true, else ``outcomes`` has each."""

    nonce: int
    ok: bool
    outcomes: tuple[ItemOutcome, ...] = ()


class Deferred(_Value, frozen=True, kw_only=True):
    """Intents that can't be signed now: a dry run said so."""

    outcomes: tuple[ItemOutcome, ...]


class Foreign(_Value, frozen=True, kw_only=True):
    """Its nonce was used by another's transaction. The sender stops; finally so once ``outcomes`` are given."""

    nonce: int
    reason: str
    outcomes: tuple[ItemOutcome, ...] | None = None


class Stopped(_Value, frozen=True, kw_only=True):
    """Sign nothing any more until the operator says so."""

    reason: str


class Buried(_Value, frozen=True, kw_only=True):
    """A final transaction is so deep that it needn't be watched any more; its block is the next anchor."""

    nonce: int
    number: int
    block_hash: str


Entry = Signed | Replaced | Filled | Sent | Mined | Reorged | Finalized | Deferred | Foreign | Stopped | Buried


class Record(_Value, frozen=True, kw_only=True):
    """Write what the sender of this epoch does and sees. Answer: a bool for each entry, or ``SenderHeld``.

    False says that the entry found another state than it was made for, and wrote nothing. It also says that the sender
    is alive: its claim is prolonged.
    """

    address: Address
    epoch: int
    entries: tuple[Entry, ...] = ()


class ResumeSender(_Value, frozen=True, kw_only=True):
    """The operator says that a stopped sender may sign again, from this nonce on. Answer: bool, whether it was."""

    address: Address
    next_nonce: int


class RetryParked(_Value, frozen=True, kw_only=True):
    """The operator says that parked intents may be tried again. Answer: int, how many."""

    address: Address


class AddIntent(_Value, frozen=True, kw_only=True):
    """A deposit or a withdrawal. Answer: bool, False where this key was asked for already."""

    kind: IntentKind
    #: Chosen by who asks, so that asking twice does it once.
    key: str
    sender: Address
    #: A deposit's target: what the balance is to be at least; a withdrawal's amount.
    amount_wei: Wei
    payee: Address | None = None


class ChannelSeen(_Value, frozen=True, kw_only=True):
    """A channel as the chain has it."""

    payee: Address
    locked_wei: Wei
    settled_wei: Wei
    #: When its collateral may be taken back (Unix seconds); None while nobody asked for that.
    exit_at: int | None = None


class SeeChannels(_Value, frozen=True, kw_only=True):
    """What a final block says of channels. Answer: int, how many were news."""

    payer: Address
    number: int
    seen: tuple[ChannelSeen, ...]


class AdoptVoucher(_Value, frozen=True, kw_only=True):
    """A payee has a voucher above all that this ledger knows: it was restored from an older copy. Answer: bool.

    The door has checked our signature. What is owed is that much from now on; False where it was that much already.
    """

    payer: Address
    payee: Address
    cumulative_wei: Wei
    tasks_root: bytes


MoneyOp = ClaimSender | Record | ResumeSender | RetryParked | AddIntent | SeeChannels | AdoptVoucher
