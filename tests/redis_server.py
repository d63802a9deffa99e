"""A real redis-server on a port of the loopback, for tests; it can be killed and comes back with what it had."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.acceptance.harness import until
from tests.free_port import free_port
from tests.patience import PATIENCE_S
from tests.tied import tied


class RedisServer:
    """The server. What was written survives ``kill``: every write is synced.

    Raises:
        RuntimeError: redis-server isn't installed.
    """

    def __init__(self, directory: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("redis-server is missing: apt-get install redis-server")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = Redis(port=self.port)
        self._log = directory / "redis.log"
        self._argv = [
            *(program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory)),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
        ]
        self.start()

    def start(self) -> None:
        """Start it (again), and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(tied(self._argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self._answers, "redis-server to answer")

    def _answers(self) -> bool | None:
        if self._process.poll() is not None:
            raise RuntimeError(f"redis-server ended: {self._log.read_text()}")
        with contextlib.suppress(RedisError):
            return bool(self.client.ping())
        return None

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def freeze(self) -> None:
        """It takes connections and answers nothing, until ``thaw``."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        self.client.close()
        self.thaw()
        self.kill()


@contextlib.contextmanager
def running_redis(directory: Path) -> Iterator[RedisServer]:
    """A server while the block is open."""
    server = RedisServer(directory)
    try:
        yield server
    finally:
        server.close()
