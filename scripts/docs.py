"""Write docs/reference/, or say whether it is stale.  Usage: python scripts/docs.py [--check]

Commands, settings, HTTP calls, error codes and failure reasons are each declared once, in code; their pages are made of
those declarations, so that no page can tell something else.
"""

# ruff: noqa: E402 -- defaults are made at import, so the home directory is set before

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

#: Defaults below the home directory are to read the same on every machine, line breaks included.
HOME = "/~"
if os.environ.get("HOME") != HOME:
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "HOME": HOME})  # noqa: S606 -- ourselves

import attrs
import click

from rendezvous.cli import cli as root_cli
from rendezvous.command import VARIABLES as ROOT_VARIABLES
from rendezvous.door.call import ANYONE
from rendezvous.door.envelope import STATUS_OF
from rendezvous.door.routes import ROUTES
from rendezvous.settings import RootSettings
from swarm.cli.swarm import cli as swarm_cli
from swarm.cli.worker import worker as worker_cli
from swarm.cli.worker_money import redeem, release, wallet
from swarm.model import MOVES, RETRYABLE_REASONS, Reason, RefusalCode
from swarm.settings import ENVIRONMENT_PREFIX, Declared, declared
from swarm.worker.settings import WorkerSettings

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
MADE = "<!-- made by scripts/docs.py of what the code declares; change that, then run it -->\n"
HELP_COLUMNS = 96


PROGRAMS: tuple[tuple[str, click.Command], ...] = (
    ("swarm", swarm_cli),
    ("swarm-worker", worker_cli),
    ("swarm-worker wallet", wallet),
    ("swarm-worker redeem", redeem),
    ("swarm-worker release", release),
    ("swarm-root", root_cli),
)


def commands() -> Iterator[str]:
    yield "# Commands"
    for program, command in PROGRAMS:
        yield f"\n## {program}"
        yield from _help(click.Context(command, info_name=program, max_content_width=HELP_COLUMNS))


def _help(context: click.Context) -> Iterator[str]:
    context.terminal_width = HELP_COLUMNS
    yield f"\n```\n{context.get_help()}\n```"
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield f"\n### {context.command_path} {name}"
                yield from _help(click.Context(command, info_name=name, parent=context))


def settings() -> Iterator[str]:
    yield "# Settings"
    yield "\nThe command line wins over the environment, the environment over the default. An unknown name is an error."
    for program, section, prefix in (
        ("swarm-worker", WorkerSettings, ENVIRONMENT_PREFIX),
        ("swarm-root run", RootSettings, ROOT_VARIABLES),
    ):
        yield f"\n## {program}\n"
        yield "| option | variable | default | what it is |\n|---|---|---|---|"
        yield from (_row(one) for one in declared(section, prefix=prefix) if not one.hidden)


def _row(one: Declared) -> str:
    unit = f" (in {one.unit})" if one.unit and one.default is not None else ""
    return f"| `--{one.option}` | `{one.variable}` | {_default(one)} | {one.help.replace('|', '∣')}{unit} |"


def _default(one: Declared) -> str:
    match one.default:
        case attrs.NOTHING:
            return "required"
        case None:
            return one.unit or ""
        case ():
            return ""
        case bool(is_on):
            return "on" if is_on else "off"
        case float(number):
            return f"`{number:g}`"
        case other if attrs.has(type(other)):
            return f"`{':'.join(str(part) for part in attrs.astuple(other))}`"
        case other:
            return f"`{other}`"


def http() -> Iterator[str]:
    yield "# HTTP calls of the door"
    yield '\nAnswers are `{"data": …}` or `{"error": {"code", "message", "retry_after_s"?, "details"?}}`; the codes'
    yield "are in [errors.md](errors.md). `/openapi.json` of a running root has every field."
    yield "\n| call | key of | what it does |\n|---|---|---|"
    for route in ROUTES:
        who = "" if route.who == ANYONE else ", ".join(sorted(route.who))
        yield f"| `{route.method} {route.path}` | {who} | {route.summary} |"


def errors() -> Iterator[str]:
    yield "# Error codes"
    yield "\nEach refusal of the door has a code that stays, and a sentence that says what to do.\n"
    yield "| code | HTTP status |\n|---|---|"
    yield from (f"| `{code}` | {STATUS_OF[code]} |" for code in RefusalCode)
    yield "\n# Reasons\n"
    yield "Why an execution or a task failed. Retryable ones are tried again, after a pause, up to `max_attempts`.\n"
    yield "| reason | retryable |\n|---|---|"
    yield from (f"| `{reason}` | {'yes' if reason in RETRYABLE_REASONS else 'no'} |" for reason in Reason)
    yield "\n# What a task's status may become\n"
    yield "| move | from | to | by |\n|---|---|---|---|"
    for move, rule in MOVES.items():
        sources, targets = sorted(source or "–" for source in rule.sources), sorted(rule.targets)
        yield f"| `{move}` | {', '.join(sources)} | {', '.join(targets)} | {', '.join(sorted(rule.actors))} |"


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "commands.md": commands,
    "settings.md": settings,
    "http.md": http,
    "errors.md": errors,
}


def main() -> None:
    stale = []
    for name, page in PAGES.items():
        path, text = REFERENCE / name, (MADE + "\n".join(page()) + "\n").replace(f"{HOME}/", "~/")
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if sys.argv[1:] != ["--check"]:
            REFERENCE.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote docs/reference/{name}")
    if stale and sys.argv[1:] == ["--check"]:
        names = ", ".join(stale)
        sys.exit(f"error: docs/reference/ tells something else than the code: {names}\n       python scripts/docs.py")


if __name__ == "__main__":
    main()
