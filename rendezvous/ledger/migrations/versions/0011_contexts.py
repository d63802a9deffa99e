"""Profiles and sessions that were begun, and how tasks came out by what ran them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "contexts",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("worker", NUMBER, nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("challenges", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "version_counts",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("done", NUMBER, nullable=False),
        sa.Column("failed", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("kind", "worker", "version"),
        sqlite_with_rowid=False,
    )
