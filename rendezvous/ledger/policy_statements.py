"""The writer's statements about the operator's acts, and about what is held against workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Double, bindparam

from rendezvous.ledger import tables as t
from rendezvous.ledger.engine import Compiled
from rendezvous.ledger.json_rows import json_column

__all__ = ["PolicyStatements"]


class PolicyStatements:
    """Compiled once for a dialect; parameters by position, in the order written here."""

    def __init__(self, compiled: Callable[..., Compiled], insert: Any) -> None:
        pauses, approvals, records = t.pauses, t.approvals, t.records

        def putting(table: sa.Table) -> Compiled:
            """Insert a row, or replace what hangs on its key."""
            names = tuple(column.name for column in table.columns)
            keys = [column.name for column in table.primary_key.columns]
            row = insert(table).values({name: bindparam(name) for name in names})
            kept = {name: row.excluded[name] for name in names if name not in keys}
            return compiled(row.on_conflict_do_update(index_elements=keys, set_=kept), *names)

        self.pauses: Final = compiled(sa.select(pauses))
        self.revocations: Final = compiled(sa.select(t.revocations.c.owner, t.revocations.c.who, t.revocations.c.why))
        self.put_pause: Final = putting(pauses)
        self.resume_job: Final = compiled(
            sa.update(pauses)
            .where(pauses.c.scope == bindparam("the_scope"), pauses.c.name == bindparam("the_name"))
            .values(resumed_to=bindparam("new_resumed_to")),
            "new_resumed_to",
            "the_scope",
            "the_name",
        )
        self.drop_pause: Final = compiled(
            sa.delete(pauses).where(pauses.c.scope == bindparam("the_scope"), pauses.c.name == bindparam("the_name")),
            "the_scope",
            "the_name",
        )
        self.approvals: Final = compiled(sa.select(approvals.c.name, approvals.c.version))
        self.put_approval: Final = putting(approvals)
        self.drop_approval: Final = compiled(
            sa.delete(approvals).where(
                approvals.c.name == bindparam("the_name"), approvals.c.version == bindparam("the_version")
            ),
            "the_name",
            "the_version",
        )
        workers, worker = json_column("workers", BigInteger())
        self.records: Final = compiled(
            sa.select(records).select_from(workers).join(records, records.c.worker == worker), "workers"
        )
        self.put_record: Final = putting(records)
        now = bindparam("now", type_=Double)
        #: Those that hold now on a host: parameters: the host, then now, twice.
        self.records_of_host: Final = compiled(
            sa.select(records).where(
                records.c.host == bindparam("the_host"),
                sa.or_(records.c.held_until > now, records.c.quarantined_until > bindparam("again", type_=Double)),
            ),
            "the_host",
            "now",
            "again",
        )
        self.forget_records: Final = compiled(
            sa.delete(records).where(
                records.c.changed_at < bindparam("before", type_=Double),
                sa.func.coalesce(records.c.quarantined_until, sa.literal_column("0")) < now,
            ),
            "before",
            "now",
        )
        contexts, counts = t.contexts, t.version_counts
        self.context: Final = compiled(
            sa.select(contexts.c.worker, contexts.c.used_at, contexts.c.accepted, contexts.c.challenges).where(
                contexts.c.kind == bindparam("the_kind"), contexts.c.name == bindparam("the_name")
            ),
            "the_kind",
            "the_name",
        )
        self.put_context: Final = putting(contexts)
        self.forget_contexts: Final = compiled(
            sa.delete(contexts).where(
                contexts.c.kind == bindparam("the_kind"), contexts.c.used_at < bindparam("before", type_=Double)
            ),
            "the_kind",
            "before",
        )
        self.versions: Final = compiled(sa.select(counts.c.kind, counts.c.worker, counts.c.version))
        counted = tuple(column.name for column in counts.columns)
        adding = insert(counts).values({name: bindparam(name) for name in counted})
        self.add_to_version: Final = compiled(
            adding.on_conflict_do_update(
                index_elements=list(counts.primary_key.columns),
                set_={name: counts.c[name] + adding.excluded[name] for name in ("done", "failed")},
            ),
            *counted,
        )
        egress, hosts = t.egress, t.hosts
        self.egress: Final = compiled(
            sa.select(egress.c.host, egress.c.until, egress.c.why).where(egress.c.prefix == bindparam("the_prefix")),
            "the_prefix",
        )
        self.put_egress: Final = putting(egress)
        self.forget_egress: Final = compiled(
            sa.delete(egress).where(egress.c.until < bindparam("before", type_=Double)), "before"
        )
        self.apart_hosts: Final = compiled(sa.select(hosts.c.n).where(hosts.c.apart.is_not(None)))
        self.set_apart: Final = compiled(
            sa.update(hosts).where(hosts.c.n == bindparam("the_n")).values(apart=bindparam("new_apart")),
            "new_apart",
            "the_n",
        )
        slow_until = hosts.c.slow_until
        self.slow_hosts: Final = compiled(sa.select(hosts.c.n, slow_until).where(slow_until.is_not(None)))
        self.set_slow: Final = compiled(
            sa.update(hosts).where(hosts.c.n == bindparam("the_n")).values(slow_until=bindparam("new_slow_until")),
            "new_slow_until",
            "the_n",
        )
        self.forget_slow: Final = compiled(sa.update(hosts).where(slow_until < now).values(slow_until=sa.null()), "now")
        acts = tuple(column.name for column in t.acts.columns)
        self.insert_act: Final = compiled(insert(t.acts).values({name: bindparam(name) for name in acts}), *acts)
