"""The databases that the ledger's tests run on: a SQLite file, or a PostgreSQL database of the session's cluster."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger is: one suite for both databases."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite")
    url: str = request.getfixturevalue("postgres_database")
    return url
