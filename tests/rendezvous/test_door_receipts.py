"""Receipts at the door: signed with the completion, checked, kept, and shown to those whom they concern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarm.content.cid import raw_cid
from swarm.receipts import receipt_fault, sign_completion
from swarm.wire import Completion, Receipt
from tests.rendezvous.door_harness import Stage, Worker, door


def prove(stage: Stage, worker: Worker, grant: dict[str, Any], done: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A done item with the worker's signature."""
    completion = Completion(
        **{
            "network": stage.door.site.charter.network_id,
            "task": grant["task"]["id"],
            "generation": grant["task"]["generation"],
            "result": done["cid"],
            "fence": grant["fence"],
            "worker": worker.address,
            "payout": worker.address,
            **changes,
        }
    )
    signed = sign_completion(worker.eth_key, completion)
    return {**done, "proof": {"generation": completion.generation, "signature": signed.signature}}


async def completed(stage: Stage, **changes: Any) -> tuple[str, Worker, dict[str, Any]]:
    """A task that alice did, and the turn's answer."""
    (task,) = await stage.submit(await stage.requester("carol"))
    alice = await stage.worker("alice")
    (grant,) = (await alice.take(want=1))["grants"]
    done = prove(stage, alice, grant, alice.done(grant), **changes)
    return task, alice, await alice.take(done=[done])


async def test_a_signed_completion_gives_a_receipt_that_both_sides_signed(tmp_path: Path) -> None:
    async with door(tmp_path, receipts="all") as stage:
        task, alice, answer = await completed(stage)
        assert answer["outcomes"][0]["status"] == "completed"

        carol = await stage.requester("carol")
        shown = (await carol.get(f"/v1/tasks/{task}/receipt")).data
        receipt = msgspec.convert(shown, Receipt)
        assert receipt_fault(receipt, signer=stage.door.site.key_id) is None
        assert (receipt.completion.worker, receipt.completion.task) == (alice.address, task)
        assert receipt.completion.result == raw_cid(alice.manifest(task))
        for caller in (alice, stage.operator, carol):
            assert (await caller.get(f"/v1/tasks/{task}/receipt")).data == shown


async def test_a_receipt_is_no_strangers_business(tmp_path: Path) -> None:
    async with door(tmp_path, receipts="all") as stage:
        task, _, _ = await completed(stage)
        for stranger in (await stage.requester("mallory"), await stage.worker("bob")):
            refused = await stranger.get(f"/v1/tasks/{task}/receipt")
            assert (refused.status, refused.code) == (404, "not_found")


@pytest.mark.parametrize(
    "changes",
    [{"network": "another"}, {"fence": 99}, {"payout": "0x" + "00" * 20}, {"generation": 2}, {"result": raw_cid(b"")}],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_signature_over_anything_else_is_refused_and_the_task_stays_with_its_worker(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    async with door(tmp_path, receipts="all") as stage:
        task, alice, answer = await completed(stage, **changes)
        assert answer["outcomes"][0]["error"]["code"] == "signature_invalid"

        view = (await stage.operator.get(f"/v1/tasks/{task}")).data
        assert (view["status"], view["assignee"]) == ("active", alice.address)
        assert (await alice.get(f"/v1/tasks/{task}/receipt")).code == "not_found"


async def test_a_completion_without_a_signature_is_taken_and_has_no_receipt(tmp_path: Path) -> None:
    async with door(tmp_path, receipts="all") as stage:
        (task,) = await stage.submit(stage.operator)
        alice = await stage.worker("alice")
        (grant,) = (await alice.take(want=1))["grants"]
        answer = await alice.take(done=[alice.done(grant)])
        assert answer["outcomes"][0]["status"] == "completed"
        assert (await alice.get(f"/v1/tasks/{task}/receipt")).code == "not_found"


async def test_a_task_without_a_receipt_is_told_why_it_has_none(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol, mallory = await stage.requester("carol"), await stage.requester("mallory")
        (task,) = await stage.submit(carol)
        alice, bob = await stage.worker("alice"), await stage.worker("bob")

        async def why(caller: Any) -> str:
            refused = await caller.get(f"/v1/tasks/{task}/receipt")
            assert (refused.status, refused.code) == (404, "not_found")
            return str(refused.body["error"]["message"])

        assert await why(carol) == f"the task {task} is pending: it has a receipt once it is completed"
        (grant,) = (await alice.take(want=1))["grants"]
        await alice.take(done=[alice.done(grant)])
        for caller in (carol, alice, stage.operator):
            assert "only where the root ran with --receipts all" in await why(caller)
        for stranger in (mallory, bob):
            assert await why(stranger) == f"there is no task {task} of yours"


async def test_a_single_call_may_be_signed_too(tmp_path: Path) -> None:
    async with door(tmp_path, receipts="all") as stage:
        (task,) = await stage.submit(stage.operator)
        alice = await stage.worker("alice")
        await alice.take()
        grant = (await alice.post(f"/v1/tasks/{task}/claim")).data
        done = prove(stage, alice, grant, alice.done(grant))
        del done["task"]
        assert (await alice.post(f"/v1/tasks/{task}/complete", done)).data["status"] == "completed"
        assert (await alice.get(f"/v1/tasks/{task}/receipt")).status == 200


async def test_the_roots_signature_is_kept_over_a_restart(tmp_path: Path) -> None:
    async with door(tmp_path, receipts="all") as stage:
        task, _, _ = await completed(stage)
        before = (await stage.operator.get(f"/v1/tasks/{task}/receipt")).data
    async with door(tmp_path, receipts="all") as stage:
        assert (await stage.operator.get(f"/v1/tasks/{task}/receipt")).data == before


async def test_by_default_only_a_completion_that_is_paid_for_is_signed(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        await stage.submit(stage.operator)
        alice = await stage.worker("alice")
        (grant,) = (await alice.take(want=1))["grants"]
        assert "generation" not in grant["task"]
