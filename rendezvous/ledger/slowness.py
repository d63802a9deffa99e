"""Which hosts keep their tasks for long, as the turns of workers show it (the rule is ``policy.slowness``).

Each root learns from the workers that call at its own door. That a host is slow is written to its row, so that all
roots and ``why`` go by it; it ends by itself. A ledger in which no host was ever slow reads and writes nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.slowness import SLOW_FOR_S, SLOW_S, SOON_S, is_slow, next_share
from swarm.model import Status

if TYPE_CHECKING:
    from rendezvous.ledger.rows import TaskRow
    from rendezvous.ledger.turns import TurnWork

__all__ = ["SLOW", "held_of_slow", "look_at_leases", "note_end", "others_soon", "slow_hosts"]

#: The counter of how often a host was found slow.
SLOW: Final = "slow"
#: So many hosts' shares are remembered at most.
HOSTS_MOST: Final = 10_000
#: What other work there is, is believed for so long, seconds: it is asked for at each grant that a slow host might get.
BELIEVED_S: Final = 1.0
_NONE: Final[Mapping[int, float]] = {}


def look_at_leases(unit: Unit, turn: TurnWork) -> None:
    """Note which of the leases that a worker has are old, each once; and that their hosts are slow, if they are."""
    before = unit.now - SLOW_S
    old = [row for row in turn.leases if row.granted_at is not None and row.granted_at < before]
    known = unit.fleet.old_leases
    if not old:
        known.pop(turn.worker.ref, None)
        return
    seen = known.get(turn.worker.ref, frozenset())
    known[turn.worker.ref] = frozenset(row.fence for row in old)
    for row in old:
        if row.fence not in seen:
            _count(unit, _host(unit, row), slow=True)
    for host in {_host(unit, row) for row in old}:
        if is_slow(unit.fleet.slow_shares.get(host, 0.0)):
            _mark(unit, host)


def note_end(unit: Unit, row: TaskRow, held_s: float) -> None:
    """Note that a task came back before it was old; a host that answers again isn't slow any more."""
    shares = unit.fleet.slow_shares
    if not shares or held_s > SLOW_S:
        return
    host = _host(unit, row)
    was_slow = is_slow(shares.get(host, 0.0))
    _count(unit, host, slow=False)
    if was_slow and not is_slow(shares.get(host, 0.0)) and host in slow_hosts(unit):
        _write(unit, host, None)


def _host(unit: Unit, row: TaskRow) -> int:
    return unit.memory.lanes[row.lane].host


def _count(unit: Unit, host: int, *, slow: bool) -> None:
    shares = unit.fleet.slow_shares
    if host not in shares:
        if not slow:
            return
        if len(shares) >= HOSTS_MOST:  # the first of them may not have been heard of since
            del shares[next(iter(shares))]
    share = next_share(shares.get(host, 0.0), slow=slow)
    if share:
        shares[host] = share
    else:
        del shares[host]


def _mark(unit: Unit, host: int) -> None:
    """Write that a host is slow, unless that will hold for a while anyway."""
    if slow_hosts(unit).get(host, 0.0) > unit.now + SLOW_FOR_S / 2:
        return
    unit.next(SLOW)
    _write(unit, host, unit.now + SLOW_FOR_S)
    unit.connection.later_once(unit.statements.policy.forget_slow, unit.now)


def _write(unit: Unit, host: int, until: float | None) -> None:
    unit.connection.later_once(unit.statements.policy.set_slow, until, host)
    unit.memory.slow = None
    unit.fleet.other_work = None


def slow_hosts(unit: Unit) -> Mapping[int, float]:
    """The hosts (their numbers) that were found slow, and until when they count as such."""
    if not unit.counter(SLOW):
        return _NONE
    if unit.memory.slow is None:
        unit.memory.slow = dict(map(tuple, unit.connection.rows(unit.statements.policy.slow_hosts)))
    return unit.memory.slow


def held_of_slow(unit: Unit, turns: Sequence[TurnWork], slow: frozenset[int]) -> dict[int, int]:
    """How many tasks of slow hosts the workers of these turns hold."""
    rows: dict[int, Sequence[TaskRow]] = {turn.worker.n: turn.leases for turn in turns if not turn.op.partial}
    unknown = [turn.worker.n for turn in turns if turn.worker.n not in rows]
    if unknown:
        held: dict[int, list[int]] = {}
        for worker, seq in unit.connection.rows(unit.statements.held_seqs, as_json(set(unknown))):
            held.setdefault(worker, []).append(seq)
        rows |= {worker: unit.tasks_by_seq(seqs) for worker, seqs in held.items()}
    return {
        worker: sum(row.status is Status.ACTIVE and _host(unit, row) in slow for row in leases)
        for worker, leases in rows.items()
    }


def others_soon(unit: Unit) -> frozenset[int]:
    """The demands that have work of hosts that aren't slow, now or soon."""
    known = unit.fleet.other_work
    if known is None or not known[0] <= unit.now <= known[0] + BELIEVED_S:
        found = unit.connection.rows(unit.statements.other_work, unit.now + SOON_S, unit.now)
        known = unit.fleet.other_work = (unit.now, frozenset(demand for (demand,) in found))
    return known[1]
