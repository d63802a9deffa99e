"""A paid swarm of real processes on a real chain: what is funded, paid and refunded, also over a root's kills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from eth_account import Account

from rendezvous.chain.escrow import TaskState, decode_task, task_call
from rendezvous.chain.rpc import open_rpc
from swarm.vouchers import chain_task_id
from tests.acceptance.harness import Root, Scene, command, noop, until
from tests.chain.hardhat import Chain, Hardhat, fresh_chain, running_hardhat
from tests.free_port import free_port
from tests.patience import PATIENCE_S

REWARD = 10**15
BLOCK_MS = 200


@attrs.frozen
class Paid:
    """A chain for one root: where it is, and the options that the root needs for it."""

    url: str
    chain: Chain
    options: tuple[str, ...]

    def ask(self, method: str, *params: Any) -> Any:
        """A call of the node."""

        async def call() -> Any:
            async with open_rpc(self.url) as rpc:
                return await rpc.call(method, *params)

        return asyncio.run(call())

    def state(self, task: str, generation: int = 1) -> TaskState:
        """A task's state in the contract."""
        data = task_call(self.chain.signer.address, chain_task_id(task, generation))
        return decode_task(self.ask("eth_call", {"to": self.chain.contract, "data": "0x" + data.hex()}, "latest")).state

    def ether(self, address: str) -> int:
        """An account's wei."""
        return int(self.ask("eth_getBalance", address, "latest"), 16)


@pytest.fixture(scope="module")
def hardhat() -> Iterator[Hardhat]:
    with running_hardhat() as node:
        yield node


@pytest.fixture
def paid(hardhat: Hardhat, tmp_path: Path) -> Iterator[Paid]:
    with paying_on(hardhat, tmp_path) as set_up:
        yield set_up


@contextmanager
def paying_on(hardhat: Hardhat, directory: Path) -> Iterator[Paid]:
    """A contract and a payer on a node that mines by the clock."""

    async def set_up() -> Chain:
        async with open_rpc(hardhat.url) as rpc:
            chain = await fresh_chain(rpc)
            await rpc.call("evm_setAutomine", False)
            await rpc.call("evm_setIntervalMining", BLOCK_MS)
            return chain

    async def tear_down() -> None:
        async with open_rpc(hardhat.url) as rpc:
            await rpc.call("evm_setIntervalMining", 0)
            await rpc.call("evm_setAutomine", True)

    chain = asyncio.run(set_up())
    keystore, passphrase = directory / "payer.json", directory / "passphrase"
    keystore.write_text(json.dumps(Account.encrypt(chain.key, "correct horse", iterations=2)))
    passphrase.write_text("correct horse\n")
    for file in (keystore, passphrase):
        file.chmod(0o600)
    options = ("--rpc", hardhat.url, "--contract", chain.contract, "--chain-key", str(keystore))
    more = ("--passphrase-file", str(passphrase), "--finality", "2", "--host-rate", "0", "--p2p", "off")
    yield Paid(hardhat.url, chain, (*options, *more))
    asyncio.run(tear_down())


def settled(root: Root, tasks: list[str]) -> list[dict[str, Any]] | None:
    """The tasks, once each was paid or refunded."""
    views = [root.door.task(task) for task in tasks]
    return views if all(view.get("paid") or view.get("refunded") for view in views) else None


def test_completed_tasks_are_paid_and_failed_ones_refunded(scene: Scene, paid: Paid) -> None:
    root = scene.root(*paid.options)
    told = root.door.call("GET", "/settings").ok()
    where = {"network": "hardhat", "chain_id": 31337, "contract": paid.chain.contract}
    assert told["ethereum"] == {**where, "payer": paid.chain.signer.address, "rpc": paid.url}
    alice = scene.worker(root, "--p2p", "off", name="alice")
    before = paid.ether(alice.address)
    reward = {"reward_wei": str(REWARD)}
    submitted = root.door.submit([*(noop(more=reward) for _ in range(5)), noop(more=reward, fail="http_4xx")])
    tasks = [task["id"] for task in submitted["tasks"]]
    views = until(lambda: settled(root, tasks), "every task to be settled", guard=[root.process])

    assert [view["status"] for view in views] == ["completed"] * 5 + ["failed"]
    assert [paid.state(task) for task in tasks] == [TaskState.PAID] * 5 + [TaskState.FAILED]
    assert all(view.get("on_chain") for view in views)
    assert paid.ether(alice.address) - before == 5 * REWARD
    assert paid.ether(paid.chain.contract) == REWARD  # the refund, in the requester's balance
    assert "correct horse" not in scene.tails()
    assert paid.chain.key.hex() not in scene.tails()


def enough_steps(root: Root, steps: int) -> bool:
    """Whether the outbox made so many steps."""
    return len(root.process.events("chain_signed", "chain_sent", "chain_mined", "chain_finalized")) >= steps


def test_a_root_killed_again_and_again_pays_each_task_once(scene: Scene, paid: Paid) -> None:
    root = scene.root(*paid.options)
    alice = scene.worker(root, "--p2p", "off", name="alice")
    before = paid.ether(alice.address)
    tasks: list[str] = []
    for wave in range(5):
        submitted = root.door.submit([noop(more={"reward_wei": str(REWARD + wave)}) for _ in range(4)])
        tasks += [task["id"] for task in submitted["tasks"]]
        # the moments differ: before signing, signed, sent, mined, final
        until(partial(enough_steps, root, wave), f"{wave} steps of transactions", guard=[root.process])
        root.kill()
        root.start()
    until(lambda: settled(root, tasks), "every task to be settled", guard=[root.process])

    assert [paid.state(task) for task in tasks] == [TaskState.PAID] * len(tasks)
    assert paid.ether(alice.address) - before == sum(4 * (REWARD + wave) for wave in range(5))
    assert paid.ether(paid.chain.contract) == 0


def pay_one(root: Root) -> str:
    """A task that is paid."""
    (task,) = root.door.submit([noop(more={"reward_wei": str(REWARD)})])["tasks"]
    until(lambda: settled(root, [task["id"]]), "the task to be paid", guard=[root.process])
    return str(task["id"])


def alerts(root: Root) -> set[str]:
    """What the root told its operator of."""
    return {entry["code"] for entry in root.process.events("chain_alert")}


def nonce(paid: Paid) -> int:
    return int(paid.ask("eth_getTransactionCount", paid.chain.signer.address, "latest"), 16)


def test_a_second_root_on_the_ledger_refuses_and_one_with_a_ledger_of_its_own_but_this_key_stops(
    scene: Scene, paid: Paid
) -> None:
    root, other = scene.root(*paid.options), scene.root(*paid.options, name="other")
    second = scene.start(
        "second",
        [*command("swarm-root"), "run", "--data", str(root.data), "--bind", f"127.0.0.1:{free_port()}", *paid.options],
    )
    assert second.wait(PATIENCE_S) == 6
    assert "is used by another process" in second.tail()

    alice = scene.worker(root, "--p2p", "off", name="alice")
    before = paid.ether(alice.address)
    ours = pay_one(root)
    used = nonce(paid)
    (theirs,) = other.door.submit([noop(more={"reward_wei": str(REWARD)})])["tasks"]
    until(lambda: "sender_stopped" in alerts(other), "the other root to stop signing", guard=[other.process])
    assert nonce(paid) == used  # it signed nothing
    assert paid.state(theirs["id"]) is TaskState.NONE

    more = pay_one(root)
    assert [paid.state(task) for task in (ours, more)] == [TaskState.PAID] * 2
    assert paid.ether(alice.address) - before == 2 * REWARD
    assert paid.ether(paid.chain.contract) == 0
    assert alerts(root) == set()


def test_a_node_that_lost_its_state_is_told_and_nothing_is_paid_on_it(scene: Scene, tmp_path: Path) -> None:
    port = free_port()
    with running_hardhat(port) as node, paying_on(node, tmp_path) as paid:
        root = scene.root(*paid.options)
        scene.worker(root, "--p2p", "off", name="alice")
        task = pay_one(root)
        assert paid.state(task) is TaskState.PAID
    with running_hardhat(port):
        paid.ask("hardhat_setBalance", paid.chain.signer.address, hex(10**21))
        paid.ask("hardhat_mine", hex(50))
        until(lambda: "chain_lost" in alerts(root), "the root to tell it", guard=[root.process])
        (told,) = [entry for entry in root.process.events("chain_alert") if entry["code"] == "chain_lost"]
        assert "nothing is signed or sent" in told["message"]
        assert "bring the chain back" in told["hint"] or "the node lost its state" in told["hint"]

        (later,) = root.door.submit([noop(more={"reward_wei": str(REWARD)})])["tasks"]
        view = until(
            lambda: found if (found := root.door.task(later["id"]))["status"] == "completed" else None,
            "tasks to go on",
            guard=[root.process],
        )
        assert (view.get("on_chain"), view.get("paid")) == (None, None)
        assert nonce(paid) == 0
