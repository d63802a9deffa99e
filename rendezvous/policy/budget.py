"""How much may a worker hold at once? A newcomer little, and more with each piece of accepted work.

The budget doubles whenever as much was accepted as it is; it is halved when leases run out. So a newcomer that takes
everything and does nothing holds sixteen tasks once, then eight, then four; one that works is soon without a limit.
"""

from __future__ import annotations

from typing import Final

from swarm.model import Refusal, RefusalCode

__all__ = ["MOST", "NEWCOMER_BUDGET", "check_budget", "grown", "shrunk"]

#: DESIGN §8: "newcomer's budget 16".
NEWCOMER_BUDGET: Final = 16
#: As much as a turn may say of what it holds: beyond that a budget limits nobody.
MOST: Final = 512
FEWEST: Final = 1


def grown(budget: int, accepted: int) -> int:
    """The budget after so many accepted tasks since it last changed; the same where they aren't enough."""
    return min(2 * budget, MOST) if accepted >= budget else budget


def shrunk(budget: int) -> int:
    """The budget after leases ran out."""
    return max(budget // 2, FEWEST)


def check_budget(held: int, budget: int | None) -> Refusal | None:
    """Refuse a worker that holds as much as it may.

    Args:
        held: how many tasks it holds.
        budget: how many it may hold; None is no limit.
    """
    if budget is None or held < budget:
        return None
    return Refusal(
        RefusalCode.CLAIM_BUDGET,
        f"this worker holds {held} tasks and may hold {budget}: the more of its work is accepted, the more it may",
        details={"held": held, "budget": budget},
    )
