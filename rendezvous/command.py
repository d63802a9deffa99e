"""What the commands of ``swarm-root`` have in common: options from their one declaration, the directory, the ledger.

A command beside a running root writes to the same ledger, one operation at a time. This module knows no command.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from rendezvous.settings import RootSettings
from swarm.errors import ConfigurationError
from swarm.model import Refusal
from swarm.settings import ENVIRONMENT_PREFIX, Declared, declared, duration_s, load

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from rendezvous.directory import RootDirectory
    from rendezvous.ledger.ops import Op

__all__ = ["VARIABLES", "apply", "duration_of", "find", "open_ledger_engine", "options", "settings_of"]

VARIABLES: Final = f"{ENVIRONMENT_PREFIX}ROOT_"


def options(*only: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of a section's settings, from their one declaration."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(declared(RootSettings, prefix=VARIABLES)):
            if not only or one.field in only:
                function = click.option(
                    f"--{one.option}",
                    one.field,
                    multiple=one.many,
                    metavar="|".join(one.choices) if one.choices else (one.unit or "TEXT").upper(),
                    help=_help(one),
                    hidden=one.hidden,
                )(function)
        return function

    return decorate


def _help(one: Declared) -> str:
    default = one.default
    shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
    if hasattr(default, "url"):
        shown = f"{default.host}:{default.port}"
    told = "" if shown in (None, ()) else f"; default {shown}"
    return f"{one.help} [{one.variable}{told}]"


def settings_of(given: Mapping[str, Any]) -> RootSettings:
    """The settings of a command line and the environment."""
    return load(RootSettings, given, os.environ, prefix=VARIABLES)


def duration_of(given: str, option: str) -> float:
    """A duration that was given with an option, seconds."""
    try:
        return duration_s(given)
    except ValueError as fault:
        raise ConfigurationError(f"{option}: {given!r} isn't {fault}") from None


def find(settings: RootSettings) -> RootDirectory:
    """The data directory, which was made before; it isn't locked."""
    from rendezvous.directory import find_directory

    return find_directory(settings.data)


@contextlib.contextmanager
def open_ledger_engine(settings: RootSettings) -> Iterator[Engine]:
    """The ledger's database; a running root may have it open too."""
    from rendezvous.ledger.engine import open_engine
    from rendezvous.ledger.migrate import migrate

    engine = open_engine(settings.ledger or find(settings).ledger_url)
    try:
        migrate(engine)
        yield engine
    finally:
        engine.dispose()


def apply(settings: RootSettings, *ops: Op) -> Any:
    """Do operations in one transaction, as a writer beside the root's own; answers the last one's answer.

    Raises:
        ConfigurationError: one was refused.
    """
    import time

    from rendezvous.ledger.transitions import LedgerCore

    with open_ledger_engine(settings) as engine:
        core = LedgerCore(engine)
        try:
            answers = core.apply(ops, now=time.time()).answers
        finally:
            core.close()
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Refusal):
            raise ConfigurationError(answer.message, hint="nothing was changed")
    return answers[-1]
