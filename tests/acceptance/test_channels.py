"""Real processes paid by vouchers: over kills of the root, and redeemed when the root is gone for good."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rendezvous.chain.escrow import channel_call, decode_channel
from tests.acceptance.harness import PROJECT, Root, Scene, Worker, command, noop, until
from tests.acceptance.test_paid import REWARD, Paid, paying_on
from tests.chain.hardhat import ETHER, Hardhat, running_hardhat
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.acceptance

TASKS = 12


@pytest.fixture(scope="module")
def hardhat() -> Iterator[Hardhat]:
    with running_hardhat() as node:
        yield node


@pytest.fixture
def paid(hardhat: Hardhat, tmp_path: Path) -> Iterator[Paid]:
    with paying_on(hardhat, tmp_path) as set_up:
        yield set_up


def submit(root: Root, count: int) -> list[str]:
    tasks = [noop(more={"reward_wei": str(REWARD)}) for _ in range(count)]
    submitted = root.door.call("POST", "/v1/tasks", {"tasks": tasks, "settle": "channel"}).ok()
    return [task["id"] for task in submitted["tasks"]]


def all_have(root: Root, tasks: list[str], flag: str) -> bool:
    return all(root.door.task(task).get(flag) for task in tasks)


def money(worker: Worker, name: str, *options: str, code: int = 0) -> str:
    """``swarm-worker wallet`` or ``redeem`` on a worker's directory."""
    done = subprocess.run(
        [*command("swarm-worker"), name, "--data", str(worker.data), *options],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def earned_wei(worker: Worker) -> int:
    told = json.loads(money(worker, "wallet", "--json"))
    return sum(int(channel["earned_wei"]) for channel in told["channels"])


def settled_wei(paid: Paid, payee: str) -> int:
    data = "0x" + channel_call(paid.chain.signer.address, payee).hex()
    answer: Any = paid.ask("eth_call", {"to": paid.chain.contract, "data": data}, "latest")
    return decode_channel(answer).settled_wei


def test_what_was_earned_is_paid_out_when_the_root_is_gone_for_good(scene: Scene, paid: Paid) -> None:
    root = scene.root(*paid.options)
    alice = scene.worker(root, "--p2p", "off", name="alice")
    address = alice.address
    assert address is not None
    tasks = submit(root, TASKS)
    until(lambda: all_have(root, tasks, "accepted"), "every task to be accepted", guard=[root.process])
    root.kill()  # most likely before the channel is funded
    root.start()
    until(lambda: earned_wei(alice) == TASKS * REWARD, "the vouchers", guard=[root.process, alice.process])
    assert all_have(root, tasks, "on_chain")
    assert not any(root.door.task(task).get("paid") for task in tasks)

    root.kill()
    alice.process.stop()
    paid.ask("hardhat_setBalance", address, hex(ETHER))  # for gas
    told = money(alice, "redeem", "--yes")
    assert f"redeemed 0.012eth for {address}" in told
    assert settled_wei(paid, address) == TASKS * REWARD
    assert paid.ether(address) > ETHER
    assert "all of it was paid" in money(alice, "redeem", "--yes")

    root.start()  # after all: the ledger follows what was done without it
    until(lambda: all_have(root, tasks, "paid"), "the ledger to follow", guard=[root.process])


def test_a_root_killed_again_and_again_owes_each_task_once(scene: Scene, paid: Paid) -> None:
    root = scene.root(*paid.options)
    alice = scene.worker(root, "--p2p", "off", name="alice")
    assert alice.address is not None
    tasks: list[str] = []
    for wave in range(4):
        submitted = submit(root, 3)
        tasks += submitted
        until(partial(all_have, root, submitted, "accepted"), f"wave {wave}", guard=[root.process])
        root.kill()
        root.start()
    until(lambda: earned_wei(alice) == len(tasks) * REWARD, "the vouchers", guard=[root.process, alice.process])
    paid.ask("hardhat_setBalance", alice.address, hex(ETHER))
    money(alice, "redeem", "--rpc", paid.url, "--yes")  # beside the running worker
    until(lambda: all_have(root, tasks, "paid"), "the ledger to follow", guard=[root.process])
    assert settled_wei(paid, alice.address) == len(tasks) * REWARD
    assert earned_wei(alice) == len(tasks) * REWARD
