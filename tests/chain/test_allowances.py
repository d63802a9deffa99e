"""A requester's allowance follows the chain: it gets back what is finally refunded, until that is reorganised away."""

from __future__ import annotations

from rendezvous.ledger.act_ops import SetAllowance
from swarm.model import Status
from tests.chain.hardhat import Chain
from tests.chain.pay_world import ALICE, REWARD, PayWorld, check_books
from tests.rendezvous.ledger_world import new_task


def spent(world: PayWorld) -> int:
    """What is spent or promised of the requester's allowance."""
    view = world.reader.allowance("owner")
    return view.spent_wei


def allow(world: PayWorld, amount_wei: int) -> None:
    world.do(SetAllowance(owner="owner", amount_wei=amount_wei))


async def test_a_refund_gives_the_reward_back_to_the_allowance_once_it_is_final(chain: Chain, world: PayWorld) -> None:
    allow(world, 2 * REWARD)
    world.submit(new_task(reward_wei=REWARD), new_task(reward_wei=REWARD), charged=True)
    assert spent(world) == 2 * REWARD
    await world.rounds()
    world.run_task(ALICE)
    world.fail_task(ALICE)
    await world.rounds()
    assert spent(world) == 2 * REWARD  # refunded by nobody yet

    await world.settle_down()
    assert spent(world) == REWARD  # what is paid stays spent
    await check_books(world)


async def test_a_refund_that_is_reorganised_away_is_charged_again_until_it_is_final_anew(
    chain: Chain, world: PayWorld
) -> None:
    allow(world, REWARD)
    await world.claim_key()
    await chain.automine(False)
    (task,) = world.submit(new_task(reward_wei=REWARD), charged=True)
    await world.settle_down(times=1)
    snapshot = await chain.rpc.call("evm_snapshot")
    world.fail_task(ALICE)
    await world.settle_down(times=1)
    assert world.view(task).refunded is not None
    assert spent(world) == 0

    assert await chain.rpc.call("evm_revert", snapshot)
    await chain.rpc.call("evm_increaseTime", 5)
    await chain.mine(6)
    await world.one_round()
    assert world.view(task).refunded is None
    assert spent(world) == REWARD

    await world.settle_down(times=2)
    assert world.view(task).refunded is not None
    assert spent(world) == 0
    await check_books(world)


async def test_a_replayed_task_is_charged_for_its_new_funding_alone(chain: Chain, world: PayWorld) -> None:
    allow(world, REWARD)
    (task,) = world.submit(new_task(reward_wei=REWARD), charged=True)
    await world.rounds()
    world.fail_task(ALICE)
    await world.settle_down()
    assert spent(world) == 0

    assert world.replay(task) == [Status.PENDING]
    assert spent(world) == REWARD
    await world.rounds()
    world.run_task(ALICE)
    await world.settle_down()
    assert world.view(task).paid is not None
    assert spent(world) == REWARD
    await check_books(world)
