"""The tables of the first version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("instance", sa.String(), nullable=True),
        sa.Column("payout", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("api_keys_of_owner", "api_keys", ["owner", "role"], unique=False)
    op.create_table(
        "challenges",
        sa.Column("challenge", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("challenge", "address"),
    )
    op.create_index("challenges_by_age", "challenges", ["at"], unique=False)
    op.create_table(
        "counters",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "dedupes",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "demands",
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("n"),
        sa.UniqueConstraint("key"),
    )
    op.create_table(
        "durations",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("samples", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("kind", "bucket"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "events",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("previous", NUMBER, nullable=True),
        sa.Column("move", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=True),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("who", sa.String(), nullable=True),
        sa.Column("worker", NUMBER, nullable=True),
        sa.Column("fence", NUMBER, nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "hosts",
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("refilled_at", sa.Double(), nullable=False),
        sa.Column("rate_per_s", sa.Double(), nullable=False),
        sa.Column("burst", sa.Double(), nullable=False),
        sa.Column("held_until", sa.Double(), nullable=True),
        sa.Column("held_why", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("n"),
        sa.UniqueConstraint("host"),
    )
    op.create_table(
        "idempotency",
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "key"),
    )
    op.create_index("idempotency_by_age", "idempotency", ["at"], unique=False)
    op.create_table(
        "invites",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("uses_left", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "job_counts",
        sa.Column("job", NUMBER, nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("tasks", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("job", "status"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "jobs",
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("n"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("jobs_of_owner", "jobs", ["owner", "n"], unique=False)
    op.create_table(
        "lanes",
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("demand", NUMBER, nullable=False),
        sa.Column("host", NUMBER, nullable=False),
        sa.Column("head_priority", sa.Integer(), nullable=True),
        sa.Column("head_seq", NUMBER, nullable=True),
        sa.Column("opens_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_index(
        "lanes_closed",
        "lanes",
        ["opens_at"],
        unique=False,
        sqlite_where=sa.text("opens_at IS NOT NULL"),
        postgresql_where=sa.text("opens_at IS NOT NULL"),
    )
    op.create_index("lanes_of_host", "lanes", ["host", "demand"], unique=True)
    op.create_index(
        "lanes_ready",
        "lanes",
        ["demand", sa.literal_column("head_priority DESC"), "head_seq"],
        unique=False,
        sqlite_where=sa.text("head_seq IS NOT NULL AND opens_at IS NULL"),
        postgresql_where=sa.text("head_seq IS NOT NULL AND opens_at IS NULL"),
    )
    op.create_table(
        "manifests",
        sa.Column("cid", sa.String(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("cid"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "status_counts",
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("tasks", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("status"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "task_bodies",
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("dedupe", sa.String(), nullable=False),
        sa.Column("dedupe_ttl_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "tasks",
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job", NUMBER, nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("reward_wei", sa.String(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("max_run_s", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("lane", NUMBER, nullable=False),
        sa.Column("worker", NUMBER, nullable=True),
        sa.Column("boot", sa.String(), nullable=True),
        sa.Column("fence", NUMBER, nullable=False),
        sa.Column("via", sa.String(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("granted_at", sa.Double(), nullable=True),
        sa.Column("wake_at", sa.Double(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Text(), nullable=True),
        sa.Column("passed_until", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("result", sa.String(), nullable=True),
        sa.Column("result_bytes", NUMBER, nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("funding_generation", sa.Integer(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("last_event", NUMBER, nullable=False),
        sa.Column("accepted", sa.Double(), nullable=True),
        sa.Column("on_chain", sa.Double(), nullable=True),
        sa.Column("paid", sa.Double(), nullable=True),
        sa.Column("refunded", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
    )
    op.create_index(
        "tasks_expiring",
        "tasks",
        ["expires_at"],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'waiting')"),
        postgresql_where=sa.text("status IN ('pending', 'waiting')"),
    )
    op.create_index(
        "tasks_held",
        "tasks",
        ["worker", "lease_until"],
        unique=False,
        sqlite_where=sa.text("status = 'active'"),
        postgresql_where=sa.text("status = 'active'"),
    )
    op.create_index("tasks_of_job", "tasks", ["job", "seq"], unique=False)
    op.create_index(
        "tasks_passed_over",
        "tasks",
        ["passed_until"],
        unique=False,
        sqlite_where=sa.text("passed_until IS NOT NULL"),
        postgresql_where=sa.text("passed_until IS NOT NULL"),
    )
    op.create_index(
        "tasks_ready",
        "tasks",
        ["lane", sa.literal_column("priority DESC"), "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "tasks_waiting",
        "tasks",
        ["wake_at"],
        unique=False,
        sqlite_where=sa.text("status = 'waiting'"),
        postgresql_where=sa.text("status = 'waiting'"),
    )
    op.create_table(
        "workers",
        sa.Column("n", NUMBER, nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("instance", sa.String(), nullable=False),
        sa.Column("boots", sa.Text(), nullable=False),
        sa.Column("payout", sa.String(), nullable=True),
        sa.Column("peer_id", sa.String(), nullable=True),
        sa.Column("boot", sa.String(), nullable=True),
        sa.Column("hello", sa.Text(), nullable=True),
        sa.Column("stats", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_index("workers_by_identity", "workers", ["address", "instance"], unique=True)
