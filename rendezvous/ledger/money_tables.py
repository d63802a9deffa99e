"""The tables of money: what is to become true on the chain, what is owed by vouchers, who may spend how much."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from rendezvous.ledger.schema import Number, metadata, partial

__all__ = [
    "allowances",
    "attempts",
    "budgets",
    "channels",
    "charges",
    "intents",
    "receipts",
    "senders",
    "transactions",
    "vouchers",
]

# ── money (``money_ops`` says what each is); rows of these are never deleted ──────────────────────────────────────

intents = Table(
    "intents",
    metadata,
    Column("n", Number, primary_key=True),
    Column("slot", String, nullable=False),
    Column("key", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("sender", String, nullable=False),
    Column("task", String),
    Column("generation", Integer),
    Column("amount_wei", String, nullable=False),
    Column("payee", String),
    Column("output", String),
    Column("state", String, nullable=False),
    Column("nonce", Number),
    Column("tries", Integer, nullable=False),
    Column("delays", Integer, nullable=False),
    Column("not_before", Double),
    Column("note", Text),
    Column("created_at", Double, nullable=False),
    Column("done_at", Double),
    Index("intents_by_key", "slot", "key", unique=True),
)
partial("intents_queued", intents.c.sender, intents.c.n, where="state = 'queued'")
partial("intents_parked", intents.c.sender, where="state = 'parked'")
partial("intents_of_transaction", intents.c.sender, intents.c.nonce, where="nonce IS NOT NULL")

transactions = Table(
    "transactions",
    metadata,
    Column("sender", String, primary_key=True),
    Column("nonce", Number, primary_key=True, autoincrement=False),
    Column("epoch", Number, nullable=False),
    Column("state", String, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("value_wei", String, nullable=False),
    Column("draw_wei", String, nullable=False),
    Column("gas", Number, nullable=False),
    Column("signed_at", Double, nullable=False),
    Column("signed_block", Number, nullable=False),
    Column("sent_at", Double),
    Column("mined_number", Number),
    Column("mined_hash", String),
    Column("mined_tx", String),
    Column("final_at", Double),
)
partial(
    "transactions_watched",
    transactions.c.sender,
    transactions.c.nonce,
    where="state IN ('signed', 'sent', 'mined', 'foreign', 'final')",
)

attempts = Table(
    "attempts",
    metadata,
    Column("sender", String, primary_key=True),
    Column("nonce", Number, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("hash", String, nullable=False, unique=True),
    Column("raw", LargeBinary, nullable=False),
    Column("max_fee_wei", String, nullable=False),
    Column("tip_wei", String, nullable=False),
    Column("at", Double, nullable=False),
)

senders = Table(
    "senders",
    metadata,
    Column("address", String, primary_key=True),
    Column("chain_id", Number, nullable=False),
    Column("contract", String, nullable=False),
    Column("epoch", Number, nullable=False),
    Column("holder", String),
    Column("held_until", Double, nullable=False),
    Column("next_nonce", Number, nullable=False),
    Column("anchor_number", Number, nullable=False),
    Column("anchor_hash", String, nullable=False),
    Column("since_number", Number, nullable=False),
    Column("since_balance_wei", String, nullable=False),
    Column("stopped", Text),
    Column("stopped_at", Double),
)

# ── path B (``channels``): what a payee earned, and what is locked for it; rows of these are never deleted ─────────

channels = Table(
    "channels",
    metadata,
    Column("payer", String, primary_key=True),
    Column("payee", String, primary_key=True),
    #: How many tasks were accepted on it, what they come to, and the hash chain over them.
    Column("accepted", Number, nullable=False),
    Column("owed_wei", String, nullable=False),
    Column("tasks_root", LargeBinary, nullable=False),
    #: What it should hold in all, and how often it was asked for funds.
    Column("target_wei", String, nullable=False),
    Column("fundings", Number, nullable=False),
    #: As the chain had it at a final block; what was paid from it never falls.
    Column("locked_wei", String, nullable=False),
    Column("settled_wei", String, nullable=False),
    Column("exit_at", Number),
    #: The last of its vouchers that the chain's money covers, and the last that was paid.
    Column("covered", Number, nullable=False),
    Column("paid", Number, nullable=False),
    Column("seen_number", Number),
    sqlite_with_rowid=False,
)

#: The accepted tasks of a channel, in order: what a voucher over the first n of them says.
vouchers = Table(
    "vouchers",
    metadata,
    Column("task", String, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("payer", String, nullable=False),
    Column("payee", String, nullable=False),
    Column("n", Number, nullable=False),
    Column("result", String, nullable=False),
    Column("reward_wei", String, nullable=False),
    #: Padded with zeros, so that texts compare as numbers do.
    Column("cumulative_wei", String, nullable=False),
    Column("tasks_root", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
    Index("vouchers_of_channel", "payer", "payee", "n", unique=True),
    Index("vouchers_by_amount", "payer", "payee", "cumulative_wei", unique=True),
    sqlite_with_rowid=False,
)

# ── who may spend how much, and what was signed for (``allowances``, ``receipts``) ────────────────────────────────

#: What the operator lets a requester spend, and what is spent or promised of it.
allowances = Table(
    "allowances",
    metadata,
    Column("owner", String, primary_key=True),
    Column("granted_wei", String, nullable=False),
    Column("spent_wei", String, nullable=False),
    sqlite_with_rowid=False,
)

#: Of each job that pays: whose allowance it is charged to (NULL: nobody's, it is an operator's), and its cap.
budgets = Table(
    "budgets",
    metadata,
    Column("job", Number, primary_key=True, autoincrement=False),
    Column("owner", String),
    Column("budget_wei", String),
    Column("spent_wei", String, nullable=False),
)

#: What was charged for each funding of a task, and when it was given back; rows of it are never deleted.
charges = Table(
    "charges",
    metadata,
    Column("task", String, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("job", Number, nullable=False),
    Column("amount_wei", String, nullable=False),
    Column("at", Double, nullable=False),
    Column("returned_at", Double),
    sqlite_with_rowid=False,
)

#: What workers signed at completion; ``acceptance`` is the root's signature (JSON), once it was asked for.
receipts = Table(
    "receipts",
    metadata,
    Column("task", String, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("fence", Number, nullable=False),
    Column("worker", String, nullable=False),
    Column("payout", String, nullable=False),
    Column("result", String, nullable=False),
    Column("reward_wei", String, nullable=False),
    Column("signature", String, nullable=False),
    Column("accepted_at", Double, nullable=False),
    Column("acceptance", Text),
    sqlite_with_rowid=False,
)
