"""What requesters and jobs may spend, what was charged for each task, and what workers signed for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "allowances",
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("granted_wei", sa.String(), nullable=False),
        sa.Column("spent_wei", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("owner"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "budgets",
        sa.Column("job", NUMBER, autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("budget_wei", sa.String(), nullable=True),
        sa.Column("spent_wei", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_table(
        "charges",
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job", NUMBER, nullable=False),
        sa.Column("amount_wei", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("returned_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("task", "generation"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "receipts",
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fence", NUMBER, nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("payout", sa.String(), nullable=False),
        sa.Column("result", sa.String(), nullable=False),
        sa.Column("reward_wei", sa.String(), nullable=False),
        sa.Column("signature", sa.String(), nullable=False),
        sa.Column("accepted_at", sa.Double(), nullable=False),
        sa.Column("acceptance", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("task", "generation"),
        sqlite_with_rowid=False,
    )
