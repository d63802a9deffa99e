"""How things are shown: tables for people, JSON for scripts, times and sizes in words.

On a terminal tables have colour and fit the width; elsewhere they are plain and never cut, so that ``grep`` and ``cut``
see all of them. Results go to stdout, all talk to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
import msgspec
import orjson

from swarm.model import Status
from swarm.wire import JobView

__all__ = [
    "age",
    "counts_text",
    "number_of",
    "print_json",
    "print_json_lines",
    "print_pairs",
    "print_table",
]

STYLES: Final[Mapping[str, str]] = {
    Status.WAITING: "yellow",
    Status.PENDING: "yellow",
    Status.ACTIVE: "cyan",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "dim",
    "ready": "green",
    "busy": "cyan",
    "offline": "red",
}
SHOWN_ORDER: Final = (
    *(Status.COMPLETED, Status.FAILED, Status.CANCELLED),
    *(Status.ACTIVE, Status.PENDING, Status.WAITING),
)
#: Wider than any row: what isn't a terminal gets no line breaks inside a row.
UNLIMITED_COLUMNS: Final = 10_000


def print_json(value: Any) -> None:
    """One JSON document, indented."""
    click.echo(orjson.dumps(msgspec.to_builtins(value), option=orjson.OPT_INDENT_2).decode())


def print_json_lines(values: Iterable[Any]) -> None:
    """One JSON document a line, as they come."""
    for value in values:
        click.echo(orjson.dumps(msgspec.to_builtins(value)).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table on stdout; where it has no rows, ``empty`` on stderr."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        cells = ["" if cell is None else str(cell) for cell in row]
        table.add_row(*(Text(cell, style=STYLES.get(cell, ""), overflow="fold") for cell in cells))
    if not table.row_count:
        click.echo(empty, err=True)
        return
    Console(width=None if sys.stdout.isatty() else UNLIMITED_COLUMNS).print(table)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other; those without a value are left out."""
    shown = [(name, _text(value)) for name, value in pairs if value not in (None, "", {}, ())]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name:<{width}}  {value}")


def _text(value: object) -> str:
    return orjson.dumps(value).decode() if isinstance(value, (dict, list)) else str(value)


def counts_text(view: JobView) -> str:
    """``20 completed, 1 failed, 3 active``: statuses that occur, what has ended first."""
    said = [f"{view.counts[status]} {status}" for status in SHOWN_ORDER if view.counts.get(status)]
    return ", ".join(said) or "no tasks"


def number_of(count: int, noun: str) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def age(seconds: float) -> str:
    """A duration in its largest fitting unit: ``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
