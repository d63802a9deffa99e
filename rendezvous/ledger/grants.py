"""Who gets which task? A worker's turn, second half: offers first, then the best of what it may have.

Only lanes that are open and have a ready task are read, best first, and only for demands that the worker meets; so a
claim costs the same with a thousand tasks pending or a million, whatever stands before them in other lanes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from rendezvous.ledger.endings import expire
from rendezvous.ledger.guards import is_live, not_found
from rendezvous.ledger.lines import Lines
from rendezvous.ledger.ops import Assign, Assigned, Granted, TakeTurn, TurnResult
from rendezvous.ledger.picker import Picker
from rendezvous.ledger.rows import TaskRow, task_body
from rendezvous.ledger.rules import load_rules, refuse_revoked
from rendezvous.ledger.shared_pace import shares
from rendezvous.ledger.turns import TurnWork, renew_lease
from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.pauses import check_paused
from swarm.model import Actor, Move, Refusal, RefusalCode, Status, TaskId, Via

__all__ = ["assign", "grant", "result"]

_VIA: Final = {via.value: via for via in Via}


@attrs.frozen
class _Pick:
    turn: TurnWork
    seq: int
    via: Via


def grant(unit: Unit, lines: Lines, turns: Sequence[TurnWork]) -> None:
    """Give the turns of one group their tasks, in their order; send lost grants again."""
    for turn in turns:
        if turn.again:  # but for what a quarantine took back in this very group
            _grant_again(unit, turn, [row for row in turn.again if is_live(row, now=unit.now)])
    present = [turn for turn in turns if not turn.outdated and not _is_revoked(unit, turn)]
    rules = load_rules(unit)
    if rules.pauses.swarm is not None:  # told to those too that ask for nothing since they know of it
        _refuse_all(present, check_paused(rules.pauses))
        return
    asking = [turn for turn in present if turn.op.want or turn.op.offers]
    if not asking:
        return
    lines.open_due()
    picker = Picker(unit, lines, asking, wanted=sum(turn.op.want + len(turn.op.offers) for turn in asking))
    picks: list[_Pick] = []
    for turn in asking:
        asked = len(turn.op.offers) + turn.op.want
        room = (asked if turn.op.room is None else min(asked, turn.op.room)) - len(turn.granted)
        for seq in _offered(unit, picker, turn, room):
            picks.append(_Pick(turn, seq, Via.OFFER))
            room -= 1
        for _ in range(min(room, turn.op.want)):
            best = picker.best(turn)
            if best is None:
                turn.retry_after_s = picker.retry_after_s
                break
            picks.append(_Pick(turn, best, Via.WANT))
    _assign(unit, _shared(unit, lines, picks))
    lines.debit()


def _shared(unit: Unit, lines: Lines, picks: Sequence[_Pick]) -> Sequence[_Pick]:
    """Those of the picks that the pace which is shared with others gives, the first ones first."""
    if unit.pace is None or not picks:
        return picks
    rows = unit.tasks_by_seq([pick.seq for pick in picks])
    hosts = [lines.host(unit.memory.lanes[row.lane].host) for row in rows]
    left = shares(unit.pace, hosts, now=unit.now)
    given: list[_Pick] = []
    for pick, row, host in zip(picks, rows, hosts, strict=True):
        if host.n not in left:  # without a limit
            given.append(pick)
        elif left[host.n] > 0:
            left[host.n] -= 1
            given.append(pick)
        elif pick.via is Via.OFFER and pick.turn.op.explain:
            pick.turn.refused[row.id] = Refusal(
                RefusalCode.HOST_PACED, f"others had the turns of {host.host} for now", retry_after_s=1.0
            )
    return given


def _is_revoked(unit: Unit, turn: TurnWork) -> bool:
    """Whether the worker was revoked since the door let its turn in."""
    refusal = refuse_revoked(unit, turn.worker.ref.address)
    if refusal is not None:
        turn.refused.update((task, refusal) for task in turn.op.offers)
    return refusal is not None


def _refuse_all(turns: Iterable[TurnWork], refusal: Refusal | None) -> None:
    """Nothing is granted to anybody."""
    for turn in turns:
        if refusal is not None:
            turn.paused = refusal.message
            turn.refused.update((task, refusal) for task in turn.op.offers)


def _grant_again(unit: Unit, turn: TurnWork, rows: Iterable[TaskRow]) -> None:
    rows = list(rows)
    bodies = unit.bodies(row.seq for row in rows)
    for row in rows:
        lease_s = renew_lease(unit, row)
        turn.granted.append((row, bodies[row.seq], lease_s, True))


def _offered(unit: Unit, picker: Picker, turn: TurnWork, room: int) -> list[int]:
    """Those of the offers that the worker asks for which it gets."""
    op = turn.op
    mine: list[int] = []
    for task in dict.fromkeys(op.offers):
        row = unit.task(task)
        refusal = _refuse_offer(picker, turn, row, task)
        if refusal is None and row is not None and len(mine) < room:
            picker.take(row, turn)
            mine.append(row.seq)
        elif refusal is not None and op.explain:
            if row is not None and row.worker == turn.worker.n and is_live(row, now=unit.now):
                _grant_again(unit, turn, [row])  # asked again for what it holds: its answer was lost
            else:
                turn.refused[task] = refusal
    return mine


def _refuse_offer(picker: Picker, turn: TurnWork, row: TaskRow | None, task: TaskId) -> Refusal | None:
    if row is None:
        return not_found(task)
    if row.status in (Status.ACTIVE, Status.COMPLETED) or picker.is_taken(row.seq):
        return Refusal(
            RefusalCode.INVALID_ASSIGNEE,
            "invalid assignee: another worker has this task",
            details={"reason": "not_assignee", "status": row.status.value},
        )
    if row.status is not Status.PENDING:
        return Refusal(
            RefusalCode.WRONG_STATUS,
            f"the task can't be claimed: it is {row.status.value}",
            details={"status": row.status.value},
        )
    return picker.check(row, turn)


def _assign(unit: Unit, picks: Sequence[_Pick]) -> None:
    """Give the picked tasks: fence, lease, history."""
    if not picks:
        return
    tasks = unit.tasks_with_bodies([pick.seq for pick in picks])
    fence = unit.next("fence", by=len(picks))
    for pick, (row, body) in zip(picks, tasks, strict=True):
        if row.expires_at <= unit.now:  # the clock hasn't come to it yet
            expire(unit, row)
            continue
        turn, worker = pick.turn, pick.turn.worker
        unit.touch(row)
        row.worker, row.boot, row.via, row.fence = worker.n, turn.op.boot, pick.via.value, fence
        row.granted_at = unit.now
        row.lease_until = min(unit.now + unit.lease_s(unit.kind(row)), row.expires_at)
        fence += 1
        unit.move(row, Move.GRANT, Status.ACTIVE, Actor.WORKER)
        turn.granted.append((row, body, row.lease_until - unit.now, False))


def result(unit: Unit, turn: TurnWork, *, earned: bool) -> TurnResult:
    """The answer to a turn.

    Args:
        unit: its transaction.
        turn: all of it is done.
        earned: whether the turn brought something that is paid for by a voucher.
    """
    return TurnResult(
        ended=tuple(turn.ended),
        granted=_granted(unit, turn),
        renewed=tuple(turn.renewed),
        lost=tuple(turn.lost),
        cancelled=tuple(turn.cancelled),
        refused=turn.refused,
        paused=turn.paused,
        earned=earned,
        retry_after_s=turn.retry_after_s,
        outdated=turn.outdated,
    )


def _granted(unit: Unit, turn: TurnWork) -> tuple[Granted, ...]:
    return tuple(_grant_of(unit, row, body, lease_s=lease_s, again=again) for row, body, lease_s, again in turn.granted)


def _grant_of(unit: Unit, row: TaskRow, body: str, *, lease_s: float, again: bool) -> Granted:
    line = unit.memory.standing(row.lane)
    return Granted(
        task=task_body(row, body, job=unit.memory.jobs[row.job], kind=line.kind, signed=_is_signed(unit, row)),
        host=line.host,
        fence=row.fence,
        lease_s=lease_s,
        via=_VIA[row.via or Via.WANT.value],
        again=again,
    )


def _is_signed(unit: Unit, row: TaskRow) -> bool:
    """Whether a completion of this task needs its worker's signature, for the receipt."""
    return unit.settings.signs_all or row.reward_wei != "0"


def assign(unit: Unit, lines: Lines, op: Assign) -> tuple[Assigned, ...]:
    """Give ready tasks to workers that didn't ask, one by one to whoever has least to do for its size.

    How much a worker holds is counted here: what the door knows of it may be older than what was granted since.
    """
    if load_rules(unit).pauses.swarm is not None:
        return ()
    unit.flush()
    turns = [
        TurnWork(TakeTurn(worker=one.worker, boot=one.boot, facts=one.facts, partial=True), unit.worker(one.worker))
        for one in op.workers
    ]
    held = Counter(
        number for number, _ in unit.connection.rows(unit.statements.held_seqs, as_json([t.worker.n for t in turns]))
    )
    rooms = [
        min(one.free, one.slots - held[turn.worker.n])
        if turn.worker.boots[:1] == [one.boot] and not _is_revoked(unit, turn)
        else 0
        for one, turn in zip(op.workers, turns, strict=True)
    ]
    wanted = sum(room for room in rooms if room > 0)
    if not wanted:
        return ()
    lines.open_due()
    picker = Picker(unit, lines, turns, wanted=wanted)
    picks: list[_Pick] = []
    loaded = [
        (held[turn.worker.n] / op.workers[index].slots, index) for index, turn in enumerate(turns) if rooms[index] > 0
    ]
    heapq.heapify(loaded)
    while loaded:
        load, index = heapq.heappop(loaded)
        best = picker.best(turns[index])
        if best is None:
            continue
        picks.append(_Pick(turns[index], best, Via.ASSIGN))
        rooms[index] -= 1
        if rooms[index] > 0:
            heapq.heappush(loaded, (load + 1 / op.workers[index].slots, index))
    _assign(unit, _shared(unit, lines, picks))
    lines.debit()
    return tuple(Assigned(worker=turn.op.worker, granted=_granted(unit, turn)) for turn in turns if turn.granted)
