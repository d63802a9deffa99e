"""The connection that writes: batches, guards, what is left for later, and how few exchanges a group is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.faults import StatementFailed
from rendezvous.ledger.migrate import migrate
from rendezvous.ledger.ops import TakeTurn
from rendezvous.ledger.postgres import PostgresTurns
from rendezvous.ledger.statements import Statements
from rendezvous.ledger.transitions import LedgerCore
from rendezvous.ledger.writer import WriterConnection, open_writer
from swarm.errors import LedgerUnavailable
from swarm.model import Status
from tests.postgres import Postgres
from tests.rendezvous.ledger_world import ALICE, BOB, FAST, NOOP, World, new_task
from tests.rendezvous.test_ledger_neighbours import submission


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = open_engine(database)
    migrate(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def writer(engine: Engine) -> Iterator[WriterConnection]:
    writer = open_writer(engine)
    writer.begin()
    yield writer
    writer.close()


def pending(seq: int) -> tuple[Any, ...]:
    """A row of ``NEW_TASK``."""
    return (seq, f"task-{seq}", 1, 5, "0", 3, 300.0, 1.5, 9.25, 1, None, seq, 0.125)


def test_a_batch_is_written_whole_and_read_back_as_it_was(engine: Engine, writer: WriterConnection) -> None:
    statements = Statements(engine.dialect)
    bodies = [(1, '{"urls":["https://käse.test/\\u2028"]}', "digest", 0.1), (2, "a 'quote' \\ and\na line", "d", 1e300)]
    assert writer.many(statements.insert_body, bodies) == 2
    assert [tuple(row) for row in writer.rows(statements.bodies, "[1, 2]")] == bodies


def test_keys_that_are_taken_are_left_out_of_a_batch_and_not_counted(engine: Engine, writer: WriterConnection) -> None:
    statements = Statements(engine.dialect)
    assert writer.many(statements.insert_dedupe, [("one", 1), ("two", 2)]) == 2
    assert writer.many(statements.insert_dedupe, [("two", 3), ("three", 4)]) == 1


def test_a_batch_of_which_one_row_was_moved_is_refused_whole(engine: Engine, writer: WriterConnection) -> None:
    statements = Statements(engine.dialect)
    writer.many(statements.batches.insert_task(Status.PENDING), [pending(1), pending(2), pending(3)])
    granting = statements.batches.update_task(Status.PENDING, Status.ACTIVE, ("fence", "last_event"))
    writer.later(granting, [(1, 11, 1, 0, 1)], each=True)
    writer.commit()
    writer.begin()

    def move_both() -> None:
        writer.later(granting, [(2, 12, 2, 0, 2), (3, 13, 1, 0, 1)], each=True)
        writer.commit()

    with pytest.raises(StatementFailed, match="moved by another writer"):
        move_both()
    writer.rollback()
    writer.begin()
    rows = writer.rows(statements.tasks_by_seq, "[1, 2, 3]")
    assert [(row[0], row[9], row[13]) for row in rows] == [(1, "active", 1), (2, "pending", 0), (3, "pending", 0)]


def test_a_row_that_changes_twice_in_a_transaction_is_as_it_was_changed_last(
    engine: Engine, writer: WriterConnection
) -> None:
    statements = Statements(engine.dialect)
    writer.many(statements.batches.insert_task(Status.ACTIVE), [pending(1)])
    renewing = statements.batches.update_task(Status.ACTIVE, Status.ACTIVE, ("lease_until", "last_event"))
    writer.later(renewing, [(10.0, 2, 1, 0, 1)], each=True)
    writer.later(renewing, [(20.0, 3, 1, 0, 2)], each=True)
    (row,) = writer.rows(statements.tasks_by_seq, "[1]")
    assert 20.0 in tuple(row)


def test_what_was_left_for_later_is_there_for_what_is_read_next(engine: Engine, writer: WriterConnection) -> None:
    statements = Statements(engine.dialect)
    for seq in (1, 2):
        writer.later_once(statements.insert_body, seq, "{}", f"digest-{seq}", 1.0)
    writer.later_once(statements.insert_dedupe, "digest-1", 1)
    bodies, holders = writer.rows_of((statements.bodies, ("[1, 2]",)), (statements.dedupe_holders, ('["digest-1"]',)))
    assert [row[0] for row in bodies] == [1, 2]
    assert [row[:2] for row in map(tuple, holders)] == [("digest-1", 1)]


def test_the_server_finds_the_rows_of_a_batch_by_their_keys_even_where_it_knows_nothing_of_the_table(
    postgres: Postgres,
) -> None:
    """A plan that was made for an empty table is kept for a while, and must not read whole tables then."""
    url = postgres.new_database()
    engine = open_engine(url)
    granting = Statements(engine.dialect).batches.update_task(Status.PENDING, Status.ACTIVE, ("fence", "last_event"))
    writer = open_writer(engine)
    writer.begin()
    writer.commit()
    with writer._pooled.driver_connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {granting.together}", granting.records([(1, 1, 1, 0, 1)]))
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Tid Scan on tasks" in plan, plan
    assert "Index Scan using tasks_pkey on tasks now" in plan, plan
    assert "Index Cond: (seq =" in plan, plan
    assert "Seq Scan" not in plan, plan
    writer.close()
    engine.dispose()
    postgres.drop(url)


def test_a_group_of_any_size_is_a_few_exchanges_with_the_server(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other roots wait for; measured as calls that wait for the server."""
    url = postgres.new_database()
    world = World(url)
    world.submit(new_task())
    for lease in world.claim(ALICE):
        world.complete(ALICE, lease)
    exchanges: list[str] = []
    for name in ("begin", "rows_of", "many", "commit"):
        _count(monkeypatch, type(world.core._connection), name, exchanges)
    world.submit(*(new_task() for _ in range(50)))
    assert exchanges == ["begin", "rows_of", "many", "commit"]  # the job, who has the keys, and all that is written
    exchanges.clear()
    assert len(world.claim(ALICE, want=50)) == 50
    # which demands are ready, with the lanes of the known ones; the tasks of the one lane; the rows are remembered
    assert exchanges == ["begin", "rows_of", "rows_of", "commit"]
    world.submit(*(new_task(host=f"site{number % 30}.test") for number in range(60)))
    exchanges.clear()
    assert len(world.claim(ALICE, want=60)) == 60
    assert exchanges == ["begin", "rows_of", "rows_of", "commit"]  # the tasks of all lanes are asked for together
    world.close()
    postgres.drop(url)


def _count(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, calls: list[str]) -> None:
    method = getattr(kind, name)

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return method(self, *args, **kwargs)

    monkeypatch.setattr(kind, name, counting)


def test_a_root_learns_within_seconds_how_long_tasks_take_elsewhere(postgres: Postgres) -> None:
    """Leases follow the durations; another root's are believed for ten seconds without a look."""
    url = postgres.new_database()
    world = World(url)
    other = LedgerCore(world.engine, settings=FAST)

    def lease_s() -> float:
        world.one()
        claim = TakeTurn(worker=BOB, boot="boot-boot", facts=NOOP, want=1, partial=True)
        (answer,) = other.apply([claim], now=world.now).answers
        return float(answer.granted[0].lease_s)

    first = lease_s()
    for _ in range(20):
        world.one()
        (lease,) = world.claim(ALICE)
        world.now += 5.0
        world.complete(ALICE, lease)
    assert lease_s() != first
    other.close()
    world.close()
    postgres.drop(url)


def test_what_fails_behind_the_commit_isnt_done_a_second_time(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the server's queue of notifications is full: its code speaks of a statement's values."""
    url = postgres.new_database()
    world = World(url)
    monkeypatch.setattr(PostgresTurns, "closing", staticmethod(lambda *_, **__: ["COMMIT", "SELECT 1 / 0"]))
    answers = world.core.apply([submission(new_task()), submission(new_task())], now=world.now).answers
    assert [type(answer) for answer in answers] == [LedgerUnavailable, LedgerUnavailable]
    assert world.reader.counts()[Status.PENDING] == 2
    world.close()
    postgres.drop(url)


def test_what_fails_while_the_server_works_is_no_commit(engine: Engine, writer: WriterConnection) -> None:
    """Answers are put together then: one that can't be is a group that wasn't done."""
    statements = Statements(engine.dialect)
    writer.later_once(statements.insert_dedupe, "digest", 1)

    def fail() -> None:
        raise KeyError("a defect")

    with pytest.raises(KeyError):
        writer.commit(meanwhile=fail)
    writer.rollback()
    writer.begin()
    assert writer.many(statements.insert_dedupe, [("digest", 2)]) == 1


def test_an_integer_that_is_too_big_for_json_is_its_senders_fault(postgres: Postgres) -> None:
    url = postgres.new_database()
    engine = open_engine(url)
    writer = open_writer(engine)
    writer.begin()
    with pytest.raises(StatementFailed):
        writer.many(Statements(engine.dialect).insert_dedupe, [("digest", 2**80)])
    writer.close()
    engine.dispose()
    postgres.drop(url)
