"""Tasks as their owner sees them: submit, look, cancel, replay; and that others see nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from swarm.wire import MAX_TASKS_PER_SUBMISSION
from tests.rendezvous.door_harness import Stage, door


def task(**changes: Any) -> dict[str, Any]:
    return {"kind": "noop", "urls": ["http://h.example/"], **changes}


async def refusal(stage: Stage, body: object) -> tuple[int, str, str]:
    carol = await stage.requester("carol")
    reply = await carol.post("/v1/tasks", body)
    return reply.status, reply.code, reply.body["error"]["message"]


async def test_a_submission_names_a_job_and_each_task(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        answer = (await carol.post("/v1/tasks", {"tasks": [task(), task(urls=["http://h.example/2"])]})).data

        assert [one["status"] for one in answer["tasks"]] == ["created", "created"]
        job = (await carol.get(f"/v1/jobs/{answer['job']}")).data
        assert (job["total"], job["counts"]["pending"], job["done"]) == (2, 2, False)
        view = (await carol.get(f"/v1/tasks/{answer['tasks'][0]['id']}")).data
        assert (view["status"], view["host"], view["owner"]) == ("pending", "h.example", "carol")


async def test_a_kind_that_no_live_worker_runs_is_a_warning(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        alice = await stage.worker("alice")
        await alice.take()

        assert "warnings" not in (await carol.post("/v1/tasks", {"tasks": [task()]})).data
        warned = (await carol.post("/v1/tasks", {"tasks": [task(kind="crawl")]})).data["warnings"]
        assert len(warned) == 1
        assert "crawl" in warned[0]
        elsewhere = (await carol.post("/v1/tasks", {"tasks": [task(requires={"region": "mars"})]})).data["warnings"]
        assert "mars" in elsewhere[0]


async def test_a_tier_that_the_operator_has_not_named_is_a_warning(tmp_path: Path) -> None:
    async with door(tmp_path, tier=(("news", 80.0), ("rest", 20.0))) as stage:
        carol, alice = await stage.requester("carol"), await stage.worker("alice")
        await alice.take()

        for tier in ("news", "bulk"):  # the one by default, which nobody chose
            assert "warnings" not in (await carol.post("/v1/tasks", {"tasks": [task(tier=tier)]})).data
        body = {"tasks": [task(tier="fast"), task(tier="fast", spec={"n": 2})]}
        (warned,) = (await carol.post("/v1/tasks", body)).data["warnings"]
        assert warned == "there is no tier fast, so its tasks have the smallest share; the tiers are news, rest"


async def test_the_same_idempotency_key_submits_once(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        first = (await carol.post("/v1/tasks", {"tasks": [task()]}, Idempotency_Key="k1")).data
        second = (await carol.post("/v1/tasks", {"tasks": [task()]}, Idempotency_Key="k1")).data
        other = await carol.post("/v1/tasks", {"tasks": [task(priority=9)]}, Idempotency_Key="k1")

        assert first["job"] == second["job"]
        assert first["tasks"] == second["tasks"]
        assert (other.status, other.code) == (409, "idempotency_mismatch")


async def test_a_duplicate_is_answered_with_the_task_that_has_it(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        answer = (await carol.post("/v1/tasks", {"tasks": [task(), task(urls=["HTTP://H.example:80/#x"])]})).data

        first, second = answer["tasks"]
        assert second == {"id": first["id"], "status": "duplicate"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"surprise": 1}, "bad_request"),
        ({"kind": "No Kind"}, "bad_request"),
        ({"priority": 10}, "bad_request"),
        ({"urls": []}, "bad_request"),
        ({"urls": ["ftp://h.example/"]}, "bad_url"),
        ({"urls": ["http://user:pw@h.example/"]}, "bad_url"),
        ({"urls": ["http://a.example/", "http://b.example/"]}, "urls_of_many_hosts"),
        ({"meta": {"x": "y" * 5000}}, "body_too_large"),
        ({"spec": {"x": "y" * 70_000}}, "body_too_large"),
        ({"spec": {"x": "\0"}}, "unstorable_text"),
        ({"spec": {"x": 2**70}}, "unstorable_text"),
        ({"dedupe": {"key": "k", "ttl_s": 1}}, "dedupe_ttl_too_short"),
        ({"requires": {"planet": "mars"}}, "bad_request"),
        ({"reward_wei": "-1"}, "bad_request"),
    ],
)
async def test_a_task_that_cannot_be_is_refused_with_its_code(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    async with door(tmp_path) as stage:
        _, said, message = await refusal(stage, json.dumps({"tasks": [task(**changes)]}).encode())
        assert said == code
        assert " " in message


async def test_a_spec_nested_beyond_reason_is_refused(tmp_path: Path) -> None:
    nested: Any = {}
    for _ in range(400):
        nested = {"x": nested}
    async with door(tmp_path) as stage:
        status, code, _ = await refusal(stage, json.dumps({"tasks": [task(spec=nested)]}).encode())
        assert (status, code) == (400, "bad_request")


async def test_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        body = b'{"tasks":[{"kind":"noop","urls":["http://h.example/"],"spec":{"x":"\\ud800"}}]}'
        status, code, _ = await refusal(stage, body)
        assert status == 400
        assert code in {"unstorable_text", "bad_request"}


async def test_more_than_a_thousand_tasks_or_4_mib_are_too_many(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        many = {"tasks": [task(urls=[f"http://h.example/{n}"]) for n in range(MAX_TASKS_PER_SUBMISSION + 1)]}
        assert (await refusal(stage, many))[:2] == (400, "bad_request")
        carol = await stage.requester("carol")
        big = await carol.post("/v1/tasks", b" " * (4 * 1024 * 1024 + 1))
        assert (big.status, big.code) == (413, "body_too_large")


async def test_what_isnt_json_is_a_bad_request(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        for body in (b"", b"[]", b"{", b"\xff\xfe", b"null"):
            assert (await refusal(stage, body))[:2] == (400, "bad_request")


async def test_others_tasks_are_not_found(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol, dave = await stage.requester("carol"), await stage.requester("dave")
        answer = (await carol.post("/v1/tasks", {"tasks": [task()]})).data
        mine, job = answer["tasks"][0]["id"], answer["job"]

        for path in (f"/v1/tasks/{mine}", f"/v1/tasks/{mine}/events", f"/v1/tasks/{mine}/why", f"/v1/jobs/{job}",
                     f"/v1/jobs/{job}/results"):  # fmt: skip
            reply = await dave.get(path)
            assert (reply.status, reply.code) == (404, "not_found"), path
            assert (await carol.get(path)).status == 200, path
            assert (await stage.operator.get(path)).status == 200, path
        for path in (f"/v1/tasks/{mine}/cancel", f"/v1/tasks/{mine}/replay", f"/v1/jobs/{job}/cancel",
                     f"/v1/jobs/{job}/replay"):  # fmt: skip
            assert (await dave.post(path)).code == "not_found", path
        assert (await dave.get("/v1/tasks")).data["items"] == []
        joined = await dave.post("/v1/tasks", {"tasks": [task()], "job": job})
        assert joined.code == "not_found"
        assert (await carol.get(f"/v1/tasks/{mine}")).data["status"] == "pending"


async def test_pages_follow_one_another_to_the_end(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        ids = await stage.submit(carol, 25)
        found: list[str] = []
        cursor = ""
        while True:
            page = (await carol.get(f"/v1/tasks?limit=10{cursor}")).data
            found += [one["id"] for one in page["items"]]
            if page.get("next") is None:
                break
            cursor = f"&cursor={page['next']}"
        assert sorted(found) == sorted(ids)
        assert len(found) == 25


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "status=nope", "limt=1", "cursor=%00"])
async def test_a_query_that_cannot_be_is_refused(tmp_path: Path, query: str) -> None:
    async with door(tmp_path) as stage:
        reply = await (await stage.requester("carol")).get(f"/v1/tasks?{query}")
        assert reply.status == 400
        assert reply.code in {"bad_request", "unstorable_text"}


async def test_an_unknown_query_names_the_nearest(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        reply = await (await stage.requester("carol")).get("/v1/tasks?limt=1")
        assert "limit" in reply.body["error"]["message"]


async def test_a_cancelled_task_ends_and_a_second_cancel_says_so(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        (one,) = await stage.submit(carol)

        assert (await carol.post(f"/v1/tasks/{one}/cancel")).data["status"] == "cancelled"
        again = await carol.post(f"/v1/tasks/{one}/cancel")
        assert (again.status, again.code) == (409, "wrong_status")
        history = (await carol.get(f"/v1/tasks/{one}/events")).data["items"]
        assert [event["move"] for event in history] == ["submitted", "cancelled"]
        assert history[-1]["who"] == "carol"


async def test_a_dead_letter_lives_again_after_a_replay(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol, alice = await stage.requester("carol"), await stage.worker("alice")
        (one,) = await stage.submit(carol)
        (grant,) = (await alice.take(want=1))["grants"]
        await alice.take(failed=[{"task": one, "fence": grant["fence"], "reason": "http_4xx"}])
        view = (await carol.get(f"/v1/tasks/{one}")).data
        assert (view["status"], view["reason"]) == ("failed", "http_4xx")
        listed = (await carol.get(f"/v1/jobs/{view['job']}/results")).data["items"]
        assert [(row["task"], row["status"], row["reason"]) for row in listed] == [(one, "failed", "http_4xx")]

        changed = (await carol.post(f"/v1/jobs/{view['job']}/replay")).data
        assert changed["changed"] == 1
        assert (await carol.get(f"/v1/tasks/{one}")).data["status"] == "pending"


async def test_why_names_each_live_workers_refusal(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol, alice = await stage.requester("carol"), await stage.worker("alice")
        (one,) = await stage.submit(carol, kind="crawl")
        nobody = (await carol.get(f"/v1/tasks/{one}/why")).data
        assert nobody["live_workers"] == 0

        await alice.take()
        why = (await carol.get(f"/v1/tasks/{one}/why")).data
        assert [(row["worker"], row["refusal"]["code"]) for row in why["workers"]] == [
            (alice.address, "kind_unsupported")
        ]


async def test_the_queue_is_exported_as_lines_that_can_be_submitted_again(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        await stage.submit(carol, 3, spec={"a": 1})
        exported = (await stage.operator.get("/v1/queue/export")).body
        rows = [json.loads(line) for line in exported.splitlines()]
        assert len(rows) == 3

        assert {row.pop("owner") for row in rows} == {"carol"}
        assert len({row.pop("job") for row in rows}) == 1
        assert len({row.pop("id") for row in rows}) == 3
        assert all(row.pop("kept_key") for row in rows)  # which only an import heeds
        assert (await carol.post("/v1/tasks", {"tasks": rows})).status == 200


async def test_a_big_answer_is_compressed_and_a_small_one_is_not(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        await stage.submit(carol, 30)
        async with stage.http.get(
            f"{stage.url}/v1/tasks",
            headers={"Authorization": f"Bearer {carol.key}", "Accept-Encoding": "gzip"},
            auto_decompress=False,
        ) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert len(json.loads(gzip.decompress(await answer.read()))["data"]["items"]) == 30
        assert "Content-Encoding" not in (await carol.get("/healthz")).headers


async def test_a_reward_in_a_swarm_without_a_contract_is_refused_and_nothing_is_submitted(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        for caller in (carol, stage.operator):
            refused = await caller.post("/v1/tasks", {"tasks": [task(), task(reward_wei="1")]})
            assert (refused.status, refused.code) == (400, "unpaid_swarm")
        assert (await carol.get("/v1/jobs")).data["items"] == []
        account = (await carol.get("/v1/account")).data
        assert account == {"owner": "carol", "role": "requester"}


async def test_a_budget_is_set_when_a_job_is_made_and_not_later(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        job = (await carol.post("/v1/tasks", {"tasks": [task()]})).data["job"]
        refused = await carol.post("/v1/tasks", {"tasks": [task(priority=1)], "job": job, "budget_wei": "5"})
        assert (refused.status, refused.code) == (400, "bad_request")
