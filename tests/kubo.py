"""A real Kubo daemon for tests: private to one directory, loopback only, nothing dialled (facts/ipfs.md, 1).

A missing binary is an error, never a skipped test.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs
import httpx

from tests.patience import PATIENCE_S
from tests.tied import tied

GO_MOD: Final = Path(__file__).parent.parent / "scripts" / "kubo" / "go.mod"

CONFIGURATION: Final = (
    ("Addresses.Gateway", "[]"),
    ("Plugins.Plugins", '{"telemetry":{"Disabled":true,"Config":{"Mode":"off"}}}'),
    ("Version.SwarmCheckEnabled", "false"),
    ("HTTPRetrieval.Enabled", "false"),
    ("Pubsub.Enabled", "true"),
    ("Internal.Bitswap", '{"ProviderSearchDelay":"10ms"}'),
)


def find_kubo() -> Path:
    """The ``ipfs`` binary: $SWARM_KUBO, or what ``scripts/kubo/build`` built."""
    named = os.environ.get("SWARM_KUBO")
    if named:
        binary = Path(named)
    else:
        found = re.search(r"^require github.com/ipfs/kubo v(\S+)$", GO_MOD.read_text(), re.MULTILINE)
        assert found is not None, f"{GO_MOD} names no version of Kubo"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        binary = cache / "task-swarm" / f"kubo-{found.group(1)}" / "ipfs"
    if not os.access(binary, os.X_OK):
        raise FileNotFoundError(f"{binary} isn't there: run scripts/kubo/build, or name the ipfs binary in SWARM_KUBO")
    return binary


@attrs.define
class Kubo:
    """One daemon; ``start`` and ``stop`` may be called again and again. Its blocks stay in ``repository``.

    Args:
        repository: its directory, made by ``make_kubo``.
        secret: a bearer token that its RPC asks for.
    """

    repository: Path
    secret: str | None = None
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def multiaddr(self) -> str:
        """Where its RPC listens."""
        return f"/ip4/127.0.0.1/tcp/{self.port}"

    @property
    def url(self) -> str:
        """The same as a URL."""
        return f"http://127.0.0.1:{self.port}"

    def addresses(self) -> list[str]:
        """Where other peers reach it, each with its peer id."""
        return [str(address) for address in json.loads(self.command("id"))["Addresses"]]

    def command(self, *arguments: str) -> str:
        """Run ``ipfs`` on the repository, while the daemon is down or through it."""
        done = subprocess.run(
            [find_kubo(), *arguments], env=self._environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"ipfs {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def start(self) -> None:
        """Start the daemon and wait until its RPC answers."""
        address = self.repository / "api"
        address.unlink(missing_ok=True)  # a killed daemon leaves a stale one
        with (self.repository / "log").open("ab") as log:
            self.process = subprocess.Popen(
                tied([find_kubo(), "daemon", "--migrate=false"]),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers(address):
            log_text = (self.repository / "log").read_text()
            assert self.process.poll() is None, f"the daemon ended: {log_text}"
            assert time.monotonic() < deadline, f"the daemon doesn't answer: {log_text}"
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the daemon, if it runs."""
        if self.process is None:
            return
        process, self.process = self.process, None
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _answers(self, address: Path) -> bool:
        try:
            self.port = int(address.read_text().rsplit("/", 1)[1])
            headers = {} if self.secret is None else {"Authorization": f"Bearer {self.secret}"}
            return httpx.post(f"{self.url}/api/v0/id", headers=headers).is_success
        except (OSError, IndexError, ValueError, httpx.TransportError):  # not written yet, or not listening yet
            return False

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.repository),
            "IPFS_PATH": str(self.repository),
            "IPFS_TELEMETRY": "off",
        }


def make_kubo(repository: Path, *, routing: str = "none", configuration: Mapping[str, str] | None = None) -> Kubo:
    """Make a repository; the daemon isn't started.

    Args:
        repository: a directory that isn't there yet, or is empty.
        routing: Kubo's ``Routing.Type``: "none", or "dhtserver" to take part in a DHT of private addresses.
        configuration: more settings, as JSON.
    """
    kubo = Kubo(repository)
    kubo.command("init", "--profile=test,unixfs-v1-2025")
    settings = {
        **dict(CONFIGURATION),
        "Routing": f'{{"Type":"{routing}","LoopbackAddressesOnLanDHT":true,"DelegatedRouters":[]}}',
        **(configuration or {}),
    }
    for name, value in settings.items():
        kubo.command("config", "--json", name, value)
    return kubo


@contextlib.contextmanager
def running_kubo(
    repository: Path,
    *,
    routing: str = "none",
    configuration: Mapping[str, str] | None = None,
    secret: str | None = None,
) -> Iterator[Kubo]:
    """A daemon for the time of the block; see ``make_kubo`` and ``Kubo``."""
    kubo = make_kubo(repository, routing=routing, configuration=configuration)
    kubo.secret = secret
    try:
        kubo.start()
        yield kubo
    finally:
        kubo.stop()
