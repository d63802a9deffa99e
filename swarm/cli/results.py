"""``swarm results``: what a job found, each result checked against its CID, as JSON lines, JSON or CSV.

A row is a record; where a kind makes none, a row is a URL with what was stored of it. Fields of ours begin with an
underscore, and ``swarm submit`` refuses such names; what another kind calls by a name of ours is left out.
"""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
import orjson

from swarm.cli.base import EXIT_INTERRUPTED, EXIT_REFUSED, Command, connect, job_argument, latest_job, named_job
from swarm.cli.outfile import check_outfile, open_outfile, tidy_when_told_to_end
from swarm.errors import DoorRefused, PeerError

if TYPE_CHECKING:
    from swarm.client import Client, Result
    from swarm.wire import JobView

FORMATS: Final = ("jsonl", "csv", "json")
OURS: Final = frozenset({"_url", "_task", "_meta", "_cid", "_status", "_reason", "_detail"})


@click.command(
    cls=Command,
    short_help="Print what a job found, verified.",
    examples=[
        ("the latest job's, for a look", "swarm results | head"),
        ("as a table for other programs", "swarm results -o titles.csv"),
        ("with what failed, and why", "swarm results --failed | jq -c 'select(._reason)'"),
        ("the pages themselves", "swarm results JOB --bodies pages/ -o pages.jsonl"),
    ],
)
@job_argument
@click.option("--format", "-f", "shape", type=click.Choice(FORMATS), help="[default: by the name of FILE, else jsonl]")
@click.option("--output", "-o", metavar="FILE", help="Wait for the job's end, then write FILE.")
@click.option("--failed", is_flag=True, help="Rows for tasks that gave nothing, too, with their _reason.")
@click.option("--bodies", metavar="DIRECTORY", help="Save what was fetched, each as a file named by its CID.")
def results(job: str | None, shape: str | None, output: str | None, failed: bool, bodies: str | None) -> int:
    """Print what JOB (the latest one unless named) found, each result checked against its CID.

    Prints what is there by now; with -o it waits until all tasks have ended.
    """
    from swarm.cli.output import number_of
    from swarm.model import TERMINAL, Status

    shape = shape or next((known for known in FORMATS if output and output.endswith(f".{known}")), "jsonl")
    bad: list[str] = []
    if output is not None:
        check_outfile(output)
    with connect() as client, contextlib.ExitStack() as stack:
        job = latest_job(client, job)
        with named_job(client, job):
            view = client.job(job)
        if output is not None and not view.done:
            if not _wait(client, view, output):
                return EXIT_INTERRUPTED
            view = client.job(job)
        ended = sum(view.counts.get(status, 0) for status in TERMINAL)
        # Rows that go to a terminal are progress enough.
        shown = output is not None and sys.stderr.isatty()
        seen = stack.enter_context(_progress(ended)) if shown else _unseen
        stack.enter_context(tidy_when_told_to_end())
        found = _checked(client, job, bad, Path(bodies) if bodies else None, seen)
        rows = (row for result in found for row in rows_of(result) if failed or "_reason" not in row)
        written = write_rows(rows, shape, output)
    if output is not None:
        click.echo(f"{number_of(written, 'row')} in {output}", err=True)
    gave_nothing = view.counts.get(Status.FAILED, 0)
    if gave_nothing and not failed:
        click.echo(f"{number_of(gave_nothing, 'task')} failed; --failed shows why", err=True)
    if open_tasks := view.total - ended:
        click.echo(f"{open_tasks} of {view.total} tasks haven't ended; swarm watch {job}", err=True)
    for problem in bad:
        click.echo(f"error: {problem}", err=True)
    return EXIT_REFUSED if bad else 0


def _wait(client: Client, view: JobView, output: str) -> bool:
    """Wait for a job's end, with its progress on stderr; False where Ctrl-C ended that first."""
    from swarm.cli.watch import show_progress

    click.echo(f"{output} is written once the job has ended; Ctrl-C stops waiting, never the job", err=True)
    try:
        show_progress(client, view.id)
    except KeyboardInterrupt:
        click.echo(f"\nnothing was written to {output}; the job goes on", err=True)
        return False
    return True


@contextlib.contextmanager
def _progress(ended: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, to be told of each result."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("results read and checked", total=ended)
        yield lambda: progress.update(bar, advance=1)


def _unseen() -> None:
    """Nobody is told."""


def _checked(
    client: Client, job: str, bad: list[str], bodies: Path | None, seen: Callable[[], None]
) -> Iterator[Result]:
    """Results that are what they promise; a sentence in ``bad`` for each of the others. ``seen`` is told of all."""
    for result in client.results(job):
        seen()
        if result.problem is not None:
            bad.append(f"task {result.task} ({result.urls[0]}): {result.problem}; it isn't in the output")
            continue
        if bodies is not None and result.manifest is not None:
            try:
                save_bodies(client, result, bodies)
            except (PeerError, DoorRefused) as fault:  # a lost door or a full disk is no matter of one result
                bad.append(f"task {result.task} ({result.urls[0]}): its body: {fault}")
        yield result


def save_bodies(client: Client, result: Result, directory: Path) -> None:
    """Save the fetched bodies of a result as files named by their CIDs; what is there already is kept."""
    directory.mkdir(parents=True, exist_ok=True)
    for outcome in result.manifest.outcomes if result.manifest else ():
        if outcome.body is None or (directory / outcome.body.cid).exists():
            continue
        body = client.content(outcome.body.cid)
        with open_outfile(str(directory / outcome.body.cid), "wb") as file:
            file.write(body)


def rows_of(result: Result) -> Iterator[dict[str, Any]]:
    """The rows of one result: its records, or else its URLs."""
    ours: dict[str, Any] = {"_url": result.urls[0], "_task": result.task}
    if result.meta:
        ours["_meta"] = result.meta
    if result.manifest is None:
        yield {**ours, "_status": result.status, "_reason": result.reason or result.status, "_detail": result.detail}
        return
    ours["_cid"] = result.cid
    if result.records:
        for record in result.records:
            yield ours | {name: value for name, value in record.items() if name not in OURS}
        return
    for outcome in result.manifest.outcomes:
        row = {**ours, "_url": outcome.url, "status": outcome.status, "final_url": outcome.final_url}
        row["content_type"] = outcome.headers.get("content-type")
        if outcome.body is not None:
            row |= {"body": outcome.body.cid, "size_bytes": outcome.body.size_bytes}
        if outcome.reason is not None:
            row |= {"_reason": outcome.reason, "_detail": outcome.detail}
        yield row


# ── formats ───────────────────────────────────────────────────────────────────────────────────────────────────────


def write_rows(rows: Iterable[dict[str, Any]], shape: str, output: str | None) -> int:
    """Write rows to a file, which is there when it is whole, or to stdout.

    Returns:
        How many rows were written.
    """
    write = WRITERS[shape]
    if output is None:
        return write(rows, sys.stdout)
    with open_outfile(output) as file:
        return write(rows, file)


def _write_jsonl(rows: Iterable[dict[str, Any]], file: IO[str]) -> int:
    written = 0
    for row in rows:
        file.write(orjson.dumps(row).decode() + "\n")
        written += 1
    return written


def _write_json(rows: Iterable[dict[str, Any]], file: IO[str]) -> int:
    written = 0
    for row in rows:
        file.write(("[\n" if not written else ",\n") + orjson.dumps(row).decode())
        written += 1
    file.write("\n]\n" if written else "[]\n")
    return written


def _write_csv(rows: Iterable[dict[str, Any]], file: IO[str]) -> int:
    """All rows are read before the first is written: the head names every column that occurs."""
    kept = [{name: _cell(value) for name, value in row.items()} for row in rows]
    columns = dict.fromkeys(name for row in kept for name in row)
    table = io.StringIO()
    writer = csv.DictWriter(table, columns)
    writer.writeheader()
    writer.writerows(kept)
    file.write(table.getvalue())
    return len(kept)


def _cell(value: Any) -> Any:
    return orjson.dumps(value).decode() if isinstance(value, (list, dict)) else value


WRITERS: Final[dict[str, Callable[[Iterable[dict[str, Any]], IO[str]], int]]] = {
    "jsonl": _write_jsonl,
    "json": _write_json,
    "csv": _write_csv,
}
