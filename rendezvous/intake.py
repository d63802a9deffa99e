"""Drains queues of other programs into the ledger: ``swarm-root run --intake redis://…?queue=pages``.

A message is acknowledged after the ledger has committed its task. Where the root dies in between, the message comes
again, with the same id; the ledger answers it as it answered before, by the ``Idempotency-Key`` that is made of that
id. So each message becomes one task, whenever the root is killed. What can't become a task is a dead letter in its
queue, with the reason.

While the ledger holds ``backlog`` tasks that wait nothing is taken: what isn't needed yet stays where it is. A Redis
that goes away is waited for; one that isn't there at the start is a refusal to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
import structlog

from rendezvous.door.metrics import Metrics
from rendezvous.door.submit import TASKS_A_SLICE, check_reward, prepare
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.ops import PreparedTask, Submit, SubmitResult
from rendezvous.watch import Watch
from rendezvous.wiring import OPERATOR
from swarm.errors import ConfigurationError, LedgerUnavailable, MalformedInput, QueueUnreachable
from swarm.model import Refusal, Status
from swarm.queue.messages import parse_message
from swarm.queue.open import DEFAULT_NAME, QUEUE_OPTIONS, open_redis_queue, option
from swarm.queue.redis_link import RedisUrl, read_redis_url
from swarm.queue.redis_queue import MALFORMED, RawDelivery, RedisQueue
from swarm.settings import count, switch, text

__all__ = ["Intake", "open_intakes"]

log = structlog.get_logger()

#: What an intake's URL may say beyond the queue's own options.
INTAKE_OPTIONS: Final = (*QUEUE_OPTIONS, "owner", "as", "dedupe", "backlog")
#: Messages of one round: they are one group of the ledger, and acknowledged together.
MESSAGES_A_ROUND: Final = 256
#: With so many tasks waiting in the ledger nothing is taken.
BACKLOG: Final = 10_000
#: A root that is killed while it has a message isn't the message's fault; one that kills it every time is.
DELIVERIES: Final = 20
#: Waits while there is nothing to take: they double, seconds.
FIRST_LOOK_S: Final = 0.01
LAST_LOOK_S: Final = 0.2
#: How often a backlog is looked at again, seconds.
BACKLOG_LOOK_S: Final = 0.5
#: Waits while Redis or the ledger is away: they double, seconds.
FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 5.0


class Intake:
    """One queue on its way into the ledger.

    Args:
        queue: where messages are.
        ledger: where tasks go.
        network_id: of this swarm: with it the queue's job is the same at every start.
        name: of the job, and of what the ids of messages are unique in; a queue that moves to another Redis keeps it.
            None: the queue's.
        owner: whose the tasks are; the operator's are charged to nobody.
        paid: whether there is a contract to pay rewards from.
        dedupe: whether the same task pushed again is a duplicate, as in a submission; else each message is a task.
        backlog: how many waiting tasks of the ledger are enough.
        watch: is told of dead letters and of outages.
    """

    def __init__(
        self,
        queue: RedisQueue,
        ledger: Ledger,
        metrics: Metrics,
        *,
        network_id: str,
        name: str | None = None,
        owner: str = OPERATOR,
        paid: bool = False,
        dedupe: bool = True,
        backlog: int = BACKLOG,
        watch: Watch | None = None,
    ) -> None:
        self._queue: Final = queue
        self._ledger: Final = ledger
        self._metrics: Final = metrics
        self._owner: Final = owner
        self._paid: Final = paid
        self._dedupe: Final = dedupe
        self._backlog: Final = backlog
        self._watch: Final = watch
        #: Whom alerts are about: queues of two Redises may have the same name.
        self._subject: Final = f"{queue.name} of {queue.where.shown}"
        self._name: Final = queue.name if name is None else name
        #: How many damaged messages the watch was told of.
        self._damaged = 0
        self.job: Final = str(uuid.uuid5(uuid.NAMESPACE_URL, f"swarm:{network_id}/{owner}/{self._name}"))
        #: What keeps it from working now; None while it does.
        self.trouble: str | None = None

    async def run(self) -> None:
        """Drain the queue until cancelled."""
        log.info("intake_started", queue=self._queue.name, address=self._queue.where.shown, job=self.job)
        pause_s = FIRST_LOOK_S
        while True:
            try:
                pause_s = await self._round(pause_s)
                self._well()
            except (QueueUnreachable, LedgerUnavailable, ConfigurationError) as fault:
                pause_s = min(LAST_RETRY_S, max(FIRST_RETRY_S, pause_s * 2))
                self._wait_for(str(fault))
            await asyncio.sleep(pause_s)

    def _wait_for(self, trouble: str) -> None:
        if self.trouble is None:
            log.error("intake_waits", queue=self._queue.name, reason=trouble)
        self._note(trouble)

    def _note(self, trouble: str | None) -> None:
        self.trouble = trouble
        if self._watch is not None:
            self._watch.note_intake(self._subject, trouble)

    def _well(self) -> None:
        if self.trouble is not None:
            log.info("intake_recovered", queue=self._queue.name, after=self.trouble)
            self._note(None)

    async def _round(self, pause_s: float) -> float:
        """Take what there is, once; how long to wait before the next time, seconds."""
        counts = await self._ledger.read(lambda reader: reader.counts())
        room = self._backlog - counts[Status.PENDING] - counts[Status.WAITING]
        if room <= 0:
            return BACKLOG_LOOK_S
        async with self._taking(min(room, MESSAGES_A_ROUND)) as taken:
            damaged, self._damaged = self._queue.damaged - self._damaged, self._queue.damaged
            self._count("dead", damaged)
            if not taken:
                return min(LAST_LOOK_S, max(FIRST_LOOK_S, pause_s * 2))
            await self._submit(taken)
        return 0.0

    @contextlib.asynccontextmanager
    async def _taking(self, most: int) -> AsyncIterator[list[RawDelivery]]:
        """Take messages; where they can't be submitted, or we are told to stop, they are given back uncounted."""
        taking = asyncio.ensure_future(asyncio.to_thread(self._queue.take_raw, most))
        taken: list[RawDelivery] = []
        done = False
        try:
            taken = await asyncio.shield(taking)
            yield taken
            done = True
        finally:
            if not done:
                with contextlib.suppress(QueueUnreachable, ConfigurationError):  # else they come back by themselves
                    taken = await taking
                    await asyncio.to_thread(self._queue.nack_all, taken)

    async def _submit(self, taken: Sequence[RawDelivery]) -> None:
        """Make tasks of messages, and acknowledge them once they are committed.

        Raises:
            LedgerUnavailable: nothing was acknowledged.
            QueueUnreachable: what was committed is found again when the messages come again.
        """
        buried: list[tuple[RawDelivery, str]] = []
        ops: list[tuple[RawDelivery, Submit]] = []
        for number, delivery in enumerate(taken, 1):
            op = self._read(delivery)
            if isinstance(op, Submit):
                ops.append((delivery, op))
            else:
                buried.append((delivery, op))
            if number % TASKS_A_SLICE == 0:
                await asyncio.sleep(0)
        answers: list[SubmitResult | Refusal] = await asyncio.gather(*(self._ledger.call(op) for _, op in ops))
        done: list[RawDelivery] = []
        outcomes: Counter[str] = Counter()
        for (delivery, _), answer in zip(ops, answers, strict=True):
            if isinstance(answer, Refusal):
                buried.append((delivery, f"{answer.code}: {answer.message}"))
                continue
            done.append(delivery)
            outcomes["created" if answer.tasks[0][1] else "duplicate"] += 1
        await asyncio.to_thread(self._queue.ack_all, done)
        for delivery, reason in buried:
            await asyncio.to_thread(self._queue.bury, delivery, reason)
            outcomes["dead"] += 1
        for outcome, messages in outcomes.items():
            self._count(outcome, messages)

    def _count(self, outcome: str, messages: int) -> None:
        if not messages:
            return
        self._metrics.count("swarm_intake_total", messages, outcome=outcome)
        if outcome == "dead" and self._watch is not None:
            self._watch.count_dead(self._subject, messages)

    def _read(self, delivery: RawDelivery) -> Submit | str:
        """The submission that a message is, or why it is none."""
        try:
            message = parse_message(delivery.message, kind=self._queue.kind)
        except MalformedInput as fault:
            return f"{MALFORMED}: {fault}"
        task: PreparedTask | Refusal = prepare(message.task, job=self.job)
        if not isinstance(task, Refusal):
            task = check_reward(task, paid=self._paid) or task
        if isinstance(task, Refusal):
            return f"{task.code}: {task.message}"
        message_id = message.id or delivery.id
        if not self._dedupe and message.task.dedupe is None:
            task = msgspec.structs.replace(task, dedupe_key=f"message:{message_id}")
        key = hashlib.sha256(f"{self._name}\0{message_id}".encode()).hexdigest()
        return Submit(
            owner=self._owner,
            job=self.job,
            job_named=False,
            name=self._name[:64],
            tasks=(task,),
            charged=self._paid and self._owner != OPERATOR,
            idempotency_key=f"intake:{key}",
            body_digest=hashlib.sha256(delivery.message).digest(),
        )


@contextlib.asynccontextmanager
async def open_intakes(
    locations: Sequence[str],
    ledger: Ledger,
    metrics: Metrics,
    *,
    network_id: str,
    paid: bool,
    watch: Watch | None = None,
) -> AsyncIterator[list[Intake]]:
    """Open the queues to drain.

    Args:
        locations: Redis URLs; beside a queue's own options ``owner=alice``, ``as=NAME``, ``dedupe=on|off``,
            ``backlog=10000``. No two are the same owner's of one name.
        ledger: where tasks go.
        metrics: counts what became of messages.
        network_id: of this swarm.
        paid: whether there is a contract to pay rewards from.
        watch: is told of dead letters and of outages.

    Raises:
        QueueUnreachable: one doesn't answer; no other queue was used.
        ConfigurationError: a URL makes no sense, or two are called the same.

    *Resource handling*: the connections are the block's; ``Intake.run`` is the caller's to start and to end before.
    """
    with contextlib.ExitStack() as stack:
        intakes: list[Intake] = []
        for where in _told_apart([read_redis_url(location, known=INTAKE_OPTIONS) for location in locations]):
            where.options.setdefault("deliveries", str(DELIVERIES))
            queue = stack.enter_context(await asyncio.to_thread(open_redis_queue, where))
            intakes.append(_intake(where, queue, ledger, metrics, network_id=network_id, paid=paid, watch=watch))
        yield intakes


def _name_of(where: RedisUrl) -> str | None:
    """What an intake is called, where that isn't its queue's name."""
    return option(where, "as", text, None)


def _told_apart(places: Sequence[RedisUrl]) -> Sequence[RedisUrl]:
    """Refuse two queues of one owner and name: what one of them calls a message would be the other's message, too."""
    known: dict[tuple[str, str], tuple[str, str]] = {}
    for where in places:
        queue = option(where, "queue", text, DEFAULT_NAME)
        name, owner = _name_of(where) or queue, option(where, "owner", text, OPERATOR)
        first = known.setdefault((owner, name), (where.shown, queue))
        if first != (where.shown, queue):
            raise ConfigurationError(
                f"two intakes are called {name}: those of {first[0]} and of {where.shown}",
                hint=f"give one of them a name of its own, such as &as={name}-2",
            )
    return places


def _intake(
    where: RedisUrl,
    queue: RedisQueue,
    ledger: Ledger,
    metrics: Metrics,
    *,
    network_id: str,
    paid: bool,
    watch: Watch | None,
) -> Intake:
    return Intake(
        queue,
        ledger,
        metrics,
        network_id=network_id,
        name=_name_of(where),
        owner=option(where, "owner", text, OPERATOR),
        paid=paid,
        dedupe=option(where, "dedupe", switch, True),
        backlog=option(where, "backlog", count(1, 10_000_000), BACKLOG),
        watch=watch,
    )
