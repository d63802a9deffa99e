"""Who may spend how much: requesters' allowances, jobs' budgets, and what is charged for each funding of a task.

The debit is in the transaction that submits or replays, so that nothing is promised above a limit; a refusal says so
before anything is written. What was charged comes back once: when the task's refund is final on the chain, or when its
funding never got there; a reorganisation that takes the refund back takes this back too. An operator's job is charged
to nobody, but keeps to its budget.

Amounts are summed in Python: no SQL integer holds wei. There is one writer, so what is read is what is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from rendezvous.ledger.act_ops import AllowanceView, SetAllowance
from swarm.amounts import show_wei
from swarm.model import JobId, Refusal, RefusalCode, TaskId, Wei

if TYPE_CHECKING:
    from rendezvous.ledger.allowance_statements import AllowanceStatements
    from rendezvous.ledger.rows import TaskRow
    from rendezvous.ledger.unit import Unit
    from rendezvous.ledger.writer import WriterConnection

__all__ = ["Payer", "charge", "charge_again", "give_back", "open_budget", "payer_of", "refusal_to_pay", "set_allowance"]


@attrs.frozen(kw_only=True)
class Payer:
    """What a job may spend.

    Args:
        owner: whose allowance it is charged to; None is nobody's.
        budget_wei: the job's cap; None is none.
        spent_wei: spent or promised of it.
    """

    owner: str | None
    budget_wei: Wei | None = None
    spent_wei: Wei = 0


def set_allowance(unit: Unit, op: SetAllowance) -> AllowanceView | Refusal:
    """Set or change what a requester may spend; it can't be lowered below what is spent already."""
    view = _allowance(unit.connection, unit.statements.allowances, op.owner)
    granted_wei = op.amount_wei + (view.granted_wei if op.relative else 0)
    if granted_wei < 0:
        return Refusal(
            RefusalCode.BAD_REQUEST, f"{op.owner} has an allowance of {show_wei(view.granted_wei)}: no more can go"
        )
    _keep_allowance(unit.connection, unit.statements.allowances, op.owner, granted_wei, view.spent_wei)
    return AllowanceView(owner=op.owner, granted_wei=granted_wei, spent_wei=view.spent_wei)


def payer_of(unit: Unit, job: int) -> Payer | None:
    """What a job may spend; None where it never paid."""
    found = unit.connection.rows(unit.statements.allowances.budget, job)
    if not found:
        return None
    owner, budget_wei, spent_wei = found[0]
    return Payer(owner=owner, budget_wei=None if budget_wei is None else int(budget_wei), spent_wei=int(spent_wei))


def refusal_to_pay(unit: Unit, payer: Payer, total_wei: Wei, *, job: JobId) -> Refusal | None:
    """Refuse rewards that the job's budget or the requester's allowance has no room for."""
    if payer.budget_wei is not None and payer.spent_wei + total_wei > payer.budget_wei:
        left_wei = max(0, payer.budget_wei - payer.spent_wei)
        return Refusal(
            RefusalCode.BUDGET_EXCEEDED,
            f"these rewards come to {show_wei(total_wei)}, and the job's budget has {show_wei(left_wei)} left: "
            "submit fewer tasks, lower the reward, or make another job",
            details={"job": job, "left_wei": str(left_wei), "asked_wei": str(total_wei)},
        )
    if payer.owner is None:
        return None
    view = _allowance(unit.connection, unit.statements.allowances, payer.owner)
    if view.spent_wei + total_wei > view.granted_wei:
        left_wei = max(0, view.granted_wei - view.spent_wei)
        return Refusal(
            RefusalCode.ALLOWANCE_EXCEEDED,
            f"these rewards come to {show_wei(total_wei)}, and {payer.owner}'s allowance has {show_wei(left_wei)} "
            "left: submit fewer tasks, lower the reward, or ask the operator for more",
            details={"left_wei": str(left_wei), "asked_wei": str(total_wei)},
        )
    return None


def open_budget(unit: Unit, job: int, payer: Payer) -> None:
    """Note what a job may spend, when it first pays or is made with a budget."""
    budget = None if payer.budget_wei is None else str(payer.budget_wei)
    unit.connection.run(unit.statements.allowances.insert_budget, job, payer.owner, budget, "0")


def charge(unit: Unit, job: int, fundings: Sequence[tuple[TaskId, int, Wei]]) -> None:
    """Charge (task, generation, reward) to a job and whoever it is charged to; the limits were checked."""
    payer, statements = payer_of(unit, job), unit.statements.allowances
    if payer is None or not fundings:
        return
    rows = [(task, generation, job, str(amount), unit.now, None) for task, generation, amount in fundings]
    unit.connection.many(statements.insert_charge, rows)
    _spend(unit.connection, statements, job, payer, sum(amount for _, _, amount in fundings))


def charge_again(unit: Unit, row: TaskRow) -> Refusal | None:
    """Charge for a task that is to be funded anew, in its next generation; refused where there is no room."""
    payer = payer_of(unit, row.job) if row.reward_wei != "0" else None
    if payer is None:
        return None
    amount = int(row.reward_wei)
    refusal = refusal_to_pay(unit, payer, amount, job=unit.memory.jobs[row.job].id)
    if refusal is None:
        charge(unit, row.job, [(row.id, row.funding_generation + 1, amount)])
    return refusal


def give_back(
    connection: WriterConnection,
    statements: AllowanceStatements,
    task: TaskId,
    generation: int,
    *,
    at: float | None,
) -> None:
    """Give back what was charged for one generation of a task, once.

    Args:
        connection: of the writer.
        statements: its own.
        task: what was charged for.
        generation: which of its fundings.
        at: ledger seconds; None takes the charge again, since the refund was reorganised away.
    """
    returned = statements.return_charge if at is not None else statements.take_charge
    values = (at, task, generation) if at is not None else (task, generation)
    if not connection.run(returned, *values):
        return
    ((job, amount, owner, budget_wei, spent_wei),) = connection.rows(statements.charge, task, generation)
    payer = Payer(owner=owner, budget_wei=None if budget_wei is None else int(budget_wei), spent_wei=int(spent_wei))
    _spend(connection, statements, job, payer, int(amount) if at is None else -int(amount))


def _spend(
    connection: WriterConnection, statements: AllowanceStatements, job: int, payer: Payer, amount_wei: Wei
) -> None:
    connection.run(statements.update_budget, str(payer.spent_wei + amount_wei), job)
    if payer.owner is not None:
        view = _allowance(connection, statements, payer.owner)
        _keep_allowance(connection, statements, payer.owner, view.granted_wei, view.spent_wei + amount_wei)


def _allowance(connection: WriterConnection, statements: AllowanceStatements, owner: str) -> AllowanceView:
    """What a requester may spend; nothing where the operator never said."""
    found = connection.rows(statements.allowance, owner)
    granted, spent = found[0] if found else ("0", "0")
    return AllowanceView(owner=owner, granted_wei=int(granted), spent_wei=int(spent))


def _keep_allowance(
    connection: WriterConnection, statements: AllowanceStatements, owner: str, granted_wei: Wei, spent_wei: Wei
) -> None:
    connection.run(statements.put_allowance, owner, str(granted_wei), str(spent_wei))
