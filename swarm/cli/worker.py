"""``swarm-worker LINK``: join a swarm and work, until told to stop.

``--help`` imports neither trio nor any crypto; what a worker needs is imported when it starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from swarm import __version__
from swarm.errors import DirectoryLocked, DoorRefused, SwarmError, UnreachableError
from swarm.model import RefusalCode
from swarm.settings import Declared, declared, load
from swarm.worker.settings import ROOT_PREFIX, WorkerSettings

DRAINED: Final = 0
USAGE: Final = 2
NO_DOOR: Final = 3
VERSION: Final = 4
REVOKED: Final = 5
LOCKED: Final = 6

#: What else this program does; ``swarm.cli.worker_money`` has them.
MONEY_COMMANDS: Final = ("wallet", "redeem", "release")

EXAMPLES: Final = """\b
Examples:
  swarm-worker 'https://root.example/join#INVITE.KEYID'
  swarm-worker LINK --slots 2 --max-disk 2GB --contact mailto:me@example.org
  swarm-worker LINK --payout 0x71C7656EC7ab88b098defB751B7401B5f6d8976F
  swarm-worker LINK --data ~/second-worker        another one on this machine
  swarm-worker LINK --p2p off                     HTTPS to the door alone
  swarm-worker wallet                             what this worker has and is owed
  swarm-worker redeem                             have its vouchers paid out, without the root
  swarm-worker release                            give back what is locked for it, before it leaves for good

\b
Exit codes:
  0  drained: everything was finished or given back
  2  a wrong option or setting, or the swarm doesn't admit this worker
  3  no door answered (wallet, redeem: no node of the chain)
  4  the swarm doesn't take this version
  5  the worker's key was revoked
  6  another process uses the data directory
"""


def _option(one: Declared) -> Callable[[Any], Any]:
    shown = one.unit if one.default is None else _shown(one)
    default = f"  [default: {shown}; {one.variable}]" if shown else f"  [{one.variable}]"
    return click.option(
        f"--{one.option}",
        one.field,
        metavar="|".join(one.choices) if one.choices else one.option.rpartition("-")[2].upper(),
        multiple=one.many,
        hidden=one.hidden,
        help=one.help + default,
    )


def _shown(one: Declared) -> str:
    if one.default == ():
        return ""
    if isinstance(one.default, bool):
        return "on" if one.default else "off"
    if one.unit == "bytes":
        return f"{one.default / 1000**3:g}GB" if one.default >= 1000**3 else f"{one.default / 1024**2:g}MiB"
    return f"{one.default:g} {one.unit}" if isinstance(one.default, (int, float)) else str(one.default)


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    for one in reversed(declared(WorkerSettings)):
        command = _option(one)(command)
    return command


@click.command(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("link", metavar="LINK")
@_with_settings
@click.version_option(__version__, prog_name="swarm-worker")
def worker(link: str, **given: Any) -> None:
    """Join the swarm behind LINK and run its tasks.

    LINK is the join link that the swarm's operator gave you: one URL, nothing else to configure.
    """
    settings = load(WorkerSettings, given, os.environ, other_prefixes=(ROOT_PREFIX,))
    from swarm.logs import configure
    from swarm.worker.start import start

    configure(level=settings.log_level)
    start(settings, link, say=click.echo)


def exit_code(fault: SwarmError) -> int:
    """The exit code that says what went wrong."""
    if isinstance(fault, DirectoryLocked):
        return LOCKED
    if isinstance(fault, UnreachableError):
        return NO_DOOR
    if isinstance(fault, DoorRefused):
        codes = {RefusalCode.VERSION_UNSUPPORTED: VERSION, RefusalCode.KEY_REVOKED: REVOKED}
        return codes.get(RefusalCode(fault.code), USAGE) if fault.code in set(RefusalCode) else USAGE
    return USAGE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (that of the process, unless told); returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command, name = worker, "swarm-worker"
    if given and given[0] in MONEY_COMMANDS:  # a link is a URL: no command is called like one
        from swarm.cli import worker_money

        command, name = getattr(worker_money, given[0]), f"swarm-worker {given[0]}"
        given = given[1:]
    try:
        command.main(args=given, prog_name=name, standalone_mode=False)
    except click.ClickException as wrong:
        message = wrong.format_message().rstrip(".")
        click.echo(f"error: {message[:1].lower()}{message[1:]}", err=True)
        click.echo(f"       {name} --help lists what there is", err=True)
        return USAGE
    except click.exceptions.Abort:
        return DRAINED
    except SwarmError as fault:
        click.echo(f"error: {fault}", err=True)
        if fault.hint:
            click.echo(f"       {fault.hint}", err=True)
        return exit_code(fault)
    return DRAINED


if __name__ == "__main__":
    sys.exit(main())
