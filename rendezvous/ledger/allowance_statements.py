"""The writer's statements about allowances, budgets and charges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Double, bindparam

from rendezvous.ledger import money_tables as m
from rendezvous.ledger.engine import Compiled

__all__ = ["AllowanceStatements"]


class AllowanceStatements:
    """Compiled once for a dialect; parameters by position, in the order written here."""

    def __init__(self, compiled: Callable[..., Compiled], insert: Any) -> None:
        allowances, budgets, charges = m.allowances, m.budgets, m.charges

        def inserting(table: sa.Table) -> Any:
            return insert(table).values({column.name: bindparam(column.name) for column in table.columns})

        def names(table: sa.Table) -> tuple[str, ...]:
            return tuple(column.name for column in table.columns)

        self.allowance: Final = compiled(
            sa.select(allowances.c.granted_wei, allowances.c.spent_wei)
            .where(allowances.c.owner == bindparam("the_owner"))
            .with_for_update(),
            "the_owner",
        )
        putting = inserting(allowances)
        kept = {name: putting.excluded[name] for name in ("granted_wei", "spent_wei")}
        self.put_allowance: Final = compiled(
            putting.on_conflict_do_update(index_elements=["owner"], set_=kept), *names(allowances)
        )
        self.budget: Final = compiled(
            sa.select(budgets.c.owner, budgets.c.budget_wei, budgets.c.spent_wei)
            .where(budgets.c.job == bindparam("the_job"))
            .with_for_update(),
            "the_job",
        )
        self.insert_budget: Final = compiled(inserting(budgets), *names(budgets))
        self.update_budget: Final = compiled(
            sa.update(budgets).where(budgets.c.job == bindparam("the_job")).values(spent_wei=bindparam("new_spent")),
            "new_spent",
            "the_job",
        )
        self.insert_charge: Final = compiled(inserting(charges), *names(charges))
        this = (charges.c.task == bindparam("the_task"), charges.c.generation == bindparam("the_generation"))
        self.charge: Final = compiled(
            sa.select(charges.c.job, charges.c.amount_wei, budgets.c.owner, budgets.c.budget_wei, budgets.c.spent_wei)
            .join_from(charges, budgets, budgets.c.job == charges.c.job)
            .where(*this),
            "the_task",
            "the_generation",
        )
        self.return_charge: Final = compiled(
            sa.update(charges)
            .where(*this, charges.c.returned_at.is_(None))
            .values(returned_at=bindparam("new_time", type_=Double)),
            "new_time",
            "the_task",
            "the_generation",
        )
        self.take_charge: Final = compiled(
            sa.update(charges).where(*this, charges.c.returned_at.is_not(None)).values(returned_at=sa.null()),
            "the_task",
            "the_generation",
        )
