"""``swarm-root migrate``: the ledger's tables brought up to this version, checked, copied to a file and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rendezvous.command import find, options, settings_of
from swarm.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from rendezvous.settings import RootSettings

__all__ = ["migrate"]

#: What ``migrate --check`` exits with where tables are to be changed.
EXIT_BEHIND: Final = 1


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  # bring the tables up to this version; run does it too
  swarm-root migrate
  # say what that would do, and exit with 1 where it would do something
  swarm-root migrate --check --ledger postgresql://db.example/swarm
  # copy the ledger to a file while roots run
  swarm-root migrate backup /backups/ledger-1
  # … and back, with all roots stopped
  swarm-root migrate restore /backups/ledger-1
""",
)
@click.option("--check", is_flag=True, help="change nothing; exit with 1 where tables are to be changed")
@options("data", "ledger")
@click.pass_context
def migrate(context: click.Context, /, check: bool, **given: Any) -> None:
    """Bring the ledger's tables up to this version, or copy the ledger to a file and back.

    The options --data and --ledger come before backup or restore, too.
    """
    settings = settings_of(given)
    context.obj = settings
    if context.invoked_subcommand is not None:
        if check:
            raise ConfigurationError("--check goes with no backup and no restore", hint="leave one of them out")
        return
    from rendezvous.ledger.migrate import look
    from rendezvous.ledger.migrate import migrate as bring_up

    with _engine(settings) as (engine, where):
        found = look(engine) if check else bring_up(engine)
    if not found.missing:
        click.echo(f"the ledger at {where} is this version's (tables {found.present})")
        return
    was = "has no tables yet" if found.present is None else f"has tables {found.present}"
    if check:
        click.echo(f"the ledger at {where} {was}; this version would apply {', '.join(found.missing)}")
        context.exit(EXIT_BEHIND)
    click.echo(f"the ledger at {where} {was.replace('has', 'had', 1)}; applied {', '.join(found.missing)}")


@migrate.command(
    epilog="""\b
Examples:
  swarm-root migrate backup /backups/ledger-1
  swarm-root migrate --ledger postgresql://db.example/swarm backup /backups/ledger-1
"""
)
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def backup(settings: RootSettings, file: Path) -> None:
    """Copy the ledger to FILE, as it is at one moment; roots may be running.

    PostgreSQL's pg_dump does it where the ledger is there. Keep swarm.key and the blocks as well: a ledger without them
    names results that nobody has.
    """
    from rendezvous.ledger.backup import back_up

    with _engine(settings) as (engine, where):
        size_bytes = back_up(engine, file)
    click.echo(f"copied the ledger at {where} to {file}, {size_bytes} bytes")


@migrate.command(
    epilog="""\b
Examples:
  swarm-root migrate restore /backups/ledger-1
  swarm-root migrate --ledger postgresql://db.example/swarm restore /backups/ledger-1
"""
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.pass_obj
def restore(settings: RootSettings, file: Path) -> None:
    """Replace the ledger by the copy in FILE. All roots must be stopped; what came after the copy is forgotten.

    Tasks that were completed since are done again. In a swarm that pays, the chain is looked at before anything is
    paid twice.
    """
    from rendezvous.ledger.backup import restore as put_back
    from swarm.identity import lock_directory

    with _engine(settings, existing=False) as (engine, where):
        alone = lock_directory(settings.data) if engine.dialect.name == "sqlite" else contextlib.nullcontext()
        with alone:
            put_back(engine, file)
    click.echo(f"the ledger at {where} is the copy in {file}")


@contextlib.contextmanager
def _engine(settings: RootSettings, *, existing: bool = True) -> Iterator[tuple[Engine, str]]:
    """The ledger's database, and its name; one that must exist isn't made by looking for it."""
    from rendezvous.ledger.engine import open_engine
    from rendezvous.ledger.faults import name_of

    engine = open_engine(settings.ledger or find(settings).ledger_url)
    try:
        if existing and engine.dialect.name == "sqlite" and not Path(engine.url.database or "").exists():
            raise ConfigurationError(
                f"there is no ledger at {name_of(engine.url)}", hint="name it with --ledger or --data"
            )
        yield engine, name_of(engine.url)
    finally:
        engine.dispose()
