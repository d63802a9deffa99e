"""Hosts that keep their tasks for long, and until when they count as such."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("hosts", sa.Column("slow_until", sa.Double()))
    where = sa.text("slow_until IS NOT NULL")
    op.create_index("hosts_slow", "hosts", ["n"], sqlite_where=where, postgresql_where=where)
