"""A worker in a program of your own.

::

    from swarm.worker import Worker

    async def crawl(task, tools):
        page = await tools.fetch(task.urls[0])
        return [{"url": page.final_url, "bytes": len(page.body)}]

    Worker("https://root.example/join#INVITE.KEYID", crawl=crawl).run()

Each keyword is a kind of task and the function that runs it. What it returns, an ``Execution`` or records, is stored,
uploaded and reported as the built-in kinds are, under the same leases, caps and robots.txt.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import trio

from swarm.content.manifest import UrlOutcome
from swarm.errors import ConfigurationError
from swarm.executors.base import Execution, Executor, Tools
from swarm.logs import configure_unless_done
from swarm.wire import TaskBody
from swarm.worker.settings import WorkerSettings
from swarm.worker.start import start

Function = Callable[[TaskBody, Tools], Any]


class FunctionExecutor:
    """An executor that is one function.

    Args:
        function: takes the task and the tools; async, or sync (then it runs in a thread and can't use the tools; an
            awaitable that it returns is awaited). It returns an ``Execution``, records (mappings), or None.
        version: bump it when the same task may give other records.
    """

    def __init__(self, function: Function, *, version: str = "1") -> None:
        self.version = version
        self._function = function

    async def run(self, task: TaskBody, tools: Tools) -> Execution:
        """Run the function."""
        if inspect.iscoroutinefunction(self._function):
            returned = await self._function(task, tools)
        else:
            # Left behind when its lease is lost: a thread can't be stopped, and mustn't keep its slot.
            # In a tuple, since trio lets no coroutine out of a thread.
            (returned,) = await trio.to_thread.run_sync(
                lambda: (self._function(task, tools),),
                abandon_on_cancel=True,  # type: ignore[call-arg]  # stubs of an older trio stand in front
            )
        if inspect.isawaitable(returned):  # of an async __call__, or a lambda around an async function
            returned = await returned
        if isinstance(returned, Execution):
            return returned
        if returned is None:
            return Execution(outcomes=tuple(UrlOutcome(url=url) for url in task.urls))
        records = _records(returned)
        body = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
        outcome = UrlOutcome(url=task.urls[0], records=await tools.store(body), record_count=len(records))
        return Execution(outcomes=(outcome, *(UrlOutcome(url=url) for url in task.urls[1:])))


def _records(returned: object) -> Sequence[Mapping[str, Any]]:
    if isinstance(returned, Mapping):
        return [returned]
    if isinstance(returned, Sequence) and all(isinstance(record, Mapping) for record in returned):
        return returned
    raise TypeError(f"a function returns an Execution, a mapping, a list of mappings or None, not {type(returned)}")


class Worker:
    """A worker that runs in this process.

    Args:
        link: the join link.
        settings: as ``swarm-worker`` has them; the defaults where nothing is told.
        executors: by kind: a function, or an executor.
    """

    def __init__(self, link: str, *, settings: WorkerSettings | None = None, **executors: Function | Executor) -> None:
        self._link = link
        self._settings = settings or WorkerSettings()
        self._executors = {kind: _executor(kind, given) for kind, given in executors.items()}

    def run(self, *, say: Callable[[str], None] = print) -> None:
        """Work until SIGINT or SIGTERM; call it in the main thread.

        It logs to standard error from the settings' level on, unless the program has configured structlog before.

        Raises:
            SwarmError: what ended it otherwise; its ``hint`` says what to do.
        """
        configure_unless_done(self._settings.log_level)
        start(self._settings, self._link, say=say, executors=self._executors)


def _executor(kind: str, given: Function | Executor) -> Executor:
    if hasattr(given, "run") and hasattr(given, "version"):
        return given
    if callable(given):
        return FunctionExecutor(given)
    raise ConfigurationError(f"{kind}={given!r} is neither a function nor an executor")
