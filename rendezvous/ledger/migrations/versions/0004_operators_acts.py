"""What is paused, which versions are pinned, what is held against a worker on a host, and who did it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "pauses",
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("resumed_to", NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("scope", "name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "approvals",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "records",
        sa.Column("worker", NUMBER, autoincrement=False, nullable=False),
        sa.Column("host", NUMBER, autoincrement=False, nullable=False),
        sa.Column("quarantined_until", sa.Double(), nullable=True),
        sa.Column("quarantined_by", sa.String(), nullable=True),
        sa.Column("quarantined_why", sa.Text(), nullable=True),
        sa.Column("quarantines", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("worker", "host"),
        sqlite_with_rowid=False,
    )
    op.create_index("records_of_host", "records", ["host"])
    op.create_table(
        "acts",
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("act", sa.String(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("n"),
    )
    op.add_column("hosts", sa.Column("paused", sa.Integer(), nullable=True))
