"""dramatiq with Redis, on a free port of the loopback: the yardstick.

Its defaults: two processes of eight threads. It has no way to send many messages at once, so that batched and unbatched
submissions are one and the same for it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker
from figures import Figures, cpu_s

from tests.acceptance.harness import Running, Scene, until
from tests.free_port import free_port

#: With Python's lock, more threads send no faster.
SENDERS = 2
WARM_UP = 200
DRAIN_S = 120.0
PERSISTENCE = {"aof": ("--appendonly", "yes", "--appendfsync", "always"), "none": ("--appendonly", "no")}


class Dramatiq:
    """One Redis; workers are started for each measurement, since they tell their latencies when they end."""

    def __init__(self, scene: Scene, name: str, port: int, server: Running) -> None:
        self._scene = scene
        self._name = name
        self._server = server
        self._url = f"redis://127.0.0.1:{port}"
        self._redis = redis.Redis(port=port)
        self._broker = RedisBroker(url=self._url)
        self._runs = 0

    def _send(self, count: int) -> None:
        self._broker.declare_queue("default")
        for _ in range(count):
            self._broker.enqueue(
                Message(queue_name="default", actor_name="noop", args=(time.time(),), kwargs={}, options={})
            )

    def _drained(self) -> bool:
        return self._redis.hlen("dramatiq:default.msgs") == 0

    def measure(self, tasks: int) -> Figures:
        """Send no-ops and wait until the last is done.

        Args:
            tasks: how many.
        """
        self._runs += 1
        spool = Path(self._scene.directory, f"{self._name}-{self._runs}")
        spool.mkdir()
        workers = self._scene.start(
            f"{self._name}-{self._runs}-workers",
            [sys.executable, "-m", "dramatiq", "noop_actor", "--path", str(Path(__file__).parent)],
            env={"BENCH_REDIS": self._url, "BENCH_LATENCIES": str(spool)},
        )
        self._send(WARM_UP)
        until(self._drained, "dramatiq's workers to be warm", within_s=DRAIN_S, guard=[workers])
        before = {"redis": cpu_s(self._server.pid), "workers": cpu_s(workers.pid), "driver": time.process_time()}
        started_at = time.time()
        senders = [threading.Thread(target=self._send, args=(tasks // SENDERS,)) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        until(self._drained, "dramatiq to be done", within_s=DRAIN_S, guard=[workers])
        took_s = time.time() - started_at
        after = {"redis": cpu_s(self._server.pid), "workers": cpu_s(workers.pid), "driver": time.process_time()}
        workers.stop()
        seen = [line.split() for path in spool.iterdir() for line in path.read_text().splitlines()]
        latencies_s = [float(took) for sent_at, took in seen if float(sent_at) >= started_at]
        done = tasks // SENDERS * SENDERS
        if len(latencies_s) != done:
            raise RuntimeError(f"dramatiq ran {len(latencies_s)} of {done} messages")
        return Figures(
            tasks=done,
            took_s=took_s,
            latencies_s=latencies_s,
            cpu_us={part: (after[part] - before[part]) / done * 1e6 for part in before},
        )


@contextlib.contextmanager
def open_dramatiq(scene: Scene, persistence: str) -> Iterator[Dramatiq]:
    """Start a Redis of its own.

    Args:
        scene: ends it.
        persistence: ``aof`` (every write is on disk before it is answered, as in our ledger) or ``none``.
    """
    port = free_port()
    directory = scene.directory / f"redis-{persistence}"
    directory.mkdir()
    server = scene.start(
        f"redis-{persistence}",
        [
            *("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""),
            *PERSISTENCE[persistence],
        ],
    )
    client = redis.Redis(port=port)

    def answers() -> bool:
        with contextlib.suppress(redis.ConnectionError):
            return bool(client.ping())
        return False

    until(answers, "Redis to answer", guard=[server])
    yield Dramatiq(scene, f"dramatiq-{persistence}", port, server)
