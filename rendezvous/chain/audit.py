"""Ledger against chain, from the contract's events: bounded pieces of both, read side by side. It only reads.

Every intent that is done has its event, every event its intent, and the sums are equal to the wei. The blocks and the
ledger's transactions are walked together, since a sender's nonces are mined in their order: a window of blocks has the
events of the transactions that were mined in it, and the ledger knows each by the hash that it stored before sending.

Each audit looks at what became final since the last one, and goes on with a walk from the first block on, as far as it
may at once; that one begins anew when it has come to its end. What differs is told until a whole walk hasn't found it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import attrs

from rendezvous.chain import escrow
from rendezvous.chain.channels import LOG_BLOCKS, channel_differences
from rendezvous.chain.compare import Tally, differences_of, silent_difference, stranger_difference, strangers
from rendezvous.chain.escrow import ContractEvent
from rendezvous.chain.finality import Finality
from rendezvous.chain.rpc import Call, Rpc
from rendezvous.ledger.audit_queries import NONCES_MOST
from rendezvous.ledger.channels import ChannelRow
from rendezvous.ledger.money_ops import Intent, IntentKind, Sender
from swarm.errors import RpcSaid
from swarm.model import Address, Wei
from swarm.vouchers import chain_task_id

__all__ = ["AUDIT_EVERY_S", "AuditReport", "Auditor"]

#: Hourly (`escrow.md` §8).
AUDIT_EVERY_S: Final = 3600.0
#: Windows of blocks that the walk from the first block takes in one audit: two months of mainnet.
WINDOWS_MOST: Final = 100
#: … and numbers of intents: what was found true already among them is asked of the chain one by one.
INTENTS_MOST: Final = 50_000


@attrs.frozen(kw_only=True)
class AuditReport:
    """What an audit found.

    Args:
        block: the final block that the balance was compared on.
        counted_block: the block up to which the sums count.
        tasks: how many tasks the chain knows of this ledger.
        open_wei: rewards that are held for tasks.
        paid_wei: what was paid to workers.
        balance_wei: the requester's free balance in the contract.
        differences: a sentence each; none where all is well.
    """

    block: int
    counted_block: int
    tasks: int
    open_wei: Wei
    paid_wei: Wei
    balance_wei: Wei
    differences: tuple[str, ...]


class Readable(Protocol):
    """The ledger, as an audit needs it."""

    async def read(self, query: Any) -> Any:
        """See ``Ledger.read``."""


@attrs.define(kw_only=True)
class _Walk:
    """How far a walk has come: the last block, the last transaction, the last intent, and the sums up to there."""

    block: int
    nonce: int
    tally: Tally
    intent: int = 0


class Auditor:
    """Audits one payer, again and again.

    Args:
        ledger: the books.
        rpc: the node.
        address: the payer's.
        contract: the escrow's address.
        finality: what is final on this chain.
        window_blocks: how many blocks' events are read at once.
        windows_most: how many such windows the walk from the first block takes in one audit.
    """

    def __init__(
        self,
        ledger: Readable,
        rpc: Rpc,
        address: Address,
        *,
        contract: Address,
        finality: Finality,
        window_blocks: int = LOG_BLOCKS,
        windows_most: int = WINDOWS_MOST,
    ) -> None:
        self._ledger: Final = ledger
        self._rpc: Final = rpc
        self._address: Final = address
        self._contract: Final = contract
        self._finality: Final = finality
        self._window_blocks: Final = window_blocks
        self._windows_most: Final = windows_most
        self._recent: _Walk | None = None
        self._whole: _Walk | None = None
        #: Found, and not yet missed by a whole walk; and found by the present one.
        self._standing: dict[str, None] = {}
        self._found: dict[str, None] = {}

    async def audit(self) -> AuditReport:
        """Compare what the ledger says is done with what the chain shows.

        Raises:
            RpcUnreachable: the node doesn't answer; the next audit goes on from where this one was.
            RpcSaid: the node refuses to be asked.
        """
        sender: Sender | None = await self._ledger.read(lambda reader: reader.sender(self._address))
        if sender is None:
            return AuditReport(block=0, counted_block=0, tasks=0, open_wei=0, paid_wei=0, balance_wei=0, differences=())
        final = max(sender.since_number, await self._finality.look(self._rpc))
        reading = {"to": self._contract, "data": "0x" + escrow.balance_call(self._address).hex()}
        balance_wei = escrow.decode_balance(await self._rpc.call("eth_call", reading, hex(final)))
        await self._look_at_recent(final, balance_wei)
        walk = self._whole or _Walk(
            block=sender.since_number, nonce=-1, tally=Tally(balance_wei=sender.since_balance_wei)
        )
        self._whole = walk
        for _ in range(self._windows_most):
            if walk.block >= final:
                break
            await self._step(walk, min(final, walk.block + self._window_blocks))
        if await self._look_at_silent(walk, final) and walk.block == final:
            self._find(walk.tally.difference(balance_wei))
            self._standing, self._found, self._whole = self._found, {}, None
        return AuditReport(
            block=final,
            counted_block=walk.block,
            tasks=walk.tally.tasks,
            open_wei=walk.tally.open_wei,
            paid_wei=walk.tally.paid_wei,
            balance_wei=balance_wei,
            differences=tuple({**self._standing, **self._found}),
        )

    def _find(self, differences: Iterable[str]) -> None:
        self._found.update(dict.fromkeys(differences))

    # ── walking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _look_at_recent(self, final: int, balance_wei: Wei) -> None:
        """What became final since the last audit; the first only notes where it begins."""
        walk = self._recent
        if walk is None or walk.block > final:  # or the chain was reorganised deeper than that
            used = int(await self._rpc.call("eth_getTransactionCount", self._address, hex(final)), 16)
            self._recent = _Walk(block=final, nonce=used - 1, tally=Tally(balance_wei=balance_wei))
            return
        while walk.block < final:
            await self._step(walk, min(final, walk.block + self._window_blocks))
        self._find(walk.tally.difference(balance_wei))
        walk.tally.balance_wei = balance_wei  # it is told once, and not at each audit anew

    async def _step(self, walk: _Walk, last: int) -> None:
        """Go on to a block, comparing what both sides have on the way."""
        events = await self._events(walk.block + 1, last)
        hashes = list(dict.fromkeys(event.transaction for event in events))
        ours: dict[str, int] = await self._ledger.read(lambda reader: reader.audited_nonces(self._address, hashes))
        mined, nonce = await self._walked(walk.nonce, first=walk.block + 1, last=last)
        by_nonce: dict[int | None, list[ContractEvent]] = {each: [] for each in mined}
        for event in events:
            by_nonce.setdefault(ours.get(event.transaction), []).append(event)
        strange = strangers((), by_nonce.pop(None, ()))
        nonces = sorted(each for each in by_nonce if each is not None)
        for start in range(0, len(nonces), NONCES_MOST):
            some = nonces[start : start + NONCES_MOST]
            caused = [event for each in some for event in by_nonce[each]]
            strange += await self._compare(some, caused)
        self._find(channel_differences(await self._channels(events), (), events))
        await self._look_at_strangers(strange)
        walk.tally.add(events)
        walk.block, walk.nonce = last, nonce

    async def _walked(self, nonce: int, *, first: int, last: int) -> tuple[list[int], int]:
        """The final transactions after a nonce that were mined in these blocks, and the last nonce that was looked at.

        One that wasn't final yet when its blocks were passed is for the next walk.
        """
        found: list[int] = []
        while True:
            page = await self._ledger.read(
                lambda reader, after=nonce: reader.audited_transactions(self._address, after)
            )
            for each in page:
                number = each.mined_number or 0
                if not each.over or number > last:
                    return found, nonce
                nonce = each.nonce
                if each.final and number >= first:
                    found.append(nonce)
            if not page:
                return found, nonce

    async def _compare(self, nonces: list[int], events: list[ContractEvent]) -> list[bytes]:
        """Compare some transactions.

        Returns:
            Tasks that they funded and don't carry.
        """
        intents: list[Intent] = await self._ledger.read(lambda reader: reader.audited_intents(self._address, nonces))
        self._find(differences_of(intents, events))
        funded = [event for event in events if event.name == "ChannelFunded"]
        self._find(channel_differences((), intents, funded))
        return strangers(intents, events)

    # ── the chain ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _events(self, first: int, last: int) -> list[ContractEvent]:
        """All events of these blocks in which this account is the first indexed argument."""
        topic = "0x" + self._address[2:].lower().rjust(64, "0")
        asked = {
            "address": self._contract,
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "topics": [None, topic],
        }
        try:
            logs: list[Any] = await self._rpc.call("eth_getLogs", asked)
        except RpcSaid:
            if first == last:
                raise
            middle = (first + last) // 2  # nodes have caps of their own on what they answer
            return [*await self._events(first, middle), *await self._events(middle + 1, last)]
        # A node may answer with more than was asked for (facts/chain.md, trap 4).
        events = (escrow.decode_event(log) for log in logs if first <= int(log["blockNumber"], 16) <= last)
        return [event for event in events if event is not None]

    async def _channels(self, events: list[ContractEvent]) -> list[ChannelRow]:
        """The ledger's channels that something was paid from."""
        payees = dict.fromkeys(event.args["worker"] for event in events if event.name == "ChannelSettled")
        found = [
            await self._ledger.read(lambda reader, to=payee: reader.channel(self._address, to)) for payee in payees
        ]
        return [channel for channel in found if channel is not None]

    # ── what no transaction of the ledger's tells ─────────────────────────────────────────────────────────────────

    async def _look_at_strangers(self, tasks: list[bytes]) -> None:
        """Tasks that no transaction carries: the ledger's own all the same if it was restored, or found them funded.

        Rare, and so looked for in all fundings, a page at a time.
        """
        left, after = dict.fromkeys(tasks), 0
        while left:
            page: list[Intent] = await self._ledger.read(
                lambda reader, after=after: reader.intents(self._address, after=after)
            )
            for intent in page:
                task = chain_task_id(intent.task, intent.generation or 0) if intent.task is not None else b""
                if intent.kind is IntentKind.CREATE and task in left:
                    del left[task]
                    self._find(stranger_difference(task, intent))
            if not page:
                break
            after = page[-1].n
        for task in left:
            self._find(stranger_difference(task, None))

    async def _look_at_silent(self, walk: _Walk, block: int) -> bool:
        """Ask the chain for what the ledger found true already.

        Returns:
            Whether all of it was asked for.
        """
        newest: int = await self._ledger.read(lambda reader: reader.last_intent())
        up_to = min(newest, walk.intent + INTENTS_MOST)
        intents: list[Intent] = await self._ledger.read(
            lambda reader: reader.silent_intents(self._address, after=walk.intent, up_to=up_to)
        )
        datas = [
            escrow.task_call(self._address, chain_task_id(each.task or "", each.generation or 0)) for each in intents
        ]
        calls: list[Call] = [
            ("eth_call", [{"to": self._contract, "data": "0x" + data.hex()}, hex(block)]) for data in datas
        ]
        for intent, answer in zip(intents, await self._rpc.batch(calls), strict=True):
            if isinstance(answer, RpcSaid):
                raise answer
            self._find(silent_difference(intent, escrow.decode_task(answer)))
        walk.intent = up_to
        return up_to == newest
