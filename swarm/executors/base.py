"""What an executor is: it turns a granted task into outcomes, one per URL. It knows nothing of leases or doors.

An executor gets ``Tools`` for all that touches the world: an HTTP client that is already guarded, the rules of
robots.txt, and a place to store contents. It is cancelled from outside when its lease is lost or time is up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs

from swarm.content.manifest import ContentRef, UrlOutcome
from swarm.wire import TaskBody


class TaskFailed(Exception):  # noqa: N818 -- a past-tense fact, as in the event names
    """The whole task failed; no URL gave data.

    Attributes:
        reason: a ``swarm.model.Reason``, or the executor's own word.
        retryable: asked only for an own word.
        retry_after_s: what the site asked for, seconds.
    """

    def __init__(
        self, reason: str, detail: str = "", *, retryable: bool | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail[:500]
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class TaskDeferred(Exception):  # noqa: N818
    """It can't be run now through no fault of the task (robots.txt can't be read yet): give the lease back."""

    def __init__(self, detail: str, *, retry_after_s: float) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s


@attrs.frozen(kw_only=True)
class Capture:
    """One answer of a site, after redirects.

    Args:
        url: as asked.
        final_url: where the redirects ended.
        headers: lower-case names; only ``KEPT_HEADERS``.
        took_s: seconds from the first request to the last byte.
    """

    url: str
    final_url: str
    status: int
    headers: dict[str, str]
    body: bytes
    charset: str | None
    took_s: float


@attrs.frozen(kw_only=True)
class Tools:
    """What an executor may use.

    Args:
        fetch: get one URL under the guard, robots.txt and the caps; raises ``TaskFailed`` or ``TaskDeferred``.
        store: keep a content as blocks; returns its root CID and length.
        worker: the worker's address, for User-Agent and manifest.
    """

    fetch: Callable[[str], Awaitable[Capture]]
    store: Callable[[bytes], Awaitable[ContentRef]]
    worker: str


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
