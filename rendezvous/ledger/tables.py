"""The ledger's tables: one SQLAlchemy Core definition for SQLite and PostgreSQL.

Tasks that the same workers may take now stand in one *lane*: (demand, host). A lane knows its first ready task, and
whether its host may be asked now; so a claim reads only lanes that can be granted, and what can't be granted never
stands in front of what can. Delayed tasks are ``waiting``, closed lanes have ``opens_at``: neither is filtered at a
claim. The history is a chain: a task knows its last event, each event the one before, so that it needs no index.

Those of money are in ``money_tables``.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    text,
)

from rendezvous.ledger import money_tables  # noqa: F401 -- the metadata is whole
from rendezvous.ledger.schema import Number, metadata, partial
from swarm.model import Status

__all__ = [
    "acts",
    "api_keys",
    "approvals",
    "challenges",
    "contexts",
    "counters",
    "dedupes",
    "demands",
    "durations",
    "egress",
    "events",
    "founding",
    "hosts",
    "idempotency",
    "invites",
    "job_counts",
    "jobs",
    "lanes",
    "last_writer",
    "manifests",
    "metadata",
    "pauses",
    "records",
    "revocations",
    "roots",
    "status_counts",
    "task_bodies",
    "tasks",
    "version_counts",
    "workers",
]

# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────

jobs = Table(
    "jobs",
    metadata,
    Column("n", Number, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    Column("owner", String, nullable=False),
    Column("name", String),
    Column("created_at", Double, nullable=False),
    #: How its tasks are paid for, fixed at its creation; NULL is task by task.
    Column("settle", String),
    Index("jobs_of_owner", "owner", "n"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("seq", Number, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    Column("job", Number, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("reward_wei", String, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("max_run_s", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("status", String, nullable=False),
    Column("lane", Number, nullable=False),
    #: The holder, or the last one: whose late result is told from a stranger's.
    Column("worker", Number),
    Column("boot", String),
    Column("fence", Number, nullable=False),
    Column("via", String),
    Column("lease_until", Double),
    Column("granted_at", Double),
    #: When a waiting task becomes pending.
    Column("wake_at", Double),
    #: Attempts that ended: failed, lost, completed.
    Column("attempts", Integer, nullable=False),
    #: JSON: [[worker, when it was lost, whether by a restart, its boot], …]; the last two may be absent.
    Column("lost", Text),
    #: When the first of the workers that the lane passes over may have it again.
    Column("passed_until", Double),
    Column("reason", String),
    Column("detail", Text),
    Column("result", String),
    Column("result_bytes", Number),
    Column("finished_at", Double),
    Column("funding_generation", Integer, nullable=False),
    #: How many events it has, and the last of them.
    Column("events", Integer, nullable=False),
    Column("last_event", Number, nullable=False),
    Column("accepted", Double),
    Column("on_chain", Double),
    Column("paid", Double),
    Column("refunded", Double),
    #: Its place in line (``rendezvous.policy.order.rank``): priority and age in one.
    Column("rank", Double, nullable=False, server_default=text("0")),
)
_PENDING, _WAITING, _ACTIVE = Status.PENDING.value, Status.WAITING.value, Status.ACTIVE.value
partial("tasks_ready", tasks.c.lane, tasks.c.rank, tasks.c.seq, where=f"status = '{_PENDING}'")
partial("tasks_waiting", tasks.c.wake_at, where=f"status = '{_WAITING}'")
# Serves a worker's leases, and the clock, which reads it whole: what is active is as much as there are slots.
partial("tasks_held", tasks.c.worker, tasks.c.lease_until, where=f"status = '{_ACTIVE}'")
partial("tasks_expiring", tasks.c.expires_at, where=f"status IN ('{_PENDING}', '{_WAITING}')")
partial("tasks_passed_over", tasks.c.passed_until, where="passed_until IS NOT NULL")
Index("tasks_of_job", tasks.c.job, tasks.c.seq)

#: What only the worker, the owner and a replay read: kept aside, so that a transition rewrites a short row.
task_bodies = Table(
    "task_bodies",
    metadata,
    Column("seq", Number, primary_key=True),
    Column("body", Text, nullable=False),
    Column("dedupe", String, nullable=False),
    Column("dedupe_ttl_s", Double, nullable=False),
)

#: Who has a dedupe key. Whether the key still holds is the task's status and time to say.
dedupes = Table(
    "dedupes",
    metadata,
    Column("digest", String, primary_key=True),
    Column("seq", Number, nullable=False),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("id", Number, primary_key=True),
    Column("seq", Number, nullable=False),
    #: The task's own count, from 1.
    Column("n", Integer, nullable=False),
    Column("previous", Number),
    Column("move", String, nullable=False),
    Column("source", String),
    Column("target", String, nullable=False),
    Column("actor", String, nullable=False),
    #: The operator; the assignee is ``worker``, the requester the job's owner.
    Column("who", String),
    Column("worker", Number),
    Column("fence", Number),
    Column("reason", String),
    Column("detail", Text),
    Column("at", Double, nullable=False),
)

manifests = Table(
    "manifests",
    metadata,
    Column("cid", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

# ── lines of work ─────────────────────────────────────────────────────────────────────────────────────────────────

demands = Table(
    "demands",
    metadata,
    Column("n", Number, primary_key=True),
    #: Canonical JSON of the whole demand: what makes it one.
    Column("key", Text, nullable=False, unique=True),
)

hosts = Table(
    "hosts",
    metadata,
    Column("n", Number, primary_key=True),
    Column("host", String, nullable=False, unique=True),
    Column("tokens", Double, nullable=False),
    Column("refilled_at", Double, nullable=False),
    Column("rate_per_s", Double, nullable=False),
    Column("burst", Double, nullable=False),
    Column("held_until", Double),
    Column("held_why", Text),
    #: 1 while the operator has paused it (``pauses`` says who and why).
    Column("paused", Integer),
    #: Of a host that asks for a delay between requests: how many grants of it are unfinished. NULL where it doesn't.
    Column("unfinished", Integer),
    #: 1 where no two workers of one network hold tasks of it at once.
    Column("apart", Integer),
    #: Since a worker on it is in quarantine: what is left of its pace, and until when.
    Column("share", Double),
    Column("share_until", Double),
    #: It keeps its tasks for long; before this ledger time they don't take all of a worker's slots.
    Column("slow_until", Double),
)

lanes = Table(
    "lanes",
    metadata,
    Column("n", Number, primary_key=True),
    Column("demand", Number, nullable=False),
    Column("host", Number, nullable=False),
    #: Its first ready task; NULL where there is none.
    Column("head_rank", Double),
    Column("head_seq", Number),
    #: When its host may be asked again; NULL where that is now.
    Column("opens_at", Double),
    Index("lanes_of_host", "host", "demand", unique=True),
)
partial(
    "lanes_ready",
    lanes.c.demand,
    lanes.c.head_rank,
    lanes.c.head_seq,
    where="head_seq IS NOT NULL AND opens_at IS NULL",
)
partial("hosts_delayed", hosts.c.n, where="unfinished IS NOT NULL")
partial("hosts_apart", hosts.c.n, where="apart IS NOT NULL")
partial("hosts_slow", hosts.c.n, where="slow_until IS NOT NULL")
partial("lanes_closed", lanes.c.opens_at, where="opens_at IS NOT NULL")

# ── what the operator said, and what is held against whom (``rules``) ─────────────────────────────────────────────

#: What is paused. A pause of a job that was ended stays until its parked tasks are back in line.
pauses = Table(
    "pauses",
    metadata,
    Column("scope", String, primary_key=True),
    #: The host, or the job's id; empty for the swarm.
    Column("name", String, primary_key=True),
    Column("who", String, nullable=False),
    Column("why", Text, nullable=False),
    Column("since", Double, nullable=False),
    #: The job's tasks up to this one (its seq) are back in line; NULL while the pause holds.
    Column("resumed_to", Number),
    sqlite_with_rowid=False,
)

#: Pinned versions; a name without any is free.
approvals = Table(
    "approvals",
    metadata,
    Column("name", String, primary_key=True),
    Column("version", String, primary_key=True),
    Column("who", String, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)

#: What is held against a worker on a host.
records = Table(
    "records",
    metadata,
    Column("worker", Number, primary_key=True, autoincrement=False),
    Column("host", Number, primary_key=True, autoincrement=False),
    #: It was turned away there: it asks nothing of it before.
    Column("held_until", Double),
    Column("held_why", Text),
    #: The network that it reported from.
    Column("prefix", String),
    #: JSON: when it was turned away within the window.
    Column("reports", Text),
    #: 1 where that was with work in hand that came from another's quarantine.
    Column("careful", Integer),
    Column("changed_at", Double),
    Column("quarantined_until", Double),
    #: The operator; NULL where the count did it.
    Column("quarantined_by", String),
    Column("quarantined_why", Text),
    Column("quarantines", Integer, nullable=False),
    Index("records_of_host", "host"),
    Index("records_by_age", "changed_at"),
    sqlite_with_rowid=False,
)

#: Profiles and sessions that were begun (``policy.contexts``).
contexts = Table(
    "contexts",
    metadata,
    Column("kind", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("worker", Number, nullable=False),
    Column("used_at", Double, nullable=False),
    Column("accepted", Integer, nullable=False),
    Column("challenges", Integer, nullable=False),
    Index("contexts_by_age", "kind", "used_at"),
    sqlite_with_rowid=False,
)

#: How tasks of a kind came out, by what ran them.
version_counts = Table(
    "version_counts",
    metadata,
    Column("kind", String, primary_key=True),
    #: The release of the worker program.
    Column("worker", String, primary_key=True),
    #: The version of the kind's executor.
    Column("version", String, primary_key=True),
    Column("done", Number, nullable=False),
    Column("failed", Number, nullable=False),
    sqlite_with_rowid=False,
)

#: What is held against a network on a host.
egress = Table(
    "egress",
    metadata,
    Column("prefix", String, primary_key=True),
    Column("host", Number, primary_key=True, autoincrement=False),
    Column("until", Double, nullable=False),
    Column("why", Text, nullable=False),
    sqlite_with_rowid=False,
)

#: What operators did that concerns no single task: append-only.
acts = Table(
    "acts",
    metadata,
    Column("n", Number, primary_key=True),
    Column("at", Double, nullable=False),
    Column("who", String, nullable=False),
    #: A word: paused, resumed, quarantined, …
    Column("act", String, nullable=False),
    #: What it was done to.
    Column("subject", Text, nullable=False),
    Column("why", Text, nullable=False),
)

# ── kept numbers ──────────────────────────────────────────────────────────────────────────────────────────────────

#: The last fence, event, task, …: one counter each.
counters = Table(
    "counters",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", Number, nullable=False),
    sqlite_with_rowid=False,
)

status_counts = Table(
    "status_counts",
    metadata,
    Column("status", String, primary_key=True),
    Column("tasks", Number, nullable=False),
    sqlite_with_rowid=False,
)

job_counts = Table(
    "job_counts",
    metadata,
    Column("job", Number, primary_key=True),
    Column("status", String, primary_key=True),
    Column("tasks", Number, nullable=False),
    sqlite_with_rowid=False,
)

#: How long tasks of a kind took: samples in each bucket of ``rendezvous.policy.leases``.
durations = Table(
    "durations",
    metadata,
    Column("kind", String, primary_key=True),
    Column("bucket", Integer, primary_key=True),
    Column("samples", Number, nullable=False),
    sqlite_with_rowid=False,
)

#: One row: which connection wrote last, where several roots share the ledger (``postgres.PostgresTurns``).
last_writer = Table(
    "last_writer",
    metadata,
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("holder", Number, nullable=False),
)

#: One row: whose ledger this is, where roots could come that don't know (``roots.register``).
founding = Table(
    "founding",
    metadata,
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String, nullable=False),
    Column("network_id", String, nullable=False),
)

#: The roots that share the ledger; ``seen_at`` is the database's own clock, so that theirs may differ.
roots = Table(
    "roots",
    metadata,
    Column("id", String, primary_key=True),
    Column("door", String, nullable=False),
    #: Whose gossip is to be believed; NULL where it runs without a peer.
    Column("peer_id", String),
    #: JSON: the peer ids of the Kubos that keep its blocks; none where its directory does.
    Column("stores", Text, nullable=False),
    Column("seen_at", Double, nullable=False),
)

# ── who ───────────────────────────────────────────────────────────────────────────────────────────────────────────

workers = Table(
    "workers",
    metadata,
    Column("n", Number, primary_key=True),
    Column("address", String, nullable=False),
    Column("instance", String, nullable=False),
    #: JSON: the boots of its full turns, newest first; leases belong to the first.
    Column("boots", Text, nullable=False),
    #: What the door says of it; NULL until it does, and after it was removed.
    Column("payout", String),
    Column("peer_id", String),
    Column("boot", String),
    Column("hello", Text),
    Column("stats", Text),
    Column("seen_at", Double),
    #: How much it may hold at once; NULL is a newcomer's budget.
    Column("budget", Integer),
    #: 1 once some of its work was accepted.
    Column("accepted", Integer),
    #: The network that it came from last.
    Column("prefix", String),
    Index("workers_by_identity", "address", "instance", unique=True),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("role", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("instance", String),
    Column("payout", String),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
    Index("api_keys_of_owner", "owner", "role"),
)

#: Whose keys the operator revoked: a worker of such an address isn't enrolled again.
revocations = Table(
    "revocations",
    metadata,
    Column("owner", String, primary_key=True),
    Column("who", String, nullable=False),
    Column("why", Text, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)

invites = Table(
    "invites",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("uses_left", Integer, nullable=False),
    Column("expires_at", Double, nullable=False),
)

#: A challenge serves once an address.
challenges = Table(
    "challenges",
    metadata,
    Column("challenge", String, primary_key=True),
    Column("address", String, primary_key=True),
    Column("at", Double, nullable=False),
    Index("challenges_by_age", "at"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("owner", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("body_digest", LargeBinary, nullable=False),
    Column("answer", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("idempotency_by_age", "at"),
)
