"""A worker's turn, first half: what it ended, what it holds, what it lost. The second half is ``grants.py``.

All turns of a group go through here one after another, on rows read at once; then their changes are written at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from rendezvous.ledger.contexts import note_accepted_profile, note_challenged
from rendezvous.ledger.endings import fail, give_back, lose_by_restart
from rendezvous.ledger.guards import (
    check_lease,
    is_live,
    not_found,
    repeated_failure,
    repeated_release,
    repeated_result,
)
from rendezvous.ledger.lines import Lines
from rendezvous.ledger.money import honours
from rendezvous.ledger.ops import (
    DoneItem,
    Ended,
    FailedItem,
    LeaseRef,
    RenewedLease,
    SignedCompletion,
    TakeTurn,
)
from rendezvous.ledger.records import note_accepted
from rendezvous.ledger.rows import TaskRow, WorkerRow
from rendezvous.ledger.slowness import look_at_leases, note_end
from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.eligibility import Demand
from swarm.model import Actor, Move, Reason, Refusal, RefusalCode, Status, TaskId

__all__ = ["TurnWork", "begin_turns", "renew_lease", "settle"]

#: How many boots of a worker are remembered: a late turn of an earlier one must not take the present one's leases.
BOOTS_KEPT = 8


class TurnWork:
    """One turn on its way through a group.

    Attributes:
        outdated: it comes from an earlier boot than the worker's latest: it may end what it holds, and gets nothing.
        leases: what the worker held before this turn; read for whole turns only.
        again: live leases whose grant was lost on its way.
        barred: hosts (their numbers) of which this worker gets nothing.
    """

    __slots__ = (
        "again",
        "barred",
        "cancelled",
        "ended",
        "granted",
        "leases",
        "lost",
        "op",
        "outdated",
        "paused",
        "refused",
        "renewed",
        "retry_after_s",
        "worker",
    )

    def __init__(self, op: TakeTurn, worker: WorkerRow) -> None:
        self.op = op
        self.worker = worker
        self.outdated = False
        self.leases: Sequence[TaskRow] = ()
        self.again: Sequence[TaskRow] = ()
        self.barred: frozenset[int] = frozenset()
        self.ended: list[Ended] = []
        self.renewed: list[RenewedLease] = []
        self.lost: list[int] = []
        self.cancelled: list[TaskId] = []
        #: What it was granted: the task and its body, how long the lease runs (seconds), and whether it is sent again.
        self.granted: list[tuple[TaskRow, str, float, bool]] = []
        self.refused: dict[TaskId, Refusal] = {}
        self.paused: str | None = None
        self.retry_after_s: float | None = None


def begin_turns(unit: Unit, ops: Sequence[TakeTurn]) -> list[TurnWork]:
    """Note who is there, and read at once what the turns speak of."""
    unit.read_ahead((op.worker for op in ops), (task for op in ops for task in _named(op)))
    turns = [TurnWork(op, unit.worker(op.worker)) for op in ops]
    for turn in turns:
        if turn.op.facts.kinds:  # a single call says nothing of itself
            unit.fleet.hear(turn.op.worker, turn.op.facts, now=unit.now)
        _note_boot(unit, turn)
        prefix = turn.op.facts.prefix
        if prefix is not None and prefix != turn.worker.prefix:
            turn.worker.prefix = prefix
            unit.connection.later_once(unit.statements.update_prefix, prefix, turn.worker.n)
    whole = {turn.worker.n for turn in turns if not turn.op.partial}
    if whole:
        held: dict[int, list[int]] = {}
        for worker, seq in unit.connection.rows(unit.statements.held_seqs, as_json(whole)):
            held.setdefault(worker, []).append(seq)
        unit.tasks_by_seq([seq for seqs in held.values() for seq in seqs])
        for turn in turns:
            if not turn.op.partial and not turn.outdated:
                turn.leases = unit.tasks_by_seq(held.get(turn.worker.n, []))
                look_at_leases(unit, turn)
    return turns


def _named(op: TakeTurn) -> Iterator[TaskId]:
    for items in (op.done, op.failed, op.released, op.held, op.renew):
        if items:
            yield from [item.task for item in items]
    yield from op.offers


def _note_boot(unit: Unit, turn: TurnWork) -> None:
    """A boot that wasn't seen yet is the worker's present one from now on."""
    boots, boot = turn.worker.boots, turn.op.boot
    if boots and boots[0] == boot:
        return
    if boot in boots:
        turn.outdated = True
        return
    if turn.op.partial:
        return
    turn.worker.boots = [boot, *boots][:BOOTS_KEPT]
    unit.connection.later_once(unit.statements.update_boots, orjson.dumps(turn.worker.boots).decode(), turn.worker.n)


def settle(unit: Unit, lines: Lines, turns: Sequence[TurnWork]) -> None:
    """Do all of the turns but their grants."""
    for turn in turns:
        _settle_one(unit, lines, turn)


def _settle_one(unit: Unit, lines: Lines, turn: TurnWork) -> None:
    op, worker = turn.op, turn.worker
    for done in op.done:
        turn.ended.append(Ended(task=done.task, fence=done.fence, outcome=_done(unit, turn, done)))
    for failed in op.failed:
        turn.ended.append(Ended(task=failed.task, fence=failed.fence, outcome=_failed(unit, turn, failed)))
    for released in op.released:
        outcome = _released(unit, worker, released)
        turn.ended.append(Ended(task=released.task, fence=released.fence, outcome=outcome))
    for row in turn.leases:
        if row.status is Status.ACTIVE and row.boot != op.boot:
            lose_by_restart(unit, lines, row)
    if op.held or op.renew:
        renewing = set(op.renew)
        for ref in dict.fromkeys((*op.held, *op.renew)):
            _hold(unit, unit.task(ref.task), turn, ref, renew=ref in renewing)
    if turn.leases:
        spoken_of = {ref.task for items in (op.done, op.failed, op.released, op.held, op.renew) for ref in items}
        turn.again = [row for row in turn.leases if row.id not in spoken_of and is_live(row, now=unit.now)]


def _done(unit: Unit, turn: TurnWork, item: DoneItem) -> Status | Refusal:
    worker = turn.worker
    row = unit.task(item.task)
    if row is None:
        return not_found(item.task)
    stored = repeated_result(row, worker.n, item)
    if stored is not None:
        return stored
    refusal = check_lease(row, worker.n, item.fence, now=unit.now)
    if refusal is not None and not honours(unit, row, worker.n, item.fence):
        return refusal
    if not item.verified:  # granted only since the door looked: an honest worker can't know of it yet
        return Refusal(RefusalCode.RESULT_UNREADABLE, "the result wasn't looked at yet; report it again")
    if item.signed is not None:
        if item.signed.generation != row.funding_generation:
            return Refusal(
                RefusalCode.SIGNATURE_INVALID,
                f"the completion is signed for generation {item.signed.generation}, the task's is "
                f"{row.funding_generation}: sign what the grant says",
            )
        unit.receipts.append(_receipt(row, worker, item, item.signed, now=unit.now))
    unit.touch(row)
    row.attempts += 1
    row.result = item.cid
    row.result_bytes = item.size_bytes
    row.reason = row.detail = None
    row.accepted = unit.now  # no check is set: accepted at completion
    _sample(unit, row, turn, done=True)
    row.lease_until = None
    if item.manifest is not None:
        unit.manifests.append((item.cid, item.manifest))
    unit.move(row, Move.COMPLETE, Status.COMPLETED, Actor.ASSIGNEE)
    note_accepted(unit, worker)
    demand = _demand(unit, row)
    if demand.has_context:
        note_accepted_profile(unit, demand)
    return row.status


def _receipt(
    row: TaskRow, worker: WorkerRow, item: DoneItem, signed: SignedCompletion, *, now: float
) -> tuple[Any, ...]:
    """A row of ``receipts``, in the order of its columns."""
    who = (worker.ref.address, signed.payout, item.cid, row.reward_wei)
    return (row.id, row.funding_generation, row.fence, *who, signed.signature, now, None)


def _failed(unit: Unit, turn: TurnWork, item: FailedItem) -> Status | Refusal:
    worker = turn.worker
    row = unit.task(item.task)
    if row is None:
        return not_found(item.task)
    stored = repeated_failure(row, worker.n, item)
    if stored is not None:
        return stored
    refusal = check_lease(row, worker.n, item.fence, now=unit.now)
    if refusal is not None:
        return refusal
    _sample(unit, row, turn, done=False)
    fail(
        unit,
        row,
        Actor.ASSIGNEE,
        reason=item.reason,
        detail=item.detail,
        said_retryable=item.retryable,
    )
    demand = _demand(unit, row)
    if demand.has_context and item.reason == Reason.BLOCKED:
        note_challenged(unit, demand)
    if item.reason == Reason.BLOCKED or item.retry_after_s is not None:
        why = f"{item.reason}: {item.detail}" if item.detail else item.reason
        unit.reports.append((row, worker, why, item.retry_after_s))
    return row.status


def _released(unit: Unit, worker: WorkerRow, ref: LeaseRef) -> Status | Refusal:
    row = unit.task(ref.task)
    if row is None:
        return not_found(ref.task)
    stored = repeated_release(row, worker.n, ref.fence)
    if stored is not None:
        return stored
    refusal = check_lease(row, worker.n, ref.fence, now=unit.now)
    if refusal is not None:
        return refusal
    give_back(unit, row, Actor.ASSIGNEE)
    return row.status


def _hold(unit: Unit, row: TaskRow | None, turn: TurnWork, ref: LeaseRef, *, renew: bool) -> None:
    """What becomes of a lease that the worker says it holds."""
    mine = row is not None and row.worker == turn.worker.n and row.fence == ref.fence
    if row is None or not mine or row.status is not Status.ACTIVE:
        if row is not None and mine and row.status is Status.CANCELLED:
            turn.cancelled.append(row.id)
        elif row is None or not mine or row.status is not Status.COMPLETED:
            turn.lost.append(ref.fence)
        return
    if not is_live(row, now=unit.now):
        turn.lost.append(ref.fence)
    elif renew:
        turn.renewed.append(RenewedLease(task=row.id, fence=row.fence, lease_s=renew_lease(unit, row)))


def renew_lease(unit: Unit, row: TaskRow) -> float:
    """Let a live lease run for another while; after ``max_run_s`` what is left of it is all there is.

    Returns:
        How long it runs from now, seconds.
    """
    until, granted_at = row.lease_until or unit.now, row.granted_at or unit.now
    if unit.now - granted_at < row.max_run_s:
        unit.touch(row)
        until = max(until, min(unit.now + unit.lease_s(unit.kind(row)), row.expires_at))
        row.lease_until = until
        unit.move(row, Move.RENEW, Status.ACTIVE, Actor.ASSIGNEE)
    return until - unit.now


def _demand(unit: Unit, row: TaskRow) -> Demand:
    memory = unit.memory
    return memory.demands[memory.lanes[row.lane].demand]


def _sample(unit: Unit, row: TaskRow, turn: TurnWork, *, done: bool) -> None:
    """Note how long an execution took, and how the versions that ran it fared."""
    kind = unit.kind(row)
    if row.granted_at is not None:
        unit.sample(kind, unit.now - row.granted_at)
        note_end(unit, row, unit.now - row.granted_at)
    versions = turn.op.facts.versions
    if versions:
        unit.outcomes.append((kind, versions, done))
