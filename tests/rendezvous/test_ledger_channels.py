"""Path B in the ledger: accepted tasks are vouchers at once, covered as the chain's money goes, never paid twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
import uuid6

from rendezvous.ledger import money_tables as m
from rendezvous.ledger.act_ops import SetAllowance
from rendezvous.ledger.channels import ChannelRow
from rendezvous.ledger.money_ops import AdoptVoucher, ChannelSeen, Intent, IntentKind, IntentState, SeeChannels
from rendezvous.ledger.ops import Submit
from rendezvous.ledger.settings import LedgerSettings
from swarm.content.cid import parse_cid, raw_cid
from swarm.model import Refusal, Settle, Status, TaskId
from swarm.vouchers import EMPTY_TASKS_ROOT, chain_task_id, next_tasks_root
from tests.rendezvous.ledger_world import ALICE, BOB, World, check_consistency, new_task

PAYER = "0x" + "9" * 40
REWARD = 10**15


@pytest.fixture
def world(database: str) -> Iterator[World]:
    made = World(database, LedgerSettings(host_rate_per_s=0, payer=PAYER))
    yield made
    check_consistency(made)
    made.close()


def submit(world: World, count: int = 1, reward_wei: int = REWARD, **op: Any) -> list[TaskId]:
    return world.submit(*(new_task(reward_wei=reward_wei) for _ in range(count)), settle=Settle.CHANNEL, **op)


def do_task(world: World, who: Any = ALICE, content: bytes = b"result") -> TaskId:
    (lease,) = world.claim(who)
    assert world.complete(who, lease, cid=raw_cid(content)) is Status.COMPLETED
    return lease.task


def channel(world: World, who: Any = ALICE) -> ChannelRow:
    found = world.reader.channel(PAYER, who.address)
    assert found is not None
    return found


def see(world: World, *, locked: int, settled: int = 0, number: int = 1, who: Any = ALICE) -> int:
    seen = ChannelSeen(payee=who.address, locked_wei=locked, settled_wei=settled)
    answer: int = world.do(SeeChannels(payer=PAYER, number=number, seen=(seen,)))
    return answer


def intents(world: World) -> list[Intent]:
    return world.reader.intents(PAYER)


def end_fund(world: World, state: IntentState = IntentState.DONE) -> None:
    """What the outbox does to a funding."""
    with world.engine.begin() as connection:
        connection.execute(sa.update(m.intents).values(state=state.value))


def test_an_accepted_task_is_a_voucher_and_asks_for_collateral_in_the_same_transaction(world: World) -> None:
    tasks = submit(world, 40)
    assert intents(world) == []  # nothing is funded task by task
    task = do_task(world)
    assert task in tasks
    row = channel(world)
    root = next_tasks_root(
        EMPTY_TASKS_ROOT,
        chain_task=chain_task_id(task, 1),
        output=parse_cid(raw_cid(b"result")).digest,
        reward_wei=REWARD,
    )
    assert (row.accepted, row.owed_wei, row.tasks_root, row.covered) == (1, REWARD, root, 0)
    (fund,) = intents(world)
    assert (fund.kind, fund.payee, fund.amount_wei) == (IntentKind.FUND, ALICE.address, 17 * REWARD)
    assert world.task(task).accepted
    assert world.task(task).on_chain is None
    # nothing above what is locked is ever to be signed
    assert world.reader.vouchers_since(PAYER, ALICE.address, since_wei=0) is None


def test_what_is_locked_makes_vouchers_and_every_task_since_the_last_is_listed(world: World) -> None:
    submit(world, 5)
    done = [do_task(world, content=bytes([number])) for number in range(3)]
    assert see(world, locked=2 * REWARD) == 1
    page = world.reader.vouchers_since(PAYER, ALICE.address, since_wei=0)
    assert page is not None
    assert [each.task for each in page.tasks] == done[:2]
    assert (page.since_wei, page.cumulative_wei) == (0, 2 * REWARD)
    assert [world.task(task).on_chain is not None for task in done] == [True, True, False]

    see(world, locked=3 * REWARD, number=2)
    page = world.reader.vouchers_since(PAYER, ALICE.address, since_wei=REWARD)
    assert page is not None
    assert [each.task for each in page.tasks] == done[1:]  # the lost one of 2 is no gap
    assert page.tasks_root == channel(world).tasks_root
    assert world.reader.vouchers_since(PAYER, ALICE.address, since_wei=3 * REWARD) is None


def test_what_was_redeemed_on_the_chain_is_paid_in_the_ledger(world: World) -> None:
    submit(world, 3)
    done = [do_task(world, content=bytes([number])) for number in range(3)]
    see(world, locked=3 * REWARD)
    see(world, locked=REWARD, settled=2 * REWARD, number=2)
    assert [world.task(task).paid is not None for task in done] == [True, True, False]
    # a block that was looked at before says nothing new
    assert see(world, locked=3 * REWARD, number=1) == 0
    assert [world.task(task).paid is not None for task in done] == [True, True, False]
    # a reorganisation deeper than finality takes back what rested on it
    see(world, locked=3 * REWARD, number=3)
    assert [world.task(task).paid for task in done] == [None] * 3


def test_one_funding_at_a_time_holds_the_greatest_target(world: World) -> None:
    submit(world, 60)
    for number in range(12):
        do_task(world, content=bytes([number]))
    (fund,) = intents(world)
    assert fund.amount_wei > 12 * REWARD + 8 * REWARD  # raised while it waits
    end_fund(world, IntentState.SIGNED)
    for number in range(12, 30):
        do_task(world, content=bytes([number]))
    assert len(intents(world)) == 1  # a signed one is never followed before it is done
    end_fund(world)
    see(world, locked=fund.amount_wei)
    first, second = intents(world)
    assert first.amount_wei == fund.amount_wei
    assert second.amount_wei >= channel(world).owed_wei == 30 * REWARD
    assert second.state is IntentState.QUEUED


def test_a_small_job_locks_no_more_than_it_has_left(world: World) -> None:
    submit(world, 3)
    do_task(world)
    (fund,) = intents(world)
    assert fund.amount_wei == 3 * REWARD


def test_a_worker_that_gives_its_collateral_back_is_funded_again_by_its_next_work_only(world: World) -> None:
    submit(world, 10)
    do_task(world)
    end_fund(world)
    see(world, locked=10 * REWARD)
    see(world, locked=0, settled=REWARD, number=2)
    assert len(intents(world)) == 1
    do_task(world, content=b"more")
    assert [intent.state for intent in intents(world)] == [IntentState.DONE, IntentState.QUEUED]


def test_workers_have_channels_of_their_own(world: World) -> None:
    submit(world, 4)
    do_task(world, ALICE)
    do_task(world, BOB)
    assert channel(world, ALICE).owed_wei == channel(world, BOB).owed_wei == REWARD
    assert {intent.payee for intent in intents(world)} == {ALICE.address, BOB.address}


def test_tasks_that_end_without_a_result_are_owed_to_nobody_and_their_charge_comes_back(world: World) -> None:
    world.do(SetAllowance(owner="owner", amount_wei=10 * REWARD))
    failed, cancelled = submit(world, 2, charged=True)
    assert world.reader.allowance("owner").spent_wei == 2 * REWARD
    (lease,) = world.claim(ALICE)
    assert world.fail(ALICE, lease, reason="http_4xx") is Status.FAILED
    world.cancel(cancelled if lease.task == failed else failed)
    assert world.reader.allowance("owner").spent_wei == 0
    assert world.reader.channel(PAYER, ALICE.address) is None
    assert intents(world) == []


def test_a_replayed_task_is_paid_once_in_its_next_generation(world: World) -> None:
    (task,) = submit(world)
    (lease,) = world.claim(ALICE)
    world.fail(ALICE, lease, reason="http_4xx")
    assert world.replay(task) == [Status.PENDING]
    do_task(world)
    row = channel(world)
    page_root = next_tasks_root(
        EMPTY_TASKS_ROOT,
        chain_task=chain_task_id(task, 2),
        output=parse_cid(raw_cid(b"result")).digest,
        reward_wei=REWARD,
    )
    assert (row.accepted, row.tasks_root) == (1, page_root)


def test_a_result_on_its_way_to_a_called_off_task_is_owed_and_charged_again(world: World) -> None:
    world.do(SetAllowance(owner="owner", amount_wei=10 * REWARD))
    (task,) = submit(world, charged=True)
    (lease,) = world.claim(ALICE)
    assert world.cancel(task) == [Status.CANCELLED]
    assert world.reader.allowance("owner").spent_wei == 0
    assert world.complete(ALICE, lease, cid=raw_cid(b"late")) is Status.COMPLETED
    assert channel(world).owed_wei == REWARD
    assert world.reader.allowance("owner").spent_wei == REWARD


def test_a_result_that_comes_twice_is_owed_once(world: World) -> None:
    submit(world)
    (lease,) = world.claim(ALICE)
    for _ in range(2):
        assert world.complete(ALICE, lease, cid=raw_cid(b"same")) is Status.COMPLETED
    assert channel(world).owed_wei == REWARD


def test_a_job_keeps_the_path_that_it_was_made_with(world: World) -> None:
    job = str(uuid6.uuid7())
    world.submit(new_task(reward_wei=REWARD), job=job, settle=Settle.CHANNEL)
    answer = world.do(Submit(owner="owner", job=job, job_named=True, name=None, tasks=(new_task(reward_wei=REWARD),)))
    assert not isinstance(answer, Refusal)
    assert intents(world) == []  # it joined a job of channels, so it is none of path A's
    view = world.reader.job(job)
    assert view is not None
    assert view.settle == Settle.CHANNEL


def test_a_task_that_was_funded_by_itself_never_gets_a_voucher(world: World) -> None:
    (task,) = submit(world)
    with world.engine.begin() as connection:  # as no operation could make it
        values = {"n": 1, "slot": "create", "key": f"{task}:1", "kind": "create", "sender": PAYER, "amount_wei": "1"}
        rest = {"state": "done", "tries": 0, "delays": 0, "created_at": 0.0}
        connection.execute(sa.insert(m.intents).values(**values, **rest))
    (lease,) = world.claim(ALICE)
    with pytest.raises(Exception, match="paid for twice"):
        world.complete(ALICE, lease, cid=raw_cid(b"result"))
    assert world.task(task).status == Status.ACTIVE
    assert world.reader.channel(PAYER, ALICE.address) is None


def test_a_voucher_above_all_that_is_known_is_owed_and_goes_on_from_there(world: World) -> None:
    submit(world, 4)
    do_task(world)
    adopted = AdoptVoucher(payer=PAYER, payee=ALICE.address, cumulative_wei=5 * REWARD, tasks_root=b"\x05" * 32)
    assert world.do(adopted) is True
    assert world.do(adopted) is False
    row = channel(world)
    assert (row.owed_wei, row.tasks_root) == (5 * REWARD, b"\x05" * 32)
    task = do_task(world, content=b"more")
    see(world, locked=20 * REWARD)
    page = world.reader.vouchers_since(PAYER, ALICE.address, since_wei=5 * REWARD)
    assert page is not None
    assert ([each.task for each in page.tasks], page.since_wei) == ([task], 5 * REWARD)
    # whoever lacks that voucher can't be told what it was for
    assert world.reader.vouchers_since(PAYER, ALICE.address, since_wei=REWARD) is None


def test_a_crash_after_the_acceptance_loses_neither_debt_nor_funding(world: World) -> None:
    submit(world, 2)
    do_task(world)
    world.close()
    world.open()
    assert channel(world).owed_wei == REWARD
    (fund,) = intents(world)
    assert fund.state is IntentState.QUEUED
    book = world.value("SELECT count(*) FROM vouchers")
    assert book == 1
