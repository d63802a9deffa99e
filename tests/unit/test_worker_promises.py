"""A voucher is taken if it is signed by who pays, rises, and pays what this worker did as it was promised."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from eth_account import Account as EthAccount

from swarm.content.cid import parse_cid, raw_cid
from swarm.errors import StoreFull
from swarm.turn_wire import Grant, SignedVoucher, VoucherTask
from swarm.vouchers import EMPTY_TASKS_ROOT, Escrow, Voucher, chain_task_id, next_tasks_root, sign_voucher
from swarm.wire import EthereumSettings, TaskBody
from swarm.worker.earnings import Earnings, account_of, open_earnings
from swarm.worker.promises import Account, Expected, KeptVoucher, Objection, check_voucher
from swarm.worker.voucher_book import open_voucher_book, read_book
from tests.patience import PATIENCE_S

REWARD = 10**15


def key_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


PAYER, PAYEE, OTHER = (EthAccount.from_key(key_of(name)).address for name in ("payer", "alice", "mallory"))
ESCROW = Escrow(chain_id=31337, address=OTHER)
ACCOUNT = Account(escrow=ESCROW, payer=PAYER, payee=PAYEE)
TASKS = tuple(
    VoucherTask(
        task=f"0192f0c1-2345-7890-abcd-{number:012d}",
        generation=1,
        result=raw_cid(bytes([number])),
        reward_wei=str(REWARD + number),
    )
    for number in range(5)
)
DONE = {(each.task, each.generation): Expected(result=each.result, reward_wei=int(each.reward_wei)) for each in TASKS}


def root_over(tasks: tuple[VoucherTask, ...], root: bytes = EMPTY_TASKS_ROOT) -> bytes:
    for each in tasks:
        root = next_tasks_root(
            root,
            chain_task=chain_task_id(each.task, each.generation),
            output=parse_cid(each.result).digest,
            reward_wei=int(each.reward_wei),
        )
    return root


def told(first: int, last: int, *, key: str = "payer", **changes: Any) -> SignedVoucher:
    """What an honest root says of the tasks from one to another, or with changes."""
    amount_wei = sum(int(each.reward_wei) for each in TASKS[:last])
    root = root_over(TASKS[:last])
    signed = sign_voucher(
        ESCROW, Voucher(requester=PAYER, worker=PAYEE, cumulative_wei=amount_wei, tasks_root=root), key_of(key)
    )
    values: dict[str, Any] = {
        "chain_id": ESCROW.chain_id,
        "contract": ESCROW.address,
        "payer": PAYER,
        "payee": PAYEE,
        "cumulative_wei": str(amount_wei),
        "tasks_root": "0x" + root.hex(),
        "signature": "0x" + signed.hex(),
        "since_wei": str(sum(int(each.reward_wei) for each in TASKS[:first])),
        "tasks": TASKS[first:last],
    }
    return SignedVoucher(**{**values, **changes})


def check(
    voucher: SignedVoucher, last: KeptVoucher | None = None, account: Account = ACCOUNT, done: Any = DONE
) -> KeptVoucher | Objection | None:
    return check_voucher(voucher, account, last=last, expected=lambda task, generation: done.get((task, generation)))


def taken(voucher: SignedVoucher, last: KeptVoucher | None = None, **given: Any) -> KeptVoucher:
    kept = check(voucher, last, **given)
    assert isinstance(kept, KeptVoucher), kept
    return kept


def test_vouchers_of_an_honest_root_are_taken_one_after_another() -> None:
    first = taken(told(0, 2))
    assert (first.cumulative_wei, first.tasks) == (2 * REWARD + 1, 2)
    second = taken(told(2, 5), first)
    assert (second.tasks, second.voucher.tasks_root) == (5, root_over(TASKS))


def test_a_lost_voucher_is_no_gap() -> None:
    first = taken(told(0, 1))  # the one of 3 is lost on its way
    assert taken(told(1, 4), first).tasks == 4


def test_a_list_from_the_beginning_serves_too() -> None:
    first = taken(told(0, 2))
    assert taken(told(0, 4), first).tasks == 4


def test_a_list_from_the_beginning_has_to_begin_with_what_was_paid_for_already() -> None:
    last = taken(told(0, 2))
    rest = {key: value for key, value in DONE.items() if key[0] in {each.task for each in TASKS[2:]}}
    assert taken(told(0, 4), last, done=rest).tasks == 4  # what was paid for is forgotten
    other = (TASKS[1], TASKS[0], *TASKS[2:4])
    objection = check(told(0, 4, tasks=other), last, done=rest)
    assert isinstance(objection, Objection)
    assert "first tasks" in objection.why


def test_one_that_was_said_before_the_last_one_was_known_waits_for_the_next_turn() -> None:
    last = taken(told(1, 3), taken(told(0, 1)))
    assert check(told(1, 4), last) is None
    assert taken(told(3, 4), last).tasks == 4


def test_what_is_no_more_than_the_last_one_changes_nothing() -> None:
    first = taken(told(0, 3))
    assert check(told(0, 3), first) is None
    assert check(told(0, 1), first) is None


@pytest.mark.parametrize(
    ("voucher", "why"),
    [
        (told(1, 3, key="mallory"), "isn't signed by"),
        (told(1, 3, contract=PAYER), "another contract"),
        (told(1, 3, chain_id=1), "another contract"),
        (told(1, 3, payee=OTHER), "another contract"),
        (told(1, 3, payer=OTHER), "another contract"),
        (told(1, 3, cumulative_wei=str(10 * REWARD)), "its tasks come to"),
        (told(1, 3, tasks=TASKS[1:2]), "its tasks come to"),
        (told(1, 3, tasks=TASKS[1:4]), "its tasks come to"),
        (told(1, 3, tasks_root="0x" + "00" * 32), "signed over"),
        (told(2, 3), "doesn't have"),
        (told(1, 3, signature="0x" + "00" * 64), "isn't signed by"),
        (told(1, 3, signature="0x" + "ff" * 64), "isn't signed by"),
        (told(1, 2, tasks=(msgspec.structs.replace(TASKS[1], reward_wei=str(REWARD)),)), "for"),
        (told(1, 2, tasks=(msgspec.structs.replace(TASKS[1], result=TASKS[0].result),)), "with"),
        (told(1, 2, tasks=(msgspec.structs.replace(TASKS[1], generation=2),)), "didn't do"),
        (told(1, 2, tasks=(msgspec.structs.replace(TASKS[1], task="x" * 36),)), "didn't do"),
    ],
)
def test_what_isnt_right_is_refused_with_its_reason(voucher: SignedVoucher, why: str) -> None:
    last = taken(told(0, 1))
    objection = check(voucher, last)
    assert isinstance(objection, Objection)
    assert why in objection.why


def test_a_malformed_task_is_an_objection_not_a_fault() -> None:
    shared = Account(escrow=ESCROW, payer=PAYER, payee=PAYEE, shared=True)
    for task in (
        msgspec.structs.replace(TASKS[0], task="x" * 36),
        msgspec.structs.replace(TASKS[0], result="b" * 59),
    ):
        assert isinstance(check(told(0, 1, tasks=(task,)), None, shared), Objection)


def test_tasks_of_others_are_listed_where_a_payee_is_shared() -> None:
    known = dict(list(DONE.items())[:1])
    last = taken(told(0, 1), done=known)
    assert isinstance(check(told(1, 3), last, done=known), Objection)
    shared = Account(escrow=ESCROW, payer=PAYER, payee=PAYEE, shared=True)
    assert taken(told(1, 3), last, account=shared, done=known).tasks == 3


def test_a_worker_whose_journal_is_lost_is_paid_for_what_it_did_before() -> None:
    assert taken(told(0, 4), done={}).tasks == 4


# ── kept ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def grant(task: VoucherTask, **changes: Any) -> Grant:
    body = {"id": task.task, "job": "j", "kind": "noop", "urls": (), "generation": 1, "voucher_wei": task.reward_wei}
    return Grant(task=TaskBody(**{**body, **changes}), fence=1, lease_s=60.0, via="offer")


async def test_what_was_taken_is_there_after_a_restart_and_readable_beside_a_running_worker(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    path = tmp_path / "vouchers.db"

    async with open_voucher_book(path, clock=lambda: 1_000.0) as book:
        earnings = Earnings(
            book, ACCOUNT, max_unpaid=16, seen=lambda said: seen.update({said.payer: int(said.cumulative_wei)})
        )
        for each in TASKS:
            await earnings.expect(grant(each), each.result)
        with trio.fail_after(PATIENCE_S):
            await earnings.take([told(0, 1), told(0, 2), told(1, 3, key="mallory")])
        assert seen == {PAYER: 2 * REWARD + 1}
        await book.note_account(ACCOUNT, rpc="http://127.0.0.1:8545")
        ((account, noted),) = read_book(path)
        assert noted is not None
        assert (noted.kept, account.rpc) == (earnings.last, "http://127.0.0.1:8545")

    seen.clear()
    async with open_voucher_book(path, clock=lambda: 2_000.0) as book:
        earnings = Earnings(
            book, ACCOUNT, max_unpaid=16, seen=lambda said: seen.update({said.payer: int(said.cumulative_wei)})
        )
        assert seen == {PAYER: 2 * REWARD + 1}
        with trio.fail_after(PATIENCE_S):
            await earnings.take([told(2, 5)])  # what was done before the restart is known still
        assert earnings.last is not None
        assert earnings.last.tasks == 5
    with contextlib.closing(sqlite3.connect(path)) as file:  # one voucher is worth all before it
        assert file.execute("SELECT count(*), max(tasks) FROM vouchers").fetchall() == [(1, 5)]
    assert [noted.kept.tasks for _, noted in read_book(path) if noted is not None] == [5]


async def test_a_full_disk_keeps_the_last_voucher_and_the_next_one_makes_up(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    async with open_voucher_book(tmp_path / "vouchers.db", clock=lambda: 1_000.0) as book:
        full = True

        class Disk:
            last_voucher, expected, expect = book.last_voucher, book.expected, book.expect

            async def keep_voucher(self, kept: KeptVoucher, **given: Any) -> None:
                if full:
                    raise StoreFull("disk")
                await book.keep_voucher(kept, **given)

        earnings = Earnings(
            Disk(), ACCOUNT, max_unpaid=16, seen=lambda said: seen.update({said.payer: int(said.cumulative_wei)})
        )
        for each in TASKS:
            await earnings.expect(grant(each), each.result)
        with trio.fail_after(PATIENCE_S):
            await earnings.take([told(0, 1)])
            assert seen == {}
            full = False
            await earnings.take([told(0, 2)])
        assert seen == {PAYER: 2 * REWARD + 1}


async def test_tasks_that_are_paid_another_way_are_not_expected(tmp_path: Path) -> None:
    async with open_voucher_book(tmp_path / "vouchers.db", clock=lambda: 1_000.0) as book:
        earnings = Earnings(book, ACCOUNT, max_unpaid=16, seen=lambda said: None)
        await earnings.expect(grant(TASKS[0], voucher_wei=None), TASKS[0].result)
        assert book.expected(TASKS[0].task, 1) is None


def test_a_swarm_that_names_no_payer_has_no_vouchers() -> None:
    paid = EthereumSettings(network="hardhat", chain_id=31337, contract=OTHER, payer=PAYER)
    assert account_of(None, address=PAYEE, payout=None) is None
    assert account_of(msgspec.structs.replace(paid, payer=None), address=PAYEE, payout=None) is None
    assert account_of(paid, address=PAYEE, payout=None) == ACCOUNT
    pooled = account_of(paid, address=OTHER, payout=PAYEE)
    assert pooled is not None
    assert (pooled.payee, pooled.shared) == (PAYEE, True)


def test_a_directory_without_a_book_has_no_vouchers(tmp_path: Path) -> None:
    assert read_book(tmp_path / "vouchers.db") == []


async def test_a_worker_asks_for_no_more_while_too_much_is_unpaid(tmp_path: Path) -> None:
    trusted: list[bool] = []
    async with open_voucher_book(tmp_path / "vouchers.db", clock=lambda: 1_000.0) as book:
        earnings = Earnings(book, ACCOUNT, seen=lambda said: None, max_unpaid=3, trust=trusted.append)
        for each in TASKS:
            await earnings.expect(grant(each), each.result)
        earnings.settled(TASKS[4].task, accepted=False)  # refused: nobody owes it
        for each in TASKS[:2]:
            earnings.settled(each.task, accepted=True)
            earnings.settled(each.task, accepted=True)
        assert trusted == []
        earnings.settled(TASKS[2].task, accepted=True)
        assert trusted == [False]
        with trio.fail_after(PATIENCE_S):
            await earnings.take([told(0, 1)])
        assert trusted == [False, True]


@pytest.mark.parametrize(
    ("rpc", "door", "kept"),
    [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8765", True),
        ("https://node.example/v3", "https://root.example", True),
        ("http://127.0.0.1:8545", "https://root.example", False),
        ("http://10.0.0.7:6379", "https://root.example", False),
        ("http://localhost:80", "https://root.example", False),
        ("http://intranet", "https://root.example", False),
        ("file:///etc/passwd", "http://127.0.0.1:8765", False),
    ],
)
async def test_a_swarm_elsewhere_names_no_node_in_this_machines_network(
    tmp_path: Path, rpc: str, door: str, kept: bool
) -> None:
    paid = EthereumSettings(network="hardhat", chain_id=31337, contract=OTHER, payer=PAYER, rpc=rpc)
    path = tmp_path / "vouchers.db"
    async with open_earnings(
        paid, path, address=PAYEE, payout=None, max_unpaid=16, door_url=door, seen=lambda said: None
    ) as earnings:
        assert earnings is not None
    ((account, noted),) = read_book(path)
    assert (account.rpc, noted) == (rpc if kept else None, None)
