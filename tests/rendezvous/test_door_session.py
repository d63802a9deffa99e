"""The session: turns over a WebSocket, and what the door says first."""

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

from rendezvous.door import session as session_module
from rendezvous.door.limits import Limits, RateLimiter
from rendezvous.fleet import Worker as Known
from rendezvous.ledger.act_ops import Revoke
from swarm.wire import encode
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import Stage, Worker, door


@attrs.define
class Talk:
    """A worker's end of a session."""

    socket: aiohttp.ClientWebSocketResponse
    worker: Worker

    async def say(self, **said: Any) -> None:
        await self.socket.send_bytes(encode(self.worker.turn(**said)))

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.socket.receive()
        assert message.type is aiohttp.WSMsgType.BINARY, message
        frame: dict[str, Any] = json.loads(message.data)
        return frame

    async def take(self, **said: Any) -> dict[str, Any]:
        await self.say(**said)
        return await self.hear()

    async def closed(self) -> int | None:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.socket.receive()
            while message.type is aiohttp.WSMsgType.BINARY and json.loads(message.data)["frame"] == "nudge":
                message = await self.socket.receive()
        assert message.type in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED}, message
        return self.socket.close_code


@contextlib.asynccontextmanager
async def talk(stage: Stage, worker: Worker) -> AsyncIterator[Talk]:
    async with stage.http.ws_connect(
        f"{stage.url}/v1/session", headers={"Authorization": f"Bearer {worker.key}"}
    ) as socket:
        yield Talk(socket, worker)


async def test_turns_are_answered_over_a_session(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 2)
        async with talk(stage, alice) as session:
            answer = await session.take(want=2)
            assert (answer["frame"], answer["n"], len(answer["grants"])) == ("turn", 1, 2)
            done = [alice.done(grant) for grant in answer["grants"]]
            answer = await session.take(done=done)
            assert [outcome["status"] for outcome in answer["outcomes"]] == ["completed"] * 2


async def test_turns_that_are_sent_ahead_are_answered_in_order(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        async with talk(stage, alice) as session:
            for _ in range(10):
                await session.say()
            assert [(await session.hear())["n"] for _ in range(10)] == list(range(1, 11))


async def test_a_repeated_turn_is_answered_the_same_over_another_session(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 1)
        async with talk(stage, alice) as session:
            first = await session.take(want=1)
        alice.n -= 1
        async with talk(stage, alice) as session:
            second = await session.take(want=1)
        assert first == second


async def test_an_idle_worker_without_gossip_is_nudged_when_a_task_comes(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, bob, carol = await stage.worker("alice"), await stage.worker("bob"), await stage.requester("carol")
        async with talk(stage, alice) as deaf, talk(stage, bob) as hears:
            await deaf.take(gossip=False)
            await hears.take(gossip=True)
            await stage.submit(carol, 5)
            assert (await deaf.hear())["frame"] == "nudge"
            answer = await hears.take(want=1)
            assert answer["frame"] == "turn"  # it wasn't nudged: gossip reaches it


async def test_only_as_many_are_nudged_as_there_are_tasks(tmp_path: Path) -> None:
    async with door(tmp_path) as stage, contextlib.AsyncExitStack() as stack:
        carol = await stage.requester("carol")
        sessions = []
        for number in range(4):
            worker = await stage.worker(f"worker {number}")
            sessions.append(await stack.enter_async_context(talk(stage, worker)))
            await sessions[-1].take()
        await stage.submit(carol, 2)
        frames = [(await session.take(want=1))["frame"] for session in sessions]
        assert sorted(frames) == ["nudge", "nudge", "turn", "turn"]


async def test_a_task_that_comes_back_nudges_too(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, bob, carol = await stage.worker("alice"), await stage.worker("bob"), await stage.requester("carol")
        await stage.submit(carol, 1)
        (grant,) = (await bob.take(want=1))["grants"]
        async with talk(stage, alice) as session:
            await session.take()
            await bob.take(released=[{"task": grant["task"]["id"], "fence": grant["fence"]}])
            assert (await session.hear())["frame"] == "nudge"


async def test_the_holder_hears_of_a_cancel_at_once(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        async with talk(stage, alice) as session:
            await session.take(want=1)
            await carol.post(f"/v1/tasks/{task}/cancel")
            frame = await session.hear()
            assert (frame["frame"], frame["tasks"]) == ("cancel", [task])


async def test_a_second_session_of_a_worker_replaces_the_first(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        async with talk(stage, alice) as first, talk(stage, alice) as second:
            assert await first.closed() == session_module.CLOSE_REPLACED
            assert (await second.take())["frame"] == "turn"


async def test_a_session_whose_key_is_revoked_is_closed_with_4001(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "RECHECK_S", 0.05)
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        async with talk(stage, alice) as session:
            await session.take()
            await stage.door.ledger.call(Revoke(owner=alice.address, who="operator", why="a test"))
            stage.door.keys.forget()
            assert await session.closed() == 4001


@pytest.mark.parametrize(
    "message", [b"", b"[]", b"{", b"\xff", b'{"boot":"b"}', b'{"boot":"boot-0001","n":1,"free":1,"surprise":1}']
)
async def test_what_is_no_turn_is_refused_and_the_session_goes_on(tmp_path: Path, message: bytes) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        async with talk(stage, alice) as session:
            await session.socket.send_bytes(message)
            frame = await session.hear()
            assert (frame["frame"], frame["error"]["code"]) == ("refused", "bad_request")
            assert (await session.take())["frame"] == "turn"


async def test_a_flood_of_what_is_no_turn_ends_the_session(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        async with talk(stage, alice) as session:
            for _ in range(session_module.MAX_FAULTS + 1):
                await session.socket.send_bytes(b"{")
            for _ in range(session_module.MAX_FAULTS):
                assert (await session.hear())["frame"] == "refused"
            assert await session.closed() == session_module.CLOSE_POLICY


async def test_who_takes_turns_too_often_over_a_session_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, now_s = await stage.worker("alice"), [0.0]
        limiter = RateLimiter(Limits(key_rate_per_s=0.5, key_burst=3), clock=lambda: now_s[0])
        object.__setattr__(stage.door, "limiter", limiter)
        async with talk(stage, alice) as session:  # the upgrade is a call too
            frames = [await session.take() for _ in range(3)]
            assert [frame["frame"] for frame in frames] == ["turn", "turn", "refused"]
            assert (frames[2]["n"], frames[2]["error"]["code"]) == (3, "rate_limited")
            assert frames[2]["error"]["retry_after_s"] == 2.0
            now_s[0] += 2.0
            assert (await session.take())["frame"] == "turn"


async def test_a_worker_that_does_not_read_its_pushes_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "SEND_TIMEOUT_S", 0.2)
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        async with talk(stage, alice) as session:
            await session.take()
            (worker,) = stage.door.fleet.all()
            assert worker.session is not None
            for _ in range(30):  # more than what the two sockets hold, left unread
                worker.session.cancel(("a" * 36,) * 20_000)
            async with asyncio.timeout(PATIENCE_S):
                await _ended(stage, worker)
        async with talk(stage, alice) as session:
            assert (await session.take())["frame"] == "turn"


async def _ended(stage: Stage, worker: Known) -> None:
    while True:
        if worker.session is None and len(stage.door.sessions) == 0:
            return
        await asyncio.sleep(0.02)


async def test_a_session_needs_a_workers_key_and_an_upgrade(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        assert (await stage.anyone.get("/v1/session")).code == "unauthorized"
        assert (await carol.get("/v1/session")).code == "forbidden"
        assert (await alice.get("/v1/session")).code == "bad_request"


async def test_a_stopping_root_says_goodbye(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        async with talk(stage, alice) as session:
            await session.take()
            closing = asyncio.create_task(stage.door.sessions.close_all())
            assert await session.closed() == 1001
            await closing


async def test_a_hungry_worker_is_nudged_when_a_paced_host_may_be_asked_again(tmp_path: Path) -> None:
    async with door(tmp_path, host_rate=5.0) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        urls = [f"http://slow.example/{number}" for number in range(7)]
        await carol.post("/v1/tasks", {"tasks": [{"kind": "noop", "urls": [url]} for url in urls]})
        async with talk(stage, alice) as session:
            answer = await session.take(want=7, gossip=True)
            held = [{"task": grant["task"]["id"], "fence": grant["fence"]} for grant in answer["grants"]]
            assert len(held) == 5  # the burst
            while len(held) < 7:
                assert (await session.hear())["frame"] == "nudge"
                grants = (await session.take(want=8 - len(held), held=held, gossip=True))["grants"]
                assert grants  # two, where this process was held up for long
                held += [{"task": grant["task"]["id"], "fence": grant["fence"]} for grant in grants]


async def test_a_worker_that_says_goodbye_is_offline_at_once(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        async with talk(stage, alice) as session:
            await session.take(free=0)
            (busy,) = (await stage.operator.get("/v1/workers")).data["items"]
            await session.socket.close()
        async with asyncio.timeout(PATIENCE_S):
            while (await stage.operator.get("/v1/workers")).data["items"][0]["status"] != "offline":
                pass
        assert busy["status"] == "busy"
