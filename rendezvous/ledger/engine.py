"""Opening the database, and the one connection that writes to it.

Statements are defined once in SQLAlchemy Core, compiled once for the dialect, and run on the driver's own cursor:
measured, a statement costs 41 µs through ``Connection.execute``, 28 µs through ``exec_driver_sql`` and 2 µs this way,
and a single claim is a dozen of them. Faults of the driver come out as ``LedgerUnavailable`` (the database can't be
reached or written: everybody's) or ``StatementFailed`` (one operation's values: its sender's).

Durable means: WAL with ``synchronous=FULL``, so that an answer given after COMMIT survives the power. What is
PostgreSQL's own is in ``postgres.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from rendezvous.ledger.faults import StatementFailed, is_everybodys, name_of, unavailable
from rendezvous.ledger.postgres import PostgresTurns, is_postgres, open_postgres
from swarm.errors import ConfigurationError, SwarmError

__all__ = ["Compiled", "WriterConnection", "is_shared", "open_engine", "open_reading_engine"]

#: How long a statement waits for another process that holds the database, milliseconds.
BUSY_TIMEOUT_MS: Final = 5_000
#: Measured: a WAL of at most 20 MB; letting a thread do it passively grew it to 1.1 GB.
_WRITER_PRAGMAS: Final = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "cache_size=-65536",
    "mmap_size=268435456",
    "wal_autocheckpoint=4000",
)
_READER_PRAGMAS: Final = ("query_only=ON", "cache_size=-8192", "mmap_size=268435456")


def _url_of(location: str) -> sa.URL:
    """A SQLAlchemy URL, or the path of a SQLite file."""
    try:
        url = make_url(location) if "://" in location else sa.URL.create("sqlite", database=location)
    except (ArgumentError, ValueError) as fault:
        raise ConfigurationError(f"{location!r} isn't the URL or path of a ledger: {fault}") from fault
    if url.get_backend_name() != "sqlite" and not is_postgres(url):
        where = name_of(url)
        raise ConfigurationError(
            f"the ledger {where} is of a kind that isn't known", hint="write postgresql://HOST/NAME, or a path"
        )
    return url


def is_shared(location: str) -> bool:
    """Whether several roots can use such a ledger at once.

    Raises:
        ConfigurationError: the location makes no sense.
    """
    return is_postgres(_url_of(location))


def open_engine(location: str, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Engine:
    """An engine for the one writer, and for migrations.

    Args:
        location: a SQLAlchemy URL, or the path of a SQLite file.
        busy_timeout_ms: how long a statement waits for another process that holds the SQLite file.
    """
    url = _url_of(location)
    if is_postgres(url):
        return open_postgres(url, reading=False)
    return _open_sqlite(url, (*_WRITER_PRAGMAS, f"busy_timeout={busy_timeout_ms}"), begin="BEGIN IMMEDIATE")


def open_reading_engine(location: str) -> Engine:
    """An engine for readers: its connections can't write, and never wait for the writer."""
    url = _url_of(location)
    if is_postgres(url):
        return open_postgres(url, reading=True)
    return _open_sqlite(url, (*_READER_PRAGMAS, f"busy_timeout={BUSY_TIMEOUT_MS}"), begin="BEGIN")


def _open_sqlite(url: sa.URL, pragmas: Sequence[str], *, begin: str) -> Engine:
    engine = sa.create_engine(url, connect_args={"check_same_thread": False})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").fetchall()

    @event.listens_for(engine, "begin")
    def start(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


class Compiled:
    """A Core statement, compiled once for a dialect; its parameters are given in the order of ``names``."""

    def __init__(self, statement: sa.Executable, names: Sequence[str], dialect: sa.Dialect) -> None:
        compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        self.sql: Final[str] = str(compiled)
        self._names: Final = tuple(names)
        #: What the dialect adds by itself, such as SQLite's OFFSET 0.
        self._constants: Final = {name: value for name, value in compiled.params.items() if name not in names}
        missing = set(names) - set(compiled.params)
        if missing or None in self._constants.values():
            raise ValueError(f"the statement's parameters are {sorted(compiled.params)}, named were {names}")
        self._order: Final[Sequence[str] | None] = compiled.positiontup
        #: Whether values pass to the driver as they are.
        self.as_given: Final = self._order is not None and tuple(self._order) == self._names

    def bind(self, values: Sequence[Any]) -> Any:
        """The driver's form of one set of values."""
        if self.as_given:
            return values
        named = {**self._constants, **dict(zip(self._names, values, strict=True))}
        return named if self._order is None else [named[name] for name in self._order]


@attrs.frozen
class _Batch:
    """A statement that is to be run for each set of values."""

    statement: Compiled
    batch: Sequence[Sequence[Any]]
    expect: int | None

    def check(self, touched: int) -> None:
        """Refuse what touched other rows than were expected."""
        if self.expect is not None and touched != self.expect:
            raise StatementFailed(f"{self.expect - touched} rows were moved by another writer meanwhile")


class WriterConnection:
    """The one connection that writes: transactions, and statements in them.

    *Resource handling*: the connection is opened at the first ``begin`` and after any fault, and closed by ``close``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cursor: Any = None
        self._pooled: Any = None
        self._driver: Any = engine.dialect.loaded_dbapi
        self._faults: Final = (SQLAlchemyError, self._driver.Error, OverflowError, UnicodeEncodeError)
        self._turns: Final = _SqliteTurns() if engine.dialect.name == "sqlite" else PostgresTurns()
        #: What the server calls the newest connection's session; None where there is no server. For any thread.
        self.session_id: int | None = None
        self._wrote = False
        #: What is still to be sent to a server.
        self._later: list[_Batch] = []

    def begin(self) -> bool:
        """Open a transaction.

        Returns:
            Whether what was read in earlier ones may be believed still: nobody else wrote since.

        Raises:
            LedgerUnavailable: the database can't be opened or is held by another.
        """
        fresh = self._cursor is None
        self._wrote = False
        try:
            if fresh:
                self._pooled = self._engine.raw_connection()
                self._turns.configure(self._pooled.driver_connection)
                self._cursor = self._pooled.cursor()
                self.session_id = self._turns.session_id(self._pooled.driver_connection)
            return self._turns.begin(self._cursor) and not fresh
        except self._faults as fault:
            raise self._translated(fault) from fault

    def rows(self, statement: Compiled, *values: Any) -> list[Any]:
        """Run a statement once; its rows."""
        self._send()
        try:
            self._cursor.execute(statement.sql, statement.bind(values))
            return self._cursor.fetchall()  # type: ignore[no-any-return]
        except self._faults as fault:
            raise self._translated(fault) from fault

    def run(self, statement: Compiled, *values: Any) -> int:
        """Run a statement once; how many rows it touched."""
        self._send()
        self._wrote = True
        try:
            self._cursor.execute(statement.sql, statement.bind(values))
            return int(self._cursor.rowcount)
        except self._faults as fault:
            raise self._translated(fault) from fault

    def many(self, statement: Compiled, batch: Iterable[Sequence[Any]]) -> int:
        """Run a statement for each set of values; how many rows were touched in all."""
        self._send()
        self._wrote = True
        if not statement.as_given:
            batch = [statement.bind(values) for values in batch]
        try:
            self._cursor.executemany(statement.sql, batch)
            return int(self._cursor.rowcount)
        except self._faults as fault:
            raise self._translated(fault) from fault

    def later(self, statement: Compiled, batch: Sequence[Sequence[Any]], *, expect: int | None = None) -> None:
        """Run a statement for each set of values, before whatever is run or committed after it.

        A server gets all that came together at once: what waits for each of ten answers holds the other roots up.

        Args:
            statement: its rows aren't asked for.
            batch: the sets of values.
            expect: how many rows must be touched in all.

        Raises:
            StatementFailed: (now, or by the next call) other rows were touched than those that were read.
        """
        one = _Batch(statement, batch, expect)
        if isinstance(self._turns, PostgresTurns):
            self._later.append(one)
        else:
            one.check(self.many(statement, batch))

    def later_once(self, statement: Compiled, *values: Any) -> None:
        """The same for one set of values."""
        self.later(statement, (values,))

    def _send(self) -> None:
        """Run what was left for later, in one exchange with the server."""
        if not self._later:
            return
        batches, self._later = self._later, []
        self._wrote = True
        driver = self._pooled.driver_connection
        try:
            with driver.pipeline():
                cursors = []
                for one in batches:
                    cursor = driver.cursor()
                    cursor.executemany(one.statement.sql, [one.statement.bind(values) for values in one.batch])
                    cursors.append(cursor)
        except self._faults as fault:
            raise self._translated(fault) from fault
        for one, cursor in zip(batches, cursors, strict=True):
            one.check(int(cursor.rowcount))

    def commit(self, last_event: int | None = None) -> None:
        """Commit; when it returns the group is durable.

        Args:
            last_event: the last event that the transaction wrote, for other roots.
        """
        self._send()
        try:
            self._turns.commit(self._cursor, last_event, wrote=self._wrote)
        except self._faults as fault:
            raise self._translated(fault) from fault

    def rollback(self) -> None:
        """Leave the transaction, whatever happened in it, and give the connection up: the next begin opens another."""
        self.close()

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back by it."""
        pooled, self._pooled, self._cursor = self._pooled, None, None
        self._later = []
        if pooled is not None:
            with contextlib.suppress(SQLAlchemyError, self._driver.Error):
                pooled.rollback()
            with contextlib.suppress(SQLAlchemyError, self._driver.Error):
                if self._in_memory:
                    pooled.close()
                else:
                    pooled.invalidate()

    @property
    def _in_memory(self) -> bool:
        url = self._engine.url
        return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")

    def _translated(self, fault: Exception) -> SwarmError:
        if is_everybodys(fault, self._driver):
            return unavailable(self._engine, fault)
        return StatementFailed(f"{type(fault).__name__}: {fault}")


class _SqliteTurns:
    """The turns of one writing connection among those of other processes: the file's own lock."""

    def __init__(self) -> None:
        self._data_version: int | None = None

    def configure(self, connection: Any) -> None:
        """Nothing: the engine's connections say BEGIN and COMMIT themselves."""

    def begin(self, cursor: Any) -> bool:
        """Open the transaction; whether nobody else wrote since our last one."""
        cursor.execute("BEGIN IMMEDIATE")
        version = cursor.execute("PRAGMA data_version").fetchone()[0]
        unchanged: bool = version == self._data_version
        self._data_version = version
        return unchanged

    @staticmethod
    def session_id(connection: Any) -> int | None:
        """There is no server."""
        del connection
        return None

    @staticmethod
    def commit(cursor: Any, last_event: int | None, *, wrote: bool) -> None:
        """Commit; nobody else listens to this file."""
        del last_event, wrote
        cursor.execute("COMMIT")
