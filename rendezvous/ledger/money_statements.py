"""The writer's statements about money: intents, transactions, attempts, senders, and the flags that they set.

Every write of a transaction has the sender's epoch in its WHERE clause: a paused holder that wakes finds no row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Double, Integer, String, bindparam
from sqlalchemy.types import TypeEngine

from rendezvous.ledger import money_tables as m
from rendezvous.ledger import tables as t
from rendezvous.ledger.engine import Compiled
from rendezvous.ledger.json_rows import json_column
from rendezvous.ledger.money_ops import IntentKind, IntentState, TxState

__all__ = ["MoneyStatements"]

_NOW: Final = bindparam("now", type_=Double)
_ONE: Final = sa.literal_column("1", type_=Integer)


def _word(value: IntentState | TxState | IntentKind | str) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{value!s}'", type_=String)


class MoneyStatements:
    """Compiled once for a dialect; parameters by position, in the order written here."""

    def __init__(self, compiled: Callable[..., Compiled], insert: Any) -> None:
        self._compile: Final = compiled
        self._insert: Final = insert
        self._intents()
        self._flags()
        self._transactions()
        self._senders()

    def _inserting(self, table: sa.Table) -> Compiled:
        names = tuple(column.name for column in table.columns)
        statement = self._insert(table).values({name: bindparam(name) for name in names})
        return self._compile(statement.on_conflict_do_nothing(), *names)

    # ── intents ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _intents(self) -> None:
        intents, tasks, workers = m.intents, t.tasks, t.workers
        self.insert_intent = self._inserting(intents)
        funding = intents.alias("funding")
        # The settling intent of a generation: what it settles is the funding's, whom it pays is the task's.
        settle = sa.select(
            bindparam("new_n", type_=BigInteger),
            _word("settle"),
            funding.c.key,
            bindparam("new_kind", type_=String),
            funding.c.sender,
            funding.c.task,
            funding.c.generation,
            funding.c.amount_wei,
            sa.func.coalesce(workers.c.payout, workers.c.address),
            tasks.c.result,
            _word(IntentState.QUEUED),
            sa.literal_column("0", type_=Integer),
            sa.literal_column("0", type_=Integer),
            bindparam("new_not_before", type_=Double),
            _NOW,
        ).select_from(
            funding.join(tasks, tasks.c.id == funding.c.task).outerjoin(workers, workers.c.n == tasks.c.worker)
        )
        statement = self._insert(intents).from_select(
            [
                "n",
                "slot",
                "key",
                "kind",
                "sender",
                "task",
                "generation",
                "amount_wei",
                "payee",
                "output",
                "state",
                "tries",
                "delays",
                "not_before",
                "created_at",
            ],
            settle.where(
                funding.c.slot == _word(IntentKind.CREATE.slot),
                funding.c.key == bindparam("the_key"),
                funding.c.state.in_([_word(s) for s in (IntentState.QUEUED, IntentState.SIGNED, IntentState.DONE)]),
            ),
        )
        self.insert_settlement = self._compile(
            statement.on_conflict_do_nothing(), "new_n", "new_kind", "new_not_before", "now", "the_key"
        )
        refund = (
            intents.c.slot == _word(IntentKind.FAIL.slot),
            intents.c.key == bindparam("the_key"),
            intents.c.kind == _word(IntentKind.FAIL),
            intents.c.state == _word(IntentState.QUEUED),
        )
        self.open_refund = self._compile(sa.select(intents.c.n).where(*refund), "the_key")
        paid = (
            sa.select(sa.func.coalesce(workers.c.payout, workers.c.address), tasks.c.result)
            .select_from(tasks.join(workers, workers.c.n == tasks.c.worker))
            .where(tasks.c.id == intents.c.task)
        )
        payee, result = paid.selected_columns
        #: A refund that nobody has signed becomes a payment: the result came after all.
        self.pay_instead = self._compile(
            sa.update(intents)
            .where(*refund)
            .values(
                kind=_word(IntentKind.COMPLETE),
                payee=paid.with_only_columns(payee).scalar_subquery(),
                output=paid.with_only_columns(result).scalar_subquery(),
                not_before=sa.null(),
            ),
            "the_key",
        )
        #: A funding that was never signed is called off with its task: the chain needn't hear of either.
        self.void_funding = self._compile(
            sa.update(intents)
            .where(
                intents.c.slot == _word(IntentKind.CREATE.slot),
                intents.c.key == bindparam("the_key"),
                intents.c.state == _word(IntentState.QUEUED),
            )
            .values(state=_word(IntentState.VOID), done_at=_NOW),
            "now",
            "the_key",
        )
        funded = sa.exists(
            sa.select(_ONE).where(
                funding.c.slot == _word(IntentKind.CREATE.slot),
                funding.c.key == intents.c.key,
                funding.c.state == _word(IntentState.DONE),
            )
        )
        #: What may be signed of these: a settling intent only while its funding is final.
        self.signable = self._compile(
            sa.select(intents.c.n, intents.c.kind).where(
                intents.c.n.in_(_listed("ns", BigInteger())),
                intents.c.sender == bindparam("the_sender"),
                intents.c.state == _word(IntentState.QUEUED),
                sa.or_(intents.c.slot != _word(IntentKind.COMPLETE.slot), funded),
            ),
            "ns",
            "the_sender",
        )
        self.intents_of = self._compile(
            sa.select(
                intents.c.n, intents.c.kind, intents.c.state, intents.c.task, intents.c.generation, intents.c.payee
            )
            .where(intents.c.sender == bindparam("the_sender"), intents.c.nonce == bindparam("the_nonce"))
            .order_by(intents.c.n),
            "the_sender",
            "the_nonce",
        )
        self.sign_intent = self._compile(
            sa.update(intents)
            .where(
                intents.c.n == bindparam("the_n"),
                intents.c.kind == bindparam("the_kind"),
                intents.c.sender == bindparam("the_sender"),
                intents.c.state == _word(IntentState.QUEUED),
            )
            .values(state=_word(IntentState.SIGNED), nonce=bindparam("new_nonce"), not_before=sa.null()),
            "new_nonce",
            "the_n",
            "the_kind",
            "the_sender",
        )
        self.finish_intents = self._compile(
            sa.update(intents)
            .where(
                intents.c.sender == bindparam("the_sender"),
                intents.c.nonce == bindparam("the_nonce"),
                intents.c.state == _word(IntentState.SIGNED),
            )
            .values(state=_word(IntentState.DONE), done_at=_NOW, note=sa.null()),
            "now",
            "the_sender",
            "the_nonce",
        )
        self.unfinish_intents = self._compile(
            sa.update(intents)
            .where(
                intents.c.sender == bindparam("the_sender"),
                intents.c.nonce == bindparam("the_nonce"),
                intents.c.state == _word(IntentState.DONE),
            )
            .values(state=_word(IntentState.SIGNED), done_at=sa.null()),
            "the_sender",
            "the_nonce",
        )
        #: The verdict on one intent; it leaves its transaction, unless it is done by it.
        self.judge_intent = self._compile(
            sa.update(intents)
            .where(
                intents.c.n == bindparam("the_n"),
                intents.c.sender == bindparam("the_sender"),
                intents.c.state.in_([_word(IntentState.QUEUED), _word(IntentState.SIGNED)]),
            )
            .values(
                state=bindparam("new_state"),
                nonce=sa.null(),
                tries=intents.c.tries + bindparam("more_tries", type_=Integer),
                delays=intents.c.delays + bindparam("more_delays", type_=Integer),
                not_before=bindparam("new_not_before", type_=Double),
                note=bindparam("new_note"),
                done_at=bindparam("new_done_at", type_=Double),
            ),
            "new_state",
            "more_tries",
            "more_delays",
            "new_not_before",
            "new_note",
            "new_done_at",
            "the_n",
            "the_sender",
        )
        settling = intents.alias("settling")
        awaited = sa.exists(
            sa.select(_ONE).where(settling.c.slot == _word(IntentKind.COMPLETE.slot), settling.c.key == intents.c.key)
        )
        #: A funding that was given up goes on only where its task was completed all the same: another's has failed by
        #: it and was given back, so nobody would ever settle what it puts on the chain.
        self.retry_parked = self._compile(
            sa.update(intents)
            .where(
                intents.c.sender == bindparam("the_sender"),
                intents.c.state == _word(IntentState.PARKED),
                sa.or_(intents.c.kind != _word(IntentKind.CREATE), awaited),
            )
            .values(
                state=_word(IntentState.QUEUED),
                tries=sa.literal_column("0"),
                delays=sa.literal_column("0"),
                not_before=sa.null(),
            ),
            "the_sender",
        )
        self.intent_of = self._compile(
            sa.select(
                intents.c.kind,
                intents.c.state,
                intents.c.key,
                intents.c.task,
                intents.c.generation,
                intents.c.tries,
                intents.c.payee,
            ).where(intents.c.n == bindparam("the_n"), intents.c.sender == bindparam("the_sender")),
            "the_n",
            "the_sender",
        )
        #: A refund that waits for its funding to be final is called off together with it.
        self.void_refund = self._compile(
            sa.update(intents).where(*refund).values(state=_word(IntentState.VOID), done_at=_NOW), "now", "the_key"
        )
        self.unsettled = self._compile(
            sa.select(intents.c.task).where(
                intents.c.task.in_(_listed("texts", String())),
                intents.c.state.in_([_word(s) for s in (IntentState.QUEUED, IntentState.SIGNED, IntentState.PARKED)]),
            ),
            "texts",
        )

    # ── flags of tasks ────────────────────────────────────────────────────────────────────────────────────────────

    def _flags(self) -> None:
        tasks = t.tasks

        def flag(name: str) -> Compiled:
            return self._compile(
                sa.update(tasks)
                .where(
                    tasks.c.id == bindparam("the_task"),
                    tasks.c.funding_generation == bindparam("the_generation", type_=Integer),
                )
                .values({name: bindparam("new_time", type_=Double)}),
                "new_time",
                "the_task",
                "the_generation",
            )

        self.flags = {
            IntentKind.CREATE: flag("on_chain"),
            IntentKind.COMPLETE: flag("paid"),
            IntentKind.FAIL: flag("refunded"),
        }
        self.clear_flags = self._compile(
            sa.update(tasks)
            .where(tasks.c.id == bindparam("the_task"))
            .values(on_chain=sa.null(), paid=sa.null(), refunded=sa.null()),
            "the_task",
        )

    # ── transactions and attempts ─────────────────────────────────────────────────────────────────────────────────

    def _transactions(self) -> None:
        transactions = m.transactions
        self.insert_transaction = self._inserting(transactions)
        self.insert_attempt = self._inserting(m.attempts)
        this = (transactions.c.sender == bindparam("the_sender"), transactions.c.nonce == bindparam("the_nonce"))
        held = sa.exists(
            sa.select(_ONE).where(
                m.senders.c.address == bindparam("the_sender"), m.senders.c.epoch == bindparam("the_epoch")
            )
        )

        def moving(*sources: TxState, **values: Any) -> sa.Update:
            return (
                sa.update(transactions)
                .where(*this, held, transactions.c.state.in_([_word(source) for source in sources]))
                .values(values)
            )

        key = ("the_sender", "the_nonce", "the_epoch")
        unmined = (TxState.SIGNED, TxState.SENT, TxState.FOREIGN)
        self.mark_sent = self._compile(
            moving(TxState.SIGNED, TxState.SENT, state=_word(TxState.SENT), sent_at=_NOW), "now", *key
        )
        self.mark_signed_again = self._compile(
            moving(TxState.SIGNED, TxState.SENT, signed_block=bindparam("new_block", type_=BigInteger)),
            "new_block",
            *key,
        )
        #: One whose intents went elsewhere is empty: its nonce can be taken for nothing.
        self.empty = self._compile(
            moving(
                TxState.REVERTED,
                TxState.ABANDONED,
                state=_word(TxState.SIGNED),
                data=bindparam("new_data", type_=sa.LargeBinary),
                value_wei=bindparam("new_wei", type_=String),
                draw_wei=bindparam("new_wei", type_=String),
                gas=bindparam("new_gas", type_=BigInteger),
                signed_at=_NOW,
                signed_block=bindparam("new_block", type_=BigInteger),
                mined_number=sa.null(),
                mined_hash=sa.null(),
                mined_tx=sa.null(),
                final_at=sa.null(),
            ),
            "new_data",
            "new_wei",
            "new_gas",
            "now",
            "new_block",
            *key,
        )
        tries = m.attempts
        self.last_attempt = self._compile(
            sa.select(sa.func.max(tries.c.number)).where(
                tries.c.sender == bindparam("the_sender"), tries.c.nonce == bindparam("the_nonce")
            ),
            "the_sender",
            "the_nonce",
        )
        self.mark_mined = self._compile(
            moving(
                *unmined,
                TxState.MINED,
                state=_word(TxState.MINED),
                mined_number=bindparam("new_number", type_=BigInteger),
                mined_hash=bindparam("new_hash"),
                mined_tx=bindparam("new_tx"),
            ),
            "new_number",
            "new_hash",
            "new_tx",
            *key,
        )
        self.mark_reorged = self._compile(
            moving(
                TxState.MINED,
                TxState.FINAL,
                state=_word(TxState.SENT),
                mined_number=sa.null(),
                mined_hash=sa.null(),
                mined_tx=sa.null(),
                final_at=sa.null(),
            ),
            *key,
        )
        self.mark_final = self._compile(moving(TxState.MINED, state=_word(TxState.FINAL), final_at=_NOW), "now", *key)
        self.mark_reverted = self._compile(
            moving(TxState.MINED, state=_word(TxState.REVERTED), final_at=_NOW), "now", *key
        )
        self.mark_foreign = self._compile(moving(*unmined, state=_word(TxState.FOREIGN)), *key)
        self.mark_abandoned = self._compile(
            moving(TxState.FOREIGN, state=_word(TxState.ABANDONED), final_at=_NOW), "now", *key
        )
        self.mark_buried = self._compile(moving(TxState.FINAL, state=_word(TxState.BURIED)), *key)

    # ── senders ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _senders(self) -> None:
        senders = m.senders
        this = senders.c.address == bindparam("the_sender")
        mine = senders.c.epoch == bindparam("the_epoch")
        self.insert_sender = self._inserting(senders)
        self.sender = self._compile(sa.select(senders).where(this).with_for_update(), "the_sender")
        self.claim_sender = self._compile(
            sa.update(senders)
            .where(this)
            .values(
                epoch=senders.c.epoch + _ONE,
                holder=bindparam("new_holder"),
                held_until=bindparam("new_until", type_=Double),
            ),
            "new_holder",
            "new_until",
            "the_sender",
        )
        self.hold_sender = self._compile(
            sa.update(senders).where(this, mine).values(held_until=bindparam("new_until", type_=Double)),
            "new_until",
            "the_sender",
            "the_epoch",
        )
        #: The nonce lock: taken by whoever holds the epoch, once, while nothing stopped it.
        self.take_nonce = self._compile(
            sa.update(senders)
            .where(this, mine, senders.c.next_nonce == bindparam("the_nonce"), senders.c.stopped.is_(None))
            .values(next_nonce=senders.c.next_nonce + _ONE),
            "the_sender",
            "the_epoch",
            "the_nonce",
        )
        self.move_anchor = self._compile(
            sa.update(senders)
            .where(this, mine, senders.c.anchor_number < bindparam("new_number", type_=BigInteger))
            .values(anchor_number=bindparam("new_number", type_=BigInteger), anchor_hash=bindparam("new_hash")),
            "new_number",
            "new_hash",
            "the_sender",
            "the_epoch",
        )
        self.stop_sender = self._compile(
            sa.update(senders)
            .where(this, mine, senders.c.stopped.is_(None))
            .values(stopped=bindparam("new_reason"), stopped_at=_NOW),
            "new_reason",
            "now",
            "the_sender",
            "the_epoch",
        )
        self.resume_sender = self._compile(
            sa.update(senders)
            .where(this, senders.c.stopped.is_not(None))
            .values(stopped=sa.null(), stopped_at=sa.null(), next_nonce=bindparam("new_nonce", type_=BigInteger)),
            "new_nonce",
            "the_sender",
        )


def _listed(parameter: str, kind: TypeEngine[Any]) -> sa.Select[Any]:
    """The elements of a JSON array, to be looked for."""
    rows, element = json_column(parameter, kind)
    return sa.select(element).select_from(rows)
