"""How often may this key, or this address, call? Token buckets in memory, generous by default.

A call with a valid key, and each turn of a session, is charged to the key; one without is charged to its address, so
that guessing keys is slow and a crowd behind one address isn't punished for it. This module knows no ledger and no
route.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

import attrs
from aiohttp import web

from swarm.model import Refusal, RefusalCode

__all__ = ["Limits", "RateLimiter", "client_address"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Buckets kept; the one unused longest goes first. A bucket forgotten is a full one, so nobody loses by it.
MAX_BUCKETS: Final = 20_000


@attrs.frozen(kw_only=True)
class Limits:
    """Rates (calls per second) and bursts (calls)."""

    #: An unbatched requester measured 2,700 submissions/s (facts/ledger.md §4): the default doesn't slow it.
    key_rate_per_s: float = 5_000.0
    key_burst: float = 10_000.0
    address_rate_per_s: float = 100.0
    address_burst: float = 500.0
    #: Rules of sites that a worker holds no task of: pages redirect there, but seldom to new ones.
    stray_rate_per_s: float = 5.0
    stray_burst: float = 20.0


@attrs.define
class _Bucket:
    tokens: float
    at: float


class RateLimiter:
    """Token buckets by key or address.

    Args:
        limits: rates and bursts.
        clock: monotonic seconds.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def charge_key(self, digest: bytes) -> Refusal | None:
        """Take one token of a key's bucket, or refuse."""
        return self._charge(digest, self._limits.key_rate_per_s, self._limits.key_burst, "this key called")

    def charge_address(self, address: str) -> Refusal | None:
        """Take one token of an address's bucket, or refuse."""
        return self._charge(address, self._limits.address_rate_per_s, self._limits.address_burst, "this address called")

    def charge_stray(self, digest: bytes) -> Refusal | None:
        """Take one token of a key's bucket for sites that it holds no task of, or refuse."""
        said = "this key asked for robots.txt of sites that it holds no task of"
        return self._charge(("stray", digest), self._limits.stray_rate_per_s, self._limits.stray_burst, said)

    def _charge(self, name: Hashable, rate_per_s: float, burst: float, said: str) -> Refusal | None:
        now = self._clock()
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket(burst, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(name)
            bucket.tokens = min(burst, bucket.tokens + (now - bucket.at) * rate_per_s)
            bucket.at = now
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return None
        wait_s = (1 - bucket.tokens) / rate_per_s if rate_per_s > 0 else math.inf
        return Refusal(
            RefusalCode.RATE_LIMITED,
            f"{said} more than {rate_per_s:g} times a second; slow down",
            min(wait_s, 3600.0),
        )


def client_address(request: web.BaseRequest, trusted: tuple[Network, ...]) -> str:
    """The address that a call comes from.

    ``X-Forwarded-For`` is read from the right, and only as far as the hops are proxies that the operator trusts: what
    a client writes there itself is never believed.
    """
    peer = request.remote or ""
    if not trusted:
        return peer
    hops = [hop.strip() for line in request.headers.getall("X-Forwarded-For", []) for hop in line.split(",")]
    address = peer
    while hops and _is_trusted(address, trusted):
        address = hops.pop()
    return address[:64]


def _is_trusted(address: str, trusted: tuple[Network, ...]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in trusted)
