"""What is held against workers on hosts, as the writer keeps it; and what becomes of the work that they held.

The rules are ``rendezvous.policy.records``; here they meet the tables.
"""

from __future__ import annotations

from rendezvous.ledger.lines import Lines
from rendezvous.ledger.rules import RECORD, records_of
from rendezvous.ledger.unit import Unit
from rendezvous.policy.records import Record
from swarm.model import Actor, Move, Status, TaskId

__all__ = ["keep_record", "requeue_held"]


def keep_record(unit: Unit, worker: int, host: int, record: Record) -> None:
    """Write what is held against a worker on a host."""
    known = dict(records_of(unit, worker))
    if host not in known:
        unit.next(RECORD)
    known[host] = record
    unit.memory.records[worker] = known
    unit.connection.run(
        unit.statements.policy.put_record,
        worker,
        host,
        record.quarantined_until,
        record.quarantined_by,
        record.quarantined_why,
        record.quarantines,
    )


def requeue_held(
    unit: Unit, lines: Lines, worker: int, host: int, *, by: Actor, who: str | None, why: str
) -> tuple[TaskId, ...]:
    """Take what a worker holds of a host away from it; the attempts aren't counted.

    Returns:
        The tasks that went back.
    """
    unit.flush()
    held = [seq for (seq,) in unit.connection.rows(unit.statements.held_of_host, worker, host)]
    requeued = []
    for row in unit.tasks_by_seq(held):
        if row.status is not Status.ACTIVE:
            continue
        unit.touch(row)
        row.lease_until = None
        unit.move(row, Move.QUARANTINE, Status.PENDING, by, who=who, detail=why)
        requeued.append(row.id)
    return tuple(requeued)
