"""Is it the sites, or is it us? Failures over three unrelated hosts in a row are our own (DESIGN §7).

Then this worker stops asking, gives everything back, and after a while is on probation: one task at a time, until one
reaches its site. While it fails on, the wait doubles. Values and a clock; it knows no tasks.
"""

from __future__ import annotations

import enum
import ipaddress
from typing import Final

from swarm.model import Reason

UNRELATED_HOSTS: Final = 3
FIRST_WAIT_S: Final = 30.0
LAST_WAIT_S: Final = 600.0

#: What a broken line of our own looks like.
NETWORK_REASONS: Final = frozenset({Reason.DNS, Reason.CONNECT, Reason.TIMEOUT})
#: What only a site that was reached can answer.
REACHED_REASONS: Final = frozenset(
    {
        Reason.HTTP_4XX,
        Reason.HTTP_408,
        Reason.HTTP_5XX,
        Reason.BLOCKED,
        Reason.TOO_LARGE,
        Reason.TOO_MANY_REDIRECTS,
        Reason.SELECTOR_MISSING,
    }
)


class Standing(enum.Enum):
    """How much this worker trusts its own line."""

    GOOD = enum.auto()
    #: It has to wait, then one task at a time.
    SUSPECT = enum.auto()


def relation(host: str) -> str:
    """What makes two hosts related: the same address, or the same last two labels of the name."""
    name = host.rpartition(":")[0] if host.count(":") == 1 else host
    name = name.strip("[]").lower().rstrip(".")
    try:
        return ipaddress.ip_address(name).compressed
    except ValueError:
        return ".".join(name.split(".")[-2:])


class SelfCheck:
    """Counts failures in a row."""

    def __init__(self) -> None:
        self.standing = Standing.GOOD
        self._failed: dict[str, None] = {}
        self._wait_s = FIRST_WAIT_S

    @property
    def failed(self) -> tuple[str, ...]:
        """The unrelated hosts that failed since the last success."""
        return tuple(self._failed)

    def succeeded(self) -> bool:
        """A site was reached. Returns whether that ends a probation."""
        recovered = self.standing is Standing.SUSPECT
        self.standing = Standing.GOOD
        self._failed.clear()
        self._wait_s = FIRST_WAIT_S
        return recovered

    def failed_at(self, host: str, reason: str) -> float | None:
        """A task failed. Returns how long to stay away where the fault is our own, seconds; None where it isn't."""
        if reason not in NETWORK_REASONS:
            return None
        self._failed[relation(host)] = None
        if self.standing is Standing.GOOD and len(self._failed) < UNRELATED_HOSTS:
            return None
        wait_s = self._wait_s
        self._wait_s = min(self._wait_s * 2, LAST_WAIT_S)
        self.standing = Standing.SUSPECT
        return wait_s
