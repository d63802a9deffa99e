"""What an operator does by hand, over HTTP: each call is kept with who made it and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rendezvous.door import session as session_module
from rendezvous.ledger.act_ops import Quarantine
from rendezvous.ledger.ops import Sweep
from rendezvous.ledger.values import WorkerRef
from tests.rendezvous.door_harness import Reply, Stage, door
from tests.rendezvous.test_door_session import Talk, talk

WHY = "a test says so"


async def _acts(stage: Stage) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await stage.operator.get("/v1/admin/acts")).data["items"]
    return items


async def test_a_task_failed_by_hand_is_a_dead_letter_that_says_who_and_why(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        answer = (await stage.operator.post("/v1/admin/fail", {"tasks": [task], "why": WHY})).data
        assert answer["tasks"] == [{"task": task, "fence": 0, "status": "failed"}]

        view = (await carol.get(f"/v1/tasks/{task}")).data
        assert (view["status"], view["reason"], view["detail"], view["attempts"]) == ("failed", "by_hand", WHY, 1)
        last = (await carol.get(f"/v1/tasks/{task}/events")).data["items"][-1]
        assert (last["move"], last["by"]) == ("failed_by_hand", "operator")
        assert (last["who"], last["detail"]) == ("operator", WHY)
        assert WHY in (await carol.get(f"/v1/tasks/{task}/why")).data["message"]
        (act,) = await _acts(stage)
        assert (act["who"], act["act"], act["subject"], act["why"]) == ("operator", "failed", task, WHY)
        assert (await stage.operator.get("/v1/status")).data["acts"] == [act]


async def test_a_task_failed_by_hand_can_be_replayed(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        await stage.operator.post("/v1/admin/fail", {"tasks": [task], "why": WHY})
        assert (await carol.post(f"/v1/tasks/{task}/replay")).data["status"] == "pending"
        (grant,) = (await alice.take(want=1))["grants"]
        assert grant["task"]["id"] == task


async def test_a_task_failed_with_retry_waits_for_its_next_attempt_until_none_is_left(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        (task,) = await stage.submit(carol, 1, max_attempts=2)
        body = {"tasks": [task], "why": WHY, "retry": True}
        statuses = [(await stage.operator.post("/v1/admin/fail", body)).data["tasks"][0]["status"] for _ in range(2)]
        assert statuses == ["waiting", "failed"]
        third = (await stage.operator.post("/v1/admin/fail", body)).data["tasks"][0]
        assert third["error"]["code"] == "wrong_status"


async def test_the_holder_of_a_task_failed_by_hand_is_told_at_once_and_its_result_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        async with talk(stage, alice) as session:
            (grant,) = (await session.take(want=1))["grants"]
            await stage.operator.post("/v1/admin/fail", {"tasks": [task], "why": WHY})
            frame = await session.hear()
            assert (frame["frame"], frame["tasks"]) == ("cancel", [task])
            answer = await session.take(done=[alice.done(grant)])
            assert answer["outcomes"][0]["error"]["code"] == "wrong_status"


async def test_a_revoked_worker_loses_its_session_its_leases_and_its_key_at_once(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        async with talk(stage, alice) as session:
            await session.take(want=1)
            answer = (await stage.operator.post("/v1/admin/revoke", {"owner": alice.address, "why": WHY})).data
            assert answer == {"owner": alice.address, "keys": 1, "sessions": 1, "requeued": 1}
            assert await session.closed() == session_module.CLOSE_REVOKED

        refused = await alice.post("/v1/turns", alice.turn())
        assert (refused.status, refused.code) == (401, "key_revoked")
        assert WHY in refused.body["error"]["message"]
        assert (await carol.get(f"/v1/tasks/{task}")).data["status"] == "pending"
        last = (await carol.get(f"/v1/tasks/{task}/events")).data["items"][-1]
        assert (last["move"], last["by"], last["who"]) == ("released", "operator", "operator")
        assert WHY in last["detail"]
        assert (await stage.operator.get("/v1/workers")).data["items"] == []


async def test_a_long_reason_in_any_language_ends_the_session_with_the_same_code(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        async with talk(stage, alice) as session:
            await session.take()
            await stage.operator.post("/v1/admin/revoke", {"owner": alice.address, "why": "zu spät: " + "ü" * 300})
            assert await session.closed() == session_module.CLOSE_REVOKED


async def test_a_revoked_worker_enrols_again_only_after_it_was_admitted(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        assert (await alice.get("/v1/robots")).code == "bad_request"  # what a worker asks whether its key is taken
        await stage.operator.post("/v1/admin/revoke", {"owner": alice.address, "why": WHY})
        assert (await alice.get("/v1/robots")).code == "key_revoked"
        request, _, _ = stage.enrolment("alice", await stage.challenge())
        refused = await stage.anyone.post("/v1/enrolments", request)
        assert (refused.status, refused.code) == (401, "key_revoked")
        assert WHY in refused.body["error"]["message"]

        body = {"owner": alice.address, "why": "repaired"}
        assert (await stage.operator.post("/v1/admin/admit", body)).data == {"owner": alice.address}
        assert (await stage.operator.post("/v1/admin/admit", body)).code == "not_found"
        assert [act["act"] for act in await _acts(stage)] == ["admitted", "revoked"]
        back = await stage.worker("alice")
        assert (await back.take(want=1))["frame"] == "turn"


async def test_a_revoked_requester_is_refused_with_the_reason_and_its_tasks_go_on(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        assert (await stage.operator.post("/v1/admin/revoke", {"owner": "carol", "why": WHY})).data["keys"] == 1
        refused = await carol.get(f"/v1/tasks/{task}")
        assert (refused.status, refused.code) == (401, "key_revoked")
        assert WHY in refused.body["error"]["message"]
        assert len((await alice.take(want=1))["grants"]) == 1

        again = await stage.requester("carol")  # a new key for the name takes it back
        assert (await again.get(f"/v1/tasks/{task}")).status == 200


async def test_nobody_revokes_the_key_that_asks_or_one_that_is_not_there(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        own = await stage.operator.post("/v1/admin/revoke", {"owner": "operator", "why": WHY})
        assert (own.status, own.code) == (400, "bad_request")
        unknown = await stage.operator.post("/v1/admin/revoke", {"owner": "nobody", "why": WHY})
        assert (unknown.status, unknown.code) == (404, "not_found")
        assert await _acts(stage) == []


@pytest.mark.parametrize("path", ["/v1/admin/fail", "/v1/admin/revoke", "/v1/admin/admit", "/v1/admin/pause"])
async def test_no_act_goes_without_a_reason_or_by_another_than_an_operator(tmp_path: Path, path: str) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        said: dict[str, Any] = {"fail": {"tasks": ["0" * 36]}, "pause": {}}
        body = said.get(path.rpartition("/")[2], {"owner": "carol"})
        assert (await stage.operator.post(path, {**body, "why": ""})).code == "bad_request"
        assert (await carol.post(path, {**body, "why": WHY})).code == "forbidden"


async def test_acts_come_page_by_page_newest_first(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        tasks = await stage.submit(carol, 3)
        for task in tasks:
            await stage.operator.post("/v1/admin/fail", {"tasks": [task], "why": WHY})
        first = (await stage.operator.get("/v1/admin/acts?limit=2")).data
        rest = (await stage.operator.get(f"/v1/admin/acts?limit=2&cursor={first['next']}")).data
        assert [act["subject"] for act in (*first["items"], *rest["items"])] == tasks[::-1]
        assert "next" not in rest
        assert (await stage.operator.get("/v1/admin/acts?cursor=x")).code == "bad_request"


# ── pause, quarantine, versions ───────────────────────────────────────────────────────────────────────────────────


async def test_a_paused_swarm_grants_nothing_and_says_who_why_and_since_when(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        async with talk(stage, alice) as session:
            await session.take()
            paused = (await stage.operator.post("/v1/admin/pause", {"why": WHY})).data
            assert (paused["scope"], paused["who"], paused["why"]) == ("swarm", "operator", WHY)
            frame = await session.hear()
            assert frame["frame"] == "pause"
            assert WHY in frame["reason"]

            (task,) = await stage.submit(carol, 1)
            answer = await _turn(session, want=1)
            assert "grants" not in answer
            assert answer["paused"] == frame["reason"]
            assert (await session.take())["paused"] == frame["reason"]  # also where it asks for nothing

            why = (await carol.get(f"/v1/tasks/{task}/why")).data
            assert all(part in why["message"] for part in ("operator", WHY, "UTC"))
            refusal = why["workers"][0]["refusal"]
            assert refusal["code"] == "paused"
            assert refusal["details"]["since"] == paused["since"]
            status = (await stage.operator.get("/v1/status")).data
            assert status["paused"] == [paused]

            assert (await stage.operator.post("/v1/admin/resume", {})).data == {"scope": "swarm", "name": ""}
            assert await session.hear() == {"frame": "pause"}
            assert [grant["task"]["id"] for grant in (await session.take(want=1))["grants"]] == [task]
        assert "paused" not in (await stage.operator.get("/v1/status")).data
        assert [act["act"] for act in await _acts(stage)] == ["resumed", "paused"]


async def _turn(session: Talk, **said: Any) -> dict[str, Any]:
    """A turn's answer; nudges on the way are nothing that a test is about."""
    frame = await session.take(**said)
    while frame["frame"] == "nudge":
        frame = await session.hear()
    return frame


async def test_a_paused_host_keeps_its_tasks_alone_and_wakes_the_idle_when_it_is_resumed(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        body = {"host": "http://H0.example/some/page", "why": WHY}
        assert (await stage.operator.post("/v1/admin/pause", body)).data["name"] == "h0.example"
        held, other = await stage.submit(carol, 2)
        async with talk(stage, alice) as session:
            (grant,) = (await session.take(want=2))["grants"]
            assert grant["task"]["id"] == other
            assert WHY in (await carol.get(f"/v1/tasks/{held}/why")).data["message"]
            await stage.operator.post("/v1/admin/resume", {"host": "h0.example", "why": "it answers again"})
            assert (await session.hear())["frame"] == "nudge"
            answer = await session.take(want=2, held=[{"task": other, "fence": grant["fence"]}])
            assert [grant["task"]["id"] for grant in answer["grants"]] == [held]


async def test_a_paused_job_and_what_cannot_be_paused(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        job = (await carol.get(f"/v1/tasks/{task}")).data["job"]
        await stage.operator.post("/v1/admin/pause", {"job": job, "why": WHY})
        assert "grants" not in await alice.take(want=1)
        assert WHY in (await carol.get(f"/v1/tasks/{task}/why")).data["message"]

        both = await stage.operator.post("/v1/admin/pause", {"job": job, "host": "h0.example", "why": WHY})
        assert both.code == "bad_request"
        assert (await stage.operator.post("/v1/admin/pause", {"job": "0" * 36, "why": WHY})).code == "not_found"
        assert (await stage.operator.post("/v1/admin/pause", {"host": "no host", "why": WHY})).code == "bad_request"
        assert (await stage.operator.post("/v1/admin/resume", {})).code == "not_found"


async def test_a_quarantined_worker_loses_what_it_holds_of_the_host_and_gets_no_more_of_it(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, bob = await stage.worker("alice"), await stage.worker("bob")
        carol = await stage.requester("carol")
        await stage.submit(carol, 1)
        (grant,) = (await bob.take(want=1))["grants"]
        await bob.take(free=0, done=[bob.done(grant)])  # what is taken from others isn't for newcomers
        (task,) = await stage.submit(carol, 1)
        body = {"worker": alice.address, "host": "h0.example", "why": WHY}
        async with talk(stage, alice) as session:
            await session.take(want=1)
            answer = (await stage.operator.post("/v1/admin/quarantine", {**body, "for_s": 60})).data
            assert (answer["requeued"], answer["who"], answer["left_s"]) == (1, "operator", 60)
            frame = await session.hear()
            while frame["frame"] == "nudge":  # the task waits again, and this worker's other slots are free
                frame = await session.hear()
            assert (frame["frame"], frame["tasks"]) == ("cancel", [task])
            assert "grants" not in await _turn(session, want=1)
            whys = (await carol.get(f"/v1/tasks/{task}/why")).data["workers"]
            (why,) = [one["refusal"] for one in whys if one["worker"] == alice.address]
            assert WHY in why["message"]
        (shown,) = (await stage.operator.get("/v1/status")).data["quarantines"]
        assert (shown["worker"], shown["host"], shown["why"]) == (
            f"{alice.address}:{alice.instance}",
            "h0.example",
            WHY,
        )

        assert [grant["task"]["id"] for grant in (await bob.take(want=1))["grants"]] == [task]
        last = (await carol.get(f"/v1/tasks/{task}/events")).data["items"][-2]
        assert (last["move"], last["who"]) == ("quarantined", "operator")
        lifted = await stage.operator.post("/v1/admin/unquarantine", {"worker": alice.address, "host": "h0.example"})
        assert lifted.data == {"worker": f"{alice.address}:{alice.instance}", "host": "h0.example"}
        again = await stage.operator.post("/v1/admin/unquarantine", {"worker": alice.address, "host": "h0.example"})
        assert again.code == "not_found"
        unknown = await stage.operator.post("/v1/admin/quarantine", {**body, "worker": "0x" + "0" * 40})
        assert (unknown.status, unknown.code) == (404, "not_found")


async def test_a_quarantine_can_be_ended_though_the_worker_was_revoked_since(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        ids = f"{alice.address}:{alice.instance}", alice.address

        async def ask(call: str, **body: str) -> Reply:
            return await stage.operator.post(f"/v1/admin/{call}", body)

        for host in ("one.example", "two.example"):
            await ask("quarantine", worker=alice.address, host=host, why=WHY)
        await ask("revoke", owner=alice.address, why=WHY)
        await ask("admit", owner=alice.address, why="repaired")
        kept = (await stage.operator.get("/v1/status")).data["quarantines"]
        assert [one["worker"] for one in kept] == [ids[0]] * 2

        for host, worker in zip(("one.example", "two.example"), ids, strict=True):
            other = await ask("unquarantine", worker=worker, host="three.example")
            assert (other.code, "swarm-root policy" in other.body["error"]["message"]) == ("not_found", True)
            assert (await ask("unquarantine", worker=worker, host=host)).data == {"worker": ids[0], "host": host}
        assert "quarantines" not in (await stage.operator.get("/v1/status")).data


async def test_which_of_two_workers_of_an_address_is_let_go_is_asked(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        one, two = WorkerRef("0x" + "a1" * 20, "peer-1"), WorkerRef("0x" + "a1" * 20, "peer-2")
        for ref in (one, two):
            await stage.door.ledger.call(Quarantine(worker=ref, host="h.example", for_s=60.0, who="olga", why=WHY))
        body = {"worker": one.address, "host": "h.example"}
        asked = await stage.operator.post("/v1/admin/unquarantine", body)
        assert asked.code == "bad_request"
        assert f"name one: {one.address}:peer-1, {one.address}:peer-2" in asked.body["error"]["message"]
        body["worker"] += ":peer-2"
        assert (await stage.operator.post("/v1/admin/unquarantine", body)).status == 200


async def test_who_pins_what_nobody_runs_is_warned(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        await alice.take()

        async def pin(name: str, version: str, **more: bool) -> str:
            body = {"name": name, "version": version, "why": WHY, **more}
            return "".join((await stage.operator.post("/v1/admin/approve-version", body)).data.get("warnings", []))

        assert await pin("worker", "0.1.0") == ""
        assert "no live worker runs wrker: what can be pinned now is worker, fetch, noop" in await pin("wrker", "0.1.0")
        assert "no live worker has such a version of noop, so none gets tasks; there are 1" in await pin("noop", "2")
        assert await pin("noop", "2", approved=False) == ""


async def test_only_pinned_versions_are_granted_tasks(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        body = {"name": "noop", "version": "2", "why": WHY}
        assert (await stage.operator.post("/v1/admin/approve-version", body)).data["versions"] == ["2"]
        assert "grants" not in await alice.take(want=1)
        assert (await stage.operator.get("/v1/status")).data["approved"] == [{"name": "noop", "versions": ["2"]}]
        refusal = (await carol.get(f"/v1/tasks/{task}/why")).data["workers"][0]["refusal"]
        assert "noop" in refusal["message"]
        withdrawn = await stage.operator.post("/v1/admin/approve-version", {**body, "approved": False})
        assert withdrawn.data["versions"] == []
        assert len((await alice.take(want=1))["grants"]) == 1


async def test_workers_of_a_network_are_kept_apart_and_the_policy_is_shown(tmp_path: Path) -> None:
    async with door(tmp_path, host_rate=0.0) as stage:
        carol, alice, bob = await stage.requester("carol"), await stage.worker("alice"), await stage.worker("bob")
        urls = ("http://site.example/",)
        one, two = await stage.submit(carol, urls=urls), await stage.submit(carol, urls=urls, spec={"n": 2})
        said = {"host": "http://SITE.example/x", "why": "its owner asked"}
        answer = (await stage.operator.post("/v1/admin/apart", said)).data
        assert answer == {"host": "site.example", "apart": True}

        await bob.take(free=0)
        (grant,) = (await alice.take(want=1))["grants"]
        assert grant["task"]["id"] == one[0]
        assert (await bob.post(f"/v1/tasks/{two[0]}/claim", {"boot": bob.boot})).code == "prefix_taken"
        await alice.take(done=[alice.done(grant)])
        await stage.door.ledger.call(Sweep())
        view = (await stage.operator.get("/v1/admin/policy")).data
        assert view["versions"] == [
            {"kind": "noop", "worker": "0.1.0", "version": "1", "done": 1, "failed": 0, "success_rate": 1.0}
        ]
        assert (view["quarantines"], view["profiles"], view["quarantines_counted"]) == ([], [], 0)
        assert (await carol.get("/v1/admin/policy")).status == 403


async def test_the_policy_comes_page_by_page_list_after_list(tmp_path: Path) -> None:
    async with door(tmp_path, host_rate=0.0) as stage:
        alice, bob = await stage.worker("alice"), await stage.worker("bob")
        for number, worker in enumerate((alice, bob, alice)):
            said = {"worker": worker.address, "host": f"h{number}.example", "for_s": 1_000.0, "why": "a test"}
            assert (await stage.operator.post("/v1/admin/quarantine", said)).status == 200
        for number in range(3):
            named = {"requires": {"profile": f"p{number}"}, "urls": ("http://free.example/",)}
            await stage.submit(await stage.requester(f"carol{number}"), 1, **named)
        labels = tuple(f"profile:p{number}" for number in range(3))
        await alice.take(want=3, hello=msgspec.structs.replace(alice.turn()["hello"], labels=labels))
        whole = (await stage.operator.get("/v1/admin/policy")).data
        assert (len(whole["quarantines"]), len(whole["profiles"])) == (3, 3)
        assert "next" not in whole
        for limit in (1, 2, 3, 4, 5):
            found: dict[str, list[Any]] = {"quarantines": [], "profiles": [], "versions": []}
            cursor = ""
            while True:
                page = (await stage.operator.get(f"/v1/admin/policy?limit={limit}{cursor}")).data
                assert 0 < sum(len(page[name]) for name in found) <= limit
                for name in found:
                    found[name] += page[name]
                if "next" not in page:
                    break
                cursor = f"&cursor={page['next']}"
            for row in (*found["quarantines"], *whole["quarantines"]):
                row.pop("left_s", None)
            assert found == {name: whole[name] for name in found}
        for odd in ("x", "WzFd", "////", "WzEsMiwzLDRd", "W251bGwsIlx1MDAwMCIsbnVsbCwxXQ=="):
            refused = await stage.operator.get(f"/v1/admin/policy?cursor={odd}")
            assert (refused.status, refused.code) == (400, "bad_request")
