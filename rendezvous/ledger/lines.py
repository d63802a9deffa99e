"""Where does a task stand in line? Demands, hosts and lanes; and the hosts' buckets, read and debited in a transaction.

A lane is closed while its host may not be asked: it carries ``opens_at`` and isn't seen by claims until that time. The
host's bucket is the truth; ``opens_at`` follows it whenever the bucket changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import attrs
import msgspec

from rendezvous.ledger.rows import TaskRow, demand_key
from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.eligibility import Demand
from rendezvous.policy.pacing import Bucket, begun_and_finished, new_bucket, opens_at, refilled, tokens_now
from swarm.model import Status
from swarm.wire import Requires

__all__ = ["DemandKeys", "HostState", "Lines"]

_ASKS_NOTHING: Final = Requires()
#: The counter of changes to which hosts ask for a delay.
DELAYED: Final = "delayed"
#: The host that stands for all: its bucket is the swarm's. No URL has such a one.
EVERYWHERE: Final = "*"


def _repaced(old: Bucket, pace: Bucket, *, tokens: float, unfinished: int | None) -> Bucket:
    """A host's bucket at another pace; what holds or pauses it stays."""
    return attrs.evolve(
        pace,
        tokens=tokens,
        refilled_at=max(old.refilled_at, pace.refilled_at),
        unfinished=unfinished,
        held_until=old.held_until,
        held_why=old.held_why,
        paused=old.paused,
        share=old.share,
        share_until=old.share_until,
    )


class HostState:
    """One host's bucket in this transaction, and how many grants it has given in it."""

    __slots__ = ("bucket", "host", "left", "n", "shared", "taken")

    def __init__(self, n: int, host: str, bucket: Bucket, *, now: float) -> None:
        self.n = n
        self.host = host
        self.bucket = bucket
        self.taken = 0
        #: How many tokens there are at most, by the pace that is shared with others.
        self.shared: float | None = None
        #: How many more grants it gives now.
        self.left = 0.0
        self.look(now=now)

    def look(self, *, now: float) -> None:
        """See how many grants it gives now."""
        self.left = 0.0 if opens_at(self.bucket, now=now) is not None else tokens_now(self.bucket, now=now)

    def take(self) -> None:
        """Give one grant."""
        self.taken += 1
        self.left -= 1.0

    def give_back(self, grants: int) -> None:
        """Take so many grants back: the pace that is shared with others doesn't give them."""
        self.taken -= grants

    def follow(self, tokens: float) -> None:
        """After this transaction's grants there are only so many tokens: others share them."""
        self.shared = tokens

    def hold(self, *, until: float, why: str) -> None:
        """Give nothing until this ledger time."""
        self.bucket = attrs.evolve(self.bucket, held_until=until, held_why=why)
        self.shared = self.bucket.tokens

    def debited(self, *, now: float) -> Bucket | None:
        """The bucket after this transaction's grants; None where nothing changed."""
        if self.bucket.unlimited or (not self.taken and self.shared is None):
            return None
        bucket = refilled(self.bucket, taken=self.taken, now=now)
        return bucket if self.shared is None else attrs.evolve(bucket, tokens=min(bucket.tokens, self.shared))


class Lines:
    """The lanes and hosts of one transaction."""

    def __init__(self, unit: Unit) -> None:
        self._unit: Final = unit
        self._hosts: Final[dict[int, HostState]] = {}

    # ── hosts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def hosts(self, numbers: Iterable[int]) -> None:
        """Load these hosts' buckets."""
        missing = set(numbers) - self._hosts.keys()
        if missing:
            unit = self._unit
            for columns in unit.connection.rows(unit.statements.hosts_by_number, as_json(missing)):
                self._keep_host(columns)

    def keep(self, columns: Any) -> None:
        """Take a host's row as it was read; one that is here already wins, since it may have been changed."""
        if columns[0] not in self._hosts:
            self._keep_host(columns)

    def host(self, number: int) -> HostState:
        """One host's bucket."""
        if number not in self._hosts:
            self.hosts((number,))
        return self._hosts[number]

    def hosts_by_name(self, names: Iterable[str]) -> dict[str, int]:
        """The numbers of these hosts; those not known yet get a full bucket."""
        unit, memory = self._unit, self._unit.memory
        wanted = dict.fromkeys(names)
        missing = [name for name in wanted if name not in memory.host_of]
        if missing:
            for columns in unit.connection.rows(unit.statements.hosts_by_name, as_json(missing)):
                self._keep_host(columns)
            new = [name for name in missing if name not in memory.host_of]
            if new:
                self._add_hosts(new)
        return {name: memory.host_of[name] for name in wanted}

    def _add_hosts(self, names: list[str]) -> None:
        unit, settings = self._unit, self._unit.settings
        bucket = new_bucket(rate_per_s=settings.host_rate_per_s, burst=settings.host_burst, now=unit.now)
        first = unit.next("host", by=len(names))
        rows = [
            (number, name, bucket.tokens, unit.now, bucket.rate_per_s, bucket.burst, *[None] * 8)
            for number, name in enumerate(names, first)
        ]
        unit.connection.later(unit.statements.insert_host, rows)
        for columns in rows:
            self._keep_host(columns)

    def _keep_host(self, columns: Any) -> None:
        (
            number,
            host,
            tokens,
            refilled_at,
            rate_per_s,
            burst,
            held_until,
            held_why,
            paused,
            unfinished,
            _apart,
            share,
            until,
            _slow_until,
        ) = columns
        self._unit.keep_host(number, host)
        bucket = Bucket(
            tokens=tokens,
            refilled_at=refilled_at,
            rate_per_s=rate_per_s,
            burst=burst,
            held_until=held_until,
            held_why=held_why,
            paused=bool(paused),
            unfinished=unfinished,
            share=share or 1.0,
            share_until=until or 0.0,
        )
        self._hosts[number] = HostState(number, host, bucket, now=self._unit.now)

    def hold(self, host: str, *, for_s: float, why: str) -> None:
        """Close a host's lanes for a while."""
        number = self.hosts_by_name([host])[host]
        state = self.host(number)
        self._write_bucket(
            number, attrs.evolve(state.bucket, held_until=self._unit.now + for_s if for_s > 0 else None, held_why=why)
        )

    def set_pace(self, host: str, *, rate_per_s: float, burst: float, one_at_a_time: bool = False) -> None:
        """Give a host another pace. What it has of tokens stays, up to the new burst."""
        unit = self._unit
        number = self.hosts_by_name([host])[host]
        old = self.host(number).bucket
        fresh = new_bucket(rate_per_s=rate_per_s, burst=burst, now=unit.now)
        tokens = fresh.tokens if old.unlimited else min(tokens_now(old, now=unit.now), fresh.burst)
        unfinished = None
        if one_at_a_time and not fresh.unlimited:
            unit.flush()
            unfinished = unit.connection.rows(unit.statements.unfinished_of_host, number)[0][0]
            for lanes in (unit.granted_lanes, unit.finished_lanes):  # these are in that number
                lanes[:] = [lane for lane in lanes if unit.memory.lanes[lane].host != number]
        if unfinished is not None or old.unfinished is not None:
            unit.next(DELAYED)
            unit.memory.delayed = None
        self._write_bucket(number, _repaced(old, fresh, tokens=tokens, unfinished=unfinished))

    def finish(self) -> None:
        """Close the hosts that ask for a delay and have a grant by now, and begin the delays of finished ones."""
        unit, memory = self._unit, self._unit.memory
        if not unit.counter(DELAYED) or not (unit.finished_lanes or unit.granted_lanes):
            return
        if memory.delayed is None:
            memory.delayed = {number for (number,) in unit.connection.rows(unit.statements.delayed_hosts)}
        begun = Counter(memory.lanes[lane].host for lane in unit.granted_lanes)
        ended = Counter(memory.lanes[lane].host for lane in unit.finished_lanes)
        for number in sorted((begun.keys() | ended.keys()) & memory.delayed):
            bucket = begun_and_finished(
                self.host(number).bucket, begun=begun[number], finished=ended[number], now=unit.now
            )
            self._write_bucket(number, bucket)

    def pause(self, host: str, *, paused: bool) -> None:
        """Close a host's lanes until further notice, or open them again."""
        number = self.hosts_by_name([host])[host]
        self._write_bucket(number, attrs.evolve(self.host(number).bucket, paused=paused))

    def swarm(self) -> HostState | None:
        """The bucket of the whole swarm; None where there is no such limit."""
        settings, unit = self._unit.settings, self._unit
        if settings.swarm_rate_per_s <= 0:
            return None
        pace = new_bucket(rate_per_s=settings.swarm_rate_per_s, burst=settings.swarm_burst, now=unit.now)
        number = self.hosts_by_name([EVERYWHERE])[EVERYWHERE]
        state = self.host(number)
        if (state.bucket.rate_per_s, state.bucket.burst) != (pace.rate_per_s, pace.burst):
            tokens = pace.tokens if state.bucket.unlimited else min(state.bucket.tokens, pace.burst)
            state.bucket = attrs.evolve(state.bucket, rate_per_s=pace.rate_per_s, burst=pace.burst, tokens=tokens)
            state.look(now=unit.now)
        return state

    def ease(self, number: int, *, share: float, for_s: float) -> None:
        """Let a host be asked more slowly for a while, so that nobody takes over what another asked of it."""
        bucket = self.host(number).bucket
        if share >= 1.0 or bucket.unlimited:
            return
        left = bucket.share if self._unit.now < bucket.share_until else 1.0
        until = max(bucket.share_until, self._unit.now + for_s)
        self._write_bucket(number, attrs.evolve(bucket, share=left * share, share_until=until))

    def debit(self) -> None:
        """Write what this transaction's grants took from the buckets; close the lanes of those that ran empty."""
        for state in self._hosts.values():
            bucket = state.debited(now=self._unit.now)
            if bucket is not None:
                self._write_bucket(state.n, bucket)

    def _write_bucket(self, number: int, bucket: Bucket) -> None:
        unit = self._unit
        unit.connection.later_once(
            unit.statements.update_host,
            bucket.tokens,
            bucket.refilled_at,
            bucket.rate_per_s,
            bucket.burst,
            bucket.held_until,
            bucket.held_why,
            1 if bucket.paused else None,
            bucket.unfinished,
            bucket.share if bucket.share_until else None,
            bucket.share_until or None,
            number,
        )
        unit.connection.later_once(unit.statements.close_lanes, opens_at(bucket, now=unit.now), number)
        self._hosts[number] = HostState(number, unit.memory.hosts[number], bucket, now=unit.now)

    # ── lanes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def lanes(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """The lanes of these (demand key, host name) pairs; those that don't exist yet are made."""
        pairs = set(wanted)
        demands = self._demands({key for key, _ in pairs})
        hosts = self.hosts_by_name({host for _, host in pairs})
        numbers = {pair: (demands[pair[0]], hosts[pair[1]]) for pair in pairs}
        lane_of = self._unit.memory.lane_of
        missing = {pair for pair in numbers.values() if pair not in lane_of}
        if missing:
            unit = self._unit
            found = unit.connection.rows(unit.statements.lanes_of_host, as_json({host for _, host in missing}))
            unit.keep_lanes(found)
            self._add_lanes(sorted(pair for pair in missing if pair not in lane_of))
        return {pair: lane_of[numbers[pair]] for pair in pairs}

    def _add_lanes(self, pairs: list[tuple[int, int]]) -> None:
        if not pairs:
            return
        unit = self._unit
        self.hosts(host for _, host in pairs)
        first = unit.next("lane", by=len(pairs))
        rows = [
            (number, demand, host, None, None, opens_at(self._hosts[host].bucket, now=unit.now))
            for number, (demand, host) in enumerate(pairs, first)
        ]
        unit.connection.later(unit.statements.insert_lane, rows)
        unit.keep_lanes(columns[:3] for columns in rows)

    def _demands(self, keys: set[str]) -> dict[str, int]:
        unit, memory = self._unit, self._unit.memory
        missing = [key for key in keys if key not in memory.demand_of]
        if missing:
            unit.keep_demands(unit.connection.rows(unit.statements.demands_by_key, as_json(missing)))
            new = [key for key in missing if key not in memory.demand_of]
            if new:
                rows = list(zip(range(unit.next("demand", by=len(new)), 1 << 62), new, strict=False))
                unit.connection.later(unit.statements.insert_demand, rows)
                unit.keep_demands(rows)
        return {key: memory.demand_of[key] for key in keys}

    def pass_over(self, row: TaskRow, workers: frozenset[int], *, suspect: bool = False) -> None:
        """Put a task in the lane of its demand that passes over these workers, or of suspects; or in the plain one."""
        careful = self._demand_of(row).careful and (row.passed_until or 0.0) > self._unit.now
        self._place(row, attrs.evolve(self._demand_of(row), passed_over=workers, suspect=suspect, careful=careful))

    def park(self, row: TaskRow, *, parked: bool) -> None:
        """Put a task aside, since its job is paused; or back in line."""
        self._place(row, attrs.evolve(self._demand_of(row), parked=parked))

    def handle_with_care(self, row: TaskRow, worker: int) -> None:
        """Put a task aside for those who may have what was taken from a worker in quarantine."""
        demand = self._demand_of(row)
        self._place(row, attrs.evolve(demand, passed_over=demand.passed_over | {worker}, careful=True))

    def stand_plainly(self, row: TaskRow) -> None:
        """Put a task in the lane of a new one: passing over nobody, no suspect, not set aside."""
        self._place(
            row, attrs.evolve(self._demand_of(row), passed_over=frozenset(), suspect=False, careful=False, parked=False)
        )

    def _demand_of(self, row: TaskRow) -> Demand:
        memory = self._unit.memory
        return memory.demands[memory.lanes[row.lane].demand]

    def _place(self, row: TaskRow, demand: Demand) -> None:
        unit = self._unit
        lane = unit.memory.lanes[row.lane]
        if unit.memory.demands[lane.demand] == demand:
            return
        key = demand_key(demand)
        host = unit.memory.hosts[lane.host]
        number = self.lanes([(key, host)])[key, host]
        unit.touch(row)
        if row.status is Status.PENDING:
            unit.stale_heads.update((row.lane, number))
        row.lane = number

    def open_due(self) -> None:
        """Open the lanes whose hosts may be asked again."""
        unit = self._unit
        unit.connection.later_once(unit.statements.open_lanes, unit.now)


class DemandKeys:
    """The keys of new tasks' demands. Most tasks of a submission share theirs, and making one costs 5 µs."""

    def __init__(self) -> None:
        self._known: Final[dict[tuple[str, str, bytes], str]] = {}

    def key(self, *, tier: str, kind: str, requires: Requires) -> str:
        """The key of a demand that passes nobody over."""
        asked = b"" if requires == _ASKS_NOTHING else msgspec.json.encode(requires)
        known = self._known.get((tier, kind, asked))
        if known is None:
            known = demand_key(Demand(tier=tier, kind=kind, requires=requires))
            self._known[tier, kind, asked] = known
        return known
