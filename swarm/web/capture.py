"""What comes of asking a site: a ``Capture``, or one of two exceptions that say why there is none.

They are defined here, below the executors, since the guard and the transfer raise them too; executors import them
from ``swarm.executors.base``.
"""

from __future__ import annotations

import attrs


class TaskFailed(Exception):
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


class TaskDeferred(Exception):
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
