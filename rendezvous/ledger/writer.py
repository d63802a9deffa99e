"""The one connection that writes: transactions, and statements in them.

With a server every exchange costs, and is made while other roots wait for their turn. So what can wait is left for
later, goes out together with whatever follows it, and the last of it together with the COMMIT: a group is one exchange
to get its turn, one for each step of reading that hangs on the one before, and one for all that it writes.

Faults of the driver come out as ``LedgerUnavailable`` (the database can't be reached or written: everybody's) or
``StatementFailed`` (one operation's values: its sender's).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from rendezvous.ledger.engine import Compiled
from rendezvous.ledger.faults import StatementFailed, is_everybodys, is_guard, unavailable
from rendezvous.ledger.postgres import PostgresTurns
from swarm.errors import SwarmError

__all__ = ["WriterConnection", "open_writer"]

Values = Sequence[Any]

_MOVED: Final = "rows were moved by another writer meanwhile"


def open_writer(engine: Engine) -> WriterConnection:
    """The writing connection of an engine; nothing is opened before the first ``begin``."""
    return _FileWriter(engine) if engine.dialect.name == "sqlite" else _ServerWriter(engine)


class WriterConnection(ABC):
    """The one connection that writes.

    *Resource handling*: the connection is opened at the first ``begin`` and after any fault, and closed by ``close``.

    Attributes:
        session_id: what the server calls the newest connection's session; None where there is no server. For any
            thread.
        counters: the kept numbers, where they were read together with the turn; None where they weren't.
        has_server: whether what is asked together is one exchange: then asking for more is cheaper than asking again.
    """

    has_server: bool = False

    def __init__(self, engine: Engine) -> None:
        self.session_id: int | None = None
        self.counters: dict[str, int] | None = None
        self._engine: Final = engine
        self._cursor: Any = None
        self._pooled: Any = None
        self._driver: Final[Any] = engine.dialect.loaded_dbapi
        self._faults: Final = (SQLAlchemyError, self._driver.Error, OverflowError, UnicodeEncodeError)

    def begin(self) -> bool:
        """Open a transaction.

        Returns:
            Whether what was read in earlier ones may be believed still: nobody else wrote since.

        Raises:
            LedgerUnavailable: the database can't be opened or is held by another.
        """
        fresh = self._cursor is None
        try:
            if fresh:
                self._pooled = self._engine.raw_connection()
                self._configure(self._pooled.driver_connection)
                self._cursor = self._pooled.cursor()
            return self._take_turn() and not fresh
        except self._faults as fault:
            raise self._translated(fault) from fault

    def rows(self, statement: Compiled, *values: Any) -> list[Any]:
        """Run a statement once; its rows."""
        return self.rows_of((statement, values))[0]

    @abstractmethod
    def rows_of(self, *asked: tuple[Compiled, Values]) -> list[list[Any]]:
        """Run statements that don't hang on each other; the rows of each."""

    def run(self, statement: Compiled, *values: Any) -> int:
        """Run a statement once; how many rows it touched."""
        return self.many(statement, (values,))

    @abstractmethod
    def many(self, statement: Compiled, batch: Sequence[Values]) -> int:
        """Run a statement for each set of values; how many rows were touched in all."""

    @abstractmethod
    def later(self, statement: Compiled, batch: Sequence[Values], *, each: bool = False) -> None:
        """Run a statement for each set of values, before whatever is run or committed after it.

        Args:
            statement: its rows aren't asked for.
            batch: the sets of values.
            each: whether every set must touch a row.

        Raises:
            StatementFailed: (now, or by the next call) one of them touched none: it was moved meanwhile.
        """

    def later_once(self, statement: Compiled, *values: Any) -> None:
        """The same for one set of values."""
        self.later(statement, (values,))

    @abstractmethod
    def commit(self, last_event: int | None = None, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Commit; when it returns the group is durable.

        Args:
            last_event: the last event that the transaction wrote, for other roots.
            meanwhile: done while a server works at what it got last, and before it is told to commit.
        """

    def rollback(self) -> None:
        """Leave the transaction, whatever happened in it, and give the connection up: the next begin opens another."""
        self.close()

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back by it."""
        pooled, self._pooled, self._cursor = self._pooled, None, None
        if pooled is not None:
            with contextlib.suppress(SQLAlchemyError, self._driver.Error):
                pooled.rollback()
            with contextlib.suppress(SQLAlchemyError, self._driver.Error):
                if self._in_memory:
                    pooled.close()
                else:
                    pooled.invalidate()

    @abstractmethod
    def _configure(self, connection: Any) -> None:
        """Take a connection of the engine's."""

    @abstractmethod
    def _take_turn(self) -> bool:
        """Open the transaction; whether nobody else wrote since our last one."""

    @property
    def _in_memory(self) -> bool:
        url = self._engine.url
        return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except self._faults as fault:
            raise self._translated(fault) from fault

    def _translated(self, fault: Exception) -> SwarmError:
        if is_everybodys(fault, self._driver):
            return unavailable(self._engine, fault)
        return StatementFailed(_MOVED if is_guard(fault) else f"{type(fault).__name__}: {fault}")


# ── a file ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _FileWriter(WriterConnection):
    """Writes to SQLite: a statement is a call, and what is left for later is done at once."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._data_version: int | None = None

    def _configure(self, connection: Any) -> None:
        """Nothing: the engine's connections say BEGIN and COMMIT themselves."""

    def _take_turn(self) -> bool:
        self._cursor.execute("BEGIN IMMEDIATE")
        version = self._cursor.execute("PRAGMA data_version").fetchone()[0]
        unchanged: bool = version == self._data_version
        self._data_version = version
        return unchanged

    def rows(self, statement: Compiled, *values: Any) -> list[Any]:
        """Run a statement once; its rows."""
        try:
            return self._cursor.execute(statement.sql, statement.bind(values)).fetchall()  # type: ignore[no-any-return]
        except self._faults as fault:
            raise self._translated(fault) from fault

    def rows_of(self, *asked: tuple[Compiled, Values]) -> list[list[Any]]:
        """Run statements; the rows of each."""
        return [self.rows(statement, *values) for statement, values in asked]

    def many(self, statement: Compiled, batch: Sequence[Values]) -> int:
        """Run a statement for each set of values."""
        if not statement.as_given:
            batch = [statement.bind(values) for values in batch]
        try:
            if len(batch) == 1:
                self._cursor.execute(statement.sql, batch[0])
            else:
                self._cursor.executemany(statement.sql, batch)
        except self._faults as fault:
            raise self._translated(fault) from fault
        return int(self._cursor.rowcount)

    def later(self, statement: Compiled, batch: Sequence[Values], *, each: bool = False) -> None:
        """Run it now."""
        if self.many(statement, batch) != len(batch) and each:
            raise StatementFailed(_MOVED)

    def commit(self, last_event: int | None = None, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Commit; nobody else listens to this file."""
        del last_event
        meanwhile()
        try:
            self._cursor.execute("COMMIT")
        except self._faults as fault:
            raise self._translated(fault) from fault


# ── a server ──────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Batch:
    """A statement that is to be run for each set of values."""

    statement: Compiled
    batch: list[Values]

    def run(self, cursor: Any) -> None:
        """Send it: as one statement, where it has such a form."""
        statement, batch = self.statement, self.batch
        if statement.together is not None:
            cursor.execute(statement.together, statement.records(batch))
        elif len(batch) == 1:
            cursor.execute(statement.sql, statement.bind(batch[0]))
        else:
            cursor.executemany(statement.sql, [statement.bind(values) for values in batch])


class _ServerWriter(WriterConnection):
    """Writes to PostgreSQL: what goes out together is one exchange."""

    has_server = True

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._turns: Final = PostgresTurns()
        self._wrote = False
        self._later: list[_Batch] = []

    def _configure(self, connection: Any) -> None:
        self._turns.configure(connection)
        self.session_id = int(connection.info.backend_pid)

    def _take_turn(self) -> bool:
        self._wrote = False
        self.counters = self._turns.begin(self._cursor)
        return self.counters is None

    def rows_of(self, *asked: tuple[Compiled, Values]) -> list[list[Any]]:
        """Run statements in one exchange; the rows of each."""
        if len(asked) == 1 and not self._later:
            ((statement, values),) = asked
            with self._translating():
                self._cursor.execute(statement.sql, statement.bind(values))
                return [self._cursor.fetchall()]
        return [cursor.fetchall() for cursor in self._exchange(*asked)[-len(asked) :]]

    def many(self, statement: Compiled, batch: Sequence[Values]) -> int:
        """Run a statement for each set of values."""
        self._later.append(_Batch(statement, list(batch)))
        return int(self._exchange()[-1].rowcount)

    def later(self, statement: Compiled, batch: Sequence[Values], *, each: bool = False) -> None:
        """Leave it for the next exchange, together with more of the same.

        What must touch a row each time stays apart: it may be the second change of a row, which one statement can't do.
        """
        last = self._later[-1] if self._later else None
        if last is not None and last.statement is statement and not each:
            last.batch.extend(batch)
        else:
            self._later.append(_Batch(statement, list(batch)))

    def commit(self, last_event: int | None = None, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Send what is left and commit, in one exchange."""
        wrote = self._wrote or bool(self._later)
        try:
            self._exchange(meanwhile=meanwhile, last=self._turns.closing(last_event, wrote=wrote))
        except StatementFailed as fault:
            if self._pooled.driver_connection.info.transaction_status is self._driver.pq.TransactionStatus.IDLE:
                # What came behind the COMMIT failed: it was done, and must not be done again one by one.
                raise unavailable(self._engine, fault) from fault
            raise

    def close(self) -> None:
        """Close the connection, and forget what was left for later."""
        self._later = []
        super().close()

    def _exchange(
        self,
        *asked: tuple[Compiled, Values],
        meanwhile: Callable[[], None] = lambda: None,
        last: Sequence[str] = (),
    ) -> list[Any]:
        """Send what was left for later, then what is asked, then the last words; do something before these.

        Returns:
            The cursors of all of them, in this order.
        """
        batches, self._later = self._later, []
        self._wrote = self._wrote or bool(batches)
        driver = self._pooled.driver_connection
        cursors: list[Any] = []

        def cursor() -> Any:
            cursors.append(driver.cursor())
            return cursors[-1]

        with self._translating(), driver.pipeline():
            for batch in batches:
                batch.run(cursor())
            for statement, values in asked:
                cursor().execute(statement.sql, statement.bind(values))
            meanwhile()
            for words in last:
                cursor().execute(words, prepare=False)
        return cursors
