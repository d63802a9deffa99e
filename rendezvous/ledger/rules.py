"""What the operator said, and what is held against workers, as the writer reads it: rows as values of the policy.

A ledger in which nobody ever paused, pinned or quarantined anything reads nothing here: the counters that every
transaction knows say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.egress import Flag
from rendezvous.policy.eligibility import Rules
from rendezvous.policy.hours import Hours
from rendezvous.policy.pauses import Pause, Scope, pauses_of
from rendezvous.policy.records import Record
from swarm.model import Refusal, RefusalCode

__all__ = [
    "ACT",
    "APART",
    "EGRESS",
    "QUARANTINE",
    "RECORD",
    "SECOND_ORDER",
    "apart_hosts",
    "flags_of",
    "load_rules",
    "note",
    "record_of",
    "records_of",
    "refuse_revoked",
    "rules_of",
]

#: The counter of operators' acts.
ACT: Final = "act"
#: The counter of rows in ``records``.
RECORD: Final = "record"
#: The counters of flagged networks, of changes to which hosts keep workers apart, of quarantines that the count
#: brought, and of those among them that hit a worker with work from another's quarantine in hand.
EGRESS: Final = "egress"
APART: Final = "apart"
QUARANTINE: Final = "quarantine"
SECOND_ORDER: Final = "second_order"
_NO_FLAGS: Final[Mapping[int, Flag]] = {}
_NOWHERE: Final[frozenset[int]] = frozenset()
_NO_RECORDS: Final[Mapping[int, Record]] = {}


def rules_of(pauses: Iterable[Any], approvals: Iterable[Any], hours: Mapping[str, Hours]) -> Rules:
    """The rules of these rows of ``pauses``, (name, version) of ``approvals``, and the hours of the settings."""
    approved: dict[str, set[str]] = {}
    for name, version in approvals:
        approved.setdefault(name, set()).add(version)
    held = (
        Pause(scope=Scope(scope), name=name, who=who, why=why, since=since)
        for scope, name, who, why, since, resumed_to in pauses
        if resumed_to is None
    )
    return Rules(pauses=pauses_of(held), approved=approved, hours=hours)


def record_of(columns: Any) -> Record:
    """The record of a row of ``records``."""
    _worker, _host, held_until, held_why, prefix, reports, careful, _at, until, by, why, times = columns
    return Record(
        held_until=held_until,
        held_why=held_why,
        prefix=prefix,
        reports=tuple(orjson.loads(reports)) if reports else (),
        careful=bool(careful),
        quarantined_until=until,
        quarantined_by=by,
        quarantined_why=why,
        quarantines=times,
    )


def load_rules(unit: Unit) -> Rules:
    """The rules that hold in this transaction."""
    memory = unit.memory
    if memory.rules is None:
        if not unit.counter(ACT):
            return Rules(hours=unit.settings.region_hours)
        statements = unit.statements.policy
        memory.rules = rules_of(
            unit.connection.rows(statements.pauses),
            [tuple(row) for row in unit.connection.rows(statements.approvals)],
            unit.settings.region_hours,
        )
    return memory.rules


def note(unit: Unit, *, who: str, act: str, subject: str, why: str) -> None:
    """Keep an act; what was believed of the rules is read again."""
    unit.connection.run(unit.statements.policy.insert_act, unit.next(ACT), unit.now, who, act, subject, why)
    unit.memory.rules = unit.memory.revoked = None


def refuse_revoked(unit: Unit, owner: str) -> Refusal | None:
    """Refuse a worker that was revoked: the door let its turn in before."""
    if not unit.counter(ACT):
        return None
    known = unit.memory.revoked
    if known is None:
        rows = unit.connection.rows(unit.statements.policy.revocations)
        known = unit.memory.revoked = {name: (who, why) for name, who, why in rows}
    if owner not in known:
        return None
    who, why = known[owner]
    return Refusal(RefusalCode.KEY_REVOKED, f"{who} revoked {owner}: {why}")


def flags_of(unit: Unit, prefix: str | None) -> Mapping[int, Flag]:
    """What is held against a network, host by host (their numbers)."""
    if prefix is None or not unit.counter(EGRESS):
        return _NO_FLAGS
    known = unit.memory.egress.get(prefix)
    if known is None:
        rows = unit.connection.rows(unit.statements.policy.egress, prefix)
        known = unit.memory.egress[prefix] = {host: Flag(until=until, why=why) for host, until, why in rows}
    return known


def apart_hosts(unit: Unit) -> frozenset[int]:
    """The hosts (their numbers) of which no two workers of one network hold tasks at once."""
    if not unit.counter(APART):
        return _NOWHERE
    if unit.memory.apart is None:
        rows = unit.connection.rows(unit.statements.policy.apart_hosts)
        unit.memory.apart = frozenset(number for (number,) in rows)
    return unit.memory.apart


def records_of(unit: Unit, worker: int) -> Mapping[int, Record]:
    """What is held against a worker, host by host (their numbers)."""
    memory = unit.memory
    known = memory.records.get(worker)
    if known is None:
        if not unit.counter(RECORD):
            return _NO_RECORDS
        rows = unit.connection.rows(unit.statements.policy.records, as_json([worker]))
        known = memory.records[worker] = {row[1]: record_of(row) for row in rows}
    return known
