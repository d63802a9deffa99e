"""What is to become true on the chain, and the transactions that make it so."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "intents",
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("slot", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("sender", sa.String(), nullable=False),
        sa.Column("task", sa.String(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("amount_wei", sa.String(), nullable=False),
        sa.Column("payee", sa.String(), nullable=True),
        sa.Column("output", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("nonce", NUMBER, nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("delays", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_index("intents_by_key", "intents", ["slot", "key"], unique=True)
    _partial("intents_queued", "intents", ["sender", "n"], "state = 'queued'")
    _partial("intents_parked", "intents", ["sender"], "state = 'parked'")
    _partial("intents_of_transaction", "intents", ["sender", "nonce"], "nonce IS NOT NULL")
    op.create_table(
        "transactions",
        sa.Column("sender", sa.String(), nullable=False),
        sa.Column("nonce", NUMBER, autoincrement=False, nullable=False),
        sa.Column("epoch", NUMBER, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("value_wei", sa.String(), nullable=False),
        sa.Column("draw_wei", sa.String(), nullable=False),
        sa.Column("gas", NUMBER, nullable=False),
        sa.Column("signed_at", sa.Double(), nullable=False),
        sa.Column("signed_block", NUMBER, nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=True),
        sa.Column("mined_number", NUMBER, nullable=True),
        sa.Column("mined_hash", sa.String(), nullable=True),
        sa.Column("mined_tx", sa.String(), nullable=True),
        sa.Column("final_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("sender", "nonce"),
    )
    _partial(
        "transactions_watched",
        "transactions",
        ["sender", "nonce"],
        "state IN ('signed', 'sent', 'mined', 'foreign', 'final')",
    )
    op.create_table(
        "attempts",
        sa.Column("sender", sa.String(), nullable=False),
        sa.Column("nonce", NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("max_fee_wei", sa.String(), nullable=False),
        sa.Column("tip_wei", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sender", "nonce", "number"),
        sa.UniqueConstraint("hash"),
    )
    op.create_table(
        "senders",
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("chain_id", NUMBER, nullable=False),
        sa.Column("contract", sa.String(), nullable=False),
        sa.Column("epoch", NUMBER, nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("held_until", sa.Double(), nullable=False),
        sa.Column("next_nonce", NUMBER, nullable=False),
        sa.Column("anchor_number", NUMBER, nullable=False),
        sa.Column("anchor_hash", sa.String(), nullable=False),
        sa.Column("since_number", NUMBER, nullable=False),
        sa.Column("since_balance_wei", sa.String(), nullable=False),
        sa.Column("stopped", sa.Text(), nullable=True),
        sa.Column("stopped_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("address"),
    )


def _partial(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, unique=False, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
