"""A real PostgreSQL for tests: a private cluster in one directory, loopback and a socket of its own, ended by its pid.

A missing server is an error, never a skipped test. PostgreSQL refuses to run as root: then it runs as its own user.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import psycopg

from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.migrate import migrate
from tests.free_port import free_port
from tests.patience import PATIENCE_S
from tests.tied import directory_of_this_run, tied

BINARIES: Final = Path("/usr/lib/postgresql")
TEMPLATE: Final = "ledger_template"


def find_binary(name: str) -> Path:
    """A program of PostgreSQL, of the newest version that is installed."""
    on_path = shutil.which(name)
    found = sorted(BINARIES.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1]
    if on_path:
        return Path(on_path)
    raise FileNotFoundError(f"PostgreSQL's {name} isn't installed: apt-get install postgresql")


def _as_its_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@attrs.define
class Postgres:
    """One cluster; ``start``, ``stop`` and ``kill`` may be called again and again. Its data stay in ``directory``."""

    directory: Path
    durable: bool
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = attrs.Factory(lambda: itertools.count(1))

    def url(self, database: str = "postgres") -> str:
        """Where a database is, over loopback."""
        return f"postgresql://root@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.port = self.port or free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            "shared_buffers": "32MB",
            "max_connections": "200",
            "fsync": "on" if self.durable else "off",
            "full_page_writes": "on" if self.durable else "off",
            "max_wal_size": "512MB",
            "autovacuum_naptime": "10s",
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                tied([find_binary("postgres"), "-D", self.directory / "data", *given], sent=signal.SIGQUIT),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **_as_its_user(),
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
                return
            except psycopg.OperationalError as fault:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.directory / "log").read_text()[-2000:]) from fault
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT cuts sessions and saves, SIGQUIT is its kind of crash."""
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(how)
        process.wait(PATIENCE_S)

    def crash(self) -> None:
        """End it at once, without a checkpoint: what was committed is in its log alone."""
        self.stop(signal.SIGQUIT)

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run a statement outside of a transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """The URL of a fresh database with an empty ledger."""
        if TEMPLATE not in [name for (name,) in self.execute("SELECT datname FROM pg_database")]:
            self.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0 ENCODING 'UTF8'")
            engine = open_engine(self.url(TEMPLATE))
            migrate(engine)
            engine.dispose()
        name = f"ledger_{next(self._numbers)}_{secrets.token_hex(4)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return self.url(name)

    @contextlib.contextmanager
    def frozen(self, url: str) -> Iterator[None]:
        """The sessions of a database keep their connections and answer nothing while the block is open.

        The server's first process answers: it ends them all should this run be killed meanwhile.
        """
        sessions = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname"
        pids = [pid for (pid,) in self.execute(f"{sessions} = '{url.rsplit('/', 1)[1]}'")]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def drop(self, url: str) -> None:
        """Drop a database, whoever still has it open."""
        self.execute(f"DROP DATABASE IF EXISTS {url.rsplit('/', 1)[1]} WITH (FORCE)")


@contextlib.contextmanager
def postgres_cluster(*, durable: bool) -> Iterator[Postgres]:
    """A running cluster.

    Args:
        durable: whether it waits for the disk; nothing that a test can see without cutting the power hangs on it.
    """
    directory = directory_of_this_run("swarm-pg")  # its user may not enter pytest's, and a socket's path is short
    try:
        as_user = _as_its_user()
        if as_user:
            os.chown(directory, as_user["user"], as_user["group"])
        subprocess.run(
            [
                *(find_binary("initdb"), "-D", directory / "data", "-U", "root", "-A", "trust", "--no-sync"),
                *("-E", "UTF8", "--locale", "C.UTF-8"),
            ],
            check=True,
            capture_output=True,
            cwd="/",
            **as_user,
        )
        cluster = Postgres(directory, durable)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop(signal.SIGINT)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
