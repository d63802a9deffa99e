"""What went wrong with the database, in words for people: where it is, what its driver said, whose fault it is."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import LedgerUnavailable, SwarmError

__all__ = ["StatementFailed", "is_everybodys", "is_guard", "name_of", "said", "unavailable"]

#: The classes of SQLSTATEs that a statement's values can bring about: data, constraints, limits. Whatever else a server
#: says (no such table, no permission, read-only, out of space, ended) is nobody's operation's fault.
_OF_VALUES: Final = frozenset({"22", "23", "54"})
#: What a guard in a statement ends it with: nothing else of ours divides.
_DIVISION_BY_ZERO: Final = "22012"


class StatementFailed(SwarmError):
    """The database refused a statement's values; the transaction is to be rolled back."""


def name_of(url: sa.URL) -> str:
    """A database's name for people: no password, and no driver of ours."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def said(fault: Exception) -> str:
    """What a driver said, in one line."""
    words = str(getattr(fault, "orig", None) or fault)
    return "; ".join(line.strip() for line in words.splitlines() if line.strip()) or type(fault).__name__


def is_everybodys(fault: Exception, driver: Any) -> bool:
    """Whether a fault is the database's, not a value's.

    Args:
        fault: of SQLAlchemy or of the driver.
        driver: its module.
    """
    state = getattr(fault, "sqlstate", None)
    if state:
        return state[:2] not in _OF_VALUES
    if isinstance(fault, (SQLAlchemyError, driver.OperationalError, driver.InterfaceError)):
        return True
    return type(fault) is driver.DatabaseError  # SQLite says so of a file that is damaged, or none of its own


def is_guard(fault: Exception) -> bool:
    """Whether a fault is raised by our own guard in a statement that must touch every row (``batch_statements``)."""
    return getattr(fault, "sqlstate", None) == _DIVISION_BY_ZERO


def unavailable(engine: Engine, fault: Exception) -> LedgerUnavailable:
    """The fault that callers get."""
    return LedgerUnavailable(name_of(engine.url), said(fault))
