"""A PostgreSQL that hangs, serves lost connections, can't be written, lacks a table: it is said, and outlived."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from rendezvous.ledger import ledger as ledger_module
from rendezvous.ledger import neighbours, postgres
from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.faults import is_everybodys
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.neighbours import Office
from rendezvous.ledger.ops import Probe
from rendezvous.ledger.postgres import WRITING, end_silent_sessions, lock_key
from rendezvous.ledger.queries import LedgerReader
from swarm.errors import LedgerUnavailable
from swarm.model import Status
from tests.patience import PATIENCE_S
from tests.postgres import Postgres
from tests.rendezvous.door_harness import door
from tests.rendezvous.ledger_world import ALICE, new_task
from tests.rendezvous.test_ledger_neighbours import opened, submission, turn, until


@contextmanager
def left_open(location: str, *statements: str, pipeline: bool = False) -> Iterator[psycopg.Connection[Any]]:
    """A session of a root whose connection broke, or that froze: it ran these, and then nothing comes any more."""
    engine = open_engine(location)
    pooled = engine.raw_connection()
    session = pooled.driver_connection
    assert session is not None
    try:
        session.autocommit = True
        for statement in statements:
            session.execute(statement)
        if pipeline:
            with session.pipeline():
                session.execute("UPDATE counters SET value = value WHERE name = 'fence'")
        yield session
    finally:
        pooled.invalidate()
        engine.dispose()


@asynccontextmanager
async def left_by_hand(location: str) -> AsyncIterator[tuple[Ledger, Callable[[], Awaitable[None]]]]:
    """A ledger whose writer and reader have connections, and how to close it before the block ends."""
    async with contextlib.AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(opened(location, "one"))
        await ledger.call(Probe())
        await ledger.read(lambda reader: reader.counts())
        yield ledger, stack.aclose


def read_for_long(reader: LedgerReader) -> None:
    reader._rows(sa.select(sa.func.pg_sleep(PATIENCE_S)))


LONG_READS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


def logged(logs: Any, event: str) -> Callable[[], bool]:
    return lambda: any(line["event"] == event for line in logs)


def end_all(postgres: Postgres, name: str) -> None:
    """As an administrator would who wants everybody out of a database."""
    others = f"datname = '{name}' AND pid <> pg_backend_pid()"
    ended = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {others}"  # noqa: S608 -- our own name
    postgres.execute(ended)


async def until_refused(ledger: Ledger, why: str) -> None:
    """Call until the ledger is unavailable for this reason; the caller's deadline ends it."""
    while True:
        try:
            await ledger.call(Probe())
        except LedgerUnavailable as fault:
            if why in fault.reason:
                return


async def test_a_root_that_is_gone_in_the_middle_of_its_turn_holds_the_others_up_and_no_longer(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "IDLE_IN_TRANSACTION_S", 0.5)  # the server's own limit is 5 s, and wouldn't be kept
    monkeypatch.setattr(neighbours, "BEAT_S", 0.1)
    turn_taken = f"BEGIN; SELECT pg_advisory_xact_lock({lock_key(WRITING)})"
    async with opened(postgres_database) as ledger:
        with left_open(postgres_database, turn_taken, pipeline=True), capture_logs() as logs:
            async with asyncio.timeout(PATIENCE_S):
                await ledger.call(submission(new_task()))
            await until(logged(logs, "silent_sessions_ended"))


async def test_an_office_whose_holder_says_nothing_is_taken_over(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "BEAT_S", 0.1)
    monkeypatch.setattr(neighbours, "SILENT_S", 1.0)
    held = [f"SELECT pg_advisory_lock({lock_key(office)})" for office in Office]
    with left_open(postgres_database, *held):
        async with opened(postgres_database) as ledger:
            await until(lambda: all(ledger.neighbours.holds(office) for office in Office))


def test_who_spoke_a_moment_ago_keeps_what_it_holds(postgres_database: str) -> None:
    turn_taken = f"BEGIN; SELECT pg_advisory_xact_lock({lock_key(WRITING)})"
    office_held = f"SELECT pg_advisory_lock({lock_key(Office.REAPER)})"
    engine = open_engine(postgres_database)
    with left_open(postgres_database, turn_taken) as one, left_open(postgres_database, office_held) as two:
        with engine.connect() as connection:
            assert end_silent_sessions(connection, Office, silent_s=60.0) == 0
        assert one.execute("SELECT 1").fetchone() == two.execute("SELECT 1").fetchone() == (1,)
    engine.dispose()


async def test_a_database_that_doesnt_answer_is_said_and_calls_are_refused_until_it_does(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "SILENT_S", 0.5)
    holds, released = threading.Event(), threading.Event()

    def hold() -> None:
        with psycopg.connect(postgres_database) as other:
            other.execute(f"SELECT pg_advisory_xact_lock({lock_key(WRITING)})".encode())
            holds.set()
            while not released.wait(0.05):
                other.execute("SELECT 1")  # it works: nobody may end it

    async with opened(postgres_database) as ledger:
        with capture_logs() as logs:
            holding = asyncio.create_task(asyncio.to_thread(hold))
            try:
                assert await asyncio.to_thread(holds.wait, PATIENCE_S)
                logs.clear()  # a busy machine may have been silent before
                waiting = asyncio.create_task(ledger.call(submission(new_task())))
                await until(logged(logs, "ledger_unavailable"))
                await until(lambda: ledger._silent_s() > 0.5)
                (said,) = [line for line in logs if line["event"] == "ledger_unavailable"]
                assert said["reason"].startswith("no answer for ")  # of the tick, or of a call before it
                with pytest.raises(LedgerUnavailable, match="no answer for"):
                    await ledger.call(Probe())
                with pytest.raises(LedgerUnavailable, match="no answer for"):
                    await ledger.read(lambda reader: reader.counts())
            finally:
                released.set()
            await waiting
            await until(logged(logs, "ledger_available"))
            await holding
        assert (await ledger.read(lambda reader: reader.counts()))[Status.PENDING] == 1


@pytest.mark.parametrize(
    ("module", "limit"), [(ledger_module, "SILENT_S"), (neighbours, "STOP_TIMEOUT_S")], ids=["writer", "neighbours"]
)
async def test_a_ledger_on_a_server_that_is_frozen_can_be_closed_and_whoever_waits_is_told(
    postgres: Postgres, postgres_database: str, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str
) -> None:
    monkeypatch.setattr(ledger_module, "SILENT_S", PATIENCE_S)
    monkeypatch.setattr(neighbours, "STOP_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(module, limit, 0.5)
    with capture_logs() as logs:
        async with left_by_hand(postgres_database) as (ledger, close):
            reading = asyncio.create_task(ledger.read(read_for_long))
            await until(lambda: bool(postgres.execute(LONG_READS)))
            with postgres.frozen(postgres_database):
                calling = asyncio.create_task(ledger.call(submission(new_task())))
                async with asyncio.timeout(PATIENCE_S):
                    await close()
                    for waiting in (calling, reading):
                        with pytest.raises(LedgerUnavailable):
                            await waiting
    assert [line["event"] for line in logs].count("ledger_hung_up") == 1


async def test_a_root_that_is_leaving_is_refused_by_a_server_that_is_frozen_instead_of_waiting(
    postgres: Postgres, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "SILENT_S", 0.5)
    async with left_by_hand(postgres_database) as (ledger, close):
        with postgres.frozen(postgres_database):
            ledger.leave()
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(2):
                    with pytest.raises(LedgerUnavailable):
                        await ledger.call(submission(new_task()))
                await close()


async def test_a_door_that_has_workers_to_save_can_be_closed_though_its_server_is_frozen(
    tmp_path: Path, postgres: Postgres, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "SILENT_S", 0.5)
    with capture_logs() as logs:
        async with contextlib.AsyncExitStack() as stack:
            stage = await stack.enter_async_context(door(tmp_path, ledger=postgres_database))
            alice = await stage.worker("alice")
            await alice.take(want=1)
            with postgres.frozen(postgres_database):
                for worker in stage.door.fleet.all():
                    worker.unsaved = True
                async with asyncio.timeout(PATIENCE_S):
                    await stack.aclose()
    assert logged(logs, "workers_not_saved")()


async def test_a_server_that_answers_in_time_finishes_what_was_called_before_the_ledger_is_closed(
    postgres: Postgres, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "SILENT_S", PATIENCE_S)
    monkeypatch.setattr(neighbours, "STOP_TIMEOUT_S", PATIENCE_S)
    looks = 0

    def silent_s(ledger: Ledger) -> float:
        nonlocal looks
        looks += 1
        return found(ledger)

    found = Ledger._silent_s
    monkeypatch.setattr(Ledger, "_silent_s", silent_s)
    with capture_logs() as logs:
        async with left_by_hand(postgres_database) as (ledger, close):
            with postgres.frozen(postgres_database):
                waiting = asyncio.create_task(ledger.call(submission(new_task())))
                closing = asyncio.create_task(close())
                await until(lambda: looks > 2)
                assert not waiting.done()
                assert not closing.done()
            async with asyncio.timeout(PATIENCE_S):
                await closing
                await waiting
    assert not logged(logs, "ledger_hung_up")()
    async with opened(postgres_database) as ledger:
        assert (await ledger.read(lambda reader: reader.counts()))[Status.PENDING] == 1


async def test_a_server_that_cant_be_written_is_unavailable_can_be_read_and_has_no_offices(
    postgres: Postgres, postgres_database: str
) -> None:
    name = postgres_database.rsplit("/", 1)[1]
    async with opened(postgres_database, "one") as ledger:
        await ledger.call(submission(new_task()))
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with capture_logs() as logs:
            end_all(postgres, name)
            await until_refused(ledger, "read-only")
            assert (await ledger.read(lambda reader: reader.counts()))[Status.PENDING] == 1
            await until(logged(logs, "ledger_unavailable"))
            await until(lambda: not ledger.neighbours.holds(Office.REAPER))
            assert not logged(logs, "office_taken")()
            postgres.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
            await until(logged(logs, "ledger_available"))
            await until(lambda: ledger.neighbours.holds(Office.REAPER))
        assert len((await ledger.call(turn(ALICE, want=1))).granted) == 1


async def test_sessions_that_the_server_ends_cost_a_refusal_at_most(postgres: Postgres, postgres_database: str) -> None:
    name = postgres_database.rsplit("/", 1)[1]
    async with opened(postgres_database, "one") as one, opened(postgres_database, "two") as two:
        for _ in range(3):
            end_all(postgres, name)
            for ledger in (one, two):
                op = submission(new_task())
                with contextlib.suppress(LedgerUnavailable):
                    await ledger.call(op)
                await ledger.call(op)
            await until(lambda: one.neighbours.holds(Office.REAPER) or two.neighbours.holds(Office.REAPER))
        assert sum((await one.read(lambda reader: reader.counts())).values()) == 6


async def test_a_table_that_is_gone_is_the_ledgers_fault_and_nobodys_operation(
    postgres: Postgres, postgres_database: str
) -> None:
    name = postgres_database.rsplit("/", 1)[1]
    async with opened(postgres_database) as ledger:
        postgres.execute("ALTER TABLE tasks RENAME TO elsewhere", name)
        with pytest.raises(LedgerUnavailable, match='"tasks" does not exist'):
            await ledger.call(submission(new_task()))
        postgres.execute("ALTER TABLE elsewhere RENAME TO tasks", name)
        await ledger.call(submission(new_task()))


def test_the_server_notices_a_root_whose_machine_is_gone_within_ten_seconds(postgres_database: str) -> None:
    with left_open(postgres_database) as session:
        found = session.execute("SHOW tcp_user_timeout").fetchone()
        assert found == ("10000",)


@pytest.mark.parametrize(
    ("fault", "everybodys"),
    [
        (psycopg.errors.UndefinedTable(), True),
        (psycopg.errors.InsufficientPrivilege(), True),
        (psycopg.errors.ReadOnlySqlTransaction(), True),
        (psycopg.errors.DiskFull(), True),
        (psycopg.errors.TooManyConnections(), True),
        (psycopg.errors.QueryCanceled(), True),
        (psycopg.errors.DataCorrupted(), True),
        (psycopg.OperationalError("the connection is closed"), True),
        (psycopg.errors.UniqueViolation(), False),
        (psycopg.errors.NumericValueOutOfRange(), False),
        (psycopg.errors.UntranslatableCharacter(), False),
        (psycopg.errors.ProgramLimitExceeded(), False),
        (psycopg.DataError("a text with NUL"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whose_fault_it_is_that_postgresql_says_no(fault: Exception, everybodys: bool) -> None:
    assert is_everybodys(fault, psycopg) is everybodys


@pytest.mark.parametrize(
    ("fault", "everybodys"),
    [
        (sqlite3.OperationalError("database or disk is full"), True),
        (sqlite3.DatabaseError("database disk image is malformed"), True),
        (sqlite3.IntegrityError("UNIQUE constraint failed"), False),
        (sqlite3.ProgrammingError("type is not supported"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whose_fault_it_is_that_sqlite_says_no(fault: Exception, everybodys: bool) -> None:
    assert is_everybodys(fault, sqlite3) is everybodys
