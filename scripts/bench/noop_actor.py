"""The no-op that dramatiq runs beside the swarm's: ``dramatiq noop_actor`` with BENCH_REDIS and BENCH_LATENCIES set.

Latencies are kept in memory and written when the worker shuts down, so that measuring costs dramatiq next to nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Middleware, default_middleware


class Latencies(Middleware):
    """When each message was sent (Unix seconds), and how long it took until its actor had returned."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def after_process_message(
        self, broker: dramatiq.Broker, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        del broker, result, exception
        (sent_at,) = message.args
        self.seen.append((sent_at, time.time() - sent_at))

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        del broker, worker
        lines = [f"{sent_at} {took_s}" for sent_at, took_s in self.seen]
        Path(os.environ["BENCH_LATENCIES"], f"{os.getpid()}.txt").write_text("\n".join(lines))


dramatiq.set_broker(
    RedisBroker(url=os.environ["BENCH_REDIS"], middleware=[*(make() for make in default_middleware), Latencies()])
)


@dramatiq.actor
def noop(sent_at: float) -> None:
    """Do nothing.

    Args:
        sent_at: Unix time just before it was sent, seconds.
    """
