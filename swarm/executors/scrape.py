"""``scrape``: fetch pages, and extract records by selectors.

The page is stored beside its records, so that another parser can be run on it later without fetching. What the
selectors are is ``swarm.content.parse``'s business.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from swarm.content.manifest import UrlOutcome
from swarm.content.parse import check_selectors
from swarm.errors import MalformedInput
from swarm.executors.base import Capture, Execution, TaskFailed, Tools
from swarm.executors.each_url import check_status, each_url, outcome_of
from swarm.executors.parser import open_parser
from swarm.executors.spec import HttpStatus, Spec, read_spec
from swarm.model import Reason
from swarm.wire import TaskBody

Selector = Annotated[str, Meta(min_length=1, max_length=1_000)]
FieldName = Annotated[str, Meta(min_length=1, max_length=64)]

_DEFAULT_OK_STATUS = frozenset(range(200, 300))


class ScrapeSpec(Spec, frozen=True):
    """``spec`` of a scrape.

    Args:
        extract: the selector of each field (CSS, or XPath where it begins like one).
        each: one record for each element that this selector finds, instead of one for the page.
        ok_status: which statuses are data.
        require: fields that at least one record must have.
    """

    extract: Annotated[dict[FieldName, Selector], Meta(min_length=1, max_length=100)]
    each: Selector | None = None
    ok_status: Annotated[frozenset[HttpStatus], Meta(min_length=1)] = _DEFAULT_OK_STATUS
    require: Annotated[tuple[FieldName, ...], Meta(max_length=100)] = ()


class Scrape:
    """The executor."""

    version = "1"

    @staticmethod
    def read(spec: Mapping[str, Any]) -> ScrapeSpec:
        """Read and check a spec.

        Raises:
            TaskFailed: ``bad_spec``.
        """
        read = read_spec(spec, ScrapeSpec)
        unknown = [name for name in read.require if name not in read.extract]
        if unknown:
            raise TaskFailed(Reason.BAD_SPEC, f"require names {', '.join(unknown)}, which extract doesn't")
        try:
            check_selectors(read.extract, each=read.each)
        except MalformedInput as fault:
            raise TaskFailed(Reason.BAD_SPEC, str(fault)) from fault
        return read

    async def run(self, task: TaskBody, tools: Tools) -> Execution:
        """Fetch the task's URLs, store their bodies and what the selectors find in them."""
        spec = self.read(task.spec)
        async with contextlib.AsyncExitStack() as stack:
            parser = tools.parser
            if parser is None:
                parser = await stack.enter_async_context(open_parser(max_processes=1))
            extract = parser.extract

            async def keep(capture: Capture) -> UrlOutcome:
                check_status(capture, spec.ok_status)
                parsed = await extract(capture, spec.extract, each=spec.each)
                missing = [name for name in spec.require if name not in parsed.found]
                if missing:
                    raise TaskFailed(Reason.SELECTOR_MISSING, f"nothing found for {', '.join(missing)}")
                return outcome_of(
                    capture,
                    body=await tools.store(capture.body),
                    records=await tools.store(parsed.records),
                    record_count=parsed.count,
                )

            return await each_url(task, tools, keep)
