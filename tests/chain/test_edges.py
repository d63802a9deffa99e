"""Each edge of the outbox's table (`escrow.md` §8), and what the issue names, once on a real chain.

After each, ledger and chain agree to the wei and every (task, generation) was settled exactly once.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rendezvous.chain import escrow
from rendezvous.chain.escrow import TaskState
from rendezvous.chain.outbox import Rules, WorryCode
from rendezvous.chain.rpc import open_rpc
from rendezvous.chain.sender import SenderLost
from rendezvous.ledger.money_ops import (
    AddIntent,
    ClaimSender,
    IntentKind,
    IntentState,
    ResumeSender,
    RetryParked,
    SenderHeld,
)
from swarm.errors import RpcUnreachable
from swarm.model import Status, TaskId
from swarm.vouchers import chain_task_id
from tests.chain.edges import nonce, reopened, send_foreign, state_of
from tests.chain.faults import SEND, Between, Killed
from tests.chain.hardhat import ETHER, Chain, fresh_chain, running_hardhat
from tests.chain.pay_world import ALICE, BOB, FAST_RULES, REWARD, PayWorld, check_books
from tests.rendezvous.ledger_world import new_task

# ── the root dies at each state ───────────────────────────────────────────────────────────────────────────────────


async def test_root_killed_while_queued(chain: Chain, world: PayWorld) -> None:
    task = world.one(reward_wei=REWARD)
    await reopened(world)
    await world.rounds()
    world.run_task()
    await reopened(world)
    await world.settle_down()
    assert world.view(task).paid is not None
    assert await nonce(chain) == 2
    await check_books(world)


async def test_root_killed_after_signing_before_sending(chain: Chain, world: PayWorld, between: Between) -> None:
    world.one(reward_wei=REWARD)
    between.die_before_send = True
    with pytest.raises(Killed):
        await world.rounds()
    assert state_of(world) == ["signed"]
    assert between.sent == []
    between.die_before_send = False
    await reopened(world)
    await world.rounds()
    world.run_task()
    await world.settle_down()
    assert await nonce(chain) == 2  # the stored bytes were sent, nothing else was signed
    await check_books(world)


async def test_root_killed_after_sending_before_the_answer(chain: Chain, world: PayWorld, between: Between) -> None:
    await chain.automine(False)
    world.one(reward_wei=REWARD)
    between.die_after_send = True
    with pytest.raises(Killed):
        await world.rounds()
    assert state_of(world) == ["signed"]
    between.die_after_send = False
    await reopened(world)
    await world.rounds()
    assert state_of(world) == ["sent"]
    await chain.mine(3)
    await world.rounds()
    world.run_task()
    await world.settle_down()
    assert await nonce(chain) == 2
    await check_books(world)


async def test_root_killed_once_it_was_mined(chain: Chain, world: PayWorld) -> None:
    world.one(reward_wei=REWARD)
    await world.rounds()
    assert state_of(world) == ["mined"]
    await reopened(world)
    world.run_task()
    await world.rounds()
    await chain.mine(2)
    await world.rounds()
    assert state_of(world) == ["final", "mined"]
    await reopened(world)
    await world.settle_down()
    assert await nonce(chain) == 2
    await check_books(world)


async def test_a_paused_holder_that_wakes_cannot_sign(chain: Chain, world: PayWorld) -> None:
    await world.claim_key()
    paused = world.sender
    assert paused is not None
    await world.claim_key()  # the next start of the same root
    world.one(reward_wei=REWARD)
    with pytest.raises(SenderLost):
        await paused.round()
    assert await nonce(chain) == 0
    await world.rounds()
    assert await nonce(chain) == 1


async def test_another_root_on_the_same_ledger_stands_by_until_the_first_is_silent(world: PayWorld) -> None:
    row = await world.claim_key("one")
    claim = ClaimSender(
        address=row.address,
        holder="two",
        chain_id=row.chain_id,
        contract=row.contract,
        nonce=0,
        anchor_number=0,
        anchor_hash="",
        balance_wei=0,
    )
    for _ in range(4):
        assert isinstance(world.do(claim), SenderHeld)
        world.now += 30
        await world.rounds()  # it lives, although it has nothing to do
    world.now += 61
    taken = world.do(claim)
    assert not isinstance(taken, SenderHeld)
    assert taken.epoch == row.epoch + 1


# ── the pool ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_pending_transaction_flips_no_flag(chain: Chain, world: PayWorld) -> None:
    await chain.automine(False)
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    world.run_task()
    await world.rounds()
    assert state_of(world) == ["sent"]
    assert world.view(task).on_chain is None
    await world.settle_down()
    await check_books(world)


async def test_rpc_that_times_out_after_it_took_the_transaction(
    chain: Chain, world: PayWorld, between: Between
) -> None:
    await chain.automine(False)
    world.one(reward_wei=REWARD)
    between.silent_after_send = True
    with pytest.raises(RpcUnreachable):
        await world.rounds()
    assert state_of(world) == ["sent"]  # maybe
    between.silent_after_send = False
    await world.rounds()
    assert len(between.sent) == 1  # it is known to the node: nothing is sent again
    await world.settle_down(times=1)
    world.run_task()
    await world.settle_down()
    assert await nonce(chain) == 2
    await check_books(world)


async def test_sending_again_what_the_node_knows_does_no_harm(chain: Chain, world: PayWorld, between: Between) -> None:
    await chain.automine(False)
    world.one(reward_wei=REWARD)
    between.tamper = lambda method, _params, answer: None if method == "eth_getTransactionByHash" else answer
    await world.one_round()
    await world.one_round()  # it seems unknown: the same bytes again, answered "Known transaction"
    assert len(between.sent) == 2
    assert len(set(between.sent)) == 1
    between.tamper = None
    await world.settle_down(times=1)
    world.run_task()
    await world.settle_down()
    await check_books(world)


async def test_dropped_transaction_is_sent_again_unchanged(chain: Chain, world: PayWorld, between: Between) -> None:
    await chain.automine(False)
    world.one(reward_wei=REWARD)
    await world.rounds()
    (first,) = between.sent
    (transaction,) = world.reader.book(chain.signer.address, now=world.now).transactions  # type: ignore[union-attr]
    assert await chain.rpc.call("hardhat_dropTransaction", transaction.attempts[0].hash)
    await world.rounds()
    assert between.sent == [first, first]
    await world.settle_down(times=1)
    world.run_task()
    await world.settle_down()
    await check_books(world)


async def test_what_a_pool_refuses_is_offered_at_each_sweep_not_without_a_pause(
    chain: Chain, world: PayWorld, between: Between
) -> None:
    await world.claim_key()
    await chain.automine(False)
    world.one(reward_wei=REWARD)
    await world.rounds()
    await send_foreign(chain, at=0)  # another program's transaction, with higher fees, has ours replaced in the pool
    for offers in (2, 3):
        done = await world.one_round()
        assert not done.moved  # a sweep ends here
        assert done.pending
        assert len(between.sent) == offers
    assert len(set(between.sent)) == 1


async def test_a_cheaper_attempt_that_a_reorg_brought_back_gives_way_to_the_dearest(
    chain: Chain, world: PayWorld, between: Between
) -> None:
    await world.claim_key()
    await chain.automine(False)
    snapshot = await chain.rpc.call("evm_snapshot")
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    (cheap,) = between.sent
    for _ in range(3):
        await chain.rpc.call("hardhat_setNextBlockBaseFeePerGas", hex(200 * 10**9))
        await chain.mine()
    await world.rounds()
    *_, dear = between.sent
    assert dear != cheap
    assert await chain.rpc.call("evm_revert", snapshot)
    await chain.rpc.call(SEND, cheap)  # some node had it
    await world.rounds()
    assert between.sent[-1] == dear
    await world.settle_down(times=1)
    assert world.view(task).on_chain is not None
    world.run_task()
    await world.settle_down()
    assert await nonce(chain) == 2
    await check_books(world)


async def test_stuck_transaction_gets_higher_fees_at_the_same_nonce(chain: Chain, world: PayWorld) -> None:
    await chain.automine(False)
    world.one(reward_wei=REWARD)
    await world.rounds()
    (before,) = world.reader.book(chain.signer.address, now=world.now).transactions  # type: ignore[union-attr]
    dear = before.attempts[0].max_fee_wei + 10**9
    for _ in range(3):
        await chain.rpc.call("hardhat_setNextBlockBaseFeePerGas", hex(dear))
        await chain.mine()
    await world.rounds()
    (after,) = world.reader.book(chain.signer.address, now=world.now).transactions  # type: ignore[union-attr]
    old, new = after.attempts
    assert after.nonce == before.nonce
    assert new.max_fee_wei * 8 >= old.max_fee_wei * 9
    assert new.tip_wei * 8 >= old.tip_wei * 9
    await world.settle_down()
    assert state_of(world)[0] in ("final", "buried")
    world.run_task()
    await world.settle_down()
    assert await nonce(chain) == 2
    await check_books(world)


async def test_fees_above_the_cap_are_never_offered(chain: Chain, world: PayWorld) -> None:
    block = await chain.rpc.call("eth_getBlockByNumber", "latest", False)
    cap = int(block["baseFeePerGas"], 16) // 2
    world.rules = Rules(finality_blocks=2, max_fee_wei=cap, linger_s=0.0)
    world.one(reward_wei=REWARD)
    await world.rounds()
    assert state_of(world) == []
    assert world.worry_codes == {WorryCode.CHAIN_DEAR}
    world.rules = FAST_RULES
    await world.claim_key()
    await world.rounds()
    assert state_of(world) == ["mined"]


async def test_an_empty_wallet_is_told_and_goes_on_when_it_is_filled(chain: Chain, world: PayWorld) -> None:
    await chain.rpc.call("hardhat_setBalance", chain.signer.address, hex(REWARD // 2))
    world.one(reward_wei=REWARD)
    await world.rounds()
    assert world.worry_codes == {WorryCode.WALLET_EMPTY}
    await chain.rpc.call("hardhat_setBalance", chain.signer.address, hex(ETHER))
    await world.settle_down(times=1)
    world.run_task()
    await world.settle_down()
    await check_books(world)


async def test_a_wallet_for_some_tasks_funds_those(chain: Chain, world: PayWorld) -> None:
    reward = ETHER
    await chain.rpc.call("hardhat_setBalance", chain.signer.address, hex(3 * ETHER + ETHER // 2))
    world.submit(*(new_task(reward_wei=reward) for _ in range(5)))
    await world.rounds()
    await chain.mine(2)
    await world.rounds()
    assert sum(intent.state is IntentState.DONE for intent in world.intents()) == 3
    await chain.rpc.call("hardhat_setBalance", chain.signer.address, hex(10 * ETHER))
    await world.settle_down()
    assert all(intent.state is IntentState.DONE for intent in world.intents())


# ── reverts ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_funding_that_reverts_is_made_anew_with_a_new_deadline(chain: Chain, world: PayWorld) -> None:
    await chain.automine(False)
    tasks = world.submit(*(new_task(reward_wei=REWARD) for _ in range(3)))
    await world.rounds()
    snapshot = await chain.rpc.call("evm_snapshot")
    assert snapshot
    await chain.rpc.call("evm_increaseTime", 91 * 86_400)  # mined after its deadline
    await chain.mine(1)
    await world.rounds()
    assert state_of(world) == ["mined"]
    assert [world.view(task).on_chain for task in tasks] == [None] * 3
    await chain.mine(2)
    await world.rounds()
    assert state_of(world) == ["reverted", "sent"]
    await world.settle_down(times=1)
    for _ in tasks:
        world.run_task()
    await world.settle_down()
    assert [(await world.chain_task(task)).state for task in tasks] == [TaskState.PAID] * 3
    await check_books(world)


def task_slot(requester: str, task: bytes) -> str:
    """Where the contract keeps a task: ``_tasks`` is its fourth slot."""
    from eth_utils.crypto import keccak

    outer = keccak(bytes.fromhex(requester[2:]).rjust(32, b"\0") + (3).to_bytes(32))
    return "0x" + keccak(task + outer).hex()


async def test_payment_that_reverts_names_the_bad_item_and_pays_the_others(chain: Chain, world: PayWorld) -> None:
    tasks = world.submit(*(new_task(reward_wei=REWARD) for _ in range(4)))
    await world.settle_down(times=1)
    for _ in tasks:
        world.run_task()
    await chain.automine(False)
    await world.rounds()
    bad = chain_task_id(tasks[1], 1)
    slot = task_slot(chain.signer.address, bad)
    good = await chain.rpc.call("eth_getStorageAt", chain.contract, slot, "latest")
    assert int(good, 16) >> 136 == TaskState.OPEN
    await chain.rpc.call("hardhat_setStorageAt", chain.contract, slot, "0x" + "0" * 64)
    await chain.mine(3)
    await world.rounds()
    assert state_of(world)[1] == "reverted"
    await chain.mine(3)
    await world.rounds()
    paid = [world.view(task).paid is not None for task in tasks]
    assert paid == [True, False, True, True]
    named = next(each for each in world.intents() if each.task == tasks[1] and each.kind is IntentKind.COMPLETE)
    assert (named.state, named.tries) == (IntentState.QUEUED, 1)
    assert named.note == f"TaskNotOpen(0x{bad.hex()})"

    for _ in range(2):  # tries count per item; the third parks it, with an alert
        world.now += 3600
        await world.rounds()
    assert WorryCode.PARKED in world.worry_codes
    await chain.rpc.call("hardhat_setStorageAt", chain.contract, slot, good)
    assert world.do(RetryParked(address=chain.signer.address)) == 1
    await world.settle_down()
    assert world.view(tasks[1]).paid is not None
    await check_books(world)


async def test_funding_that_can_never_be_made_fails_the_task(chain: Chain, world: PayWorld) -> None:
    task, fellow = world.submit(new_task(reward_wei=REWARD), new_task(reward_wei=REWARD))
    slot = task_slot(chain.signer.address, chain_task_id(task, 1))
    spent = hex(TaskState.FAILED << 136 | REWARD)
    await chain.rpc.call("hardhat_setStorageAt", chain.contract, slot, "0x" + spent[2:].rjust(64, "0"))
    for _ in range(4):
        world.now += 3600
        await world.rounds()
    view = world.view(task)
    assert (view.status, view.reason) == (Status.FAILED, "funding_failed")
    assert view.detail is not None
    assert view.detail.startswith("TaskExists")
    assert world.moves(task)[-1] == "funding_failed"
    (lease,) = world.claim(ALICE, want=5)  # it isn't granted any more; its fellow is
    assert lease.task == fellow
    assert WorryCode.PARKED in world.worry_codes
    assert world.replay(task) == [Status.PENDING]  # a new generation is a new id on the chain
    world.complete(ALICE, lease)
    world.run_task()
    await world.settle_down()
    assert (await world.chain_task(task, 2)).state is TaskState.PAID


# ── reorgs ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_reorg_before_finality_sends_the_same_bytes_again(
    chain: Chain, world: PayWorld, between: Between
) -> None:
    await world.claim_key()
    await chain.automine(False)
    task = world.one(reward_wei=REWARD)
    snapshot = await chain.rpc.call("evm_snapshot")
    await world.rounds()
    await chain.mine(1)
    await world.rounds()
    assert state_of(world) == ["mined"]
    assert await chain.rpc.call("evm_revert", snapshot)
    await chain.rpc.call("evm_increaseTime", 7)
    await chain.mine(1)  # another block at that height, without it
    await world.rounds()
    assert state_of(world) == ["sent"]
    assert between.sent[0] == between.sent[-1]
    await world.settle_down(times=1)
    assert world.view(task).on_chain is not None
    world.run_task()
    await world.settle_down()
    assert await nonce(chain) == 2
    await check_books(world)


async def test_reorg_after_finality_takes_the_flags_back(chain: Chain, world: PayWorld) -> None:
    await world.claim_key()
    await chain.automine(False)
    task = world.one(reward_wei=REWARD)
    await world.settle_down(times=1)
    snapshot = await chain.rpc.call("evm_snapshot")
    world.run_task()
    await world.settle_down(times=1)
    assert world.view(task).paid is not None
    assert await chain.rpc.call("evm_revert", snapshot)
    await world.rounds()
    assert world.view(task).paid is not None  # a shorter chain: no verdict yet, but the bytes are sent again
    for _ in range(6):
        await chain.rpc.call("evm_increaseTime", 5)
        await chain.mine(1)
    await world.rounds()
    await world.settle_down(times=2)
    assert world.view(task).paid is not None
    assert await nonce(chain) == 2
    await check_books(world)


async def test_flags_are_gone_while_the_reorged_payment_waits(chain: Chain, world: PayWorld, between: Between) -> None:
    await world.claim_key()
    await chain.automine(False)
    task = world.one(reward_wei=REWARD)
    snapshot = await chain.rpc.call("evm_snapshot")
    await world.settle_down(times=1)
    assert world.view(task).on_chain is not None
    assert await chain.rpc.call("evm_revert", snapshot)
    await chain.rpc.call("evm_increaseTime", 5)
    await chain.mine(5)
    await world.one_round()
    assert world.view(task).on_chain is None
    world.run_task()
    await world.rounds()
    assert [each.state for each in world.intents()] == [IntentState.SIGNED, IntentState.QUEUED]  # no payment now
    await world.settle_down()
    assert world.view(task).paid is not None
    await check_books(world)


# ── others ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_foreign_nonce_in_flight_stops_the_sender_and_is_cured_on_resuming(
    chain: Chain, world: PayWorld, between: Between
) -> None:
    await world.claim_key()
    await chain.automine(False)
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    await send_foreign(chain, at=0)  # replaces ours: its fees are higher
    await chain.mine(1)
    await world.rounds()
    assert state_of(world) == ["foreign"]
    assert WorryCode.SENDER_STOPPED in world.worry_codes
    sent = len(between.sent)
    await chain.mine(3)
    await world.rounds()
    assert state_of(world) == ["abandoned"]
    assert [each.state for each in world.intents()] == [IntentState.QUEUED]
    assert len(between.sent) == sent  # nothing is signed or sent until the operator says so
    assert world.do(ResumeSender(address=chain.signer.address, next_nonce=await nonce(chain)))
    await world.settle_down(times=1)
    world.run_task()
    await world.settle_down()
    assert world.view(task).paid is not None
    assert await nonce(chain) == 3
    await check_books(world)


async def test_foreign_nonce_while_idle_stops_the_sender(chain: Chain, world: PayWorld) -> None:
    await world.claim_key()
    await send_foreign(chain)
    await world.rounds()
    assert WorryCode.SENDER_STOPPED in world.worry_codes
    world.one(reward_wei=REWARD)
    await world.rounds()
    assert state_of(world) == []


async def test_two_roots_with_separate_ledgers_and_one_key(chain: Chain, world: PayWorld, tmp_path: Path) -> None:
    other = PayWorld(tmp_path / "other.sqlite", chain.rpc, chain.signer, chain.contract, chain_id=world.chain_id)
    await world.claim_key()
    await other.claim_key()
    mine, theirs = world.one(reward_wei=REWARD), other.one(reward_wei=REWARD)
    await world.settle_down(times=1)
    await other.rounds()
    assert WorryCode.SENDER_STOPPED in other.worry_codes  # it signed nothing
    assert (await other.chain_task(theirs)).state is TaskState.NONE
    world.run_task()
    await world.settle_down()
    assert world.view(mine).paid is not None
    assert await nonce(chain) == 2
    await check_books(world)
    other.close()


async def test_node_restarted_with_its_state_lost_stops_paying(tmp_path: Path) -> None:
    with running_hardhat() as node:
        async with open_rpc(node.url) as rpc:
            await rpc.call("evm_mine")
            chain = await fresh_chain(rpc)
            world = PayWorld(tmp_path / "l.sqlite", rpc, chain.signer, chain.contract, chain_id=31337)
            world.one(reward_wei=REWARD)
            await world.settle_down(times=1)
            world.run_task()
    with running_hardhat() as node:
        async with open_rpc(node.url) as rpc:
            again = await fresh_chain(rpc)
            await rpc.call("hardhat_setBalance", chain.signer.address, hex(ETHER))
            await again.mine(5)
            world.rpc = between = Between(rpc)
            await world.claim_key()
            done = await world.one_round()
            assert [worry.code for worry in done.worries] == [WorryCode.CHAIN_LOST]
            assert done.worries[0].at_once
            assert "bring the chain back" in done.worries[0].hint
            assert between.sent == []
            assert not done.moved
    world.close()


async def test_a_lagging_rpc_gives_no_verdict(chain: Chain, world: PayWorld, between: Between) -> None:
    world.rules = Rules(finality_blocks=2, watch_blocks=8, linger_s=0.0, doubt_s=30.0)
    await world.claim_key()
    task = world.one(reward_wei=REWARD)
    await world.settle_down(times=1)
    assert world.view(task).on_chain is not None
    world.run_task()
    await world.one_round()

    def without_receipts(method: str, _params: Sequence[Any], answer: Any) -> Any:
        return None if method in ("eth_getTransactionReceipt", "eth_getTransactionByHash") else answer

    between.tamper = without_receipts  # the nonce was used, says one replica; another knows no receipt
    for _ in range(3):
        await world.one_round()
        world.now += 5
    assert world.view(task).on_chain is not None
    assert WorryCode.SENDER_STOPPED not in world.worry_codes
    assert world.reader.sender(chain.signer.address).stopped is None  # type: ignore[union-attr]

    early = hex(await chain.head() - 4)

    def behind(method: str, params: Sequence[Any], answer: Any) -> Any:
        if method == "eth_getBlockByNumber" and params[0] == "latest":
            return {**answer, "number": early}
        return without_receipts(method, params, answer)

    between.tamper = behind
    await world.one_round()
    assert world.view(task).on_chain is not None
    between.tamper = None
    await world.settle_down()
    assert world.view(task).paid is not None
    assert await nonce(chain) == 2
    await check_books(world)


async def test_a_chain_that_is_down_stops_nothing_else(world: PayWorld, between: Between) -> None:
    await world.claim_key()
    between.down = True
    task = world.one(reward_wei=REWARD)
    world.run_task()  # tasks go on
    with pytest.raises(RpcUnreachable):
        await world.rounds()
    between.down = False
    await world.settle_down()
    assert world.view(task).paid is not None
    await check_books(world)


# ── lives of tasks ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_replay_after_the_refund_is_funded_anew_and_paid_once(chain: Chain, world: PayWorld) -> None:
    before = await chain.ether(ALICE.address)
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    world.fail_task(ALICE)
    await world.settle_down()
    assert world.view(task).refunded is not None
    world.replay(task)
    assert (world.view(task).on_chain, world.view(task).refunded) == (None, None)
    await world.rounds()
    world.run_task(ALICE)
    await world.settle_down()
    assert (await world.chain_task(task, 1)).state is TaskState.FAILED
    assert (await world.chain_task(task, 2)).state is TaskState.PAID
    view = world.view(task)
    assert view.paid is not None
    assert view.refunded is None
    assert await chain.ether(ALICE.address) == before + REWARD
    await check_books(world)


async def test_cancelled_and_expired_tasks_are_refunded_never_paid(world: PayWorld) -> None:
    cancelled, expired = world.submit(new_task(reward_wei=REWARD), new_task(reward_wei=REWARD, expires_in_s=10.0))
    await world.rounds()
    world.cancel(cancelled)
    world.later(11.0)
    await world.settle_down()
    for task in (cancelled, expired):
        assert (await world.chain_task(task)).state is TaskState.FAILED
        assert world.view(task).refunded is not None
        assert world.view(task).paid is None
    await check_books(world)


async def test_a_task_cancelled_between_signing_and_mining_is_refunded(chain: Chain, world: PayWorld) -> None:
    await chain.automine(False)
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    world.cancel(task)
    await world.settle_down()
    assert (await world.chain_task(task)).state is TaskState.FAILED
    await check_books(world)


async def test_a_worker_that_takes_no_payment_is_credited(chain: Chain, world: PayWorld) -> None:
    await chain.rpc.call("hardhat_setCode", BOB.address, "0x60006000fd")  # reverts whatever it gets
    task = world.one(reward_wei=REWARD)
    await world.rounds()
    world.run_task(BOB)
    await world.settle_down()
    assert world.view(task).paid is not None
    data = escrow.balance_call(BOB.address).hex()
    credit = await chain.rpc.call("eth_call", {"to": chain.contract, "data": "0x" + data}, "latest")
    assert escrow.decode_balance(credit) == REWARD
    await chain.rpc.call("hardhat_setCode", BOB.address, "0x")


async def test_a_deposit_reaches_its_target_and_a_withdrawal_happens_once(chain: Chain, world: PayWorld) -> None:
    def ask(kind: IntentKind, key: str, amount: int) -> Any:
        return world.do(
            AddIntent(kind=kind, key=key, sender=chain.signer.address, amount_wei=amount, payee=ALICE.address)
        )

    before = await chain.ether(ALICE.address)
    assert ask(IntentKind.DEPOSIT, "d1", 10 * REWARD)
    assert not ask(IntentKind.DEPOSIT, "d1", 10 * REWARD)
    await world.settle_down(times=1)
    assert await world.balance() == 10 * REWARD
    assert ask(IntentKind.DEPOSIT, "d2", 4 * REWARD)  # true already
    assert ask(IntentKind.WITHDRAW, "w1", 3 * REWARD)
    await world.settle_down()
    assert await world.balance() == 7 * REWARD
    assert await chain.ether(ALICE.address) == before + 3 * REWARD
    world.one(reward_wei=REWARD)  # is funded by the balance
    await world.settle_down(times=1)
    assert await world.balance() == 6 * REWARD
    await check_books(world, all_settled=False)


async def test_a_ledger_restored_from_a_backup_pays_nobody_twice(chain: Chain, world: PayWorld, tmp_path: Path) -> None:
    before = await chain.ether(ALICE.address)
    tasks: list[TaskId] = world.submit(*(new_task(reward_wei=REWARD) for _ in range(3)))
    await world.settle_down(times=1)
    for _ in tasks:
        world.run_task()
    world.close()
    shutil.copy(world.path, tmp_path / "backup.sqlite")
    world.open()
    await reopened(world)
    await world.settle_down()
    assert await chain.ether(ALICE.address) == before + 3 * REWARD
    restore(world, tmp_path / "backup.sqlite")
    await world.claim_key()
    await world.rounds()
    assert WorryCode.SENDER_STOPPED in world.worry_codes
    world.do(ResumeSender(address=chain.signer.address, next_nonce=await nonce(chain)))
    await world.settle_down()
    assert await chain.ether(ALICE.address) == before + 3 * REWARD
    assert all(world.view(task).paid is not None for task in tasks)
    await check_books(world)


def restore(world: PayWorld, backup: Path) -> None:
    """Put an older ledger in the place of the present one."""
    world.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{world.path}{suffix}").unlink(missing_ok=True)
    shutil.copy(backup, world.path)
    world.open()
