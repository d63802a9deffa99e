"""Which network does a worker come from, and what does that mean for a site?

A *prefix* stands for one operator's network, as a site would see it: a /24 of IPv4, a /48 of IPv6. A worker and its
prefix are flagged apart: one that moves to another network stays flagged, and its old neighbours aren't, unless several
of them got into quarantine. A worker whose address isn't known has no prefix: nothing follows from it.
"""

from __future__ import annotations

import ipaddress
from typing import Final

import attrs

from swarm.model import Refusal, RefusalCode

__all__ = ["FLAGGED_AFTER", "Flag", "check_apart", "check_egress", "differs", "prefix_of"]

#: DESIGN §8: "egress prefix /24 and /48".
IPV4_BITS: Final = 24
IPV6_BITS: Final = 48
#: So many workers of a prefix in quarantine on a host at once say that it is the network, not the worker.
FLAGGED_AFTER: Final = 2


@attrs.frozen(kw_only=True)
class Flag:
    """What is held against a prefix on a host.

    Args:
        until: ledger time, seconds.
        why: for people.
    """

    until: float
    why: str


def prefix_of(address: str | None) -> str | None:
    """The prefix of an address; None where it isn't one."""
    try:
        parsed = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    bits = IPV4_BITS if parsed.version == 4 else IPV6_BITS
    return str(ipaddress.ip_network((parsed, bits), strict=False))


def differs(one: str | None, other: str | None) -> bool:
    """Whether two prefixes are known to be of different networks."""
    return one is not None and other is not None and one != other


def check_egress(flag: Flag | None, host: str, prefix: str | None, *, now: float) -> Refusal | None:
    """Refuse a worker whose network is flagged on this host.

    Args:
        flag: what is held against its prefix there; None where nothing is.
        host: its name.
        prefix: the worker's.
        now: ledger time, seconds.
    """
    if flag is None or flag.until <= now:
        return None
    return Refusal(
        RefusalCode.EGRESS_FLAGGED,
        f"the network {prefix} is kept off {host} for {flag.until - now:.0f} s more: {flag.why}",
        retry_after_s=flag.until - now,
        details={"host": host, "prefix": prefix},
    )


def check_apart(host: str, prefix: str | None, *, crowded: bool) -> Refusal | None:
    """Refuse a second worker of one network on a host where the operator wants them apart.

    Args:
        host: its name.
        prefix: the worker's.
        crowded: whether another worker of this prefix holds a task of the host, and they are to be apart there.
    """
    if not crowded:
        return None
    return Refusal(
        RefusalCode.PREFIX_TAKEN,
        f"another worker of the network {prefix} has a task of {host}, where one at a time is wanted",
        details={"host": host, "prefix": prefix},
    )
