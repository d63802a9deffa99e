"""What the operator said, and what is held against workers, as the writer reads it: rows as values of the policy.

A ledger in which nobody ever paused, pinned or quarantined anything reads nothing here: the counters that every
transaction knows say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.eligibility import Rules
from rendezvous.policy.pauses import Pause, Scope, pauses_of
from rendezvous.policy.records import Record

__all__ = ["ACT", "NO_RULES", "RECORD", "load_rules", "record_of", "records_of", "rules_of"]

#: The counter of operators' acts.
ACT: Final = "act"
#: The counter of rows in ``records``.
RECORD: Final = "record"
NO_RULES: Final = Rules()
_NO_RECORDS: Final[Mapping[int, Record]] = {}


def rules_of(pauses: Iterable[Any], approvals: Iterable[Any]) -> Rules:
    """The rules of these rows of ``pauses``, and (name, version) of ``approvals``."""
    approved: dict[str, set[str]] = {}
    for name, version in approvals:
        approved.setdefault(name, set()).add(version)
    held = (
        Pause(scope=Scope(scope), name=name, who=who, why=why, since=since)
        for scope, name, who, why, since, resumed_to in pauses
        if resumed_to is None
    )
    return Rules(pauses=pauses_of(held), approved=approved)


def record_of(columns: Any) -> Record:
    """The record of a row of ``records``."""
    _worker, _host, until, by, why, times = columns
    return Record(quarantined_until=until, quarantined_by=by, quarantined_why=why, quarantines=times)


def load_rules(unit: Unit) -> Rules:
    """The rules that hold in this transaction."""
    memory = unit.memory
    if memory.rules is None:
        if not unit.counter(ACT):
            return NO_RULES
        statements = unit.statements.policy
        memory.rules = rules_of(
            unit.connection.rows(statements.pauses), [tuple(row) for row in unit.connection.rows(statements.approvals)]
        )
    return memory.rules


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
