"""``/v1/queue``: what waits, written out and taken in again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.rendezvous.door_harness import Stage, door


async def _lines(stage: Stage) -> list[dict[str, Any]]:
    exported = (await stage.operator.get("/v1/queue/export")).body
    return [json.loads(line) for line in exported.splitlines()]


def _joined(lines: list[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(line).encode() for line in lines)


async def test_the_queue_says_how_much_waits_where_and_for_how_long(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        assert (await stage.operator.get("/v1/queue")).data == {"pending": 0, "waiting": 0, "active": 0}
        made = [{"kind": "noop", "urls": [f"http://full.example/{number}"]} for number in range(3)]
        await carol.post("/v1/tasks", {"tasks": made})
        await stage.submit(carol, 2)
        await stage.submit(carol, 1, not_before_s=60.0, spec={"later": True})
        await alice.take(want=1)
        seen = (await stage.operator.get("/v1/queue")).data
        assert (seen["pending"], seen["waiting"], seen["active"]) == (4, 1, 1)
        assert seen["hosts"][0] == {"host": "full.example", "ready": 2}
        assert seen["oldest_ready_s"] >= 0


async def test_an_export_is_taken_in_by_another_root_with_its_owners_and_jobs(tmp_path: Path) -> None:
    async with door(tmp_path / "old") as old:
        carol, dora = await old.requester("carol"), await old.requester("dora")
        await old.submit(carol, 2, priority=8, spec={"a": 1}, requires={"region": "eu"}, expires_in_s=5_000.0)
        await old.submit(dora, 1, not_before_s=600.0)
        lines = await _lines(old)
    async with door(tmp_path / "new") as new:
        taken = (await new.operator.post("/v1/queue/import", _joined(lines))).data
        assert taken == {"created": 3, "duplicates": 0, "refused": 0}
        carol = await new.requester("carol")
        (job,) = (await carol.get("/v1/jobs")).data["items"]
        assert (job["id"], job["total"]) == (lines[0]["job"], 2)
        again = await _lines(new)
        for one in (*lines, *again):
            assert 4_000.0 < one.pop("expires_in_s") <= 604_800.0
            assert 590.0 < one.pop("not_before_s", 600.0) <= 600.0
            one.pop("id")
        assert again == lines


async def test_taking_the_same_lines_in_again_makes_nothing_twice(tmp_path: Path) -> None:
    async with door(tmp_path / "old") as old:
        carol = await old.requester("carol")
        await old.submit(carol, 2)
        await old.submit(carol, 1, dedupe={"key": "mine", "ttl_s": 200_000.0})
        body = _joined(await _lines(old))
        same = (await old.operator.post("/v1/queue/import", body)).data
        assert (same["created"], same["duplicates"]) == (0, 3)
    async with door(tmp_path / "new") as new:
        assert (await new.operator.post("/v1/queue/import", body)).data["created"] == 3
        again = (await new.operator.post("/v1/queue/import", body)).data
        assert (again["created"], again["duplicates"]) == (0, 3)


async def test_a_line_that_cannot_be_taken_is_named_and_keeps_no_other_out(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        body = b"\n".join(
            [
                b"http://plain.example/",
                b"",
                b"{",
                b'{"kind":"noop","urls":["http://a.example/","http://b.example/"]}',
                b'{"kind":"noop","urls":["http://a.example/"],"surprise":1}',
                b'{"kind":"noop","urls":["http://a.example/"],"owner":"a\\u0000b"}',
                b'{"kind":"noop","urls":["http://a.example/"],"reward_wei":"5"}',
                b'{"kind":"noop","urls":["http://a.example/"],"job":"00000000-0000-7000-8000-000000000001"}',
            ]
        )
        taken = (await stage.operator.post("/v1/queue/import", body)).data
        assert (taken["created"], taken["refused"]) == (2, 5)
        assert [(fault["line"], fault["code"]) for fault in taken["faults"]] == [
            (3, "bad_request"),
            (4, "urls_of_many_hosts"),
            (5, "bad_request"),
            (6, "unstorable_text"),
            (7, "unpaid_swarm"),
        ]


async def test_a_job_of_somebody_else_is_not_joined(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        (task,) = await stage.submit(carol, 1)
        job = (await carol.get(f"/v1/tasks/{task}")).data["job"]
        line = {"kind": "noop", "urls": ["http://a.example/"], "owner": "mallory", "job": job}
        taken = (await stage.operator.post("/v1/queue/import", _joined([line]))).data
        assert (taken["created"], taken["faults"][0]["code"]) == (0, "not_found")
        assert (await carol.post("/v1/queue/import", _joined([line]))).code == "forbidden"
        assert (await stage.operator.post("/v1/queue/import", b"x\n" * 10_001)).code == "body_too_large"


async def test_lines_with_an_odd_owner_or_a_job_that_is_none_are_refused_and_the_others_taken(tmp_path: Path) -> None:
    def line(number: int, **said: str) -> dict[str, Any]:
        return {"kind": "noop", "urls": [f"http://a.example/{number}"], **said}

    odd = [
        line(1, job="0" * 33 + "\u202e" * 3),
        line(2, job="../" * 12),
        line(3, owner="eve\n"),
        line(4, owner="\u202eeve"),
        line(5, kind="noop\n"),
        line(6, tier="bulk\n"),
    ]
    async with door(tmp_path) as stage:
        taken = (await stage.operator.post("/v1/queue/import", _joined([*odd, line(7, owner="carol")]))).data
        assert (taken["created"], taken["refused"]) == (1, 6)
        assert [fault["code"] for fault in taken["faults"]] == ["bad_request"] * 6
        carol = await stage.requester("carol")
        refused = await carol.post("/v1/tasks", {"tasks": [line(8, kind="noop\n")]})
        assert (refused.status, refused.code) == (400, "bad_request")


async def test_a_requesters_own_key_still_holds_in_the_ledger_that_took_the_lines_in(tmp_path: Path) -> None:
    mine = {"key": "mine", "ttl_s": 200_000.0}
    async with door(tmp_path / "old") as old:
        await old.submit(await old.requester("carol"), 1, dedupe=mine)
        lines = await _lines(old)
        assert b"mine" not in _joined(lines)
    async with door(tmp_path / "new") as new:
        assert (await new.operator.post("/v1/queue/import", _joined(lines))).data["created"] == 1
        task = {"kind": "noop", "urls": ["http://elsewhere.example/"], "dedupe": mine}
        for name, status in (("carol", "duplicate"), ("dora", "created")):  # keys are each requester's own
            answer = (await (await new.requester(name)).post("/v1/tasks", {"tasks": [task]})).data
            assert [one["status"] for one in answer["tasks"]] == [status]
        (again,) = [line for line in await _lines(new) if line["owner"] == "carol"]
        assert again["kept_key"] == lines[0]["kept_key"]


async def test_a_key_that_no_ledger_keeps_is_refused_with_its_line(tmp_path: Path) -> None:
    def line(**kept: Any) -> dict[str, Any]:
        return {"kind": "noop", "urls": ["http://a.example/"], "kept_key": {"digest": "a" * 22, "ttl_s": 2e5, **kept}}

    async with door(tmp_path) as stage:
        odd = [line(digest="a" * 21), line(digest="a" * 21 + "\n"), line(ttl_s=-1), line(ttl_s=1), line()]
        taken = (await stage.operator.post("/v1/queue/import", _joined(odd))).data
        assert (taken["created"], taken["refused"]) == (1, 4)
        assert [fault["code"] for fault in taken["faults"]] == [*["bad_request"] * 3, "dedupe_ttl_too_short"]
