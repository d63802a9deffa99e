"""The other roots of this ledger: what they commit, which of them are there, and who does what only one may do.

One thread, one connection of its own: it listens for the others' commits, says every ``BEAT_S`` that this root is
there, and asks for the offices. An office (reaping leases, paying) is an advisory lock of that session: it is free the
moment the session ends, however its root ended, and another root that asks every ``BEAT_S`` has it then. A session that
is silent is ended by the others (a frozen root, a connection that broke on the way). A root that loses its session
holds no office from that moment on; what it had begun is stopped by the guards of the ledger.

With SQLite there are no neighbours: ``Alone``.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa
import structlog
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from rendezvous.ledger.faults import name_of, said
from rendezvous.ledger.postgres import CHANNEL, end_silent_sessions, lock_key
from rendezvous.ledger.roots import BEAT_S, SILENT_S, RootCard, beat, live_roots, register, unregister

__all__ = ["Alone", "Office", "RootsTogether"]

log = structlog.get_logger()

#: A database that is away is asked for again after this, seconds.
AGAIN_S: Final = 0.5
#: A lone root sweeps from its first moment on; one whose database has just gone goes on without, seconds.
START_TIMEOUT_S: Final = 5.0
#: A stop is waited for so long, seconds: the thread may be connecting.
STOP_TIMEOUT_S: Final = 10.0


class Office(StrEnum):
    """What one root does for all."""

    #: Sweeping: leases that ran out, tasks whose time has come; and posting the alerts that every root sees.
    REAPER = "reaper"
    #: Signing and sending transactions.
    PAYER = "payer"


class Alone:
    """A ledger that only one root can open."""

    #: Whether who holds an office knows by it that no other root does.
    exclusive = False

    def __init__(self) -> None:
        self._card: RootCard | None = None

    def holds(self, office: Office) -> bool:
        """All offices are this root's."""
        del office
        return True

    def roots(self) -> tuple[RootCard, ...]:
        """This root."""
        return () if self._card is None else (self._card,)

    def introduce(self, card: RootCard) -> None:
        """Nobody else is there who could mind."""
        self._card = card


class RootsTogether:
    """The roots of a ledger on PostgreSQL.

    Args:
        engine: the ledger's database.
        on_news: called in the thread with the last event that was committed, and by which session of the database;
            None where some may have been missed.

    *Resource handling*: ``start`` starts the thread; ``stop`` ends it and gives its connection and offices up.
    """

    exclusive = True

    def __init__(self, engine: Engine, *, on_news: Callable[[tuple[int, int] | None], None]) -> None:
        self._engine: Final = engine
        self._driver: Any = engine.dialect.loaded_dbapi
        self._on_news: Final = on_news
        self._thread: Final = threading.Thread(target=self._run, name="ledger-neighbours", daemon=True)
        self._wakes, self._woken = socket.socketpair()
        self._asked: Final = threading.Event()
        self._stopping = False
        self._away = False
        self._offices: frozenset[Office] = frozenset()
        self._roots: tuple[RootCard, ...] = ()
        self._card: RootCard | None = None

    def holds(self, office: Office) -> bool:
        """Whether this root has the office now."""
        return office in self._offices

    def roots(self) -> tuple[RootCard, ...]:
        """The roots that are there; while the database is away, those that were."""
        return self._roots

    def introduce(self, card: RootCard) -> None:
        """Register this root; from now on it is listed. Blocks for a transaction.

        Raises:
            ConfigurationError: it may not share this ledger.
            LedgerUnavailable: the database can't be written.
        """
        register(self._engine, card)
        with self._engine.connect() as connection:
            self._roots = live_roots(connection)
        self._card = card
        self._wakes.send(b"\0")

    def start(self) -> None:
        """Start to listen; blocks until the offices were asked for once."""
        self._thread.start()
        self._asked.wait(START_TIMEOUT_S)

    def stop(self) -> bool:
        """Give the offices up and leave; blocks until it is done, but for at most ``STOP_TIMEOUT_S``.

        Returns:
            Whether it is done.
        """
        self._stopping = True
        self._wakes.send(b"\0")
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            return False
        self._wakes.close()
        self._woken.close()
        return True

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stopping:
            try:
                with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    try:
                        self._listen(connection)
                        if self._card is not None:
                            unregister(connection, self._card.id)
                    finally:
                        self._offices = frozenset()
                        connection.invalidate()  # its locks are the session's: it must not go back to the pool
            except (SQLAlchemyError, self._driver.Error, OSError) as fault:
                if not self._away:
                    log.warning("ledger_neighbours_lost", ledger=name_of(self._engine.url), reason=said(fault))
                self._away = True
                self._pause(AGAIN_S)
            except Exception:
                # The supervision boundary of the thread: without it nobody here would reap or pay any more.
                log.exception("ledger_neighbours_failed")
                self._away = True
                self._pause(AGAIN_S)

    def _listen(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        connection.exec_driver_sql(f"LISTEN {CHANNEL}")
        while not self._stopping:
            if self._card is not None:
                beat(connection, self._card)  # first: a database that can't be written has no offices
            if ended := end_silent_sessions(connection, Office, silent_s=SILENT_S):
                log.warning("silent_sessions_ended", sessions=ended)
            self._offices = frozenset(office for office in Office if self._ask_for(connection, office))
            self._asked.set()
            self._roots = live_roots(connection)
            if self._away:
                self._away = False
                log.info("ledger_neighbours_back", roots=len(self._roots))
                self._on_news(None)
            self._hear(driver)

    def _ask_for(self, connection: sa.Connection, office: Office) -> bool:
        if office in self._offices:
            return True
        had = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({lock_key(office)})").scalar()
        if had:
            log.info("office_taken", office=office.value)
        return bool(had)

    def _hear(self, driver: Any) -> None:
        """Pass news on until the next beat is due."""
        beat_at = time.monotonic() + BEAT_S
        while True:
            # first: what came while a statement ran isn't on the socket any more
            for note in driver.notifies(timeout=0):
                self._on_news((int(note.payload), note.pid))
            left_s = beat_at - time.monotonic()
            if left_s <= 0 or not self._pause(left_s, driver.fileno()):
                return

    def _pause(self, seconds: float, *sources: int) -> bool:
        """Wait; whether one of the sources has something."""
        woken = self._woken.fileno()
        waiting = select.poll()  # select() takes no descriptor above 1,023, and each session of a worker is one
        for source in (woken, *sources):
            waiting.register(source, select.POLLIN)
        ready = {source for source, _ in waiting.poll(seconds * 1000)}
        if woken in ready:
            self._woken.recv(64)
        return any(source in ready for source in sources)
