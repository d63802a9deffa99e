"""What this worker owes the door, kept across a kill: each outcome from before it is sent until it is answered.

One SQLite file (``synchronous=FULL``) in the data directory. Writes that come together are committed together, in a
thread. Kept results go after ``KEEP_S``, or when there are more than ``MAX_KEPT``; what is owed never goes. It knows no
door and no leases; fences are numbers to it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from swarm.errors import ConfigurationError, MalformedInput, StoreFull
from swarm.model import TaskId
from swarm.wire import Done, Failed, decode, encode
from swarm.worker.records import Record, State

__all__ = ["Journal", "open_journal"]

log = structlog.get_logger()

#: The schema; a newer file is refused rather than misread.
SCHEMA_VERSION: Final = 1
#: A result whose lease is over is of use if the task is granted to this worker again; after so long it isn't likely.
KEEP_S: Final = 3600.0
MAX_KEPT: Final = 1_000

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS outcomes (
    task TEXT NOT NULL,
    fence INTEGER NOT NULL,
    state TEXT NOT NULL,
    manifest BLOB,
    report BLOB,
    failed INTEGER NOT NULL,
    ran_s REAL NOT NULL,
    size_bytes INTEGER NOT NULL,
    written_at REAL NOT NULL,
    PRIMARY KEY (task, fence)
) WITHOUT ROWID
"""
_PUT: Final = "INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_DELETE: Final = "DELETE FROM outcomes WHERE task = ? AND fence = ?"

_Statement = tuple[str, tuple[object, ...]]


@attrs.define
class _Group:
    """Those whose statements are written in one transaction.

    Attributes:
        ended: set once it is written, or couldn't be, or who was to write it is gone.
        fault: why it couldn't be written.
    """

    ended: trio.Event = attrs.field(factory=trio.Event)
    fault: StoreFull | None = None


class Journal:
    """The outcomes on disk, and the same in memory; made by ``open_journal``."""

    def __init__(self, connection: sqlite3.Connection, *, path: Path, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock
        self._records: dict[tuple[TaskId, int], Record] = {}
        self._waiting: list[_Statement] = []
        self._committing = trio.Lock()
        self._gathering: _Group | None = None
        self._committed = 0
        self._queued = 0

    # ── what it holds ─────────────────────────────────────────────────────────────────────────────────────────────

    def records(self, state: State) -> list[Record]:
        """All records in one state, the oldest first."""
        return sorted(
            (record for record in self._records.values() if record.state is state),
            key=lambda record: record.written_at,
        )

    def get(self, task: TaskId, fence: int) -> Record | None:
        """One record, None where there is none."""
        return self._records.get((task, fence))

    def result_of(self, task: TaskId) -> Record | None:
        """A result of this task, of whatever lease: good for a new grant, so that it needn't be run again."""
        found = (record for record in self._records.values() if record.task == task and record.manifest is not None)
        return next(found, None)

    @property
    def owed_bytes(self) -> int:
        """The size of all that is held."""
        return sum(record.size_bytes for record in self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def put(self, record: Record) -> None:
        """Hold a record; durable when this returns.

        Raises:
            StoreFull: the disk is full; nothing was written.
        """
        record = attrs.evolve(record, written_at=self._clock())
        self._records[record.task, record.fence] = record
        await self._commit((_PUT, _row(record)))

    def forget(self, task: TaskId, fence: int) -> None:
        """Drop a record that was answered. It may come back after a crash; saying it again is harmless."""
        if self._records.pop((task, fence), None) is not None:
            self._queue((_DELETE, (task, fence)))

    async def keep(self, record: Record) -> None:
        """Keep a result whose lease is over, for a new grant; drops what was kept too long.

        Raises:
            StoreFull: the disk is full.
        """
        self._prune(room_for=1)
        await self.put(attrs.evolve(record, state=State.KEPT))

    def _prune(self, *, room_for: int = 0) -> None:
        kept = self.records(State.KEPT)
        excess = len(kept) + room_for - MAX_KEPT
        for place, record in enumerate(kept):
            if place < excess or self._clock() - record.written_at > KEEP_S:
                log.info("kept_result_dropped", task_id=record.task, fence=record.fence)
                self.forget(record.task, record.fence)

    def _queue(self, statement: _Statement) -> int:
        self._waiting.append(statement)
        self._queued += 1
        return self._queued

    async def _commit(self, statement: _Statement) -> None:
        """Write a statement, and whatever waits with it, in one transaction: one sync of the disk for all.

        All of a group go on at once, so that their outcomes are said in one turn.
        """
        ticket = self._queue(statement)
        while self._committed < ticket:
            group = self._gathering
            if group is None:
                await self._lead()
                continue
            await group.ended.wait()
            if group.fault is not None:
                raise StoreFull(str(self._path)) from group.fault

    async def _lead(self) -> None:
        """Gather a group, and write it."""
        group = self._gathering = _Group()
        try:
            async with self._committing:  # while the write before this one goes on, others join
                await trio.lowlevel.checkpoint()  # so does whoever is ready just now
                self._gathering = None
                await self.flush()
        except StoreFull as full:
            group.fault = full
            raise
        finally:
            if self._gathering is group:
                self._gathering = None
            group.ended.set()

    async def flush(self) -> None:
        """Commit what waits; the caller holds the lock, or is the last one."""
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        try:
            await trio.to_thread.run_sync(self._write, batch)
        except BaseException as fault:  # cancelled while all threads were taken, too: whoever waits writes it then
            self._waiting = batch + self._waiting
            if isinstance(fault, sqlite3.OperationalError):
                raise StoreFull(str(self._path)) from fault
            raise
        self._committed += len(batch)

    def _write(self, batch: list[_Statement]) -> None:
        with self._connection:
            for sql, values in batch:
                self._connection.execute(sql, values)

    def load(self) -> None:
        """Read all records. Sync: it runs once, before anything else does."""
        rows = self._connection.execute(
            "SELECT task, fence, state, manifest, report, failed, ran_s, size_bytes, written_at FROM outcomes"
        )
        for task, fence, state, manifest, report, failed, ran_s, size_bytes, written_at in rows:
            try:
                said = None if report is None else _read_report(report, failed=bool(failed))
            except MalformedInput as fault:
                log.warning("journal_record_dropped", task_id=task, fence=fence, error=str(fault))
                continue
            self._records[task, fence] = Record(
                task=task,
                fence=fence,
                state=State(state),
                manifest=manifest,
                report=said,
                ran_s=ran_s,
                size_bytes=size_bytes,
                written_at=written_at,
            )
        self._prune()


def _read_report(body: bytes, *, failed: bool) -> Done | Failed:
    return decode(body, Failed) if failed else decode(body, Done)


def _row(record: Record) -> tuple[object, ...]:
    return (
        record.task,
        record.fence,
        record.state.value,
        record.manifest,
        None if record.report is None else encode(record.report),
        isinstance(record.report, Failed),
        record.ran_s,
        record.size_bytes,
        record.written_at,
    )


@contextlib.asynccontextmanager
async def open_journal(path: Path, *, clock: Callable[[], float]) -> AsyncIterator[Journal]:
    """The journal of a data directory that the caller has locked.

    Args:
        path: the SQLite file; made where there is none.
        clock: Unix seconds.

    Raises:
        ConfigurationError: the file is damaged, or of a newer version.

    *Resource handling*: leaving the block writes what waits and closes the file.
    """
    try:
        connection = await trio.to_thread.run_sync(_connect, path)
    except sqlite3.Error as fault:
        raise ConfigurationError(
            f"the journal {path} can't be opened: {fault}",
            hint="results that weren't reported may be lost if it is removed; the door then grants their tasks again",
        ) from fault
    journal = Journal(connection, path=path, clock=clock)
    try:
        journal.load()
        yield journal
        with (
            trio.CancelScope(shield=True),
            contextlib.suppress(StoreFull),
        ):  # only forgettings wait: said again at worst
            await journal.flush()
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    # Used by one thread at a time (``_committing``), but not always by the same one.
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}, this program knows {SCHEMA_VERSION}")
        connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection
