"""A task's place in line, of priority and age in one; and hosts that are asked one request at a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

#: What a step of priority is worth, seconds: as ``rendezvous.policy.order`` had it.
STEP_S = 600.0

ONLY_PENDING = sa.text("status = 'pending'")
ONLY_READY = sa.text("head_seq IS NOT NULL AND opens_at IS NULL")
ONLY_DELAYED = sa.text("unfinished IS NOT NULL")


def upgrade() -> None:
    op.add_column("tasks", sa.Column("rank", sa.Double(), nullable=False, server_default=sa.text("0")))
    tasks = sa.table(
        "tasks", *(sa.column(name) for name in ("seq", "rank", "created_at", "priority", "lane", "status"))
    )
    op.execute(tasks.update().values(rank=tasks.c.created_at - tasks.c.priority * STEP_S))
    op.drop_index("tasks_ready", "tasks")
    op.create_index(
        "tasks_ready", "tasks", ["lane", "rank", "seq"], sqlite_where=ONLY_PENDING, postgresql_where=ONLY_PENDING
    )
    op.drop_index("lanes_ready", "lanes")
    op.add_column("lanes", sa.Column("head_rank", sa.Double(), nullable=True))
    lanes = sa.table("lanes", *(sa.column(name) for name in ("n", "head_rank", "head_seq")))
    first = (
        sa.select(tasks.c.rank, tasks.c.seq)
        .where(tasks.c.lane == lanes.c.n, tasks.c.status == "pending")
        .order_by(tasks.c.rank, tasks.c.seq)
        .limit(1)
        .correlate(lanes)
    )
    op.execute(
        lanes.update().values(
            head_rank=first.with_only_columns(tasks.c.rank).scalar_subquery(),
            head_seq=first.with_only_columns(tasks.c.seq).scalar_subquery(),
        )
    )
    op.drop_column("lanes", "head_priority")
    op.create_index(
        "lanes_ready",
        "lanes",
        ["demand", "head_rank", "head_seq"],
        sqlite_where=ONLY_READY,
        postgresql_where=ONLY_READY,
    )
    op.add_column("hosts", sa.Column("unfinished", sa.Integer(), nullable=True))
    op.create_index("hosts_delayed", "hosts", ["n"], sqlite_where=ONLY_DELAYED, postgresql_where=ONLY_DELAYED)
