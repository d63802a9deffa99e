"""Bugs of the outbox that are planted into a simulated life, to show that the simulation finds them."""

from __future__ import annotations

import copy
from enum import StrEnum

from rendezvous.chain.fees import Fees
from rendezvous.chain.outbox import ChainView, Send, Step
from rendezvous.chain.sender import TransactionSender, _attempt
from rendezvous.ledger.engine import Compiled
from rendezvous.ledger.money_ops import Book, Signed, TxState
from rendezvous.ledger.transitions import LedgerCore


class Bug(StrEnum):
    """What is wrong."""

    #: The sender's epoch doesn't stand in the WHERE of what signs: a paused holder that wakes signs.
    STALE_SIGN = "stale_sign"
    #: What is sent again takes a new nonce, instead of being the bytes that were sent before.
    RESEND_NEW_NONCE = "resend_new_nonce"


def plant(bug: Bug | None, core: LedgerCore) -> type[TransactionSender]:
    """Plant a bug into a ledger; the sender that goes with it."""
    if bug is Bug.STALE_SIGN:
        statements = core._statements = copy.copy(core._statements)  # all ledgers share the sound ones
        money = statements.money = copy.copy(statements.money)
        money.hold_sender = _without_epoch(money.hold_sender)
        money.take_nonce = _without_epoch(money.take_nonce)
    return _ResendsAnew if bug is Bug.RESEND_NEW_NONCE else TransactionSender


def _without_epoch(statement: Compiled) -> Compiled:
    condition = "senders.epoch = ?"
    assert condition in statement.sql
    changed = copy.copy(statement)
    changed.sql = statement.sql.replace(condition, "? IS NOT NULL")  # type: ignore[misc]
    return changed


class _ResendsAnew(TransactionSender):
    async def _do(self, step: Step, book: Book, view: ChainView) -> bool:
        if not isinstance(step, Send):
            return await super()._do(step, book, view)
        (old,) = (each for each in book.transactions if each.nonce == step.nonce)
        if old.state is TxState.SIGNED:  # it is sent for the first time
            return await super()._do(step, book, view)
        nonce, last = book.sender.next_nonce, old.attempts[-1]
        fees = Fees(max_fee_wei=last.max_fee_wei, tip_wei=last.tip_wei)
        signed = self._signed(nonce, old.data, value_wei=old.value_wei, gas=old.gas, fees=fees)
        attempt = _attempt(0, signed, fees)
        entry = Signed(
            nonce=nonce,
            data=old.data,
            value_wei=old.value_wei,
            draw_wei=old.draw_wei,
            gas=old.gas,
            block=view.head,
            attempt=attempt,
            items=(),
        )
        return await self._send(nonce, attempt) if await self._write(entry) else False
