"""What an audit reads of the ledger's money, a bounded piece at a time, each by an index: never a table as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import sqlalchemy as sa

from rendezvous.ledger import money_tables as m
from rendezvous.ledger.money_ops import Intent, IntentState, TxState
from rendezvous.ledger.money_queries import Select, intent_of
from swarm.model import Address

__all__ = [
    "NONCES_MOST",
    "Walked",
    "intents_of_nonces",
    "last_intent",
    "nonces_of",
    "silent_intents",
    "walk_transactions",
]

#: Transactions whose intents are read at once: each has 500 at most.
NONCES_MOST: Final = 10
#: Transactions of one page, and hashes of one question.
PAGE_MOST: Final = 500


@attrs.frozen
class Walked:
    """A transaction as a walk sees it: where it is, and whether all that it carries is held to be true."""

    nonce: int
    final: bool
    over: bool
    mined_number: int | None


def walk_transactions(select: Select, address: Address, *, after: int) -> list[Walked]:
    """A page of a sender's transactions, by nonce, which is the order that they are mined in."""
    transactions = m.transactions
    rows = select(
        sa.select(transactions.c.nonce, transactions.c.state, transactions.c.mined_number)
        .where(transactions.c.sender == address, transactions.c.nonce > after)
        .order_by(transactions.c.nonce)
        .limit(PAGE_MOST)
    )
    final = (TxState.FINAL, TxState.BURIED)
    over = (*final, TxState.REVERTED, TxState.ABANDONED)
    return [Walked(row.nonce, row.state in final, row.state in over, row.mined_number) for row in rows]


def nonces_of(select: Select, address: Address, hashes: Sequence[str]) -> dict[str, int]:
    """The nonces of those of these transactions that the ledger stored before they were sent, by hash."""
    attempts, found = m.attempts, {}
    for start in range(0, len(hashes), PAGE_MOST):
        for row in select(
            sa.select(attempts.c.hash, attempts.c.nonce).where(
                attempts.c.hash.in_(list(hashes[start : start + PAGE_MOST])), attempts.c.sender == address
            )
        ):
            found[row.hash] = row.nonce
    return found


def intents_of_nonces(select: Select, address: Address, nonces: Sequence[int]) -> list[Intent]:
    """What these transactions carry; of ``NONCES_MOST`` at most."""
    intents = m.intents
    wanted = sa.select(intents).where(
        intents.c.sender == address, intents.c.nonce.in_(list(nonces[:NONCES_MOST])), sa.text("nonce IS NOT NULL")
    )
    return [intent_of(row) for row in select(wanted)]


def silent_intents(select: Select, address: Address, *, after: int, up_to: int) -> list[Intent]:
    """Intents in this range of numbers that were found true already: no transaction of the ledger's made them so."""
    intents = m.intents
    rows = select(
        sa.select(intents).where(
            intents.c.n > after,
            intents.c.n <= up_to,
            intents.c.sender == address,
            intents.c.state == IntentState.DONE.value,
            intents.c.nonce.is_(None),
            intents.c.task.is_not(None),
        )
    )
    return [intent_of(row) for row in rows]


def last_intent(select: Select) -> int:
    """The number of the newest intent; 0 where there is none."""
    return int(select(sa.select(sa.func.max(m.intents.c.n)))[0][0] or 0)
