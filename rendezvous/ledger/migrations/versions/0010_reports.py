"""What workers report of hosts, networks that are flagged, what workers may hold, and hosts that keep workers apart."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ONLY_APART = sa.text("apart IS NOT NULL")


def upgrade() -> None:
    for column in (
        sa.Column("held_until", sa.Double(), nullable=True),
        sa.Column("held_why", sa.Text(), nullable=True),
        sa.Column("prefix", sa.String(), nullable=True),
        sa.Column("reports", sa.Text(), nullable=True),
        sa.Column("careful", sa.Integer(), nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=True),
    ):
        op.add_column("records", column)
    op.create_index("records_by_age", "records", ["changed_at"])
    for column in (
        sa.Column("budget", sa.Integer(), nullable=True),
        sa.Column("accepted", sa.Integer(), nullable=True),
        sa.Column("prefix", sa.String(), nullable=True),
    ):
        op.add_column("workers", column)
    op.execute(
        sa.text("UPDATE workers SET accepted = 1 WHERE n IN (SELECT worker FROM tasks WHERE status = 'completed')")
    )
    for column in (
        sa.Column("apart", sa.Integer(), nullable=True),
        sa.Column("share", sa.Double(), nullable=True),
        sa.Column("share_until", sa.Double(), nullable=True),
    ):
        op.add_column("hosts", column)
    op.create_index("hosts_apart", "hosts", ["n"], sqlite_where=ONLY_APART, postgresql_where=ONLY_APART)
    op.create_table(
        "egress",
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("host", NUMBER, autoincrement=False, nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("prefix", "host"),
        sqlite_with_rowid=False,
    )
