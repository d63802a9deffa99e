"""Work through the URLs of a task, one after another.

The task completes if any URL gave data, and each keeps its own outcome; else it fails with the first one's reason. All
its URLs are of one host, so a block on one ends the rest: the host said stop.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from swarm.content.manifest import UrlOutcome
from swarm.executors.base import Capture, Execution, TaskDeferred, TaskFailed, Tools
from swarm.model import Reason
from swarm.web.blocked import retry_after
from swarm.wire import TaskBody

#: Our own word for an answer that is no error by HTTP, and not what ``ok_status`` asks for either.
UNEXPECTED_STATUS: Final = "unexpected_status"

#: What ``swarm.wire.Sentence`` takes.
MAX_DETAIL_CHARS: Final = 500

Keep = Callable[[Capture], Awaitable[UrlOutcome]]


async def each_url(task: TaskBody, tools: Tools, keep: Keep) -> Execution:
    """Fetch each URL and keep what it gives.

    Args:
        task: whose URLs.
        tools: fetches.
        keep: makes an outcome of an answer, or raises ``TaskFailed``.

    Raises:
        TaskFailed: no URL gave data; it is the first one's failure.
        TaskDeferred: not now, and nothing was got yet.
    """
    outcomes: list[UrlOutcome] = []
    first: TaskFailed | None = None
    blocked: TaskFailed | None = None
    for url in task.urls:
        if blocked is not None:
            outcomes.append(UrlOutcome(url=url, reason=Reason.BLOCKED, detail="not asked for: the host said stop"))
            continue
        capture: Capture | None = None
        try:
            capture = await tools.fetch(url)
            outcomes.append(await keep(capture))
        except TaskFailed as failure:
            first = first or failure
            blocked = failure if failure.reason == Reason.BLOCKED else None
            outcomes.append(_failed(url, capture, failure.reason, failure.detail))
        except TaskDeferred as deferral:
            if not any(outcome.reason is None for outcome in outcomes):
                raise
            outcomes.append(_failed(url, capture, Reason.ROBOTS, deferral.detail))
    if first is not None and all(outcome.reason is not None for outcome in outcomes):
        raise first
    return Execution(outcomes=tuple(outcomes))


def check_status(capture: Capture, ok_status: Collection[int]) -> None:
    """Refuse an answer whose status isn't data.

    Raises:
        TaskFailed: ``blocked`` for 403, ``http_408``, ``http_5xx``, ``http_4xx``, else ``unexpected_status``; with the
            site's ``Retry-After``.
    """
    status = capture.status
    if status in ok_status:
        return
    reason: str = UNEXPECTED_STATUS
    if status == 403:
        reason = Reason.BLOCKED
    elif status == 408:
        reason = Reason.HTTP_408
    elif status >= 500:
        reason = Reason.HTTP_5XX
    elif status >= 400:
        reason = Reason.HTTP_4XX
    wait_s = retry_after(capture.headers, now=time.time())
    raise TaskFailed(reason, f"{capture.final_url[:300]} answered {status}", retryable=False, retry_after_s=wait_s)


def outcome_of(capture: Capture, **found: object) -> UrlOutcome:
    """An outcome with the facts of an answer, and what was found in it."""
    facts = {
        "url": capture.url,
        "final_url": capture.final_url,
        "status": capture.status,
        "headers": capture.headers,
        "took_s": round(capture.took_s, 3),
    }
    return UrlOutcome(**(facts | found))  # type: ignore[arg-type]


def _failed(url: str, capture: Capture | None, reason: str, detail: str) -> UrlOutcome:
    detail = detail[:MAX_DETAIL_CHARS]
    if capture is None:
        return UrlOutcome(url=url, reason=reason, detail=detail)
    return outcome_of(capture, reason=reason, detail=detail)
