"""Path B in the ledger: accepted tasks become vouchers, channels are asked to be funded, and follow the chain.

A voucher is a payment: its row is written in the *same transaction* as the task's acceptance, one for each (task,
generation), and never for a task that was to be funded by itself. What is signed is what these rows say, so that a
signature after a crash is the same bytes; and only as far as the chain's money covers them (``covered``), so that
nothing is promised above what is locked. What was earned beyond is a debt: to be locked at once, and signed then.

Of one channel there is one open funding at most, and it holds a target, so that none is ever doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from rendezvous.ledger.allowances import give_back
from rendezvous.ledger.faults import StatementFailed
from rendezvous.ledger.money_ops import AdoptVoucher, IntentKind, IntentState, SeeChannels
from rendezvous.policy.collateral import AHEAD_WITHOUT_BUDGET, collateral_target_wei
from swarm.content.cid import parse_cid
from swarm.model import Address, Cid, TaskId, Wei
from swarm.vouchers import EMPTY_TASKS_ROOT, chain_task_id, next_tasks_root

if TYPE_CHECKING:
    from rendezvous.ledger.unit import Unit

__all__ = [
    "ADOPTED",
    "AMOUNT_DIGITS",
    "ChannelRow",
    "Earned",
    "accept",
    "adopt_voucher",
    "fund_key",
    "padded",
    "see_channels",
]

#: The digits that a ``uint96`` has at most.
AMOUNT_DIGITS: Final = 29
#: The generation of a voucher that is no task's: it was adopted from its payee.
ADOPTED: Final = 0
#: The chain's clock may be behind ours: an exit is finished so much after its time, seconds.
CLOSE_AFTER_S: Final = 60.0


class NewIntent(Protocol):
    """Asks for something to become true, not before a time (ledger seconds) where one is given."""

    def __call__(
        self,
        kind: IntentKind,
        key: str,
        sender: Address,
        amount_wei: Wei,
        payee: Address,
        *,
        not_before: float | None = None,
    ) -> None:
        """Write the intent."""


def padded(amount_wei: Wei) -> str:
    """An amount as text that compares as the number does."""
    return str(amount_wei).rjust(AMOUNT_DIGITS, "0")


def fund_key(payer: Address, payee: Address, number: int) -> str:
    """The key of a channel's n-th funding."""
    return f"{payer}:{payee}:{number}"


@attrs.define(kw_only=True)
class ChannelRow:
    """One row of ``channels``, in the order of its columns."""

    payer: Address
    payee: Address
    accepted: int = 0
    owed_wei: Wei = 0
    tasks_root: bytes = EMPTY_TASKS_ROOT
    target_wei: Wei = 0
    fundings: int = 0
    locked_wei: Wei = 0
    settled_wei: Wei = 0
    exit_at: int | None = None
    covered: int = 0
    paid: int = 0
    seen_number: int | None = None

    @classmethod
    def of(cls, row: Sequence[Any]) -> ChannelRow:
        """The row as it was read."""
        names = [field.name for field in attrs.fields(cls)]
        values = dict(zip(names, row, strict=True))
        for name in names:
            if name.endswith("_wei"):
                values[name] = int(values[name])
        return cls(**{**values, "tasks_root": bytes(values["tasks_root"])})

    def columns(self) -> tuple[Any, ...]:
        """As it is written."""
        values = attrs.asdict(self)
        return tuple(str(value) if name.endswith("_wei") else value for name, value in values.items())

    @property
    def held_wei(self) -> Wei:
        """What the chain's money covers in all."""
        return self.settled_wei + self.locked_wei


@attrs.frozen(kw_only=True)
class Earned:
    """A task that was accepted, in a job that is settled by vouchers."""

    task: TaskId
    generation: int
    job: int
    worker: int
    reward_wei: Wei
    result: Cid


class Channels:
    """The channels of one payer, in one transaction."""

    def __init__(self, unit: Unit, payer: Address, new_intent: NewIntent) -> None:
        self._unit: Final = unit
        self._payer: Final = payer
        self._new_intent: Final = new_intent
        self._statements: Final = unit.statements.channels

    def accept(self, earned: Earned) -> None:
        """Write the voucher row of an accepted task, and ask for collateral where there is too little.

        Raises:
            StatementFailed: the task was paid for already, or is to be paid another way.
        """
        unit = self._unit
        ((payee,),) = unit.connection.rows(self._statements.payee_of, earned.worker)
        # A late result of a task that was called off: what came back then is spent after all.
        give_back(unit.connection, unit.statements.allowances, earned.task, earned.generation, at=None)
        channel = self._channel(payee)
        channel.accepted += 1
        channel.owed_wei += earned.reward_wei
        channel.tasks_root = next_tasks_root(
            channel.tasks_root,
            chain_task=chain_task_id(earned.task, earned.generation),
            output=parse_cid(earned.result).digest,
            reward_wei=earned.reward_wei,
        )
        self._insert(
            channel,
            task=earned.task,
            generation=earned.generation,
            result=earned.result,
            reward_wei=earned.reward_wei,
        )
        open_fund = self._open_fund(channel)
        target_wei = collateral_target_wei(
            owed_wei=channel.owed_wei,
            held_wei=max(channel.held_wei, channel.target_wei if open_fund else 0),
            budget=self._budget(earned.worker),
            reward_wei=earned.reward_wei,
            live=unit.live_tasks(earned.job),
        )
        if target_wei is not None:
            self._ask(channel, target_wei, open_fund)
        self._mark(channel)
        self._keep(channel)

    def _budget(self, number: int) -> int:
        self._unit.know_workers({number})
        worker = self._unit.memory.workers[number]
        return worker.budget or self._unit.settings.newcomer_budget or AHEAD_WITHOUT_BUDGET

    def see(self, payee: Address, *, locked_wei: Wei, settled_wei: Wei, exit_at: int | None, number: int) -> bool:
        """Take in what the chain has of a channel; False where a later block was seen already."""
        channel = self._channel(payee)
        if channel.seen_number is not None and channel.seen_number > number:
            return False
        channel.seen_number, channel.exit_at = number, exit_at
        channel.locked_wei, channel.settled_wei = locked_wei, settled_wei
        if channel.owed_wei > channel.held_wei:
            # More was earned while a funding was under way, or collateral was taken back.
            open_fund = self._open_fund(channel)
            if not open_fund:
                self._ask(channel, channel.owed_wei, open_fund)
        if channel.exit_at is not None and channel.locked_wei:
            self._ask_to_close(channel, channel.exit_at)
        self._mark(channel)
        self._keep(channel)
        return True

    def adopt(self, payee: Address, *, cumulative_wei: Wei, tasks_root: bytes) -> bool:
        """Owe what was signed once, though the tasks that it was for aren't known any more."""
        channel = self._channel(payee)
        if cumulative_wei <= channel.owed_wei:
            return False
        reward_wei = cumulative_wei - channel.owed_wei
        channel.accepted += 1
        channel.owed_wei, channel.tasks_root = cumulative_wei, tasks_root
        name = f"adopted:{payee}:{cumulative_wei}"
        self._insert(channel, task=name, generation=ADOPTED, result="", reward_wei=reward_wei)
        open_fund = self._open_fund(channel)
        if channel.owed_wei > channel.held_wei and not open_fund:
            self._ask(channel, channel.owed_wei, open_fund)
        self._mark(channel)
        self._keep(channel)
        return True

    def _insert(self, channel: ChannelRow, *, task: str, generation: int, result: str, reward_wei: Wei) -> None:
        """Write the last voucher of a channel."""
        unit = self._unit
        written = unit.connection.run(
            self._statements.insert_voucher,
            task,
            generation,
            self._payer,
            channel.payee,
            channel.accepted,
            result,
            str(reward_wei),
            padded(channel.owed_wei),
            channel.tasks_root,
            unit.now,
            f"{task}:{generation}",
        )
        if written != 1:
            raise StatementFailed(f"task {task} was to be paid for twice in one generation")

    def _channel(self, payee: Address) -> ChannelRow:
        found = self._unit.connection.rows(self._statements.channel, self._payer, payee)
        return ChannelRow.of(found[0]) if found else ChannelRow(payer=self._payer, payee=payee)

    def _keep(self, channel: ChannelRow) -> None:
        self._unit.connection.run(self._statements.put_channel, *channel.columns())

    # ── collateral ────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_fund(self, channel: ChannelRow) -> tuple[int, IntentState] | None:
        """The channel's funding that isn't on the chain yet."""
        if not channel.fundings:
            return None
        key = fund_key(channel.payer, channel.payee, channel.fundings)
        ((n, state),) = self._unit.connection.rows(self._statements.asked, IntentKind.FUND.slot, key)
        return None if state in (IntentState.DONE, IntentState.VOID) else (n, IntentState(state))

    def _ask(self, channel: ChannelRow, target_wei: Wei, open_fund: tuple[int, IntentState] | None) -> None:
        """Ask for so much in all: by the funding that waits, or by a new one; behind a signed one once it is done."""
        if open_fund is None:
            channel.fundings += 1
            key = fund_key(channel.payer, channel.payee, channel.fundings)
            self._new_intent(IntentKind.FUND, key, channel.payer, target_wei, channel.payee)
        elif not self._unit.connection.run(self._statements.raise_amount, str(target_wei), open_fund[0]):
            return
        channel.target_wei = target_wei

    def _ask_to_close(self, channel: ChannelRow, exit_at: int) -> None:
        """Take the collateral back once the delay is over: whoever started the exit meant that."""
        key = f"{channel.payer}:{channel.payee}:{exit_at}"
        if not self._unit.connection.rows(self._statements.asked, IntentKind.CLOSE.slot, key):
            self._new_intent(IntentKind.CLOSE, key, channel.payer, 0, channel.payee, not_before=exit_at + CLOSE_AFTER_S)

    # ── flags ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _mark(self, channel: ChannelRow) -> None:
        """Say of each task whether the chain's money covers it, and whether it was paid."""
        covered = self._within(channel, channel.held_wei)
        paid = self._within(channel, channel.settled_wei)
        self._flag(self._statements.flag_covered, channel, channel.covered, covered)
        self._flag(self._statements.flag_paid, channel, channel.paid, paid)
        channel.covered, channel.paid = covered, paid

    def _within(self, channel: ChannelRow, amount_wei: Wei) -> int:
        if amount_wei >= channel.owed_wei:
            return channel.accepted
        ((last,),) = self._unit.connection.rows(
            self._statements.last_within, channel.payer, channel.payee, padded(amount_wei)
        )
        return int(last or 0)

    def _flag(self, statement: Any, channel: ChannelRow, before: int, after: int) -> None:
        if before == after:
            return
        at = self._unit.now if after > before else None
        values = (at, channel.payer, channel.payee, min(before, after), max(before, after))
        self._unit.connection.run(statement, *values)


def accept(unit: Unit, payer: Address, earned: Sequence[Earned], new_intent: NewIntent) -> None:
    """Write the vouchers of accepted tasks; their rows are written already."""
    channels = Channels(unit, payer, new_intent)
    for each in earned:
        channels.accept(each)


def adopt_voucher(unit: Unit, op: AdoptVoucher, new_intent: NewIntent) -> bool:
    """Owe what was signed once."""
    channels = Channels(unit, op.payer, new_intent)
    return channels.adopt(op.payee, cumulative_wei=op.cumulative_wei, tasks_root=op.tasks_root)


def see_channels(unit: Unit, op: SeeChannels, new_intent: NewIntent) -> int:
    """Take in what the chain has of channels; how many were news."""
    channels = Channels(unit, op.payer, new_intent)
    return sum(
        channels.see(
            each.payee,
            locked_wei=each.locked_wei,
            settled_wei=each.settled_wei,
            exit_at=each.exit_at,
            number=op.number,
        )
        for each in op.seen
    )
