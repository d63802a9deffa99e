"""What an executor is: it turns a granted task into outcomes, one per URL. It knows nothing of leases or doors.

An executor gets ``Tools`` for all that touches the world: an HTTP client that is already guarded, the rules of
robots.txt, and a place to store contents. It is cancelled from outside when its lease is lost or time is up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs

from swarm.content.manifest import ContentRef, UrlOutcome
from swarm.executors.parser import Parser
from swarm.web.capture import Capture, TaskDeferred, TaskFailed
from swarm.wire import TaskBody

__all__ = ["Capture", "Execution", "Executor", "TaskDeferred", "TaskFailed", "Tools"]


@attrs.frozen(kw_only=True)
class Tools:
    """What an executor may use.

    Args:
        fetch: get one URL under the guard, robots.txt and the caps; raises ``TaskFailed`` or ``TaskDeferred``.
        store: keep a content as blocks; returns its root CID and length.
        worker: the worker's address, for User-Agent and manifest.
        parser: runs selectors over pages; without one, an executor that needs it opens its own for the task.
    """

    fetch: Callable[[str], Awaitable[Capture]]
    store: Callable[[bytes], Awaitable[ContentRef]]
    worker: str
    parser: Parser | None = None


@attrs.frozen(kw_only=True)
class Execution:
    """What an executor gives back: an outcome per URL, at least one of which gave data."""

    outcomes: tuple[UrlOutcome, ...]


class Executor(Protocol):
    """A kind of task. Registered under the entry point group ``swarm.executors`` by its kind."""

    #: Bumped when the same input may give other records; part of the version tuple.
    version: str

    async def run(self, task: TaskBody, tools: Tools) -> Execution:
        """Run one task.

        Raises:
            TaskFailed: no URL gave data.
            TaskDeferred: not now; the attempt isn't counted.
        """
        ...
