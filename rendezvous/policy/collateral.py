"""How much should be locked for a worker on its channel? Pure.

What the root locks can't be taken back for a day, so a newcomer gets little, and one that works gets more: the money
for as many tasks as its claim budget lets it hold (``budget``), but never for more than its job still has. A channel is
topped up once half of that is used, so that funding costs a transaction now and then, not one a task.
"""

from __future__ import annotations

from typing import Final

from swarm.model import Wei

__all__ = ["AHEAD_WITHOUT_BUDGET", "collateral_target_wei"]

#: Tasks that are paid for ahead where the operator sets no claim budget.
AHEAD_WITHOUT_BUDGET: Final = 16
#: A channel is topped up when less than one in so many of the tasks that are paid for ahead is left.
REFILL_BELOW_ONE_IN: Final = 2


def collateral_target_wei(*, owed_wei: Wei, held_wei: Wei, budget: int, reward_wei: Wei, live: int) -> Wei | None:
    """What a channel should hold in all, what was paid from it included.

    Args:
        owed_wei: all that the worker ever earned on it.
        held_wei: what is locked on it, or asked for, and was ever paid from it.
        budget: how many tasks the worker may hold.
        reward_wei: of its newest task: the next ones are taken to be like it.
        live: how many tasks of that job may still be done.

    Returns:
        None where it holds enough.
    """
    ahead_wei = min(budget, live) * reward_wei
    if held_wei >= owed_wei + ahead_wei // REFILL_BELOW_ONE_IN:
        return None
    return owed_wei + ahead_wei
