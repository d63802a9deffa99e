"""A copy of the whole ledger in one file, and the ledger out of such a copy.

A backup is taken while roots run, and is one moment of the ledger: SQLite by its online backup, PostgreSQL by its own
``pg_dump``. A restore replaces all of the ledger or nothing of it, and is for a ledger that nobody uses. What happened
after the backup is forgotten by it, but not by workers: so that no lease and no event number of that time can be taken
for a new one, these numbers go on ``FORGOTTEN`` later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.faults import name_of, said, unavailable
from rendezvous.ledger.migrate import look, migrate
from rendezvous.ledger.postgres import WRITING, lock_key
from rendezvous.ledger.roots import live_roots
from rendezvous.ledger.tables import metadata
from swarm.errors import ConfigurationError, LedgerUnavailable

__all__ = ["back_up", "restore"]

#: More grants, and more events, than a ledger sees between two backups.
FORGOTTEN: Final = 1_000_000_000
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_POSTGRES_MAGIC: Final = b"PGDMP"
#: libpq's variables of what a URL says; a password is seen by nobody there, on a command line by all.
_VARIABLES: Final = {"host": "PGHOST", "port": "PGPORT", "username": "PGUSER", "password": "PGPASSWORD"}
_GO_ON_LATER: Final = f"UPDATE counters SET value = value + {FORGOTTEN} WHERE name IN ('fence', 'event')"  # noqa: S608


def back_up(engine: Engine, file: Path) -> int:
    """Write a copy of the ledger; roots may be running.

    Args:
        engine: the ledger.
        file: where to; it mustn't be there yet.

    Returns:
        How big it is, bytes.

    Raises:
        LedgerUnavailable: the database can't be read.
        ConfigurationError: the file can't be written, or PostgreSQL's programs aren't installed.
    """
    if look(engine).present is None:
        raise ConfigurationError(f"there is no ledger at {name_of(engine.url)}", hint="name it with --ledger or --data")
    if file.exists():
        raise ConfigurationError(f"{file} is there already", hint="name a new file; none is overwritten")
    unfinished = file.with_name(f".{file.name}.part")
    try:
        unfinished.unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            if engine.dialect.name == "sqlite":
                _copy_sqlite(_sqlite_file(engine), unfinished)
            else:
                _run(engine, "pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={unfinished}")
            with unfinished.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as fault:
        raise ConfigurationError(f"{file} can't be written: {fault.strerror}", hint="name another file") from fault
    return file.stat().st_size


def restore(engine: Engine, file: Path) -> None:
    """Replace the ledger by a copy, and bring it up to this version. No root may use it.

    Raises:
        LedgerUnavailable: the database can't be written.
        ConfigurationError: the file is no backup of such a database, a root runs, or a newer version wrote it.
    """
    kind = engine.dialect.name
    found = _kind_of(file)
    if found != kind:
        raise ConfigurationError(
            f"{file} is {'no backup of a ledger' if found is None else f'a backup of {found}'}, "
            f"the ledger at {name_of(engine.url)} is {kind}",
            hint="restore into the kind of database that the backup is of; nothing was changed",
        )
    try:
        if kind == "sqlite":
            _restore_sqlite(engine, file)
        else:
            _restore_postgres(engine, file)
    except OSError as fault:  # such as no room for the copy that is looked through first
        raise ConfigurationError(
            f"{file} can't be restored: {fault.strerror or fault}", hint="the ledger is as it was before"
        ) from fault
    engine.dispose()
    migrate(engine)


def _kind_of(file: Path) -> str | None:
    try:
        with file.open("rb") as backup:
            head = backup.read(len(_SQLITE_MAGIC))
    except OSError as fault:
        raise ConfigurationError(f"{file} can't be read: {fault.strerror}") from fault
    if head == _SQLITE_MAGIC:
        return "sqlite"
    return "postgresql" if head.startswith(_POSTGRES_MAGIC) else None


# ── SQLite ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sqlite_file(engine: Engine) -> Path:
    return Path(engine.url.database or "")


def _copy_sqlite(source: Path, target: Path) -> None:
    """The content of one file into another, in one transaction of each; whoever has them open may go on."""
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as reading,
            contextlib.closing(sqlite3.connect(target)) as writing,
        ):
            reading.backup(writing)
    except sqlite3.Error as fault:
        raise LedgerUnavailable(str(source), str(fault)) from fault


def _restore_sqlite(engine: Engine, file: Path) -> None:
    ledger = _sqlite_file(engine)
    beside, prefix = ledger.absolute().parent, f".{ledger.name}.restore-"
    for left in beside.glob(f"{prefix}*"):  # of a restore that was killed: a whole copy of the ledger
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=beside, prefix=prefix) as directory:
        prepared = Path(directory) / "ledger.sqlite"
        shutil.copyfile(file, prepared)
        prepared.chmod(0o600)
        copy = open_engine(str(prepared))
        try:
            if look(copy).present is None:
                raise ConfigurationError(f"{file} is no backup of a ledger", hint="nothing was changed")
            with copy.begin() as connection:
                whole = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
                if whole != "ok":
                    raise ConfigurationError(f"{file} is damaged: {whole}", hint="nothing was changed")
                connection.exec_driver_sql(_GO_ON_LATER)
        except (SQLAlchemyError, LedgerUnavailable) as fault:
            why = said(fault) if isinstance(fault, SQLAlchemyError) else fault.reason
            raise ConfigurationError(f"{file} is damaged: {why}", hint="nothing was changed") from fault
        finally:
            copy.dispose()
        os.close(os.open(ledger, os.O_WRONLY | os.O_CREAT, 0o600))
        _copy_sqlite(prepared, ledger)


# ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────────────────────


def _restore_postgres(engine: Engine, file: Path) -> None:
    if look(engine).present is not None:
        try:
            with engine.connect() as connection:
                running = live_roots(connection)
        except SQLAlchemyError as fault:
            raise unavailable(engine, fault) from fault
        if running:
            raise ConfigurationError(
                f"the root at {running[0].door} runs on the ledger at {name_of(engine.url)}",
                hint="stop all roots first; one that was killed is forgotten after 10 s",
            )
    tables = ", ".join(["alembic_version", *metadata.tables])
    before = f"SELECT pg_advisory_xact_lock({lock_key(WRITING)}); DROP TABLE IF EXISTS {tables} CASCADE"
    after = ("RESET search_path", _GO_ON_LATER, "UPDATE last_writer SET holder = 0", "DELETE FROM roots")
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "ledger.sql"
        # whole, before anything is dropped: a damaged file ends here
        _read_backup(file, script)
        # psql's one transaction: the ledger is the old one or the restored one, whatever happens
        arguments = ["--no-psqlrc", "--quiet", "--output=/dev/null", "--set=ON_ERROR_STOP=1", "--single-transaction"]
        arguments += ["--command", before, "--file", str(script)]
        arguments += [part for statement in after for part in ("--command", statement)]
        _run(engine, "psql", *arguments)


def _read_backup(file: Path, script: Path) -> None:
    """Make SQL of a dump."""
    done = subprocess.run(
        [_program("pg_restore"), "--no-owner", "--no-privileges", "--exit-on-error", f"--file={script}", file],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise ConfigurationError(f"{file} can't be read: {_first_lines(done.stderr)}", hint="nothing was changed")


def _first_lines(text: str) -> str:
    return "; ".join([line.strip() for line in text.splitlines() if line.strip()][:3])


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ConfigurationError(
            f"PostgreSQL's {name} isn't installed here",
            hint="apt-get install postgresql-client, in the server's version or a newer one",
        )
    return found


def _run(engine: Engine, program: str, *arguments: str) -> None:
    """Run a program of PostgreSQL on the ledger's database.

    Raises:
        ConfigurationError: it isn't installed.
        LedgerUnavailable: it failed.
    """
    url = engine.url
    environment = {**os.environ, "PGAPPNAME": "swarm-root", "PGCONNECT_TIMEOUT": "10"}
    for attribute, variable in _VARIABLES.items():
        value = getattr(url, attribute)
        if value is not None:
            environment[variable] = str(value)
    for name, value in url.query.items():
        environment[f"PG{name.upper()}"] = value if isinstance(value, str) else value[0]
    if url.database:
        environment["PGDATABASE"] = url.database
    done = subprocess.run(
        [_program(program), "--no-password", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise LedgerUnavailable(name_of(url), _first_lines(done.stderr) or f"{program} ended with {done.returncode}")
