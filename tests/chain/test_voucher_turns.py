"""Vouchers over HTTP: a root that pays by channels on a real node, and what its turns bring."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from swarm.chain_reader import redeem_data
from swarm.content.cid import parse_cid
from swarm.vouchers import EMPTY_TASKS_ROOT, Escrow, Voucher, chain_task_id, next_tasks_root, voucher_signer
from tests.chain.hardhat import Chain, Hardhat
from tests.chain.test_channels import key_of, send
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import Stage, Worker, door

REWARD = 10**15


@pytest.fixture
def options(chain: Chain, hardhat: Hardhat, tmp_path: Path) -> dict[str, Any]:
    keystore, passphrase = tmp_path / "payer.json", tmp_path / "passphrase"
    keystore.write_text(json.dumps(Account.encrypt(chain.key, "correct horse", iterations=2)))
    passphrase.write_text("correct horse\n")
    for file in (keystore, passphrase):
        file.chmod(0o600)
    paying = {"rpc": hardhat.url, "contract": chain.contract, "chain_key": keystore, "passphrase_file": passphrase}
    return {**paying, "finality": 1, "host_rate": 0.0}


@asynccontextmanager
async def mining(chain: Chain) -> AsyncIterator[None]:
    """A block every fifth of a second: what was sent becomes final."""
    await chain.rpc.call("evm_setAutomine", False)
    await chain.rpc.call("evm_setIntervalMining", 200)
    try:
        yield
    finally:
        await chain.rpc.call("evm_setIntervalMining", 0)
        await chain.rpc.call("evm_setAutomine", True)


async def submit(stage: Stage, count: int, **submission: Any) -> dict[str, Any]:
    tasks = [
        {"kind": "noop", "urls": [f"http://h{number}.example/"], "reward_wei": str(REWARD)} for number in range(count)
    ]
    answer: dict[str, Any] = (
        await stage.operator.post("/v1/tasks", {"tasks": tasks, "settle": "channel", **submission})
    ).data
    return answer


async def do_tasks(alice: Worker, count: int) -> list[dict[str, Any]]:
    """Take so many tasks and complete them; the grants."""
    grants = (await alice.take(want=count, free=count))["grants"]
    await alice.take(done=[alice.done(grant) for grant in grants])
    return list(grants)


async def vouchers(alice: Worker, payer: str, seen_wei: int, until: Callable[[Any], bool]) -> Any:
    """Turns until one brings a voucher that is right."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            told = (await alice.take(vouchers_seen={payer: str(seen_wei)})).get("vouchers", [])
            if told and until(told[0]):
                return told[0]
            await asyncio.sleep(0.1)  # a real chain: polled with a deadline


def root_over(told: Any, root: bytes = EMPTY_TASKS_ROOT) -> bytes:
    for each in told["tasks"]:
        root = next_tasks_root(
            root,
            chain_task=chain_task_id(each["task"], each["generation"]),
            output=parse_cid(each["result"]).digest,
            reward_wei=int(each["reward_wei"]),
        )
    return root


async def test_turns_bring_signed_vouchers_with_every_task_since_the_last_one(
    chain: Chain, options: dict[str, Any], tmp_path: Path
) -> None:
    async with door(tmp_path, **options) as stage, mining(chain):
        told = (await stage.anyone.get("/settings")).body["data"]["ethereum"]
        payer = chain.signer.address
        assert told["payer"] == payer
        job = (await submit(stage, 5))["job"]
        assert (await stage.operator.get(f"/v1/jobs/{job}")).data["settle"] == "channel"
        alice = await stage.worker("alice")
        grants = await do_tasks(alice, 2)
        assert [grant["task"]["voucher_wei"] for grant in grants] == [str(REWARD)] * 2

        first = await vouchers(alice, payer, 0, lambda told: int(told["cumulative_wei"]) == 2 * REWARD)
        assert (first["payer"], first["payee"], first["contract"]) == (payer, alice.address, chain.contract)
        assert {each["task"] for each in first["tasks"]} == {grant["task"]["id"] for grant in grants}
        voucher = Voucher(
            requester=payer,
            worker=alice.address,
            cumulative_wei=2 * REWARD,
            tasks_root=bytes.fromhex(first["tasks_root"][2:]),
        )
        signature = bytes.fromhex(first["signature"][2:])
        place = Escrow(chain_id=told["chain_id"], address=chain.contract)
        assert voucher_signer(place, voucher, signature) == payer
        assert root_over(first) == voucher.tasks_root

        # one that has it is told nothing; one that lost it is told all of it again, in the next one
        assert (await alice.take(vouchers_seen={payer: str(2 * REWARD)})).get("vouchers", []) == []
        await do_tasks(alice, 1)
        again = await vouchers(alice, payer, 0, lambda told: len(told["tasks"]) == 3)
        assert root_over(again) == bytes.fromhex(again["tasks_root"][2:])
        newer = await vouchers(alice, payer, 2 * REWARD, lambda told: True)
        assert (newer["since_wei"], len(newer["tasks"])) == (str(2 * REWARD), 1)
        assert root_over(newer, voucher.tasks_root) == bytes.fromhex(newer["tasks_root"][2:])
        assert newer["signature"] == again["signature"]

        # redeemed by somebody else: the tasks are paid in the ledger
        await chain.rpc.call("evm_setAutomine", True)
        await send(chain.rpc, key_of("relayer"), chain.contract, redeem_data(voucher, signature))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                views = [(await stage.operator.get(f"/v1/tasks/{grant['task']['id']}")).data for grant in grants]
                if all(view.get("paid") for view in views):
                    break
                await asyncio.sleep(0.2)  # a real chain: polled with a deadline
        assert await chain.ether(alice.address) == 2 * REWARD


async def test_a_started_root_signs_what_was_earned_before(
    chain: Chain, options: dict[str, Any], tmp_path: Path
) -> None:
    payer = chain.signer.address
    async with mining(chain):
        async with door(tmp_path, **options) as stage:
            await submit(stage, 3)
            alice = await stage.worker("alice")
            await do_tasks(alice, 2)  # and is gone before the channel is funded
        async with door(tmp_path, **options) as stage:
            alice.http, alice.url, alice.n = stage.http, stage.url, 0
            alice.boot = "boot-0002"
            told = await vouchers(alice, payer, 0, lambda told: len(told["tasks"]) == 2)
            assert int(told["cumulative_wei"]) == 2 * REWARD


async def test_a_root_restored_from_an_older_copy_learns_what_it_signed_from_its_workers(
    chain: Chain, options: dict[str, Any], tmp_path: Path
) -> None:
    payer = chain.signer.address
    async with mining(chain):
        async with door(tmp_path / "first", **options) as stage:
            await submit(stage, 3)
            alice = await stage.worker("alice")
            await do_tasks(alice, 3)
            last = await vouchers(alice, payer, 0, lambda told: len(told["tasks"]) == 3)
        async with door(tmp_path / "second", **options) as stage:  # another ledger, of the same key: nothing is known
            shown = {name: value for name, value in last.items() if name not in ("tasks", "since_wei")}
            mallory = await stage.worker("mallory")
            await mallory.take(voucher=shown)  # hers it isn't
            forged = {**shown, "payee": mallory.address, "cumulative_wei": str(10**18)}
            mallory.boot, mallory.n = "boot-0002", 0
            await mallory.take(voucher=forged)
            ledger = stage.door.ledger
            assert await ledger.read(lambda reader: reader.channel(payer, mallory.address)) is None

            alice = await stage.worker("alice")
            await alice.take(voucher=shown, vouchers_seen={payer: last["cumulative_wei"]})
            await submit(stage, 1)
            await do_tasks(alice, 1)
            told = await vouchers(alice, payer, 3 * REWARD, lambda told: True)
            assert (int(told["cumulative_wei"]), len(told["tasks"])) == (4 * REWARD, 1)
            assert root_over(told, bytes.fromhex(last["tasks_root"][2:])) == bytes.fromhex(told["tasks_root"][2:])


async def test_how_a_job_is_settled_cannot_be_changed(chain: Chain, options: dict[str, Any], tmp_path: Path) -> None:
    async with door(tmp_path, **options) as stage:
        job = (await submit(stage, 1))["job"]
        task = {"kind": "noop", "urls": ["http://h9.example/"], "reward_wei": "1"}
        refused = await stage.operator.post("/v1/tasks", {"tasks": [task], "job": job, "settle": "task"})
        assert refused.status == 400
        assert "fixed when it is made" in refused.body["error"]["message"]
        assert chain.contract
