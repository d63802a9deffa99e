"""``swarm cancel`` and ``swarm replay``: call work off, or give failed work a new life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from swarm.cli.base import Command, as_json, connect
from swarm.errors import DoorRefused


@click.command(cls=Command, examples=[("a whole job", "swarm cancel JOB"), ("one task", "swarm cancel TASK")])
@click.argument("id_", metavar="JOB|TASK")
@as_json
def cancel(id_: str, as_json: bool) -> None:
    """Call off a job or a task; what has ended stays as it is."""
    with connect() as client:
        _tell(_either(id_, client.cancel_job, client.cancel), "cancelled", as_json)


@click.command(
    cls=Command,
    short_help="Give failed tasks a new life.",
    examples=[("all that failed of a job", "swarm replay JOB"), ("one task", "swarm replay TASK")],
)
@click.argument("id_", metavar="JOB|TASK")
@as_json
def replay(id_: str, as_json: bool) -> None:
    """Give the failed tasks of a job, or one task, a new life; their attempts start anew."""
    with connect() as client:
        _tell(_either(id_, client.replay_job, client.replay), "replayed", as_json)


def _either(
    id_: str, of_job: Callable[[str], dict[str, Any]], of_task: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """An id of either: jobs are asked first."""
    try:
        return of_job(id_)
    except DoorRefused as fault:
        if fault.status != 404:
            raise
        return of_task(id_)


def _tell(answer: dict[str, Any], done: str, as_json: bool) -> None:
    from swarm.cli.output import number_of, print_json

    if as_json:
        print_json(answer)
    elif "task" in answer:
        click.echo(f"task {answer['task']} is {answer.get('status')}")
    else:
        click.echo(f"{number_of(answer.get('changed', 0), 'task')} {done}")
        for fault in answer.get("faults", ()):
            click.echo(f"left alone: {fault['task']}: {fault['error']['message']}", err=True)
