"""Whose ledger it is, and which roots share it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "founding",
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("network_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_table(
        "roots",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("door", sa.String(), nullable=False),
        sa.Column("peer_id", sa.String(), nullable=True),
        sa.Column("stores", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
