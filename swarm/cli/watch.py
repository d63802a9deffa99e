"""``swarm watch``: a progress bar until a job is done; on a pipe, a line for each change."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from swarm.cli.base import Command, as_json, connect, job_argument, latest_job, named_job

if TYPE_CHECKING:
    from swarm.client import Client


@click.command(
    cls=Command,
    short_help="Watch a job until it is done.",
    examples=[
        ("the latest job", "swarm watch"),
        ("for a script", "swarm watch 01920000-0000-7000-8000-000000000000 --json | tail -1"),
    ],
)
@job_argument
@as_json
def watch(job: str | None, as_json: bool) -> int:
    """Watch JOB (the latest one unless named) until all its tasks have ended."""
    with connect() as client:
        job = latest_job(client, job)
        with named_job(client, job):
            if as_json:
                from swarm.cli.output import print_json_lines

                print_json_lines(client.watch(job))
                return 0
            return watch_job(client, job)


def watch_job(client: Client, job: str) -> int:
    """Show the progress of a job on stderr, then a summary. Ctrl-C leaves the job alone.

    Returns:
        The exit code: 0 once the job has ended, whatever became of its tasks.
    """
    from swarm.cli.base import EXIT_INTERRUPTED

    started = time.monotonic()
    try:
        summary = show_progress(client, job)
    except KeyboardInterrupt:
        click.echo(f"\nthe job goes on; swarm watch {job} looks at it again, swarm cancel {job} calls it off", err=True)
        return EXIT_INTERRUPTED
    click.echo(f"done in {time.monotonic() - started:.1f} s: {summary}", err=True)
    click.echo(f"swarm results {job} prints them", err=True)
    return 0


def show_progress(client: Client, job: str) -> str:
    """Show the progress of a job on stderr until it has ended; what became of its tasks."""
    return _show_bar(client, job) if sys.stderr.isatty() else _show_lines(client, job)


def _show_bar(client: Client, job: str) -> str:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from swarm.cli.output import counts_text
    from swarm.model import TERMINAL

    summary = ""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=None)
        for view in client.watch(job):
            summary = counts_text(view)
            ended = sum(view.counts.get(status, 0) for status in TERMINAL)
            progress.update(bar, total=view.total, completed=ended, description=summary)
    return summary


def _show_lines(client: Client, job: str) -> str:
    from swarm.cli.output import counts_text

    said = ""
    for view in client.watch(job):
        if (summary := counts_text(view)) != said:
            said = summary
            click.echo(summary, err=True)
    return said
