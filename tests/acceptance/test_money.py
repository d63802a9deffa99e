"""A requester pays within an allowance by the command line and gets receipts; the key that pays is told nowhere."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sqlite3
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from rendezvous.chain.rpc import open_rpc
from tests.acceptance.harness import PROJECT, Root, Scene, command, until
from tests.chain.hardhat import Chain, Hardhat, fresh_chain, running_hardhat
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.acceptance

PASSPHRASE = f"correct horse {secrets.token_hex(8)}"
BLOCK_MS = 200
PAGES = 4


@pytest.fixture(scope="module")
def hardhat() -> Iterator[Hardhat]:
    with running_hardhat() as node:
        yield node


@attrs.frozen
class Wallet:
    """A chain that mines, and the secrets of the key that pays on it."""

    url: str
    chain: Chain
    key_file: Path
    passphrase_file: Path


@pytest.fixture
def wallet(hardhat: Hardhat, tmp_path: Path) -> Iterator[Wallet]:
    async def mine(on: bool) -> Chain | None:
        async with open_rpc(hardhat.url) as rpc:
            chain = await fresh_chain(rpc) if on else None
            await rpc.call("evm_setAutomine", not on)
            await rpc.call("evm_setIntervalMining", BLOCK_MS if on else 0)
            return chain

    chain = asyncio.run(mine(True))
    assert chain is not None
    secret = tmp_path / "secrets"
    secret.mkdir(mode=0o700)
    files = secret / "key", secret / "passphrase"
    for file, text in zip(files, (chain.key.hex(), PASSPHRASE), strict=True):
        file.write_text(text + "\n")
        file.chmod(0o600)
    yield Wallet(hardhat.url, chain, *files)
    asyncio.run(mine(False))


class Programs:
    """The command lines, run to their end."""

    def __init__(self, directory: Path, wallet: Wallet) -> None:
        self._environment = {
            **os.environ,
            "XDG_STATE_HOME": str(directory / "state"),
            "SWARM_ROOT_PASSPHRASE_FILE": str(wallet.passphrase_file),
        }
        self.said: list[str] = []

    def run(self, program: str, *arguments: str, code: int = 0, **environment: str) -> str:
        """A command's standard output, and what it said beside; its exit code must be this."""
        done = subprocess.run(
            [*command(program), *arguments],
            cwd=PROJECT,
            env={**self._environment, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self.said.append(done.stdout + done.stderr)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout.strip() if code == 0 else done.stderr


def has(told: str, name: str, amount: str) -> bool:
    return any(line.split() == [*name.split(), amount] for line in told.splitlines())


def settled(root: Root, tasks: list[str]) -> list[dict[str, Any]] | None:
    views = [root.door.task(task) for task in tasks]
    return views if all(view.get("paid") or view.get("refunded") for view in views) else None


def holding(directory: Path, secrets_: Iterable[bytes], *, but: Path) -> list[str]:
    """The files that hold one of these."""
    found = []
    for path in directory.rglob("*"):
        if path.is_file() and but not in path.parents:
            body = path.read_bytes().lower()
            found += [str(path) for secret in secrets_ if secret.lower() in body]
    return found


def test_a_requester_pays_within_its_allowance_and_the_key_that_pays_is_told_nowhere(
    scene: Scene, wallet: Wallet, tmp_path: Path
) -> None:
    programs, data = Programs(scene.directory, wallet), str(scene.directory / "root-data")
    chain = ("--rpc", wallet.url, "--contract", wallet.chain.contract)
    programs.run("swarm-root", "init", "--data", data)
    address = programs.run("swarm-root", "wallet", "import", "--key-file", str(wallet.key_file), "--data", data)
    assert address == wallet.chain.signer.address

    root = scene.root(*chain, "--passphrase-file", str(wallet.passphrase_file), "--finality", "2", "--host-rate", "0",
                      "--p2p", "off", "--allow-private", "on")  # fmt: skip
    site = scene.site("--pages", str(PAGES))
    alice = scene.worker(root, "--p2p", "off", "--allow-private", "on", name="alice")

    # the contract's balance goes up, and down again to an address of choice
    programs.run("swarm-root", "deposit", "1eth", "--data", data, *chain)
    show = ("wallet", "show", "--data", data, *chain)
    until(lambda: has(programs.run("swarm-root", *show), "in the contract", "1eth"), "the deposit")
    nobody = "0x000000000000000000000000000000000000dEaD"
    programs.run("swarm-root", "withdraw", "0.25eth", "--to", nobody, "--data", data, *chain)
    until(lambda: has(programs.run("swarm-root", *show), "in the contract", "0.75eth"), "the withdrawal")
    assert "less than 1eth" in programs.run("swarm-root", "withdraw", "1eth", "--to", nobody, "--data", data, *chain,
                                            code=2)  # fmt: skip

    # a requester may spend 0.006 ether
    keys = ("swarm-root", "keys")
    key = programs.run(*keys, "add", "requester", "carol", "--allowance", "0.006eth", "--data", data)
    carol = {"SWARM_URL": root.door_url, "SWARM_KEY": key}
    urls = [f"{site}/item/{number}" for number in range(1, PAGES + 1)] + [f"{site}/missing"]
    quoted = json.loads(programs.run("swarm", "quote", *urls, "--reward", "0.001eth", "--json", **carol))
    assert (quoted["rewards_wei"], quoted["fits"]) == (str(5 * 10**15), True)
    assert int(quoted["gas_wei"]) > 0
    told = programs.run("swarm", "submit", *urls, "--reward", "0.002eth", code=1, **carol)
    assert "allowance_exceeded" in told
    told = programs.run("swarm", "submit", *urls, "--reward", "0.001eth", "--budget", "0.004eth", code=2, **carol)
    assert "budget_exceeded" in told
    paid = ("--extract", "title=h1::text", "--reward", "0.001eth", "--budget", "0.005eth", "--detach")
    job = programs.run("swarm", "submit", *urls, *paid, **carol)

    tasks = [task["id"] for task in root.door.tasks_of(job)]
    views = until(lambda: settled(root, tasks), "every task to be settled", guard=[root.process])
    assert sorted(view["status"] for view in views) == ["completed"] * PAGES + ["failed"]
    told = programs.run(*keys, "allowance", "carol", "--data", data)
    assert "spent or promised 0.004eth" in told  # the failed one's came back with its refund

    # receipts, checked without the swarm
    for view in views:
        if view["status"] != "completed":
            programs.run("swarm", "receipt", view["id"], code=1, **carol)
            continue
        path = str(scene.directory / "receipt.json")
        programs.run("swarm", "receipt", view["id"], "-o", path, **carol)
        shown = programs.run("swarm", "verify", path, "--signer", address)
        assert alice.address is not None
        assert alice.address in shown
        assert "0.001eth" in shown

    # no log, ledger, message or command line has the key or its passphrase
    hidden = [wallet.chain.key, wallet.chain.key.hex().encode(), PASSPHRASE.encode()]
    command_lines = [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in scene.running if process.alive]
    assert len(command_lines) == 3
    root.process.stop()  # the write-ahead log is in the ledger then
    assert holding(tmp_path, hidden, but=wallet.key_file.parent) == []
    heap = b"\0".join([*command_lines, *(said.encode() for said in programs.said), scene.tails().encode()]).lower()
    assert [secret for secret in hidden if secret.lower() in heap] == []
    with sqlite3.connect(f"file:{data}/ledger.sqlite?mode=ro", uri=True) as ledger:
        dump = "\n".join(ledger.iterdump()).encode().lower()
    assert [secret for secret in hidden if secret.lower() in dump or secret.hex().encode() in dump] == []
