"""The numbers of the rules are those that operators, requesters and workers were told."""

from __future__ import annotations

import pytest

from rendezvous.policy import (
    alarms,
    budget,
    collateral,
    contexts,
    egress,
    leases,
    order,
    pacing,
    records,
    retry,
    slowness,
)
from rendezvous.policy.alarms import AlarmRules, Counts
from rendezvous.policy.retry import RetryRules


@pytest.mark.parametrize(
    ("number", "published"),
    [
        (pacing.HOST_RATE_PER_S, 1.0),
        (pacing.HOST_BURST, 5.0),
        (order.AGEING_S, 600.0),
        (leases.SHORTEST_LEASE_S, 15.0),
        (leases.LONGEST_LEASE_S, 900.0),
        (leases.FIRST_LEASE_S, 60.0),
        (leases.P95_FACTOR, 3.0),
        (leases.SAMPLES_NEEDED, 20),
        (leases.SAMPLES_KEPT, 10_000),
        (leases.REARM_S, 60.0),
        (retry.BACKOFF_S, 15.0),
        (retry.BACKOFF_JITTER, 0.25),
        (retry.BACKOFF_CAP_S, 3_600.0),
        (retry.RETRY_AFTER_CAP_S, 3_600.0),
        (retry.COOL_OFF_S, 60.0),
        (retry.PASSED_OVER_S, 600.0),
        (retry.FORGIVEN_RESTARTS, 1),
        (records.QUARANTINE_AFTER, 3),
        (records.WINDOW_S, 1_800.0),
        (records.QUARANTINE_S, 1_800.0),
        (records.LONGEST_QUARANTINE_S, 86_400.0),
        (records.TROUBLED_HOSTS, 100),
        (records.CAREFUL_S, 3_600.0),
        (budget.NEWCOMER_BUDGET, 16),
        (budget.MOST, 512),
        (budget.FEWEST, 1),
        (collateral.AHEAD_WITHOUT_BUDGET, 16),
        (egress.IPV4_BITS, 24),
        (egress.IPV6_BITS, 48),
        (egress.FLAGGED_AFTER, 2),
        (contexts.MATURE_AFTER, 10),
        (contexts.MATURING_PACE_S, 60.0),
        (contexts.RETIRED_AFTER, 3),
        (contexts.SESSION_KEPT_S, 3_600.0),
        (slowness.SLOW_S, 3.0),
        (slowness.SLOW_FOR_S, 60.0),
        (slowness.SOON_S, 10.0),
        (alarms.WINDOW_S, 600.0),
        (alarms.OUTCOMES_LEAST, 20),
    ],
)  # fmt: skip
def test_a_rule_keeps_to_the_number_that_was_told(number: float, published: float) -> None:
    assert number == published


def test_the_tiers_share_seventy_to_thirty() -> None:
    assert order.TIER_SHARES == {"interactive": 70.0, "bulk": 30.0}


def test_what_nobody_set_is_as_the_rules_say() -> None:
    assert AlarmRules() == AlarmRules(success=0.5, queue_age_s=3_600.0, expiries=20, blocks=5)
    assert RetryRules() == RetryRules(backoff_s=15.0, cool_off_s=60.0, extra_retryable=frozenset())
    assert (Counts().total, Counts().share) == (0, 1.0)
