"""The ways out that alerts name: an operator's commands beside the running root."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from eth_account import Account

from rendezvous.chain.outbox import WorryCode
from rendezvous.cli import run
from tests.chain.hardhat import Chain, Hardhat
from tests.chain.pay_world import REWARD, PayWorld, check_books
from tests.chain.test_edges import send_foreign
from tests.rendezvous.ledger_world import new_task


@pytest.fixture
def options(tmp_path: Path, hardhat: Hardhat, chain: Chain, world: PayWorld) -> list[str]:
    """What names this root, its key and its chain on a command line."""
    assert run(["init", "--data", str(tmp_path / "root")]) == 0
    keystore = tmp_path / "wallet.json"
    keystore.write_text(json.dumps(Account.encrypt(chain.key, "x", iterations=2)))
    keystore.chmod(0o600)
    ledger = f"sqlite:///{world.path}"
    return ["--data", str(tmp_path / "root"), "--ledger", ledger, "--chain-key", str(keystore)]


async def test_a_stopped_root_signs_again_after_wallet_resume(
    hardhat: Hardhat, chain: Chain, world: PayWorld, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    await world.claim_key()
    where = ["--rpc", hardhat.url, "--contract", chain.contract]
    assert await asyncio.to_thread(run, ["wallet", "resume", *options, *where]) == 2
    assert "didn't stop" in capsys.readouterr().err
    await send_foreign(chain)
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    assert WorryCode.SENDER_STOPPED in world.worry_codes

    assert await asyncio.to_thread(run, ["wallet", "resume", *options, *where]) == 0
    assert "from nonce 1 on" in capsys.readouterr().out
    await world.settle_down(times=1)
    world.run_task()
    await world.settle_down()
    assert world.view(task).paid is not None
    await check_books(world)


async def test_parked_intents_are_tried_again_after_wallet_retry(
    chain: Chain, world: PayWorld, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(run, ["wallet", "retry", *options]) == 0
    assert "0 parked intents" in capsys.readouterr().out


async def test_payments_go_on_while_the_wallet_is_too_empty_for_fundings(chain: Chain, world: PayWorld) -> None:
    paid = world.one(reward_wei=REWARD)
    await world.settle_down(times=1)
    await chain.rpc.call("hardhat_setBalance", chain.signer.address, hex(10**17))
    dear = world.one(reward_wei=10**20)  # older than the payment, and never to be paid for
    await world.rounds()
    (first, _second) = (world.claim_one(), world.claim_one())
    assert first.task == paid
    world.complete_one(first)
    await world.settle_down()
    assert world.view(paid).paid is not None
    assert world.view(dear).on_chain is None
    assert WorryCode.WALLET_EMPTY in world.worry_codes


async def test_a_batch_of_many_rewards_is_signed_in_turn(chain: Chain, world: PayWorld) -> None:
    tasks = world.submit(*(new_task(reward_wei=REWARD + n) for n in range(5)))
    await world.settle_down()
    assert all(world.view(task).on_chain is not None for task in tasks)
