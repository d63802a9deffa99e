"""What the writer believes of the database between transactions (``Memory``), and of workers (``Fleet``).

Of the database: what never changes once it is written, always; the rest only while nobody else wrote to it. It is
dropped whole on any fault. What a worker said of itself never was in the database, and stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from rendezvous.ledger.rows import Job, Lane, TaskRow, WorkerRow
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from rendezvous.policy.contexts import Context
from rendezvous.policy.egress import Flag
from rendezvous.policy.eligibility import Demand, Rules, check_demand
from rendezvous.policy.order import Shares
from rendezvous.policy.records import Record
from rendezvous.policy.versions import WORKER
from swarm.model import JobId, TaskId
from swarm.wire import Requires

__all__ = ["LIVE_S", "Fleet", "Memory", "Standing"]

#: Rows of tasks kept in memory between transactions: about 1 KB each.
ROWS_KEPT: Final = 20_000
#: Lanes and jobs kept: about 200 bytes each.
LANES_KEPT: Final = 100_000
#: A worker is live while its last turn is at most three heartbeats of 10 s old.
LIVE_S: Final = 30.0
#: Of so many combinations of versions the outcomes are counted between two sweeps.
TALLIES_MOST: Final = 1_000


@attrs.frozen
class Standing:
    """What all tasks of a lane have in common."""

    kind: str
    tier: str
    requires: Requires
    host: str


class Memory:
    """What is believed of the database between transactions."""

    def __init__(self) -> None:
        self.rows: dict[int, TaskRow] = {}
        self.seq_of: dict[TaskId, int] = {}
        self.bodies: dict[int, str] = {}
        self.jobs: dict[int, Job] = {}
        self.job_of: dict[JobId, int] = {}
        self.demands: dict[int, Demand] = {}
        self.demand_of: dict[str, int] = {}
        self.hosts: dict[int, str] = {}
        self.host_of: dict[str, int] = {}
        self.lanes: dict[int, Lane] = {}
        self.lane_of: dict[tuple[int, int], int] = {}
        self.workers: dict[int, WorkerRow] = {}
        self.worker_of: dict[WorkerRef, int] = {}
        self.standings: dict[int, Standing] = {}
        self.counters: dict[str, int] | None = None
        #: How long tasks took, and until when that is believed whoever writes meanwhile, ledger seconds.
        self.durations: dict[str, dict[int, int]] | None = None
        self.durations_until = 0.0
        self.rules: Rules | None = None
        #: The hosts that ask for a delay between requests.
        self.delayed: set[int] | None = None
        #: What is held against workers that were looked up: by worker, then by host.
        self.records: dict[int, dict[int, Record]] = {}
        #: What is held against networks that were looked up: by prefix, then by host.
        self.egress: dict[str, dict[int, Flag]] = {}
        #: Profiles and sessions that were looked up.
        self.contexts: dict[tuple[str, str], Context | None] = {}
        #: The hosts where workers of one network are kept apart.
        self.apart: frozenset[int] | None = None
        #: Whose keys were revoked: by whom, and why.
        self.revoked: dict[str, tuple[str, str]] | None = None
        #: The hosts that were found slow, and until when.
        self.slow: dict[int, float] | None = None

    def standing(self, lane: int) -> Standing:
        """What all tasks of a lane have in common, for their events and grants."""
        known = self.standings.get(lane)
        if known is None:
            row = self.lanes[lane]
            demand = self.demands[row.demand]
            known = self.standings[lane] = Standing(demand.kind, demand.tier, demand.requires, self.hosts[row.host])
        return known

    @property
    def too_big(self) -> bool:
        """Whether it is time to begin anew."""
        return len(self.rows) > ROWS_KEPT or len(self.lanes) > LANES_KEPT or len(self.jobs) > LANES_KEPT

    def doubted(self) -> Memory:
        """What is left when another wrote: what nobody changes once it is there. Whatever else is read anew.

        How long tasks take is a matter of many of them, and stays for a while.
        """
        kept = Memory()
        kept.jobs, kept.job_of = self.jobs, self.job_of
        kept.demands, kept.demand_of = self.demands, self.demand_of
        kept.hosts, kept.host_of = self.hosts, self.host_of
        kept.lanes, kept.lane_of, kept.standings = self.lanes, self.lane_of, self.standings
        kept.worker_of = self.worker_of
        kept.durations, kept.durations_until = self.durations, self.durations_until
        return kept

    def keep(self, row: TaskRow, body: str | None = None) -> TaskRow:
        """Believe this row; one that is believed already wins, since it may have been changed."""
        kept = self.rows.setdefault(row.seq, row)
        self.seq_of[row.id] = row.seq
        if body is not None:
            self.bodies[row.seq] = body
        return kept

    def drop(self, row: TaskRow) -> None:
        """Believe nothing of this row any more."""
        self.rows.pop(row.seq, None)
        self.seq_of.pop(row.id, None)
        self.bodies.pop(row.seq, None)


class Fleet:
    """What workers said they are, and when they last did; and which tier of work is to be served next."""

    def __init__(self, tier_shares: Mapping[str, float]) -> None:
        self.shares: Final = Shares(tier_shares)
        #: How much of each worker's work was accepted since its budget changed; a restart begins anew.
        self.accepted: Final[dict[int, int]] = {}
        #: How tasks came out, by (kind, release of the worker, version of the executor): done, failed. Written by the
        #: sweeps; what isn't by then is lost with the process.
        self.tally: dict[tuple[str, str, str], list[int]] = {}
        self._said: dict[WorkerRef, tuple[WorkerFacts, float]] = {}
        #: Of hosts that had slow tasks lately: which share of their last ones was slow (``slowness``).
        self.slow_shares: Final[dict[int, float]] = {}
        #: The fences of the old leases that each worker had at its last turn.
        self.old_leases: Final[dict[WorkerRef, frozenset[int]]] = {}
        #: When it was looked, which demands have work of hosts that aren't slow; and which.
        self.other_work: tuple[float, frozenset[int]] | None = None

    def hear(self, worker: WorkerRef, facts: WorkerFacts, *, now: float) -> None:
        """Note a turn."""
        self._said[worker] = (facts, now)

    def hear_of(self, workers: Iterable[tuple[WorkerRef, WorkerFacts, float]]) -> None:
        """Note turns that were taken elsewhere, where nothing later is known here."""
        for worker, facts, at in workers:
            known = self._said.get(worker)
            if known is None or known[1] < at:
                self._said[worker] = (facts, at)

    def forget(self, worker: WorkerRef) -> None:
        """Drop a worker that was removed."""
        self._said.pop(worker, None)
        self.old_leases.pop(worker, None)

    def forget_silent(self, *, now: float) -> None:
        """Drop those that aren't live any more."""
        self._said = {ref: said for ref, said in self._said.items() if now - said[1] <= LIVE_S}
        for silent in self.old_leases.keys() - self._said.keys():
            del self.old_leases[silent]

    def count(self, outcomes: Iterable[tuple[str, Mapping[str, str], bool]]) -> None:
        """Note what came out of tasks, once that is durable."""
        for kind, versions, done in outcomes:
            key = (kind, versions.get(WORKER, ""), versions.get(kind, ""))
            counted = self.tally.get(key)
            if counted is None:
                if len(self.tally) >= TALLIES_MOST:
                    continue
                counted = self.tally[key] = [0, 0]
            counted[0 if done else 1] += 1

    def who_meet(self, demand: Demand, *, now: float) -> list[WorkerRef]:
        """The live workers that meet the demand."""
        return [
            ref for ref, (facts, at) in self._said.items() if now - at <= LIVE_S and check_demand(demand, facts) is None
        ]

    def meets(self, demand: Demand, *, but_not: Iterable[WorkerRef], now: float) -> bool:
        """Whether a live worker, none of these, meets the demand."""
        left_out = set(but_not)
        return any(
            ref not in left_out and now - at <= LIVE_S and check_demand(demand, facts) is None
            for ref, (facts, at) in self._said.items()
        )
