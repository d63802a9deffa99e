"""``--mode assign``: tasks are pushed over the sessions to whoever has least to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import HELLO, Stage, door
from tests.rendezvous.test_door_session import Talk, talk


async def _pushed(session: Talk) -> dict[str, Any]:
    frame = await session.hear()
    assert frame["frame"] == "grants", frame
    return frame


async def test_a_task_is_pushed_to_a_worker_that_asks_for_nothing(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        async with talk(stage, alice) as session:
            await session.take()
            (task,) = await stage.submit(carol, 1)
            frame = await _pushed(session)
            assert (frame["boot"], frame["n"]) == (alice.boot, 1)
            assert frame["after_s"] >= 0
            (grant,) = frame["grants"]
            assert (grant["task"]["id"], grant["via"]) == (task, "assign")
            view = (await carol.get(f"/v1/tasks/{task}")).data
            assert (view["status"], view["assignee"], view["via"]) == ("active", alice.address, "assign")

            answer = await session.take(done=[alice.done(grant)])
            assert answer["outcomes"][0]["status"] == "completed"
        assert (await stage.operator.get("/v1/status")).data["mode"] == "assign"


async def test_a_turn_that_asks_is_answered_by_a_push(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        async with talk(stage, alice) as session:
            assert "grants" not in await session.take(want=8, offers=[task])
            assert [grant["task"]["id"] for grant in (await _pushed(session))["grants"]] == [task]


async def test_who_has_least_to_do_for_its_size_gets_the_next(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage, contextlib.AsyncExitStack() as stack:
        carol = await stage.requester("carol")
        sessions = {}
        for name, slots in (("alice", 8), ("bob", 8), ("dave", 4)):
            worker = await stage.worker(name)
            sessions[name] = await stack.enter_async_context(talk(stage, worker))
            await sessions[name].take(hello=msgspec.structs.replace(HELLO, slots=slots), free=slots)
        await stage.submit(carol, 10)
        got = {name: len((await _pushed(session))["grants"]) for name, session in sessions.items()}
        assert got == {"alice": 4, "bob": 4, "dave": 2}


async def test_tasks_that_come_one_by_one_go_round_among_the_idle(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage, contextlib.AsyncExitStack() as stack:
        carol = await stage.requester("carol")
        holders = []
        for name in ("alice", "bob", "dave"):
            session = await stack.enter_async_context(talk(stage, await stage.worker(name)))
            await session.take()
            holders.append(session)
        got = []
        for _ in range(3):
            (task,) = await stage.submit(carol, 1)
            frames = [asyncio.create_task(session.socket.receive()) for session in holders]
            async with asyncio.timeout(PATIENCE_S):
                done, rest = await asyncio.wait(frames, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1
            number = frames.index(done.pop())
            for left in rest:
                left.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            got.append(holders[number].worker.address)
            grant = (await carol.get(f"/v1/tasks/{task}")).data
            assert grant["assignee"] == got[-1]
            done_now = {"task": {"id": task}, "fence": grant["fence"]}
            await holders[number].take(done=[holders[number].worker.done(done_now)])
        assert len(set(got)) == 3


async def test_no_worker_is_pushed_more_than_it_has_slots_for(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 5)
        async with talk(stage, alice) as session:
            await session.take(free=2)
            grants = (await _pushed(session))["grants"]
            assert len(grants) == 2
            held = [{"task": grant["task"]["id"], "fence": grant["fence"]} for grant in grants]
            assert "grants" not in await session.take(free=0, held=held)
            answer = await session.take(free=1, held=held[1:], done=[alice.done(grants[0])])
            assert answer["outcomes"][0]["status"] == "completed"
            assert len((await _pushed(session))["grants"]) == 1


async def test_a_push_that_was_lost_is_granted_again_by_the_next_turn(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 1)
        async with talk(stage, alice) as session:
            await session.take()
            (pushed,) = (await _pushed(session))["grants"]
        async with talk(stage, alice) as session:  # which never read it
            (again,) = (await session.take())["grants"]
            assert (again["task"]["id"], again["fence"]) == (pushed["task"]["id"], pushed["fence"])


async def test_a_new_boot_gets_the_old_ones_tasks_anew(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 1)
        async with talk(stage, alice) as session:
            await session.take()
            (old,) = (await _pushed(session))["grants"]
        alice.boot, alice.n = "boot-0002", 0
        async with talk(stage, alice) as session:
            await session.take()
            frame = await _pushed(session)
            assert frame["boot"] == "boot-0002"
            assert frame["grants"][0]["fence"] > old["fence"]


async def test_a_worker_without_a_session_asks_by_its_turns_as_ever(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        (grant,) = (await alice.take(want=1))["grants"]
        assert (grant["task"]["id"], grant["via"]) == (task, "want")


async def test_nothing_is_pushed_while_the_swarm_is_paused(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        async with talk(stage, alice) as session:
            await session.take()
            await stage.operator.post("/v1/admin/pause", {"why": "a test"})
            assert (await session.hear())["frame"] == "pause"
            (task,) = await stage.submit(carol, 1)
            assert "grants" not in await session.take()
            await stage.operator.post("/v1/admin/resume", {})
            assert await session.hear() == {"frame": "pause"}
            frame = await _turn_and_push(session)
            assert [grant["task"]["id"] for grant in frame["grants"]] == [task]


async def test_a_paced_host_is_pushed_again_when_it_opens_and_nobody_says_anything(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign", host_rate=5.0) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        async with talk(stage, alice) as session:
            await session.take()
            made = [{"kind": "noop", "urls": [f"http://one.example/{number}"]} for number in range(7)]
            await carol.post("/v1/tasks", {"tasks": made})
            got: Counter[str] = Counter()
            while got.total() < 7:
                got.update(grant["via"] for grant in (await _pushed(session))["grants"])
            assert got == {"assign": 7}


async def test_what_the_pace_of_the_whole_swarm_keeps_back_is_pushed_once_it_opens(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign", swarm_rate=2.0) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        async with talk(stage, alice) as session:
            await session.take()
            await stage.submit(carol, 4)
            got = 0
            while got < 4:  # nobody says anything meanwhile
                got += len((await _pushed(session))["grants"])


async def _turn_and_push(session: Talk) -> dict[str, Any]:
    """The push that follows a turn; they may cross."""
    await session.say()
    frames = [await session.hear(), await session.hear()]
    return next(frame for frame in frames if frame["frame"] == "grants")


async def test_nobody_is_assigned_what_it_cannot_run(tmp_path: Path) -> None:
    async with door(tmp_path, mode="assign") as stage, contextlib.AsyncExitStack() as stack:
        carol = await stage.requester("carol")
        runs_it, cannot = await _two(stage, stack)
        await stage.submit(carol, 1, requires={"labels": ["gpu"]})
        assert len((await _pushed(runs_it))["grants"]) == 1
        assert "grants" not in await cannot.take()


async def _two(stage: Stage, stack: contextlib.AsyncExitStack) -> tuple[Talk, Talk]:
    alice, bob = await stage.worker("alice"), await stage.worker("bob")
    first = await stack.enter_async_context(talk(stage, alice))
    second = await stack.enter_async_context(talk(stage, bob))
    await first.take(hello=msgspec.structs.replace(HELLO, labels=("gpu",)))
    await second.take()
    return first, second
