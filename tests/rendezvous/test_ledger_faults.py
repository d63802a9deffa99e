"""What fails, and what happens then: poison, crashes, a full disk, another process, another writer."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from rendezvous.ledger.act_ops import PutKey
from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.faults import StatementFailed
from rendezvous.ledger.migrate import migrate
from rendezvous.ledger.ops import LeaseRef, Probe, Submit, TakeTurn
from rendezvous.ledger.transitions import LedgerCore
from swarm.errors import ConfigurationError, LedgerUnavailable
from swarm.model import Role, Status
from tests.postgres import Postgres
from tests.rendezvous.ledger_world import ALICE, BOB, FAST, NOOP, World, check_consistency, new_task
from tests.tied import tied


@pytest.fixture
def world(database: str) -> Iterator[World]:
    world = World(database)
    yield world
    check_consistency(world)
    world.close()


@pytest.fixture
def file_world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "ledger.sqlite")
    yield world
    check_consistency(world)
    world.close()


def write_directly(world: World, statement: str) -> None:
    """As somebody would beside the ledger's code; on PostgreSQL they say that they wrote."""
    engine = open_engine(world.location)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
        connection.exec_driver_sql("UPDATE last_writer SET holder = 0")
    engine.dispose()


def submission(job: str, *tasks: object) -> Submit:
    return Submit(owner="owner", job=job, job_named=False, name=None, tasks=tasks)  # type: ignore[arg-type]


def test_poison_hurts_its_sender_alone(world: World) -> None:
    good, bad, twin = new_task(), new_task(priority=2**80), new_task()
    same_id = msgspec.structs.replace(new_task(), id=good.id)
    with capture_logs():
        answers = world.all(
            submission("job-a", good),
            submission("job-b", bad),
            submission("job-c", same_id),
            submission("job-d", twin),
            TakeTurn(worker=ALICE, boot="boot-boot", facts=NOOP, want=5),
        )
    assert isinstance(answers[1], StatementFailed)
    assert isinstance(answers[2], StatementFailed)
    assert [grant.task.id for grant in answers[4].granted] == [good.id, twin.id]
    assert world.value("SELECT count(*) FROM jobs") == 2


def test_a_lone_surrogate_that_slips_through_hurts_its_sender_alone(world: World) -> None:
    with capture_logs():
        answers = world.all(submission("job-a", new_task(dedupe_key="\ud800")), submission("job-b", new_task()))
    assert isinstance(answers[0], Exception)
    assert answers[1].tasks[0][1] is True


def test_what_was_answered_survives_a_crash_and_what_was_not_is_gone_whole(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    world.core._connection.begin()
    world.core._connection._cursor.execute("UPDATE tasks SET status = 'cancelled'")
    world.close()  # the process dies with a transaction open
    world.open()
    assert world.task(lease.task).status == "active"
    assert world.complete(ALICE, lease) is Status.COMPLETED


_LIVES = """
import sys
from tests.postgres import Postgres
from tests.rendezvous.ledger_world import ALICE, World

world = World(sys.argv[1])
while True:
    world.one()
    (lease,) = world.claim(ALICE)
    world.complete(ALICE, lease)
    print(lease.task, flush=True)
"""


def test_what_was_answered_survives_a_kill(database: str) -> None:
    command = tied([sys.executable, "-c", _LIVES, database])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        answered = [process.stdout.readline().strip() for _ in range(50)]
        process.kill()
        answered += process.stdout.read().split()
    world = World(database)
    assert {world.task(task).status for task in answered} == {"completed"}
    check_consistency(world)
    assert world.one()
    world.close()


def test_fences_and_event_numbers_go_on_after_a_restart(world: World) -> None:
    world.one()
    (first,) = world.claim(ALICE)
    world.release(ALICE, first)
    last = world.reader.last_event_id()
    world.close()
    world.open()
    (second,) = world.claim(BOB)
    assert second.fence == first.fence + 1
    assert world.reader.last_event_id() == last + 1


def test_a_worker_that_holds_leases_over_a_restart_keeps_them(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE, partial=False)
    world.close()
    world.open()
    assert world.turn(ALICE, held=(lease,), renew=(lease,)).renewed[0].fence == lease.fence


def test_a_full_disk_is_unavailable_for_all_and_passes(file_world: World) -> None:
    world = file_world
    world.one()
    (lease,) = world.claim(ALICE)
    before = world.reader.last_event_id()
    begin = world.core._connection.begin

    def begin_with_a_full_disk() -> bool:
        believed = begin()
        pages = world.core._connection._cursor.execute("PRAGMA page_count").fetchone()[0]
        world.core._connection._cursor.execute(f"PRAGMA max_page_count = {pages}")
        return believed

    world.core._connection.begin = begin_with_a_full_disk  # type: ignore[method-assign]
    big = submission("big", *(new_task(spec={"text": "x" * 50_000}) for _ in range(50)))
    answers = world.all(big, TakeTurn(worker=BOB, boot="boot-boot", facts=NOOP, want=1))
    assert all(isinstance(answer, LedgerUnavailable) for answer in answers)
    assert "full" in str(answers[0])
    assert world.reader.last_event_id() == before

    world.core._connection.begin = begin  # type: ignore[method-assign]
    world.core.close()  # the limit was the connection's
    assert world.do(big).tasks[0][1] is True
    assert world.complete(ALICE, lease) is Status.COMPLETED


def test_a_probe_writes_and_moves_nothing(world: World) -> None:
    task = world.one()
    before = world.reader.last_event_id()
    for times in (1, 2):
        assert world.do(Probe()) is None
        assert world.value("SELECT value FROM counters WHERE name = 'probe'") == times
    assert world.reader.last_event_id() == before
    assert world.task(task).status == "pending"


def test_a_locked_database_is_unavailable_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    engine = open_engine(str(path), busy_timeout_ms=10)
    migrate(engine)
    core = LedgerCore(engine, settings=FAST)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    op = submission("job", new_task())
    (answer,) = core.apply([op], now=1.0).answers
    assert isinstance(answer, LedgerUnavailable)
    assert "locked" in str(answer)
    other.execute("COMMIT")
    (answer,) = core.apply([op], now=1.0).answers
    assert answer.tasks[0][1] is True
    other.close()
    core.close()
    engine.dispose()


def test_another_process_may_write_beside_the_root(world: World) -> None:
    """The operator's command line adds a key, or another root of the same ledger grants: nothing stale is believed."""
    task = world.one()
    second = LedgerCore(world.engine, settings=FAST)
    (put, turn) = second.apply(
        [
            PutKey(digest=b"d", role=Role.OPERATOR, owner="operator"),
            TakeTurn(worker=BOB, boot="boot-boot", facts=NOOP, want=1),
        ],
        now=world.now,
    ).answers
    assert put is False
    fence = turn.granted[0].fence
    assert world.claim(ALICE) == []
    assert world.cancel(task) == [Status.CANCELLED]
    world.one()
    (lease,) = world.claim(ALICE)
    assert lease.fence > fence
    second.close()


def test_a_row_that_another_writer_moved_is_not_moved_again(world: World) -> None:
    """The guards of an update: a decision on a stale row writes nothing."""
    world.one()
    (lease,) = world.claim(ALICE)
    memory = world.core._memory
    write_directly(world, "UPDATE tasks SET fence = fence + 5")
    row = memory.rows[memory.seq_of[lease.task]]
    begin = world.core._connection.begin
    world.core._connection.begin = lambda: begin() or True  # type: ignore[method-assign]
    assert row.fence == lease.fence
    with capture_logs() as logs:
        (answer,) = world.all(TakeTurn(worker=ALICE, boot="b", facts=NOOP, released=(lease,), partial=True))
    world.core._connection.begin = begin  # type: ignore[method-assign]
    assert isinstance(answer, StatementFailed)
    assert logs[0]["event"] == "operation_failed"
    assert world.release(ALICE, lease).details["reason"] == "fenced"
    write_directly(world, "UPDATE tasks SET fence = fence - 5")
    assert world.release(ALICE, LeaseRef(lease.task, lease.fence)) is Status.PENDING


def test_migrating_again_changes_nothing_and_a_newer_ledger_is_refused(tmp_path: Path) -> None:
    engine = open_engine(str(tmp_path / "ledger.sqlite"))
    migrate(engine)
    migrate(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigurationError, match="newer version"):
        migrate(engine)
    engine.dispose()


def test_a_ledger_that_cannot_be_opened_names_the_address(tmp_path: Path) -> None:
    engine = open_engine(str(tmp_path / "nowhere" / "ledger.sqlite"))
    with pytest.raises(LedgerUnavailable, match="nowhere"):
        migrate(engine)
    engine.dispose()


def test_a_location_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        open_engine("nonsense://")


# ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server_world(postgres_database: str) -> Iterator[World]:
    world = World(postgres_database)
    yield world
    check_consistency(world)
    world.close()


def end_sessions(world: World) -> None:
    """As a restart of the database does."""
    write_directly(
        world,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


def test_a_session_that_the_server_ended_is_unavailable_and_the_next_group_has_another(server_world: World) -> None:
    world = server_world
    world.one()
    (lease,) = world.claim(ALICE)
    end_sessions(world)
    (answer,) = world.all(TakeTurn(worker=ALICE, boot="b", facts=NOOP, released=(lease,), partial=True))
    assert isinstance(answer, LedgerUnavailable)
    assert "terminating connection" in str(answer)
    assert world.release(ALICE, lease) is Status.PENDING


def test_a_root_that_froze_in_a_transaction_is_cut_off_and_the_others_go_on(server_world: World) -> None:
    world = server_world
    world.one()
    frozen = LedgerCore(world.engine, settings=FAST)
    frozen._connection.begin()
    frozen._connection._cursor.execute("SET idle_in_transaction_session_timeout = '200ms'")
    (lease,) = world.claim(ALICE)  # waits for the frozen one's turn to end
    (answer,) = _thaw(frozen, world)
    assert isinstance(answer, LedgerUnavailable)
    assert world.complete(ALICE, lease) is Status.COMPLETED
    frozen.close()


def _thaw(frozen: LedgerCore, world: World) -> list[object]:
    """Let the frozen root go on with the transaction that it believes to be in."""
    frozen._connection.begin = lambda: True  # type: ignore[method-assign]
    return frozen.apply([submission("job", new_task())], now=world.now).answers


def test_roots_that_write_at_once_take_turns_and_never_grant_a_task_twice(server_world: World) -> None:
    world = server_world
    world.submit(*(new_task() for _ in range(200)))
    granted: list[list[LeaseRef]] = [[], []]

    def claim(root: int) -> None:
        core = LedgerCore(world.engine, settings=FAST)
        while True:
            op = TakeTurn(worker=(ALICE, BOB)[root], boot="boot-boot", facts=NOOP, want=3, partial=True)
            (result,) = core.apply([op], now=world.now).answers
            granted[root].extend(LeaseRef(grant.task.id, grant.fence) for grant in result.granted)
            if not result.granted:
                break
        core.close()

    threads = [threading.Thread(target=claim, args=(root,)) for root in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leases = granted[0] + granted[1]
    assert len({lease.task for lease in leases}) == len({lease.fence for lease in leases}) == len(leases) == 200
    assert granted[0]
    assert granted[1]


def test_a_result_is_taken_at_another_root_than_the_grant_was_from(server_world: World) -> None:
    """A root believes nothing of a task that another root may have moved since."""
    world = server_world
    world.submit(new_task(), new_task())
    second = LedgerCore(world.engine, settings=FAST)
    (result,) = second.apply(
        [TakeTurn(worker=ALICE, boot="boot-of-alice-instance", facts=NOOP, want=1)], now=world.now
    ).answers
    lease = LeaseRef(result.granted[0].task.id, result.granted[0].fence)
    assert world.complete(ALICE, lease) is Status.COMPLETED
    assert world.complete(BOB, lease).details["reason"] == "not_assignee"
    assert len(world.claim(BOB, want=2)) == 1
    second.close()


def test_a_database_in_another_encoding_is_refused(postgres: Postgres) -> None:
    postgres.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    engine = open_engine(postgres.url("latin"))
    with pytest.raises(ConfigurationError, match="UTF8"):
        migrate(engine)
    engine.dispose()


def test_a_server_that_is_not_there_is_an_error_with_its_address_and_reason() -> None:
    engine = open_engine("postgresql://root@127.0.0.1:1/swarm")
    with pytest.raises(LedgerUnavailable, match=r"postgresql://root@127\.0\.0\.1:1/swarm: .*refused"):
        migrate(engine)
    engine.dispose()
