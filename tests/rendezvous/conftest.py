"""The databases that the ledger's tests run on: a SQLite file, or a PostgreSQL database of the session's cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Postgres, postgres_cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's cluster, started by the first test that needs it."""
    with postgres_cluster(durable=False) as cluster:
        yield cluster


@pytest.fixture
def postgres_database(postgres: Postgres) -> Iterator[str]:
    """The URL of a fresh ledger on PostgreSQL."""
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger is: one suite for both databases."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite")
    url: str = request.getfixturevalue("postgres_database")
    return url
