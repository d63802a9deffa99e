"""Who comes first: priority and age, and the shares of the tiers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rendezvous.policy.order import AGEING_S, TIER_SHARES, Shares, rank


def test_of_two_tasks_of_one_age_the_higher_priority_comes_first() -> None:
    assert rank(9, 1_000.0) < rank(5, 1_000.0) < rank(0, 1_000.0)


def test_a_task_that_waits_long_enough_passes_new_ones_of_any_priority() -> None:
    assert rank(0, 0.0) > rank(9, 9 * AGEING_S - 1)
    assert rank(0, 0.0) < rank(9, 9 * AGEING_S + 1)


@given(st.integers(0, 9), st.integers(0, 9), st.floats(0, 1e9), st.floats(0, 1e9))
def test_of_one_priority_the_older_comes_first(one: int, other: int, born: float, later_s: float) -> None:
    assert rank(one, born) <= rank(one, born + later_s)
    if one > other:
        assert rank(one, born) < rank(other, born)


def served(shares: Shares, times: int, *tiers: str) -> Counter[str]:
    counted: Counter[str] = Counter()
    for _ in range(times):
        tier = shares.next(tiers)
        shares.served(tier)
        counted[tier] += 1
    return counted


def test_contended_grants_are_shared_seventy_to_thirty() -> None:
    assert served(Shares(TIER_SHARES), 1_000, "interactive", "bulk") == {"interactive": 700, "bulk": 300}


def test_shares_are_in_whatever_unit_and_one_of_nothing_is_as_the_smallest() -> None:
    assert served(Shares({"a": 0.75, "b": 0.25}), 400, "a", "b") == {"a": 300, "b": 100}
    assert served(Shares({"a": 2.0, "b": 1.0, "c": 0.0}), 400, "a", "b", "c") == {"a": 200, "b": 100, "c": 100}
    assert served(Shares({}), 100, "a", "b") == {"a": 50, "b": 50}


def test_of_tiers_that_are_equally_far_the_one_with_the_greater_share_is_next() -> None:
    assert Shares(TIER_SHARES).next(("bulk", "interactive")) == "interactive"


def test_a_tier_alone_gets_everything_and_saves_nothing_up() -> None:
    shares = Shares(TIER_SHARES)
    assert served(shares, 500, "bulk") == {"bulk": 500}
    after = served(shares, 100, "interactive", "bulk")
    assert 69 <= after["interactive"] <= 71, "what bulk had while it was alone is nobody's debt"


def test_a_tier_that_has_work_only_now_and_then_is_served_at_once() -> None:
    shares = Shares(TIER_SHARES)
    for _ in range(50):
        assert served(shares, 5, "bulk") == {"bulk": 5}
        assert shares.next(("interactive", "bulk")) == "interactive"
        shares.served("interactive")


def test_a_tier_that_nobody_named_shares_as_the_smallest_does() -> None:
    counted = served(Shares(TIER_SHARES), 1_300, "interactive", "bulk", "other")
    assert counted == {"interactive": 700, "bulk": 300, "other": 300}


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=50))
def test_no_tier_waits_longer_than_its_share_says(others: list[str]) -> None:
    shares = Shares({"a": 6.0, "b": 3.0, "c": 1.0})
    for tier in others:
        shares.served(tier)
    waited = 0
    while shares.next(("a", "b", "c")) != "c":
        shares.served(shares.next(("a", "b", "c")))
        waited += 1
        assert waited <= 10 + len(others) * 10


def test_tiers_that_strangers_name_are_not_remembered_for_ever_and_take_nothing_from_the_named_ones() -> None:
    shares = Shares(TIER_SHARES)
    served(shares, 100, "interactive", "bulk")
    for number in range(5_000):
        shares.served(f"tier-{number}")
    assert len(shares) <= 1_002
    assert served(shares, 1_000, "interactive", "bulk") == {"interactive": 700, "bulk": 300}


def test_a_thousand_tiers_that_strangers_name_are_remembered_and_then_begin_anew() -> None:
    shares = Shares(TIER_SHARES)
    served(shares, 10, "interactive", "bulk")
    for number in range(1_000):
        shares.served(f"tier-{number}")
    shares.served("tier-7")
    assert len(shares) == 1_002
    shares.served("one-more")
    assert len(shares) == 3, "the named ones, and the newest"
