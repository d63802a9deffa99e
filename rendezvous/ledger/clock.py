"""What time does to tasks: they wake, leases run out, tasks expire, passed-over workers are asked again.

A sweep handles a bounded batch of each and says when the next one is due; nothing here looks at a clock itself.
"""

from __future__ import annotations

from typing import Final

from rendezvous.ledger.acts import unpark
from rendezvous.ledger.endings import expire, lose, reconsider_passed_over
from rendezvous.ledger.lines import Lines
from rendezvous.ledger.ops import Forget
from rendezvous.ledger.rows import TaskRow
from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.contexts import SESSION_KEPT_S, ContextKind
from rendezvous.policy.leases import REARM_S
from swarm.model import TERMINAL, Actor, Move, Status

__all__ = ["forget", "rearm", "sweep"]

#: A sweep comes at least so often, whatever is due, seconds.
LONGEST_PAUSE_S: Final = 60.0
#: Challenges live for 5 min (DESIGN §4); a used one is remembered for longer than that.
CHALLENGE_KEEP_S: Final = 3600.0
#: What was held against a worker is remembered for so long after it ended, seconds.
RECORD_KEEP_S: Final = 86_400.0
#: Of so many combinations of versions outcomes are kept: they are what workers say of themselves, and may be anything.
VERSIONS_MOST: Final = 1_000


def sweep(unit: Unit, lines: Lines) -> float:
    """Do what is due.

    Returns:
        When to sweep again, seconds from now: 0 where a batch was full and more is due.
    """
    statements = unit.statements
    for row in unit.read_tasks(statements.ripe_leases, unit.now):
        if row.expires_at <= unit.now:
            expire(unit, row)
        else:
            lose(unit, lines, row)
    unit.flush()
    for row in unit.read_tasks(statements.ripe_expiring, unit.now):
        expire(unit, row)
    unit.flush()
    for row in unit.read_tasks(statements.ripe_waiting, unit.now):
        _wake(unit, row)
    for row in unit.read_tasks(statements.ripe_passed_over, unit.now):
        reconsider_passed_over(unit, lines, row)
    unit.flush()
    more = unpark(unit, lines)
    connection = unit.connection
    connection.later_once(statements.forget_idempotency, unit.now - unit.settings.idempotency_keep_s)
    connection.later_once(statements.forget_challenges, unit.now - CHALLENGE_KEEP_S)
    connection.later_once(statements.forget_invites, unit.now)
    connection.later_once(statements.policy.forget_records, unit.now - RECORD_KEEP_S, unit.now)
    connection.later_once(statements.policy.forget_egress, unit.now)
    connection.later_once(statements.policy.forget_contexts, ContextKind.SESSION.value, unit.now - SESSION_KEPT_S)
    unit.fleet.forget_silent(now=unit.now)
    _keep_tally(unit)
    due: list[float] = [at for at in connection.rows(statements.next_due)[0] if at is not None]
    return 0.0 if more else max(0.0, min([at - unit.now for at in due] + [LONGEST_PAUSE_S]))


def _keep_tally(unit: Unit) -> None:
    """Add what came out of tasks since the last sweep to what is kept by version."""
    tally, unit.fleet.tally = unit.fleet.tally, {}
    if not tally:
        return
    policy = unit.statements.policy
    known = {(kind, worker, version) for kind, worker, version in unit.connection.rows(policy.versions)}
    fresh = sorted(tally.keys() - known)[: max(0, VERSIONS_MOST - len(known))]
    kept = sorted({*(tally.keys() & known), *fresh})
    unit.connection.many(policy.add_to_version, [(*key, *tally[key]) for key in kept])


def _wake(unit: Unit, row: TaskRow) -> None:
    unit.touch(row)
    row.wake_at = None
    unit.move(row, Move.WAKE, Status.PENDING, Actor.LEDGER)


def rearm(unit: Unit) -> int:
    """Let every lease run for another while: nobody could renew them during a stall."""
    unit.flush()
    rearmed = unit.connection.run(unit.statements.rearm, unit.now + REARM_S)
    for row in [row for row in unit.memory.rows.values() if row.status is Status.ACTIVE]:
        unit.memory.drop(row)
    return rearmed


def forget(unit: Unit, op: Forget) -> int:
    """Delete archived tasks with all that hangs on them; those that money is still to move for stay."""
    unit.flush()
    owed = {task for (task,) in unit.connection.rows(unit.statements.money.unsettled, as_json(op.tasks))}
    old = [
        row
        for row in unit.tasks_by_id(op.tasks).values()
        if row.status in TERMINAL
        and row.finished_at is not None
        and row.finished_at < op.ended_before
        and row.id not in owed
    ]
    if not old:
        return 0
    connection, statements = unit.connection, unit.statements
    seqs = as_json(row.seq for row in old)
    keys = [(digest, seq) for seq, _body, digest, _ttl_s in connection.rows(statements.bodies, seqs)]
    connection.many(statements.forget_dedupe, keys)
    connection.run(statements.forget_events, as_json(event for row in old for event in _history(unit, row)))
    connection.run(statements.forget_manifests, as_json(row.result for row in old if row.result is not None))
    connection.run(statements.forget_bodies, seqs)
    connection.run(statements.forget_tasks, seqs)
    for row in old:
        unit.count(row.job, row.status, -1)
        unit.memory.drop(row)
    return len(old)


def _history(unit: Unit, row: TaskRow) -> list[int]:
    """The numbers of a task's events."""
    events = []
    event: int | None = row.last_event
    while event is not None:
        events.append(event)
        found = unit.connection.rows(unit.statements.previous_event, event)
        event = found[0][0] if found else None
    return events
