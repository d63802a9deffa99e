"""The tables: one definition, migrations that make it, statements for both dialects."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg

from rendezvous.ledger.batch_statements import MUTABLE, NEW_TASK
from rendezvous.ledger.engine import Compiled, open_engine, open_reading_engine
from rendezvous.ledger.json_rows import json_column
from rendezvous.ledger.migrate import migrate
from rendezvous.ledger.statements import Statements
from rendezvous.ledger.tables import metadata, tasks
from swarm.model import Status


def test_the_migrations_make_what_the_tables_say(database: str) -> None:
    engine = open_engine(database)
    migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


@pytest.mark.parametrize("dialect", [sqlite.dialect(), psycopg.dialect()], ids=["sqlite", "postgresql"])  # type: ignore[no-untyped-call]
def test_every_statement_compiles_for_both_dialects(dialect: sa.Dialect) -> None:
    statements = Statements(dialect)
    compiled = {name: value for name, value in vars(statements).items() if isinstance(value, Compiled)}
    compiled["insert_task"] = statements.batches.insert_task(Status.PENDING)
    compiled["update_task"] = statements.batches.update_task(Status.PENDING, Status.ACTIVE, ("fence", "last_event"))
    assert len(compiled) > 50
    rows = "json_each(" if dialect.name == "sqlite" else "jsonb_array_elements_text(CAST("
    assert rows in compiled["tasks_by_id"].sql
    assert "status='active'" in compiled["update_task"].sql.replace(" = ", "=")


def test_a_json_array_is_a_table_of_its_elements(database: str) -> None:
    rows, value = json_column("numbers", sa.BigInteger())
    engine = open_engine(database)
    with engine.connect() as connection:
        found = connection.execute(sa.select(value).select_from(rows), {"numbers": "[3, 1, 9007199254740993]"})
        assert [number for (number,) in found] == [3, 1, 9007199254740993]
    engine.dispose()


def test_each_column_of_a_task_is_new_mutable_or_a_flag_of_the_chain() -> None:
    first = {"status", "fence", "attempts", "funding_generation", "events"}
    flags = {"on_chain", "paid", "refunded"}
    assert set(NEW_TASK) | set(MUTABLE) | first | flags == {column.name for column in tasks.columns}


def test_a_ledger_is_durable_and_its_readers_cannot_write(tmp_path: Path) -> None:
    engine = open_engine(str(tmp_path / "ledger.sqlite"))
    migrate(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar() == 4000
    reading = open_reading_engine(str(tmp_path / "ledger.sqlite"))
    with reading.connect() as connection, pytest.raises(sa.exc.OperationalError, match="readonly"):
        connection.exec_driver_sql("DELETE FROM tasks")
    engine.dispose()
    reading.dispose()


def test_a_ledger_on_postgresql_is_durable_and_its_readers_cannot_write(postgres_database: str) -> None:
    engine = open_engine(postgres_database)
    with engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar()
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    engine.dispose()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    reading = open_reading_engine(postgres_database)
    with reading.connect() as connection, pytest.raises(sa.exc.InternalError, match="read-only"):
        connection.exec_driver_sql("DELETE FROM tasks")
    engine.dispose()
    reading.dispose()
