"""Path B on a real node: channels are funded to a target, vouchers redeemed without the root, the ledger follows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from eth_account import Account

from rendezvous.chain import escrow
from rendezvous.chain.keys import LocalSigner
from rendezvous.chain.rpc import Rpc
from rendezvous.ledger.money_ops import AddIntent, IntentKind, IntentState
from rendezvous.ledger.values import WorkerRef
from swarm.chain_reader import redeem_data, release_data
from swarm.errors import RpcSaid
from swarm.model import Settle, TaskId
from swarm.vouchers import Escrow, Voucher, compact_signature, sign_voucher, voucher_digest, voucher_signer
from tests.chain.hardhat import ETHER, Chain
from tests.chain.pay_world import ALICE, BOB, REWARD, PayWorld, check_books
from tests.rendezvous.ledger_world import new_task

EXIT_DELAY_S = 3600


def submit(world: PayWorld, count: int = 4) -> list[TaskId]:
    return world.submit(*(new_task(reward_wei=REWARD) for _ in range(count)), settle=Settle.CHANNEL)


def work(world: PayWorld, count: int = 1, who: WorkerRef = ALICE) -> list[TaskId]:
    return [world.run_task(who, content=bytes([number])) for number in range(count)]


def voucher_of(world: PayWorld, since_wei: int = 0, who: WorkerRef = ALICE) -> tuple[Voucher, bytes]:
    """What the root signs for a worker now."""
    page = world.reader.vouchers_since(world.signer.address, who.address, since_wei=since_wei)
    assert page is not None
    voucher = Voucher(
        requester=world.signer.address,
        worker=who.address,
        cumulative_wei=page.cumulative_wei,
        tasks_root=page.tasks_root,
    )
    assert isinstance(world.signer, LocalSigner)
    digest = voucher_digest(Escrow(chain_id=world.chain_id, address=world.contract), voucher)
    return voucher, compact_signature(world.signer.sign_digest(digest))


async def send(rpc: Rpc, key: bytes, contract: str, data: bytes) -> None:
    """A transaction of somebody else than the root."""
    sender = LocalSigner(key)
    await rpc.call("hardhat_setBalance", sender.address, hex(ETHER))
    signed = sender.sign_transaction(
        {
            "type": 2,
            "chainId": int(await rpc.call("eth_chainId"), 16),
            "nonce": int(await rpc.call("eth_getTransactionCount", sender.address, "latest"), 16),
            "to": contract,
            "data": "0x" + data.hex(),
            "value": 0,
            "gas": 300_000,
            "maxFeePerGas": 100 * 10**9,
            "maxPriorityFeePerGas": 10**9,
        }
    )
    await rpc.call("eth_sendRawTransaction", "0x" + signed.raw.hex())


@contextmanager
def refused(error: str) -> Iterator[None]:
    """The contract refuses what is sent in here, with this error."""
    with pytest.raises(RpcSaid) as fault:
        yield
    said = escrow.decode_error(fault.value.data)
    assert said is not None
    assert said.name == error


def key_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


async def covered(world: PayWorld) -> None:
    """Until what is to be locked is locked, and the ledger has seen it."""
    await world.settle_down()
    await world.follow()


async def test_a_channel_is_funded_after_the_first_accepted_work_and_covers_its_vouchers(
    world: PayWorld, chain: Chain
) -> None:
    submit(world, 20)
    await world.claim_key()
    await world.settle_down()
    assert world.intents() == []  # nobody worked yet
    (task,) = work(world)
    await covered(world)
    channel = await world.channel(ALICE.address)
    assert (channel.locked_wei, channel.settled_wei) == (17 * REWARD, 0)
    assert world.view(task).on_chain
    assert world.view(task).paid is None
    await check_books(world)

    work(world, 3)
    await covered(world)
    assert len(world.intents()) == 1  # there is enough for a while
    voucher, signature = voucher_of(world)
    assert voucher.cumulative_wei == 4 * REWARD
    assert voucher_signer(Escrow(chain_id=world.chain_id, address=world.contract), voucher, signature) == (
        world.signer.address
    )
    assert chain.contract == world.contract


async def test_a_voucher_is_redeemed_by_anyone_without_the_root_and_the_ledger_follows(world: PayWorld) -> None:
    submit(world)
    await world.claim_key()
    done = work(world, 3)
    await covered(world)
    voucher, signature = voucher_of(world)
    world.sender = None  # the root is gone
    before = await world.ether(ALICE.address)
    await send(world.rpc, key_of("a relayer"), world.contract, redeem_data(voucher, signature))
    assert await world.ether(ALICE.address) - before == 3 * REWARD
    channel = await world.channel(ALICE.address)
    assert channel.settled_wei == 3 * REWARD

    await world.follow()
    assert [world.view(task).paid for task in done] == [None] * 3  # it isn't final yet
    await world.settle_down()
    await world.follow()
    assert all(world.view(task).paid for task in done)
    row = world.reader.channel(world.signer.address, ALICE.address)
    assert row is not None
    assert (row.settled_wei, row.locked_wei) == (channel.settled_wei, channel.locked_wei)
    await check_books(world)


async def test_a_voucher_pays_once_and_an_older_one_nothing(world: PayWorld) -> None:
    submit(world)
    await world.claim_key()
    work(world, 1)
    await covered(world)
    older = voucher_of(world)
    work(world, 1)
    newer = voucher_of(world)
    assert newer[0].cumulative_wei == 2 * REWARD
    await send(world.rpc, key_of("alice"), world.contract, redeem_data(*newer))
    for again in (newer, older):
        with refused("NothingDue"):
            await send(world.rpc, key_of("mallory"), world.contract, redeem_data(*again))
    assert (await world.channel(ALICE.address)).settled_wei == 2 * REWARD


async def test_forged_and_stretched_vouchers_are_refused(world: PayWorld) -> None:
    submit(world)
    await world.claim_key()
    work(world, 1)
    await covered(world)
    voucher, signature = voucher_of(world)
    place = Escrow(chain_id=world.chain_id, address=world.contract)
    stretched = Voucher(
        requester=voucher.requester,
        worker=voucher.worker,
        cumulative_wei=voucher.cumulative_wei * 3,
        tasks_root=voucher.tasks_root,
    )
    for forged in (signature, sign_voucher(place, stretched, key_of("mallory"))):
        with refused("WrongSigner"):
            await send(world.rpc, key_of("mallory"), world.contract, redeem_data(stretched, forged))
    elsewhere = Voucher(
        requester=voucher.requester,
        worker=BOB.address,
        cumulative_wei=voucher.cumulative_wei,
        tasks_root=voucher.tasks_root,
    )
    with refused("WrongSigner"):
        await send(world.rpc, key_of("bob"), world.contract, redeem_data(elsewhere, signature))


async def test_a_root_killed_between_voucher_and_funding_funds_at_its_next_start(world: PayWorld) -> None:
    submit(world)
    await world.claim_key()
    work(world, 2)
    (fund,) = world.intents()
    assert (fund.kind, fund.state) == (IntentKind.FUND, IntentState.QUEUED)
    world.close()  # killed: nothing was sent
    world.open()
    world.sender = world.follower = None
    assert (await world.channel(ALICE.address)).locked_wei == 0
    await covered(world)
    voucher, signature = voucher_of(world)
    assert voucher.cumulative_wei == 2 * REWARD
    # signed again after another start it is the same, byte by byte
    world.close()
    world.open()
    assert voucher_of(world) == (voucher, signature)
    await check_books(world)


async def test_a_root_killed_after_it_sent_a_funding_funds_once(world: PayWorld) -> None:
    await world.rpc.call("evm_setAutomine", False)
    submit(world)
    await world.claim_key()
    work(world, 2)
    await world.one_round()
    assert [each.state for each in world.intents()] == [IntentState.SIGNED]
    world.close()
    world.open()
    world.sender = None
    await world.rpc.call("evm_mine")
    await world.rpc.call("evm_setAutomine", True)
    await covered(world)
    assert (await world.channel(ALICE.address)).locked_wei == world.intents()[0].amount_wei
    await check_books(world)


async def test_a_funding_that_was_reorganised_away_is_sent_again_and_never_doubled(world: PayWorld) -> None:
    submit(world)
    await world.claim_key()
    snapshot = await world.rpc.call("evm_snapshot")
    work(world, 2)
    await world.rounds()
    assert (await world.channel(ALICE.address)).locked_wei > 0
    await world.rpc.call("evm_revert", snapshot)
    await world.rpc.call("evm_mine")
    assert (await world.channel(ALICE.address)).locked_wei == 0
    await covered(world)
    assert (await world.channel(ALICE.address)).locked_wei == world.intents()[0].amount_wei
    await check_books(world)


def ask_to_close(world: PayWorld, who: WorkerRef = ALICE) -> None:
    payer = world.signer.address
    op = AddIntent(kind=IntentKind.EXIT, key=f"{payer}:{who.address}:1", sender=payer, amount_wei=0, payee=who.address)
    assert world.do(op)


async def pass_time(world: PayWorld, seconds: int) -> None:
    """On the chain and in the ledger."""
    await world.rpc.call("evm_increaseTime", seconds)
    await world.rpc.call("evm_mine")
    block = await world.rpc.call("eth_getBlockByNumber", "latest", False)
    world.now = max(world.now, float(int(block["timestamp"], 16)))
    world.later(0.0)  # tasks of long ago expire


async def test_a_worker_keeps_its_money_through_an_exit_and_the_root_gets_the_rest(world: PayWorld) -> None:
    submit(world, 10)
    await world.claim_key()
    work(world, 2)
    await covered(world)
    voucher, signature = voucher_of(world)
    ask_to_close(world)
    await covered(world)
    row = world.reader.channel(world.signer.address, ALICE.address)
    assert row is not None
    assert row.exit_at
    closing = world.intents()[-1]
    assert (closing.kind, closing.state) == (IntentKind.CLOSE, IntentState.QUEUED)
    await world.rounds()
    assert world.intents()[-1].state is IntentState.QUEUED  # not before its time

    before = await world.ether(ALICE.address)
    await send(world.rpc, key_of("mallory"), world.contract, redeem_data(voucher, signature))
    assert await world.ether(ALICE.address) - before == 2 * REWARD
    left_wei = (await world.channel(ALICE.address)).locked_wei
    await pass_time(world, EXIT_DELAY_S + 120)
    balance = await world.balance()
    await covered(world)
    assert await world.balance() - balance == left_wei > 0
    assert world.intents()[-1].state is IntentState.DONE
    await check_books(world)
    # the old voucher stays worthless, and new work is funded anew
    with refused("NothingDue"):
        await send(world.rpc, key_of("mallory"), world.contract, redeem_data(voucher, signature))
    submit(world, 1)
    work(world, 1)
    await covered(world)
    newer, signed = voucher_of(world, since_wei=2 * REWARD)
    await send(world.rpc, key_of("mallory"), world.contract, redeem_data(newer, signed))
    assert (await world.channel(ALICE.address)).settled_wei == 3 * REWARD


async def test_what_a_worker_did_not_redeem_in_time_is_locked_for_it_again(world: PayWorld) -> None:
    submit(world, 10)
    await world.claim_key()
    work(world, 2)
    await covered(world)
    ask_to_close(world)
    await covered(world)
    await pass_time(world, EXIT_DELAY_S + 120)
    await covered(world)
    assert (await world.channel(ALICE.address)).locked_wei == 0
    await covered(world)  # the debt stays a debt
    assert (await world.channel(ALICE.address)).locked_wei == 2 * REWARD
    await send(world.rpc, key_of("alice"), world.contract, redeem_data(*voucher_of(world)))
    assert (await world.channel(ALICE.address)).settled_wei == 2 * REWARD
    await check_books(world)


async def test_a_channel_that_was_funded_during_its_exit_stays_open(world: PayWorld) -> None:
    submit(world, 40)
    await world.claim_key()
    work(world, 1)
    await covered(world)
    ask_to_close(world)
    await covered(world)
    world.run_task(content=b"more")
    for number in range(12):  # more than is locked: it is topped up
        world.run_task(content=bytes([number]))
    await covered(world)
    row = world.reader.channel(world.signer.address, ALICE.address)
    assert row is not None
    assert row.exit_at is None
    await pass_time(world, EXIT_DELAY_S + 120)
    await covered(world)
    closing = next(intent for intent in world.intents() if intent.kind is IntentKind.CLOSE)
    assert closing.state is IntentState.DONE  # there was nothing to take back any more
    assert (await world.channel(ALICE.address)).locked_wei > 0
    await check_books(world)


async def test_a_worker_that_gives_its_collateral_back_is_paid_for_new_work_all_the_same(world: PayWorld) -> None:
    submit(world, 6)
    await world.claim_key()
    work(world, 1)
    await covered(world)
    await send(world.rpc, key_of("alice"), world.contract, release_data(world.signer.address))
    await world.settle_down()
    await world.follow()
    assert voucher_count(world) == 0
    await world.rounds()
    await covered(world)  # what is owed is locked again
    voucher, signature = voucher_of(world)
    await send(world.rpc, key_of("alice"), world.contract, redeem_data(voucher, signature))
    assert (await world.channel(ALICE.address)).settled_wei == REWARD
    await check_books(world)


def voucher_count(world: PayWorld) -> int:
    row = world.reader.channel(world.signer.address, ALICE.address)
    assert row is not None
    return row.covered


async def test_what_was_earned_while_a_funding_was_under_way_is_locked_by_the_next_one(world: PayWorld) -> None:
    submit(world, 40)
    await world.claim_key()
    work(world, 1)
    await world.one_round()  # signed and mined, not final yet: its target stays
    for number in range(1, 30):
        world.run_task(content=bytes([number]))
    for _ in range(3):
        await world.rpc.call("evm_mine")
    await world.follow()  # seen before the sender knows that it is final: nothing is asked for on top of it
    await covered(world)
    await covered(world)
    row = world.reader.channel(world.signer.address, ALICE.address)
    assert row is not None
    assert row.covered == 30
    assert (await world.channel(ALICE.address)).locked_wei >= 30 * REWARD
    await check_books(world)


async def test_a_wallet_too_empty_for_one_channel_funds_the_others(world: PayWorld) -> None:
    world.submit(new_task(reward_wei=10**22), settle=Settle.CHANNEL)
    await world.claim_key()
    work(world, 1, ALICE)
    submit(world, 2)
    work(world, 2, BOB)
    await covered(world)
    assert (await world.channel(BOB.address)).locked_wei >= 2 * REWARD
    assert (await world.channel(ALICE.address)).locked_wei == 0


async def test_both_paths_are_paid_side_by_side(world: PayWorld) -> None:
    submit(world, 2)
    await world.claim_key()
    by_voucher = work(world, 2)
    (by_task,) = world.submit(new_task(reward_wei=REWARD))
    assert work(world, 1) == [by_task]
    await covered(world)
    await send(world.rpc, key_of("alice"), world.contract, redeem_data(*voucher_of(world)))
    await world.settle_down()
    await world.follow()
    assert all(world.view(task).paid for task in (*by_voucher, by_task))
    assert (await world.chain_task(by_task)).state is escrow.TaskState.PAID
    assert all([(await world.chain_task(task)).state is escrow.TaskState.NONE for task in by_voucher])
    assert Account.from_key(key_of("alice")).address == ALICE.address
    await check_books(world)
