"""Bringing a ledger's tables up to this version, with Alembic, in one transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import ConfigurationError, LedgerUnavailable

__all__ = ["migrate"]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def migrate(engine: Engine) -> None:
    """Create the tables, or change those of an older version.

    Raises:
        LedgerUnavailable: the database can't be opened or written.
        ConfigurationError: it was written by a newer version than this one.
    """
    where = engine.url.render_as_string(hide_password=True)
    config = _config()
    script = ScriptDirectory.from_config(config)
    try:
        with engine.begin() as connection:
            present = MigrationContext.configure(connection).get_current_revision()
            if present == script.get_current_head():
                return
            known = {revision.revision for revision in script.walk_revisions()}
            if present is not None and present not in known:
                raise ConfigurationError(
                    f"the ledger at {where} was written by a newer version (its tables are at {present})",
                    hint="run the version that wrote it, or a newer one; nothing was changed",
                )
            attributes: dict[str, Any] = config.attributes
            attributes["connection"] = connection
            command.upgrade(config, "head")
    except SQLAlchemyError as fault:
        raise LedgerUnavailable(where, str(getattr(fault, "orig", None) or fault)) from fault
