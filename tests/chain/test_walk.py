"""The walking path on a real chain: funded, on the chain, completed, paid; or failed, and refunded."""

from __future__ import annotations

from rendezvous.chain.escrow import TaskState
from rendezvous.ledger.money_ops import IntentState
from swarm.model import Refusal, Status
from tests.chain.hardhat import Chain
from tests.chain.pay_world import ALICE, BOB, REWARD, PayWorld, check_books
from tests.rendezvous.ledger_world import new_task


async def test_a_completed_task_is_funded_and_paid(chain: Chain, world: PayWorld) -> None:
    before = await chain.ether(ALICE.address)
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    assert (await world.chain_task(task)).state is TaskState.OPEN
    assert world.view(task).on_chain is None  # mined, but not final

    world.run_task(ALICE)
    await world.rounds()
    assert (await world.chain_task(task)).state is TaskState.OPEN
    assert world.view(task).paid is None  # completed and accepted: payment waits for the funding to be final

    await chain.mine(2)
    await world.rounds()
    assert world.view(task).on_chain == world.now
    assert (await world.chain_task(task)).state is TaskState.PAID
    assert world.view(task).paid is None

    await chain.mine(2)
    await world.rounds()
    assert world.view(task).paid == world.now
    assert await chain.ether(ALICE.address) == before + REWARD
    await check_books(world)


async def test_a_failed_task_is_refunded_and_never_paid(chain: Chain, world: PayWorld) -> None:
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    world.fail_task(ALICE)
    await world.settle_down()

    shown = world.view(task)
    assert (shown.status, shown.paid) == (Status.FAILED, None)
    assert shown.refunded is not None
    assert (await world.chain_task(task)).state is TaskState.FAILED
    assert await world.balance() == REWARD  # it can be spent again
    await check_books(world)


async def test_tasks_share_their_transactions_and_each_worker_is_paid_its_own(chain: Chain, world: PayWorld) -> None:
    before = {who: await chain.ether(who.address) for who in (ALICE, BOB)}
    world.submit(*(new_task(reward_wei=REWARD) for _ in range(30)))
    await world.rounds()
    for number in range(29):
        world.run_task(ALICE if number % 3 else BOB)
    world.fail_task(BOB)
    await world.settle_down()

    first = int(await chain.rpc.call("eth_getTransactionCount", chain.signer.address, "latest"), 16)
    assert first == 2  # one createBatch, one completeBatch
    assert await chain.ether(ALICE.address) - before[ALICE] == 19 * REWARD
    assert await chain.ether(BOB.address) - before[BOB] == 10 * REWARD
    await check_books(world)


async def test_a_refunded_reward_funds_the_next_task(chain: Chain, world: PayWorld) -> None:
    world.one(reward_wei=REWARD)
    await world.rounds()
    world.fail_task()
    await world.settle_down()
    assert await world.balance() == REWARD
    world.one(reward_wei=REWARD)
    await world.settle_down(times=1)
    assert await world.balance() == 0
    await check_books(world, all_settled=False)


async def test_a_task_cancelled_before_it_was_funded_costs_nothing(chain: Chain, world: PayWorld) -> None:
    task = world.one(reward_wei=REWARD)
    world.cancel(task)
    await world.settle_down()
    assert [intent.state for intent in world.intents()] == [IntentState.VOID]
    assert int(await chain.rpc.call("eth_getTransactionCount", chain.signer.address, "latest"), 16) == 0
    await check_books(world)


async def test_a_task_without_a_reward_has_nothing_to_do_with_the_chain(world: PayWorld) -> None:
    world.one()
    world.run_task()
    await world.settle_down(times=1)
    assert world.intents() == []


async def test_a_result_that_crossed_its_cancelling_is_honoured_and_paid(world: PayWorld) -> None:
    task = world.one(reward_wei=REWARD)
    await world.settle_down(times=1)
    (lease,) = world.claim(ALICE)
    assert world.cancel(task) == [Status.CANCELLED]
    await world.settle_down(times=1)  # the refund waits for the lease's end
    assert (await world.chain_task(task)).state is TaskState.OPEN
    assert world.complete(ALICE, lease) is Status.COMPLETED
    await world.settle_down()
    assert (await world.chain_task(task)).state is TaskState.PAID
    assert world.view(task).paid is not None
    await check_books(world)


async def test_a_result_after_the_refund_was_signed_is_refused(world: PayWorld) -> None:
    task = world.one(reward_wei=REWARD)
    await world.settle_down(times=1)
    (lease,) = world.claim(ALICE)
    world.cancel(task)
    world.later(61.0)
    await world.rounds()
    refused = world.complete(ALICE, lease)
    assert isinstance(refused, Refusal)
    await world.settle_down()
    assert (await world.chain_task(task)).state is TaskState.FAILED
    assert world.view(task).status == "cancelled"
    await check_books(world)
