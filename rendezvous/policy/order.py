"""Which of the ready tasks comes first? Within a tier by priority, and by age; between tiers by their shares.

Priority and age are one number, the *rank*: a step of priority counts as much as ``AGEING_S`` of waiting. It is fixed
when a task is submitted, and two tasks that both wait keep their order, so an index holds it and nothing has to be
written while they age. A task of the lowest priority passes new ones of the highest after nine steps: nothing starves.

Tiers share the grants that are contended by stride scheduling: each grant moves its tier on by the inverse of its
share, and the tier that is furthest behind is next. A tier without ready work loses nothing and saves nothing up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

__all__ = ["AGEING_S", "TIER_SHARES", "Shares", "rank"]

#: So long a wait weighs as much as one step of priority, seconds.
AGEING_S: Final = 600.0
#: DESIGN §8: "tiers interactive and bulk 70/30".
TIER_SHARES: Final[Mapping[str, float]] = {"interactive": 70.0, "bulk": 30.0}
#: Tiers that are remembered beside the named ones: anybody who submits can name new ones.
UNNAMED_MOST: Final = 1_000


def rank(priority: int, created_at: float) -> float:
    """A task's place in line: the lowest comes first.

    Args:
        priority: 0 to 9, the highest first.
        created_at: ledger time, seconds.
    """
    return created_at - priority * AGEING_S


class Shares:
    """How far each tier has got with its share of the grants.

    Not for several threads, and not kept over restarts: it says who is next, not who got how much.

    Args:
        shares: of each tier, in whatever unit; a tier that isn't named shares as the smallest one does.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        positive = {tier: share for tier, share in shares.items() if share > 0}
        self._least: Final = min(positive.values(), default=1.0)
        self._shares: Final = positive
        self._passes: dict[str, float] = {}
        #: Where the tier that was last served stood: others can't be further behind.
        self._now = 0.0

    def __len__(self) -> int:
        """How many tiers are remembered."""
        return len(self._passes)

    def next(self, tiers: Collection[str]) -> str:
        """Which of these tiers, which all have ready work, is served next."""
        return min(tiers, key=self._place)

    def _place(self, tier: str) -> tuple[float, float, str]:
        return (max(self._passes.get(tier, 0.0), self._now), -self._share(tier), tier)

    def _share(self, tier: str) -> float:
        return self._shares.get(tier, self._least)

    def served(self, tier: str) -> None:
        """Note that a task of the tier was granted."""
        place = max(self._passes.get(tier, 0.0), self._now)
        self._now = place
        if tier not in self._passes and len(self._passes) >= len(self._shares) + UNNAMED_MOST:
            self._passes = {known: at for known, at in self._passes.items() if known in self._shares}
        self._passes[tier] = place + 1.0 / self._share(tier)
