"""Whatever happens on a channel, in whatever order: each accepted task is owed once, and no more signed than is locked.

The chain is a model of the contract's arithmetic: funds are added, redeemed up to what was signed, given back; blocks
are seen late, twice, or not at all.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rendezvous.ledger import money_tables as m
from rendezvous.ledger.money_ops import ChannelSeen, Intent, IntentKind, IntentState, SeeChannels
from rendezvous.ledger.settings import LedgerSettings
from swarm.content.cid import parse_cid, raw_cid
from swarm.model import Settle, Status
from swarm.vouchers import EMPTY_TASKS_ROOT, chain_task_id, next_tasks_root
from tests.rendezvous.ledger_world import ALICE, World, check_consistency, new_task

PAYER = "0x" + "9" * 40


class ChannelMachine(RuleBasedStateMachine):
    """One worker's channel."""

    new_ledger: Callable[[], str]

    @initialize()
    def begin(self) -> None:
        self.world = World(type(self).new_ledger(), LedgerSettings(host_rate_per_s=0, payer=PAYER, newcomer_budget=4))
        self.locked = self.settled = 0
        self.block = 0
        #: What the worker has: an amount, and the root that it computed itself.
        self.have, self.root = 0, EMPTY_TASKS_ROOT
        self.done = 0

    @rule(rewards=st.lists(st.integers(1, 50), min_size=1, max_size=4))
    def submit(self, rewards: list[int]) -> None:
        self.world.submit(*(new_task(reward_wei=reward) for reward in rewards), settle=Settle.CHANNEL)

    @rule(twice=st.booleans())
    def work(self, twice: bool) -> None:
        for lease in self.world.claim(ALICE):
            self.done += 1
            content = raw_cid(str(self.done).encode())
            for _ in range(1 + twice):
                assert self.world.complete(ALICE, lease, cid=content) is Status.COMPLETED

    @rule(late=st.booleans())
    def call_off(self, late: bool) -> None:
        for lease in self.world.claim(ALICE):
            self.world.cancel(lease.task)
            if late:
                self.done += 1
                content = raw_cid(str(self.done).encode())
                assert self.world.complete(ALICE, lease, cid=content) is Status.COMPLETED

    @rule()
    def fund(self) -> None:
        """The outbox brings what is asked for to the chain, by the amount that is missing there."""
        for intent in self.intents():
            if intent.state is IntentState.QUEUED:
                self.locked += max(0, intent.amount_wei - self.locked - self.settled)
                with self.world.engine.begin() as connection:
                    done = sa.update(m.intents).where(m.intents.c.n == intent.n)
                    connection.execute(done.values(state=IntentState.DONE.value))
                    connection.execute(sa.update(m.channels).values(seen_number=None))  # it is to be looked at

    @rule(share=st.floats(0, 1))
    def redeem(self, share: float) -> None:
        """Anyone has a voucher paid that the worker got, be it an older one."""
        due = min(max(0, int(self.have * share) - self.settled), self.locked)
        self.locked, self.settled = self.locked - due, self.settled + due

    @rule()
    def give_back(self) -> None:
        self.locked = 0

    @rule(behind=st.integers(0, 2))
    def see(self, behind: int) -> None:
        """The root sees a final block; one that it saw before says nothing new."""
        if not behind:
            self.block += 1
        seen = ChannelSeen(payee=ALICE.address, locked_wei=self.locked, settled_wei=self.settled)
        self.world.do(SeeChannels(payer=PAYER, number=max(1, self.block - behind), seen=(seen,)))

    @rule()
    def crash(self) -> None:
        self.world.close()
        self.world.open()

    @rule(lost=st.booleans())
    def take_voucher(self, lost: bool) -> None:
        """A turn's answer, which may be lost; the worker checks what it gets."""
        page = self.world.reader.vouchers_since(PAYER, ALICE.address, since_wei=self.have)
        if page is None or lost:
            return
        assert page.since_wei == self.have
        amount, root = self.have, self.root
        for each in page.tasks:
            amount += each.reward_wei
            root = next_tasks_root(
                root,
                chain_task=chain_task_id(each.task, each.generation),
                output=parse_cid(each.result).digest,
                reward_wei=each.reward_wei,
            )
        assert (amount, root) == (page.cumulative_wei, page.tasks_root)
        self.have, self.root = amount, root

    def intents(self) -> list[Intent]:
        found = self.world.reader.intents(PAYER)
        assert {intent.kind for intent in found} <= {IntentKind.FUND}
        return found

    @invariant()
    def every_accepted_task_is_owed_once(self) -> None:
        if not hasattr(self, "world"):
            return
        owed = self.world.value(
            "SELECT coalesce(sum(CAST(reward_wei AS INTEGER)), 0) FROM tasks WHERE status = 'completed'"
        )
        row = self.world.reader.channel(PAYER, ALICE.address)
        assert (0 if row is None else row.owed_wei) == owed
        assert self.world.value("SELECT count(*) FROM vouchers") == self.done
        if row is not None:
            assert self.have <= row.owed_wei
            flags = self.world.value("SELECT count(*) FROM tasks WHERE paid IS NOT NULL"), row.paid
            assert flags[0] == flags[1] <= row.covered <= row.accepted
            open_funds = [each for each in self.intents() if each.state is not IntentState.DONE]
            assert len(open_funds) <= 1
            if row.seen_number is not None:  # else a funding is done, and not seen yet
                assert row.owed_wei <= max([row.held_wei, *(each.amount_wei for each in open_funds)])

    def teardown(self) -> None:
        if hasattr(self, "world"):
            check_consistency(self.world)
            self.world.close()


def test_no_order_of_events_pays_a_task_twice_or_signs_what_is_not_locked(tmp_path: Path) -> None:
    template = tmp_path / "template.sqlite"
    World(template).close()
    numbers = itertools.count()

    def copied() -> str:  # migrating a ledger for each example would be most of the time
        path = tmp_path / f"{next(numbers)}.sqlite"
        shutil.copy(template, path)
        return str(path)

    machine = type("Machine", (ChannelMachine,), {"new_ledger": staticmethod(copied)})
    case = machine.TestCase  # type: ignore[attr-defined]
    case.settings = settings(
        max_examples=10,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    case().runTest()
