"""Run selectors over pages, in processes that have a deadline and a memory limit.

What goes on inside is ``swarm.executors.parser_process``. A process serves one page after another; one that was too
slow, or died, is replaced, and costs its page alone: one that dies may have been ended for what a page beside it did
(the machine ran out of memory), so its page is parsed once more with nothing beside it before it is blamed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import attrs
import orjson
import structlog
import trio

import swarm
from swarm.executors.parser_process import LENGTHS
from swarm.model import Reason
from swarm.web.capture import Capture, TaskFailed

#: The worst page of a megabyte that was met in the wild takes a second; more is an attack, or a selector gone wrong.
DEADLINE_S: Final = 20.0
#: Parsing is all CPU; each process takes 45 MB.
MAX_PROCESSES: Final = min(4, os.cpu_count() or 1)
#: After a big page a process keeps its memory; so it is replaced now and then.
PAGES_PER_PROCESS: Final = 1_000
BIG_PAGE_BYTES: Final = 1024 * 1024
KILL_TIMEOUT_S: Final = 5.0
#: Our own word for a page that isn't parsed within the deadline; it wouldn't be the next time either.
PARSE_TOO_LONG: Final = "parse_too_long"

#: What is seen of a process that died.
_DEATHS: Final = (trio.BrokenResourceError, EOFError)

log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class Parsed:
    """What selectors found in one page.

    Args:
        records: JSON lines.
        count: how many.
        found: the fields that at least one record has.
    """

    records: bytes
    count: int
    found: frozenset[str]


@contextlib.asynccontextmanager
async def open_parser(*, max_processes: int = MAX_PROCESSES, deadline_s: float = DEADLINE_S) -> AsyncIterator[Parser]:
    """Parsers for one worker; processes are started as they are needed.

    *Resource handling*: leaving the block ends them.
    """
    parser = Parser(max_processes=max_processes, deadline_s=deadline_s)
    try:
        yield parser
    finally:
        await parser.aclose()


class Parser:
    """See the module; made by ``open_parser``."""

    def __init__(self, *, max_processes: int, deadline_s: float) -> None:
        self._slots = trio.CapacityLimiter(max_processes)
        self._deadline_s = deadline_s
        self._idle: list[_Process] = []
        #: Held by a page that wants to be alone; every other page passes by it.
        self._gate = trio.Lock()
        self._parsing = 0
        self._quiet = trio.Event()

    async def extract(self, page: Capture, selectors: Mapping[str, str], *, each: str | None = None) -> Parsed:
        """Run selectors over a page.

        Args:
            page: as it was captured.
            selectors: checked (``swarm.content.parse.check_selectors``).
            each: one record for each element that it finds; None: one for the page.

        Raises:
            TaskFailed: ``too_large`` where page or records break a cap, ``parse_too_long`` past the deadline.
        """
        asked = {"charset": page.charset, "selectors": selectors, "base_url": page.final_url, "each": each}
        frame = orjson.dumps(asked), page.body
        try:
            head, records = await self._parse(*frame)
        except trio.TooSlowError as fault:
            detail = f"{page.final_url[:300]} isn't parsed within {self._deadline_s:g} s"
            raise TaskFailed(PARSE_TOO_LONG, detail, retryable=False) from fault
        except _DEATHS as fault:
            raise TaskFailed(Reason.TOO_LARGE, f"{page.final_url[:300]} broke the parser") from fault
        said = orjson.loads(head)
        if "error" in said:
            raise TaskFailed(Reason.TOO_LARGE, said["error"])
        return Parsed(records=records, count=said["count"], found=frozenset(said["found"]))

    async def _parse(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Have a process answer; where it dies, a fresh one with nothing beside it. What that one dies of is the page.

        Raises:
            TooSlowError: past the deadline.
            BrokenResourceError, EOFError: it died alone, too.
        """
        async with self._slots:
            async with self._gate:
                self._parsing += 1
            try:
                with trio.fail_after(self._deadline_s):
                    return await self._ask_one(self._idle.pop() if self._idle else await _start(), head, body)
            except _DEATHS:
                log.warning("parser_died", page_bytes=len(body))
            finally:
                self._parsing -= 1
                self._quiet.set()
            async with self._gate:
                while self._parsing:
                    self._quiet = trio.Event()
                    await self._quiet.wait()
                with trio.fail_after(self._deadline_s):
                    return await self._ask_one(await _start(), head, body)

    async def _ask_one(self, process: _Process, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        answer = None
        try:
            answer = await process.ask(head, body)
        finally:
            if answer is None or process.is_worn:
                await process.aclose()
            else:
                self._idle.append(process)
        return answer

    async def aclose(self) -> None:
        """End the processes."""
        while self._idle:
            await self._idle.pop().aclose()


@attrs.define
class _Process:
    process: trio.Process
    stdin: trio.abc.SendStream
    stdout: trio.abc.ReceiveStream
    pages: int = 0
    is_worn: bool = False

    async def ask(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        self.pages += 1
        self.is_worn = self.pages >= PAGES_PER_PROCESS or len(body) > BIG_PAGE_BYTES
        await self.stdin.send_all(LENGTHS.pack(len(head), len(body)) + head + body)
        head_bytes, body_bytes = LENGTHS.unpack(await self._read(LENGTHS.size))
        return await self._read(head_bytes), await self._read(body_bytes)

    async def _read(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            more = await self.stdout.receive_some(size_bytes - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    async def aclose(self) -> None:
        """End it at once; it is waited for, which takes no time."""
        with trio.CancelScope(deadline=trio.current_time() + KILL_TIMEOUT_S, shield=True):
            self.process.kill()
            await self.process.wait()
            await self.stdin.aclose()
            await self.stdout.aclose()


async def _start() -> _Process:
    # -I would keep the source tree out; so the environment is emptied instead, which keeps secrets out as well
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "swarm.executors.parser_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": str(Path(swarm.__file__).parent.parent)},
        start_new_session=True,  # a Ctrl-C is the worker's, which drains first
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("a process without the pipes it was started with")
    return _Process(process, process.stdin, process.stdout)
