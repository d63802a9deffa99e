"""What can be granted in this transaction, best first: for each worker that asks, the first task that it may have.

Only lanes that are open and have a ready task are read, best first, and only for demands that the worker meets. What
one worker may not have (a host that turned it away, another's profile) it passes, and leaves in line for the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import attrs

from rendezvous.ledger.contexts import begin_context, contexts_of
from rendezvous.ledger.lines import HostState, Lines
from rendezvous.ledger.rows import TaskRow
from rendezvous.ledger.rules import EGRESS, RECORD, flags_of, load_rules, records_of
from rendezvous.ledger.slowness import held_of_slow, others_soon, slow_hosts
from rendezvous.ledger.standing import Crowd, barred_hosts, budgets_of
from rendezvous.ledger.turns import TurnWork
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
from rendezvous.policy.records import CLEAN, check_careful, check_troubled
from rendezvous.policy.slowness import check_slow
from rendezvous.policy.versions import check_approved
from swarm.model import Refusal, RefusalCode

__all__ = ["Picker"]

#: How many tasks of one lane are read ahead, at most, where its host gives as many.
WINDOW: Final = 1_024
#: Of a server the following tasks of so many lanes are asked for together, and the lanes of so many demands: those that
#: aren't needed cost some 10 µs each, another exchange 100 to 1,000, while other roots wait.
LANES_AT_ONCE: Final = 32
DEMANDS_AT_ONCE: Final = 8
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

    @property
    def needs_more(self) -> bool:
        """Whether all that was read was looked at, and there may be more."""
        return self.looked_at == len(self.read) and not self.exhausted


class Picker:
    """What can be granted in this transaction, best first."""

    def __init__(self, unit: Unit, lines: Lines, turns: Sequence[TurnWork], *, wanted: int) -> None:
        held = budgets_of(unit, turns)
        if unit.counter(RECORD) or unit.counter(EGRESS):
            for turn in turns:
                turn.barred = barred_hosts(unit, turn.worker, turn.op.facts.prefix)
        most_barred = max(len(turn.barred) for turn in turns)
        #: The hosts that keep their tasks for long.
        self._slow: Final = frozenset(host for host, until in slow_hosts(unit).items() if until > unit.now)
        wanted += most_barred + len(self._slow)
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
        self._paused_jobs: Final = self._rules.pauses.jobs
        self._parked = 0
        #: How many tasks each worker that asks holds, and may hold; those without a limit aren't here.
        self._held: Final = held
        self._crowd: Final = Crowd(unit)
        # Most transactions hold nothing against anybody: what follows says which questions need no answer in this one.
        self._limits: Final = bool(held) or check_troubled(most_barred) is not None
        #: How many of their tasks each worker holds.
        self._slow_held: Final = held_of_slow(unit, turns, self._slow) if self._slow else {}
        self._screens = bool(most_barred or self._slow) or self._crowd.is_watched
        #: Demands whose tasks bind their worker in some way, or ask how it stands.
        self._special: Final[set[int]] = set()
        self._cleaner: Final[dict[tuple[int, int, int], bool]] = {}
        self._swarm: Final = lines.swarm()
        #: Who asks now, and the lanes that it passed: others may have them, so they go back when another asks. What it
        #: passed once it passes as long as it asks: what it takes meanwhile allows it no more, or seldom, and then its
        #: next turn has it.
        self._asking: TurnWork | None = None
        self._passed: list[tuple[list[_Place], _Place]] = []
        #: The lane of the last task that was taken: who asks next looks what is behind it.
        self._behind: tuple[list[_Place], _Line] | None = None
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
            slow=lane.host in self._slow,
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
            slow_held=self._slow_held.get(worker.n, 0),
            others=host in self._slow and self._has_other_work(turn),
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
        if host in self._slow and self._is_slowed(turn, host):
            return True
        if not self._unit.memory.demands[demand].careful:
            return False
        record = records_of(self._unit, turn.worker.n).get(host, CLEAN)
        cleaner = self._has_cleaner(turn, demand, host)
        return check_careful(record, proven=bool(turn.worker.accepted), cleaner=cleaner, now=self._unit.now) is not None

    def _is_slowed(self, turn: TurnWork, host: int) -> bool:
        """Whether this worker holds as many tasks of slow hosts as it may while there is other work."""
        worker, unit = turn.worker.n, self._unit
        refusal = check_slow(
            unit.memory.hosts[host],
            worker=worker,
            slots=turn.op.facts.slots,
            held=self._slow_held.get(worker, 0),
            others=True,
            now=unit.now,
        )
        return refusal is not None and self._has_other_work(turn)

    def _has_other_work(self, turn: TurnWork) -> bool:
        """Whether this worker could have work of a host that isn't slow, now or soon."""
        demands = others_soon(self._unit)
        self._know(demands)
        return any(self._may(turn, demand) for demand in demands if not self._unit.memory.demands[demand].parked)

    def take(self, row: TaskRow, turn: TurnWork) -> None:
        """Mark a task as granted in this transaction."""
        lane = self._unit.memory.lanes[row.lane]
        self._take(row.seq, self._lines.host(lane.host), lane.demand, turn)

    def _take(self, seq: int, host: HostState, demand: int, turn: TurnWork) -> None:
        self._taken.add(seq)
        host.take()
        asked = self._unit.memory.demands[demand]
        self._unit.fleet.shares.served(asked.tier)
        if self._swarm is not None:
            self._swarm.take()
        if self._limits:
            held, budget = self._held.get(turn.worker.n, (0, None))
            self._held[turn.worker.n] = (held + 1, budget)
        if self._screens:
            self._crowd.add(host.n, turn.worker.n, turn.op.facts.prefix)
            if host.n in self._slow:
                self._slow_held[turn.worker.n] = self._slow_held.get(turn.worker.n, 0) + 1
        if asked.has_context:
            begin_context(self._unit, asked, turn.worker.n)
        if asked.suspect:
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
        if self._limits and self._is_full(turn):
            return None
        if turn is not self._asking:
            self._asking = turn
            for heap, entry in self._passed:
                heapq.heappush(heap, entry)
            self._passed.clear()
        demands = [demand for demand in self._ready_demands() if self._may(turn, demand)]
        while True:
            self._look_behind()
            tops = [(heap, demand) for demand in demands if (heap := self._heap(demand))]
            if not tops or self._parked >= PARKED_MOST:  # the next transaction sets more aside
                return None
            heap, demand = tops[0] if len(tops) == 1 else self._next_of(tops)
            entry = heapq.heappop(heap)
            _, seq, lane = entry
            line = self._open[lane]
            host = self._lines.host(line.host)
            if host.left < 1:
                continue  # the host has given all it may: the lane is out of this transaction
            if self._screens and self._passes(turn, demand, line.host):
                self._passed.append((heap, entry))
                continue
            taken = seq in self._taken or (bool(self._paused_jobs) and self._park(seq))
            self._behind = (heap, line)
            if not taken:
                self._take(seq, host, demand, turn)
                return seq

    def _next_of(self, tops: list[tuple[list[_Place], int]]) -> tuple[list[_Place], int]:
        """The first in line of the tier that is to be served next."""
        demands = self._unit.memory.demands
        tiers = {demands[demand].tier for _, demand in tops}
        if len(tiers) > 1:
            tier = self._unit.fleet.shares.next(tiers)
            tops = [each for each in tops if demands[each[1]].tier == tier]
        return min(tops, key=lambda each: each[0][0])

    def _park(self, seq: int) -> bool:
        """Set a task of a paused job aside; False where its job isn't paused."""
        (row,) = self._unit.tasks_by_seq([seq])
        if self._unit.memory.jobs[row.job].id not in self._paused_jobs:
            return False
        self._parked += 1
        self._taken.add(seq)
        self._lines.park(row, parked=True)
        return True

    def _ready_demands(self) -> list[int]:
        if self._demands is None:
            unit = self._unit
            demands = unit.memory.demands
            # of a server they are asked for together with the lanes of all demands that are known
            guessed = list(demands) if unit.connection.has_server and len(demands) <= DEMANDS_AT_ONCE else []
            asked = [(unit.statements.ready_lanes, (demand, self._wanted)) for demand in guessed]
            found, *lanes = unit.connection.rows_of((unit.statements.ready_demands, ()), *asked)
            for demand, places in zip(guessed, lanes, strict=True):
                self._keep_lanes(demand, places)
            self._demands = [number for (number,) in found]
            self._know(self._demands)
            self._demands = [number for number in self._demands if not demands[number].parked]
            if any(demands[number].careful for number in self._demands):
                self._screens = True
        return self._demands

    def _know(self, numbers: Collection[int]) -> None:
        """Load demands, and note which of them bind their worker in some way."""
        self._unit.know_demands(set(numbers))
        demands = self._unit.memory.demands
        self._special.update(number for number in numbers if demands[number].suspect or demands[number].has_context)

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
        if not known or demand not in self._special:
            return known
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
            heap = self._keep_lanes(demand, unit.connection.rows(unit.statements.ready_lanes, demand, self._wanted))
        return heap

    def _keep_lanes(self, demand: int, found: Iterable[Sequence[Any]]) -> list[_Place]:
        heap = self._heaps[demand] = []
        for lane, rank, seq, *host in found:
            self._lines.keep(host)
            self._open[lane] = _Line(lane, host[0], [(rank, seq)], looked_at=1)
            heap.append((rank, seq, lane))
        heapq.heapify(heap)
        return heap

    def _look_behind(self) -> None:
        if self._behind is not None:
            behind, self._behind = self._behind, None
            self._push_next(*behind)

    def _push_next(self, heap: list[_Place], line: _Line) -> None:
        """Put the lane's following task on the heap."""
        if line.needs_more:
            if not self._ahead(line):
                return
            self._read_on([line, *self._also_needed(heap)])
        if line.looked_at >= len(line.read):
            return
        rank, seq = line.read[line.looked_at]
        line.looked_at += 1
        heapq.heappush(heap, (rank, seq, line.lane))

    def _ahead(self, line: _Line) -> int:
        """How many more of a lane's tasks can be of use."""
        left = self._lines.host(line.host).left
        if left < 1:
            return 0
        return WINDOW if self._paused_jobs else int(min(self._wanted, WINDOW, left))  # many may be set aside

    def _also_needed(self, heap: list[_Place]) -> list[_Line]:
        """The lanes whose following tasks are asked for together with those of one, which was taken from the heap."""
        if not self._unit.connection.has_server or self._paused_jobs:
            return []
        lines = [self._open[lane] for _, _, lane in heapq.nsmallest(LANES_AT_ONCE, heap)]
        return [line for line in lines if line.needs_more and self._ahead(line)]

    def _read_on(self, lines: Sequence[_Line]) -> None:
        """Read more of these lanes: each its share of what is wanted, or as many again as were looked at already."""
        statement, share = (
            self._unit.statements.ready_tasks,
            WINDOW if len(lines) == 1 else 2 * self._wanted // len(lines),
        )
        most = [line.looked_at + min(self._ahead(line), max(share, line.looked_at)) for line in lines]
        found = self._unit.connection.rows_of(
            *((statement, (line.lane, far)) for line, far in zip(lines, most, strict=True))
        )
        for line, far, read in zip(lines, most, found, strict=True):
            line.read, line.exhausted = read, len(read) < far
