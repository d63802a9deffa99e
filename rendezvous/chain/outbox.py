"""What to do next about money: a pure function of the book, of what the chain shows, and of the time.

``decide`` is the state table of `escrow.md` §8. It reads no ledger and calls no node, so that the tests and the
simulation drive the very code that pays. Its steps are repeated without harm: each is guarded where it is written (the
sender's epoch, the state it was made for), sent bytes are always bytes that were stored before, and a nonce that was
used decides which of its attempts happened.

Two things it never does: sign another payload at a used nonce, and take "nonce too low" or silence for a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import attrs

from rendezvous.chain.fees import Fees, first_fees, raised
from rendezvous.ledger.money_ops import (
    Attempt,
    Book,
    Buried,
    Entry,
    Finalized,
    Intent,
    IntentKind,
    Mined,
    Reorged,
    Sent,
    Stopped,
    Transaction,
    TxState,
)
from swarm.model import Address, Wei

__all__ = [
    "BATCH_MOST",
    "Bump",
    "ChainView",
    "Fill",
    "JudgeForeign",
    "JudgeReverted",
    "Note",
    "Plan",
    "Receipt",
    "Rules",
    "Send",
    "Sign",
    "Step",
    "Worry",
    "WorryCode",
    "decide",
]

#: Items of one transaction (`escrow.md` §7: measured ceilings with a margin).
BATCH_MOST: Final[Mapping[str, int]] = {
    "create": 500,
    "settle": 200,
    "deposit": 1,
    "withdraw": 1,
    "fund": 500,
    "exit": 1_000,
    "close": 1_000,
}

#: How long a block takes at most on the chains that we know, seconds.
BLOCK_S: Final = 15.0
#: How far the finalized block is behind: two to three epochs of 32 slots.
FINALIZED_BLOCKS: Final = 96

_UNMINED: Final = frozenset({TxState.SIGNED, TxState.SENT, TxState.FOREIGN})


@attrs.frozen(kw_only=True)
class Rules:
    """What an operator may set of the outbox.

    Args:
        finality_blocks: a transaction is final with so many blocks on top of its own; also where the chain is asked for
            its finalized block and has none.
        finalized_tag: a transaction is final when the chain says so of its block.
        watch_blocks: a final one's block is looked at until so many final ones are on top.
        stuck_blocks: one that wasn't included in so many gets higher fees.
        max_fee_wei: the most that is offered for a unit of gas.
        in_flight_most: transactions that may be under way at once.
        linger_s: an intent waits this long for others to share its batch while a transaction is under way.
        doubt_s: how long the chain must show that a nonce was used by another before that is believed: nodes behind one
            address may lag.
        alert_after_s: what keeps money from moving for so long is told.
    """

    finality_blocks: int = 12
    finalized_tag: bool = False
    watch_blocks: int = 64
    stuck_blocks: int = 5
    max_fee_wei: Wei = 100 * 10**9
    in_flight_most: int = 8
    linger_s: float = 1.0
    doubt_s: float = 30.0
    alert_after_s: float = 120.0

    @property
    def final_after_s(self) -> float:
        """How long a transaction takes at most to be final on a chain that grows, seconds."""
        return BLOCK_S * max(self.finality_blocks, FINALIZED_BLOCKS if self.finalized_tag else 0)


@attrs.frozen(kw_only=True)
class Receipt:
    """Where a transaction was included, and whether it succeeded."""

    number: int
    block_hash: str
    ok: bool


@attrs.frozen(kw_only=True)
class ChainView:
    """What the chain shows, read in one exchange.

    Args:
        head: the newest block's number.
        timestamp: its time, Unix seconds.
        final: the newest final block's number; below zero where there is none.
        nonce: the sender's next one on the newest block.
        final_nonce: its next one on the newest final block.
        wallet_wei: the sender's ether.
        escrow_wei: the sender's balance in the contract.
        receipts: of attempts, by hash, where there are any.
        known: hashes of attempts that the node knows, pooled or mined.
        hashes: the canonical block hash at heights that were asked for; None where there is no such block.
        anchor_hash: the hash at the sender's anchor.
        has_contract: whether there is one at the contract's address.
    """

    head: int
    final: int
    timestamp: int
    base_fee_wei: Wei
    tip_wei: Wei
    nonce: int
    final_nonce: int
    wallet_wei: Wei
    escrow_wei: Wei
    receipts: Mapping[str, Receipt]
    known: frozenset[str]
    hashes: Mapping[int, str | None]
    anchor_hash: str | None
    has_contract: bool = True


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Note:
    """Write what was seen."""

    entry: Entry


@attrs.frozen
class Send:
    """Give these stored bytes to the node (again)."""

    nonce: int
    attempt: Attempt


@attrs.frozen
class Bump:
    """Make another attempt of the same nonce, with these fees."""

    transaction: Transaction
    fees: Fees


@attrs.frozen
class Fill:
    """Take a nonce that was freed, with a transaction that does nothing."""

    nonce: int
    fees: Fees


@attrs.frozen
class JudgeReverted:
    """It failed for good: find out whose fault it was."""

    transaction: Transaction


@attrs.frozen
class JudgeForeign:
    """Its nonce was used by another; once that is final, find out whether it took effect nevertheless.

    Attributes:
        final: whether the finding is deep enough to give its intents another nonce.
    """

    transaction: Transaction
    final: bool


@attrs.frozen
class Sign:
    """Put these intents into a transaction of the next nonce.

    A plan may have several: the first that can be signed is, so that one that can't (the wallet is too empty for it)
    keeps no other back. The rest is for the next round.
    """

    intents: tuple[Intent, ...]
    fees: Fees


Step = Note | Send | Bump | Fill | JudgeReverted | JudgeForeign | Sign


class WorryCode(StrEnum):
    """What keeps money from moving."""

    CHAIN_LOST = "chain_lost"
    CHAIN_UNREACHABLE = "chain_unreachable"
    CHAIN_REFUSES = "chain_refuses"
    CHAIN_DEAR = "chain_dear"
    NOT_MINED = "not_mined"
    NOT_FINAL = "not_final"
    WALLET_EMPTY = "wallet_empty"
    SENDER_STOPPED = "sender_stopped"
    PARKED = "parked"
    BATCH_FAILS = "batch_fails"
    AUDIT_DIFFERS = "audit_differs"


@attrs.frozen(kw_only=True)
class Worry:
    """What keeps money from moving, and what to do about it; told if it lasts, or at once."""

    code: WorryCode
    message: str
    hint: str
    at_once: bool = False


@attrs.frozen(kw_only=True)
class Plan:
    """What to do now, in order, and what is in the way."""

    steps: tuple[Step, ...]
    worries: tuple[Worry, ...]
    #: Nonces that another seems to have used (and, negative, freed), by when that was first seen; for the next plan.
    doubts: Mapping[int, float]


# ── the decision ──────────────────────────────────────────────────────────────────────────────────────────────────


def decide(book: Book, view: ChainView, rules: Rules, *, doubts: Mapping[int, float], now: float) -> Plan:
    """What to do next.

    Args:
        book: what the ledger wants, and what was sent for it.
        view: what the chain shows.
        rules: the operator's.
        doubts: of the plan before.
        now: ledger seconds.
    """
    lost = _lost(book, view)
    if lost is not None:
        return Plan(steps=(), worries=(lost,), doubts={})
    outlook = _Outlook(book, view, rules, doubts=doubts, now=now)
    return outlook.plan()


def _lost(book: Book, view: ChainView) -> Worry | None:
    """Whether this is another chain than the one that the ledger speaks of."""
    sender = book.sender
    if view.anchor_hash == sender.anchor_hash:
        return None if view.has_contract else _no_contract(sender.contract)
    found = "has no such block" if view.anchor_hash is None else f"has another block there ({view.anchor_hash})"
    return Worry(
        code=WorryCode.CHAIN_LOST,
        message=f"this isn't the chain that the ledger speaks of: block {sender.anchor_number} was "
        f"{sender.anchor_hash}, the node {found}; nothing is signed or sent",
        hint="the node lost its state, or --rpc names another chain: bring the chain back from its data, or point "
        "--rpc at a node of the right one; paying goes on by itself then",
        at_once=True,
    )


def _no_contract(contract: Address) -> Worry:
    return Worry(
        code=WorryCode.CHAIN_LOST,
        message=f"there is no contract at {contract} on this chain; nothing is signed or sent",
        hint="the node lost its state or lags far behind, or --contract is wrong; paying goes on by itself then",
        at_once=True,
    )


class _Outlook:
    """One decision in the making."""

    def __init__(self, book: Book, view: ChainView, rules: Rules, *, doubts: Mapping[int, float], now: float) -> None:
        self._book: Final = book
        self._view: Final = view
        self._rules: Final = rules
        self._earlier: Final = doubts
        self._now: Final = now
        self._steps: Final[list[Step]] = []
        self._worries: Final[list[Worry]] = []
        self._doubts: Final[dict[int, float]] = {}
        self._bumped = False

    def plan(self) -> Plan:
        """Look at each transaction, then at what may be signed."""
        for transaction in self._book.transactions:
            self._look_at(transaction)
        self._look_for_gap()
        if not any(isinstance(step, Note) and isinstance(step.entry, Reorged) for step in self._steps):
            self._consider_signing()  # else the book speaks of fundings that aren't there any more
        if self._book.parked:
            self._worry(
                WorryCode.PARKED,
                f"{self._book.parked} intents failed too often and are parked",
                "the log has each with its reason; when that is gone, try them again: swarm-root wallet retry",
                at_once=True,
            )
        return Plan(steps=tuple(self._steps), worries=tuple(self._worries), doubts=self._doubts)

    def _worry(self, code: WorryCode, message: str, hint: str, *, at_once: bool = False) -> None:
        self._worries.append(Worry(code=code, message=message, hint=hint, at_once=at_once))

    def _worry_if_old(
        self, transaction: Transaction, code: WorryCode, message: str, hint: str, *, after_s: float
    ) -> None:
        if self._now - transaction.signed_at >= after_s:
            self._worry(code, message, hint, at_once=True)

    # ── transactions ──────────────────────────────────────────────────────────────────────────────────────────────

    def _look_at(self, transaction: Transaction) -> None:
        receipt = self._receipt(transaction)
        if receipt is not None and self._view.hashes.get(receipt[1].number) != receipt[1].block_hash:
            return  # the view is torn, or a reorg is under way: look again
        if transaction.state in _UNMINED:
            if receipt is not None:
                self._note_mined(transaction, *receipt)
            else:
                self._look_at_unmined(transaction)
        elif receipt is None:
            self._look_at_vanished(transaction)
        elif (transaction.mined_hash, transaction.mined_tx) != (receipt[1].block_hash, receipt[0]):
            self._steps.append(Note(Reorged(nonce=transaction.nonce)))
            self._note_mined(transaction, *receipt)
        else:
            self._look_at_depth(transaction, receipt[1])

    def _receipt(self, transaction: Transaction) -> tuple[str, Receipt] | None:
        """Of any attempt: all have the same nonce, so at most one has a receipt."""
        receipts = self._view.receipts
        return next(((each.hash, receipts[each.hash]) for each in transaction.attempts if each.hash in receipts), None)

    def _note_mined(self, transaction: Transaction, attempt: str, receipt: Receipt) -> None:
        self._steps.append(
            Note(Mined(nonce=transaction.nonce, hash=attempt, number=receipt.number, block_hash=receipt.block_hash))
        )

    def _look_at_depth(self, transaction: Transaction, receipt: Receipt) -> None:
        deep = self._view.final - receipt.number
        if transaction.state is TxState.FINAL:
            if deep >= self._rules.watch_blocks:
                buried = Buried(nonce=transaction.nonce, number=receipt.number, block_hash=receipt.block_hash)
                self._steps.append(Note(buried))
        elif deep < 0:
            self._worry_if_old(
                transaction,
                WorryCode.NOT_FINAL,
                f"a transaction (nonce {transaction.nonce}) is in block {receipt.number}, which isn't final yet",
                f"block {self._view.final} is final, {self._view.head} is the newest: does the chain still grow?",
                after_s=self._rules.alert_after_s + self._rules.final_after_s,
            )
        elif receipt.ok:
            self._steps.append(Note(Finalized(nonce=transaction.nonce, ok=True)))
        else:
            self._steps.append(JudgeReverted(transaction))

    def _look_at_vanished(self, transaction: Transaction) -> None:
        """It was mined, and no attempt has a receipt now."""
        canonical = self._view.hashes.get(transaction.mined_number or 0)
        if canonical == transaction.mined_hash:
            return  # its block stands: the node lags with the receipt
        if canonical is not None:
            self._steps.append(Note(Reorged(nonce=transaction.nonce)))
        elif (
            transaction.state is TxState.MINED
            and self._view.nonce <= transaction.nonce
            and not self._is_known(transaction)
        ):
            # A shorter chain, or a node that lags: the same bytes again do no harm, and no verdict is given.
            self._send(transaction)

    def _look_at_unmined(self, transaction: Transaction) -> None:
        if self._view.nonce > transaction.nonce:
            self._doubt(transaction)
        elif not self._is_known(transaction):
            self._send(transaction)
        else:
            if transaction.state is TxState.SIGNED:
                self._steps.append(Note(Sent(nonce=transaction.nonce)))
            if transaction.attempts[-1].hash not in self._view.known:
                self._send(transaction)  # the pool has an older, cheaper attempt: a reorganisation brought it back
            self._look_at_pooled(transaction)

    def _is_known(self, transaction: Transaction) -> bool:
        return any(attempt.hash in self._view.known for attempt in transaction.attempts)

    def _send(self, transaction: Transaction) -> None:
        self._steps.append(Send(transaction.nonce, transaction.attempts[-1]))

    def _look_at_pooled(self, transaction: Transaction) -> None:
        waited = self._view.head - transaction.signed_block
        self._worry_if_old(
            transaction,
            WorryCode.NOT_MINED,
            f"a transaction (nonce {transaction.nonce}) wasn't included within {waited} blocks",
            "its fees are raised up to --max-fee: raise that if the chain is dear; if it has no new blocks, see to it",
            after_s=self._rules.alert_after_s,
        )
        if transaction.nonce != self._view.nonce or waited < self._rules.stuck_blocks or self._bumped:
            return
        self._bumped = True
        last = transaction.attempts[-1]
        fees = raised(
            Fees(max_fee_wei=last.max_fee_wei, tip_wei=last.tip_wei),
            base_fee_wei=self._view.base_fee_wei,
            tip_wei=self._view.tip_wei,
            cap_wei=self._rules.max_fee_wei,
        )
        if fees is not None:
            self._steps.append(Bump(transaction, fees))

    def _doubt(self, transaction: Transaction) -> None:
        """The nonce was used, and no attempt of ours has a receipt."""
        since = self._earlier.get(transaction.nonce, self._now)
        self._doubts[transaction.nonce] = since
        if transaction.state is TxState.FOREIGN or self._now - since >= self._rules.doubt_s:
            final = transaction.state is TxState.FOREIGN and self._view.final_nonce > transaction.nonce
            if final or transaction.state is not TxState.FOREIGN:
                self._steps.append(JudgeForeign(transaction, final))

    def _look_for_gap(self) -> None:
        """A nonce that others had used is free again, by a deep reorganisation, and nobody sends it any more."""
        nonce = self._view.nonce
        watched = {each.nonce for each in self._book.transactions}
        waiting = [each.nonce for each in self._book.transactions if each.state in _UNMINED]
        if not waiting or nonce >= min(waiting) or nonce in watched or self._book.sender.stopped is not None:
            return
        key = -1 - nonce  # beside the doubts about used ones
        since = self._doubts[key] = self._earlier.get(key, self._now)
        fees = self._first_fees()
        if self._now - since >= self._rules.doubt_s and fees is not None:
            self._steps.append(Fill(nonce, fees))

    def _first_fees(self) -> Fees | None:
        return first_fees(
            base_fee_wei=self._view.base_fee_wei, tip_wei=self._view.tip_wei, cap_wei=self._rules.max_fee_wei
        )

    # ── signing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _consider_signing(self) -> None:
        sender = self._book.sender
        if sender.stopped is not None:
            self._worry(
                WorryCode.SENDER_STOPPED,
                f"nothing is signed with the key of {sender.address}: {sender.stopped}",
                "see to it that nobody else signs with this key, then run: swarm-root wallet resume",
                at_once=True,
            )
            return
        if self._view.nonce > sender.next_nonce:
            nonce = sender.next_nonce
            since = self._doubts[nonce] = self._earlier.get(nonce, self._now)
            if self._now - since >= self._rules.doubt_s:
                self._steps.append(Note(Stopped(reason=foreign_reason(nonce))))
        if self._doubts:
            return
        batches = list(self._choose())
        if not batches:
            return
        fees = self._first_fees()
        if fees is None:
            self._worry(
                WorryCode.CHAIN_DEAR,
                f"a unit of gas costs {self._view.base_fee_wei + self._view.tip_wei} wei, "
                f"more than --max-fee {self._rules.max_fee_wei}",
                "funding and paying wait for a cheaper hour; raise --max-fee to go on now",
            )
            return
        self._steps.extend(Sign(batch, fees) for batch in batches)

    def _choose(self) -> Iterator[tuple[Intent, ...]]:
        """The batches that may be signed now: full, or alone, or waited for long enough; that of the oldest first."""
        under_way = sum(each.state is not TxState.FINAL for each in self._book.transactions)
        if under_way >= self._rules.in_flight_most:
            return
        for batch, most in _batches(self._book.queued):
            waited_s = self._now - min(intent.created_at for intent in batch)
            if not under_way or len(batch) >= most or waited_s >= self._rules.linger_s:
                yield tuple(batch)


def _batches(queued: Sequence[Intent]) -> Iterator[tuple[list[Intent], int]]:
    """What may share a transaction, in the order of the oldest of each, and how many would fill it."""
    groups: dict[tuple[str, Wei, int], list[Intent]] = {}
    for intent in queued:
        reward_wei = intent.amount_wei if intent.kind is IntentKind.CREATE else 0
        most = max(1, BATCH_MOST[intent.kind.slot] >> intent.delays)
        batch = groups.setdefault((intent.kind.slot, reward_wei, most), [])
        if len(batch) < most:
            batch.append(intent)
    for (_slot, _reward_wei, most), batch in groups.items():
        yield batch, most


def foreign_reason(nonce: int) -> str:
    """Why a sender stops."""
    return f"its nonce {nonce} was used by a transaction that this ledger doesn't know: another program has the key"
