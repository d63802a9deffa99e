"""A SQLite file of the worker's data directory: made, opened and written in one way.

The directory is locked, so nobody else writes. The file is the owner's alone, and one that a newer version of this
program wrote is refused rather than misread.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from swarm.errors import StoreFull

__all__ = ["Written", "open_file", "write"]

#: A statement, and the rows of its parameters: it is run once for each.
Written = tuple[str, Sequence[tuple[Any, ...]]]


def open_file(
    path: Path, *, schema: str, version: int, synchronous: Literal["NORMAL", "FULL"], fold: bool = True
) -> sqlite3.Connection:
    """Open a file, made where there is none; sync. The connection may be used by one thread at a time.

    Args:
        path: of the file.
        schema: statements that make its tables.
        version: of the schema.
        synchronous: ``FULL`` where a commit must survive a power cut, ``NORMAL`` where a kill is enough.
        fold: whether SQLite folds its log into the file by itself, now and then within a commit.

    Raises:
        sqlite3.Error: it can't be opened, is damaged, or of a newer version.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        if not fold:
            connection.execute("PRAGMA wal_autocheckpoint=0")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > version:
            raise sqlite3.DatabaseError(f"it is of version {found}, this program knows {version}")
        if found < version:
            connection.executescript(f"BEGIN; {schema}; PRAGMA user_version={version}; COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def write(connection: sqlite3.Connection, path: Path, batch: Iterable[Written]) -> None:
    """Write a batch in one transaction; sync.

    Raises:
        StoreFull: the disk is full, or the file was damaged under way; nothing was written.
    """
    try:
        with connection:
            for sql, rows in batch:
                connection.executemany(sql, rows)
    except sqlite3.OperationalError as fault:
        raise StoreFull(str(path)) from fault
    except sqlite3.DatabaseError as fault:
        raise StoreFull(str(path), why=str(fault)) from fault
