"""``noop``: do nothing, as long, as big and as badly as asked. For measuring a swarm; it touches no network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import trio
from msgspec import Meta

from swarm.content.manifest import UrlOutcome
from swarm.executors.base import Execution, TaskFailed, Tools
from swarm.executors.spec import Spec, read_spec
from swarm.wire import ReasonText, TaskBody


class NoopSpec(Spec, frozen=True):
    """``spec`` of a noop.

    Args:
        sleep_s: how long it takes, seconds.
        fail: the reason to fail with.
        size: how much it stores for each URL, bytes; the same for the same task and URL, else different.
    """

    sleep_s: Annotated[float, Meta(ge=0, le=3_600)] = 0.0
    fail: ReasonText | None = None
    size: Annotated[int, Meta(ge=0, le=64 * 1024 * 1024)] | None = None


class Noop:
    """The executor."""

    version = "1"

    @staticmethod
    def read(spec: Mapping[str, Any]) -> NoopSpec:
        """Read a spec.

        Raises:
            TaskFailed: ``bad_spec``.
        """
        return read_spec(spec, NoopSpec)

    async def run(self, task: TaskBody, tools: Tools) -> Execution:
        """Wait, then fail or store as asked."""
        spec = self.read(task.spec)
        await trio.sleep(spec.sleep_s)
        if spec.fail is not None:
            raise TaskFailed(spec.fail, "as asked")
        outcomes = []
        for url in task.urls:
            body = None
            if spec.size is not None:
                body = await tools.store(hashlib.shake_128(f"{task.id} {url}".encode()).digest(spec.size))
            outcomes.append(UrlOutcome(url=url, body=body))
        return Execution(outcomes=tuple(outcomes))
