"""How do the workers that ask stand? Which hosts are closed to each, how much each may hold, who of a network is where.

Read once a transaction for those that ask; a ledger that holds nothing against anybody reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rendezvous.ledger.rows import WorkerRow
from rendezvous.ledger.rules import apart_hosts, flags_of, records_of
from rendezvous.ledger.turns import TurnWork
from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.budget import MOST
from rendezvous.policy.egress import check_egress
from rendezvous.policy.records import check_record
from swarm.model import Status

__all__ = ["Crowd", "barred_hosts", "budget_of", "budgets_of"]

_NOWHERE: Final[frozenset[int]] = frozenset()


def barred_hosts(unit: Unit, worker: WorkerRow, prefix: str | None) -> frozenset[int]:
    """The hosts (their numbers) that this worker gets nothing of, whoever else does."""
    records, flags = records_of(unit, worker.n), flags_of(unit, prefix)
    if not records and not flags:
        return _NOWHERE
    now = unit.now
    turned_away = {host for host, record in records.items() if check_record(record, "", now=now) is not None}
    return frozenset(turned_away | {h for h, flag in flags.items() if check_egress(flag, "", prefix, now=now)})


def budget_of(budget: int | None, *, newcomer: int) -> int | None:
    """How much a worker may hold; None is no limit.

    Args:
        budget: as it is kept; None of a newcomer.
        newcomer: the setting; 0 is no limit for anybody.
    """
    held = budget or newcomer
    return None if newcomer <= 0 or held >= MOST else held


def budgets_of(unit: Unit, turns: Sequence[TurnWork]) -> dict[int, tuple[int, int | None]]:
    """How many tasks the workers of these turns hold, and may hold; those without a limit are left out."""
    newcomer = unit.settings.newcomer_budget
    if newcomer <= 0:
        return {}
    limited = {turn.worker.n: budget_of(turn.worker.budget, newcomer=newcomer) for turn in turns}
    held = {
        turn.worker.n: sum(row.status is Status.ACTIVE for row in turn.leases) for turn in turns if not turn.op.partial
    }
    unknown = [number for number, budget in limited.items() if budget is not None and number not in held]
    if unknown:
        held.update(dict(unit.connection.rows(unit.statements.held_counts, as_json(unknown))))
    return {number: (held.get(number, 0), budget) for number, budget in limited.items() if budget is not None}


class Crowd:
    """Who holds tasks of the hosts where workers of one network are kept apart."""

    def __init__(self, unit: Unit) -> None:
        self._apart: Final = apart_hosts(unit)
        #: By host and prefix: the workers.
        self._holders: Final[dict[tuple[int, str], set[int]]] = {}
        if not self._apart:
            return
        found = unit.connection.rows(unit.statements.holders_of_hosts, as_json(sorted(self._apart)))
        unit.know_workers({worker for _, worker in found})
        for host, worker in found:
            self.add(host, worker, unit.memory.workers[worker].prefix)

    @property
    def is_watched(self) -> bool:
        """Whether there are such hosts at all."""
        return bool(self._apart)

    def add(self, host: int, worker: int, prefix: str | None) -> None:
        """Note that a worker holds a task of a host."""
        if host in self._apart and prefix is not None:
            self._holders.setdefault((host, prefix), set()).add(worker)

    def is_crowded(self, host: int, worker: int, prefix: str | None) -> bool:
        """Whether another worker of this network holds a task of the host, and they are to be apart there."""
        if host not in self._apart or prefix is None:
            return False
        return bool(self._holders.get((host, prefix), _NOBODY) - {worker})


_NOBODY: Final[set[int]] = set()
