"""One Hardhat node for the room; each test has a key and a contract of its own on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from rendezvous.chain.rpc import open_rpc
from tests.chain.faults import Between
from tests.chain.hardhat import Chain, Hardhat, fresh_chain, running_hardhat
from tests.chain.pay_world import PayWorld


@pytest.fixture(scope="session")
def hardhat() -> Iterator[Hardhat]:
    """The node."""
    with running_hardhat() as node:
        yield node


@pytest_asyncio.fixture
async def chain(hardhat: Hardhat) -> AsyncIterator[Chain]:
    """A contract and a key; mining is as it was afterwards."""
    async with open_rpc(hardhat.url) as rpc:
        made = await fresh_chain(rpc)
        yield made
        await rpc.call("evm_setAutomine", True)


@pytest_asyncio.fixture
async def world(chain: Chain, tmp_path: Path) -> AsyncIterator[PayWorld]:
    """A root's ledger and sender on that contract."""
    chain_id = int(await chain.rpc.call("eth_chainId"), 16)
    made = PayWorld(tmp_path / "ledger.sqlite", chain.rpc, chain.signer, chain.contract, chain_id=chain_id)
    yield made
    made.close()


@pytest.fixture
def between(world: PayWorld) -> Between:
    """The node of this world, with faults."""
    made = Between(world.rpc)
    world.rpc = made
    return made
