"""Server-sent events: one's own, from where one was, alive while nothing happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from rendezvous.door import stream as stream_module
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import Caller, Stage, door


@attrs.define
class Listening:
    """The reading end of an event stream."""

    answer: aiohttp.ClientResponse
    comments: int = 0

    async def next(self) -> dict[str, Any]:
        """The next event; comments are counted and passed over."""
        while True:
            lines = await self._block()
            if lines[0].startswith(":"):
                self.comments += 1
                continue
            fields = dict(line.split(": ", 1) for line in lines)
            event: dict[str, Any] = json.loads(fields["data"])
            assert fields["id"] == str(event["id"])
            assert fields["event"] == event["move"]
            return event

    async def comment(self) -> str:
        return (await self._block())[0]

    async def _block(self) -> list[str]:
        lines: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while (line := (await self.answer.content.readline()).decode().rstrip("\n")) or not lines:
                assert line or not self.answer.content.at_eof(), "the stream ended"
                if line:
                    lines.append(line)
        return lines


@contextlib.asynccontextmanager
async def listen(caller: Caller, query: str = "", **headers: str) -> AsyncIterator[Listening]:
    sent = {"Authorization": f"Bearer {caller.key}", **{name.replace("_", "-"): v for name, v in headers.items()}}
    async with caller.http.get(f"{caller.url}/v1/events{query}", headers=sent) as answer:
        assert answer.status == 200, await answer.read()
        assert answer.content_type == "text/event-stream"
        listening = Listening(answer)
        assert await listening.comment() == ": open"
        yield listening


async def moves(stage: Stage, task: str) -> list[str]:
    return [event["move"] for event in (await stage.operator.get(f"/v1/tasks/{task}/events")).data["items"]]


async def test_an_owner_sees_its_own_tasks_live(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol, dave, alice = await stage.requester("carol"), await stage.requester("dave"), await stage.worker("alice")
        async with listen(carol) as mine, listen(stage.operator) as everything:
            (theirs,) = await stage.submit(dave)
            (own,) = await stage.submit(carol)
            await alice.take(want=8)

            seen = [await mine.next() for _ in range(2)]
            assert [(event["task"], event["move"]) for event in seen] == [(own, "submitted"), (own, "granted")]
            assert seen[1]["who"] == alice.address
            all_seen = [await everything.next() for _ in range(4)]
            assert {event["task"] for event in all_seen} == {own, theirs}


async def test_a_worker_sees_the_tasks_that_it_holds(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol, alice, bob = await stage.requester("carol"), await stage.worker("alice"), await stage.worker("bob")
        async with listen(bob) as stream:
            await stage.submit(carol, 2)
            (first,) = (await alice.take(want=1))["grants"]
            (second,) = (await bob.take(want=1))["grants"]
            event = await stream.next()
            assert (event["task"], event["move"]) == (second["task"]["id"], "granted")
            assert event["task"] != first["task"]["id"]


async def test_a_stream_goes_on_from_the_last_event_that_arrived(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol, dave = await stage.requester("carol"), await stage.requester("dave")
        async with listen(carol) as stream:
            tasks = await stage.submit(carol, 3)
            last = (await stream.next())["id"]
        await stage.submit(dave, 2)
        await carol.post(f"/v1/tasks/{tasks[0]}/cancel")
        async with listen(carol, Last_Event_ID=str(last)) as stream:
            seen = [await stream.next() for _ in range(3)]
        assert [event["task"] for event in seen] == [tasks[1], tasks[2], tasks[0]]
        assert seen[-1]["move"] == "cancelled"


async def test_a_stream_goes_on_after_a_restart_of_the_root(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        tasks = await stage.submit(carol, 3)
    async with door(tmp_path) as stage:
        again = Caller(http=stage.http, url=stage.url, key=carol.key)
        async with listen(again, Last_Event_ID="0") as stream:
            assert [(await stream.next())["task"] for _ in range(3)] == tasks
            await again.post(f"/v1/tasks/{tasks[2]}/cancel")
            assert (await stream.next())["move"] == "cancelled"


async def test_a_cursor_that_the_ring_has_lost_is_served_from_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "RING", 4)
    monkeypatch.setattr(stream_module, "CHUNK", 3)
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        tasks = await stage.submit(carol, 20)
        async with listen(carol, "?after=0") as stream:
            assert [(await stream.next())["task"] for _ in range(20)] == tasks


async def test_only_events_of_a_job_or_task_where_that_is_asked(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        (first,) = await stage.submit(carol)
        async with listen(carol, f"?task={first}") as stream:
            (second,) = await stage.submit(carol)
            await carol.post(f"/v1/tasks/{second}/cancel")
            await carol.post(f"/v1/tasks/{first}/cancel")
            assert (await stream.next())["task"] == first


async def test_a_quiet_stream_is_pinged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream_module.PING_S == 20.0
    monkeypatch.setattr(stream_module, "PING_S", 0.05)
    async with door(tmp_path) as stage, listen(await stage.requester("carol")) as stream:
        assert await stream.comment() == ": ping"
        assert await stream.comment() == ": ping"


@pytest.mark.parametrize("said", ["x", "-1", "1.5", str(2**63), "١", "9" * 5_000])
async def test_a_last_event_id_that_is_none_is_refused(tmp_path: Path, said: str) -> None:
    async with door(tmp_path) as stage:
        reply = await stage.operator.get("/v1/events", Last_Event_ID=said)
        assert (reply.status, reply.code) == (400, "bad_request")


async def test_too_many_readers_are_refused_not_kept_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_READERS_A_KEY", 1)
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        async with listen(carol):
            assert (await carol.get("/v1/events")).code == "rate_limited"
            async with listen(stage.operator):
                assert stage.door.stream.readers == 2
