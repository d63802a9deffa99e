"""What is held against workers on hosts, as the writer keeps it; and what becomes of the work that they held.

The rules are ``rendezvous.policy.records``, ``egress`` and ``budget``; here they meet the tables.
"""

from __future__ import annotations

import orjson

from rendezvous.ledger.lines import Lines
from rendezvous.ledger.rows import TaskRow, WorkerRow
from rendezvous.ledger.rules import EGRESS, QUARANTINE, RECORD, SECOND_ORDER, note, record_of, records_of
from rendezvous.ledger.unit import Unit
from rendezvous.policy import budget
from rendezvous.policy.egress import FLAGGED_AFTER
from rendezvous.policy.records import (
    CAREFUL_S,
    CLEAN,
    Record,
    agreed_until,
    is_due,
    quarantine_s,
    quarantined,
    reported,
    share_left,
)
from swarm.model import Actor, Move, Status, TaskId

__all__ = ["keep_record", "note_accepted", "note_lost", "requeue_held", "take_reports"]

#: Whose name the acts of the count have.
POLICY = "policy"


def keep_record(unit: Unit, worker: int, host: int, record: Record) -> None:
    """Write what is held against a worker on a host."""
    known = dict(records_of(unit, worker))
    if host not in known:
        unit.next(RECORD)
    known[host] = record
    unit.memory.records[worker] = known
    unit.connection.later_once(
        unit.statements.policy.put_record,
        worker,
        host,
        record.held_until,
        record.held_why,
        record.prefix,
        orjson.dumps(record.reports).decode() if record.reports else None,
        1 if record.careful else None,
        unit.now,
        record.quarantined_until,
        record.quarantined_by,
        record.quarantined_why,
        record.quarantines,
    )


def requeue_held(
    unit: Unit, lines: Lines, worker: int, host: int, *, by: Actor, who: str | None, why: str
) -> tuple[TaskId, ...]:
    """Take what a worker holds of a host away from it; the attempts aren't counted.

    For a while it goes to no newcomer and not to this worker again, and by preference to a clean record.

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
        row.passed_until = unit.now + CAREFUL_S
        lines.handle_with_care(row, worker)
        unit.move(row, Move.QUARANTINE, Status.PENDING, by, who=who, detail=why)
        requeued.append(row.id)
    return tuple(requeued)


def take_reports(unit: Unit, lines: Lines) -> None:
    """Draw the conclusions of what the turns of a group reported, once all that they ended has ended."""
    for row, worker, why, retry_after_s in unit.reports:
        _report(unit, lines, row, worker, why=why, retry_after_s=retry_after_s)
    unit.reports.clear()


def _report(
    unit: Unit, lines: Lines, row: TaskRow, worker: WorkerRow, *, why: str, retry_after_s: float | None
) -> None:
    """A worker says that a host turned it away: it waits there; others do where one of another network agrees.

    Args:
        unit: the transaction.
        lines: its hosts.
        row: the task, which has ended as failed by now.
        worker: who says so.
        why: its reason and details.
        retry_after_s: what it says that the host asked for, seconds.
    """
    memory = unit.memory
    lane = memory.lanes[row.lane]
    record = reported(
        records_of(unit, worker.n).get(lane.host, CLEAN),
        why=why,
        retry_after_s=retry_after_s,
        prefix=worker.prefix,
        granted_at=unit.now if row.granted_at is None else row.granted_at,
        careful=memory.demands[lane.demand].careful,
        now=unit.now,
    )
    others = [
        (other[0], record_of(other))
        for other in unit.connection.rows(unit.statements.policy.records_of_host, lane.host, unit.now, unit.now)
        if other[0] != worker.n
    ]
    until = agreed_until(record, (other for _, other in others), now=unit.now)
    held_until = lines.host(lane.host).bucket.held_until
    if until is not None and until > (held_until or 0.0):
        said = f"workers of different networks were turned away ({why})"
        lines.hold(memory.hosts[lane.host], for_s=until - unit.now, why=said)
    if is_due(record, now=unit.now):
        _quarantine(unit, lines, worker, lane.host, record, agreed=until is not None)
        _flag_egress(unit, worker, lane.host, [other for _, other in others])
    else:
        keep_record(unit, worker.n, lane.host, record)


def _quarantine(unit: Unit, lines: Lines, worker: WorkerRow, host: int, record: Record, *, agreed: bool) -> None:
    """The count says so.

    Where another network agrees, nobody takes over what the worker asked of the host. Else it is the word of one
    worker, which slows nobody else.
    """
    for_s = quarantine_s(record.quarantines)
    why = f"it was turned away {len(record.reports)} times: {record.held_why}"
    unit.next(QUARANTINE)
    if record.careful:
        unit.next(SECOND_ORDER)
    unit.flush()
    if agreed:
        ((busy,),) = unit.connection.rows(unit.statements.workers_on_host, host)
        lines.ease(host, share=share_left(busy), for_s=for_s)
    keep_record(unit, worker.n, host, quarantined(record, for_s=for_s, by=None, why=why, now=unit.now))
    subject = f"{worker.ref.address}:{worker.ref.instance} on {unit.memory.hosts[host]}"
    note(unit, who=POLICY, act="quarantined", subject=subject, why=why)
    requeue_held(unit, lines, worker.n, host, by=Actor.LEDGER, who=None, why=f"its worker is in quarantine: {why}")


def _flag_egress(unit: Unit, worker: WorkerRow, host: int, others: list[Record]) -> None:
    """Where several workers of one network are in quarantine, it is the network."""
    same = [
        other
        for other in others
        if other.is_quarantined(unit.now) and other.quarantined_by is None and other.prefix == worker.prefix
    ]
    if worker.prefix is None or len(same) + 1 < FLAGGED_AFTER:
        return
    until = max(other.quarantined_until or unit.now for other in same)
    why = f"{len(same) + 1} workers of it are in quarantine there"
    unit.next(EGRESS)
    unit.memory.egress.pop(worker.prefix, None)
    unit.connection.run(unit.statements.policy.put_egress, worker.prefix, host, until, why)
    note(unit, who=POLICY, act="egress_flagged", subject=f"{worker.prefix} on {unit.memory.hosts[host]}", why=why)


# ── claim budgets ─────────────────────────────────────────────────────────────────────────────────────────────────


def note_accepted(unit: Unit, worker: WorkerRow) -> None:
    """A worker's work was accepted: it isn't brand-new any more, and in time may hold more."""
    first = not worker.accepted
    grown = worker.budget
    if unit.settings.newcomer_budget > 0 and (worker.budget or 0) < budget.MOST:
        held = worker.budget or unit.settings.newcomer_budget
        accepted = unit.fleet.accepted[worker.n] = unit.fleet.accepted.get(worker.n, 0) + 1
        if budget.grown(held, accepted) != held:
            grown = budget.grown(held, accepted)
            unit.fleet.accepted[worker.n] = 0
    if first or grown != worker.budget:
        worker.accepted, worker.budget = 1, grown
        unit.connection.later_once(unit.statements.update_budget, grown, 1, worker.n)


def note_lost(unit: Unit, number: int) -> None:
    """Leases of a worker ran out: it may hold less. Those that ran out together count once."""
    if unit.settings.newcomer_budget <= 0 or number in unit.losers:
        return
    unit.losers.add(number)
    unit.know_workers({number})
    worker = unit.memory.workers[number]
    worker.budget = budget.shrunk(worker.budget or unit.settings.newcomer_budget)
    unit.fleet.accepted[number] = 0
    unit.connection.later_once(unit.statements.update_budget, worker.budget, worker.accepted, number)
