"""Ledger against chain, from the contract's events alone. It only reads.

Every intent that is done has its event, every event its intent, and the sums are equal to the wei.

Both sides are taken as of one final block; what was finished in the ledger after that block was read isn't compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs

from rendezvous.chain import escrow
from rendezvous.chain.channels import all_channels, channel_differences
from rendezvous.chain.escrow import ContractEvent
from rendezvous.chain.finality import Finality
from rendezvous.chain.rpc import Rpc
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.money_ops import Intent, IntentKind, IntentState, Sender
from swarm.errors import RpcSaid
from swarm.model import Address, Wei
from swarm.vouchers import chain_task_id

__all__ = ["AUDIT_EVERY_S", "AuditReport", "audit", "compare"]

#: Hourly (`escrow.md` §8).
AUDIT_EVERY_S: Final = 3600.0
#: Blocks of one ``eth_getLogs``; many nodes refuse more.
LOG_BLOCKS: Final = 5_000


@attrs.frozen(kw_only=True)
class AuditReport:
    """What an audit found.

    Args:
        block: the final block that both sides were compared on.
        tasks: how many tasks the chain knows of this ledger.
        open_wei: rewards that are held for tasks.
        paid_wei: what was paid to workers.
        balance_wei: the requester's free balance in the contract.
        differences: a sentence each; none where all is well.
    """

    block: int
    tasks: int
    open_wei: Wei
    paid_wei: Wei
    balance_wei: Wei
    differences: tuple[str, ...]


async def audit(ledger: Ledger, rpc: Rpc, address: Address, *, contract: Address, finality: Finality) -> AuditReport:
    """Compare what the ledger says is done with what the chain shows.

    Raises:
        RpcUnreachable: the node doesn't answer.
        RpcSaid: the node refuses to be asked.
    """
    before = await _intents(ledger, address)
    sender = await ledger.read(lambda reader: reader.sender(address))
    if sender is None:
        return AuditReport(block=0, tasks=0, open_wei=0, paid_wei=0, balance_wei=0, differences=())
    block = max(sender.since_number, await finality.look(rpc))
    events = await _events(rpc, address, contract=contract, first=sender.since_number + 1, last=block)
    reading = {"to": contract, "data": "0x" + escrow.balance_call(address).hex()}
    balance_wei = escrow.decode_balance(await rpc.call("eth_call", reading, hex(block)))
    after = await _intents(ledger, address)
    report = compare(sender, before, after, events, balance_wei=balance_wei, block=block)
    channels = await all_channels(ledger, address)
    return attrs.evolve(report, differences=(*report.differences, *channel_differences(channels, before, events)))


async def _intents(ledger: Ledger, address: Address) -> list[Intent]:
    found: list[Intent] = []
    while True:
        last = found[-1].n if found else 0
        page = await ledger.read(lambda reader, after=last: reader.intents(address, after=after))  # type: ignore[misc]
        found.extend(page)
        if not page:
            return found


async def _events(rpc: Rpc, address: Address, *, contract: Address, first: int, last: int) -> list[ContractEvent]:
    """All events in which this account is the first indexed argument."""
    topic = "0x" + address[2:].lower().rjust(64, "0")
    logs: list[Any] = []
    for start in range(first, last + 1, LOG_BLOCKS):
        asked = {
            "address": contract,
            "fromBlock": hex(start),
            "toBlock": hex(min(last, start + LOG_BLOCKS - 1)),
            "topics": [None, topic],
        }
        answer = await rpc.call("eth_getLogs", asked)
        if isinstance(answer, RpcSaid):
            raise answer
        logs.extend(log for log in answer if first <= int(log["blockNumber"], 16) <= last)
    return [event for event in map(escrow.decode_event, logs) if event is not None]


def compare(
    sender: Sender,
    before: Iterable[Intent],
    after: Iterable[Intent],
    events: Iterable[ContractEvent],
    *,
    balance_wei: Wei,
    block: int,
) -> AuditReport:
    """What differs. Pure.

    Args:
        sender: with the balance to begin from.
        before: the intents as they were before the chain was read: those done by then must have their events.
        after: as they were after it: events must be of intents that had been signed by then.
        events: of the contract since that block, for this account.
        balance_wei: the account's free balance at the block.
        block: the final block of the chain's side.
    """
    created: dict[bytes, Wei] = {}
    settled: dict[bytes, ContractEvent] = {}
    differences: list[str] = []
    flow_wei = sender.since_balance_wei
    paid_wei = 0
    for event in events:
        args = event.args
        match event.name:
            case "TaskCreated":
                created[args["taskId"]] = args["reward"]
                flow_wei -= args["reward"]
            case "TaskCompleted" | "TaskFailed" | "TaskRefunded":
                if args["taskId"] in settled:
                    differences.append(f"task 0x{args['taskId'].hex()} was settled twice")
                settled[args["taskId"]] = event
                paid_wei += args.get("paid", 0)
                flow_wei += args.get("refunded", 0)
            case "Deposited" | "PushFailed":
                flow_wei += args["amount"]
            case "Withdrawn" | "ChannelFunded":
                flow_wei -= args["amount"]
            case "ChannelClosed":
                flow_wei += args["returned"]
    if flow_wei != balance_wei:
        differences.append(f"the balance in the contract is {balance_wei} wei, its events say {flow_wei}")
    for intent in before:
        if intent.state is IntentState.DONE and intent.task is not None:
            differences.extend(_check(intent, created, settled))
    known = {
        chain_task_id(intent.task, intent.generation or 0): intent
        for intent in after
        if intent.kind is IntentKind.CREATE and intent.task is not None
    }
    differences.extend(f"task 0x{task.hex()} was funded, but not by this ledger" for task in created.keys() - known)
    differences.extend(
        f"task {known[task].task} is funded on the chain, the ledger says {known[task].state.value}"
        for task in created.keys() & known.keys()
        if known[task].state in (IntentState.VOID, IntentState.PARKED)
    )
    open_wei = sum(reward_wei for task, reward_wei in created.items() if task not in settled)
    return AuditReport(
        block=block,
        tasks=len(created),
        open_wei=open_wei,
        paid_wei=paid_wei,
        balance_wei=balance_wei,
        differences=tuple(differences),
    )


def _check(intent: Intent, created: dict[bytes, Wei], settled: dict[bytes, ContractEvent]) -> Iterable[str]:
    """What is wrong with one intent that the ledger says is done."""
    task = chain_task_id(intent.task or "", intent.generation or 0)
    what = f"task {intent.task} (funding {intent.generation})"
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
