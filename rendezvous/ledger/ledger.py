"""The ledger as the root uses it: one writer thread, group commit, readers beside it, and the clock's sweeps.

Callers put operations in a queue; the writer takes whatever waits, does it in one transaction, and answers all callers
at once after COMMIT. It never lingers: a group forms while the one before is being committed. So an answer means
durable, and a burst costs one fsync.

Nothing in here knows a task: that is ``transitions.py``. Nothing in there knows a thread or an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar, overload

import msgspec
import structlog
from sqlalchemy.engine import Engine

from rendezvous.ledger.act_ops import (
    Admit,
    ApproveVersion,
    Enrol,
    FailByHand,
    KeepApart,
    LiftQuarantine,
    Pause,
    PutInvite,
    PutKey,
    Quarantine,
    Resume,
    Revoke,
    Revoked,
    TakeBack,
)
from rendezvous.ledger.archive import archive_batch
from rendezvous.ledger.engine import BUSY_TIMEOUT_MS, open_engine, open_reading_engine
from rendezvous.ledger.migrate import migrate
from rendezvous.ledger.money_ops import (
    AddIntent,
    AdoptVoucher,
    ClaimSender,
    Record,
    ResumeSender,
    RetryParked,
    SeeChannels,
    Sender,
    SenderHeld,
)
from rendezvous.ledger.neighbours import Alone, Office, RootsTogether
from rendezvous.ledger.ops import (
    Assign,
    Assigned,
    Cancel,
    Ended,
    Forget,
    HearOf,
    HoldHost,
    KeepAcceptance,
    LedgerEvent,
    Op,
    Probe,
    Rearm,
    RemoveWorker,
    Replay,
    SeeWorkers,
    SetHostPace,
    Submit,
    SubmitResult,
    Sweep,
    TakeTurn,
    TurnResult,
)
from rendezvous.ledger.paces import repace
from rendezvous.ledger.postgres import OpenConnections, database_time
from rendezvous.ledger.queries import LedgerReader
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.shared_pace import SharedPace
from rendezvous.ledger.statements import BATCH
from rendezvous.ledger.telling import Telling
from rendezvous.ledger.transitions import Group, LedgerCore
from swarm.errors import ClosedError, LedgerUnavailable
from swarm.model import Refusal, Status, TaskId

__all__ = ["Ledger", "LedgerClock", "open_ledger"]

log = structlog.get_logger()

#: The most operations of one group (measured: more gain nothing), and the most tasks that they change together.
GROUP_OPS: Final = 512
GROUP_TASKS: Final = 4_000
READER_THREADS: Final = 4
#: A sweep comes at least so often, seconds …
TICK_S: Final = 1.0
#: … and at least so long, so that many failures at once are no storm of sweeps, seconds.
LEAST_PAUSE_S: Final = 0.02
#: With more than this between two sweeps, workers may have been unable to renew: leases are re-armed first, seconds.
STALL_S: Final = 5.0
#: A database that doesn't answer a group for so long is away: whoever calls is told so, seconds.
SILENT_S: Final = 10.0
#: A root that ends looks so often whether its database is silent, seconds.
LOOK_S: Final = 0.1
#: How often finished tasks are looked through for the archive, seconds.
ARCHIVE_EVERY_S: Final = 3600.0

T = TypeVar("T")
Listener = Callable[[Sequence[LedgerEvent]], None]


class LedgerClock:
    """Ledger time: Unix seconds that begin at the wall clock and then follow a steady one.

    A wall clock that is set while the root runs moves no lease. It never begins before ``not_before``: what the history
    already holds isn't followed by earlier times. Roots that share a database begin at its clock, not at their own, and
    ``follow`` each other: the clock of one that was started after the database's was set back would else lie behind,
    and what it grants would be over at the others before it began.

    Args:
        not_before: the latest moment that the ledger holds, Unix seconds.
        wall: Unix seconds now; None: what the machine says.
        steady_s: what is followed from then on; the time since boot, unless a test owns time.
    """

    def __init__(
        self, *, not_before: float = 0.0, wall: float | None = None, steady_s: Callable[[], float] | None = None
    ) -> None:
        self._steady_s: Final = steady_s or _since_boot
        self._ahead_s = max(time.time() if wall is None else wall, not_before) - self._steady_s()

    def __call__(self) -> float:
        """Now."""
        return self._ahead_s + self._steady_s()

    def follow(self, at: float) -> None:
        """Be no earlier than this, which another root wrote, Unix seconds. For any thread."""
        ahead_s = at - self._steady_s()
        self._ahead_s = max(self._ahead_s, ahead_s)


def _since_boot() -> float:
    # Boot time goes on while the machine sleeps; the stall that it then sees re-arms the leases.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Ledger:
    """The open ledger. All methods belong to the event loop that opened it."""

    def __init__(
        self,
        core: LedgerCore,
        reader: LedgerReader,
        *,
        clock: Callable[[], float],
        last_event: int = 0,
        together: Engine | None = None,
        connections: Sequence[OpenConnections] = (),  # to hang up; a file has none
    ) -> None:
        self.reader: Final = reader
        self.neighbours: Final[Alone | RootsTogether] = (
            Alone() if together is None else RootsTogether(together, on_news=self._hear_news)
        )
        self._telling: Final = Telling(last_event, read=reader.ledger_events, deliver=self._deliver)
        self._core: Final = core
        self._clock: Final = clock
        self._loop: Final = asyncio.get_running_loop()
        self._waiting: Final[queue.SimpleQueue[tuple[Op, asyncio.Future[Any]] | None]] = queue.SimpleQueue()
        self._writer: Final = threading.Thread(target=self._write, name="ledger-writer", daemon=True)
        self._readers: Final = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="ledger-reader")
        self._listeners: Final[list[Listener]] = []
        #: Set when a task began to wait: it may be due before the sweep that is planned.
        self._delayed: Final = asyncio.Event()
        self._swept_at: float | None = None
        #: Since when the writer waits for the database, monotonic seconds; None while it doesn't.
        self._waits_since: float | None = None
        self._connections: Final = tuple(connections)
        self._leaving: asyncio.Task[None] | None = None
        self._hung_up = False
        self._closed = False

    def now(self) -> float:
        """Ledger time, Unix seconds."""
        return self._clock()

    # ── calling ───────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    async def call(self, op: Submit) -> SubmitResult | Refusal: ...
    @overload
    async def call(self, op: TakeTurn) -> TurnResult: ...
    @overload
    async def call(self, op: Cancel | Replay | FailByHand | TakeBack) -> tuple[Ended, ...]: ...
    @overload
    async def call(self, op: KeepApart) -> None: ...
    @overload
    async def call(self, op: Pause | Resume | LiftQuarantine) -> Refusal | None: ...
    @overload
    async def call(self, op: Quarantine) -> tuple[TaskId, ...]: ...
    @overload
    async def call(self, op: ApproveVersion) -> tuple[str, ...]: ...
    @overload
    async def call(self, op: Assign) -> tuple[Assigned, ...]: ...
    @overload
    async def call(self, op: Sweep) -> float: ...
    @overload
    async def call(self, op: Revoke) -> Revoked: ...
    @overload
    async def call(self, op: RemoveWorker | Rearm | Forget) -> int: ...
    @overload
    async def call(self, op: Enrol) -> Refusal | None: ...
    @overload
    async def call(
        self, op: HearOf | Probe | PutInvite | HoldHost | SetHostPace | SeeWorkers | KeepAcceptance
    ) -> None: ...
    @overload
    async def call(self, op: ClaimSender) -> Sender | SenderHeld: ...
    @overload
    async def call(self, op: Record) -> tuple[bool, ...] | SenderHeld: ...
    @overload
    async def call(self, op: AddIntent | AdoptVoucher | ResumeSender | Admit | PutKey) -> bool: ...
    @overload
    async def call(self, op: RetryParked | SeeChannels) -> int: ...
    async def call(self, op: Op) -> Any:
        """Do one operation. When it returns, what it did is durable.

        A caller that is cancelled while it waits doesn't undo the operation.

        Raises:
            LedgerUnavailable: the database can't be reached or written, or has been silent for ``SILENT_S``; nothing
                was done, or where the connection was lost while it was committed, nobody knows.
            ClosedError: the ledger was closed.
        """
        if isinstance(op, Cancel | Replay) and op.job is not None:
            return await self._in_batches(op)
        return await self._put(op)

    async def _put(self, op: Op) -> Any:
        if self._closed:
            raise ClosedError("the ledger is closed")
        self._check_silence()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.put((op, answer))
        return await answer

    def _check_silence(self) -> None:
        """Raise ``LedgerUnavailable`` where the database has been silent for long."""
        if self._hung_up:
            raise self._lost()
        if (silent_s := self._silent_s()) > SILENT_S:
            raise LedgerUnavailable(self.reader.where, f"no answer for {silent_s:.0f} s")

    def _silent_s(self) -> float:
        since = self._waits_since
        return 0.0 if since is None else time.monotonic() - since

    def _lost(self) -> LedgerUnavailable:
        return LedgerUnavailable(self.reader.where, f"no answer for {SILENT_S:g} s, and this root is ending")

    async def _in_batches(self, op: Cancel | Replay) -> tuple[Ended, ...]:
        """Do a whole job batch by batch, so that workers' turns come in between."""
        ended: list[Ended] = []
        while True:
            batch: tuple[Ended, ...] = await self._put(op)
            ended.extend(batch)
            if len(batch) - len(op.tasks) < BATCH:
                return tuple(ended)
            op = msgspec.structs.replace(op, tasks=(), after=batch[-1].task)

    async def read(self, query: Callable[[LedgerReader], T]) -> T:
        """Run a query of ``LedgerReader`` in a reader thread.

        Raises:
            LedgerUnavailable: the database can't be read.
            ClosedError: the ledger was closed.
        """
        if self._closed:
            raise ClosedError("the ledger is closed")
        self._check_silence()
        return await self._loop.run_in_executor(self._readers, query, self.reader)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener on this loop after each commit with the events of the group, in order.

        Returns:
            A function that ends the subscription.
        """
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    # ── the writer thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        closing = False
        while not closing:
            item = self._waiting.get()
            if item is not None:
                self._waits_since = time.monotonic()
                if not self._hung_up:
                    self._core.take_turn()
            batch: list[tuple[Op, asyncio.Future[Any]]] = []
            tasks = 0
            while item is not None:
                batch.append(item)
                tasks += _weight(item[0])
                if len(batch) >= GROUP_OPS or tasks >= GROUP_TASKS:
                    break
                try:
                    item = self._waiting.get_nowait()
                except queue.Empty:
                    break
            closing = item is None
            if batch:
                group = self._apply([op for op, _ in batch])
                self._waits_since = time.monotonic()  # what others committed is read first
                answering = partial(self._deliver, answered=[future for _, future in batch], answers=group.answers)
                self._telling.committed(group.events, answering)
                self._waits_since = None

    def _deliver(
        self,
        events: Sequence[LedgerEvent],
        *,
        answered: Sequence[asyncio.Future[Any]] = (),
        answers: Sequence[Any] = (),
    ) -> None:
        """Hand events, and the answers of the group that they are of, to the loop."""
        if events and not answered and isinstance(self._clock, LedgerClock):
            self._clock.follow(events[-1].at)
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
            self._loop.call_soon_threadsafe(self._answer, answered, answers, events)

    def _hear_news(self, news: tuple[int, int] | None) -> None:
        """Tell listeners what another root committed; called in the neighbours' thread."""
        if news is None:
            with contextlib.suppress(LedgerUnavailable):  # then there will be news again
                self._telling.elsewhere(self.reader.last_event_id())
        elif news[1] != self._core.session_id:
            self._telling.elsewhere(news[0])

    def _apply(self, ops: list[Op]) -> Group:
        if self._hung_up:
            return Group(answers=[self._lost()] * len(ops), events=[])
        now = self._clock()
        sweeping = any(isinstance(op, Sweep) for op in ops)
        stalled = sweeping and (self._swept_at is None or now - self._swept_at > STALL_S)
        try:
            group = self._core.apply([Rearm(), *ops] if stalled else ops, now=now)
        except Exception as fault:
            # The supervision boundary of the writer: whatever happens, callers are answered and it goes on.
            log.exception("ledger_group_failed", operations=len(ops))
            return Group(answers=[fault] * len(ops), events=[])
        answers = group.answers[1:] if stalled else group.answers
        if sweeping and not any(isinstance(answer, Exception) for answer in group.answers):
            if stalled and self._swept_at is not None:
                log.warning("leases_rearmed", stalled_s=round(now - self._swept_at, 1), leases=group.answers[0])
            self._swept_at = now
        return Group(answers=answers, events=group.events)

    def _answer(
        self, futures: Sequence[asyncio.Future[Any]], answers: Sequence[Any], events: Sequence[LedgerEvent]
    ) -> None:
        if events:
            if any(event.to is Status.WAITING for event in events):
                self._delayed.set()
            for listener in tuple(self._listeners):
                try:
                    listener(events)
                except Exception:
                    # A listener's defect must not keep callers from their answers.
                    log.exception("ledger_listener_failed", listener=repr(listener))
        for future, answer in zip(futures, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    # ── what runs beside it ───────────────────────────────────────────────────────────────────────────────────────

    async def _tick(self) -> None:
        """Sweep whenever something is due, for as long as the ledger is open and this root is the one that does it."""
        available = True
        while True:
            due_s = TICK_S
            try:
                async with asyncio.timeout(SILENT_S):
                    if self.neighbours.holds(Office.REAPER):
                        due_s = await self.call(Sweep())
                    else:
                        self._swept_at = None  # the next sweep here comes after a gap that nobody renewed in, maybe
                        await self.call(Probe())
                if not available:
                    log.info("ledger_available")
                available = True
            except (LedgerUnavailable, TimeoutError) as fault:
                if available:
                    silent = f"no answer for {SILENT_S:g} s"
                    reason = fault.reason if isinstance(fault, LedgerUnavailable) else silent
                    log.error("ledger_unavailable", address=self.reader.where, reason=reason)
                available = False
            except Exception:
                # The supervision boundary of the ticker: without sweeps leases would never run out.
                log.exception("ledger_sweep_failed")
            self._delayed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(due_s, TICK_S)):
                    await self._delayed.wait()
            await asyncio.sleep(LEAST_PAUSE_S)

    async def _archive(self, settings: LedgerSettings) -> None:
        """Move finished tasks to JSONL files, a batch at a time, for as long as the ledger is open."""
        directory = settings.archive_directory
        place = 0
        while directory is not None:
            if not self.neighbours.holds(Office.REAPER):
                await asyncio.sleep(ARCHIVE_EVERY_S)
                continue
            now = self.now()
            before = now - settings.archive_after_s
            batch = partial(archive_batch, directory=directory, before=before, now=now, after=place)
            try:
                tasks, place = await self.read(batch)
                if tasks:
                    await self.call(Forget(tasks=tasks, ended_before=before))
            except (LedgerUnavailable, OSError) as fault:
                log.warning("archive_postponed", reason=str(fault))
                place = 0
            await asyncio.sleep(TICK_S if place else ARCHIVE_EVERY_S)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────

    def leave(self) -> None:
        """Say that this root is ending: what its server doesn't finish within ``SILENT_S`` is waited for no longer.

        That is a limit for the group in hand, for the reads and for leaving the neighbours; whether the server is
        frozen or merely slow isn't asked. A root that goes on keeps waiting: the answer may come, and says what became
        of what was called.
        """
        if self._connections and self._leaving is None:
            self._leaving = asyncio.create_task(self._hang_up_on_silence())

    async def _hang_up_on_silence(self) -> None:
        while True:
            if self._hung_up or self._silent_s() > SILENT_S:
                self._hang_up()  # once more: who fails may try again
            await asyncio.sleep(LOOK_S)

    def _hang_up(self) -> None:
        """End all connections: the threads that wait on them fail, and their callers get ``LedgerUnavailable``."""
        first, self._hung_up = not self._hung_up, True  # before the writer fails: it doesn't try again
        ended = sum(connections.hang_up() for connections in self._connections)
        if first:
            log.error("ledger_hung_up", address=self.reader.where, waited_s=SILENT_S, connections=ended)

    async def _close(self) -> None:
        self._closed = True
        self.leave()
        if isinstance(self.neighbours, RootsTogether) and not await asyncio.to_thread(self.neighbours.stop):
            self._hang_up()
            await asyncio.to_thread(self.neighbours.stop)
        self._waiting.put(None)
        await asyncio.to_thread(self._writer.join)
        self._waits_since = time.monotonic()  # for the readers, from now on
        await asyncio.to_thread(self._readers.shutdown)
        if self._leaving is not None:
            self._leaving.cancel()
        self._core.close()


def _weight(op: Op) -> int:
    """How many tasks an operation may change; the group that it is in keeps others waiting for so long."""
    if isinstance(op, Submit | FailByHand | TakeBack):
        return len(op.tasks)
    if isinstance(op, TakeTurn):
        return len(op.done) + len(op.failed) + len(op.released) + len(op.renew) + len(op.offers) + op.want
    if isinstance(op, Assign):
        return sum(one.free for one in op.workers)
    return 1


@asynccontextmanager
async def open_ledger(
    location: str,
    settings: LedgerSettings | None = None,
    *,
    clock: Callable[[], float] | None = None,
    rng: random.Random | None = None,
    busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    pace: SharedPace | None = None,
) -> AsyncIterator[Ledger]:
    """Open a ledger, and bring its tables up to this version.

    Args:
        location: a SQLAlchemy URL, or the path of a SQLite file.
        settings: the ledger's section.
        clock: ledger time, Unix seconds; ``LedgerClock`` unless a test owns time.
        rng: for jitter.
        busy_timeout_ms: how long a statement waits for another process that holds the database.
        pace: the pace of hosts that is shared with others; None where none is.

    Raises:
        LedgerUnavailable: the database can't be opened or written; no other one was used.
        ConfigurationError: the location makes no sense, or a newer version wrote it.

    *Resource handling*: owns the writer thread, the reader threads and all connections; on exit what was called is
    finished first, unless a server is silent for ``SILENT_S``: then it is hung up.
    """
    settings = settings or LedgerSettings()
    engine = open_engine(location, busy_timeout_ms=busy_timeout_ms)
    shared = engine.dialect.name == "postgresql"
    connections = [OpenConnections(engine)] if shared else []
    reading: Engine | None = None
    try:
        await asyncio.to_thread(migrate, engine)
        await asyncio.to_thread(repace, engine, settings)
        reading = open_reading_engine(location)
        if shared:
            connections.append(OpenConnections(reading))
        reader = LedgerReader(reading, settings=settings)
        if clock is None:
            wall = await asyncio.to_thread(database_time, engine) if shared else None
            clock = LedgerClock(not_before=await asyncio.to_thread(reader.last_moment), wall=wall)
        ledger = Ledger(
            LedgerCore(engine, rng=rng, settings=settings, pace=pace),
            reader,
            clock=clock,
            last_event=await asyncio.to_thread(reader.last_event_id),
            together=engine if shared else None,
            connections=connections,
        )
        if isinstance(ledger.neighbours, RootsTogether):
            await asyncio.to_thread(ledger.neighbours.start)
        ledger._writer.start()
        beside = [asyncio.create_task(ledger._tick()), asyncio.create_task(ledger._archive(settings))]
        try:
            yield ledger
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await ledger._close()
    finally:
        engine.dispose()
        if reading is not None:
            reading.dispose()
        for left in connections:
            left.hang_up()  # a read that its caller gave up
