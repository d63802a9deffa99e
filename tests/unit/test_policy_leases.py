"""How long a lease runs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.policy.leases import (
    FIRST_LEASE_S,
    LONGEST_LEASE_S,
    SAMPLES_NEEDED,
    SHORTEST_LEASE_S,
    bucket_of,
    lease_s,
    p95_s,
)


def test_without_samples_the_first_lease_applies() -> None:
    assert lease_s({}) == FIRST_LEASE_S == 60.0
    assert lease_s({}, first_s=7.0) == 7.0
    assert lease_s({bucket_of(200.0): SAMPLES_NEEDED - 1}) == FIRST_LEASE_S
    assert lease_s({bucket_of(200.0): SAMPLES_NEEDED}) > 3 * 200.0


def test_the_lease_has_bounds() -> None:
    assert lease_s({bucket_of(0.001): 1000}) == SHORTEST_LEASE_S == 15.0
    assert lease_s({bucket_of(3000.0): 1000}) == LONGEST_LEASE_S == 900.0


def test_one_in_twenty_slow_tasks_lengthens_the_lease_and_one_in_thirty_does_not() -> None:
    fast, slow = bucket_of(10.0), bucket_of(100.0)
    assert lease_s({fast: 90, slow: 10}) > 290.0
    assert lease_s({fast: 97, slow: 3}) < 34.0
    assert lease_s({bucket_of(5.0): 60, fast: 37, slow: 3}) < 34.0
    assert lease_s({fast: 95, slow: 5}) < 34.0, "the 95th of a hundred is a fast one"
    assert lease_s({fast: 94, slow: 6}) > 290.0


def test_a_bucket_ends_at_a_millisecond_times_a_power_of_one_and_a_tenth() -> None:
    assert [bucket_of(duration_s) for duration_s in (0.0, 0.001, 0.00105, 0.00115, 1.0)] == [0, 0, 1, 2, 73]
    assert p95_s({10: 1}) == pytest.approx(0.001 * 1.1**10)
    assert p95_s({}) is None


@given(st.lists(st.floats(0.001, 3600.0), min_size=1, max_size=200))
def test_the_percentile_is_at_most_a_tenth_above_the_true_one(durations: list[float]) -> None:
    counts = Counter(bucket_of(duration) for duration in durations)
    true = sorted(durations)[-(-95 * len(durations) // 100) - 1]
    found = p95_s(counts)
    assert found is not None
    assert true * 0.999999 <= found <= true * 1.100001
