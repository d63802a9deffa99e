"""Words that the tests of the outbox's edges share: what happens beside the root, and what its ledger has then."""

from __future__ import annotations

from sqlalchemy import text

from tests.chain.faults import SEND
from tests.chain.hardhat import Chain
from tests.chain.pay_world import PayWorld


async def reopened(world: PayWorld) -> None:
    """The root died and starts again, on the same ledger."""
    world.close()
    world.open()
    await world.claim_key()


async def nonce(chain: Chain) -> int:
    return int(await chain.rpc.call("eth_getTransactionCount", chain.signer.address, "latest"), 16)


async def send_foreign(chain: Chain, data: bytes = b"", to: str | None = None, at: int | None = None) -> str:
    """Another program sends a transaction with our key."""
    signed = chain.signer.sign_transaction(
        {
            "type": 2,
            "chainId": 31337,
            "nonce": await nonce(chain) if at is None else at,
            "to": to or chain.signer.address,
            "data": "0x" + data.hex(),
            "value": 0,
            "gas": 500_000,
            "maxFeePerGas": 200 * 10**9,
            "maxPriorityFeePerGas": 50 * 10**9,
        }
    )
    await chain.rpc.call(SEND, "0x" + signed.raw.hex())
    return signed.hash


def state_of(world: PayWorld) -> list[str]:
    """The states of the transactions, by nonce."""
    with world.reading.connect() as connection:
        return list(connection.execute(text("SELECT state FROM transactions ORDER BY nonce")).scalars())
