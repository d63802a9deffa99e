"""All that the door's handlers lean on, opened by ``rendezvous.root`` and passed inward as one value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import attrs

from rendezvous.acceptance import Accept
from rendezvous.alerts import Alerts
from rendezvous.door.auth import Keys
from rendezvous.door.limits import Network, RateLimiter
from rendezvous.door.metrics import Metrics
from rendezvous.fleet import Fleet
from rendezvous.store import RootStore
from rendezvous.watch import Watch
from swarm.model import Refusal, Wei
from swarm.wire import RobotsAnswer

if TYPE_CHECKING:
    from rendezvous.door.assigner import Assigner
    from rendezvous.door.pacer import Pacer
    from rendezvous.door.readiness import Readiness
    from rendezvous.door.robots import HostPaces
    from rendezvous.door.session import Sessions
    from rendezvous.door.site import Site
    from rendezvous.door.stream import EventStream
    from rendezvous.door.turns import Turns
    from rendezvous.ledger.ledger import Ledger

__all__ = ["Door", "Robots"]


class Robots(Protocol):
    """The root's robots.txt; ``rendezvous.robots`` has it."""

    async def rules(self, origin: str) -> RobotsAnswer | Refusal:
        """The rules of an origin for our agent."""

    def at_hand(self, origin: str) -> RobotsAnswer | None:
        """The same, if it is known already."""


@attrs.frozen(kw_only=True)
class Door:
    """The resources of the door.

    Args:
        clock: monotonic seconds.
        wall: Unix seconds.
        is_stopping: true once the root was told to stop.
        started_at: when it started, by ``clock``.
        base_fee_wei: what a unit of gas costs now; None where there is no chain, or it doesn't answer.
        accept: signs that a completion counts.
        alerts: what the operator should know now.
        watch: raises them.
        tiers: the names of the tiers that have a share of their own.
        assigner: pushes tasks, in ``--mode assign``; None: workers ask.
    """

    ledger: Ledger
    store: RootStore
    robots: Robots
    paces: HostPaces
    pacer: Pacer
    fleet: Fleet
    keys: Keys
    site: Site
    turns: Turns
    stream: EventStream
    sessions: Sessions
    limiter: RateLimiter
    metrics: Metrics
    readiness: Readiness
    trusted_proxies: tuple[Network, ...]
    clock: Callable[[], float]
    wall: Callable[[], float]
    is_stopping: Callable[[], bool]
    started_at: float
    base_fee_wei: Callable[[], Awaitable[Wei | None]]
    accept: Accept
    alerts: Alerts
    watch: Watch
    tiers: frozenset[str]
    assigner: Assigner | None = None
