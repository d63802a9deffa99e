"""What the ledger's events mean for those who are connected: nudges, cancels, event streams, counters.

Called on the loop after each commit; nothing here waits. Gossip is somebody else's (``rendezvous.announce``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from rendezvous.door.metrics import Metrics
from rendezvous.door.stream import EventStream
from rendezvous.fleet import Fleet
from rendezvous.ledger.ops import LedgerEvent
from rendezvous.ledger.values import WorkerRef
from swarm.model import Move, Status, TaskId
from swarm.wire import Requires, encode

__all__ = ["Notifier"]

#: Moves that take a task from its holder, whoever it goes to; it is told at once.
_CALLED_OFF: Final = frozenset({Move.CANCEL, Move.FAIL_BY_HAND, Move.QUARANTINE})
#: Moves that nobody has to be woken for: a group of them, as under load, is only counted.
_QUIET: Final = frozenset({Move.GRANT, Move.RENEW, Move.COMPLETE})


class Notifier:
    """Tells sessions and streams what was committed.

    Args:
        assigns: told when tasks are ready, where they are pushed; None: workers are nudged to ask.
    """

    def __init__(
        self, *, fleet: Fleet, stream: EventStream, metrics: Metrics, assigns: Callable[[], None] | None = None
    ) -> None:
        self._assigns = assigns
        self._fleet = fleet
        self._stream = stream
        self._metrics = metrics

    def take(self, events: Sequence[LedgerEvent]) -> None:
        """Pass on what was just committed."""
        self._stream.take(events)
        ready: dict[tuple[str, bytes], tuple[Requires, int]] = {}
        called_off: dict[WorkerRef, list[TaskId]] = defaultdict(list)
        moves = Counter([event.move for event in events])
        for move, number in moves.items():
            self._metrics.count("swarm_ledger_events_total", number, move=move.value)
        for event in events if moves.keys() - _QUIET else ():
            if event.move in _CALLED_OFF and event.worker is not None:
                called_off[event.worker].append(event.task)
            if event.to is Status.PENDING:
                group = (event.kind, encode(event.requires))
                ready[group] = (event.requires, ready.get(group, (None, 0))[1] + 1)
        for ref, tasks in called_off.items():
            worker = self._fleet.get(ref)
            if worker is not None and worker.session is not None:
                worker.session.cancel(tuple(tasks))
        if self._assigns is not None:
            if ready:
                self._assigns()
            return
        for (kind, _), (requires, number) in ready.items():
            self._nudge(kind, requires, number)

    def _nudge(self, kind: str, requires: Requires, number: int) -> None:
        """Wake as many idle workers that hear no gossip as there are new tasks for them."""
        for worker in self._fleet.deaf_idle(kind, requires, number):
            if worker.session is not None:
                worker.nudged = True
                worker.session.nudge()
                self._metrics.count("swarm_nudges_total")
