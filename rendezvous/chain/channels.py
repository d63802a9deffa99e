"""Channels followed on the chain: what is locked, redeemed, given back becomes the ledger's, from final blocks alone.

At its start it looks at every channel of the ledger; then only at those that an event of the contract names, and at new
ones. Workers redeem without the root, so it hears of that nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import structlog

from rendezvous.chain import escrow
from rendezvous.chain.escrow import ContractEvent
from rendezvous.chain.finality import Finality
from rendezvous.chain.rpc import Call, Rpc
from rendezvous.ledger.channels import ChannelRow
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.money_ops import ChannelSeen, Intent, IntentKind, IntentState, SeeChannels
from swarm.errors import RpcSaid
from swarm.model import Address
from swarm.vouchers import NO_CHANNEL

__all__ = ["ChannelFollower", "all_channels", "channel_differences"]

log = structlog.get_logger()

#: Blocks of one ``eth_getLogs``; many nodes refuse more.
LOG_BLOCKS: Final = 5_000
#: What changes a channel; each has payer and payee as its indexed arguments.
EVENTS: Final = ("ChannelFunded", "ChannelSettled", "ExitStarted", "ChannelClosed")
#: Channels of one write to the ledger: other writes get their turn between.
WRITE_MOST: Final = 200


class ChannelFollower:
    """Follows the channels of one payer.

    Args:
        ledger: where they are kept.
        rpc: the node.
        payer: whose channels.
        contract: the escrow's address.
        finality: only what is final is believed.
    """

    def __init__(self, ledger: Ledger, rpc: Rpc, payer: Address, *, contract: Address, finality: Finality) -> None:
        self._ledger: Final = ledger
        self._rpc: Final = rpc
        self._payer: Final = payer
        self._contract: Final = contract
        self._finality: Final = finality
        #: The last final block whose events were read; None before the first look.
        self._read_up_to: int | None = None
        #: Payees of whom the ledger has seen a later block than could be shown: that block was reorganised away.
        self._again: set[Address] = set()

    def forget(self) -> None:
        """Look at every channel again at the next look: the chain was reorganised."""
        self._read_up_to = None

    async def follow(self) -> int:
        """Bring the ledger to the newest final block.

        Returns:
            How many channels were looked at.

        Raises:
            RpcUnreachable: the node doesn't answer.
            RpcSaid: it refuses to be asked.
        """
        final = await self._finality.look(self._rpc)
        if self._read_up_to is not None and final <= self._read_up_to:
            return 0
        if self._read_up_to is None:
            payees = {channel.payee for channel in await all_channels(self._ledger, self._payer)}
        else:
            new = await self._ledger.read(lambda reader: reader.channels(self._payer, unseen=True))
            payees = {channel.payee for channel in new}
            known = bool(payees) or await self._ledger.read(lambda reader: reader.has_channels(self._payer))
            if known:
                payees |= await self._named(self._read_up_to + 1, final)
            payees |= self._again
        self._again = set(await self._look(sorted(payees), final))
        self._read_up_to = final
        return len(payees)

    async def _named(self, first: int, last: int) -> set[Address]:
        """The payees whose channels changed in these blocks."""
        topics = [[escrow.topic_of(name) for name in EVENTS], "0x" + self._payer[2:].lower().rjust(64, "0")]
        found: set[Address] = set()
        for start in range(first, last + 1, LOG_BLOCKS):
            end = min(last, start + LOG_BLOCKS - 1)
            asked = {"address": self._contract, "fromBlock": hex(start), "toBlock": hex(end), "topics": topics}
            logs: list[Any] = await self._rpc.call("eth_getLogs", asked)
            # A node may answer with more than was asked for (facts/chain.md, trap 4).
            events = (escrow.decode_event(each) for each in logs if start <= int(each["blockNumber"], 16) <= end)
            found |= {event.args["worker"] for event in events if event is not None}
        return found

    async def _look(self, payees: list[Address], block: int) -> list[Address]:
        """Show the ledger these channels.

        Returns:
            Those among which are such as it doesn't take yet.
        """
        again: list[Address] = []
        for start in range(0, len(payees), WRITE_MOST):
            seen = await self._seen(payees[start : start + WRITE_MOST], block)
            news = await self._ledger.call(SeeChannels(payer=self._payer, number=block, seen=seen))
            if news:
                log.info("channels_seen", block=block, channels=len(seen), payees=[each.payee for each in seen[:5]])
            if news < len(seen):
                again += [each.payee for each in seen]
        return again

    async def _seen(self, payees: list[Address], block: int) -> tuple[ChannelSeen, ...]:
        datas = ["0x" + escrow.channel_call(self._payer, payee).hex() for payee in payees]
        calls: list[Call] = [("eth_call", [{"to": self._contract, "data": data}, hex(block)]) for data in datas]
        seen = []
        for payee, answer in zip(payees, await self._rpc.batch(calls), strict=True):
            if isinstance(answer, RpcSaid):
                raise answer
            channel = NO_CHANNEL if answer == "0x" else escrow.decode_channel(answer)
            seen.append(
                ChannelSeen(
                    payee=payee,
                    locked_wei=channel.locked_wei,
                    settled_wei=channel.settled_wei,
                    exit_at=channel.exit_at or None,
                )
            )
        return tuple(seen)


async def all_channels(ledger: Ledger, payer: Address) -> list[ChannelRow]:
    """Every channel of a payer, by payee."""
    found: list[ChannelRow] = []
    while True:
        last = found[-1].payee if found else ""
        page = await ledger.read(lambda reader, after=last: reader.channels(payer, after=after))  # type: ignore[misc]
        found.extend(page)
        if not page:
            return found


def channel_differences(
    channels: Iterable[ChannelRow], intents: Iterable[Intent], events: Iterable[ContractEvent]
) -> Iterator[str]:
    """What differs between the ledger's channels and the contract's events, a sentence each. Pure.

    Args:
        channels: read after the events, so that what was signed for them is in these.
        intents: the payer's, read before the events.
        events: of the payer's channels.
    """
    owed = {channel.payee: channel.owed_wei for channel in channels}
    funded: Counter[Address] = Counter()
    for event in events:
        payee = event.args.get("worker", "")
        if event.name == "ChannelFunded":
            funded[payee] += 1
        elif event.name == "ChannelSettled" and event.args["settled"] > owed.get(payee, 0):
            yield (
                f"the channel of {payee} has paid {event.args['settled']} wei in all, "
                f"the ledger owes {owed.get(payee, 0)}"
            )
    asked = Counter(
        intent.payee or ""
        for intent in intents
        if intent.kind is IntentKind.FUND and intent.state is IntentState.DONE and intent.nonce is not None
    )
    for payee, count in asked.items():
        if funded[payee] < count:
            yield f"the channel of {payee} was funded {count} times by the ledger, {funded[payee]} times on the chain"
