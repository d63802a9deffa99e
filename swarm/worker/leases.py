"""The clock that leases run on, and the cancel scope of each execution. An execution belongs to its lease.

The clock is the time since boot with sleep included, so that a laptop that slept doesn't go on with work that was
given to somebody else. This module knows no door; who stops an execution says why.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

import attrs
import trio

from swarm.worker.effects import StopReason


def boottime() -> float:
    """Seconds since the machine was started, sleep included; no setting of the clock changes it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@attrs.define(kw_only=True)
class Execution:
    """One execution under way.

    Args:
        scope: cancelled when the execution is stopped from outside.
        stopped: why it was stopped, None while it wasn't.
    """

    scope: trio.CancelScope
    stopped: StopReason | None = None


class Executions:
    """The executions under way, by fence."""

    def __init__(self) -> None:
        self._running: dict[int, Execution] = {}

    @contextlib.contextmanager
    def scope(self, fence: int, *, limit_s: float = math.inf) -> Iterator[Execution]:
        """A scope that is cancelled when the execution of this fence is stopped, or after ``limit_s``."""
        execution = Execution(scope=trio.CancelScope(deadline=trio.current_time() + limit_s))
        self._running[fence] = execution
        try:
            with execution.scope:
                yield execution
        finally:
            if self._running.get(fence) is execution:  # else a door gave the fence twice, and it is another's by now
                del self._running[fence]

    def stop(self, fence: int, why: StopReason) -> None:
        """Stop an execution, if there is one; no further request leaves."""
        execution = self._running.get(fence)
        if execution is not None:
            execution.stopped = why
            execution.scope.cancel()

    def __len__(self) -> int:
        return len(self._running)
