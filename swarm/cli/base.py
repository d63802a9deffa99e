"""What the commands of ``swarm`` have in common: lazy loading, examples in the help, errors that help, exit codes.

A command's module is imported when the command is asked for, and imports what is slow (httpx, rich) when it runs: help
and usage errors stay quick. This module knows no command.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from swarm.errors import ConfigurationError, DoorRefused, MalformedInput, SwarmError, UnreachableError
from swarm.model import RefusalCode

if TYPE_CHECKING:
    from swarm.client import Client

__all__ = [
    "Command",
    "LazyGroup",
    "as_json",
    "complain",
    "connect",
    "explained",
    "job_argument",
    "latest_job",
    "named_job",
    "named_task",
    "run",
]

#: The door said no, or some of what was asked for can't be had.
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_DOOR: Final = 3
#: The key isn't known, or was revoked.
EXIT_KEY: Final = 5
#: 128 + SIGINT, as shells have it.
EXIT_INTERRUPTED: Final = 130

KEY_REFUSALS: Final = frozenset({"unauthorized", "key_revoked"})

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Command(click.Command):
    """A command with examples at the end of its help."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples: what one wants, then what one types."""
        if self.examples:
            with formatter.section("Examples"):
                for wanted, typed in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}# {wanted}\n")
                    formatter.write(f"{'':{formatter.current_indent}}{typed}\n")


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for.

    Args:
        lazy: command name → ``module:attribute``, in the order of the help.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, none of which is imported."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in self.lazy:
            return None
        module, attribute = self.lazy[cmd_name].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 -- our own table, not input
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the nearest ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as fault:
            raise click.NoSuchCommand(fault.command_name, possibilities=self.lazy, ctx=ctx) from None


def run(command: click.Command, arguments: Sequence[str] | None = None, *, program: str) -> int:
    """Run a command line; print what went wrong as one line of what and one of what to do.

    Returns:
        The exit code.
    """
    try:
        code = command.main(
            args=None if arguments is None else list(arguments), prog_name=program, standalone_mode=False
        )
        sys.stdout.flush()
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as fault:
        click.echo(fault.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as fault:
        context = getattr(fault, "ctx", None)
        path = context.command_path if context else program
        complain(_lower_first(fault.format_message()), f"{path} --help shows examples")
        return EXIT_USAGE
    except BrokenPipeError:
        # Whoever read us has gone (``| head``); nothing more can be said there, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_REFUSED
    except OSError as fault:
        if fault.filename is None:
            raise
        complain(f"{fault.filename}: {fault.strerror}")
        return EXIT_USAGE
    except SwarmError as fault:
        complain(str(fault), fault.hint or _hint(fault))
        return _exit_code(fault)
    return code if isinstance(code, int) else 0


def complain(what: str, hint: str | None = None) -> None:
    """Say on stderr what went wrong, and below it what to do."""
    click.echo(f"error: {what}", err=True)
    for line in (hint or "").splitlines():
        click.echo(f"       {line}", err=True)


def _lower_first(sentence: str) -> str:
    sentence = sentence.rstrip(".")
    return sentence[:1].lower() + sentence[1:]


def _hint(fault: SwarmError) -> str | None:
    if isinstance(fault, DoorRefused):
        if fault.code in KEY_REFUSALS:
            return "ask the operator for a key, then: swarm login URL"
        if fault.retry_after_s:
            return f"try again in {fault.retry_after_s:.0f} s"
        if fault.code == RefusalCode.NOT_FOUND:
            return "swarm ls lists your jobs, swarm ls JOB the tasks of one"
        return f"the door's code for this is {fault.code}"
    return None


def _exit_code(fault: SwarmError) -> int:
    if isinstance(fault, UnreachableError):
        return EXIT_NO_DOOR
    if isinstance(fault, DoorRefused) and fault.code in KEY_REFUSALS:
        return EXIT_KEY
    if isinstance(fault, (ConfigurationError, MalformedInput)):
        return EXIT_USAGE
    return EXIT_REFUSED


# ── what commands share ───────────────────────────────────────────────────────────────────────────────────────────


def connect() -> Client:
    """A client for the door and key of the profile or the environment.

    Raises:
        ConfigurationError: nobody has logged in.
    """
    from swarm.cli.profile import read_profile
    from swarm.client import Client

    profile = read_profile(os.environ)
    return Client(profile.url, profile.key)


def latest_job(client: Client, job: str | None) -> str:
    """The job that was named, or else one's latest.

    Raises:
        ConfigurationError: there is none yet.
    """
    if job is not None:
        return job
    for view in client.jobs():
        return view.id
    raise ConfigurationError("there is no job yet", hint="swarm submit URL makes one")


@contextlib.contextmanager
def explained(look: Callable[[DoorRefused], SwarmError]) -> Iterator[None]:
    """Where what is asked for isn't there, look once more, and tell what was found instead.

    Args:
        look: asks the door for something else, and makes the error of it; where that isn't there either, the first
            refusal is told.
    """
    try:
        yield
    except DoorRefused as fault:
        if fault.code != RefusalCode.NOT_FOUND:
            raise
        try:
            told = look(fault)
        except DoorRefused:
            raise fault from None
        raise told from fault


def named_job(client: Client, id_: str) -> contextlib.AbstractContextManager[None]:
    """Look at a job by its id; say so where it is a task's."""

    def look(_: DoorRefused) -> SwarmError:
        return SwarmError(f"{id_} is a task, of the job {client.task(id_).job}", hint=f"swarm show {id_} shows it")

    return explained(look)


def named_task(client: Client, id_: str) -> contextlib.AbstractContextManager[None]:
    """Look at a task by its id; say so where it is a job's."""

    def look(_: DoorRefused) -> SwarmError:
        client.job(id_)
        return SwarmError(f"{id_} is a job; name one of its tasks", hint=f"swarm ls {id_} lists them")

    return explained(look)


job_argument = click.argument("job", required=False)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
