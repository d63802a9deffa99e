"""Profiles and sessions, and the hours of a region."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.policy.contexts import (
    MATURE_AFTER,
    MATURING_PACE_S,
    RETIRED_AFTER,
    SESSION_KEPT_S,
    Context,
    ProfileState,
    challenged,
    check_profile,
    check_session,
    state_of,
)
from rendezvous.policy.hours import check_hours, parse_hours
from swarm.model import RefusalCode

OSAKA = Context(worker=1, used_at=100.0)
READY = attrs.evolve(OSAKA, accepted=MATURE_AFTER)


def test_a_profile_matures_is_ready_and_is_retired() -> None:
    assert state_of(None) is ProfileState.MATURING
    assert state_of(attrs.evolve(OSAKA, accepted=MATURE_AFTER - 1)) is ProfileState.MATURING
    assert state_of(READY) is ProfileState.READY
    turned_away = READY
    for _ in range(RETIRED_AFTER):
        assert state_of(turned_away) is ProfileState.READY
        turned_away = challenged(turned_away)
    assert state_of(turned_away) is ProfileState.RETIRED
    refusal = check_profile("osaka", turned_away, 1, now=1e9)
    assert refusal is not None
    assert refusal.code is RefusalCode.PROFILE_RETIRED
    assert refusal.message == "the profile osaka was turned away 3 times and is retired: use another name"
    assert refusal.details == {"profile": "osaka", "challenges": 3}


def test_a_maturing_profile_has_a_task_a_while_and_a_ready_one_as_many_as_there_are() -> None:
    assert check_profile("osaka", None, 1, now=0.0) is None
    refusal = check_profile("osaka", OSAKA, 1, now=101.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.PROFILE_MATURING, MATURING_PACE_S - 1.0)
    assert refusal.message == (
        "the profile osaka is maturing (0 of 10 tasks accepted): one task in 60 s, the next in 59 s"
    )
    assert refusal.details == {"profile": "osaka", "accepted": 0}
    assert check_profile("osaka", OSAKA, 1, now=99.5 + MATURING_PACE_S) is not None, "half a second too early"
    assert check_profile("osaka", OSAKA, 1, now=100.0 + MATURING_PACE_S) is None
    assert check_profile("osaka", READY, 1, now=100.0) is None


def test_a_profile_never_leaves_its_worker() -> None:
    refusal = check_profile("osaka", READY, 2, now=1e9)
    assert refusal is not None
    assert refusal.code is RefusalCode.PROFILE
    assert refusal.message == "the profile osaka is another worker's, and never leaves it"


def test_a_session_stays_where_it_began_while_it_is_used() -> None:
    assert check_session("s", None, 1, now=0.0) is None
    assert check_session("s", OSAKA, 1, now=1e9) is None
    refusal = check_session("s", OSAKA, 2, now=160.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.SESSION_ELSEWHERE, SESSION_KEPT_S - 60.0)
    assert refusal.message == "another worker began the session s: its tasks stay there while it is used"
    assert refusal.details == {"session": "s"}
    lately = attrs.evolve(OSAKA, used_at=1e9)
    assert check_session("s", lately, 2, now=1e9 + 60.0) is not None
    assert check_session("s", OSAKA, 2, now=100.0 + SESSION_KEPT_S) is None


def at(hour: int, minute: int = 0) -> float:
    return datetime(2026, 7, 1, hour, minute, 30, tzinfo=UTC).timestamp()


def test_a_region_works_in_its_own_time() -> None:
    hours = dict([parse_hours("eu=Europe/Berlin,08:00-22:00")])  # two hours ahead of UTC in July
    assert check_hours("eu", hours, now=at(6)) is None
    assert check_hours("eu", hours, now=at(19, 59)) is None
    refusal = check_hours("eu", hours, now=at(20))
    assert refusal is not None
    assert refusal.code is RefusalCode.OUTSIDE_HOURS
    assert refusal.message == "it is 22:00 in eu, which works from 08:00 to 22:00"
    assert refusal.retry_after_s == 10 * 3600.0 - 30.0
    assert check_hours("us", hours, now=at(20)) is None
    assert check_hours(None, hours, now=at(20)) is None


def test_hours_may_span_midnight() -> None:
    hours = dict([parse_hours("night=+00:00,22:00-06:00")])
    assert [check_hours("night", hours, now=at(hour)) is None for hour in (21, 22, 0, 5, 6)] == [
        False, True, True, True, False
    ]  # fmt: skip


@given(st.integers(0, 24 * 60 - 1), st.sampled_from(["a=+05:30,09:00-17:00", "a=-03:00,20:00-04:00"]))
def test_who_asks_when_it_was_told_to_is_let_in(minute: int, given_: str) -> None:
    hours = dict([parse_hours(given_)])
    now = at(0) + minute * 60.0
    refusal = check_hours("a", hours, now=now)
    if refusal is not None:
        assert refusal.retry_after_s is not None
        assert check_hours("a", hours, now=now + refusal.retry_after_s) is None
        assert check_hours("a", hours, now=now + refusal.retry_after_s - 61.0) is not None


FORM = "a region, its time zone and its hours, such as eu=Europe/Berlin,08:00-22:00"
OF_A_DAY = "hours of a day, such as 08:00-22:00"
OFFSET = "an offset of less than a day, such as +02:00"
ZONE = "a time zone that is known here, such as Europe/Berlin or +02:00; {} isn't"


@pytest.mark.parametrize(
    ("given_", "fault"),
    [
        ("eu", FORM),
        ("eu=UTC,8-22", FORM),
        ("=UTC,08:00-09:00", FORM),
        ("eu=UTC,25:00-26:00", OF_A_DAY),
        ("eu=UTC,08:00-24:01", OF_A_DAY),
        ("eu=UTC,08:00-08:00", OF_A_DAY),
        ("eu=UTC,08:61-09:00", OF_A_DAY),
        ("eu=UTC,08:60-09:30", OF_A_DAY),
        ("eu=+24:00,08:00-09:00", OFFSET),
        ("eu=+30:00,08:00-09:00", OFFSET),
        ("eu=-99:00,08:00-09:00", OFFSET),
        ("eu=Nowhere/Atall,08:00-22:00", ZONE.format("Nowhere/Atall")),
        ("eu=../../etc/passwd,08:00-09:00", ZONE.format("../../etc/passwd")),
    ],
)
def test_hours_that_make_no_sense_are_refused_with_an_example(given_: str, fault: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        parse_hours(given_)
    assert str(raised.value) == fault


@pytest.mark.parametrize(
    ("given_", "opens_min", "closes_min", "offset"),
    [
        ("eu=+00:00,08:30-22:45", 510, 1365, timedelta(0)),
        (" eu=+05:30,00:59-24:00 ", 59, 1440, timedelta(hours=5, minutes=30)),
        ("eu=-03:30,20:00-04:00", 1200, 240, -timedelta(hours=3, minutes=30)),
    ],
)
def test_hours_are_read_to_the_minute(given_: str, opens_min: int, closes_min: int, offset: timedelta) -> None:
    region, hours = parse_hours(given_)
    assert (region, hours.opens_min, hours.closes_min) == ("eu", opens_min, closes_min)
    assert hours.zone.utcoffset(None) == offset


def test_a_second_before_it_opens_a_region_is_asked_again_in_a_second() -> None:
    hours = dict([parse_hours("eu=+00:00,08:00-22:00")])
    refusal = check_hours("eu", hours, now=at(7, 59) + 29.0)
    assert refusal is not None
    assert refusal.retry_after_s == 1.0
    assert refusal.details == {"region": "eu"}
    assert check_hours("eu", hours, now=at(7, 59) + 30.0) is None
