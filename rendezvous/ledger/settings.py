"""What an operator can set of the ledger. The defaults are DESIGN §8's and §9's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from rendezvous.policy.budget import NEWCOMER_BUDGET
from rendezvous.policy.hours import Hours
from rendezvous.policy.leases import FIRST_LEASE_S
from rendezvous.policy.order import TIER_SHARES
from rendezvous.policy.pacing import HOST_BURST, HOST_RATE_PER_S
from rendezvous.policy.retry import RetryRules
from swarm.model import Address

__all__ = ["LedgerSettings"]

DAY_S = 86_400.0


@attrs.frozen(kw_only=True)
class LedgerSettings:
    """The ledger's section.

    Args:
        host_rate_per_s: requests a second to a host that nobody set another pace for; 0 is no limit.
        host_burst: how many of them may come at once.
        swarm_rate_per_s: requests a second of the whole swarm; 0 is no limit.
        swarm_burst: how many of them may come at once.
        tier_shares: the tiers and their shares of the grants; one that isn't named shares as the smallest does.
        region_hours: when workers of a region work; a region that isn't named works at any time.
        newcomer_budget: how many tasks a worker may hold before any of its work was accepted; 0 is no limit, ever.
        first_lease_s: how long a lease runs before a kind has samples, seconds.
        retry: backoff and what is retried.
        idempotency_keep_s: how long an ``Idempotency-Key`` is remembered, seconds.
        archive_directory: where finished tasks go as JSONL; None keeps them in the ledger for good.
        archive_after_s: how long after its end a task is archived, seconds.
        signs_all: whether workers sign completions of tasks without a reward, too.
        payer: the address whose key funds and pays tasks that have a reward; None in an unpaid swarm.
    """

    host_rate_per_s: float = HOST_RATE_PER_S
    host_burst: float = HOST_BURST
    swarm_rate_per_s: float = 0.0
    swarm_burst: float = HOST_BURST
    tier_shares: Mapping[str, float] = attrs.field(factory=lambda: TIER_SHARES)
    region_hours: Mapping[str, Hours] = attrs.field(factory=dict)
    newcomer_budget: int = NEWCOMER_BUDGET
    first_lease_s: float = FIRST_LEASE_S
    retry: RetryRules = attrs.field(factory=RetryRules)
    idempotency_keep_s: float = 7 * DAY_S
    archive_directory: Path | None = None
    archive_after_s: float = 30 * DAY_S
    signs_all: bool = False
    payer: Address | None = None
