"""What PostgreSQL needs said: how to connect, how several roots write one after another, how they hear of each other.

Roots that share a ledger take turns: a transaction that writes begins with one advisory lock and ends with it, exactly
as SQLite's ``BEGIN IMMEDIATE`` does; only the wait for the disk comes after (``PostgresTurns.commit``). So every guard,
every kept number and every host's bucket holds across roots by the same code that holds within one, fences and event
numbers rise in the order of commits (a reader that goes by event numbers misses none), and nobody ever meets a
deadlock. The row ``last_writer`` says who wrote last: who finds itself there may believe what it remembers.

A root that stops in the middle of a transaction, or whose connection is lost without the server's knowing, holds up the
others for ``IDLE_IN_TRANSACTION_S`` and a beat: the server ends such a session, and where it doesn't another root does
(``end_silent_sessions``).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from rendezvous.ledger.faults import name_of, unavailable
from swarm.errors import ConfigurationError

__all__ = [
    "CHANNEL",
    "WRITING",
    "OpenConnections",
    "PostgresTurns",
    "database_time",
    "end_silent_sessions",
    "is_postgres",
    "lock_key",
    "open_postgres",
    "wait_for_turn",
]

#: The channel on which a committed group's last event is told to the other roots.
CHANNEL: Final = "swarm_ledger"
#: The first half of our advisory locks' keys; which lock it is, is the second, beside the schema's name.
LOCKS: Final = 0x5357_4152  # "SWAR"
WRITING: Final = "writing"

CONNECT_TIMEOUT_S: Final = 5
#: A root that is frozen inside a transaction keeps the others waiting for so long.
IDLE_IN_TRANSACTION_S: Final = 5
#: Longer than that, so that a frozen root costs the others time and not a refusal.
LOCK_TIMEOUT_S: Final = 10
#: A database whose machine is gone is noticed after this, seconds.
SILENCE_S: Final = 10

#: libpq's own options; a URL that sets one keeps it.
_CONNECTING: Final = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": SILENCE_S // 2,
    "keepalives_interval": 1,
    "keepalives_count": SILENCE_S // 2,
    "tcp_user_timeout": SILENCE_S * 1000,
    "application_name": "swarm-root",
}
_SESSION: Final = (
    "SET timezone = 'UTC'",
    f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_S}s'",
    f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'",
    # an answer means durable: the one setting that would make it mean less is put right
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
)
#: The server notices a root whose machine is gone as fast as we notice the server's; not every system can do so.
_SERVERS_SILENCE: Final = (
    f"SET tcp_keepalives_idle = {SILENCE_S // 2}",
    "SET tcp_keepalives_interval = 1",
    f"SET tcp_keepalives_count = {SILENCE_S // 2}",
    f"SET tcp_user_timeout = '{SILENCE_S}s'",
)
#: What the writing session reads is always a few rows by an index. A planner that knows a table as it was a minute ago
#: reads all that was ever active since the last vacuum instead (measured: 14 ms of a group of 50 ms).
_WRITING_SESSION: Final = (
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
    "SET plan_cache_mode = force_generic_plan",
)


def is_postgres(url: sa.URL) -> bool:
    """Whether a URL names a PostgreSQL database."""
    return url.get_backend_name() in ("postgresql", "postgres")


def lock_key(name: str) -> str:
    """SQL for the two keys of an advisory lock; ledgers in other schemas of the database have others."""
    return f"{LOCKS}, hashtext(current_schema() || '.{name}')"


def open_postgres(url: sa.URL, *, reading: bool) -> Engine:
    """An engine on a PostgreSQL database.

    Args:
        url: as the operator gave it; the driver is ours.
        reading: its sessions can't write.

    Raises:
        ConfigurationError: the driver isn't installed, or the URL names another one.
    """
    where = name_of(url)
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise ConfigurationError(
            f"the ledger {where} names a driver that isn't ours", hint="write postgresql://HOST/NAME"
        )
    connecting = {name: value for name, value in _CONNECTING.items() if name not in url.query}
    try:
        engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args=connecting,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
        )
    except (NoSuchModuleError, ModuleNotFoundError) as fault:
        raise ConfigurationError(
            f"the ledger {where} needs a driver that isn't installed: {getattr(fault, 'name', None) or fault}",
            hint="pip install 'task-swarm[postgres]'",
        ) from fault

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        was, connection.autocommit = connection.autocommit, True
        for statement in _SESSION:
            connection.execute(statement)
        for statement in _SERVERS_SILENCE:
            with contextlib.suppress(engine.dialect.loaded_dbapi.Error):
                connection.execute(statement)
        if reading:
            connection.execute("SET default_transaction_read_only = on")
        connection.autocommit = was

    return engine


class OpenConnections:
    """The connections that an engine opens from now on, so that who waits on one can be told to wait no longer.

    libpq waits for a server that is frozen for as long as the server's machine keeps the connection; nothing but its
    end, which another thread can bring about, wakes it.
    """

    def __init__(self, engine: Engine) -> None:
        self._lock: Final = threading.Lock()
        self._open: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
        self._driver: Final[Any] = engine.dialect.loaded_dbapi
        event.listen(engine, "connect", self._add, insert=True)  # first: who configures one waits for answers, too

    def _add(self, connection: Any, _record: Any) -> None:
        with self._lock:
            self._open.add(connection)

    def hang_up(self) -> int:
        """End those that are open, whatever is being done on them: it fails at once. For any thread.

        Returns:
            How many there were.
        """
        with self._lock:
            connections = list(self._open)
        ended = 0
        for connection in connections:
            # It may just have ended, or been closed. In the instant before dup() its number may become another's: this
            # root is ending, and whatever it opens then fails as its database does.
            with contextlib.suppress(OSError, self._driver.Error):
                with socket.socket(fileno=os.dup(connection.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)
                ended += 1
        return ended


def wait_for_turn(connection: sa.Connection) -> None:
    """Keep the ledger's writers out until this transaction ends; on SQLite its BEGIN has done so."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({lock_key(WRITING)})")


def end_silent_sessions(connection: sa.Connection, offices: Iterable[str], *, silent_s: float) -> int:
    """End other roots' sessions that keep what all need and say nothing: the turn to write, or an office.

    The server doesn't always: psycopg's pipelines end with a Flush, after which it doesn't count a session as idle; and
    a proxy may keep a connection whose other end is gone.

    Args:
        connection: any to the ledger's database; what it can't end (another role's sessions) it leaves.
        offices: the names of their locks.
        silent_s: a holder of an office speaks more often than this, seconds.

    Returns:
        How many were ended.
    """
    holds_turn = f"said.state IN ('idle in transaction', 'idle in transaction (aborted)') AND {_lock(WRITING)}"
    holds_office = f"said.state = 'idle' AND ({' OR '.join(map(_lock, offices))})"
    ended = connection.exec_driver_sql(
        "SELECT count(pg_terminate_backend(said.pid)) FROM pg_locks locks JOIN pg_stat_activity said USING (pid) "  # noqa: S608 -- names and numbers of ours
        f"WHERE locks.locktype = 'advisory' AND locks.granted AND locks.classid = {LOCKS} AND locks.objsubid = 2 "
        "AND said.datname = current_database() AND said.usename = current_user AND said.pid <> pg_backend_pid() "
        f"AND (({holds_turn} AND {_silent_for(IDLE_IN_TRANSACTION_S)}) OR ({holds_office} AND {_silent_for(silent_s)}))"
    ).scalar()
    return int(ended or 0)


def _lock(name: str) -> str:
    """SQL: a row of ``pg_locks`` is of this lock of ours."""
    return f"locks.objid = hashtext(current_schema() || '.{name}')::oid"


def _silent_for(seconds: float) -> str:
    """SQL: a row of ``pg_stat_activity`` is of a session that has done nothing for so long."""
    return f"said.state_change < clock_timestamp() - interval '{seconds:g} seconds'"


def database_time(engine: Engine) -> float:
    """What the database's clock says, Unix seconds.

    Raises:
        LedgerUnavailable: the database doesn't answer.
    """
    try:
        with engine.connect() as connection:
            return float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())
    except SQLAlchemyError as fault:
        raise unavailable(engine, fault) from fault


class PostgresTurns:
    """The turns of one writing connection among those of other roots."""

    def __init__(self) -> None:
        #: Who this connection is; another one, of the same root or not, has its own.
        holder = secrets.randbits(62)
        # Statements of their own: the last ones must see what was committed before the lock was had. The kept numbers
        # are read where the row of the last writer was another's: then this transaction has a number by now.
        self._begin: Final = (
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({lock_key(WRITING)});"  # noqa: S608
            "SET LOCAL synchronous_commit = off;"
            f"UPDATE last_writer SET holder = {holder} WHERE holder <> {holder};"
            "SELECT name, value FROM counters WHERE pg_current_xact_id_if_assigned() IS NOT NULL"
        )

    @staticmethod
    def configure(connection: Any) -> None:
        """Take a connection of the engine's for our own BEGIN and COMMIT."""
        connection.autocommit = True
        for statement in _WRITING_SESSION:
            connection.execute(statement)

    def begin(self, cursor: Any) -> dict[str, int] | None:
        """Wait for our turn and open the transaction.

        Returns:
            None where nobody else wrote since our last one; else the kept numbers as they are now.
        """
        cursor.execute(self._begin, prepare=False)
        for _ in range(3):
            cursor.nextset()
        unchanged = cursor.rowcount == 0
        cursor.nextset()
        return None if unchanged else dict(cursor.fetchall())

    @staticmethod
    def closing(last_event: int | None, *, wrote: bool) -> list[str]:
        """How to commit, wait for the disk, and tell the other roots where the history ends now, once a group.

        The turn ends with the first commit, which doesn't wait for the disk: meanwhile another root has its own. The
        second one, of the statements behind it, waits, and with it all that was committed before is on the disk, as the
        log is written in its order. So what is answered is durable, what another root builds on it is durable no
        sooner, and nobody is told of an event that could still vanish. Only who reads the tables in between may see
        what a crash takes back.
        """
        statements = ["COMMIT"]
        if last_event is not None:
            statements.append(f"NOTIFY {CHANNEL}, '{int(last_event)}'")
        if wrote:
            statements.append("SELECT pg_logical_emit_message(true, 'swarm', '')")
        return statements
