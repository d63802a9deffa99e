"""The audit: what it finds, that it finds it in pieces, and that each piece of the ledger is read by an index."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import text

from rendezvous.chain.audit import Auditor
from rendezvous.chain.compare import differences_of, silent_difference, stranger_difference, strangers
from rendezvous.chain.escrow import ChainTask, ContractEvent, TaskState
from rendezvous.chain.finality import Finality
from rendezvous.chain.outbox import Rules
from rendezvous.ledger.money_ops import Intent, IntentKind, IntentState
from rendezvous.ledger.queries import LedgerReader
from swarm.errors import RpcSaid
from swarm.model import TaskId
from swarm.vouchers import chain_task_id
from tests.chain.fake_chain import CHAIN_ID, CONTRACT, FakeChain, address_of, signer_of
from tests.chain.pay_world import ALICE, REWARD, PayWorld, WorldLedger
from tests.rendezvous.ledger_world import new_task

ROOT = address_of("root")

# ── comparing ─────────────────────────────────────────────────────────────────────────────────────────────────────

TASK = "01900000-0000-7000-8000-000000000001"
FUNDED = Intent(
    n=1, kind=IntentKind.CREATE, key=f"{TASK}:1", sender=ROOT, amount_wei=REWARD, state=IntentState.DONE,
    created_at=0.0, task=TASK, generation=1,
)  # fmt: skip
PAID = msgspec.structs.replace(FUNDED, n=2, kind=IntentKind.COMPLETE, payee=ALICE.address)


def event(name: str, **args: Any) -> ContractEvent:
    return ContractEvent(name=name, args={"taskId": chain_task_id(TASK, 1), **args}, transaction="0x", block=1)


DEPOSITED = event("Deposited", amount=REWARD)
CREATED = event("TaskCreated", reward=REWARD)
COMPLETED = event("TaskCompleted", assignee=ALICE.address, paid=REWARD)


@pytest.mark.parametrize(
    ("intents", "events", "difference"),
    [
        ([FUNDED, PAID], [CREATED, COMPLETED], None),
        ([FUNDED, PAID], [CREATED], "is settled in the ledger, not on the chain"),
        ([FUNDED], [], "was funded with"),
        ([msgspec.structs.replace(FUNDED, state=IntentState.SIGNED)], [], None),
        ([FUNDED, PAID], [CREATED, COMPLETED, COMPLETED], "was settled twice"),
        (
            [FUNDED, PAID],
            [CREATED, event("TaskCompleted", assignee=ROOT, paid=REWARD)],
            f"was paid to {ALICE.address}",
        ),
        ([FUNDED, msgspec.structs.replace(PAID, kind=IntentKind.FAIL)], [CREATED, COMPLETED], "the chain has paid it"),
    ],
)
def test_what_differs_between_intents_and_events_is_named(
    intents: list[Intent], events: list[ContractEvent], difference: str | None
) -> None:
    found = list(differences_of(intents, events))
    if difference is None:
        assert found == []
    else:
        assert len(found) == 1
        assert difference in found[0]


def test_a_task_that_no_transaction_carries_is_named_unless_its_funding_is_ours() -> None:
    (task,) = strangers([PAID], [CREATED])
    assert strangers([FUNDED], [CREATED]) == []
    assert list(stranger_difference(task, None)) == [f"task 0x{task.hex()} was funded, but not by this ledger"]
    assert list(stranger_difference(task, FUNDED)) == []
    void = msgspec.structs.replace(FUNDED, state=IntentState.VOID)
    assert list(stranger_difference(task, void)) == [f"task {TASK} is funded on the chain, the ledger says void"]


@pytest.mark.parametrize(
    ("intent", "state", "reward", "differs"),
    [
        (FUNDED, TaskState.OPEN, REWARD, False),
        (FUNDED, TaskState.PAID, REWARD, False),
        (FUNDED, TaskState.NONE, 0, True),
        (FUNDED, TaskState.OPEN, REWARD + 1, True),
        (PAID, TaskState.PAID, REWARD, False),
        (PAID, TaskState.FAILED, REWARD, True),
    ],
)
def test_what_was_found_true_already_must_be_so(intent: Intent, state: TaskState, reward: int, differs: bool) -> None:
    found = list(silent_difference(intent, ChainTask(reward_wei=reward, deadline=1, state=state)))
    assert bool(found) == differs


# ── walking ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Counting:
    """A node that counts what it is asked, and answers no more logs than a cap."""

    def __init__(self, chain: FakeChain) -> None:
        self._chain = chain
        self.windows: list[tuple[int, int]] = []
        self.cap = 1_000

    async def call(self, method: str, *params: Any) -> Any:
        answer = await self._chain.call(method, *params)
        if method == "eth_getLogs":
            if len(answer) > self.cap:
                raise RpcSaid(-32005, "query returned more results than are allowed")
            self.windows.append((int(params[0]["fromBlock"], 16), int(params[0]["toBlock"], 16)))
        return answer

    async def batch(self, calls: Sequence[Any]) -> list[Any]:
        return await self._chain.batch(calls)


class Paid:
    """A ledger and a chain in memory on which some tasks were paid."""

    def __init__(self, directory: Path) -> None:
        self.chain = FakeChain(random.Random(1))
        self.chain.give(ROOT, 10**21)
        rules = Rules(finality_blocks=1, watch_blocks=2, linger_s=0.0)
        self.world = PayWorld(
            directory / "l.sqlite", self.chain, signer_of("root"), CONTRACT, chain_id=CHAIN_ID, rules=rules
        )
        self.node = Counting(self.chain)

    def auditor(self, **limits: int) -> Auditor:
        finality = Finality(self.world.rules)
        return Auditor(WorldLedger(self.world), self.node, ROOT, contract=CONTRACT, finality=finality, **limits)

    async def pay(self, tasks: int) -> list[TaskId]:
        """Fund and pay tasks, until all is final."""
        made = self.world.submit(*(new_task(reward_wei=REWARD) for _ in range(tasks)))
        await self.settle()
        for _ in made:
            self.world.run_task()
        await self.settle()
        return made

    async def settle(self) -> None:
        for _ in range(4):
            await self.world.rounds()
            self.chain.mine()
        await self.world.rounds()

    def write(self, sql: str) -> None:
        """Change the ledger behind its back."""
        with self.world.engine.begin() as connection:
            connection.execute(text(sql))
        self.world.core._abandon()


async def test_a_walk_goes_on_where_the_last_audit_ended_and_begins_anew_at_its_end(tmp_path: Path) -> None:
    paid = Paid(tmp_path)
    for _ in range(3):
        await paid.pay(2)
    auditor = paid.auditor(window_blocks=5, windows_most=2)
    ends = []
    for _ in range(6):
        paid.node.windows.clear()
        report = await auditor.audit()
        assert report.differences == ()
        assert len(paid.node.windows) <= 2  # of the walk; nothing became final since the last audit
        ends.append(report.counted_block)
    final = paid.chain.head.number - 1
    assert ends == [10, 20, final, 10, 20, final]
    assert (report.tasks, report.paid_wei, report.open_wei) == (6, 6 * REWARD, 0)
    paid.world.close()


async def test_what_became_final_since_the_last_audit_is_looked_at_first(tmp_path: Path) -> None:
    paid = Paid(tmp_path)
    await paid.pay(2)
    for _ in range(60):
        paid.chain.mine()
    auditor = paid.auditor(window_blocks=5, windows_most=1)
    await auditor.audit()
    (task,) = await paid.pay(1)
    paid.write(f"UPDATE intents SET amount_wei = '1' WHERE task = '{task}' AND kind = 'complete'")  # noqa: S608
    report = await auditor.audit()
    (difference,) = report.differences  # the walk from the first block is far from it
    assert report.counted_block < 20
    assert task in difference
    paid.world.close()


async def test_a_difference_is_told_until_a_whole_walk_finds_it_gone(tmp_path: Path) -> None:
    paid = Paid(tmp_path)
    first, _ = await paid.pay(2)
    spoil = "UPDATE intents SET payee = '{}' WHERE task = '{}' AND kind = 'complete'"
    paid.write(spoil.format(address_of("stranger"), first))
    auditor = paid.auditor(window_blocks=4, windows_most=2)
    told = []
    for _ in range(3):
        report = await auditor.audit()
        told.append(len(report.differences))
    assert told[-1] == 1
    paid.write(spoil.format(ALICE.address, first))
    while report.differences:
        report = await auditor.audit()
        told.append(len(report.differences))
    assert told[told.index(1) :].count(0) == 1  # it is told all the while, and then no more
    paid.world.close()


async def test_what_the_ledger_lost_or_made_up_is_found(tmp_path: Path) -> None:
    paid = Paid(tmp_path)
    await paid.pay(3)
    made_up = "UPDATE intents SET nonce = NULL, state = 'done', kind = 'fail' WHERE n = (SELECT max(n) FROM intents)"
    paid.write(made_up)  # found refunded already, says the ledger
    report = await paid.auditor().audit()
    assert len(report.differences) == 1
    assert "was found done already (fail" in report.differences[0]
    paid.write("DELETE FROM intents WHERE n = (SELECT max(n) FROM intents)")
    paid.write("UPDATE attempts SET hash = 'x' || substr(hash, 2) WHERE nonce = 0")  # a transaction of another ledger's
    report = await paid.auditor().audit()
    assert all("was funded with" in each for each in report.differences), report.differences
    paid.write("UPDATE intents SET state = 'parked', nonce = NULL WHERE kind = 'create'")
    report = await paid.auditor().audit()
    assert len([each for each in report.differences if "the ledger says parked" in each]) == 3
    paid.world.close()


async def test_a_node_that_answers_few_logs_at_once_is_asked_for_fewer_blocks(tmp_path: Path) -> None:
    paid = Paid(tmp_path)
    for _ in range(2):
        await paid.pay(2)
    paid.node.cap = 4
    report = await paid.auditor().audit()
    assert (report.differences, report.tasks) == ((), 4)
    assert len(paid.node.windows) > 1
    paid.world.close()


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("read", "index"),
    [
        (lambda reader: reader.audited_transactions(ROOT, 3), "sqlite_autoindex_transactions_1"),
        (lambda reader: reader.audited_nonces(ROOT, ["0x1", "0x2"]), "sqlite_autoindex_attempts_"),
        (lambda reader: reader.audited_intents(ROOT, [1, 2, 3]), "intents_of_transaction"),
        (lambda reader: reader.silent_intents(ROOT, after=5, up_to=9), "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (lambda reader: reader.intents(ROOT, after=5), "INTEGER PRIMARY KEY (rowid>?)"),
        (lambda reader: reader.channel(ROOT, ALICE.address), "PRIMARY KEY (payer=? AND payee=?)"),
        (lambda reader: reader.last_intent(), ""),
    ],
)
async def test_each_question_of_an_audit_is_answered_by_an_index(
    read: Callable[[LedgerReader], Any], index: str, tmp_path: Path
) -> None:
    paid = Paid(tmp_path)
    said: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        if statement.startswith("SELECT"):
            said.append((statement, parameters))

    sqlalchemy_event.listen(paid.world.reading, "before_cursor_execute", note)
    read(paid.world.reader)
    sqlalchemy_event.remove(paid.world.reading, "before_cursor_execute", note)
    assert said
    with paid.world.reading.connect() as connection:
        for statement, parameters in said:
            plan = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, parameters).all()
            told = "\n".join(row[3] for row in plan)
            assert index in told
            if index:  # the newest of all is at the end of its index, though SQLite calls that a scan
                assert "SCAN" not in told, told
            assert "TEMP B-TREE" not in told, told
    paid.world.close()
