"""JSON arrays as rows, which is how many values get into one statement: the one shim between the dialects.

``json_rows`` serves both; what PostgreSQL alone can is ``json_records``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Text,
    bindparam,
    cast,
    column,
    func,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import JSON, TypeEngine

__all__ = ["json_column", "json_records", "json_rows"]


class json_rows(GenericFunction[Any]):
    """The elements of a JSON array, one a row, in a column ``value``."""

    inherit_cache = True
    name = "json_rows"
    type = JSON()


@compiles(json_rows, "sqlite")
def _json_rows_sqlite(element: Any, compiler: SQLCompiler, **kwargs: Any) -> str:
    return f"json_each({compiler.process(element.clauses, **kwargs)})"


@compiles(json_rows, "postgresql")
def _json_rows_postgresql(element: Any, compiler: SQLCompiler, **kwargs: Any) -> str:
    return f"jsonb_array_elements_text(CAST({compiler.process(element.clauses, **kwargs)} AS jsonb))"


def json_column(parameter: str, kind: TypeEngine[Any]) -> tuple[TableValuedAlias, ColumnElement[Any]]:
    """A JSON array of plain values as a table of one column.

    Args:
        parameter: the name of the bound JSON text.
        kind: the SQL type of its elements.

    Returns:
        The table to select from, and its column.
    """
    rows = json_rows(bindparam(parameter, type_=Text)).table_valued(column("value", Text), name="j")
    return rows, cast(rows.c.value, kind)


def json_records(kinds: Mapping[str, TypeEngine[Any]]) -> TableValuedAlias:
    """A JSON array of objects as a table, bound as the parameter ``records``; for PostgreSQL alone.

    Args:
        kinds: the objects' keys, which are the table's columns, and their SQL types.
    """
    columns = [column(name, kind) for name, kind in kinds.items()]
    objects = func.json_to_recordset(cast(bindparam("records", type_=Text), JSON))
    return objects.table_valued(*columns, name="records").render_derived(with_types=True)
