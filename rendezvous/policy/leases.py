"""How long does a lease run? Three times the 95th percentile of what tasks of that kind took, within bounds.

Durations are kept as counts in buckets that grow by a fixed ratio, so that a million samples are a few dozen numbers.
The rule knows nothing of who holds a lease or how it is renewed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

__all__ = [
    "FIRST_LEASE_S",
    "LONGEST_LEASE_S",
    "REARM_S",
    "SAMPLES_KEPT",
    "SHORTEST_LEASE_S",
    "bucket_of",
    "lease_s",
    "p95_s",
]

#: DESIGN §8: "15 s … 15 min, 60 s before there are samples".
SHORTEST_LEASE_S: Final = 15.0
LONGEST_LEASE_S: Final = 900.0
FIRST_LEASE_S: Final = 60.0
#: Visibility = 3 × p95 of durations.
P95_FACTOR: Final = 3.0
#: One task in twenty lies above the 95th percentile: with fewer samples there is none to see.
SAMPLES_NEEDED: Final = 20
#: Beyond so many samples of a kind all its counts are halved, so that the lease follows a site that becomes slower.
SAMPLES_KEPT: Final = 10_000
#: After a stall a lease runs at least this long: a worker's reconnect backs off up to 30 s, then it renews.
REARM_S: Final = 60.0

_SMALLEST_S: Final = 0.001
#: A bucket is 10 % wide: the lease is at most 10 % longer than three times the true percentile.
_RATIO: Final = 1.1


def bucket_of(duration_s: float) -> int:
    """The bucket that a duration counts in; bucket n ends at 1 ms × 1.1ⁿ."""
    if duration_s <= _SMALLEST_S:
        return 0
    return math.ceil(math.log(duration_s / _SMALLEST_S, _RATIO))


def p95_s(counts: Mapping[int, int]) -> float | None:
    """The upper end of the bucket that the 95th percentile lies in, seconds; None without samples."""
    rank = math.ceil(0.95 * sum(counts.values()))
    if rank == 0:
        return None
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            break
    return float(_SMALLEST_S * _RATIO**bucket)


def lease_s(counts: Mapping[int, int], *, first_s: float = FIRST_LEASE_S) -> float:
    """How long the lease of a kind runs, seconds.

    Args:
        counts: how many tasks of the kind fell in each bucket of ``bucket_of``.
        first_s: what applies before there are samples enough.
    """
    percentile_s = p95_s(counts)
    if percentile_s is None or sum(counts.values()) < SAMPLES_NEEDED:
        return first_s
    return min(max(P95_FACTOR * percentile_s, SHORTEST_LEASE_S), LONGEST_LEASE_S)
