"""What every queue promises: the port, its values, and what all backends have in common.

A task is popped by one consumer at a time. It is that consumer's for ``visible_s``; ``extend`` asks for as much again.
Then it comes back behind fresh work, and the old delivery is refused. Losing a delivery is a value (``Refusal``), not
an exception: at-least-once work meets it every day.
"""

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

import attrs
from uuid6 import uuid7

from swarm.errors import QueueClosed
from swarm.model import Refusal, RefusalCode, TaskId
from swarm.wire import NewTask, encode

__all__ = [
    "MAX_DELIVERIES",
    "VISIBLE_S",
    "ClosedByBlock",
    "Delivery",
    "Gate",
    "Queue",
    "QueueStats",
    "as_task",
    "export_line",
    "lost",
    "new_id",
]

#: How long a popped task is its consumer's, unless told otherwise, seconds; the ledger's own first lease.
VISIBLE_S: Final = 60.0
#: "Three attempts, then a dead letter with its reason" (the fleet document).
MAX_DELIVERIES: Final = 3
#: Waits between two looks of a waiting ``pop``: they double, seconds.
FIRST_LOOK_S: Final = 0.01
LAST_LOOK_S: Final = 0.2

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Delivery:
    """A task in the hands of a consumer.

    Args:
        id: the task's id in this queue.
        task: what is to be done.
        deliveries: how often it was handed out and not given back untried, this time included.
        visible_s: how long it is this consumer's from when it was popped, seconds.
        token: proves that it is; a later delivery of the same task has another one.
    """

    id: TaskId
    task: NewTask
    deliveries: int
    visible_s: float
    token: str


@attrs.frozen(kw_only=True)
class QueueStats:
    """Totals of a queue.

    Args:
        pending: tasks that wait to be popped, retries included.
        in_flight: tasks in the hands of consumers.
        done: tasks acknowledged since the queue was made.
        dead: tasks that nobody tries any more, each with its reason.
    """

    pending: int
    in_flight: int
    done: int
    dead: int


class Queue(Protocol):
    """A queue of tasks. All methods but ``close`` raise ``QueueClosed`` after ``close``.

    A backend whose server doesn't answer raises ``QueueUnreachable`` or ``DoorUnreachable``; none ever puts another
    queue in its place.
    """

    def push(self, task: NewTask | str, *, task_id: TaskId | None = None) -> TaskId:
        """Add a task; a text is a URL to fetch.

        Args:
            task: urgent ones (``priority`` 9) are popped first.
            task_id: a repeated push with the same one adds nothing while the task is there; by default a new one.

        Returns:
            Its id; where its ``dedupe`` key is another task's, that one's.
        """

    def pop(self, wait_s: float = 0.0) -> Delivery | None:
        """Take the most urgent task, the oldest of those first; retries come behind fresh work.

        Args:
            wait_s: how long to wait for one, seconds.

        Returns:
            None where there was none in that time.
        """

    def ack(self, delivery: Delivery) -> Refusal | None:
        """The task is done: it is never delivered again. Refused where the delivery was lost."""

    def nack(self, delivery: Delivery, *, reason: str | None = None) -> Refusal | None:
        """Give the task back at once.

        Args:
            delivery: what ``pop`` gave.
            reason: a word such as ``timeout`` why it failed: counted, and after the last attempt a dead letter. None:
                it wasn't tried; not counted.
        """

    def extend(self, delivery: Delivery) -> Refusal | None:
        """Keep the task for another ``visible_s`` from now. Refused where the delivery was lost: stop, discard."""

    def __len__(self) -> int:
        """How many tasks wait to be popped."""

    def in_flight(self) -> int:
        """How many tasks are in the hands of consumers."""

    def batch_submit(self, tasks: Iterable[NewTask | str]) -> list[TaskId]:
        """Push many tasks, in batches; their ids in order."""

    def export(self) -> Iterator[bytes]:
        """The pending tasks as JSON, a line each, the next one first; the queue isn't changed."""

    def import_(self, lines: Iterable[bytes | str]) -> int:
        """Push what ``export`` of any backend wrote; how many tasks it was.

        Raises:
            MalformedInput: a line isn't a task; the message has its number. Those before it were pushed.
        """

    def stats(self) -> QueueStats:
        """Totals."""

    def close(self) -> None:
        """End it here: who waits in ``pop`` gets ``QueueClosed``. What is in flight comes back when its time is up."""

    def __enter__(self) -> Self:
        """The queue; leaving the block closes it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""


class ClosedByBlock(abc.ABC):
    """What is closed when its ``with`` block is left."""

    @abc.abstractmethod
    def close(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Gate:
    """Whether a queue is open, and waiting on it; what all backends share.

    Args:
        name: of the queue, for the error.
        release: called once, when it is closed and the last call in it has ended: no call loses its connection.
        clock: monotonic seconds.
    """

    def __init__(
        self, name: str, *, release: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name: Final = name
        self._release: Final = release
        self._clock: Final = clock
        self._closed: Final = threading.Event()
        self._lock: Final = threading.Lock()
        self._inside = 0

    def close(self) -> None:
        """Close it, and wake who waits."""
        with self._lock:
            first = not self._closed.is_set()
            self._closed.set()
            idle = self._inside == 0
        if first and idle:
            self._release()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Around whatever uses the queue's connections.

        Raises:
            QueueClosed: it is closed.
        """
        with self._lock:
            self.check()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                last = self._closed.is_set() and self._inside == 0
            if last:
                self._release()

    def check(self) -> None:
        """Raise ``QueueClosed`` where it is closed."""
        if self._closed.is_set():
            raise QueueClosed(f"the queue {self._name} was closed")

    def until(self, look: Callable[[], T | None], wait_s: float) -> T | None:
        """Look until something is there, at least once; None where there was nothing in ``wait_s``.

        Raises:
            QueueClosed: it is closed, or was while waiting.
        """
        give_up_at = self._clock() + wait_s
        pause_s = FIRST_LOOK_S
        while True:
            self.check()
            found = look()
            left_s = give_up_at - self._clock()
            if found is not None or left_s <= 0:
                return found
            self._closed.wait(min(pause_s, left_s))
            pause_s = min(pause_s * 2, LAST_LOOK_S)


def new_id() -> TaskId:
    """A fresh task id."""
    return str(uuid7())


def as_task(task: NewTask | str) -> NewTask:
    """A task; a text is a URL to fetch."""
    return NewTask(kind="fetch", urls=(task,)) if isinstance(task, str) else task


def export_line(task_id: TaskId, task: NewTask) -> bytes:
    """One line of an export."""
    return b'{"id":' + encode(task_id) + b"," + encode(task)[1:] + b"\n"


def lost(task_id: TaskId) -> Refusal:
    """The refusal of a delivery that isn't its consumer's any more."""
    return Refusal(
        RefusalCode.LEASE_EXPIRED,
        f"the task {task_id} isn't this delivery's any more: its time was up; discard what was done",
    )
