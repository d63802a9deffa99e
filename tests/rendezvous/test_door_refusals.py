"""Every "no" of the policy, met by a real worker over HTTP; ``why`` says the same sentence of that worker.

The rules themselves are held by ``test_policy_*`` and ``test_ledger_*``, on a clock that the tests own; here it is the
whole way that counts, from a claim to the envelope.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rendezvous.ledger.act_ops import KeepApart
from rendezvous.ledger.ops import HoldHost, SetHostPace
from rendezvous.policy import contexts, records
from rendezvous.policy.hours import Hours, parse_hours
from swarm.wire import Hello, NewTask
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import HELLO, Caller, Reply, Stage, Worker, door

HOST = "site.example"


class Cast:
    """A requester and workers before an open door, and tasks of one host."""

    def __init__(self, stage: Stage, carol: Caller) -> None:
        self.stage = stage
        self.carol = carol

    async def worker(self, name: str, **hello: Any) -> Worker:
        """A worker that is live."""
        worker = await self.stage.worker(name)
        said = Hello(**{"version": HELLO.version, "kinds": HELLO.kinds, "slots": 8, **hello})
        await worker.take(hello=said, free=0)
        return worker

    async def tasks(self, number: int, **task: Any) -> list[str]:
        made = [
            NewTask(**{"kind": "noop", "urls": (f"http://{HOST}/{one}",), "max_attempts": 9, **task})
            for one in range(number)
        ]
        return [one["id"] for one in (await self.carol.post("/v1/tasks", {"tasks": made})).data["tasks"]]

    async def claim(self, worker: Worker, task: str) -> Reply:
        return await worker.post(f"/v1/tasks/{task}/claim", {"boot": worker.boot})

    async def granted(self, worker: Worker, task: str) -> int:
        return int((await self.claim(worker, task)).data["fence"])

    async def blocked(self, worker: Worker, task: str) -> None:
        """The site turns the worker away from this task."""
        fence = await self.granted(worker, task)
        said = {"fence": fence, "reason": "blocked", "detail": "HTTP 429", "retry_after_s": 1e7}
        assert (await worker.post(f"/v1/tasks/{task}/fail", said)).status == 200

    async def refusal(self, worker: Worker, task: str) -> Mapping[str, Any]:
        """What a claim is refused with; ``why`` says it of this worker too."""
        reply = await self.claim(worker, task)
        assert reply.status == 409, reply.body
        error: dict[str, Any] = reply.body["error"]
        why = (await self.carol.get(f"/v1/tasks/{task}/why")).data
        (said,) = [row["refusal"] for row in why["workers"] if row["worker"] == worker.address]
        assert said["code"] == error["code"]
        assert without_numbers(said["message"]) == without_numbers(error["message"])
        assert len(error["message"]) > 20, "a sentence that a person can use"
        return error

    async def code(self, worker: Worker, task: str) -> str:
        return str((await self.refusal(worker, task))["code"])

    async def admin(self, call: str, **said: Any) -> Any:
        return (await self.stage.operator.post(f"/v1/admin/{call}", said)).data


def without_numbers(sentence: str) -> str:
    """The same sentence, whenever it was said: seconds pass between two calls."""
    return re.sub(r"\d+(\.\d+)?", "#", sentence)


@contextlib.asynccontextmanager
async def opened(tmp_path: Path, **settings: Any) -> AsyncIterator[Cast]:
    """An open door that paces no host, unless it is told to."""
    async with door(tmp_path, **{"host_rate": 0.0, **settings}) as stage:
        yield Cast(stage, await stage.requester("carol"))


def later_hours() -> tuple[str, Hours]:
    """Hours of a region that begin in two hours."""
    begins = datetime.now(UTC) + timedelta(hours=2)
    return parse_hours(f"eu=UTC,{begins:%H}:00-{begins + timedelta(hours=1):%H}:00")


async def test_what_a_worker_lacks(tmp_path: Path) -> None:
    async with opened(tmp_path) as cast:
        alice = await cast.worker("alice", labels=("profile:osaka",), region="eu")
        bob = await cast.worker("bob")
        (crawl,) = await cast.tasks(1, kind="crawl")
        assert await cast.code(alice, crawl) == "kind_unsupported"
        (regional,) = await cast.tasks(1, requires={"region": "us"})
        assert await cast.code(alice, regional) == "requires_unmet"
        first, second = await cast.tasks(2, requires={"profile": "osaka"})
        assert await cast.code(bob, first) == "profile"
        await cast.granted(alice, first)
        assert await cast.code(alice, second) == "profile_maturing"


async def test_a_profile_that_was_turned_away_often_is_retired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as cast:
        monkeypatch.setattr(contexts, "RETIRED_AFTER", 1)
        alice = await cast.worker("alice", labels=("profile:osaka",))
        first, second = await cast.tasks(2, requires={"profile": "osaka"})
        await cast.blocked(alice, first)
        assert await cast.code(alice, second) == "profile_retired"


async def test_a_session_stays_where_it_began(tmp_path: Path) -> None:
    async with opened(tmp_path) as cast:
        alice, bob = await cast.worker("alice"), await cast.worker("bob")
        first, second = await cast.tasks(2, requires={"session": "basket-7"})
        await cast.granted(alice, first)
        assert await cast.code(bob, second) == "session_elsewhere"
        await cast.granted(alice, second)


async def test_a_pause_of_the_swarm_a_host_or_a_job_is_said_with_who_and_why(tmp_path: Path) -> None:
    async with opened(tmp_path) as cast:
        alice = await cast.worker("alice")
        (task,) = await cast.tasks(1)
        job = (await cast.carol.get(f"/v1/tasks/{task}")).data["job"]
        for what in ({}, {"host": HOST}, {"job": job}):
            await cast.admin("pause", why="its owner called", **what)
            refusal = await cast.refusal(alice, task)
            assert refusal["code"] == "paused"
            assert refusal["message"].endswith("its owner called")
            await cast.admin("resume", **what)
        await cast.granted(alice, task)


async def test_a_version_that_isnt_pinned(tmp_path: Path) -> None:
    async with opened(tmp_path) as cast:
        alice = await cast.worker("alice")
        (task,) = await cast.tasks(1)
        await cast.admin("approve-version", name="noop", version="2", why="1 is broken")
        assert await cast.code(alice, task) == "version_not_approved"


async def test_what_a_host_gives_no_more_of_for_now(tmp_path: Path) -> None:
    async with opened(tmp_path) as cast:
        alice = await cast.worker("alice")
        ledger = cast.stage.door.ledger
        first, second, third = await cast.tasks(3)
        await ledger.call(HoldHost(host=HOST, for_s=60.0, why="its robots.txt can't be read (timeout)"))
        assert await cast.code(alice, first) == "host_held"
        await ledger.call(HoldHost(host=HOST, for_s=0.0, why=""))
        await ledger.call(SetHostPace(host=HOST, rate_per_s=0.01, burst=1.0))
        await cast.granted(alice, first)
        assert await cast.code(alice, second) == "host_paced"
        await ledger.call(SetHostPace(host=HOST, rate_per_s=0.01, burst=1.0, one_at_a_time=True))
        assert await cast.code(alice, third) == "host_busy"


async def test_what_the_whole_swarm_has_had_of_its_pace(tmp_path: Path) -> None:
    async with opened(tmp_path, swarm_rate=0.01) as cast:
        alice, bob = await cast.worker("alice"), await cast.worker("bob")
        tasks = await cast.tasks(6)
        for task in tasks[:5]:
            await cast.granted(alice, task)
        assert await cast.code(alice, tasks[5]) == "swarm_paced"
        answer = await bob.take(want=1)
        assert answer["retry_after_s"] > 1


async def test_a_worker_that_a_site_turned_away_or_that_is_in_quarantine(tmp_path: Path) -> None:
    async with opened(tmp_path) as cast:
        alice, bob = await cast.worker("alice"), await cast.worker("bob")
        first, second = await cast.tasks(2)
        await cast.blocked(alice, first)
        refusal = await cast.refusal(alice, second)
        assert refusal["code"] == "cooling_off"
        assert 3_000 < refusal["retry_after_s"] <= 3_600
        fence = await cast.granted(bob, second)
        await cast.admin("quarantine", worker=bob.address, host=HOST, why="it sends nonsense")
        late = await bob.post(f"/v1/tasks/{second}/fail", {"fence": fence, "reason": "timeout"})
        assert late.code == "lease_expired"
        assert await cast.code(bob, second) == "quarantined"
        dave = await cast.worker("dave")
        assert await cast.code(dave, second) == "newcomer"


async def test_the_network_of_several_quarantined_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as cast:
        monkeypatch.setattr(records, "QUARANTINE_AFTER", 1)
        alice, bob, dave = [await cast.worker(name) for name in ("alice", "bob", "dave")]
        first, second, third = await cast.tasks(3)
        await cast.blocked(alice, first)
        assert await cast.code(alice, third) == "quarantined"
        await cast.blocked(bob, second)
        refusal = await cast.refusal(dave, third)
        assert refusal["code"] == "egress_flagged"
        assert "127.0.0.0/24" in refusal["message"]


async def test_a_second_worker_of_a_network_where_they_are_kept_apart(tmp_path: Path) -> None:
    async with opened(tmp_path) as cast:
        alice, bob = await cast.worker("alice"), await cast.worker("bob")
        first, second = await cast.tasks(2)
        await cast.stage.door.ledger.call(KeepApart(host=HOST, who="olga", why="its owner asked"))
        await cast.granted(alice, first)
        assert await cast.code(bob, second) == "prefix_taken"


async def test_a_newcomer_that_holds_as_much_as_it_may(tmp_path: Path) -> None:
    async with opened(tmp_path, newcomer_budget=2) as cast:
        alice = await cast.worker("alice")
        tasks = await cast.tasks(5)
        fences = [await cast.granted(alice, task) for task in tasks[:2]]
        assert await cast.code(alice, tasks[2]) == "claim_budget"
        held = [{"task": task, "fence": fence} for task, fence in zip(tasks[:2], fences, strict=True)]
        assert "grants" not in await alice.take(want=3, free=3, held=held)
        for task, fence in zip(tasks[:2], fences, strict=True):
            done = alice.done({"task": {"id": task}, "fence": fence})
            await alice.take(done=[done], free=0)
        assert len((await alice.take(want=3, free=3))["grants"]) == 3


async def test_a_region_outside_its_hours(tmp_path: Path) -> None:
    async with opened(tmp_path, region_hours=(later_hours(),)) as cast:
        alice = await cast.worker("alice", region="eu")
        (task,) = await cast.tasks(1)
        assert await cast.code(alice, task) == "outside_hours"


async def test_a_worker_that_let_a_lease_run_out(tmp_path: Path) -> None:
    async with opened(tmp_path, first_lease=0.2) as cast:
        alice = await cast.worker("alice")
        await cast.worker("bob")
        (task,) = await cast.tasks(1)
        await cast.granted(alice, task)
        async with asyncio.timeout(PATIENCE_S):  # the ledger's own clock ends the lease
            while (await cast.carol.get(f"/v1/tasks/{task}")).data["status"] != "pending":  # noqa: ASYNC110 -- no event
                await asyncio.sleep(0.05)
        assert await cast.code(alice, task) == "passed_over"
