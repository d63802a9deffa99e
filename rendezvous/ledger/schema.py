"""What the ledger's tables have in common, those of ``tables`` and of ``money_tables``."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Index,
    Integer,
    MetaData,
    text,
)

__all__ = ["Number", "metadata", "partial"]

metadata = MetaData()

#: SQLite's rowid alias must be called INTEGER.
Number: Final = BigInteger().with_variant(Integer, "sqlite")


def partial(name: str, *columns: Any, where: str) -> Index:
    """An index of the rows that meet a condition."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))
