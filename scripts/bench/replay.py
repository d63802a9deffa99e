"""What a ledger sends to its database, taken down call by call; and sent again, by SQLAlchemy's half or by the driver.

Two tapes of the same groups: what the ledger asks of its writing connection (statements of SQLAlchemy, values), and
what that asks of the driver (SQL text, parameters, pipelines). Both are played on a fresh ledger: the statements, their
parameters and their order are the same, so what differs in time is what lies in between.
"""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import sqlalchemy as sa

from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.postgres import _SESSION
from rendezvous.ledger.transitions import LedgerCore
from rendezvous.ledger.writer import WriterConnection, open_writer

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class Tapes:
    """What is taken down of one core, from when it is taped on."""

    def __init__(self, core: LedgerCore) -> None:
        #: Calls of the writing connection.
        self.asked: list[Call] = []
        #: Calls of the driver.
        self.sent: list[Call] = []
        writer: Any = core._connection
        writer._engine = _SpiedEngine(writer._engine, self.sent)
        core._connection = _SpiedWriter(writer, self.asked)  # type: ignore[misc, assignment]


class _SpiedWriter:
    """Takes down what is asked of the writing connection."""

    def __init__(self, writer: WriterConnection, tape: list[Call]) -> None:
        self._writer = writer
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._writer, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            kept = tuple(list(value) if isinstance(value, list) else value for value in args)
            self._tape.append((name, kept, kwargs))
            return found(*args, **kwargs)

        return call


class _SpiedEngine:
    def __init__(self, engine: sa.Engine, tape: list[Call]) -> None:
        self._engine = engine
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def raw_connection(self) -> Any:
        return _SpiedPooled(self._engine.raw_connection(), self._tape)


class _SpiedPooled:
    def __init__(self, pooled: Any, tape: list[Call]) -> None:
        self._pooled = pooled
        self._tape = tape
        self.driver_connection = _SpiedDriver(pooled.driver_connection, tape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pooled, name)

    def cursor(self) -> Any:
        return _SpiedCursor(self._pooled.cursor(), self._tape)


class _SpiedDriver:
    def __init__(self, driver: Any, tape: list[Call]) -> None:
        object.__setattr__(self, "_driver", driver)
        object.__setattr__(self, "_tape", tape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._driver, name, value)

    def cursor(self) -> Any:
        return _SpiedCursor(self._driver.cursor(), self._tape)

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[None]:
        self._tape.append(("pipeline", (), {}))
        with self._driver.pipeline():
            yield
        self._tape.append(("sync", (), {}))


class _SpiedCursor:
    def __init__(self, cursor: Any, tape: list[Call]) -> None:
        self._cursor = cursor
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        self._tape.append(("execute", args, kwargs))
        self._cursor.execute(*args, **kwargs)
        return self

    def executemany(self, sql: str, batch: Sequence[Any]) -> Any:
        self._tape.append(("executemany", (sql, list(batch)), {}))
        self._cursor.executemany(sql, batch)
        return self


# ── playing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def play_asked(location: str, tape: Sequence[Call]) -> tuple[float, float]:
    """Ask the writing connection of a fresh ledger the same again; wall and processor time, seconds."""
    engine = open_engine(location)
    writer = open_writer(engine)
    writer.begin()  # connected before the time counts, as the driver is
    writer.commit()
    calls = [(getattr(writer, name), args, kwargs) for name, args, kwargs in tape]

    def ask() -> None:
        for call, args, kwargs in calls:
            call(*args, **kwargs)

    spent = _timed(ask)
    writer.close()
    engine.dispose()
    return spent


def play_sent(location: str, tape: Sequence[Call]) -> tuple[float, float]:
    """Send the driver the same again, without any of SQLAlchemy; wall and processor time, seconds."""
    if "://" not in location:
        file = sqlite3.connect(location, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "mmap_size=268435456"):
            file.execute(f"PRAGMA {pragma}").fetchall()
        file.execute("PRAGMA wal_autocheckpoint=4000").fetchall()
        spent = _timed(lambda: _play(file, tape))
        file.close()
        return spent
    server = psycopg.connect(location, autocommit=True)
    for statement in _SESSION:
        server.execute(statement.encode())
    spent = _timed(lambda: _play(server, tape))
    server.close()
    return spent


def _play(connection: Any, tape: Sequence[Call]) -> None:
    """One cursor outside of pipelines, a new one for each statement in them, as the ledger has it; rows are fetched."""
    main = connection.cursor()
    with contextlib.ExitStack() as pipelines:
        within: list[Any] | None = None
        for name, args, kwargs in tape:
            if name == "pipeline":
                within = []
                pipelines.enter_context(connection.pipeline())
            elif name == "sync":
                pipelines.close()
                for cursor in within or ():
                    _fetch(cursor)
                within = None
            elif within is not None:
                within.append(connection.cursor())
                getattr(within[-1], name)(*args, **kwargs)
            else:
                getattr(main, name)(*args, **kwargs)
                _fetch(main)


def _fetch(cursor: Any) -> None:
    if cursor.description is not None:
        cursor.fetchall()


def _timed(do: Callable[[], Any]) -> tuple[float, float]:
    gc.collect()
    gc.freeze()  # the tapes are much to look through, and no part of what is measured
    wall, cpu = time.perf_counter(), time.process_time()
    do()
    spent = time.perf_counter() - wall, time.process_time() - cpu
    gc.unfreeze()
    return spent
