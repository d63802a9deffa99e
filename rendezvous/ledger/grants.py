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

from rendezvous.ledger.contexts import begin_context, contexts_of
from rendezvous.ledger.endings import expire
from rendezvous.ledger.guards import is_live, not_found
from rendezvous.ledger.lines import HostState, Lines
from rendezvous.ledger.ops import Assign, Assigned, Granted, TakeTurn
from rendezvous.ledger.rows import TaskRow, task_body
from rendezvous.ledger.rules import flags_of, load_rules, records_of
from rendezvous.ledger.shared_pace import shares
from rendezvous.ledger.standing import Crowd, barred_hosts, budgets_of
from rendezvous.ledger.turns import TurnWork, renew_lease
from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.budget import check_budget
from rendezvous.policy.eligibility import (
    Candidate,
    Demand,
    check_contexts,
    check_demand,
    check_passed_over,
    check_suspect,
    decide,
)
from rendezvous.policy.hours import check_hours
from rendezvous.policy.pauses import check_paused
from rendezvous.policy.records import CLEAN, check_careful, check_troubled
from rendezvous.policy.versions import check_approved
from swarm.model import Actor, Move, Refusal, RefusalCode, Status, TaskId, Via

__all__ = ["assign", "grant"]

_VIA: Final = {via.value: via for via in Via}
#: How many tasks of one lane are read ahead, at most, where its host gives as many.
WINDOW: Final = 1_024
#: How many tasks of paused jobs one transaction sets aside, at most: some ten milliseconds of the writer.
PARKED_MOST: Final = 1_000


#: (rank, seq, lane): the lowest is first.
_Place = tuple[float, int, int]


@attrs.define
class _Line:
    """A lane on its way through a group: the tasks that were read of it, and how many of them were looked at."""

    lane: int
    host: int
    read: list[tuple[float, int]]
    looked_at: int = 0
    exhausted: bool = False


@attrs.frozen
class _Pick:
    turn: TurnWork
    seq: int
    via: Via


class _Picker:
    """What can be granted in this transaction, best first."""

    def __init__(self, unit: Unit, lines: Lines, turns: Sequence[TurnWork], *, wanted: int) -> None:
        held = budgets_of(unit, turns)
        for turn in turns:
            turn.barred = barred_hosts(unit, turn.worker, turn.op.facts.prefix)
        wanted += max(len(turn.barred) for turn in turns)
        self._unit: Final = unit
        self._lines: Final = lines
        self._wanted: Final = wanted
        self._taken: Final[set[int]] = set()
        self._demands: list[int] | None = None
        #: Per demand a heap of (rank, seq, lane).
        self._heaps: Final[dict[int, list[_Place]]] = {}
        self._open: Final[dict[int, _Line]] = {}
        #: Whether each worker meets each demand, and whether others do.
        self._meets: Final[dict[tuple[int, int], bool]] = {}
        self._others: Final[dict[int, bool]] = {}
        #: Whether each worker holds a suspect task.
        self._suspects: Final[dict[int, bool]] = {}
        self._rules: Final = load_rules(unit)
        self._parked = 0
        #: How many tasks each worker that asks holds, and may hold; those without a limit aren't here.
        self._held: Final = held
        self._crowd: Final = Crowd(unit)
        self._cleaner: Final[dict[tuple[int, int, int], bool]] = {}
        self._swarm: Final = lines.swarm()
        #: When there is more for those who get nothing, seconds: the swarm's own bucket is empty.
        self.retry_after_s: float | None = None

    def another(self, demand: int) -> bool:
        """Whether a live worker that the demand doesn't pass over meets it."""
        known = self._others.get(demand)
        if known is None:
            unit = self._unit
            asked = unit.memory.demands[demand]
            unit.know_workers(set(asked.passed_over))
            lost = [unit.memory.workers[number].ref for number in asked.passed_over]
            known = self._others[demand] = unit.fleet.meets(asked, but_not=lost, now=unit.now)
        return known

    def check(self, row: TaskRow, turn: TurnWork) -> Refusal | None:
        """Whether policy gives this very task to this worker now."""
        lane = self._unit.memory.lanes[row.lane]
        state = self._lines.host(lane.host)
        demand = self._unit.memory.demands[lane.demand]
        refusal = decide(
            demand,
            state.host,
            state.bucket,
            self._candidate(turn, lane.host, demand),
            rules=self._rules,
            job=self._unit.memory.jobs[row.job].id,
            contexts=contexts_of(self._unit, demand) if demand.has_context else None,
            another=bool(demand.passed_over) and self.another(lane.demand),
            cleaner=demand.careful and self._has_cleaner(turn, lane.demand, lane.host),
            swarm=None if self._swarm is None else self._swarm.bucket,
            now=self._unit.now,
        )
        if refusal is None and self._swarm is not None and self._swarm.left < 1:
            return Refusal(RefusalCode.SWARM_PACED, "the swarm has had its share for now", retry_after_s=1.0)
        if refusal is None and state.left < 1:
            return Refusal(RefusalCode.HOST_PACED, f"{state.host} has had its share for now", retry_after_s=1.0)
        return refusal

    def _candidate(self, turn: TurnWork, host: int, demand: Demand) -> Candidate:
        unit, worker, facts = self._unit, turn.worker, turn.op.facts
        held, budget = self._held.get(worker.n, (0, None))
        return Candidate(
            number=worker.n,
            facts=facts,
            record=records_of(unit, worker.n).get(host, CLEAN),
            flag=flags_of(unit, facts.prefix).get(host),
            troubled=len(turn.barred),
            crowded=self._crowd.is_crowded(host, worker.n, facts.prefix),
            proven=bool(worker.accepted),
            held=held,
            budget=budget,
            holds_suspect=demand.suspect and self._holds_suspect(worker.n),
        )

    def _has_cleaner(self, turn: TurnWork, demand: int, host: int) -> bool:
        """Whether another live worker that may have such tasks has a clean record on the host."""
        key = (turn.worker.n, demand, host)
        known = self._cleaner.get(key)
        if known is None:
            unit = self._unit
            others = map(unit.worker, unit.fleet.who_meet(unit.memory.demands[demand], now=unit.now))
            known = self._cleaner[key] = any(
                other.n != turn.worker.n
                and bool(other.accepted)
                and records_of(unit, other.n).get(host, CLEAN).is_clean(unit.now)
                for other in others
            )
        return known

    def _is_full(self, turn: TurnWork) -> bool:
        """Whether this worker holds all it may, or gets nothing at all."""
        held, budget = self._held.get(turn.worker.n, (0, None))
        return check_budget(held, budget) is not None or check_troubled(len(turn.barred)) is not None

    def _passes(self, turn: TurnWork, demand: int, host: int) -> bool:
        """Whether this worker isn't to have this host's tasks of a demand, whoever else is."""
        if host in turn.barred or self._crowd.is_crowded(host, turn.worker.n, turn.op.facts.prefix):
            return True
        if not self._unit.memory.demands[demand].careful:
            return False
        record = records_of(self._unit, turn.worker.n).get(host, CLEAN)
        cleaner = self._has_cleaner(turn, demand, host)
        return check_careful(record, proven=bool(turn.worker.accepted), cleaner=cleaner, now=self._unit.now) is not None

    def take(self, row: TaskRow, turn: TurnWork) -> None:
        """Mark a task as granted in this transaction."""
        lane = self._unit.memory.lanes[row.lane]
        self._take(row.seq, self._lines.host(lane.host), lane.demand, turn)

    def _take(self, seq: int, host: HostState, demand: int, turn: TurnWork) -> None:
        self._taken.add(seq)
        host.take()
        self._crowd.add(host.n, turn.worker.n, turn.op.facts.prefix)
        limited = self._held.get(turn.worker.n)
        if limited is not None:
            self._held[turn.worker.n] = (limited[0] + 1, limited[1])
        if self._swarm is not None:
            self._swarm.take()
        asked = self._unit.memory.demands[demand]
        if asked.has_context:
            begin_context(self._unit, asked, turn.worker.n)
        self._unit.fleet.shares.served(asked.tier)
        self._note_suspect(demand, turn)

    def _note_suspect(self, demand: int, turn: TurnWork) -> None:
        if self._unit.memory.demands[demand].suspect:
            self._suspects[turn.worker.n] = True

    def _holds_suspect(self, worker: int) -> bool:
        """Whether this worker has a suspect task in hand."""
        known = self._suspects.get(worker)
        if known is None:
            unit, memory = self._unit, self._unit.memory
            held = unit.connection.rows(unit.statements.held_seqs, as_json([worker]))
            rows = unit.tasks_by_seq([seq for _, seq in held])
            known = any(memory.demands[memory.lanes[row.lane].demand].suspect for row in rows)
            self._suspects[worker] = known
        return known

    def is_taken(self, seq: int) -> bool:
        """Whether it was granted in this transaction already."""
        return seq in self._taken

    def best(self, turn: TurnWork) -> int | None:
        """Take the best task that this worker may have; None where there is none."""
        if self._swarm is not None and self._swarm.left < 1:
            self.retry_after_s = (1.0 - self._swarm.left) / self._swarm.bucket.rate_per_s
            return None
        if self._is_full(turn):
            return None
        demands = [demand for demand in self._ready_demands() if self._may(turn, demand)]
        #: Lanes that others may have, but not this worker: they go back when it has its task.
        passed: list[tuple[list[_Place], _Place]] = []
        try:
            while True:
                tops = [(heap, demand) for demand in demands if (heap := self._heap(demand))]
                if not tops or self._parked >= PARKED_MOST:  # the next transaction sets more aside
                    return None
                heap, demand = min(self._next_tier(tops), key=lambda each: each[0][0])
                entry = heapq.heappop(heap)
                _, seq, lane = entry
                line = self._open[lane]
                host = self._lines.host(line.host)
                if host.left < 1:
                    continue  # the host has given all it may: the lane is out of this transaction
                if self._passes(turn, demand, line.host):
                    passed.append((heap, entry))
                    continue
                taken = seq in self._taken or self._park(seq)
                if not taken:
                    self._take(seq, host, demand, turn)
                self._push_next(heap, line)
                if not taken:
                    return seq
        finally:
            for heap, entry in passed:
                heapq.heappush(heap, entry)

    def _next_tier(self, tops: list[tuple[list[_Place], int]]) -> list[tuple[list[_Place], int]]:
        """Those of the tier that is to be served next."""
        if len(tops) == 1:
            return tops
        demands = self._unit.memory.demands
        tiers = {demands[demand].tier for _, demand in tops}
        if len(tiers) == 1:
            return tops
        tier = self._unit.fleet.shares.next(tiers)
        return [each for each in tops if demands[each[1]].tier == tier]

    def _park(self, seq: int) -> bool:
        """Set a task of a paused job aside; False where its job isn't paused."""
        jobs = self._rules.pauses.jobs
        if not jobs:
            return False
        (row,) = self._unit.tasks_by_seq([seq])
        if self._unit.memory.jobs[row.job].id not in jobs:
            return False
        self._parked += 1
        self._taken.add(seq)
        self._lines.park(row, parked=True)
        return True

    def _ready_demands(self) -> list[int]:
        if self._demands is None:
            unit = self._unit
            self._demands = []
            after: int | None = 0
            while True:
                after = unit.connection.rows(unit.statements.next_ready_demand, after)[0][0]
                if after is None:
                    break
                self._demands.append(after)
            demands = unit.memory.demands
            unit.know_demands(set(self._demands))
            self._demands = [number for number in self._demands if not demands[number].parked]
        return self._demands

    def _may(self, turn: TurnWork, demand: int) -> bool:
        known = self._meets.get((turn.worker.n, demand))
        if known is None:
            asked = self._unit.memory.demands[demand]
            facts = turn.op.facts
            refusal = (
                check_demand(asked, facts)
                or check_approved(asked.kind, facts.versions, self._rules.approved)
                or check_hours(facts.region, self._rules.hours, now=self._unit.now)
            )
            if refusal is None and turn.worker.n in asked.passed_over:
                refusal = check_passed_over(asked, turn.worker.n, another=self.another(demand))
            known = self._meets[turn.worker.n, demand] = refusal is None
        if not known:
            return False
        asked = self._unit.memory.demands[demand]
        if asked.has_context:
            contexts = contexts_of(self._unit, asked)
            if check_contexts(asked, contexts, turn.worker.n, now=self._unit.now) is not None:
                return False
        return not asked.suspect or check_suspect(asked, holds_suspect=self._holds_suspect(turn.worker.n)) is None

    def _heap(self, demand: int) -> list[_Place]:
        heap = self._heaps.get(demand)
        if heap is None:
            unit = self._unit
            found = unit.connection.rows(unit.statements.ready_lanes, demand, self._wanted)
            self._lines.hosts({host for _, host, _, _ in found})
            heap = self._heaps[demand] = []
            for lane, host, rank, seq in found:
                self._open[lane] = _Line(lane, host, [(rank, seq)], looked_at=1)
                heap.append((rank, seq, lane))
            heapq.heapify(heap)
        return heap

    def _push_next(self, heap: list[_Place], line: _Line) -> None:
        """Put the lane's following task on the heap."""
        if line.looked_at == len(line.read):
            if line.exhausted:
                return
            unit = self._unit
            ahead = int(min(self._wanted, WINDOW, self._lines.host(line.host).left))
            if ahead < 1:
                return
            if self._rules.pauses.jobs:
                ahead = WINDOW  # many of them may be set aside
            most = line.looked_at + ahead
            line.read = unit.connection.rows(unit.statements.ready_tasks, line.lane, most)
            line.exhausted = len(line.read) < most
            if line.looked_at >= len(line.read):
                return
        rank, seq = line.read[line.looked_at]
        line.looked_at += 1
        heapq.heappush(heap, (rank, seq, line.lane))


def grant(unit: Unit, lines: Lines, turns: Sequence[TurnWork]) -> None:
    """Give the turns of one group their tasks, in their order; send lost grants again."""
    for turn in turns:
        if turn.again:
            _grant_again(unit, turn, turn.again)
    present = [turn for turn in turns if not turn.outdated]
    rules = load_rules(unit)
    if rules.pauses.swarm is not None:  # told to those too that ask for nothing since they know of it
        _refuse_all(present, check_paused(rules.pauses))
        return
    asking = [turn for turn in present if turn.op.want or turn.op.offers]
    if not asking:
        return
    lines.open_due()
    picker = _Picker(unit, lines, asking, wanted=sum(turn.op.want + len(turn.op.offers) for turn in asking))
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
        turn.granted.append(_granted(unit, row, bodies[row.seq], lease_s=lease_s, again=True))


def _offered(unit: Unit, picker: _Picker, turn: TurnWork, room: int) -> list[int]:
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


def _refuse_offer(picker: _Picker, turn: TurnWork, row: TaskRow | None, task: TaskId) -> Refusal | None:
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
    rows = unit.tasks_by_seq([pick.seq for pick in picks])
    bodies = unit.bodies(pick.seq for pick in picks)
    fence = unit.next("fence", by=len(picks))
    for pick, row in zip(picks, rows, strict=True):
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
        turn.granted.append(_granted(unit, row, bodies[row.seq], lease_s=row.lease_until - unit.now, again=False))


def _granted(unit: Unit, row: TaskRow, body: str, *, lease_s: float, again: bool) -> Granted:
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
        min(one.free, one.slots - held[turn.worker.n]) if turn.worker.boots[:1] == [one.boot] else 0
        for one, turn in zip(op.workers, turns, strict=True)
    ]
    wanted = sum(room for room in rooms if room > 0)
    if not wanted:
        return ()
    lines.open_due()
    picker = _Picker(unit, lines, turns, wanted=wanted)
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
    return tuple(Assigned(worker=turn.op.worker, granted=tuple(turn.granted)) for turn in turns if turn.granted)
