"""What reports of a worker bring about, and for whom."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.policy.records import (
    CLEAN,
    LONGEST_QUARANTINE_S,
    QUARANTINE_AFTER,
    QUARANTINE_S,
    TROUBLED_HOSTS,
    WINDOW_S,
    Record,
    agreed_until,
    check_careful,
    check_record,
    check_troubled,
    is_due,
    lifted,
    quarantine_s,
    quarantined,
    reported,
    share_left,
)
from rendezvous.policy.retry import COOL_OFF_S, RETRY_AFTER_CAP_S
from swarm.model import RefusalCode


def turned_away(record: Record = CLEAN, now: float = 0.0, **said: Any) -> Record:
    values = {"why": "blocked", "retry_after_s": None, "prefix": "192.0.2.0/24", "granted_at": now, "careful": False}
    return reported(record, **{**values, **said}, now=now)


def test_a_report_makes_the_worker_wait_there_as_long_as_it_was_told() -> None:
    record = turned_away(retry_after_s=300.0)
    refusal = check_record(record, "site.test", now=0.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.COOLING_OFF, 300.0)
    assert refusal.message == ("this worker reported that site.test turned it away (blocked); it asks again in 300 s")
    assert refusal.details == {"host": "site.test"}
    assert check_record(record, "site.test", now=300.0) is None


@given(st.floats(0.0, 1e12))
def test_what_a_report_asks_for_is_heeded_within_bounds(retry_after_s: float) -> None:
    held_s = turned_away(retry_after_s=retry_after_s).held_until or 0.0
    assert COOL_OFF_S <= held_s <= RETRY_AFTER_CAP_S


def test_three_reports_within_the_window_are_due_for_a_quarantine() -> None:
    record = CLEAN
    for number in range(QUARANTINE_AFTER):
        assert not is_due(record, now=number * 100.0)
        record = turned_away(record, now=number * 100.0)
    assert is_due(record, now=300.0)


def test_who_is_in_quarantine_is_due_for_another_only_after_it() -> None:
    record = quarantined(CLEAN, for_s=1_000.0, by=None, why="a test", now=0.0)
    for number in range(QUARANTINE_AFTER):
        record = turned_away(record, now=number * 100.0)
    assert not is_due(record, now=300.0)
    assert is_due(record, now=1_000.0)


def test_reports_that_lie_far_apart_are_never_due() -> None:
    record = CLEAN
    for number in range(20):
        record = turned_away(record, now=number * (WINDOW_S / 2 + 1))
        assert not is_due(record, now=number * (WINDOW_S / 2 + 1))


def test_what_was_under_way_at_a_report_counts_with_it() -> None:
    record = turned_away(now=100.0)
    for _ in range(7):
        record = turned_away(record, now=101.0, granted_at=90.0)
    assert len(record.reports) == 1


def test_a_report_counts_for_the_window_and_no_longer() -> None:
    record = turned_away(turned_away(now=1e6), now=1e6 + 100.0)
    assert record.reports == (1e6, 1e6 + 100.0)
    assert turned_away(record, now=1e6 + WINDOW_S).reports == (1e6 + 100.0, 1e6 + WINDOW_S)


def test_what_was_granted_at_the_moment_of_a_report_was_under_way() -> None:
    record = turned_away(now=100.0)
    assert turned_away(record, now=101.0, granted_at=100.0).reports == (100.0,)
    assert turned_away(record, now=101.0, granted_at=100.5).reports == (100.0, 101.0)


def test_a_quarantine_that_the_count_brought_names_nobody() -> None:
    record = quarantined(CLEAN, for_s=60.0, by=None, why="3 blocks", now=0.0)
    refusal = check_record(record, "site.test", now=0.0)
    assert refusal is not None
    assert refusal.message == "this worker is in quarantine on site.test for 60 s more: 3 blocks"


def test_a_quarantine_doubles_each_time_up_to_a_day() -> None:
    assert [quarantine_s(times) for times in range(3)] == [QUARANTINE_S, 2 * QUARANTINE_S, 4 * QUARANTINE_S]
    assert quarantine_s(1_000_000) == LONGEST_QUARANTINE_S


def test_a_quarantine_is_said_with_who_and_why_and_ends() -> None:
    record = quarantined(turned_away(), for_s=60.0, by="olga", why="a test", now=0.0)
    refusal = check_record(record, "site.test", now=1.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.QUARANTINED, 59.0)
    assert refusal.message == "this worker is in quarantine on site.test by olga for 59 s more: a test"
    assert refusal.details == {"host": "site.test", "who": "olga", "why": "a test"}
    assert (record.quarantines, record.reports, record.is_clean(1.0)) == (1, (), False)
    assert check_record(lifted(record), "site.test", now=1.0) is None
    assert lifted(record) == Record(prefix="192.0.2.0/24", quarantines=1)


@pytest.mark.parametrize(
    ("prefix", "until"),
    [("198.51.100.0/24", 100.0), ("192.0.2.0/24", None), (None, None)],
    ids=["another network", "the same network", "nobody knows"],
)
def test_a_host_rests_for_all_only_when_another_network_agrees(prefix: str | None, until: float | None) -> None:
    mine = turned_away(retry_after_s=200.0)
    other = turned_away(retry_after_s=100.0, prefix=prefix)
    assert agreed_until(mine, [other], now=0.0) == until
    assert agreed_until(other, [mine], now=0.0) == until


def test_a_lie_about_how_long_is_bounded_by_what_the_honest_one_was_told() -> None:
    liar = turned_away(retry_after_s=1e9)
    honest = turned_away(retry_after_s=120.0, prefix="198.51.100.0/24")
    assert agreed_until(liar, [honest], now=0.0) == 120.0
    assert agreed_until(honest, [liar], now=0.0) == 120.0
    assert agreed_until(liar, [honest], now=121.0) is None
    assert agreed_until(liar, [honest], now=120.0) is None


def test_what_comes_from_a_quarantine_goes_to_no_newcomer_and_by_preference_to_a_clean_record() -> None:
    assert check_careful(CLEAN, proven=True, cleaner=True, now=0.0) is None
    newcomer = check_careful(CLEAN, proven=False, cleaner=False, now=0.0)
    assert newcomer is not None
    assert newcomer.code is RefusalCode.NEWCOMER
    assert newcomer.message == (
        "the task was taken from a worker in quarantine, and none of this worker's work has been accepted yet"
    )
    troubled = turned_away()
    second = check_careful(troubled, proven=True, cleaner=True, now=1.0)
    assert second is not None
    assert second.code is RefusalCode.PASSED_OVER
    assert second.message == (
        "the task was taken from a worker in quarantine: those with a clean record on its host are asked first"
    )
    assert check_careful(troubled, proven=True, cleaner=False, now=1.0) is None
    assert check_careful(troubled, proven=True, cleaner=True, now=WINDOW_S) is None
    later = turned_away(now=1e6)
    assert check_careful(later, proven=True, cleaner=True, now=1e6 + 1.0) is not None


def test_a_worker_that_a_hundred_sites_turn_away_has_a_trouble_of_its_own() -> None:
    assert check_troubled(TROUBLED_HOSTS - 1) is None
    refusal = check_troubled(TROUBLED_HOSTS)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.QUARANTINED, COOL_OFF_S)
    assert refusal.message == (
        "100 sites turn this worker away at once: it gets nothing before some of that has passed"
    )
    assert refusal.details == {"hosts": TROUBLED_HOSTS}


def test_of_two_workers_one_is_left_half_of_the_pace() -> None:
    assert [share_left(workers) for workers in (1, 2, 4)] == [1.0, 0.5, 0.75]


@given(st.integers(1, 1_000))
def test_nobody_gets_faster_when_another_is_quarantined(workers: int) -> None:
    share = share_left(workers)
    if workers == 1:
        assert share == 1.0
    else:
        assert share / (workers - 1) == pytest.approx(1.0 / workers)


def test_a_record_that_was_careful_stays_so_until_the_quarantine() -> None:
    record = turned_away(turned_away(careful=True), now=100.0)
    assert record.careful
    assert not turned_away(turned_away()).careful
    assert not quarantined(record, for_s=1.0, by=None, why="", now=0.0).careful
    assert attrs.evolve(record, careful=False) != record
