"""A queue in this process: for tests, and for programs that need no other.

It dies with the process; choose Redis or a door where work must not. The rules are those of the port.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs

from swarm.model import Refusal, TaskId
from swarm.queue.messages import parse_lines
from swarm.queue.port import (
    MAX_DELIVERIES,
    VISIBLE_S,
    ClosedByBlock,
    Delivery,
    Gate,
    QueueStats,
    as_task,
    export_line,
    lost,
    new_id,
)
from swarm.wire import NewTask

__all__ = ["DeadTask", "MemoryQueue"]

#: The deadline of a task that nobody holds.
NEVER: Final = float("inf")


@attrs.frozen(kw_only=True)
class DeadTask:
    """A task that nobody tries any more, and why."""

    id: TaskId
    task: NewTask
    reason: str


@attrs.define(kw_only=True)
class _Held:
    """A task of the queue; ``token`` is that of the delivery that has it."""

    id: TaskId
    task: NewTask
    deliveries: int = 0
    token: str | None = None
    visible_until: float = NEVER


class MemoryQueue(ClosedByBlock):
    """The queue.

    Args:
        visible_s: how long a popped task is its consumer's.
        max_deliveries: after so many failures or lost consumers a task is dead.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        visible_s: float = VISIBLE_S,
        max_deliveries: int = MAX_DELIVERIES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._visible_s: Final = visible_s
        self._max_deliveries: Final = max_deliveries
        self._clock: Final = clock
        self._gate: Final = Gate("in memory")
        self._lock: Final = threading.Lock()
        self._tasks: Final[dict[TaskId, _Held]] = {}
        #: (behind fresh work, −priority, number, id) of what waits.
        self._waiting: Final[list[tuple[bool, int, int, TaskId]]] = []
        self._flight: Final[dict[TaskId, _Held]] = {}
        #: Dedupe key → the task that has it, and until when once that is done.
        self._keys: Final[dict[str, tuple[TaskId, float]]] = {}
        self._dead: Final[list[DeadTask]] = []
        self._pushed = 0
        self._done = 0

    def close(self) -> None:
        """End it; see the port."""
        self._gate.close()

    def push(self, task: NewTask | str, *, task_id: TaskId | None = None) -> TaskId:
        """Add a task; see the port."""
        self._gate.check()
        task, task_id = as_task(task), task_id or new_id()
        with self._lock:
            if task_id in self._tasks:
                return task_id
            if task.dedupe is not None:
                holder, kept_until = self._keys.get(task.dedupe.key, ("", 0.0))
                if kept_until > self._clock():
                    return holder
                self._keys[task.dedupe.key] = (task_id, NEVER)
            held = self._tasks[task_id] = _Held(id=task_id, task=task)
            self._enqueue(held, retry=False)
        return task_id

    def _enqueue(self, held: _Held, *, retry: bool) -> None:
        self._pushed += 1
        heapq.heappush(self._waiting, (retry, -held.task.priority, self._pushed, held.id))

    def pop(self, wait_s: float = 0.0) -> Delivery | None:
        """Take the most urgent task; see the port."""
        return self._gate.until(self._take, wait_s)

    def _take(self) -> Delivery | None:
        with self._lock:
            self._reap()
            if not self._waiting:
                return None
            held = self._tasks[heapq.heappop(self._waiting)[-1]]
            held.deliveries += 1
            held.token = new_id()
            held.visible_until = self._clock() + self._visible_s
            self._flight[held.id] = held
            return Delivery(
                id=held.id,
                task=held.task,
                deliveries=held.deliveries,
                visible_s=self._visible_s,
                token=held.token,
            )

    def _reap(self) -> None:
        now = self._clock()
        for held in [held for held in self._flight.values() if held.visible_until <= now]:
            self._return(held, "worker_lost")

    def _return(self, held: _Held, reason: str | None) -> None:
        """Take a task out of its consumer's hands; the caller has the lock."""
        del self._flight[held.id]
        held.token, held.visible_until = None, NEVER
        if reason is None:
            held.deliveries -= 1
        elif held.deliveries >= self._max_deliveries:
            self._dead.append(DeadTask(id=held.id, task=held.task, reason=reason))
            del self._tasks[held.id]
            if held.task.dedupe is not None:
                self._keys.pop(held.task.dedupe.key, None)
            return
        self._enqueue(held, retry=True)

    def _held(self, delivery: Delivery) -> _Held | None:
        """What this delivery still has; the caller has the lock."""
        self._gate.check()
        self._reap()
        held = self._flight.get(delivery.id)
        return held if held is not None and held.token == delivery.token else None

    def ack(self, delivery: Delivery) -> Refusal | None:
        """The task is done; see the port."""
        with self._lock:
            held = self._held(delivery)
            if held is None:
                return lost(delivery.id)
            del self._flight[held.id], self._tasks[held.id]
            if held.task.dedupe is not None:
                self._keys[held.task.dedupe.key] = (held.id, self._clock() + held.task.dedupe.ttl_s)
            self._done += 1
        return None

    def nack(self, delivery: Delivery, *, reason: str | None = None) -> Refusal | None:
        """Give the task back; see the port."""
        with self._lock:
            held = self._held(delivery)
            if held is None:
                return lost(delivery.id)
            self._return(held, reason)
        return None

    def extend(self, delivery: Delivery) -> Refusal | None:
        """Keep the task for longer; see the port."""
        with self._lock:
            held = self._held(delivery)
            if held is None:
                return lost(delivery.id)
            held.visible_until = self._clock() + self._visible_s
        return None

    def __len__(self) -> int:
        return self.stats().pending

    def in_flight(self) -> int:
        """How many tasks are in consumers' hands."""
        return self.stats().in_flight

    def batch_submit(self, tasks: Iterable[NewTask | str]) -> list[TaskId]:
        """Push many tasks; see the port."""
        return [self.push(task) for task in tasks]

    def export(self) -> Iterator[bytes]:
        """The pending tasks; see the port."""
        self._gate.check()
        with self._lock:
            self._reap()
            pending = [self._tasks[entry[-1]] for entry in sorted(self._waiting)]
        return (export_line(held.id, held.task) for held in pending)

    def import_(self, lines: Iterable[bytes | str]) -> int:
        """Push an export; see the port."""
        count = 0
        for message in parse_lines(lines):
            self.push(message.task, task_id=message.id)
            count += 1
        return count

    def stats(self) -> QueueStats:
        """Totals."""
        self._gate.check()
        with self._lock:
            self._reap()
            return QueueStats(
                pending=len(self._waiting),
                in_flight=len(self._flight),
                done=self._done,
                dead=len(self._dead),
            )

    def dead(self) -> list[DeadTask]:
        """The tasks that nobody tries any more, the oldest first."""
        with self._lock:
            return list(self._dead)
