"""What differs between the ledger and the contract's events. Pure: what is compared with what, ``audit`` knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from rendezvous.chain.escrow import ChainTask, ContractEvent, TaskState
from rendezvous.ledger.money_ops import Intent, IntentKind, IntentState
from swarm.model import Wei
from swarm.vouchers import chain_task_id

__all__ = ["Tally", "differences_of", "silent_difference", "stranger_difference", "strangers"]

_SETTLED = ("TaskCompleted", "TaskFailed", "TaskRefunded")


@attrs.define(kw_only=True)
class Tally:
    """The sums of events up to a block.

    Args:
        balance_wei: the requester's free balance in the contract.
        tasks: how many were funded.
        open_wei: rewards that are held for tasks.
        paid_wei: what was paid to workers for tasks.
    """

    balance_wei: Wei
    tasks: int = 0
    open_wei: Wei = 0
    paid_wei: Wei = 0

    def add(self, events: Iterable[ContractEvent]) -> None:
        """Take in what came next."""
        for event in events:
            args = event.args
            match event.name:
                case "TaskCreated":
                    self.tasks += 1
                    self.open_wei += args["reward"]
                    self.balance_wei -= args["reward"]
                case "TaskCompleted":
                    self.open_wei -= args["paid"]
                    self.paid_wei += args["paid"]
                case "TaskFailed" | "TaskRefunded":
                    self.open_wei -= args["refunded"]
                    self.balance_wei += args["refunded"]
                case "Deposited" | "PushFailed":
                    self.balance_wei += args["amount"]
                case "Withdrawn" | "ChannelFunded":
                    self.balance_wei -= args["amount"]
                case "ChannelClosed":
                    self.balance_wei += args["returned"]

    def difference(self, balance_wei: Wei) -> Iterator[str]:
        """Whether the contract's own word for the balance is another."""
        if self.balance_wei != balance_wei:
            yield f"the balance in the contract is {balance_wei} wei, its events say {self.balance_wei}"


def differences_of(intents: Iterable[Intent], events: Iterable[ContractEvent]) -> Iterator[str]:
    """What differs between some transactions' intents and the events that they caused.

    Args:
        intents: all that these transactions carry; of those that are done each must have its event.
        events: all of these transactions'.
    """
    created: dict[bytes, Wei] = {}
    settled: dict[bytes, ContractEvent] = {}
    for event in events:
        if event.name == "TaskCreated":
            created[event.args["taskId"]] = event.args["reward"]
        elif event.name in _SETTLED:
            if event.args["taskId"] in settled:
                yield f"task 0x{event.args['taskId'].hex()} was settled twice"
            settled[event.args["taskId"]] = event
    for intent in intents:
        if intent.state is IntentState.DONE and intent.task is not None:
            yield from _check(intent, created, settled)


def strangers(intents: Iterable[Intent], events: Iterable[ContractEvent]) -> list[bytes]:
    """The tasks that were funded by these events and that none of these intents funds."""
    known = {_task(intent) for intent in intents if intent.kind is IntentKind.CREATE}
    funded = (event.args["taskId"] for event in events if event.name == "TaskCreated")
    return [task for task in funded if task not in known]


def stranger_difference(task: bytes, intent: Intent | None) -> Iterator[str]:
    """What is wrong with a task that was funded by no transaction that carries it.

    Args:
        task: as the contract knows it.
        intent: the ledger's own funding of it, which may have found it true already; None where it knows none.
    """
    if intent is None:
        yield f"task 0x{task.hex()} was funded, but not by this ledger"
    elif intent.state in (IntentState.VOID, IntentState.PARKED):
        yield f"task {intent.task} is funded on the chain, the ledger says {intent.state.value}"


def silent_difference(intent: Intent, found: ChainTask) -> Iterator[str]:
    """What is wrong with an intent that the ledger found true already."""
    wanted = {
        IntentKind.CREATE: (TaskState.OPEN, TaskState.PAID, TaskState.FAILED, TaskState.REFUNDED),
        IntentKind.COMPLETE: (TaskState.PAID,),
        IntentKind.FAIL: (TaskState.FAILED, TaskState.REFUNDED),
    }
    if found.state not in wanted[intent.kind] or found.reward_wei != intent.amount_wei:
        yield (
            f"{_named(intent)} was found done already ({intent.kind.value}, {intent.amount_wei} wei), the chain has "
            f"{found.state.name.lower()}, {found.reward_wei} wei"
        )


def _task(intent: Intent) -> bytes:
    return chain_task_id(intent.task or "", intent.generation or 0)


def _named(intent: Intent) -> str:
    return f"task {intent.task} (funding {intent.generation})"


def _check(intent: Intent, created: dict[bytes, Wei], settled: dict[bytes, ContractEvent]) -> Iterator[str]:
    """What is wrong with one intent that the ledger says is done."""
    task, what = _task(intent), _named(intent)
    if intent.kind is IntentKind.CREATE:
        if created.get(task) != intent.amount_wei:
            yield f"{what} was funded with {intent.amount_wei} wei by the ledger, with {created.get(task)} on the chain"
        return
    event = settled.get(task)
    if event is None:
        yield f"{what} is settled in the ledger, not on the chain"
    elif intent.kind is IntentKind.COMPLETE:
        found = (event.args.get("assignee"), event.args.get("paid"))
        if event.name != "TaskCompleted" or found != (intent.payee, intent.amount_wei):
            yield f"{what} was paid to {intent.payee}, the chain has {event.name} {found}"
    elif event.name == "TaskCompleted":
        yield f"{what} was refunded by the ledger, the chain has paid it"
