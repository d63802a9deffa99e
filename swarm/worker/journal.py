"""What this worker owes the door, kept across a kill: each outcome from before it is sent until it is answered.

One SQLite file in the data directory. A commit is a write to the log without a sync of the disk (35 µs, where the way
to a thread and back takes 80): it survives a kill of the worker. What a power failure takes is run again by whoever is
granted the task. The log is folded into the file, with its syncs, in a thread. Kept results go after ``KEEP_S``, or
when there are more than ``MAX_KEPT``; what is owed never goes. It knows no door and no leases; a fence is a number.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from swarm.errors import ConfigurationError, MalformedInput, StoreFull
from swarm.model import TaskId
from swarm.turn_wire import Done, Failed
from swarm.wire import decode, encode
from swarm.worker import sqlite_file
from swarm.worker.records import Record, State

__all__ = ["Journal", "open_journal"]

log = structlog.get_logger()

#: The schema; a newer file is refused rather than misread.
SCHEMA_VERSION: Final = 1
#: A result whose lease is over is of use if the task is granted to this worker again; after so long it isn't likely.
KEEP_S: Final = 3600.0
MAX_KEPT: Final = 1_000
#: So many commits are folded into the file together: about 4 MB of log, as SQLite does by itself.
FOLD_AFTER: Final = 500

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
_DAMAGED: Final = "results that weren't reported may be lost if it is removed; the door then grants their tasks again"


class Journal:
    """The outcomes on disk, and the same in memory; made by ``open_journal``."""

    def __init__(self, connection: sqlite3.Connection, *, path: Path, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock
        self._records: dict[tuple[TaskId, int], Record] = {}
        self._fences: dict[TaskId, set[int]] = {}
        self._forgotten: list[tuple[TaskId, int]] = []
        self._unfolded = 0
        self.owed_bytes = 0

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
        found = (self._records[task, fence] for fence in self._fences.get(task, ()))
        return next((record for record in found if record.manifest is not None), None)

    def __len__(self) -> int:
        return len(self._records)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def put(self, record: Record) -> None:
        """Hold a record; a kill of this process doesn't lose it once this returned.

        Raises:
            StoreFull: the disk is full; nothing was written.
        """
        record = attrs.evolve(record, written_at=self._clock())
        self._believe(record)
        self._commit(_row(record))
        if self._unfolded >= FOLD_AFTER:
            self._unfolded = 0
            await trio.to_thread.run_sync(_fold, self._path)

    def forget(self, task: TaskId, fence: int) -> None:
        """Drop a record that was answered. It may come back after a crash; saying it again is harmless."""
        record = self._records.pop((task, fence), None)
        if record is None:
            return
        self.owed_bytes -= record.size_bytes
        self._fences[task].discard(fence)
        if not self._fences[task]:
            del self._fences[task]
        self._forgotten.append((task, fence))

    def _believe(self, record: Record) -> None:
        key = (record.task, record.fence)
        before = self._records.get(key)
        self.owed_bytes += record.size_bytes - (before.size_bytes if before is not None else 0)
        self._records[key] = record
        self._fences.setdefault(record.task, set()).add(record.fence)

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

    def flush(self) -> None:
        """Write what was forgotten since the last commit; it goes along with the next record otherwise.

        Raises:
            StoreFull: the disk is full.
        """
        if self._forgotten:
            self._commit(None)

    def _commit(self, row: tuple[object, ...] | None) -> None:
        """Write one record, and forget what is forgotten; sync, on the loop: see the module's own words."""
        put = [] if row is None else [row]
        # forgotten first: a record that is forgotten and then put again stays
        sqlite_file.write(self._connection, self._path, [(_DELETE, self._forgotten), (_PUT, put)])
        self._forgotten.clear()
        self._unfolded += 1

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
            record = Record(
                task=task,
                fence=fence,
                state=State(state),
                manifest=manifest,
                report=said,
                ran_s=ran_s,
                size_bytes=size_bytes,
                written_at=written_at,
            )
            self._believe(record)
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
        connection = await trio.to_thread.run_sync(_connect, path)  # used by the loop from now on
    except sqlite3.Error as fault:
        raise ConfigurationError(
            f"the journal {path} can't be opened: {fault}",
            hint=_DAMAGED,
        ) from fault
    journal = Journal(connection, path=path, clock=clock)
    try:
        try:
            journal.load()
        except (sqlite3.Error, ValueError, TypeError) as fault:  # its pages, or what stands in its rows
            raise ConfigurationError(f"the journal {path} is damaged: {fault}", hint=_DAMAGED) from fault
        yield journal
        with contextlib.suppress(StoreFull):  # only forgettings wait: said again at worst
            journal.flush()
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    # not folded by SQLite itself: ``_fold`` does it
    return sqlite_file.open_file(path, schema=_SCHEMA, version=SCHEMA_VERSION, synchronous="NORMAL", fold=False)


def _fold(path: Path) -> None:
    """Fold the log into the file; sync, in a thread, on a connection of its own. A full disk is met by the next put."""
    with contextlib.closing(sqlite3.connect(path)) as connection, contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
