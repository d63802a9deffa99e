"""``fetch``: store what a site answers.

Any HTTP answer is data, a 404 page and a 500 too, unless ``ok_status`` says which are. A block isn't: a 429 or a
challenge page never is, a 403 only where ``ok_status`` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from swarm.content.manifest import UrlOutcome
from swarm.executors.base import Capture, Execution, Tools
from swarm.executors.each_url import check_status, each_url, outcome_of
from swarm.executors.spec import HttpStatus, Spec, read_spec
from swarm.wire import TaskBody

_ANY_BUT_BLOCKED = frozenset(range(100, 600)) - {403}


class FetchSpec(Spec, frozen=True):
    """``spec`` of a fetch: which statuses are data; None: all that aren't a block."""

    ok_status: Annotated[frozenset[HttpStatus], Meta(min_length=1)] | None = None


class Fetch:
    """The executor."""

    version = "1"

    @staticmethod
    def read(spec: Mapping[str, Any]) -> FetchSpec:
        """Read a spec.

        Raises:
            TaskFailed: ``bad_spec``.
        """
        return read_spec(spec, FetchSpec)

    async def run(self, task: TaskBody, tools: Tools) -> Execution:
        """Fetch the task's URLs and store their bodies."""
        spec = self.read(task.spec)
        ok_status = _ANY_BUT_BLOCKED if spec.ok_status is None else spec.ok_status

        async def keep(capture: Capture) -> UrlOutcome:
            check_status(capture, ok_status)
            return outcome_of(capture, body=await tools.store(capture.body))

        return await each_url(task, tools, keep)
