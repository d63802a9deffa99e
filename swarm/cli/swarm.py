"""``swarm``: submit tasks, watch them, read results. One file a command; each is imported when it is asked for."""

from __future__ import annotations

import sys
from typing import Final

import click

from swarm.cli.base import LazyGroup, run

__all__ = ["COMMANDS", "cli", "main"]

#: Every command and where it lives, in the order of a first day.
COMMANDS: Final = {
    "login": "swarm.cli.login:login",
    "submit": "swarm.cli.submit:submit",
    "quote": "swarm.cli.quote:quote",
    "watch": "swarm.cli.watch:watch",
    "results": "swarm.cli.results:results",
    "receipt": "swarm.cli.receipt:receipt",
    "verify": "swarm.cli.receipt:verify",
    "ls": "swarm.cli.look:ls",
    "show": "swarm.cli.look:show",
    "why": "swarm.cli.look:why",
    "cancel": "swarm.cli.change:cancel",
    "replay": "swarm.cli.change:replay",
    "status": "swarm.cli.look:status",
    "workers": "swarm.cli.look:workers",
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    epilog="Begin with: swarm login URL, then swarm submit urls.txt --extract title=h1::text",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="task-swarm", message="%(version)s")
def cli() -> None:
    """Scrape with a swarm: submit tasks, watch them, read results."""


def main() -> None:
    """The console script."""
    sys.exit(run(cli, program="swarm"))
