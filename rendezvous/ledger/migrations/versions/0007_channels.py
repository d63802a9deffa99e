"""Path B: how a job is settled, what workers earned on their channels, and what the chain has of these."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("settle", sa.String(), nullable=True))
    op.create_table(
        "channels",
        sa.Column("payer", sa.String(), nullable=False),
        sa.Column("payee", sa.String(), nullable=False),
        sa.Column("accepted", NUMBER, nullable=False),
        sa.Column("owed_wei", sa.String(), nullable=False),
        sa.Column("tasks_root", sa.LargeBinary(), nullable=False),
        sa.Column("target_wei", sa.String(), nullable=False),
        sa.Column("fundings", NUMBER, nullable=False),
        sa.Column("locked_wei", sa.String(), nullable=False),
        sa.Column("settled_wei", sa.String(), nullable=False),
        sa.Column("exit_at", NUMBER, nullable=True),
        sa.Column("covered", NUMBER, nullable=False),
        sa.Column("paid", NUMBER, nullable=False),
        sa.Column("seen_number", NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("payer", "payee"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "vouchers",
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("payer", sa.String(), nullable=False),
        sa.Column("payee", sa.String(), nullable=False),
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("result", sa.String(), nullable=False),
        sa.Column("reward_wei", sa.String(), nullable=False),
        sa.Column("cumulative_wei", sa.String(), nullable=False),
        sa.Column("tasks_root", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("task", "generation"),
        sqlite_with_rowid=False,
    )
    op.create_index("vouchers_of_channel", "vouchers", ["payer", "payee", "n"], unique=True)
    op.create_index("vouchers_by_amount", "vouchers", ["payer", "payee", "cumulative_wei"], unique=True)
