"""The ledger in a file and back, its tables checked: on both databases, by the operator's command."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from rendezvous.cli import run
from rendezvous.directory import open_directory
from rendezvous.ledger.backup import FORGOTTEN
from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.roots import RootCard, register
from swarm.model import Status
from tests.rendezvous.ledger_world import ALICE, BOB, World, check_consistency


@pytest.fixture
def world(database: str) -> Iterator[World]:
    world = World(database)
    yield world
    check_consistency(world)
    world.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with open_directory(tmp_path / "data"):
        pass
    return tmp_path / "data"


def located(world: World) -> str:
    return world.location if "://" in world.location else f"sqlite:///{world.location}"


def migrate(data: Path, ledger: str, *arguments: str) -> int:
    return run(["migrate", "--data", str(data), "--ledger", ledger, *arguments])


def test_a_backup_brings_the_ledger_back_as_it_was(world: World, data: Path, tmp_path: Path) -> None:
    task = world.one()
    (before,) = world.claim(ALICE)
    file = tmp_path / "backup"
    assert migrate(data, located(world), "backup", str(file)) == 0  # while it is open
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    world.complete(ALICE, before)
    lost = world.one()
    (since,) = world.claim(BOB)
    world.close()
    assert migrate(data, located(world), "restore", str(file)) == 0
    world.open()
    world.events.clear()
    assert world.task(task).status == "active"
    assert world.reader.task(lost) is None
    assert world.complete(ALICE, before) is Status.COMPLETED  # its lease is as old as the backup
    world.one()
    (later,) = world.claim(BOB)
    assert later.fence > since.fence + FORGOTTEN // 2  # no lease of the time between is taken for a new one
    assert world.events[0].id > FORGOTTEN


def test_a_ledger_without_tables_or_with_old_ones_is_told_and_changed(
    database: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(database)
    ledger = located(world)
    world.close()
    assert migrate(data, ledger, "--check") == 0
    assert "is this version's" in capsys.readouterr().out
    engine = open_engine(database)
    with engine.begin() as connection:
        last = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
        connection.exec_driver_sql("DROP TABLE roots")
        connection.exec_driver_sql("DROP TABLE founding")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert migrate(data, ledger, "--check") == 2
    assert "newer version" in capsys.readouterr().err
    with engine.begin() as connection:
        _drop_all(connection)
    assert migrate(data, ledger, "--check") == 1
    assert "has no tables yet; this version would apply 0001, 0002" in capsys.readouterr().out
    assert migrate(data, ledger, "--check") == 1  # the first one changed nothing
    assert migrate(data, ledger) == 0
    assert f"{last}\n" in capsys.readouterr().out
    assert migrate(data, ledger, "--check") == 0
    engine.dispose()


def _drop_all(connection: sa.Connection) -> None:
    everything = sa.MetaData()
    everything.reflect(connection)
    everything.drop_all(connection)


def test_what_is_no_backup_changes_nothing(
    world: World, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = world.one()
    (tmp_path / "nonsense").write_bytes(b"nonsense")
    (tmp_path / "other").write_bytes(b"PGDMP" if "://" not in world.location else b"SQLite format 3\0")
    assert migrate(data, located(world), "restore", str(tmp_path / "nonsense")) == 2
    assert "no backup of a ledger" in capsys.readouterr().err
    assert migrate(data, located(world), "restore", str(tmp_path / "other")) == 2
    assert "is a backup of" in capsys.readouterr().err
    (tmp_path / "other").write_bytes(b"SQLite format 3\0" if "://" not in world.location else b"PGDMP")
    assert migrate(data, located(world), "restore", str(tmp_path / "other")) != 0
    assert "nothing was changed" in capsys.readouterr().err
    assert world.task(task).status == "pending"


def test_a_backup_that_was_cut_short_changes_nothing(
    world: World, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = world.one()
    file = tmp_path / "backup"
    assert migrate(data, located(world), "backup", str(file)) == 0
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    assert migrate(data, located(world), "restore", str(file)) == 2
    assert "nothing was changed" in capsys.readouterr().err
    assert world.task(task).status == "pending"


def test_no_file_is_overwritten_and_no_ledger_is_made_by_looking(
    world: World, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    assert migrate(data, located(world), "backup", str(there)) == 2
    assert "is there already" in capsys.readouterr().err
    assert there.read_text() == "mine"
    missing = tmp_path / "missing.sqlite"
    assert migrate(data, f"sqlite:///{missing}", "backup", str(tmp_path / "new")) == 2
    assert not missing.exists()
    assert migrate(data, located(world), "backup", str(tmp_path / "nowhere" / "new")) == 2
    assert "can't be written" in capsys.readouterr().err


def test_a_restore_under_a_running_root_is_refused(
    world: World, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "backup"
    assert migrate(data, located(world), "backup", str(file)) == 0
    if "://" in world.location:
        register(world.engine, RootCard(id="one", key_id="key", network_id="network", door="http://one.test"))
        assert migrate(data, located(world), "restore", str(file)) == 2
        assert "the root at http://one.test runs" in capsys.readouterr().err
    else:
        with open_directory(data):
            assert migrate(data, located(world), "restore", str(file)) == 6
        assert "is used by another process" in capsys.readouterr().err


def test_a_server_that_is_away_is_named_with_its_reason(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate(data, "postgresql://root:secret@127.0.0.1:1/swarm", "--check") == 3
    said = capsys.readouterr().err
    assert "127.0.0.1:1" in said
    assert "refused" in said
    assert "secret" not in said


def test_a_backup_needs_postgresqls_own_program(
    postgres_database: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert migrate(data, postgres_database, "backup", str(tmp_path / "file")) == 2
    said = capsys.readouterr().err
    assert "pg_dump isn't installed here" in said
    assert "postgresql-client" in said
    assert not (tmp_path / "file").exists()


def test_a_restore_without_room_for_the_copy_says_so_and_changes_nothing(
    world: World, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.one()
    file = tmp_path / "backup"
    assert migrate(data, located(world), "backup", str(file)) == 0
    world.close()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    assert migrate(data, located(world), "restore", str(file)) == 2
    assert "No space left on device" in capsys.readouterr().err
    world.open()
    assert world.task(task).status == "pending"


def test_a_restore_clears_away_what_a_killed_one_left(data: Path, tmp_path: Path) -> None:
    world = World(str(data / "ledger.sqlite"))
    assert migrate(data, located(world), "backup", str(tmp_path / "backup")) == 0
    world.close()
    left = data / ".ledger.sqlite.restore-abc"
    left.mkdir()
    (left / "ledger.sqlite").write_bytes(b"half of it")
    assert migrate(data, located(world), "restore", str(tmp_path / "backup")) == 0
    assert list(data.glob(".ledger.sqlite.restore-*")) == []
