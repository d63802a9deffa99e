"""Every statement of the writer, in SQLAlchemy Core, compiled once for the dialect.

A statement is an attribute of ``Statements``; its parameters are given by position, in the order written here.
Transitions are guarded in their WHERE clause: the row must still be in the status, at the fence and at the event that
the decision was made on, so that two roots, or a stale cache, can't both win.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Double, Integer, String, bindparam
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from rendezvous.ledger import money_tables as m
from rendezvous.ledger import tables as t
from rendezvous.ledger.allowance_statements import AllowanceStatements
from rendezvous.ledger.batch_statements import BatchStatements, is_status
from rendezvous.ledger.channel_statements import ChannelStatements
from rendezvous.ledger.engine import Compiled
from rendezvous.ledger.json_rows import json_column
from rendezvous.ledger.money_statements import MoneyStatements
from rendezvous.ledger.policy_statements import PolicyStatements
from swarm.model import Status

__all__ = ["BATCH", "Statements"]

#: How many rows one sweep, or one chunk of a job's cancel or replay, handles: a few ten milliseconds of the writer.
BATCH: Final = 1_000


def _in(*statuses: Status) -> sa.TextClause:
    listed = ", ".join(f"'{status.value}'" for status in statuses)
    return sa.text(f"tasks.status IN ({listed})")


class Statements:
    """All statements of the writer, compiled for one dialect."""

    def __init__(self, dialect: sa.Dialect) -> None:
        self._dialect: Final = dialect
        #: What writes many rows.
        self.batches: Final = BatchStatements(dialect)
        self._insert: Final[Any] = sqlite_insert if dialect.name == "sqlite" else postgresql_insert
        self._tasks()
        self._clock()
        self._submissions()
        self._lanes()
        self._people()
        self.money: Final = MoneyStatements(self._compile, self._insert)
        self.allowances: Final = AllowanceStatements(self._compile, self._insert)
        self.policy: Final = PolicyStatements(self._compile, self._insert)
        self.channels: Final = ChannelStatements(self._compile, self._insert)

    def _compile(self, statement: Any, *names: str) -> Compiled:
        return Compiled(statement, names, self._dialect)

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tasks(self) -> None:
        tasks = t.tasks
        ids, task_id = json_column("ids", String())
        self.tasks_by_id = self._compile(sa.select(tasks).select_from(ids).join(tasks, tasks.c.id == task_id), "ids")
        seqs, seq = json_column("seqs", BigInteger())
        self.tasks_by_seq = self._compile(sa.select(tasks).select_from(seqs).join(tasks, tasks.c.seq == seq), "seqs")
        holders, holder = json_column("workers", BigInteger())
        self.held_of_host = self._compile(
            sa.select(tasks.c.seq)
            .join(t.lanes, t.lanes.c.n == tasks.c.lane)
            .where(
                tasks.c.worker == bindparam("the_worker"), is_status(Status.ACTIVE), t.lanes.c.host == bindparam("host")
            ),
            "the_worker",
            "host",
        )
        self.workers_on_host = self._compile(
            sa.select(sa.func.count(tasks.c.worker.distinct()))
            .join(t.lanes, t.lanes.c.n == tasks.c.lane)
            .where(t.lanes.c.host == bindparam("host"), is_status(Status.ACTIVE)),
            "host",
        )
        numbers, number = json_column("numbers", BigInteger())
        self.holders_of_hosts = self._compile(
            sa.select(t.lanes.c.host, tasks.c.worker)
            .distinct()
            .select_from(numbers)
            .join(t.lanes, t.lanes.c.host == number)
            .join(tasks, sa.and_(tasks.c.lane == t.lanes.c.n, is_status(Status.ACTIVE))),
            "numbers",
        )
        self.held_counts = self._compile(
            sa.select(tasks.c.worker, sa.func.count())
            .select_from(numbers)
            .join(tasks, sa.and_(tasks.c.worker == number, is_status(Status.ACTIVE)))
            .group_by(tasks.c.worker),
            "numbers",
        )
        self.held_seqs = self._compile(
            sa.select(tasks.c.worker, tasks.c.seq)
            .select_from(holders)
            .join(tasks, sa.and_(tasks.c.worker == holder, is_status(Status.ACTIVE))),
            "workers",
        )
        self.bodies = self._compile(
            sa.select(t.task_bodies).select_from(seqs).join(t.task_bodies, t.task_bodies.c.seq == seq),
            "seqs",
        )
        self.insert_body = self.batches.insert(t.task_bodies)
        signed = tuple(column.name for column in m.receipts.columns)
        putting = self._insert(m.receipts).values({name: bindparam(name) for name in signed})
        self.put_receipt = self._compile(
            putting.on_conflict_do_update(
                index_elements=["task", "generation"], set_={name: putting.excluded[name] for name in signed[2:]}
            ),
            *signed,
        )
        self.keep_acceptance = self._compile(
            sa.update(m.receipts)
            .where(
                m.receipts.c.task == bindparam("the_task"),
                m.receipts.c.generation == bindparam("the_generation"),
                m.receipts.c.signature == bindparam("the_signature"),
                m.receipts.c.acceptance.is_(None),
            )
            .values(acceptance=bindparam("new_acceptance")),
            "new_acceptance",
            "the_task",
            "the_generation",
            "the_signature",
        )
        self.insert_manifest = self.batches.insert(t.manifests, ignore=True)
        self.live_of_job = self._compile(
            sa.select(tasks)
            .where(
                tasks.c.job == bindparam("job"),
                _in(Status.WAITING, Status.PENDING, Status.ACTIVE),
                tasks.c.seq > bindparam("after"),
            )
            .order_by(tasks.c.seq)
            .limit(sa.literal_column(str(BATCH))),
            "job",
            "after",
        )
        self.failed_of_job = self._compile(
            sa.select(tasks)
            .where(tasks.c.job == bindparam("job"), is_status(Status.FAILED), tasks.c.seq > bindparam("after"))
            .order_by(tasks.c.seq)
            .limit(sa.literal_column(str(BATCH))),
            "job",
            "after",
        )

    # ── what the clock does ───────────────────────────────────────────────────────────────────────────────────────

    def _clock(self) -> None:
        tasks = t.tasks
        due = bindparam("now", type_=Double)

        def ripe(condition: sa.ColumnElement[bool] | sa.TextClause, column: sa.Column[Any]) -> Compiled:
            return self._compile(
                sa.select(tasks).where(condition, column <= due).order_by(column).limit(sa.literal_column(str(BATCH))),
                "now",
            )

        waiting_or_pending = _in(Status.PENDING, Status.WAITING)
        self.ripe_waiting = ripe(is_status(Status.WAITING), tasks.c.wake_at)
        # by seq: the leases of one sweep are few, and an order by lease_until would want an index of its own
        self.ripe_leases = ripe(is_status(Status.ACTIVE), tasks.c.lease_until)
        self.ripe_expiring = ripe(waiting_or_pending, tasks.c.expires_at)
        self.ripe_passed_over = ripe(tasks.c.passed_until.is_not(None), tasks.c.passed_until)
        self.next_due = self._compile(
            sa.select(
                sa.select(sa.func.min(tasks.c.wake_at)).where(is_status(Status.WAITING)).scalar_subquery(),
                sa.select(sa.func.min(tasks.c.lease_until)).where(is_status(Status.ACTIVE)).scalar_subquery(),
                sa.select(sa.func.min(tasks.c.expires_at)).where(waiting_or_pending).scalar_subquery(),
                sa.select(sa.func.min(tasks.c.passed_until)).where(tasks.c.passed_until.is_not(None)).scalar_subquery(),
            )
        )
        self.rearm = self._compile(
            sa.update(tasks)
            .where(is_status(Status.ACTIVE), tasks.c.lease_until < bindparam("least", type_=Double))
            .values(lease_until=bindparam("least", type_=Double)),
            "least",
        )
        self.forget_idempotency = self._compile(sa.delete(t.idempotency).where(t.idempotency.c.at < due), "now")
        self.forget_challenges = self._compile(sa.delete(t.challenges).where(t.challenges.c.at < due), "now")
        self.forget_invites = self._compile(sa.delete(t.invites).where(t.invites.c.expires_at < due), "now")
        seqs, seq = json_column("seqs", BigInteger())
        chosen = sa.select(seq).select_from(seqs)
        self.forget_tasks = self._compile(sa.delete(tasks).where(tasks.c.seq.in_(chosen)), "seqs")
        self.forget_bodies = self._compile(sa.delete(t.task_bodies).where(t.task_bodies.c.seq.in_(chosen)), "seqs")
        ids, event_id = json_column("ids", BigInteger())
        self.forget_events = self._compile(
            sa.delete(t.events).where(t.events.c.id.in_(sa.select(event_id).select_from(ids))), "ids"
        )
        texts, text = json_column("texts", String())
        named = sa.select(text).select_from(texts)
        self.forget_manifests = self._compile(sa.delete(t.manifests).where(t.manifests.c.cid.in_(named)), "texts")
        self.forget_dedupe = self._compile(
            sa.delete(t.dedupes).where(
                t.dedupes.c.digest == bindparam("the_digest"), t.dedupes.c.seq == bindparam("the_seq")
            ),
            "the_digest",
            "the_seq",
        )
        self.previous_event = self._compile(
            sa.select(t.events.c.previous).where(t.events.c.id == bindparam("the_id")), "the_id"
        )

    # ── submissions ───────────────────────────────────────────────────────────────────────────────────────────────

    def _submissions(self) -> None:
        texts, text = json_column("texts", String())
        self.jobs_by_id = self._compile(sa.select(t.jobs).select_from(texts).join(t.jobs, t.jobs.c.id == text), "texts")
        numbers, number = json_column("numbers", BigInteger())
        self.jobs_by_number = self._compile(
            sa.select(t.jobs).select_from(numbers).join(t.jobs, t.jobs.c.n == number), "numbers"
        )
        self.insert_job = self.batches.insert(t.jobs)
        self.insert_dedupe = self.batches.insert(t.dedupes, ignore=True)
        self.dedupe_holders = self._compile(
            sa.select(
                t.dedupes.c.digest,
                t.dedupes.c.seq,
                t.tasks.c.id,
                t.tasks.c.status,
                t.tasks.c.finished_at,
                t.task_bodies.c.dedupe_ttl_s,
            )
            .select_from(texts)
            .join(t.dedupes, t.dedupes.c.digest == text)
            .outerjoin(t.tasks, t.tasks.c.seq == t.dedupes.c.seq)
            .outerjoin(t.task_bodies, t.task_bodies.c.seq == t.dedupes.c.seq),
            "texts",
        )
        taking = self._insert(t.dedupes).values(digest=bindparam("digest"), seq=bindparam("seq"))
        self.take_dedupe = self._compile(
            taking.on_conflict_do_update(index_elements=["digest"], set_={"seq": taking.excluded.seq}),
            "digest",
            "seq",
        )
        remembered = t.idempotency.c
        self.idempotent_answer = self._compile(
            sa.select(remembered.body_digest, remembered.answer).where(
                remembered.owner == bindparam("owner"), remembered.key == bindparam("key")
            ),
            "owner",
            "key",
        )
        self.insert_idempotent_answer = self.batches.insert(t.idempotency)
        self.counters = self._compile(sa.select(t.counters).with_for_update())
        self.add_to_counter = self.batches.add(t.counters, "value")
        self.add_to_status_count = self.batches.add(t.status_counts, "tasks")
        self.add_to_job_count = self.batches.add(t.job_counts, "tasks")
        self.add_to_durations = self.batches.add(t.durations, "samples")
        self.durations = self._compile(sa.select(t.durations))
        self.halve_durations = self._compile(
            sa.update(t.durations)
            .where(t.durations.c.kind == bindparam("the_kind"))
            .values(samples=t.durations.c.samples // sa.literal_column("2", type_=Integer)),
            "the_kind",
        )

    # ── lanes and hosts ───────────────────────────────────────────────────────────────────────────────────────────

    def _lanes(self) -> None:
        lanes, hosts, tasks = t.lanes, t.hosts, t.tasks
        texts, text = json_column("texts", String())
        numbers, number = json_column("numbers", BigInteger())
        self.demands_by_key = self._compile(
            sa.select(t.demands).select_from(texts).join(t.demands, t.demands.c.key == text), "texts"
        )
        self.demands_by_number = self._compile(
            sa.select(t.demands).select_from(numbers).join(t.demands, t.demands.c.n == number), "numbers"
        )
        self.insert_demand = self.batches.insert(t.demands)
        self.hosts_by_name = self._compile(
            sa.select(hosts).select_from(texts).join(hosts, hosts.c.host == text), "texts"
        )
        self.hosts_by_number = self._compile(
            sa.select(hosts).select_from(numbers).join(hosts, hosts.c.n == number), "numbers"
        )
        self.insert_host = self.batches.insert(hosts)
        self.delayed_hosts = self._compile(sa.select(hosts.c.n).where(hosts.c.unfinished.is_not(None)))
        self.unfinished_of_host = self._compile(
            sa.select(sa.func.count())
            .select_from(tasks)
            .join(lanes, lanes.c.n == tasks.c.lane)
            .where(lanes.c.host == bindparam("host"), is_status(Status.ACTIVE)),
            "host",
        )
        bucket = (
            "tokens",
            "refilled_at",
            "rate_per_s",
            "burst",
            "held_until",
            "held_why",
            "paused",
            "unfinished",
            "share",
            "share_until",
        )
        self.update_host = self._compile(
            sa.update(hosts)
            .where(hosts.c.n == bindparam("the_n"))
            .values({name: bindparam(f"new_{name}") for name in bucket}),
            *(f"new_{name}" for name in bucket),
            "the_n",
        )
        self.lanes_by_number = self._compile(
            sa.select(lanes.c.n, lanes.c.demand, lanes.c.host).select_from(numbers).join(lanes, lanes.c.n == number),
            "numbers",
        )
        self.lanes_of_host = self._compile(
            sa.select(lanes.c.n, lanes.c.demand, lanes.c.host).select_from(numbers).join(lanes, lanes.c.host == number),
            "numbers",
        )
        self.insert_lane = self.batches.insert(lanes)
        self.close_lanes = self._compile(
            sa.update(lanes)
            .where(lanes.c.host == bindparam("the_host"))
            .values(opens_at=bindparam("new_opens_at", type_=Double)),
            "new_opens_at",
            "the_host",
        )
        self.open_lanes = self._compile(
            sa.update(lanes).where(lanes.c.opens_at <= bindparam("now", type_=Double)).values(opens_at=sa.null()),
            "now",
        )
        first = (
            sa.select(tasks.c.rank, tasks.c.seq)
            .where(tasks.c.lane == lanes.c.n, is_status(Status.PENDING))
            .order_by(tasks.c.rank, tasks.c.seq)
            .limit(sa.literal_column("1"))
            .correlate(lanes)
        )
        touched = sa.select(number).select_from(numbers)
        self.update_heads = self._compile(
            sa.update(lanes)
            .where(lanes.c.n.in_(touched))
            .values(
                head_rank=first.with_only_columns(tasks.c.rank).scalar_subquery(),
                head_seq=first.with_only_columns(tasks.c.seq).scalar_subquery(),
            ),
            "numbers",
        )
        ready = sa.and_(lanes.c.head_seq.is_not(None), lanes.c.opens_at.is_(None))
        # one step through the index a demand, however many lanes each has
        demand = sa.func.min(lanes.c.demand)
        first_demand = sa.select(demand.label("demand")).where(ready).cte("ready_demands", recursive=True)
        following = sa.select(demand).where(ready, lanes.c.demand > first_demand.c.demand).correlate(first_demand)
        found = first_demand.union_all(sa.select(following.scalar_subquery()).where(first_demand.c.demand.is_not(None)))
        is_found = found.c.demand.is_not(None)
        self.ready_demands = self._compile(sa.select(found.c.demand).where(is_found))
        self.other_work = self._other_work(sa.select(found.c.demand).where(is_found), ready)
        self.ready_lanes = self._compile(
            sa.select(lanes.c.n, lanes.c.head_rank, lanes.c.head_seq, hosts)
            .join(hosts, hosts.c.n == lanes.c.host)
            .where(ready, lanes.c.demand == bindparam("demand"))
            .order_by(lanes.c.head_rank, lanes.c.head_seq)
            .limit(bindparam("most", type_=Integer)),
            "demand",
            "most",
        )
        self.ready_tasks = self._compile(
            sa.select(tasks.c.rank, tasks.c.seq)
            .where(tasks.c.lane == bindparam("lane"), is_status(Status.PENDING))
            .order_by(tasks.c.rank, tasks.c.seq)
            .limit(bindparam("most", type_=Integer)),
            "lane",
            "most",
        )

    def _other_work(self, ready_demands: sa.Select[Any], ready: sa.ColumnElement[bool]) -> Compiled:
        """Demands with work of hosts that aren't slow; parameters: until when closed lanes open, and now.

        Ledgers keep every lane and host, so of each demand no more are read than those of slow hosts that come first.
        """
        lanes, hosts = t.lanes, t.hosts
        (demand,) = ready_demands.selected_columns
        ends_at = hosts.c.slow_until
        unslow = sa.and_(
            hosts.c.n == lanes.c.host, sa.or_(ends_at.is_(None), ends_at <= bindparam("now", type_=Double))
        )
        # no EXISTS: PostgreSQL may look that up for all lanes at once
        first = sa.select(lanes.c.n).where(ready, lanes.c.demand == demand, unslow).limit(sa.literal_column("1"))
        has_open = first.correlate(*ready_demands.get_final_froms()).scalar_subquery().is_not(None)
        opens_soon = sa.and_(lanes.c.head_seq.is_not(None), lanes.c.opens_at < bindparam("soon", type_=Double))
        closed = sa.select(lanes.c.demand).where(opens_soon, unslow)
        return self._compile(ready_demands.where(has_open).union(closed), "soon", "now")

    # ── workers and keys ──────────────────────────────────────────────────────────────────────────────────────────

    def _people(self) -> None:
        workers, keys, invites, revocations = t.workers, t.api_keys, t.invites, t.revocations
        known = (
            workers.c.n,
            workers.c.address,
            workers.c.instance,
            workers.c.boots,
            workers.c.budget,
            workers.c.accepted,
            workers.c.prefix,
        )
        numbers, number = json_column("numbers", BigInteger())
        self.worker_by_identity = self._compile(
            sa.select(*known).where(
                workers.c.address == bindparam("address"), workers.c.instance == bindparam("instance")
            ),
            "address",
            "instance",
        )
        self.workers_by_number = self._compile(
            sa.select(*known).select_from(numbers).join(workers, workers.c.n == number), "numbers"
        )
        self.insert_worker = self.batches.insert(workers)
        self.update_budget = self._updating(workers, ("budget", "accepted"), ("n",))
        self.update_prefix = self._updating(workers, ("prefix",), ("n",))
        self.update_boots = self._updating(workers, ("boots",), ("n",))
        seen = ("payout", "peer_id", "boot", "hello", "stats", "seen_at")
        self.update_seen = self._updating(workers, seen, ("n",))
        self.update_enrolled = self._updating(workers, ("payout", "peer_id"), ("n",))
        self.insert_key = self.batches.insert(keys)
        instance = bindparam("instance", type_=String)
        self.revoke_name = self._compile(
            sa.update(keys)
            .where(
                keys.c.owner == bindparam("the_owner"),
                keys.c.role == bindparam("the_role"),
                keys.c.instance.is_not_distinct_from(instance),
                keys.c.revoked_at.is_(None),
            )
            .values(revoked_at=bindparam("at", type_=Double)),
            "at",
            "the_owner",
            "the_role",
            "instance",
        )
        self.revoke_owner = self._compile(
            sa.update(keys)
            .where(keys.c.owner == bindparam("the_owner"), keys.c.revoked_at.is_(None))
            .values(revoked_at=bindparam("at", type_=Double)),
            "at",
            "the_owner",
        )
        revoking = self._insert(revocations).values({each.name: bindparam(each.name) for each in revocations.columns})
        self.put_revocation = self._compile(
            revoking.on_conflict_do_update(
                index_elements=["owner"], set_={name: revoking.excluded[name] for name in ("who", "why", "at")}
            ),
            *(each.name for each in revocations.columns),
        )
        whose = revocations.c.owner == bindparam("the_owner")
        self.revocation = self._compile(sa.select(revocations.c.who, revocations.c.why).where(whose), "the_owner")
        self.lift_revocation = self._compile(sa.delete(revocations).where(whose), "the_owner")
        self.workers_of_address = self._compile(
            sa.select(*known).where(workers.c.address == bindparam("address")), "address"
        )
        putting = self._insert(invites).values({column.name: bindparam(column.name) for column in invites.columns})
        self.put_invite = self._compile(
            putting.on_conflict_do_update(
                index_elements=["digest"],
                set_={"uses_left": putting.excluded.uses_left, "expires_at": putting.excluded.expires_at},
            ),
            "digest",
            "uses_left",
            "expires_at",
        )
        self.use_invite = self._compile(
            sa.update(invites)
            .where(
                invites.c.digest == bindparam("the_digest"),
                invites.c.uses_left > sa.literal_column("0"),
                invites.c.expires_at > bindparam("now", type_=Double),
            )
            .values(uses_left=invites.c.uses_left - sa.literal_column("1")),
            "the_digest",
            "now",
        )
        self.insert_challenge = self.batches.insert(t.challenges, ignore=True)

    def _updating(self, table: sa.Table, columns: Sequence[str], keys: Sequence[str]) -> Compiled:
        """Set columns of the rows with these keys; parameters: the new values, then the keys."""
        return self._compile(
            sa.update(table)
            .where(*(table.c[name] == bindparam(f"the_{name}") for name in keys))
            .values({name: bindparam(f"new_{name}") for name in columns}),
            *(f"new_{name}" for name in columns),
            *(f"the_{name}" for name in keys),
        )
