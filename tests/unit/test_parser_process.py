from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from swarm.blocks import BlockStore
from swarm.executors.parser import Parsed, Parser, open_parser
from swarm.executors.scrape import Scrape
from swarm.turn_wire import Grant
from swarm.web.capture import Capture, TaskFailed
from swarm.wire import TaskBody
from swarm.worker.dispatch import Counters
from swarm.worker.storage import Storage
from swarm.worker.tools import tools_for
from tests.patience import PATIENCE_S

TITLE = {"title": "h1::text"}


def page(body: bytes, charset: str | None = None) -> Capture:
    url = "http://shop.example/"
    return Capture(url=url, final_url=url, status=200, headers={}, body=body, charset=charset, took_s=0.1)


#: A minute's work and more for libxml2: 100,000 attributes in one tag take it quadratic time.
HOSTILE = page(b"<a " + b" ".join(b"a%d=1" % number for number in range(100_000)) + b">")


def children() -> set[int]:
    """The parser processes of this test's process that live."""
    found = set()
    for stat in _stats():
        pid, rest = stat.split(" ", 1)
        state, parent = rest.rpartition(")")[2].split()[:2]
        if int(parent) == os.getpid() and state != "Z" and b"parser_process" in _command(int(pid)):
            found.add(int(pid))
    return found


def _stats() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield file.read_text()
        except OSError:
            continue  # ended meanwhile


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def extract(parser: Parser, capture: Capture, selectors: dict[str, str] = TITLE, **options: Any) -> Parsed:
    with trio.fail_after(PATIENCE_S):
        return await parser.extract(capture, selectors, **options)


async def test_records_come_back_as_json_lines_with_what_was_found() -> None:
    async with open_parser() as parser:
        parsed = await extract(parser, page("<h1>Ä</h1><p>".encode()), {"title": "h1::text", "none": ".none"})
        several = await extract(parser, page(b"<li>a<li>b"), {"item": "::text"}, each="li")

    assert parsed == Parsed(records='{"title":"Ä","none":null}\n'.encode(), count=1, found=frozenset({"title"}))
    assert [json.loads(line) for line in several.records.splitlines()] == [{"item": "a"}, {"item": "b"}]


async def test_the_charset_of_the_answer_counts() -> None:
    async with open_parser() as parser:
        parsed = await extract(parser, page("<h1>Ä</h1>".encode("latin-1"), "iso8859-1"))

    assert json.loads(parsed.records) == {"title": "Ä"}


async def test_one_process_serves_many_pages() -> None:
    async with open_parser(max_processes=1) as parser:
        await extract(parser, page(b"<h1>0</h1>"))
        first = children()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(extract, parser, page(b"<h1>%d</h1>" % number))
        assert children() == first
        assert len(first) == 1


async def test_a_page_that_takes_too_long_is_given_up_and_the_next_is_parsed() -> None:
    async with open_parser(max_processes=1, deadline_s=0.5) as parser:
        with pytest.raises(TaskFailed) as failed:
            await extract(parser, HOSTILE)
        assert (failed.value.reason, failed.value.retryable) == ("parse_too_long", False)
        assert children() == set()

    async with open_parser(max_processes=1) as parser:
        assert (await extract(parser, page(b"<h1>next</h1>"))).count == 1


async def test_a_selector_that_takes_too_long_is_given_up() -> None:
    async with open_parser(deadline_s=0.5) as parser:
        cubic = {"a": "//*[count(//*[count(//*) > 1]) > 1]"}
        with pytest.raises(TaskFailed) as failed:
            await extract(parser, page(b"<b>x</b>" * 5_000), cubic)

    assert failed.value.reason == "parse_too_long"


async def test_a_page_over_the_cap_is_too_large() -> None:
    async with open_parser() as parser:
        with pytest.raises(TaskFailed) as failed:
            await extract(parser, page(bytes(17 * 1024 * 1024)))

    assert failed.value.reason == "too_large"


async def test_a_parser_that_died_meanwhile_is_replaced() -> None:
    async with open_parser(max_processes=1) as parser:
        await extract(parser, page(b"<h1>first</h1>"))
        (pid,) = children()
        os.kill(pid, signal.SIGKILL)
        assert (await extract(parser, page(b"<h1>second</h1>"))).count == 1
        assert children() != {pid}


async def kill_the_next(times: int, *, spare: set[int] | None = None) -> None:
    """Kill so many parser processes, each as it appears."""
    killed = set(spare or ())
    for _ in range(times):
        while not (found := children() - killed):
            await trio.lowlevel.checkpoint()
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        killed |= found


async def test_a_page_that_kills_its_parser_and_then_one_of_its_own_fails_for_good() -> None:
    async with open_parser(max_processes=1) as parser, trio.open_nursery() as nursery:
        nursery.start_soon(kill_the_next, 2)
        with pytest.raises(TaskFailed) as failed:
            await extract(parser, HOSTILE)

    assert failed.value.reason == "too_large"


async def test_a_page_whose_parser_was_killed_for_anothers_sake_is_parsed_again() -> None:
    """As when the machine runs out of memory: the kernel doesn't ask whose page it was."""
    async with open_parser(max_processes=1) as parser, trio.open_nursery() as nursery:
        nursery.start_soon(kill_the_next, 1)
        assert (await extract(parser, page(b"<h1>innocent</h1>"))).count == 1


async def test_a_page_that_is_parsed_again_has_nothing_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[int] = []
    parsing: set[bytes] = set()
    ask_one = Parser._ask_one

    async def watched(self: Parser, process: Any, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        again = body == HOSTILE.body and body in seen
        seen.add(body)
        parsing.add(body)
        try:
            if body == HOSTILE.body:
                await trio.testing.wait_all_tasks_blocked()
                beside.append(len(parsing))
                if not again:
                    process.process.kill()
                else:
                    await process.aclose()
                    return b'{"count": 1, "found": []}', b""
            return await ask_one(self, process, head, body)
        finally:
            parsing.discard(body)

    seen: set[bytes] = set()
    monkeypatch.setattr(Parser, "_ask_one", watched)
    async with open_parser(max_processes=4) as parser:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(extract, parser, page(b"<h1>%d</h1>" % number))
                    if number == 2:
                        nursery.start_soon(extract, parser, HOSTILE)
    assert len(beside) == 2
    assert beside[1] == 1


async def test_a_cancelled_page_leaves_no_process() -> None:
    async with open_parser() as parser:
        with trio.move_on_after(0.5) as scope:
            await extract(parser, HOSTILE)
        assert scope.cancelled_caught
        assert children() == set()


async def test_leaving_the_block_ends_the_processes() -> None:
    async with open_parser() as parser:
        await extract(parser, page(b"<h1>a</h1>"))
        assert len(children()) == 1

    assert children() == set()


async def test_a_parser_sees_no_secret_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_KEY", "a secret")
    async with open_parser() as parser:
        await extract(parser, page(b"<h1>a</h1>"))
        (pid,) = children()
        environment = await trio.Path(f"/proc/{pid}/environ").read_bytes()

    assert b"secret" not in environment
    assert environment.startswith(b"PYTHONPATH=")


async def test_the_scrapes_of_a_worker_share_its_parser(tmp_path: Path) -> None:
    async def fetch(url: str) -> Capture:
        return page(b"<h1>here</h1>")

    storage = Storage(BlockStore(tmp_path / "blocks", max_bytes=None), owed=list)
    async with open_parser() as parser:
        tools = tools_for(
            fetch, lambda _: None, parser, storage, Counters(trio.current_time), worker="0x0", max_bytes=10**6
        )
        for number in range(1, 4):
            task_id = f"0192a000-0000-7000-8000-{number:012d}"
            task = TaskBody(
                id=task_id, job=task_id, kind="scrape", urls=("http://shop.example/",), spec={"extract": TITLE}
            )
            with trio.fail_after(PATIENCE_S):
                await Scrape().run(task, tools(Grant(task=task, fence=number, lease_s=60.0, via="want")))
        assert len(children()) == 1
    assert not children()
