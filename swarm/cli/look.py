"""``swarm ls``, ``show``, ``why``, ``status``, ``workers``: what there is and how it goes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from swarm.cli.base import Command, as_json, connect, named_job, named_task
from swarm.errors import DoorRefused
from swarm.model import Status

if TYPE_CHECKING:
    from swarm.client import Client
    from swarm.wire import TaskView

#: Rows of a list that is for people, unless they ask for more.
LISTED: Final = 20


@click.command(
    cls=Command,
    short_help="List jobs, or the tasks of one.",
    examples=[
        ("the latest jobs", "swarm ls"),
        ("the tasks of a job that failed", "swarm ls JOB --status failed"),
        ("all of them, for a script", "swarm ls JOB --all --json | jq -r .id"),
    ],
)
@click.argument("job", required=False)
@click.option(
    "--status", "-s", type=click.Choice([status.value for status in Status]), help="Only tasks of this status."
)
@click.option("--limit", "-n", type=click.IntRange(1), default=LISTED, show_default=True, help="How many at most.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@as_json
def ls(job: str | None, status: str | None, limit: int, everything: bool, as_json: bool) -> None:
    """List your jobs, or the tasks of JOB; with --status, tasks of all jobs."""
    from swarm.cli.output import age, counts_text, print_json_lines, print_table

    now = time.time()
    count = None if everything else limit
    with connect() as client:
        if job is None and status is None:
            jobs = itertools.islice(client.jobs(), count)
            if as_json:
                print_json_lines(jobs)
                return
            rows = ((view.id, view.name, age(now - view.created_at), view.total, counts_text(view)) for view in jobs)
            print_table(("job", "name", "age", "tasks", "status"), rows, empty="no jobs yet; swarm submit makes one")
            return
        if job is not None:
            with named_job(client, job):
                client.job(job)
        tasks = itertools.islice(client.tasks(job=job, status=Status(status) if status else None), count)
        if as_json:
            print_json_lines(tasks)
            return
        columns = ("task", "status", "url", "attempts", "reason or result")
        print_table(columns, (_task_row(task) for task in tasks), empty="no such tasks")


def _task_row(task: TaskView) -> tuple[object, ...]:
    more = f" +{len(task.urls) - 1}" if len(task.urls) > 1 else ""
    return task.id, task.status, task.urls[0] + more, task.attempts, task.result or task.reason


@click.command(
    cls=Command, examples=[("a job", "swarm show JOB"), ("a task and what happened to it", "swarm show TASK")]
)
@click.argument("id_", metavar="JOB|TASK")
@as_json
def show(id_: str, as_json: bool) -> None:
    """Show a job, or a task with its history."""
    from swarm.cli.output import counts_text, print_json, print_pairs

    with connect() as client:
        try:
            job = client.job(id_)
        except DoorRefused as fault:
            if fault.status != 404:
                raise
            _show_task(client, id_, as_json)
            return
        if as_json:
            print_json(job)
            return
        pairs = [("job", job.id), ("name", job.name), ("owner", job.owner), ("created", _clock(job.created_at))]
        print_pairs([*pairs, ("tasks", job.total), ("status", counts_text(job)), ("done", "yes" if job.done else "no")])


def _show_task(client: Client, id_: str, as_json: bool) -> None:
    from swarm.amounts import show_wei
    from swarm.cli.output import print_json, print_pairs, print_table

    task, history = client.task(id_), list(client.history(id_))
    if as_json:
        print_json({"task": task, "history": history})
        return
    pairs: list[tuple[str, object]] = [("task", task.id), ("job", task.job), ("status", task.status)]
    pairs += [("reason", task.reason), ("detail", task.detail), ("kind", task.kind), ("urls", " ".join(task.urls))]
    pairs += [("attempts", f"{task.attempts} of {task.max_attempts}"), ("worker", task.assignee), ("via", task.via)]
    pairs += [("spec", task.spec), ("meta", task.meta), ("result", task.result)]
    if task.reward_wei != "0":
        pairs.append(("reward", show_wei(int(task.reward_wei))))
    flags = {"on chain": task.on_chain, "accepted": task.accepted, "paid": task.paid, "refunded": task.refunded}
    print_pairs([*pairs, *((flag, at and _clock(at)) for flag, at in flags.items())])
    click.echo()
    rows = (
        (_clock(event.at), event.move, event.to, event.who or event.by, event.fence, event.reason) for event in history
    )
    print_table(("at", "what", "status", "by", "fence", "reason"), rows, empty="no history")


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) + f".{at % 1:.3f}"[2:]


@click.command(
    cls=Command, short_help="Say why a task isn't running.", examples=[("a task that doesn't start", "swarm why TASK")]
)
@click.argument("task")
@as_json
def why(task: str, as_json: bool) -> None:
    """Say why TASK isn't running: what each live worker lacks, pacing, pauses."""
    from swarm.cli.output import print_json, print_table

    with connect() as client, named_task(client, task):
        answer = client.why(task)
    if as_json:
        print_json(answer)
        return
    click.echo(answer.get("message"))
    if workers := answer.get("workers"):
        print_table(("worker", "may have it", "why not"), (_why_row(worker) for worker in workers), empty="")


def _why_row(worker: Mapping[str, Any]) -> tuple[object, ...]:
    refusal = worker.get("refusal")
    if refusal is None:
        return worker.get("worker"), "yes", ""
    later = f"; in {refusal['retry_after_s']:.0f} s" if refusal.get("retry_after_s") else ""
    return worker.get("worker"), "no", f"{refusal.get('code')}: {refusal.get('message')}{later}"


@click.command(
    cls=Command, examples=[("every two seconds", "watch swarm status"), ("for a script", "swarm status --json")]
)
@as_json
def status(as_json: bool) -> None:
    """Show the totals of the swarm (for operators)."""
    from swarm.cli.output import print_json, print_pairs

    with connect() as client:
        answer = client.status()
    if as_json:
        print_json(answer)
    else:
        told = [(name, say(one)) for field, name, say in _BY_HAND for one in answer.pop(field, [])]
        print_pairs([*_flat(answer), *told])


def _act(act: Mapping[str, Any]) -> str:
    return f"{_clock(float(act['at']))} {act['who']}: {act['act']} {act['subject']} ({act['why']})"


def _alert(alert: Mapping[str, Any]) -> str:
    return f"{alert['code']}: {alert['message']}; {alert['hint']}"


def _pause(pause: Mapping[str, Any]) -> str:
    what = " ".join(part for part in (pause["scope"], pause.get("name")) if part)
    return f"{what} since {_clock(float(pause['since']))}, by {pause['who']}: {pause['why']}"


def _quarantine(one: Mapping[str, Any]) -> str:
    who = one.get("who") or "the root"
    return f"{one['worker']} on {one['host']} for {one['left_s']:.0f} s more, by {who}: {one['why']}"


def _pinned(one: Mapping[str, Any]) -> str:
    return f"{one['name']} {', '.join(one['versions'])}"


#: What of the status is told in a line of its own each: its field, what it is called, and how it reads.
_BY_HAND: Final = (
    ("alerts", "alert", _alert),
    ("paused", "paused", _pause),
    ("quarantines", "quarantine", _quarantine),
    ("approved", "only version", _pinned),
    ("acts", "operator", _act),
)


@click.command(cls=Command, examples=[("who is there", "swarm workers")])
@as_json
def workers(as_json: bool) -> None:
    """List the swarm's workers (for operators)."""
    from swarm.cli.output import print_json_lines, print_table

    with connect() as client:
        found = list(client.workers())
    if as_json:
        print_json_lines(found)
        return
    rows = (_worker_row(worker) for worker in found)
    print_table(
        ("worker", "status", "active", "slots", "done", "failed", "seen", "version"), rows, empty="no worker yet"
    )


def _worker_row(worker: Mapping[str, Any]) -> tuple[object, ...]:
    from swarm.cli.output import age

    stats = worker.get("stats") or {}
    seen = worker.get("last_seen_s")
    return (
        worker.get("address"),
        worker.get("status"),
        worker.get("active"),
        worker.get("slots"),
        stats.get("tasks_done", 0),
        stats.get("tasks_failed", 0),
        None if seen is None else f"{age(float(seen))} ago",
        worker.get("version"),
    )


def _shown(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return round(value, 1) if isinstance(value, float) else value


def _flat(answer: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Nested objects as ``a.b`` names, for people."""
    pairs: list[tuple[str, object]] = []
    for name, value in answer.items():
        if isinstance(value, dict):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((prefix + name, _shown(value)))
    return pairs
