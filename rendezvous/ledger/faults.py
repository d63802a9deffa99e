"""What went wrong with the database, in words for people: where it is, what its driver said, whose fault it is."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from swarm.errors import LedgerUnavailable, SwarmError

__all__ = ["StatementFailed", "is_lost", "name_of", "said", "unavailable"]

#: The class of SQLSTATEs of transactions that the server ended, or won't let write.
_INVALID_TRANSACTION: Final = "25"


class StatementFailed(SwarmError):
    """The database refused a statement's values; the transaction is to be rolled back."""


def name_of(url: sa.URL) -> str:
    """A database's name for people: no password, and no driver of ours."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def said(fault: Exception) -> str:
    """What a driver said, in one line."""
    words = str(getattr(fault, "orig", None) or fault)
    return "; ".join(line.strip() for line in words.splitlines() if line.strip()) or type(fault).__name__


def is_lost(fault: Exception) -> bool:
    """Whether a fault is the transaction's or the server's, not a value's: ended by a time-out, or a standby's."""
    return (getattr(fault, "sqlstate", None) or "").startswith(_INVALID_TRANSACTION)


def unavailable(engine: Engine, fault: Exception) -> LedgerUnavailable:
    """The fault that callers get."""
    return LedgerUnavailable(name_of(engine.url), said(fault))
