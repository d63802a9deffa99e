"""What an operator does by hand, over HTTP: each call is kept with who made it and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rendezvous.door import session as session_module
from tests.rendezvous.door_harness import Stage, door
from tests.rendezvous.test_door_session import talk

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


async def test_a_revoked_worker_enrols_again_only_after_it_was_admitted(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        await stage.operator.post("/v1/admin/revoke", {"owner": alice.address, "why": WHY})
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


@pytest.mark.parametrize("path", ["/v1/admin/fail", "/v1/admin/revoke", "/v1/admin/admit"])
async def test_no_act_goes_without_a_reason_or_by_another_than_an_operator(tmp_path: Path, path: str) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        body = {"tasks": ["0" * 36]} if path.endswith("fail") else {"owner": "carol"}
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
