"""The operator's calls on either database: what they ask of the ledger is the same SQL."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import door
from tests.rendezvous.test_door_session import talk

WHY = "a test says so"


async def test_an_operator_can_do_all_there_is_to_do_on_either_database(tmp_path: Path, database: str) -> None:
    async with door(tmp_path, ledger=database) as stage:
        alice, carol, operator = await stage.worker("alice"), await stage.requester("carol"), stage.operator

        async def act(what: str, **body: Any) -> Any:
            return (await operator.post(f"/v1/admin/{what}", {"why": WHY, **body})).data

        first, second, third = await stage.submit(carol, 3)
        await act("pause")
        assert "grants" not in await alice.take(want=1)
        await act("resume")
        await act("approve-version", name="noop", version="1")
        await act("quarantine", worker=alice.address, host="h0.example")
        (grant,) = (await alice.take(want=1))["grants"]
        assert grant["task"]["id"] == second
        one = (await operator.get(f"/v1/workers/{alice.address}")).data
        assert (one["tasks"], one["active"]) == ([second], 1)
        assert (await operator.get("/v1/workers")).data["items"][0]["active"] == 1
        await act("unquarantine", worker=alice.address, host="h0.example")
        await act("fail", tasks=[third])

        queue = (await operator.get("/v1/queue")).data
        assert (queue["pending"], queue["active"], queue["hosts"]) == (1, 1, [{"host": "h0.example", "ready": 1}])
        exported = (await operator.get("/v1/queue/export")).body
        assert [json.loads(line)["id"] for line in exported.splitlines()] == [first]
        assert (await operator.post("/v1/queue/import", exported)).data["duplicates"] == 1

        revoked = await act("revoke", owner=alice.address)
        assert (revoked["keys"], revoked["requeued"]) == (1, 1)
        assert (await alice.post("/v1/turns", alice.turn())).code == "key_revoked"
        await act("admit", owner=alice.address)
        status = (await operator.get("/v1/status")).data
        assert status["tasks"]["pending"] == 2
        assert [one["act"] for one in status["acts"]] == [
            "admitted", "revoked", "failed", "quarantine_lifted", "quarantined"
        ]  # fmt: skip
        assert (await operator.get("/v1/alerts")).data["items"] == []


async def test_tasks_are_pushed_on_either_database(tmp_path: Path, database: str) -> None:
    async with door(tmp_path, ledger=database, mode="assign") as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        async with talk(stage, alice) as session:
            await session.take()
            (task,) = await stage.submit(carol, 1)
            async with asyncio.timeout(PATIENCE_S):
                frame = await session.hear()
            assert [grant["task"]["id"] for grant in frame["grants"]] == [task]
            assert (await session.take(done=[alice.done(frame["grants"][0])]))["outcomes"][0]["status"] == "completed"
