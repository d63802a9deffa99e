"""A worker's turns and single calls: one guard, one grant, and answers that survive being lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rendezvous import fleet as fleet_module
from rendezvous.door.limits import Limits, RateLimiter
from rendezvous.wiring import save_workers
from swarm.content.cid import build, raw_cid
from swarm.content.manifest import ContentRef, UrlOutcome
from swarm.model import Refusal
from swarm.wire import RobotsAnswer
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import HELLO, Stage, Worker, door


async def granted(stage: Stage, worker: Worker, number: int = 1) -> list[dict[str, Any]]:
    """Submit tasks and have the worker be granted them."""
    carol = await stage.requester("carol")
    await stage.submit(carol, number)
    grants: list[dict[str, Any]] = (await worker.take(want=number))["grants"]
    assert len(grants) == number
    return grants


async def status(stage: Stage, task: str) -> dict[str, Any]:
    view: dict[str, Any] = (await stage.operator.get(f"/v1/tasks/{task}")).data
    return view


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_that_wants_gets_and_completes(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        assert grant["via"] == "want"
        assert grant["lease_s"] == 60.0

        done = alice.done(grant, meta={"a": 1})
        (outcome,) = (await alice.take(done=[done]))["outcomes"]
        assert outcome["status"] == "completed"
        view = await status(stage, grant["task"]["id"])
        assert (view["status"], view["result"], view["assignee"]) == ("completed", done["cid"], alice.address)
        assert view["accepted"] is not None
        content = await stage.operator.get(f"/v1/content/{done['cid']}")
        assert content.body == done["manifest"]


async def test_an_offer_that_is_still_there_is_granted_first(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        ids = await stage.submit(carol, 3)
        answer = await alice.take(offers=[ids[2]], want=1)

        assert {(grant["task"]["id"], grant["via"]) for grant in answer["grants"]} == {
            (ids[2], "offer"),
            (ids[0], "want"),
        }


async def test_repeating_a_turn_repeats_its_answer(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 5)
        turn = alice.turn(want=2)
        first = await alice.post("/v1/turns", turn)
        second = await alice.post("/v1/turns", turn)

        assert first.data == second.data
        assert len(first.data["grants"]) == 2
        assert (await stage.operator.get("/v1/status")).data["tasks"]["active"] == 2


async def test_a_number_that_goes_back_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        await alice.take()
        await alice.take()
        refused = await alice.post("/v1/turns", {"boot": alice.boot, "n": 1, "free": 8})
        assert (refused.status, refused.code) == (409, "stale_turn")
        assert refused.body["error"]["details"] == {"n": alice.n}


async def test_a_turn_whose_answer_was_lost_before_a_root_restart_does_no_harm(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        turn = alice.turn(done=[alice.done(grant)], want=1)
        await alice.post("/v1/turns", turn)
    async with door(tmp_path) as stage:
        again = attrs_evolve(alice, stage)
        answer = (await again.post("/v1/turns", turn)).data
        assert [outcome["status"] for outcome in answer["outcomes"]] == ["completed"]


async def test_a_root_that_restarts_still_knows_who_its_workers_are(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        await alice.take(want=0)
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        await stage.submit(carol)
        (listed,) = (await stage.operator.get("/v1/workers")).data["items"]
        assert (listed["address"], listed["status"], listed["kinds"]) == (alice.address, "offline", HELLO.kinds)

        again = attrs_evolve(alice, stage)
        assert len((await again.take(want=1))["grants"]) == 1


def attrs_evolve(worker: Worker, stage: Stage) -> Worker:
    """The same worker, before another door."""
    worker.http, worker.url = stage.http, stage.url
    return worker


async def test_a_grant_that_the_next_turn_does_not_mention_is_sent_again(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        (again,) = (await alice.take())["grants"]
        assert again["fence"] == grant["fence"]
        held = [{"task": grant["task"]["id"], "fence": grant["fence"]}]
        assert "grants" not in await alice.take(held=held)


async def test_a_new_boot_gives_the_old_ones_leases_back_uncounted(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        alice.boot, alice.n = "boot-0002", 0
        await alice.take()
        view = await status(stage, grant["task"]["id"])
        assert (view["status"], view.get("attempts", 0)) == ("pending", 0)


async def test_a_renewal_answers_how_long_the_lease_runs(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        held = {"task": grant["task"]["id"], "fence": grant["fence"], "renew": True}
        (renewed,) = (await alice.take(held=[held]))["renewed"]
        assert renewed["lease_s"] == 60.0
        lost = (await alice.take(held=[{**held, "fence": grant["fence"] + 7}]))["lost"]
        assert lost == [grant["fence"] + 7]


async def test_a_task_called_off_while_held_is_named(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        task = grant["task"]["id"]
        await stage.operator.post(f"/v1/tasks/{task}/cancel")
        answer = await alice.take(held=[{"task": task, "fence": grant["fence"], "renew": True}])
        assert answer["cancelled"] == [task]


async def test_a_turn_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        refused = await alice.post("/v1/turns", alice.turn(surprise=1))
        assert (refused.status, refused.code) == (400, "bad_request")
        assert "surprise" in refused.body["error"]["message"]


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def refused_result(stage: Stage, worker: Worker, grant: dict[str, Any], **changes: Any) -> str:
    done = {**worker.done(grant), **changes}
    (outcome,) = (await worker.take(done=[done]))["outcomes"]
    assert (await status(stage, grant["task"]["id"]))["status"] == "active"
    return str(outcome["error"]["code"])


async def test_a_result_that_the_root_cannot_read_is_refused_and_the_lease_stays(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        assert await refused_result(stage, alice, grant, manifest=None) == "result_unreadable"
        assert await refused_result(stage, alice, grant, manifest=b"{}") == "result_unreadable"
        garbage = b"no manifest"
        assert await refused_result(stage, alice, grant, manifest=garbage, cid=raw_cid(garbage)) == "result_unreadable"


async def test_a_manifest_of_another_task_or_worker_is_a_mismatch(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, bob = await stage.worker("alice"), await stage.worker("bob")
        (grant,) = await granted(stage, alice)
        task = grant["task"]["id"]
        for body in (alice.manifest("0" * 36), bob.manifest(task)):
            assert await refused_result(stage, alice, grant, manifest=body, cid=raw_cid(body)) == "result_mismatch"


async def test_all_that_a_manifest_names_must_be_in_the_store(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        page = build(b"x" * 3_000_000)
        outcome = UrlOutcome(url="http://h0.example/", body=ContentRef(cid=page.root, size_bytes=3_000_000))
        done = alice.done(grant, outcomes=(outcome,))
        (first,) = (await alice.take(done=[done]))["outcomes"]
        assert first["error"]["code"] == "result_unreadable"
        assert first["error"]["details"]["missing"] == [page.root]

        for cid, block in page.blocks.items():
            await stage.door.store.put(cid, block)  # type: ignore[attr-defined]
        (second,) = (await alice.take(done=[done]))["outcomes"]
        assert second["status"] == "completed"
        assert (await status(stage, grant["task"]["id"]))["result_bytes"] == len(done["manifest"]) + 3_000_000


async def test_the_same_result_again_is_answered_and_another_one_differs(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        done = alice.done(grant)
        for _ in range(2):
            (outcome,) = (await alice.take(done=[done]))["outcomes"]
            assert outcome["status"] == "completed"
        (other,) = (await alice.take(done=[alice.done(grant, meta={"b": 2})]))["outcomes"]
        assert other["error"]["code"] == "result_differs"


# ── the seed's single calls ───────────────────────────────────────────────────────────────────────────────────────


async def test_second_worker_is_refused_with_invalid_assignee(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, bob, carol = await stage.worker("alice"), await stage.worker("bob"), await stage.requester("carol")
        await alice.take()
        await bob.take()
        (task,) = await stage.submit(carol)
        grant = (await alice.post(f"/v1/tasks/{task}/claim")).data
        refused = await bob.post(f"/v1/tasks/{task}/claim")

        assert (refused.status, refused.code) == (400, "invalid_assignee")
        view = await status(stage, task)
        assert (view["assignee"], view["fence"]) == (alice.address, grant["fence"])

        stolen = bob.manifest(task)
        for path, body in (
            ("complete", {"fence": grant["fence"], "cid": raw_cid(stolen), "manifest": stolen}),
            ("fail", {"fence": grant["fence"], "reason": "dns"}),
            ("release", {"fence": grant["fence"]}),
        ):
            refused = await bob.post(f"/v1/tasks/{task}/{path}", body)
            assert (refused.status, refused.code) == (400, "invalid_assignee"), path
        assert (await status(stage, task))["status"] == "active"

        done = alice.done(grant)
        completed = await alice.post(
            f"/v1/tasks/{task}/complete", {key: done[key] for key in ("fence", "cid", "manifest")}
        )
        assert completed.data["status"] == "completed"
        late = await bob.post(f"/v1/tasks/{task}/claim")
        assert (late.status, late.code) == (400, "invalid_assignee")


async def test_a_stale_fence_is_told_in_the_details(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, bob = await stage.worker("alice"), await stage.worker("bob")
        (grant,) = await granted(stage, alice)
        task = grant["task"]["id"]
        await alice.post(f"/v1/tasks/{task}/release", {"fence": grant["fence"]})
        await bob.take(want=1)
        stale = await alice.post(f"/v1/tasks/{task}/fail", {"fence": grant["fence"], "reason": "dns"})
        assert (stale.status, stale.code) == (400, "invalid_assignee")
        assert stale.body["error"]["details"]


async def test_a_claim_says_hello_where_no_turn_has(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol)
        unknown = await alice.post(f"/v1/tasks/{task}/claim")
        assert (unknown.status, unknown.code) == (409, "kind_unsupported")
        assert (await alice.post(f"/v1/tasks/{task}/claim", {"hello": HELLO})).data["fence"] == 1


async def test_a_retryable_failure_waits_and_another_ends_it(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        first, second = await granted(stage, alice, 2)
        path = "/v1/tasks/{}/fail"
        waiting = await alice.post(path.format(first["task"]["id"]), {"fence": first["fence"], "reason": "dns"})
        failed = await alice.post(path.format(second["task"]["id"]), {"fence": second["fence"], "reason": "tls"})
        assert (waiting.data["status"], failed.data["status"]) == ("waiting", "failed")


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        await alice.take()
        for path, body in (("claim", None), ("fail", {"fence": 1, "reason": "dns"}), ("release", {"fence": 1})):
            for task in ("0192f000-0000-7000-8000-000000000000", "x", "%00"):
                reply = await alice.post(f"/v1/tasks/{task}/{path}", body)
                assert reply.code in {"not_found", "unstorable_text"}, (path, task)


# ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_deleting_a_worker_requeues_its_work(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        grants = await granted(stage, alice, 2)
        (listed,) = (await stage.operator.get("/v1/workers")).data["items"]
        assert (listed["status"], listed["free"], listed["active"]) == ("ready", 6, 2)
        one = (await stage.operator.get(f"/v1/workers/{alice.address}")).data
        assert one["id"] == listed["id"]
        assert sorted(one["tasks"]) == sorted(grant["task"]["id"] for grant in grants)

        removed = (await stage.operator.call("DELETE", f"/v1/workers/{listed['id']}?why=new%20disk")).data
        (act,) = (await stage.operator.get("/v1/admin/acts")).data["items"]
        assert (act["act"], act["subject"], act["why"]) == ("removed", listed["id"], "new disk")
        assert removed["requeued"] == 2
        assert (await status(stage, grants[0]["task"]["id"]))["status"] == "pending"
        assert (await stage.operator.get("/v1/workers")).data["items"] == []
        assert (await stage.operator.get(f"/v1/workers/{listed['id']}")).code == "not_found"


async def test_what_workers_count_is_shown_of_each_and_of_all_together(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        for name, requests in (("alice", 3), ("bob", 4)):
            worker = await stage.worker(name)
            stats = {"uptime_s": 2.5, "requests_sent": requests, "requests_failed": 1, "items": 10}
            await worker.take(free=0, stats={**stats, "bytes_downloaded": 100})
        listed = (await stage.operator.get("/v1/workers")).data["items"]
        assert sorted(one["stats"]["requests_sent"] for one in listed) == [3, 4]
        assert {one["stats"]["uptime_s"] for one in listed} == {2.5}
        together = (await stage.operator.get("/v1/status")).data["counted"]
        assert together == {
            "uptime_s": 5.0, "requests_sent": 7, "requests_failed": 2, "items": 20, "bytes_downloaded": 200
        }  # fmt: skip


async def test_robots_rules_of_a_private_site_are_not_fetched_for_anybody(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        refused = await alice.get("/v1/robots?origin=http://127.0.0.1:9")
        assert refused.code in {"robots_unavailable", "bad_request"}
        assert (await alice.get("/v1/robots")).code == "bad_request"
        assert (await alice.get("/v1/robots?origin=nonsense")).status < 500


async def test_a_worker_that_was_forgotten_is_granted_tasks_by_what_it_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        await alice.take()
        await save_workers(stage.door)
        monkeypatch.setattr(fleet_module, "KEPT_S", 0.0)
        stage.door.fleet.forget_silent()
        stage.door.turns.forget_silent()
        monkeypatch.undo()
        assert len(stage.door.turns) == 0
        assert (await stage.operator.get("/v1/workers")).data["items"] == []

        await granted(stage, alice, 1)
        (listed,) = (await stage.operator.get("/v1/workers")).data["items"]
        assert (listed["address"], set(listed["kinds"])) == (alice.address, {"noop", "fetch"})


class _Web:
    """A root's robots.txt where every site has one, and none is at hand."""

    def __init__(self, *, crawl_delay_s: float | None = None) -> None:
        self.asked: list[str] = []
        self._crawl_delay_s = crawl_delay_s

    async def rules(self, origin: str) -> RobotsAnswer | Refusal:
        self.asked.append(origin)
        return RobotsAnswer(origin=origin, rules="", fresh_s=60.0, crawl_delay_s=self._crawl_delay_s)

    def at_hand(self, _origin: str) -> RobotsAnswer | None:
        return None


async def test_rules_of_sites_that_a_worker_holds_no_task_of_are_asked_for_slowly(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, bob, web, now_s = await stage.worker("alice"), await stage.worker("bob"), _Web(), [0.0]
        limiter = RateLimiter(Limits(stray_rate_per_s=0.5, stray_burst=2), clock=lambda: now_s[0])
        object.__setattr__(stage.door, "limiter", limiter)
        object.__setattr__(stage.door, "robots", web)
        (grant,) = await granted(stage, alice, 1)
        assert grant["task"]["urls"] == ["http://h0.example/"]

        strays = [await alice.get(f"/v1/robots?origin=https://s{number}.example") for number in range(3)]
        assert [reply.status for reply in strays] == [200, 200, 429]
        assert (strays[2].code, strays[2].body["error"]["retry_after_s"]) == ("rate_limited", 2.0)
        assert len(web.asked) == 2
        for _ in range(3):
            assert (await alice.get("/v1/robots?origin=http://h0.example")).status == 200
        assert (await bob.get("/v1/robots?origin=http://h0.example")).status == 200
        now_s[0] += 2.0
        assert (await alice.get("/v1/robots?origin=https://s3.example")).status == 200

        await alice.take(done=[alice.done(grant)])
        assert (await alice.get("/v1/robots?origin=http://h0.example")).code == "rate_limited"


async def test_what_was_granted_before_a_crawl_delay_was_known_is_given_back_and_granted_one_by_one(
    tmp_path: Path,
) -> None:
    async with door(tmp_path, host_rate=0.0) as stage:
        alice, bob, carol = await stage.worker("alice"), await stage.worker("bob"), await stage.requester("carol")
        object.__setattr__(stage.door, "robots", _Web(crawl_delay_s=0.01))
        for number in range(3):
            await stage.submit(carol, urls=(f"http://slow.example/{number}",))
        asking = "/v1/robots?origin=http://slow.example"
        early = {worker.address: (await worker.take(want=1))["grants"] for worker in (alice, bob)}
        for worker in (alice, bob):
            refused = await worker.get(asking)
            assert (refused.status, refused.code) == (409, "host_busy")
        for worker in (alice, bob):
            (grant,) = early[worker.address]
            lease = {"task": grant["task"]["id"], "fence": grant["fence"]}
            assert (await worker.take(released=[lease]))["outcomes"][0]["status"] == "pending"

        async with asyncio.timeout(PATIENCE_S):
            while not (grants := (await alice.take(want=3)).get("grants")):
                pass
        assert len(grants) == 1
        assert "grants" not in await bob.take(want=3)
        assert (await alice.get(asking)).status == 200
