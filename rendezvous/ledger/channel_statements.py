"""The writer's statements about channels and vouchers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Double, Integer, String, bindparam

from rendezvous.ledger import money_tables as m
from rendezvous.ledger import tables as t
from rendezvous.ledger.engine import Compiled
from rendezvous.ledger.money_ops import IntentKind
from swarm.model import TERMINAL

__all__ = ["ChannelStatements"]

_ONE: Final = sa.literal_column("1", type_=Integer)


class ChannelStatements:
    """Compiled once for a dialect; parameters by position, in the order written here."""

    def __init__(self, compiled: Callable[..., Compiled], insert: Any) -> None:
        self._compile: Final = compiled
        self._insert: Final = insert
        self._channels()
        self._vouchers()
        self._around()

    def _channels(self) -> None:
        channels = m.channels
        this = (channels.c.payer == bindparam("the_payer"), channels.c.payee == bindparam("the_payee"))
        names = tuple(column.name for column in channels.columns)
        self.channel = self._compile(sa.select(channels).where(*this).with_for_update(), "the_payer", "the_payee")
        putting = self._insert(channels).values({name: bindparam(name) for name in names})
        #: It is looked at again: a funding of it is done.
        self.unsee = self._compile(
            sa.update(channels).where(*this).values(seen_number=sa.null()), "the_payer", "the_payee"
        )
        self.put_channel = self._compile(
            putting.on_conflict_do_update(
                index_elements=["payer", "payee"], set_={name: putting.excluded[name] for name in names[2:]}
            ),
            *names,
        )

    def _vouchers(self) -> None:
        vouchers, intents, tasks = m.vouchers, m.intents, t.tasks
        names = tuple(column.name for column in vouchers.columns)
        funded = sa.exists(
            sa.select(_ONE).where(
                intents.c.slot == sa.literal_column(f"'{IntentKind.CREATE.slot}'", type_=String),
                intents.c.key == bindparam("the_key"),
            )
        )
        #: A task is settled by one path: none that was ever to be funded by itself gets a voucher.
        self.insert_voucher = self._compile(
            self._insert(vouchers)
            .from_select(
                names, sa.select(*(bindparam(f"new_{c.name}", type_=c.type) for c in vouchers.columns)).where(~funded)
            )
            .on_conflict_do_nothing(),
            *(f"new_{name}" for name in names),
            "the_key",
        )
        of_channel = (vouchers.c.payer == bindparam("the_payer"), vouchers.c.payee == bindparam("the_payee"))
        #: The last voucher that an amount pays for.
        self.last_within = self._compile(
            sa.select(sa.func.max(vouchers.c.n)).where(
                *of_channel, vouchers.c.cumulative_wei <= bindparam("the_amount", type_=String)
            ),
            "the_payer",
            "the_payee",
            "the_amount",
        )

        def flag(name: str) -> Compiled:
            chosen = (
                sa.select(_ONE)
                .where(vouchers.c.task == tasks.c.id, vouchers.c.generation == tasks.c.funding_generation)
                .where(*of_channel, vouchers.c.n > bindparam("after", type_=BigInteger))
                .where(vouchers.c.n <= bindparam("up_to", type_=BigInteger))
            )
            named = sa.select(vouchers.c.task).where(
                *of_channel,
                vouchers.c.n > bindparam("after", type_=BigInteger),
                vouchers.c.n <= bindparam("up_to", type_=BigInteger),
            )
            return self._compile(
                sa.update(tasks)
                .where(tasks.c.id.in_(named), sa.exists(chosen))
                .values({name: bindparam("new_time", type_=Double)}),
                "new_time",
                "the_payer",
                "the_payee",
                "after",
                "up_to",
            )

        #: Flags of the tasks between two of a channel's vouchers.
        self.flag_covered = flag("on_chain")
        self.flag_paid = flag("paid")

    def _around(self) -> None:
        workers, intents, counts = t.workers, m.intents, t.job_counts
        self.payee_of = self._compile(
            sa.select(sa.func.coalesce(workers.c.payout, workers.c.address)).where(workers.c.n == bindparam("the_n")),
            "the_n",
        )
        slot = bindparam("the_slot", type_=String)
        self.asked = self._compile(
            sa.select(intents.c.n, intents.c.state).where(
                intents.c.slot == slot, intents.c.key == bindparam("the_key")
            ),
            "the_slot",
            "the_key",
        )
        self.raise_amount = self._compile(
            sa.update(intents)
            .where(intents.c.n == bindparam("the_n"), intents.c.state == sa.literal_column("'queued'", type_=String))
            .values(amount_wei=bindparam("new_amount")),
            "new_amount",
            "the_n",
        )
        ended = [sa.literal_column(f"'{status.value}'", type_=String) for status in sorted(TERMINAL)]
        self.live_tasks = self._compile(
            sa.select(sa.func.coalesce(sa.func.sum(counts.c.tasks), sa.literal_column("0"))).where(
                counts.c.job == bindparam("the_job"), counts.c.status.not_in(ended)
            ),
            "the_job",
        )
