"""The one that signs and sends: it does what the outbox decides, one round after another. The only user of the key.

A round reads the book and the chain, decides, and does the steps in order; what it does is written to the ledger before
(a signature) or after (a finding) it is done, always with the sender's epoch. A round may be cut anywhere: the next
one, be it of another process, goes on from the book.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import attrs
import structlog

from rendezvous.chain import escrow
from rendezvous.chain.compose import CHANNEL_KINDS, Composed, Purse, compose, is_met
from rendezvous.chain.fees import Fees
from rendezvous.chain.finality import Finality
from rendezvous.chain.judge import Judge, is_empty_wallet, true_already
from rendezvous.chain.outbox import (
    Bump,
    ChainView,
    Fill,
    JudgeForeign,
    JudgeReverted,
    Note,
    Receipt,
    Rules,
    Send,
    Sign,
    Step,
    Worry,
    WorryCode,
    decide,
    foreign_reason,
)
from rendezvous.chain.rpc import Call, Rpc
from rendezvous.ledger.money_ops import (
    Attempt,
    Book,
    Deferred,
    Entry,
    Filled,
    Finalized,
    Foreign,
    Intent,
    Item,
    ItemOutcome,
    Record,
    Replaced,
    SenderHeld,
    Sent,
    Signed,
    Transaction,
    TxState,
    Verdict,
)
from swarm.errors import RpcSaid, RpcUnreachable, SwarmError
from swarm.model import Address, Wei
from swarm.vouchers import Channel

__all__ = ["Books", "Round", "SenderLost", "SignedTransaction", "Signer", "TransactionSender"]

log = structlog.get_logger()

#: EIP-7825: no transaction may have more gas.
GAS_MOST: Final = 16_777_216
#: Gas limit = estimate x 1.2 + 80,000 (`escrow.md` §7).
GAS_MARGIN_PERCENT: Final = 120
GAS_RESERVE: Final = 80_000
#: What a plain transfer takes.
TRANSFER_GAS: Final = 21_000
#: A sender that has nothing to write says so often that it lives, seconds: a third of a claim.
HEARTBEAT_S: Final = 20.0
#: Node's words for "I have it already, or had it": it is in the pool or mined, and the hash will tell.
_TAKEN: Final = ("known transaction", "already known", "nonce too low", "already imported", "underpriced")


@attrs.frozen(kw_only=True)
class SignedTransaction:
    """What is sent, and the hash it will be known by."""

    raw: bytes
    hash: str


class Signer(Protocol):
    """Who has the key; it never leaves it."""

    @property
    def address(self) -> Address:
        """Whose signature it is."""

    def sign_transaction(self, transaction: Mapping[str, Any]) -> SignedTransaction:
        """Sign an EIP-1559 transaction: ``chainId nonce to data value gas maxFeePerGas maxPriorityFeePerGas``."""


class Books(Protocol):
    """What the sender needs of the ledger."""

    async def call(self, op: Record) -> tuple[bool, ...] | SenderHeld:
        """Write."""

    async def book(self, sender: Address) -> Book | None:
        """Read."""

    def now(self) -> float:
        """Ledger seconds."""


class SenderLost(SwarmError):
    """Another process signs with this key now; ``held`` says who."""

    def __init__(self, held: SenderHeld) -> None:
        super().__init__(f"another process signs with this key now: {held.holder}")
        self.held = held


@attrs.frozen(kw_only=True)
class Round:
    """What a round did and saw.

    Args:
        moved: whether anything was done, so that another round may find more.
        pending: whether anything is under way.
        worries: what keeps money from moving.
    """

    moved: bool
    pending: bool
    worries: tuple[Worry, ...]


class TransactionSender:
    """One key on one chain and contract.

    Args:
        books: the ledger.
        rpc: the node.
        signer: the key.
        contract: the escrow's address.
        chain_id: what signatures are for.
        epoch: of the claim on the sender; every write has it.
        rules: the operator's.
        finality: what is final on this chain; by the rules where nobody else looks at it.
    """

    def __init__(
        self,
        books: Books,
        rpc: Rpc,
        signer: Signer,
        *,
        contract: Address,
        chain_id: int,
        epoch: int,
        rules: Rules,
        finality: Finality | None = None,
    ) -> None:
        self._books: Final = books
        self._rpc: Final = rpc
        self._signer: Final = signer
        self._contract: Final = contract
        self._chain_id: Final = chain_id
        self._epoch: Final = epoch
        self._rules: Final = rules
        self._judge: Final = Judge(rpc, sender=signer.address, contract=contract)
        self._finality: Final = finality or Finality(rules)
        self._doubts: Mapping[int, float] = {}
        self._heard_at = books.now()
        self._worries: list[Worry] = []

    async def round(self) -> Round:
        """Decide and do once.

        Raises:
            RpcUnreachable: the node didn't answer; what was done stays done.
            SenderLost: another process took the key over.
        """
        self._worries = []
        book = await self._books.book(self._signer.address)
        if book is None or book.sender.epoch != self._epoch:
            raise SenderLost(SenderHeld(holder=None, for_s=0.0))
        view = await self._look(book)
        plan = decide(book, view, self._rules, doubts=self._doubts, now=self._books.now())
        self._doubts = plan.doubts
        if self._books.now() - self._heard_at >= HEARTBEAT_S:
            await self._write()
        moved = signed = False
        for step in plan.steps:
            if isinstance(step, Sign):
                signed = signed or await self._do(step, book, view)
            else:
                moved = await self._do(step, book, view) or moved
        under_way = any(each.state is not TxState.FINAL for each in book.transactions)
        return Round(
            moved=moved or signed, pending=under_way or bool(book.queued), worries=(*plan.worries, *self._worries)
        )

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _look(self, book: Book) -> ChainView:
        address = self._signer.address
        hashes = [attempt.hash for each in book.transactions for attempt in each.attempts]
        pooled = [
            attempt.hash for each in book.transactions if each.state is not TxState.FINAL for attempt in each.attempts
        ]
        calls: list[Call] = [
            ("eth_getBlockByNumber", ["latest", False]),
            ("eth_maxPriorityFeePerGas", []),
            ("eth_getTransactionCount", [address, "latest"]),
            ("eth_getBalance", [address, "latest"]),
            ("eth_call", [self._reading(escrow.balance_call(address)), "latest"]),
            ("eth_getBlockByNumber", [hex(book.sender.anchor_number), False]),
            *self._finality.calls,
        ]
        first = len(calls)
        calls += [("eth_getTransactionReceipt", [each]) for each in hashes]
        calls += [("eth_getTransactionByHash", [each]) for each in pooled]
        answers = await self._rpc.batch(calls)
        latest, tip, nonce, wallet, balance, anchor, *finalized = answers[:first]
        for answer in (latest, nonce, wallet):
            if isinstance(answer, RpcSaid):
                raise answer
        found = zip(hashes, answers[first : first + len(hashes)], strict=True)
        known = zip(pooled, answers[first + len(hashes) :], strict=True)
        receipts = {each: _receipt(answer) for each, answer in found if isinstance(answer, dict)}
        head = int(latest["number"], 16)
        final = self._finality.number(head, finalized)
        heights = {each.mined_number for each in book.transactions if each.mined_number is not None}
        hashes_at, final_nonce = await self._look_back(
            heights | {each.number for each in receipts.values()}, final=max(0, final)
        )
        return ChainView(
            head=head,
            final=final,
            timestamp=int(latest["timestamp"], 16),
            base_fee_wei=int(latest.get("baseFeePerGas") or "0x0", 16),
            tip_wei=0 if isinstance(tip, RpcSaid) else int(tip, 16),
            nonce=int(nonce, 16),
            final_nonce=final_nonce,
            wallet_wei=int(wallet, 16),
            escrow_wei=0 if isinstance(balance, RpcSaid) else escrow.decode_balance(balance),
            receipts=receipts,
            known=frozenset(each for each, answer in known if isinstance(answer, dict)),
            hashes=hashes_at,
            anchor_hash=anchor["hash"] if isinstance(anchor, dict) else None,
            has_contract=balance != "0x",
        )

    async def _look_back(self, heights: set[int], *, final: int) -> tuple[dict[int, str | None], int]:
        """The canonical hashes at these heights, and the sender's nonce on the newest final block."""
        ordered = sorted(heights)
        calls: list[Call] = [("eth_getBlockByNumber", [hex(height), False]) for height in ordered]
        *blocks, nonce = await self._rpc.batch(
            [*calls, ("eth_getTransactionCount", [self._signer.address, hex(final)])]
        )
        found = {
            height: block["hash"] if isinstance(block, dict) else None
            for height, block in zip(ordered, blocks, strict=True)
            if not isinstance(block, RpcSaid)
        }
        return found, 0 if isinstance(nonce, RpcSaid) else int(nonce, 16)

    def _reading(self, data: bytes) -> dict[str, str]:
        return {"from": self._signer.address, "to": self._contract, "data": _hex(data)}

    # ── doing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _do(self, step: Step, book: Book, view: ChainView) -> bool:
        match step:
            case Note(entry):
                return await self._write(entry)
            case Send(nonce, attempt):
                sent = await self._send(nonce, attempt)
                # What is only sent again moves nothing: the next look is for the next sweep, not for now.
                return sent and any(each.nonce == nonce and each.state is TxState.SIGNED for each in book.transactions)
            case Bump(transaction, fees):
                return await self._bump(transaction, fees, view)
            case Fill(nonce, fees):
                return await self._fill(nonce, fees, view)
            case JudgeReverted(transaction):
                return await self._judge_reverted(transaction, view)
            case JudgeForeign(transaction, final):
                return await self._judge_foreign(transaction, view, final=final)
            case Sign(intents, fees):
                return await self._sign(intents, fees, book, view)

    async def _write(self, *entries: Entry) -> bool:
        """Write with the epoch; without entries it only says that this sender is alive."""
        self._heard_at = self._books.now()
        answer = await self._books.call(Record(address=self._signer.address, epoch=self._epoch, entries=entries))
        if isinstance(answer, SenderHeld):
            raise SenderLost(answer)
        for entry, written in zip(entries, answer, strict=True):
            if written:
                _tell(entry)
        return any(answer)

    async def _send(self, nonce: int, attempt: Attempt) -> bool:
        """Give stored bytes to the node. Whatever it says, only a receipt is a verdict."""
        try:
            await self._rpc.call("eth_sendRawTransaction", _hex(attempt.raw))
        except RpcUnreachable:
            await self._write(Sent(nonce=nonce))  # maybe it was taken
            raise
        except RpcSaid as fault:
            words = fault.message.lower()
            if is_empty_wallet(words):
                self._wallet_empty(f"a signed transaction (nonce {nonce}) can't be paid for")
                return False
            if not any(each in words for each in _TAKEN):
                # A node that mines at once answers a reverted transaction with its error: the receipt will say.
                self._worry(
                    WorryCode.CHAIN_REFUSES,
                    f"the node answered to a transaction (nonce {nonce}): {fault.message}",
                    "it is sent again and again; if this lasts, look at the node, or use another --rpc",
                )
        return await self._write(Sent(nonce=nonce))

    async def _bump(self, transaction: Transaction, fees: Fees, view: ChainView) -> bool:
        signed = self._signed(
            transaction.nonce, transaction.data, value_wei=transaction.value_wei, gas=transaction.gas, fees=fees
        )
        attempt = _attempt(transaction.attempts[-1].number + 1, signed, fees)
        if not await self._write(Replaced(nonce=transaction.nonce, block=view.head, attempt=attempt)):
            return False
        return await self._send(transaction.nonce, attempt)

    async def _fill(self, nonce: int, fees: Fees, view: ChainView) -> bool:
        signed = self._signed(nonce, b"", value_wei=0, gas=TRANSFER_GAS, fees=fees)
        attempt = _attempt(0, signed, fees)
        written = await self._write(Filled(nonce=nonce, gas=TRANSFER_GAS, block=view.head, attempt=attempt))
        return await self._send(nonce, attempt) if written else False

    def _signed(self, nonce: int, data: bytes, *, value_wei: Wei, gas: int, fees: Fees) -> SignedTransaction:
        return self._signer.sign_transaction(
            {
                "type": 2,
                "chainId": self._chain_id,
                "nonce": nonce,
                "to": self._contract if data else self._signer.address,  # without data it only takes its nonce
                "data": _hex(data),
                "value": value_wei,
                "gas": gas,
                "maxFeePerGas": fees.max_fee_wei,
                "maxPriorityFeePerGas": fees.tip_wei,
            }
        )

    # ── signing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _sign(self, intents: tuple[Intent, ...], fees: Fees, book: Book, view: ChainView) -> bool:
        unseen = [each for each in book.transactions if each.state in (TxState.SIGNED, TxState.SENT)]
        unseen = [each for each in unseen if not any(attempt.hash in view.receipts for attempt in each.attempts)]
        purse = Purse(
            wallet_wei=view.wallet_wei - sum(each.value_wei + each.gas * _dearest(each) for each in unseen),
            escrow_wei=view.escrow_wei - sum(each.draw_wei for each in unseen),
        )
        channels = await self._judge.channels(intents, view)
        met = tuple(each for each in intents if each.kind in CHANNEL_KINDS and _is_met(each, channels))
        if met:
            await self._write(Deferred(outcomes=tuple(true_already(intent) for intent in met)))
            intents = tuple(each for each in intents if each not in met)
            if not intents:
                return True
        call = compose(intents, purse, sender=self._signer.address, timestamp=view.timestamp, channels=channels)
        if call is None:
            return await self._write(Deferred(outcomes=tuple(true_already(intent) for intent in intents)))
        if not call.intents:
            self._wallet_empty(f"{len(intents)} intents can't be paid for")
            return False
        gas = await self._estimate(call)
        if isinstance(gas, RpcSaid):
            if is_empty_wallet(gas.message):
                self._wallet_empty(f"{len(intents)} intents can't be paid for")
                return False
            outcomes = await self._judge.cure(call.intents, view)
            bad = tuple(each for each in outcomes if each.verdict is not Verdict.AGAIN)
            if bad:
                return await self._write(Deferred(outcomes=bad))
            self._worry(
                WorryCode.BATCH_FAILS,
                f"a batch of {len(call.intents)} can't be signed: {gas.message}",
                "it is tried again at each sweep; nothing is lost",
            )
            return False
        if purse.wallet_wei < call.value_wei + gas * fees.max_fee_wei:
            self._wallet_empty(f"a batch of {len(call.intents)} can't be paid for")
            return False
        nonce = book.sender.next_nonce
        signed = self._signed(nonce, call.data, value_wei=call.value_wei, gas=gas, fees=fees)
        attempt = _attempt(0, signed, fees)
        written = await self._write(
            Signed(
                nonce=nonce,
                data=call.data,
                value_wei=call.value_wei,
                draw_wei=call.draw_wei,
                gas=gas,
                block=view.head,
                attempt=attempt,
                items=tuple(Item(n=intent.n, kind=intent.kind) for intent in call.intents),
            )
        )
        return await self._send(nonce, attempt) if written else False

    async def _estimate(self, call: Composed) -> int | RpcSaid:
        request = {**self._reading(call.data), "value": hex(call.value_wei)}
        try:
            estimate = int(await self._rpc.call("eth_estimateGas", request), 16)
        except RpcSaid as fault:
            return fault
        return min(GAS_MOST, estimate * GAS_MARGIN_PERCENT // 100 + GAS_RESERVE)

    # ── judging ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _judge_reverted(self, transaction: Transaction, view: ChainView) -> bool:
        outcomes = await self._judge.cure(transaction.intents, view)
        return await self._write(Finalized(nonce=transaction.nonce, ok=False, outcomes=tuple(outcomes)))

    async def _judge_foreign(self, transaction: Transaction, view: ChainView, *, final: bool) -> bool:
        reason = foreign_reason(transaction.nonce)
        if not final:
            return await self._write(Foreign(nonce=transaction.nonce, reason=reason))
        if await self._judge.took_effect(transaction, view):
            return False  # an event has our hash: the receipt is on its way
        outcomes = await self._judge.cure(transaction.intents, view)
        again = tuple(
            each if each.verdict is Verdict.DONE else ItemOutcome(n=each.n, verdict=Verdict.AGAIN) for each in outcomes
        )
        return await self._write(Foreign(nonce=transaction.nonce, reason=reason, outcomes=again))

    # ── telling ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _worry(self, code: WorryCode, message: str, hint: str) -> None:
        self._worries.append(Worry(code=code, message=message, hint=hint))

    def _wallet_empty(self, what: str) -> None:
        self._worry(
            WorryCode.WALLET_EMPTY,
            f"the wallet {self._signer.address} is too empty: {what}",
            f"send ether to {self._signer.address}; it goes on by itself then",
        )


def _is_met(intent: Intent, channels: Mapping[Address, Channel]) -> bool:
    return is_met(intent, channels[intent.payee or escrow.NO_ADDRESS])


def _hex(data: bytes) -> str:
    return "0x" + data.hex()


def _receipt(answer: Mapping[str, Any]) -> Receipt:
    return Receipt(
        number=int(answer["blockNumber"], 16), block_hash=answer["blockHash"], ok=int(answer["status"], 16) == 1
    )


def _attempt(number: int, signed: SignedTransaction, fees: Fees) -> Attempt:
    return Attempt(number=number, hash=signed.hash, raw=signed.raw, max_fee_wei=fees.max_fee_wei, tip_wei=fees.tip_wei)


def _dearest(transaction: Transaction) -> Wei:
    return max(attempt.max_fee_wei for attempt in transaction.attempts)


def _tell(entry: Entry) -> None:
    """Log what was written, and each intent that it didn't make true, with the reason."""
    log.info(f"chain_{type(entry).__name__.lower()}", **_facts(entry))
    for outcome in getattr(entry, "outcomes", None) or ():
        if outcome.note is not None:
            log.warning("intent_failed", intent=outcome.n, verdict=outcome.verdict.value, reason=outcome.note)


def _facts(entry: Entry) -> dict[str, Any]:
    """What the log says of an entry."""
    facts: dict[str, Any] = {}
    for name in ("nonce", "number", "ok", "reason", "value_wei"):
        value = getattr(entry, name, None)
        if value is not None:
            facts[name] = value
    if isinstance(entry, Signed):
        facts |= {"items": len(entry.items), "hash": entry.attempt.hash}
    elif isinstance(entry, Replaced):
        facts |= {"hash": entry.attempt.hash, "max_fee_wei": entry.attempt.max_fee_wei}
    return facts
