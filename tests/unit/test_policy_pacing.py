"""A bucket per host."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.policy.pacing import (
    FOREVER,
    begun_and_finished,
    check_host,
    check_swarm,
    new_bucket,
    opens_at,
    pace,
    refilled,
    tokens_now,
)
from swarm.model import RefusalCode

NOW = 1_000_000_000.0


def test_a_full_bucket_gives_its_burst_and_then_one_a_second() -> None:
    bucket = new_bucket(rate_per_s=1.0, burst=5.0, now=NOW)
    bucket = refilled(bucket, taken=5, now=NOW)
    refusal = check_host("site.test", bucket, now=NOW)
    assert refusal is not None
    assert refusal.code is RefusalCode.HOST_PACED
    assert refusal.retry_after_s == pytest.approx(1.0)
    assert refusal.message == "site.test is asked at most 1 times a second; the next turn is in 1.0 s"
    assert check_host("site.test", bucket, now=NOW + 1.0) is None


def test_it_never_holds_more_than_its_burst() -> None:
    bucket = refilled(new_bucket(rate_per_s=1.0, burst=5.0, now=NOW), taken=1, now=NOW)
    assert tokens_now(bucket, now=NOW + 1e6) == pytest.approx(5.0)


@pytest.mark.parametrize("rate", [0.0, math.inf])
def test_a_rate_of_zero_or_infinity_is_no_limit(rate: float) -> None:
    bucket = refilled(new_bucket(rate_per_s=rate, burst=1.0, now=NOW), taken=1000, now=NOW)
    assert opens_at(bucket, now=NOW) is None


def test_a_held_host_says_why_and_until_when() -> None:
    bucket = attrs.evolve(
        new_bucket(rate_per_s=0.0, burst=1.0, now=NOW), held_until=NOW + 30.0, held_why="its robots.txt can't be read"
    )
    refusal = check_host("site.test", bucket, now=NOW)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.HOST_HELD, 30.0)
    assert refusal.message == "nothing is asked of site.test for 30 s: its robots.txt can't be read"
    assert check_host("site.test", bucket, now=NOW + 30.0) is None


def test_a_hold_that_is_over_is_no_reason_any_more() -> None:
    bucket = attrs.evolve(new_bucket(rate_per_s=1.0, burst=1.0, now=NOW), tokens=0.0, held_until=NOW, held_why="over")
    refusal = check_host("site.test", bucket, now=NOW)
    assert refusal is not None
    assert refusal.code is RefusalCode.HOST_PACED


def test_a_part_of_a_token_shortens_the_wait_and_one_that_lacks_a_rounding_error_is_one() -> None:
    bucket = new_bucket(rate_per_s=1.0, burst=1.0, now=NOW)
    assert opens_at(attrs.evolve(bucket, tokens=0.25), now=NOW) == pytest.approx(NOW + 0.75, abs=1e-3)
    assert opens_at(attrs.evolve(bucket, tokens=1.0 - 1e-9), now=NOW) is None


def test_a_burst_below_one_still_gives_one() -> None:
    assert opens_at(new_bucket(rate_per_s=0.1, burst=0.0, now=NOW), now=NOW) is None


@given(
    rate=st.floats(0.01, 100.0),
    burst=st.floats(1.0, 20.0),
    steps=st.lists(st.floats(0.0, 5.0), max_size=60),
)
def test_in_any_stretch_it_gives_at_most_burst_plus_rate_times_time(
    rate: float, burst: float, steps: list[float]
) -> None:
    now, given_out = NOW, 0
    bucket = new_bucket(rate_per_s=rate, burst=burst, now=now)
    for step in steps:
        now += step
        while opens_at(bucket, now=now) is None:
            bucket = refilled(bucket, taken=1, now=now)
            given_out += 1
        assert given_out <= burst + rate * (now - NOW) + 1e-3


@given(rate=st.floats(0.001, 1000.0), taken=st.integers(1, 5), passed=st.floats(0.0, 10.0))
def test_it_opens_when_it_says(rate: float, taken: int, passed: float) -> None:
    bucket = refilled(new_bucket(rate_per_s=rate, burst=5.0, now=NOW), taken=taken, now=NOW)
    opening = opens_at(bucket, now=NOW + passed)
    if opening is not None:
        assert opens_at(bucket, now=opening + 1e-6) is None


def test_a_host_that_asks_for_a_delay_is_closed_while_a_grant_is_unfinished_and_a_delay_longer() -> None:
    bucket = attrs.evolve(new_bucket(rate_per_s=0.5, burst=1.0, now=NOW), unfinished=0)
    assert opens_at(bucket, now=NOW) is None
    begun = begun_and_finished(refilled(bucket, taken=1, now=NOW), begun=1, finished=0, now=NOW)
    assert opens_at(begun, now=NOW + 1_000.0) == FOREVER
    refusal = check_host("site.test", begun, now=NOW + 1_000.0)
    assert refusal is not None
    assert refusal.code is RefusalCode.HOST_BUSY
    assert refusal.message == (
        "site.test asks for 2 s between requests, and one is under way: the next comes so long after it is finished"
    )
    ended = begun_and_finished(begun, begun=0, finished=1, now=NOW + 1_000.0)
    assert opens_at(ended, now=NOW + 1_000.0) == pytest.approx(NOW + 1_002.0)
    assert check_host("site.test", ended, now=NOW + 1_002.0) is None
    assert ended.unfinished == 0, "it asks for a delay as before"


def test_the_delay_begins_at_each_end_whatever_the_bucket_held_and_only_when_all_are_finished() -> None:
    bucket = attrs.evolve(new_bucket(rate_per_s=0.5, burst=5.0, now=NOW), unfinished=0)
    two = begun_and_finished(bucket, begun=2, finished=0, now=NOW)
    one = begun_and_finished(two, begun=0, finished=1, now=NOW + 1.0)
    assert opens_at(one, now=NOW + 1_000.0) == FOREVER
    none = begun_and_finished(one, begun=0, finished=1, now=NOW + 10.0)
    assert opens_at(none, now=NOW + 10.0) == pytest.approx(NOW + 12.0)


def test_the_share_of_a_host_counts_until_then() -> None:
    bucket = attrs.evolve(new_bucket(rate_per_s=2.0, burst=1.0, now=NOW), share=0.5, share_until=NOW + 10.0)
    assert pace(bucket, now=NOW) == 1.0
    assert pace(bucket, now=NOW + 10.0) == 2.0
    empty = refilled(bucket, taken=1, now=NOW)
    assert opens_at(empty, now=NOW) == pytest.approx(NOW + 1.0)


def test_a_paused_host_opens_at_no_time_that_comes() -> None:
    bucket = attrs.evolve(new_bucket(rate_per_s=0.0, burst=1.0, now=NOW), paused=True)
    assert opens_at(bucket, now=NOW) == FOREVER
    refusal = check_host("site.test", bucket, now=NOW)
    assert refusal is not None
    assert refusal.code is RefusalCode.PAUSED
    assert refusal.message == "host site.test is paused"


def test_the_swarms_own_bucket_says_when_there_is_more() -> None:
    bucket = new_bucket(rate_per_s=2.0, burst=1.0, now=NOW)
    assert check_swarm(bucket, now=NOW) is None
    refusal = check_swarm(refilled(bucket, taken=1, now=NOW), now=NOW)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.SWARM_PACED, pytest.approx(0.5))
    assert refusal.message == "the swarm sends at most 2 requests a second; the next turn is in 0.5 s"


def test_a_root_whose_clock_lies_behind_brings_no_token_a_second_time() -> None:
    ahead, behind = NOW + 30.0, NOW
    bucket = refilled(new_bucket(rate_per_s=1.0, burst=5.0, now=ahead), taken=5, now=ahead)
    bucket = refilled(bucket, taken=0, now=behind)
    assert tokens_now(bucket, now=behind) < 1.0
    assert tokens_now(bucket, now=ahead) < 1.0
    assert opens_at(bucket, now=behind) == pytest.approx(ahead + 1.0)


def test_a_delay_that_began_by_a_clock_that_lies_ahead_isnt_cut_short_by_another() -> None:
    ahead, behind = NOW + 30.0, NOW
    bucket = attrs.evolve(new_bucket(rate_per_s=0.5, burst=1.0, now=behind), unfinished=1)
    bucket = begun_and_finished(bucket, begun=0, finished=1, now=ahead)
    bucket = begun_and_finished(attrs.evolve(bucket, unfinished=1), begun=0, finished=1, now=behind)
    assert opens_at(bucket, now=ahead) == pytest.approx(ahead + 2.0)
