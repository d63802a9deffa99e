"""What is read of the ledger's money: the book that a sender works from, and the rows that an audit compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from rendezvous.ledger import money_tables as m
from rendezvous.ledger.money_ops import (
    Attempt,
    Book,
    Intent,
    IntentKind,
    IntentState,
    Sender,
    Transaction,
    TxState,
)
from swarm.model import Address

__all__ = ["QUEUED_MOST", "intents_of_sender", "read_book", "read_sender"]

#: How many queued intents a book shows: more than fit into the transactions that may be under way.
QUEUED_MOST: Final = 5_000

Select = Callable[[sa.Executable], Sequence[Any]]

_WATCHED: Final = sa.text("transactions.state IN ('signed', 'sent', 'mined', 'foreign', 'final')")


def read_sender(select: Select, address: Address) -> Sender | None:
    """A sender's row."""
    found = select(sa.select(m.senders).where(m.senders.c.address == address))
    return _sender(found[0]) if found else None


def _sender(row: Any) -> Sender:
    return Sender(
        address=row.address,
        chain_id=row.chain_id,
        contract=row.contract,
        epoch=row.epoch,
        next_nonce=row.next_nonce,
        anchor_number=row.anchor_number,
        anchor_hash=row.anchor_hash,
        since_number=row.since_number,
        since_balance_wei=int(row.since_balance_wei),
        stopped=row.stopped,
    )


def read_book(select: Select, address: Address, *, now: float) -> Book | None:
    """All that a sender has to do; None where there is no such sender.

    A settling intent is shown once its funding is final. What is read in several steps may be of several moments: the
    writes that follow are guarded.
    """
    sender = read_sender(select, address)
    if sender is None:
        return None
    intents, funding = m.intents, m.intents.alias("funding")
    funded = sa.exists(
        sa.select(sa.literal_column("1")).where(
            funding.c.slot == IntentKind.CREATE.slot,
            funding.c.key == intents.c.key,
            funding.c.state == IntentState.DONE.value,
        )
    )
    queued = select(
        sa.select(intents)
        .where(
            sa.text("intents.state = 'queued'"),
            intents.c.sender == address,
            sa.or_(intents.c.not_before.is_(None), intents.c.not_before <= now),
            sa.or_(intents.c.slot != IntentKind.COMPLETE.slot, funded),
        )
        .order_by(intents.c.n)
        .limit(QUEUED_MOST)
    )
    parked = select(sa.select(sa.func.count()).where(sa.text("intents.state = 'parked'"), intents.c.sender == address))
    return Book(
        sender=sender,
        transactions=_transactions(select, address),
        queued=tuple(intent_of(row) for row in queued),
        parked=int(parked[0][0]),
    )


def _transactions(select: Select, address: Address) -> tuple[Transaction, ...]:
    transactions, attempts, intents = m.transactions, m.attempts, m.intents
    # What is final is only looked at: its bytes, some ten kilobytes each, stay in the database.
    final = transactions.c.state == TxState.FINAL.value
    nothing = sa.literal(b"", type_=sa.LargeBinary)
    columns = [each for each in transactions.c if each.name != "data"]
    rows = select(
        sa.select(*columns, sa.case((final, nothing), else_=transactions.c.data).label("data"))
        .where(_WATCHED, transactions.c.sender == address)
        .order_by(transactions.c.nonce)
    )
    if not rows:
        return ()
    nonces = [row.nonce for row in rows]
    first, last = nonces[0], nonces[-1]
    made: dict[int, list[Attempt]] = {nonce: [] for nonce in nonces}
    columns = [each for each in attempts.c if each.name != "raw"]
    this = sa.and_(transactions.c.sender == attempts.c.sender, transactions.c.nonce == attempts.c.nonce)
    for row in select(
        sa.select(*columns, sa.case((final, nothing), else_=attempts.c.raw).label("raw"))
        .select_from(attempts.join(transactions, this))
        .where(attempts.c.sender == address, attempts.c.nonce.between(first, last))
        .order_by(attempts.c.nonce, attempts.c.number)
    ):
        if row.nonce in made:
            made[row.nonce].append(
                Attempt(
                    number=row.number,
                    hash=row.hash,
                    raw=bytes(row.raw),
                    max_fee_wei=int(row.max_fee_wei),
                    tip_wei=int(row.tip_wei),
                )
            )
    members: dict[int, list[Intent]] = {nonce: [] for nonce in nonces}
    unsettled = [row.nonce for row in rows if row.state != TxState.FINAL]
    if unsettled:
        for row in select(
            sa.select(intents)
            .where(intents.c.sender == address, intents.c.nonce.between(unsettled[0], unsettled[-1]))
            .order_by(intents.c.nonce, intents.c.n)
        ):
            if row.nonce in members:
                members[row.nonce].append(intent_of(row))
    return tuple(
        Transaction(
            nonce=row.nonce,
            state=TxState(row.state),
            data=bytes(row.data),
            value_wei=int(row.value_wei),
            draw_wei=int(row.draw_wei),
            gas=row.gas,
            signed_at=row.signed_at,
            signed_block=row.signed_block,
            sent_at=row.sent_at,
            mined_number=row.mined_number,
            mined_hash=row.mined_hash,
            mined_tx=row.mined_tx,
            attempts=tuple(made[row.nonce]),
            intents=tuple(members[row.nonce]),
        )
        for row in rows
    )


def intent_of(row: Any) -> Intent:
    """An intent as a value."""
    return Intent(
        n=row.n,
        kind=IntentKind(row.kind),
        key=row.key,
        sender=row.sender,
        amount_wei=int(row.amount_wei),
        state=IntentState(row.state),
        created_at=row.created_at,
        task=row.task,
        generation=row.generation,
        payee=row.payee,
        output=row.output,
        nonce=row.nonce,
        tries=row.tries,
        delays=row.delays,
        not_before=row.not_before,
        note=row.note,
    )


def intents_of_sender(select: Select, address: Address, *, after: int = 0, limit: int = QUEUED_MOST) -> list[Intent]:
    """All intents of a sender, oldest first, after one of them."""
    statement = (
        sa.select(m.intents)
        .where(m.intents.c.sender == address, m.intents.c.n > after)
        .order_by(m.intents.c.n)
        .limit(limit)
    )
    return [intent_of(row) for row in select(statement)]
