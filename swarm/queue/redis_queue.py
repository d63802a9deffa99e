"""A queue in Redis: survives its consumers, shared by any number of them, fed by programs that know nothing of us.

A pop moves a task from its bucket to the processing list in one script, so a consumer that is killed at any moment
loses nothing: its tasks come back when their time is up. Fresh work comes before retries, urgent before old. What
other programs push to the key of the queue's name (a bare URL, JSON: ``messages.py``) is taken in as it comes; what
can't be read becomes a dead letter with its reason.

A pop that waits looks again up to five times a second: a script of 0.1 ms, where blocking commands couldn't be atomic
over two buckets and an inbox.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import structlog

from swarm.errors import ConfigurationError, MalformedInput
from swarm.model import Refusal, TaskId
from swarm.queue import redis_scripts
from swarm.queue.messages import DEFAULT_KIND, parse_lines, parse_message
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
from swarm.queue.redis_link import CallsInTime, RedisUrl, connect, faults_of
from swarm.wire import NewTask, encode

if TYPE_CHECKING:
    from redis.commands.core import Script

__all__ = ["DeadLetter", "RawDelivery", "RedisQueue"]

log = structlog.get_logger()

#: Tasks of one script: at 64 KiB each a script's input stays far below Redis' limit of 512 MB.
BATCH: Final = 500
MAX_NAME: Final = 200
#: How long a call may take, seconds: the largest answer is 20 MB, which is 11 Mbit/s.
CALL_S: Final = 15.0
#: Callers beyond these wait for each other.
CALLS_AT_ONCE: Final = 16
#: Why what can't be read is dead.
MALFORMED: Final = "malformed"
#: Why that is dead of which the queue's own notes can't be read; the scripts say more.
DAMAGED: Final = "damaged"

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class RawDelivery:
    """A message in the hands of a consumer, as it came."""

    id: str
    message: bytes
    deliveries: int
    token: str


@attrs.frozen(kw_only=True)
class DeadLetter:
    """A message that nobody tries any more.

    Args:
        id: of the task.
        message: as it was pushed; what isn't UTF-8 is replaced.
        reason: a word, and for a malformed one a sentence.
        deliveries: how often it was handed out.
        at: when it was given up, Unix seconds of Redis.
    """

    id: str
    message: str
    reason: str
    deliveries: int
    at: float


class RedisQueue(ClosedByBlock):
    """The queue.

    Args:
        where: the Redis.
        name: of the queue, and of the key that other programs push to.
        visible_s: how long a popped task is its consumer's.
        max_deliveries: after so many failures or lost consumers a task is dead.
        front: which end of a list is popped first: ``right`` for producers that use LPUSH.
        kind: of messages that name none.
        call_s: how long a call may take, seconds.

    *Resource handling*: holds connections; use it as a context manager, or ``close`` it.
    """

    def __init__(
        self,
        where: RedisUrl,
        *,
        name: str,
        visible_s: float = VISIBLE_S,
        max_deliveries: int = MAX_DELIVERIES,
        front: str = "right",
        kind: str = DEFAULT_KIND,
        call_s: float = CALL_S,
    ) -> None:
        if not 0 < len(name) <= MAX_NAME or "{" in name or "}" in name or not name.isprintable():
            raise ConfigurationError(
                f"{name[:60]!r} can't be a queue's name", hint=f"up to {MAX_NAME} characters, without braces"
            )
        self.name: Final = name
        self.where: Final = where
        self._visible_s: Final = visible_s
        self._front: Final = front
        self.kind: Final = kind
        self._rules: Final = (max_deliveries, int(visible_s * 1000))
        self._keys: Final = [name, *(f"{{{name}}}:{key}" for key in redis_scripts.KEYS)]
        self._redis: Final = connect(where)
        self._calls: Final = CallsInTime(self._redis, where, limit_s=call_s, at_once=CALLS_AT_ONCE)
        self._gate: Final = Gate(f"{name} at {where.shown}", release=self._calls.close)
        self._scripts: Final[dict[str, Script]] = {}
        #: How many tasks this consumer learned of whose state couldn't be read; they are dead letters.
        self.damaged = 0

    def close(self) -> None:
        """End it; see the port."""
        self._gate.close()

    def check(self) -> None:
        """Raise ``QueueUnreachable`` with the reason where Redis doesn't answer or doesn't let us in."""
        self._run(redis_scripts.STATS)

    def _run(self, script: str, *arguments: Any) -> Any:
        with self._gate.call(), faults_of(self.where):
            known = self._scripts.get(script)
            if known is None:
                known = self._scripts[script] = self._redis.register_script(script)
            return self._calls.run(lambda: known(keys=self._keys, args=[*self._rules, *arguments]))

    # ── push ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def push(self, task: NewTask | str, *, task_id: TaskId | None = None) -> TaskId:
        """Add a task; see the port. After ``QueueUnreachable`` it may be there: push it again with the same id."""
        return self._push([(task_id or new_id(), as_task(task))])[0]

    def batch_submit(self, tasks: Iterable[NewTask | str]) -> list[TaskId]:
        """Push many tasks; see the port."""
        ids: list[TaskId] = []
        for batch in _batches((new_id(), as_task(task)) for task in tasks):
            ids += self._push(batch)
        return ids

    def _push(self, tasks: Sequence[tuple[TaskId, NewTask]]) -> list[TaskId]:
        arguments: list[Any] = []
        for task_id, task in tasks:
            dedupe = ("", 0) if task.dedupe is None else (task.dedupe.key, int(task.dedupe.ttl_s * 1000))
            arguments += [task_id, encode(task), 9 - task.priority, *dedupe]
        with faults_of(self.where):
            return [known.decode() for known in self._run(redis_scripts.PUSH, *arguments)]

    # ── pop ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def pop(self, wait_s: float = 0.0) -> Delivery | None:
        """Take the most urgent task; see the port."""
        return self._gate.until(self._take, wait_s)

    def _take(self) -> Delivery | None:
        while True:
            raw = self.take_raw(1)
            if not raw:
                return None
            try:
                task = parse_message(raw[0].message, kind=self.kind).task
            except MalformedInput as fault:
                self.bury(raw[0], f"{MALFORMED}: {fault}")
                continue
            return Delivery(
                id=raw[0].id,
                task=task,
                deliveries=raw[0].deliveries,
                visible_s=self._visible_s,
                token=raw[0].token,
            )

    def take_raw(self, most: int) -> list[RawDelivery]:
        """Take up to so many messages as they came, without waiting; the caller reads them."""
        answer = self._run(redis_scripts.POP, most, uuid.uuid4().hex, self._front)
        with faults_of(self.where):
            damaged, taken = answer
            if int(damaged) > 0:
                log.error("messages_damaged", queue=self.name, messages=int(damaged), reason=DAMAGED)
                self.damaged += int(damaged)
            return [
                RawDelivery(
                    id=task_id.decode(),
                    message=b"".join([message]),  # bytes, or a TypeError
                    deliveries=int(deliveries),
                    token=token.decode(),
                )
                for task_id, message, deliveries, token in taken
            ]

    # ── what became of it ─────────────────────────────────────────────────────────────────────────────────────────

    def ack(self, delivery: Delivery) -> Refusal | None:
        """The task is done; see the port."""
        return self._settle(redis_scripts.ACK, delivery)

    def ack_all(self, deliveries: Iterable[Delivery | RawDelivery]) -> None:
        """All of these are done; what was lost meanwhile is read over."""
        for batch in _batches(deliveries):
            self._run(redis_scripts.ACK, *itertools.chain.from_iterable((one.id, one.token) for one in batch))

    def nack(self, delivery: Delivery, *, reason: str | None = None) -> Refusal | None:
        """Give the task back; see the port."""
        return self._settle(redis_scripts.NACK, delivery, reason or "")

    def nack_all(self, deliveries: Iterable[Delivery | RawDelivery]) -> None:
        """Give all of these back untried; what was lost meanwhile is read over."""
        for batch in _batches(deliveries):
            self._run(redis_scripts.NACK, "", *itertools.chain.from_iterable((one.id, one.token) for one in batch))

    def bury(self, delivery: Delivery | RawDelivery, reason: str) -> Refusal | None:
        """Make it a dead letter at once: trying again won't help."""
        log.warning("message_buried", queue=self.name, message=delivery.id, reason=reason[:300])
        return self._settle(redis_scripts.BURY, delivery, reason)

    def extend(self, delivery: Delivery) -> Refusal | None:
        """Keep the task for longer; see the port."""
        return self._settle(redis_scripts.EXTEND, delivery)

    def _settle(self, script: str, delivery: Delivery | RawDelivery, *arguments: str) -> Refusal | None:
        with faults_of(self.where):
            (settled,) = self._run(script, *arguments, delivery.id, delivery.token)
        return None if settled else lost(delivery.id)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return self.stats().pending

    def in_flight(self) -> int:
        """How many tasks are in consumers' hands."""
        return self.stats().in_flight

    def stats(self) -> QueueStats:
        """Totals; what stands in the inbox is pending."""
        with faults_of(self.where):
            arrived, fresh, retrying, in_flight, dead, done = map(int, self._run(redis_scripts.STATS))
        return QueueStats(pending=arrived + fresh + retrying, in_flight=in_flight, done=done, dead=dead)

    def dead(self, most: int = 100) -> list[DeadLetter]:
        """The newest dead letters."""
        with self._gate.call(), faults_of(self.where):
            rows: Any = self._calls.run(lambda: self._redis.lrange(self._key("dead"), 0, most - 1))
        return [_letter(row) for row in rows]

    def revive(self, most: int = 100) -> int:
        """Give the oldest dead letters a new life as fresh work, once what killed them is mended; how many it were."""
        with faults_of(self.where):
            return int(self._run(redis_scripts.REVIVE, most))

    def _key(self, name: str) -> str:
        return f"{{{self.name}}}:{name}"

    def export(self) -> Iterator[bytes]:
        """The pending tasks; see the port. What can't be read is left out; it becomes a dead letter when popped."""
        self._gate.check()
        return self._export()

    def _export(self) -> Iterator[bytes]:
        for bucket in ("fresh", "retry"):
            with self._gate.call(), faults_of(self.where):
                ids: Any = self._calls.run(partial(self._redis.zrange, self._key(bucket), 0, -1))
            for page in _batches(ids):
                with self._gate.call(), faults_of(self.where):
                    messages: Any = self._calls.run(partial(self._redis.hmget, self._key("tasks"), page))
                yield from _lines(zip(page, messages, strict=True), self.kind)
        yield from _lines(((None, message) for message in self._inbox()), self.kind)

    def _inbox(self) -> Sequence[bytes]:
        """What other programs pushed and nobody popped, the next one first."""
        with self._gate.call(), faults_of(self.where):
            shape: Any = self._calls.run(lambda: self._redis.type(self.name))
            found: Any = []
            if shape == b"list":
                found = self._calls.run(lambda: self._redis.lrange(self.name, 0, -1))
                if self._front == "right":
                    found.reverse()
            elif shape == b"set":
                found = sorted(self._calls.run(lambda: self._redis.smembers(self.name)))
            elif shape == b"zset":
                found = self._calls.run(lambda: self._redis.zrange(self.name, 0, -1, desc=True))
            return found  # type: ignore[no-any-return]

    def import_(self, lines: Iterable[bytes | str]) -> int:
        """Push an export; see the port."""
        count = 0
        for batch in _batches(parse_lines(lines)):
            self._push([(message.id or new_id(), message.task) for message in batch])
            count += len(batch)
        return count


def _letter(row: bytes) -> DeadLetter:
    """A dead letter as it is kept; one that can't be read is shown as it is."""
    text = row.decode(errors="replace")
    try:
        letter = json.loads(text)
        return DeadLetter(
            id=str(letter["id"]),
            message=str(letter.get("message", "")),
            reason=str(letter["reason"]),
            deliveries=int(letter["deliveries"]),
            at=float(letter["at"]),
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        return DeadLetter(id="", message=text, reason=DAMAGED, deliveries=0, at=0.0)


def _lines(found: Iterable[tuple[bytes | None, bytes | None]], kind: str) -> Iterator[bytes]:
    for task_id, message in found:
        if message is not None:  # else it was popped meanwhile
            try:
                task = parse_message(message, kind=kind).task
            except MalformedInput:
                continue
            yield export_line(task_id.decode() if task_id is not None else new_id(), task)


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(itertools.islice(rest, BATCH)):
        yield batch
