"""What a reorganisation frees is filled, and what the chain calls final is final: on a real chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from structlog.testing import capture_logs

from rendezvous.chain.escrow import TaskState
from rendezvous.chain.outbox import Rules, WorryCode
from rendezvous.ledger.money_ops import ResumeSender
from swarm.errors import RpcSaid
from tests.chain.edges import nonce, send_foreign, state_of
from tests.chain.faults import Between
from tests.chain.hardhat import Chain
from tests.chain.pay_world import REWARD, PayWorld, check_books

# ── gaps ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def another_branch(chain: Chain, snapshot: str, blocks: int) -> None:
    """Everything since the snapshot never was: the chain has other blocks there, and the pool has forgotten."""
    assert await chain.rpc.call("evm_revert", snapshot)
    await chain.rpc.call("evm_increaseTime", 7)
    await chain.mine(blocks)


async def filler(chain: Chain, at: int) -> dict[str, Any]:
    """What took a nonce of ours in the end, as the chain has it."""
    for number in range(await chain.head(), 0, -1):
        block = await chain.rpc.call("eth_getBlockByNumber", hex(number), True)
        for each in block["transactions"]:
            if each["from"] == chain.signer.address.lower() and int(each["nonce"], 16) == at:
                return dict(each)
    raise AssertionError(f"nonce {at} wasn't used")


async def test_a_nonce_that_a_reorg_freed_is_filled_so_that_those_behind_it_go_on(
    chain: Chain, world: PayWorld, between: Between
) -> None:
    await world.claim_key()
    await chain.automine(False)
    snapshot = await chain.rpc.call("evm_snapshot")
    await send_foreign(chain)
    await chain.mine(1)
    await world.rounds()
    assert WorryCode.SENDER_STOPPED in world.worry_codes
    assert world.do(ResumeSender(address=chain.signer.address, next_nonce=1))
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    await chain.mine(1)
    await world.rounds()
    assert state_of(world) == ["mined"]

    await another_branch(chain, snapshot, 4)  # without the other program's transaction, and nobody sends it again
    assert await nonce(chain) == 0
    await world.rounds()
    assert state_of(world) == ["sent", "sent"]  # nothing, and ours behind it
    assert world.worry_codes <= {WorryCode.NOT_MINED}
    await chain.mine(1)
    assert await nonce(chain) == 2
    nothing = await filler(chain, 0)
    assert (nothing["to"], nothing["value"], nothing["input"]) == (chain.signer.address.lower(), "0x0", "0x")
    await world.settle_down(times=1)
    assert world.view(task).on_chain is not None
    world.run_task()
    await world.settle_down()
    assert world.view(task).paid is not None
    assert await nonce(chain) == 3
    await check_books(world)


async def test_the_nonce_of_an_abandoned_transaction_that_a_reorg_freed_is_filled_with_nothing(
    chain: Chain, world: PayWorld, between: Between
) -> None:
    await world.claim_key()
    await chain.automine(False)
    snapshot = await chain.rpc.call("evm_snapshot")
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    await send_foreign(chain, at=0)  # replaces ours
    await chain.mine(1)
    await world.rounds()
    await chain.mine(3)
    await world.rounds()
    assert state_of(world) == ["abandoned"]
    assert world.do(ResumeSender(address=chain.signer.address, next_nonce=1))
    await world.rounds()
    await chain.mine(1)
    await world.rounds()
    assert state_of(world) == ["abandoned", "mined"]  # the same funding, under another nonce

    await another_branch(chain, snapshot, 7)
    await world.rounds()
    assert state_of(world) == ["sent", "sent"]
    await chain.mine(1)
    nothing = await filler(chain, 0)
    assert (nothing["to"], nothing["value"], nothing["input"]) == (chain.signer.address.lower(), "0x0", "0x")
    await world.settle_down(times=1)
    world.run_task()
    await world.settle_down()
    assert world.view(task).paid is not None
    assert (await world.chain_task(task)).state is TaskState.PAID
    assert await nonce(chain) == 3
    await check_books(world)


# ── finality ──────────────────────────────────────────────────────────────────────────────────────────────────────

FINALIZED = Rules(finality_blocks=3, finalized_tag=True, watch_blocks=8, stuck_blocks=3, linger_s=0.0, doubt_s=0.0)


def finalized_at(height: int | None) -> Any:
    """A node that calls this block finalized, or knows none."""

    def changed(method: str, params: Sequence[Any], answer: Any) -> Any:
        if method != "eth_getBlockByNumber" or params[0] != "finalized":
            return answer
        return RpcSaid(-39001, "unknown block") if height is None else {**answer, "number": hex(height)}

    return changed


async def test_final_is_what_the_chain_calls_finalized(chain: Chain, world: PayWorld, between: Between) -> None:
    world.rules = FINALIZED
    await world.claim_key()
    began = await chain.head()
    between.tamper = finalized_at(began)
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    await chain.mine(8)  # deeper than any count of blocks
    await world.rounds()
    assert state_of(world) == ["mined"]
    assert world.view(task).on_chain is None
    between.tamper = finalized_at(began + 1)
    await world.rounds()
    assert state_of(world) == ["final"]
    assert world.view(task).on_chain is not None
    between.tamper = None  # a Hardhat node calls its newest block finalized
    world.run_task()
    await world.rounds()
    await world.rounds()
    assert world.view(task).paid is not None
    assert await nonce(chain) == 2
    await check_books(world)


async def test_where_the_node_knows_no_finalized_block_depth_counts_and_that_is_said_once(
    chain: Chain, world: PayWorld, between: Between
) -> None:
    world.rules = FINALIZED
    await world.claim_key()
    between.tamper = finalized_at(None)
    task = world.one(reward_wei=REWARD)
    with capture_logs() as logs:
        await world.rounds()
        await chain.mine(2)
        await world.rounds()
        assert state_of(world) == ["mined"]
        await chain.mine(1)
        await world.rounds()
        assert state_of(world) == ["final"]
    (said,) = [each for each in logs if each["event"] == "finalized_unknown"]
    assert said["counted_instead_blocks"] == 3
    assert "unknown block" in said["reason"]
    world.run_task()
    await world.settle_down(blocks=4)
    assert world.view(task).paid is not None
    await check_books(world)


async def test_a_node_that_told_a_finalized_block_and_then_fails_makes_nothing_final(
    chain: Chain, world: PayWorld, between: Between
) -> None:
    world.rules = FINALIZED
    await world.claim_key()
    between.tamper = finalized_at(await chain.head())
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    between.tamper = finalized_at(None)
    await chain.mine(8)
    await world.rounds()
    assert state_of(world) == ["mined"]
    between.tamper = None
    await world.rounds()
    assert world.view(task).on_chain is not None
