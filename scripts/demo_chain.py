"""The demo's chain: a Hardhat node of its own that mines every second, the contract on it, and what it says at the end.

The node runs on loopback by the Node.js and the packages that the project pins. The root's key is new, made by
``swarm-root wallet new``; one of the accounts that Hardhat unlocks deploys the contract and sends the key its ether.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import httpx
from eth_utils.address import to_checksum_address

from rendezvous.chain import escrow
from rendezvous.chain.escrow import TaskState
from swarm.model import Address, TaskId, Wei
from swarm.vouchers import chain_task_id
from swarm.wire import TaskView

PROJECT = Path(__file__).resolve().parent.parent
BLOCK_MS = 1_000
#: A block that has two on top is final: the demo's chain has one miner, and no forks.
FINALITY = "2"
REWARD_WEI = 10**15
#: What the root's key begins with: rewards of 24 tasks, and gas.
ENDOWMENT_WEI = 10**18
EXIT_DELAY_S = 3_600
ANSWER_S = 10.0


class ChainFault(Exception):
    """The chain isn't what the ledger says; says how."""


@attrs.frozen(kw_only=True)
class DemoChain:
    """A running chain with the contract, and who pays on it."""

    url: str
    contract: Address
    payer: Address
    passphrase_file: Path
    _http: httpx.Client

    @property
    def options(self) -> tuple[str, ...]:
        """What ``swarm-root run`` needs, so that it pays."""
        secret = ("--passphrase-file", str(self.passphrase_file))
        return ("--rpc", self.url, "--contract", self.contract, *secret, "--finality", FINALITY)

    def check(self, tasks: Iterable[TaskView], payouts: dict[Address, int]) -> None:
        """Hold the chain to the ledger, to the wei.

        Args:
            tasks: as the ledger has them, all settled.
            payouts: who completed how many.

        Raises:
            ChainFault: they differ.
        """
        refunded = 0
        for task in tasks:
            state = self._task(task.id).state
            if state is not (TaskState.PAID if task.paid else TaskState.FAILED):
                raise ChainFault(f"{task.urls[0]} is {state.name.lower()} in the contract")
            refunded += state is TaskState.FAILED
        for address, completed in payouts.items():
            if (has_wei := self._ether(address)) != completed * REWARD_WEI:
                raise ChainFault(f"{address} completed {completed} tasks and has {has_wei} wei")
        free_wei = escrow.decode_balance(self._read(escrow.balance_call(self.payer)))
        held_wei = self._ether(self.contract)
        if (free_wei, held_wei) != (refunded * REWARD_WEI,) * 2:
            raise ChainFault(f"the contract holds {held_wei} wei, {free_wei} of them free; {refunded} were refunded")

    def _task(self, task: TaskId) -> escrow.ChainTask:
        return escrow.decode_task(self._read(escrow.task_call(self.payer, chain_task_id(task, 1))))

    def _read(self, data: bytes) -> str:
        return str(call(self._http, "eth_call", {"to": self.contract, "data": "0x" + data.hex()}, "latest"))

    def _ether(self, address: Address) -> Wei:
        return int(call(self._http, "eth_getBalance", address, "latest"), 16)


def call(http: httpx.Client, method: str, *params: Any) -> Any:
    """One call of the node.

    Raises:
        ChainFault: it says no.
    """
    answer = http.post("/", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).json()
    if "error" in answer:
        raise ChainFault(f"{method}: {answer['error'].get('message')}")
    return answer["result"]


def node_command(port: int) -> tuple[str, ...]:
    """How the node is started: by the pinned Node.js itself, so that it can be ended by its own process."""
    environment = {**os.environ, "SWARM_VENV": sys.prefix}
    setup = subprocess.run(
        [PROJECT / "scripts/contract/setup"], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    cli = PROJECT / "node_modules/hardhat/dist/src/cli.js"
    return (setup.stdout.strip(), str(cli), "node", "--hostname", "127.0.0.1", "--port", str(port))


def answers(http: httpx.Client) -> bool | None:
    """Whether the node takes calls yet."""
    try:
        call(http, "eth_chainId")
    except httpx.HTTPError:
        return None
    return True


def open_chain(
    port: int, *, root: Path, run: Callable[..., str], until_up: Callable[[httpx.Client], object]
) -> DemoChain:
    """Make the root's wallet, deploy the contract, and let the chain mine every second.

    Args:
        port: where the node listens.
        root: the root's data directory, which is made.
        run: runs a program of the swarm to its end; its output.
        until_up: waits until the node takes calls.
    """
    passphrase_file = root.with_name("passphrase")
    descriptor = os.open(passphrase_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(24) + "\n")
    run("swarm-root", "init", "--data", str(root))
    payer = run("swarm-root", "wallet", "new", "--data", str(root), "--passphrase-file", str(passphrase_file))
    url = f"http://127.0.0.1:{port}"
    http = httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False)
    until_up(http)
    deployer = call(http, "eth_accounts")[0]
    code = "0x" + escrow.deploy_data(exit_delay_s=EXIT_DELAY_S).hex()
    deployed = call(http, "eth_sendTransaction", {"from": deployer, "data": code})
    call(http, "eth_sendTransaction", {"from": deployer, "to": payer, "value": hex(ENDOWMENT_WEI)})
    contract = to_checksum_address(call(http, "eth_getTransactionReceipt", deployed)["contractAddress"])
    call(http, "evm_setAutomine", False)
    call(http, "evm_setIntervalMining", BLOCK_MS)
    return DemoChain(url=url, contract=contract, payer=payer, passphrase_file=passphrase_file, http=http)
