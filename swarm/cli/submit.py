"""``swarm submit``: read URLs, make one task of each, submit them as one job, and watch it on a terminal.

A submission that was cut off goes on when the same command is given again: its token is kept until it is through.
"""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from swarm.cli.base import Command, as_json, connect
from swarm.errors import ConfigurationError, DoorRefused, MalformedInput, SwarmError

if TYPE_CHECKING:
    from swarm.wire import AccountView

#: A scheme, a colon and something behind it: an argument of this shape is a URL, never a file.
SCHEME: Final = "://"
SHOWN_PROGRESS_FROM: Final = 2_000


@click.command(
    cls=Command,
    short_help="Submit one task a URL, as one job.",
    examples=[
        ("the pages as they are", "swarm submit urls.txt"),
        ("one record a page", "swarm submit urls.txt --extract title=h1::text --extract price=.price::text"),
        ("one record a row", "swarm submit https://example.com/list --each tr --extract name=td::text"),
        ("from another program", "generate-urls | swarm submit - --extract title=title::text --name nightly"),
        ("paid, and never more than this", "swarm submit urls.txt --reward 0.001eth --budget 1eth"),
        ("many small rewards", "swarm submit urls.txt --reward 20gwei --settle channel"),
        ("in a script", "job=$(swarm submit urls.txt --detach) && swarm results $job -o out.jsonl"),
    ],
)
@click.argument("sources", nargs=-1, required=True, metavar="FILE|URL|-...")
@click.option("--extract", "-e", multiple=True, metavar="NAME=SELECTOR", help="A field of the records: CSS or XPath.")
@click.option("--each", metavar="SELECTOR", help="One record for each element that matches.")
@click.option("--require", multiple=True, metavar="NAME", help="Fail a page on which this field isn't found.")
@click.option(
    "--kind", metavar="KIND", help="fetch, scrape, noop or a plugin's. [default: scrape with --extract, else fetch]"
)
@click.option("--spec", metavar="JSON", help="What a plugin's kind wants to know.")
@click.option("--name", metavar="TEXT", help="What the job is called in lists. [default: the file's name]")
@click.option("--priority", type=click.IntRange(0, 9), default=5, show_default=True, help="9 goes first.")
@click.option("--tier", default="bulk", show_default=True, help="The share of the capacity: interactive or bulk.")
@click.option("--label", multiple=True, metavar="LABEL", help="Only workers that carry this label.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Returned with each result.")
@click.option("--reward", metavar="AMOUNT", help="What each task pays the worker: 0.001eth, 20gwei, 5000wei.")
@click.option("--budget", metavar="AMOUNT", help="The most that the job's rewards may come to.")
@click.option(
    "--settle",
    type=click.Choice(["task", "channel"]),
    help="How rewards are paid: each task by itself, or by vouchers, for a fraction of the gas.  [default: task]",
)
@click.option("--detach", "-d", is_flag=True, help="Don't watch; print the job's id and leave.")
@as_json
def submit(
    *,
    sources: tuple[str, ...],
    extract: tuple[str, ...],
    each: str | None,
    require: tuple[str, ...],
    kind: str | None,
    spec: str | None,
    name: str | None,
    priority: int,
    tier: str,
    label: tuple[str, ...],
    meta: tuple[str, ...],
    reward: str | None,
    budget: str | None,
    settle: str | None,
    detach: bool,
    as_json: bool,
) -> int:
    """Submit one task for each URL in files, on stdin (`-`), or given as such; lines with # are comments.

    Prints the job's id. On a terminal it then watches until the job is done; Ctrl-C stops watching, never the job.
    """
    from swarm.model import Settle
    from swarm.wire import NewTask, Requires

    urls = list(read_urls(sources))
    told = task_spec(extract, each, require, spec)
    wanted = kind or ("scrape" if extract else "fetch")
    if kind is not None or spec is not None:
        _check_spec(wanted, told)
    shape: dict[str, Any] = {
        "kind": wanted,
        "spec": told,
        "meta": dict(split_pairs("--meta", meta, example="batch=2026-11")),
        "priority": priority,
        "tier": tier,
        "requires": Requires(labels=label),
    }
    reward_wei, budget_wei = _money(reward, budget, tasks=len(set(urls)))
    if reward_wei:
        shape["reward_wei"] = str(reward_wei)
    name = name or next((Path(source).name for source in sources if is_file(source)), None)
    tasks = (NewTask(urls=(url,), **shape) for url in urls)
    with connect() as client:
        token = Token.of(name, [*urls, repr(shape), str(budget_wei), *([settle] if settle else [])], os.environ)
        if reward_wei and not token.goes_on:
            try:
                account = client.account()
                check_paid(account)
                _check_allowance(account, reward_wei * len(set(urls)))
            except SwarmError:
                token.forget()
                raise
        progress = _Progress(len(urls))
        receipt = client.submit(
            tasks,
            name=name and name[:64],
            token=token.value,
            budget_wei=budget_wei,
            settle=Settle(settle) if settle else None,
            on_progress=progress,
        )
        progress.end()
        token.forget()
        for warning in receipt.warnings:
            click.echo(f"warning: {warning}", err=True)
        if as_json:
            from swarm.cli.output import print_json

            counts = {"created": receipt.created, "duplicates": receipt.duplicates}
            print_json({"job": receipt.job, **counts, "warnings": receipt.warnings})
            return 0
        click.echo(receipt.job)
        if receipt.duplicates:
            click.echo(f"{receipt.duplicates} of {len(urls)} the job has already", err=True)
        if detach or not sys.stderr.isatty():
            return 0
        from swarm.cli.watch import watch_job

        return watch_job(client, receipt.job)


# ── what is asked for ─────────────────────────────────────────────────────────────────────────────────────────────


def is_file(source: str) -> bool:
    """Whether an argument names a file, not stdin and not a URL."""
    return source != "-" and SCHEME not in source


def read_urls(sources: Iterable[str]) -> Iterator[str]:
    """The URLs of all sources, in order and in their canonical form.

    Raises:
        ConfigurationError: a line isn't a URL; the message says where.
    """
    from swarm.content.urls import canonical, with_scheme

    for source in sources:
        for place, text in _lines(source):
            try:
                yield canonical(text)
            except MalformedInput as fault:
                guess = f"did you mean {with_scheme(text)}?" if SCHEME not in text else None
                raise ConfigurationError(f"{place}: {text!r} can't be fetched: {fault}", hint=guess) from fault


def _lines(source: str) -> Iterator[tuple[str, str]]:
    if not is_file(source) and source != "-":
        yield "argument", source
        return
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except FileNotFoundError as fault:
        from swarm.content.urls import with_scheme

        hint = (
            f"a URL needs its scheme: {with_scheme(source)}" if "." in source else "give a file, a URL or - for stdin"
        )
        raise ConfigurationError(f"there is no file {source}", hint=hint) from fault
    except UnicodeDecodeError as fault:
        raise ConfigurationError(f"{source} isn't text: {fault}") from fault
    found = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    found = [(number, line) for number, line in found if line and not line.startswith("#")]
    if not found:
        raise ConfigurationError(f"{'stdin' if source == '-' else source} holds no URL")
    for number, line in found:
        yield f"{'stdin' if source == '-' else source}:{number}", line


def _check_selectors(fields: Mapping[str, str], each: str | None) -> None:
    """A selector that can't be read would fail every task of the job."""
    from swarm.content.parse import check_selectors

    try:
        check_selectors(fields, each=each)
    except MalformedInput as fault:
        raise ConfigurationError(
            f"--extract: {fault}", hint="a CSS selector such as title=h1::text, or an XPath"
        ) from fault


def _check_spec(kind: str, spec: Mapping[str, Any]) -> None:
    """What the kind's executor would refuse would fail every task of the job."""
    from swarm.executors.base import TaskFailed
    from swarm.executors.registry import check_spec

    try:
        check_spec(kind, spec)
    except TaskFailed as fault:
        if "unknown field" in fault.detail and not (kind == "fetch" and "extract" in spec):
            # newer workers may know it
            click.echo(f"warning: the kind {kind} of this version doesn't know all of that: {fault.detail}", err=True)
            return
        hint = "nothing was submitted; --spec says what the kind wants to know, --kind which kind it is"
        if kind == "scrape" and "extract" not in spec:
            hint = "nothing was submitted; say what to take, such as --extract title=h1::text"
        elif "extract" in spec:
            hint = "nothing was submitted; --kind scrape extracts, fetch takes pages as they are"
        raise ConfigurationError(f"the kind {kind}: {fault.detail}", hint=hint) from fault


def task_spec(extract: Iterable[str], each: str | None, require: Iterable[str], spec: str | None) -> dict[str, Any]:
    """What the task's kind is told, from the options."""
    told: dict[str, Any] = {}
    if spec is not None:
        try:
            told = orjson.loads(spec)
        except orjson.JSONDecodeError as fault:
            raise ConfigurationError(f"--spec isn't JSON: {fault}") from fault
        if not isinstance(told, dict):
            raise ConfigurationError("--spec is JSON, but no object", hint="such as --spec '{\"sleep_s\": 1}'")
    fields = dict(split_pairs("--extract", extract, example="title=h1::text"))
    if ours := [name for name in fields if name.startswith("_")]:
        raise ConfigurationError(
            f"--extract {ours[0]}: names that begin with _ are the results' own, such as _url and _reason",
            hint=f"such as --extract {ours[0].lstrip('_') or 'title'}={fields[ours[0]]}",
        )
    if fields:
        told["extract"] = fields
    if (each or require) and not fields:
        raise ConfigurationError(
            f"{'--each' if each else '--require'} needs --extract", hint="such as --extract title=h1::text"
        )
    if fields:
        _check_selectors(fields, each)
    if each:
        told["each"] = each
    if unknown := [name for name in require if name not in fields]:
        raise ConfigurationError(
            f"--require {unknown[0]} isn't one of the fields", hint=f"they are {', '.join(fields)}"
        )
    if require:
        told["require"] = list(require)
    return told


def split_pairs(option: str, given: Iterable[str], *, example: str) -> Iterator[tuple[str, str]]:
    """``NAME=VALUE`` options, each name once."""
    seen = set()
    for pair in given:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ConfigurationError(f"{option} {pair} isn't NAME=VALUE", hint=f"such as {option} {example}")
        if name in seen:
            raise ConfigurationError(f"{option} names {name} twice")
        seen.add(name)
        yield name, value


# ── money ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _money(reward: str | None, budget: str | None, *, tasks: int) -> tuple[int, int | None]:
    """The reward of a task and the job's budget, wei; refused before the door is asked where they don't fit."""
    from swarm.amounts import parse_wei, show_wei

    reward_wei = parse_wei(reward) if reward else 0
    budget_wei = parse_wei(budget) if budget else None
    if budget_wei is not None and tasks * reward_wei > budget_wei:
        raise ConfigurationError(
            f"budget_exceeded: {tasks} tasks at {reward} come to {show_wei(tasks * reward_wei)}, above {budget}",
            hint="nothing was submitted; raise --budget, or lower --reward",
        )
    return reward_wei, budget_wei


def check_paid(account: AccountView) -> None:
    """Refuse rewards in a swarm that has no chain.

    Raises:
        DoorRefused: with the code that the door would give.
    """
    if account.ethereum is None:
        raise DoorRefused(
            "unpaid_swarm",
            "this swarm has no contract, so nobody can be paid: submit without --reward",
        )


def _check_allowance(account: AccountView, total_wei: int) -> None:
    """Refuse rewards that the door would refuse, before the first of many submissions is made."""
    from swarm.amounts import show_wei

    if account.allowance_wei is not None:
        left_wei = max(0, int(account.allowance_wei) - int(account.spent_wei or 0))
        if total_wei > left_wei:
            raise DoorRefused(
                "allowance_exceeded",
                f"these rewards come to {show_wei(total_wei)}, and your allowance has {show_wei(left_wei)} left: "
                "submit fewer tasks, lower --reward, or ask the operator for more",
                status=402,
            )


# ── a submission that is cut off ──────────────────────────────────────────────────────────────────────────────────


class Token:
    """What makes the same command go on where it was cut off: kept in a file until the submission is through."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.goes_on = path.exists()
        try:
            self.value = path.read_text()
            click.echo("going on with the submission that was cut off", err=True)
        except FileNotFoundError:
            self.value = uuid.uuid4().hex
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.value)

    @classmethod
    def of(cls, name: str | None, parts: Iterable[str], environment: Mapping[str, str]) -> Token:
        """The token of the submission that consists of these parts."""
        digest = hashlib.sha256(f"{environment.get('SWARM_URL')}\n{name}\n".encode())
        for part in parts:
            digest.update(part.encode() + b"\n")
        base = Path(environment.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        return cls(base / "swarm" / "submissions" / digest.hexdigest()[:32])

    def forget(self) -> None:
        """The submission is through: the same command is a new one from now on."""
        self.path.unlink(missing_ok=True)


class _Progress:
    """Says how far a long submission is."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.shown = total >= SHOWN_PROGRESS_FROM and sys.stderr.isatty()

    def __call__(self, submitted: int) -> None:
        if self.shown:
            click.echo(f"\rsubmitted {submitted} of {self.total}", nl=False, err=True)

    def end(self) -> None:
        if self.shown:
            click.echo(err=True)
