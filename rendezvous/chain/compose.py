"""Intents into one call of the contract, as far as they can be paid for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from rendezvous.chain import escrow
from rendezvous.chain.escrow import Completion
from rendezvous.ledger.money_ops import Intent, IntentKind
from swarm.model import Address, Wei
from swarm.vouchers import Channel, chain_task_id

__all__ = ["CHANNEL_KINDS", "DEADLINE_S", "Composed", "Purse", "chain_task", "compose", "is_met"]

#: A task's deadline is long: what it buys the worker is that money leaves by a verdict, not by the clock. 90 days.
DEADLINE_S: Final = 90 * 86_400


#: What is about a channel: whether it is met is read there before it is signed.
CHANNEL_KINDS: Final = frozenset({IntentKind.FUND, IntentKind.EXIT, IntentKind.CLOSE})


@attrs.frozen(kw_only=True)
class Purse:
    """What can be spent: the wallet's ether, and the balance in the contract, less what is under way."""

    wallet_wei: Wei
    escrow_wei: Wei


@attrs.frozen
class Composed:
    """A call to the contract for some intents, in the order of the call's items."""

    intents: tuple[Intent, ...]
    data: bytes
    value_wei: Wei = attrs.field(default=0, kw_only=True)
    draw_wei: Wei = attrs.field(default=0, kw_only=True)


def compose(
    intents: Sequence[Intent],
    purse: Purse,
    *,
    sender: Address,
    timestamp: int,
    channels: Mapping[Address, Channel],
) -> Composed | None:
    """The call that makes these intents true, or those of them that can be paid for.

    Args:
        intents: of one kind, or settling ones; creates of one reward.
        purse: what can be spent.
        sender: who calls.
        timestamp: of the newest block, Unix seconds.
        channels: those that the intents are about, as a final block has them.

    Returns:
        None where they are true already.
    """
    kind = intents[0].kind
    if kind is IntentKind.CREATE:
        reward_wei = intents[0].amount_wei
        payable = min(len(intents), (max(0, purse.escrow_wei) + max(0, purse.wallet_wei)) // reward_wei)
        chosen = tuple(intents[:payable])
        total_wei = reward_wei * len(chosen)
        draw_wei = min(total_wei, max(0, purse.escrow_wei))
        data = escrow.create_batch([chain_task(each) for each in chosen], reward_wei, timestamp + DEADLINE_S)
        return Composed(chosen, data, value_wei=total_wei - draw_wei, draw_wei=draw_wei)
    if kind is IntentKind.FUND:
        return _fund(intents, purse, channels)
    if kind in (IntentKind.EXIT, IntentKind.CLOSE):
        payees = [each.payee or escrow.NO_ADDRESS for each in intents]
        call = escrow.start_exit if kind is IntentKind.EXIT else escrow.finish_exit
        return Composed(tuple(intents), call(payees))
    if kind is IntentKind.DEPOSIT:
        missing_wei = intents[0].amount_wei - purse.escrow_wei
        if missing_wei <= 0:
            return None
        return Composed(tuple(intents), escrow.deposit(), value_wei=missing_wei)
    if kind is IntentKind.WITHDRAW:
        amount_wei, to = intents[0].amount_wei, intents[0].payee or sender
        return Composed(tuple(intents), escrow.withdraw(to, amount_wei), draw_wei=amount_wei)
    ordered = tuple(sorted(intents, key=lambda each: (each.payee or "", each.n)))
    return Composed(ordered, escrow.complete_batch([_completion(each) for each in ordered]))


def _fund(intents: Sequence[Intent], purse: Purse, channels: Mapping[Address, Channel]) -> Composed | None:
    """Bring channels to their targets, as far as there is money; those that have enough are left out."""
    left_wei = max(0, purse.escrow_wei) + max(0, purse.wallet_wei)
    chosen: list[Intent] = []
    amounts: list[tuple[Address, Wei]] = []
    enough = 0
    for intent in intents:
        payee = intent.payee or escrow.NO_ADDRESS
        missing_wei = intent.amount_wei - channels[payee].held_wei
        if missing_wei <= 0:
            enough += 1
        elif missing_wei <= left_wei:
            left_wei -= missing_wei
            chosen.append(intent)
            amounts.append((payee, missing_wei))
    if enough == len(intents):
        return None
    total_wei = sum(amount_wei for _, amount_wei in amounts)
    draw_wei = min(total_wei, max(0, purse.escrow_wei))
    return Composed(tuple(chosen), escrow.fund(amounts), value_wei=total_wei - draw_wei, draw_wei=draw_wei)


def is_met(intent: Intent, channel: Channel) -> bool:
    """Whether a channel is as an intent about it wants it already."""
    if intent.kind is IntentKind.FUND:
        return channel.held_wei >= intent.amount_wei
    closing = channel.exit_at != 0
    # Nothing locked is nothing to take back; and a funding ends an exit: whoever asked for that must ask again.
    return not channel.locked_wei or (closing if intent.kind is IntentKind.EXIT else not closing)


def chain_task(intent: Intent) -> bytes:
    """The id that the contract knows an intent's task by."""
    return chain_task_id(intent.task or "", intent.generation or 0)


def _completion(intent: Intent) -> Completion:
    paying = intent.kind is IntentKind.COMPLETE
    return Completion(
        task=chain_task(intent),
        assignee=(intent.payee if paying else None) or escrow.NO_ADDRESS,
        output=escrow.output_digest(intent.output) if paying and intent.output else bytes(32),
        success=paying,
    )
