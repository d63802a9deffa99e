"""Opening the database, and statements compiled for it. Who writes with them is in ``writer.py``.

Statements are defined once in SQLAlchemy Core, compiled once for the dialect, and run on the driver's own cursor:
measured, a statement costs 41 µs through ``Connection.execute``, 28 µs through ``exec_driver_sql`` and 2 µs this way,
and a single claim is a dozen of them.

Durable means: WAL with ``synchronous=FULL``, so that an answer given after COMMIT survives the power. What is
PostgreSQL's own is in ``postgres.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError

from rendezvous.ledger.faults import StatementFailed, name_of
from rendezvous.ledger.postgres import is_postgres, open_postgres
from swarm.errors import ConfigurationError

__all__ = ["Compiled", "is_shared", "open_engine", "open_reading_engine"]

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

    def __init__(
        self,
        statement: sa.Executable,
        names: Sequence[str],
        dialect: sa.Dialect,
        *,
        together: sa.Executable | None = None,
    ) -> None:
        compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        self.sql: Final[str] = str(compiled)
        self._names: Final = tuple(map(str, names))  # SQLAlchemy has strings of its own
        #: What the dialect adds by itself, such as SQLite's OFFSET 0.
        self._constants: Final = {name: value for name, value in compiled.params.items() if name not in names}
        missing = set(names) - set(compiled.params)
        if missing or None in self._constants.values():
            raise ValueError(f"the statement's parameters are {sorted(compiled.params)}, named were {names}")
        self._order: Final[Sequence[str] | None] = compiled.positiontup
        #: Whether values pass to the driver as they are.
        self.as_given: Final = self._order is not None and tuple(self._order) == self._names
        #: Where each of the driver's values is, among the given ones and the constants behind them.
        self._places: Final = self._places_in((*self._names, *self._constants))
        #: The same for a whole batch, in ``tables.json_records``; None where it is to be run once for each of the rows.
        self.together: Final = None if together is None else str(together.compile(dialect=dialect))  # type: ignore[attr-defined]

    def bind(self, values: Sequence[Any]) -> Any:
        """The driver's form of one set of values."""
        if self.as_given:
            return values
        if self._places is not None:
            return self._places((*values, *self._constants.values()))
        return {**self._constants, **dict(zip(self._names, values, strict=True))}

    def _places_in(self, names: Sequence[str]) -> Callable[[Sequence[Any]], tuple[Any, ...]] | None:
        if self._order is None or len(self._order) < 2:  # nothing to sort
            return None if self._order is None else tuple
        return itemgetter(*map(names.index, self._order))

    def records(self, batch: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The parameters of ``together``: the rows, and how many they are.

        Raises:
            StatementFailed: a value has no JSON: an integer over 64 bits, half a character.
        """
        records = [dict(zip(self._names, values, strict=True)) for values in batch]
        try:
            return {"records": orjson.dumps(records).decode(), "expected": len(records)}
        except orjson.JSONEncodeError as fault:
            raise StatementFailed(f"{type(fault).__name__}: {fault}") from fault
