"""May a request go to this host now? A token bucket per host, and holds.

A grant takes one token, whether it is the task's first or its fifth. The bucket is a value: the ledger reads it, debits
it and writes it back in the grant's own transaction. A rate of 0, or an infinite one, is no limit.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

from swarm.model import Refusal, RefusalCode

__all__ = [
    "FOREVER",
    "HOST_BURST",
    "HOST_RATE_PER_S",
    "Bucket",
    "begun_and_finished",
    "check_host",
    "check_swarm",
    "new_bucket",
    "opens_at",
    "pace",
    "refilled",
    "tokens_now",
]

#: DESIGN §8: "1 request/s a host with a burst of 5".
HOST_RATE_PER_S: Final = 1.0
HOST_BURST: Final = 5.0
#: When a host opens of which nobody knows when it does: a ledger time that isn't reached.
FOREVER: Final = 1e12
#: Refilling by small steps loses a few ulps; without this the fifth token of a full bucket could be missing.
_ROUNDING: Final = 1e-9


@attrs.frozen(kw_only=True)
class Bucket:
    """What may be asked of one host.

    Args:
        tokens: how many there were at ``refilled_at``.
        refilled_at: ledger time, seconds.
        rate_per_s: tokens that come in a second; 0 or infinite is no limit.
        burst: the most there can be.
        held_until: nothing is granted before this ledger time; None where nothing holds it.
        held_why: the reason of the hold.
        paused: the operator paused the host: nothing is granted until that ends.
        unfinished: of a host that asks for a delay between requests: how many grants of it are unfinished. There is
            one at a time, and the next comes a delay (``1 / rate_per_s``) after it is finished. None: it doesn't ask.
        share: what is left of the rate, since a worker on the host is in quarantine …
        share_until: … before this ledger time.
    """

    tokens: float
    refilled_at: float
    rate_per_s: float
    burst: float
    held_until: float | None = None
    held_why: str | None = None
    paused: bool = False
    unfinished: int | None = None
    share: float = 1.0
    share_until: float = 0.0

    @property
    def unlimited(self) -> bool:
        """Whether it never runs out."""
        return self.rate_per_s <= 0 or math.isinf(self.rate_per_s)


def pace(bucket: Bucket, *, now: float) -> float:
    """How many tokens come in a second now."""
    return bucket.rate_per_s * (bucket.share if now < bucket.share_until else 1.0)


def new_bucket(*, rate_per_s: float, burst: float, now: float) -> Bucket:
    """A full bucket. A burst below 1 would never give a token: it is 1 then."""
    burst = max(burst, 1.0)
    return Bucket(tokens=burst, refilled_at=now, rate_per_s=rate_per_s, burst=burst)


def tokens_now(bucket: Bucket, *, now: float) -> float:
    """How many tokens there are; infinite where there is no limit."""
    if bucket.unlimited:
        return math.inf
    elapsed_s = max(0.0, now - bucket.refilled_at)
    return min(bucket.burst, bucket.tokens + elapsed_s * pace(bucket, now=now)) + _ROUNDING


def refilled(bucket: Bucket, *, taken: int, now: float) -> Bucket:
    """The bucket after ``taken`` grants at ``now``."""
    if bucket.unlimited:
        return bucket
    tokens = max(0.0, tokens_now(bucket, now=now) - taken)
    return attrs.evolve(bucket, tokens=tokens, refilled_at=_not_back(bucket, now=now))


def _not_back(bucket: Bucket, *, now: float) -> float:
    """When it is refilled: no earlier than it was, or a root whose clock lies behind brought the same tokens again."""
    return max(bucket.refilled_at, now)


def begun_and_finished(bucket: Bucket, *, begun: int, finished: int, now: float) -> Bucket:
    """The bucket of a host that asks for a delay, after grants of it began or were finished: then the delay begins."""
    unfinished = max(0, (bucket.unfinished or 0) + begun - finished)
    if not finished:
        return attrs.evolve(bucket, unfinished=unfinished)
    return attrs.evolve(bucket, tokens=0.0, refilled_at=_not_back(bucket, now=now), unfinished=unfinished)


def check_swarm(bucket: Bucket, *, now: float) -> Refusal | None:
    """Refuse everything while the bucket of the whole swarm is empty."""
    opening = opens_at(bucket, now=now)
    if opening is None:
        return None
    return Refusal(
        RefusalCode.SWARM_PACED,
        f"the swarm sends at most {bucket.rate_per_s:g} requests a second; the next turn is in {opening - now:.1f} s",
        retry_after_s=opening - now,
    )


def opens_at(bucket: Bucket, *, now: float) -> float | None:
    """When the next grant can be given: a ledger time, or None where it can be given now."""
    if bucket.paused or bucket.unfinished:
        return FOREVER
    times = []
    if bucket.held_until is not None and bucket.held_until > now:
        times.append(bucket.held_until)
    tokens = tokens_now(bucket, now=now)
    if tokens < 1.0:
        times.append(_not_back(bucket, now=now) + (1.0 - tokens) / pace(bucket, now=now))
    return max(times, default=None)


def check_host(host: str, bucket: Bucket, *, now: float) -> Refusal | None:
    """Refuse a host that is held, or whose bucket is empty; say when to ask again."""
    opening = opens_at(bucket, now=now)
    if opening is None:
        return None
    if bucket.paused:
        return Refusal(RefusalCode.PAUSED, f"host {host} is paused")
    if bucket.unfinished:
        return Refusal(
            RefusalCode.HOST_BUSY,
            f"{host} asks for {1.0 / bucket.rate_per_s:g} s between requests, and one is under way: the next comes so "
            "long after it is finished",
        )
    if bucket.held_until is not None and bucket.held_until > now:
        return Refusal(
            RefusalCode.HOST_HELD,
            f"nothing is asked of {host} for {opening - now:.0f} s: {bucket.held_why}",
            retry_after_s=opening - now,
        )
    return Refusal(
        RefusalCode.HOST_PACED,
        f"{host} is asked at most {pace(bucket, now=now):g} times a second; the next turn is in {opening - now:.1f} s",
        retry_after_s=opening - now,
    )
