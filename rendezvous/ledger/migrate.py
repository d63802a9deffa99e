"""Bringing a ledger's tables up to this version, with Alembic, in one transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from rendezvous.ledger.faults import name_of, unavailable
from rendezvous.ledger.postgres import wait_for_turn
from swarm.errors import ConfigurationError

__all__ = ["Versions", "look", "migrate"]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def _check_encoding(connection: sa.Connection, where: str) -> None:
    if connection.dialect.name == "postgresql":
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
        if encoding != "UTF8":
            raise ConfigurationError(
                f"the ledger {where} is encoded as {encoding}; a ledger needs UTF8",
                hint="make its database with: createdb --encoding UTF8 --template template0 NAME",
            )


@attrs.frozen
class Versions:
    """Where a ledger's tables are.

    Args:
        present: their version; None where there are none yet.
        missing: the versions that are to come, in order; none where the tables are this version's.
    """

    present: str | None
    missing: tuple[str, ...]


def _versions(connection: sa.Connection, where: str) -> Versions:
    present = MigrationContext.configure(connection).get_current_revision()
    known = [revision.revision for revision in ScriptDirectory.from_config(_config()).walk_revisions()][::-1]
    if present is not None and present not in known:
        raise ConfigurationError(
            f"the ledger at {where} was written by a newer version (its tables are at {present})",
            hint="run the version that wrote it, or a newer one; nothing was changed",
        )
    return Versions(present, tuple(known if present is None else known[known.index(present) + 1 :]))


def look(engine: Engine) -> Versions:
    """Where a ledger's tables are; changes nothing.

    Raises:
        LedgerUnavailable: the database can't be opened.
        ConfigurationError: it was written by a newer version than this one.
    """
    try:
        with engine.connect() as connection:
            return _versions(connection, name_of(engine.url))
    except SQLAlchemyError as fault:
        raise unavailable(engine, fault) from fault


def migrate(engine: Engine) -> Versions:
    """Create the tables, or change those of an older version.

    Returns:
        Where they were.

    Raises:
        LedgerUnavailable: the database can't be opened or written.
        ConfigurationError: it was written by a newer version than this one.
    """
    where = name_of(engine.url)
    try:
        with engine.begin() as connection:
            wait_for_turn(connection)
            _check_encoding(connection, where)
            found = _versions(connection, where)
            if found.missing:
                config = _config()
                attributes: dict[str, Any] = config.attributes
                attributes["connection"] = connection
                command.upgrade(config, "head")
            return found
    except SQLAlchemyError as fault:
        raise unavailable(engine, fault) from fault
