"""What requesters and jobs may spend: charged with the submission, refused before anything is written, given back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import uuid6

from rendezvous.ledger.act_ops import AllowanceView, SetAllowance
from rendezvous.ledger.money_ops import ClaimSender, Deferred, ItemOutcome, Record, RetryParked, Sender, Verdict
from rendezvous.ledger.ops import Submit, SubmitResult
from rendezvous.ledger.settings import LedgerSettings
from swarm.model import Refusal, RefusalCode, Status
from tests.rendezvous.ledger_world import ALICE, World, check_consistency, new_task

PAYER = "0x" + "9" * 40


@pytest.fixture
def world(database: str) -> Iterator[World]:
    world = World(database, LedgerSettings(host_rate_per_s=0, payer=PAYER))
    yield world
    check_consistency(world)
    check_charges(world)
    world.close()


def check_charges(world: World) -> None:
    """What is charged to jobs and requesters is what was charged for tasks and not given back, to the wei."""
    with world.reading.connect() as connection:
        rows = connection.exec_driver_sql("SELECT job, amount_wei FROM charges WHERE returned_at IS NULL").all()
        budgets = connection.exec_driver_sql("SELECT job, owner, spent_wei FROM budgets").all()
        spent = dict(tuple(row) for row in connection.exec_driver_sql("SELECT owner, spent_wei FROM allowances"))
    by_job: dict[int, int] = {}
    for job, amount in rows:
        by_job[job] = by_job.get(job, 0) + int(amount)
    assert {job: int(amount) for job, _, amount in budgets} == {job: by_job.get(job, 0) for job, _, _ in budgets}
    by_owner: dict[str, int] = {}
    for job, owner, _ in budgets:
        if owner is not None:
            by_owner[owner] = by_owner.get(owner, 0) + by_job.get(job, 0)
    assert {owner: int(amount) for owner, amount in spent.items() if int(amount)} == {
        owner: amount for owner, amount in by_owner.items() if amount
    }


def allow(world: World, amount_wei: int, *, owner: str = "owner", relative: bool = False) -> Any:
    return world.do(SetAllowance(owner=owner, amount_wei=amount_wei, relative=relative))


def left(world: World, owner: str = "owner") -> int:
    view: AllowanceView = allow(world, 0, owner=owner, relative=True)
    return view.left_wei


def submit(world: World, *rewards: int, owner: str = "owner", charged: bool = True, **op: Any) -> Any:
    tasks = tuple(new_task(reward_wei=reward) for reward in rewards)
    values = {"job": str(uuid6.uuid7()), "job_named": False, "name": None, "tasks": tasks, **op}
    return world.do(Submit(owner=owner, charged=charged, **values))


def refused(answer: Any, code: RefusalCode) -> bool:
    return isinstance(answer, Refusal) and answer.code is code


def test_rewards_are_charged_to_the_requesters_allowance(world: World) -> None:
    allow(world, 100)
    assert isinstance(submit(world, 30, 0, 30), SubmitResult)
    assert left(world) == 40


def test_a_submission_above_the_allowance_is_refused_whole_and_writes_nothing(world: World) -> None:
    allow(world, 100)
    answer = submit(world, 60, 60)
    assert refused(answer, RefusalCode.ALLOWANCE_EXCEEDED)
    assert answer.details == {"left_wei": "100", "asked_wei": "120"}
    assert left(world) == 100
    for table in ("tasks", "jobs", "dedupes", "budgets", "charges", "intents"):
        assert world.value(f"SELECT count(*) FROM {table}") == 0  # noqa: S608 -- our own names


def test_without_a_word_of_the_operator_a_requester_has_no_allowance(world: World) -> None:
    assert refused(submit(world, 1), RefusalCode.ALLOWANCE_EXCEEDED)
    assert isinstance(submit(world, 0), SubmitResult)


def test_an_operators_rewards_are_charged_to_nobody(world: World) -> None:
    assert isinstance(submit(world, 10**24, charged=False), SubmitResult)
    assert left(world) == 0


def test_of_two_submissions_at_once_that_only_fit_alone_one_is_refused(world: World) -> None:
    allow(world, 100)
    ops = [
        Submit(
            owner="owner", job=str(uuid6.uuid7()), job_named=False, name=None, tasks=(new_task(reward_wei=60),),
            charged=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    answers = world.all(*ops)
    assert [isinstance(answer, SubmitResult) for answer in answers] == [True, False]
    assert refused(answers[1], RefusalCode.ALLOWANCE_EXCEEDED)


def test_a_repeated_submission_is_charged_once(world: World) -> None:
    allow(world, 100)
    task, job = new_task(reward_wei=60), str(uuid6.uuid7())
    first = submit(world, tasks=(task,), job=job, idempotency_key="once", body_digest=b"1")
    again = submit(world, tasks=(task,), job=job, idempotency_key="once", body_digest=b"1")
    assert first == again
    assert left(world) == 40


def test_duplicates_are_not_charged_and_not_counted_against_the_allowance(world: World) -> None:
    allow(world, 100)
    submit(world, tasks=(new_task(reward_wei=60, dedupe_key="same"),))
    tasks = (new_task(reward_wei=60, dedupe_key="same"), new_task(reward_wei=40, dedupe_key="other"))
    answer = submit(world, tasks=(*tasks, new_task(reward_wei=40, dedupe_key="other")))
    assert [created for _, created in answer.tasks] == [False, True, False]
    assert left(world) == 0


def test_a_jobs_budget_caps_what_is_added_to_it_whoever_pays(world: World) -> None:
    allow(world, 1_000)
    for charged in (True, False):
        job = submit(world, 60, budget_wei=100, charged=charged).job
        answer = submit(world, 60, job=job, job_named=True, charged=charged)
        assert refused(answer, RefusalCode.BUDGET_EXCEEDED)
        assert answer.details["left_wei"] == "40"
        assert isinstance(submit(world, 40, job=job, job_named=True, charged=charged), SubmitResult)
    assert left(world) == 900


def test_a_budget_below_the_first_rewards_makes_no_job(world: World) -> None:
    assert refused(submit(world, 60, 60, budget_wei=100, charged=False), RefusalCode.BUDGET_EXCEEDED)
    assert world.value("SELECT count(*) FROM jobs") == 0


def test_what_a_stranger_adds_to_a_job_is_not_found_and_tells_nothing_of_its_budget(world: World) -> None:
    allow(world, 100)
    allow(world, 100, owner="mallory")
    job = submit(world, 60, budget_wei=60).job
    assert refused(submit(world, 60, owner="mallory", job=job, job_named=True), RefusalCode.NOT_FOUND)
    assert left(world, "mallory") == 100


def test_a_task_that_ends_before_its_funding_was_signed_gives_its_reward_back_at_once(world: World) -> None:
    allow(world, 100)
    task = submit(world, 60).tasks[0][0]
    assert left(world) == 40
    world.cancel(task)
    assert left(world) == 100


def test_a_replayed_task_is_charged_anew_or_refused(world: World) -> None:
    allow(world, 100)
    task = submit(world, 60).tasks[0][0]
    (lease,) = world.claim(ALICE)
    world.fail(ALICE, lease, reason="http_4xx")
    assert left(world) == 100

    assert world.replay(task) == [Status.PENDING]
    assert left(world) == 40
    (lease,) = world.claim(ALICE)
    world.fail(ALICE, lease, reason="http_4xx")
    allow(world, 59)
    (answer,) = world.replay(task)
    assert refused(answer, RefusalCode.ALLOWANCE_EXCEEDED)
    assert world.task(task).status == Status.FAILED


def test_a_completed_task_keeps_its_charge(world: World) -> None:
    allow(world, 100)
    submit(world, 60)
    (lease,) = world.claim(ALICE)
    world.complete(ALICE, lease)
    assert left(world) == 40


def test_an_allowance_is_raised_lowered_and_never_below_nothing(world: World) -> None:
    assert allow(world, 100).granted_wei == 100
    assert allow(world, 50, relative=True).granted_wei == 150
    assert allow(world, -30, relative=True).granted_wei == 120
    assert refused(allow(world, -121, relative=True), RefusalCode.BAD_REQUEST)
    submit(world, 100)
    assert allow(world, 10).left_wei == 0
    assert refused(submit(world, 1), RefusalCode.ALLOWANCE_EXCEEDED)


def test_amounts_beyond_any_sql_integer_are_kept_to_the_wei(world: World) -> None:
    allow(world, 10**30 + 1)
    submit(world, 10**28, 7)
    assert left(world) == 10**30 + 1 - 10**28 - 7


def give_up_funding(world: World) -> Sender:
    """Have the sender name the one funding there is as impossible until it is parked."""
    sender: Sender = world.do(
        ClaimSender(
            address=PAYER, holder="root", chain_id=1, contract="0x" + "8" * 40, nonce=0,
            anchor_number=0, anchor_hash="0x", balance_wei=0,
        )
    )  # fmt: skip
    (number,) = [intent.n for intent in world.reader.intents(PAYER) if intent.kind == "create"]
    named = Deferred(outcomes=(ItemOutcome(n=number, verdict=Verdict.NAMED, note="no"),))
    for _ in range(3):
        world.do(Record(address=PAYER, epoch=sender.epoch, entries=(named,)))
    return sender


def test_a_funding_that_was_given_up_gives_the_reward_back_and_is_never_tried_again(world: World) -> None:
    allow(world, 100)
    task = submit(world, 60).tasks[0][0]
    give_up_funding(world)
    assert world.task(task).reason == "funding_failed"
    assert left(world) == 100

    assert world.do(RetryParked(address=PAYER)) == 0
    assert left(world) == 100


def test_a_completed_task_whose_funding_was_given_up_stays_charged_and_may_be_retried(world: World) -> None:
    allow(world, 100)
    submit(world, 60)
    (lease,) = world.claim(ALICE)
    world.complete(ALICE, lease)
    give_up_funding(world)
    assert left(world) == 40

    assert world.do(RetryParked(address=PAYER)) == 1
    assert left(world) == 40
