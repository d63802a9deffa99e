"""When the operator is called: the thresholds, and the room between on and off."""

from __future__ import annotations

import pytest

from rendezvous.policy.alarms import AlarmRules, Counts, check_count, check_queue_age, check_success

RULES = AlarmRules(success=0.5, queue_age_s=100.0, expiries=10, blocks=5)


@pytest.mark.parametrize(
    ("done", "failed", "lasts", "dips"),
    [
        (9, 11, False, True),
        (10, 10, False, False),
        (0, 19, False, False),  # too few to say
        (11, 9, True, True),  # better, but not clearly
        (12, 8, True, False),
        (0, 10, True, True),
        (0, 9, True, False),  # hardly anything happens any more
        (0, 0, True, False),
    ],
)
def test_a_dip_begins_below_the_share_and_ends_clearly_above_it(
    done: int, failed: int, lasts: bool, dips: bool
) -> None:
    assert check_success(Counts(done=done, failed=failed), RULES, lasts=lasts) is dips


@pytest.mark.parametrize(
    ("count", "lasts", "too_many"), [(9, False, False), (10, False, True), (8, True, True), (7, True, False)]
)
def test_a_count_ends_only_clearly_below_its_threshold(count: int, lasts: bool, too_many: bool) -> None:
    assert check_count(count, 10, lasts=lasts) is too_many


def test_one_is_a_threshold_too() -> None:
    assert check_count(1, 1, lasts=False)
    assert not check_count(0, 1, lasts=False)


def test_zero_turns_a_rule_off() -> None:
    off = AlarmRules(success=0.0, queue_age_s=0.0)
    assert not check_success(Counts(failed=1_000), off, lasts=False)
    assert not check_queue_age(1e9, off, lasts=False)
    assert not check_count(1_000, 0, lasts=False)


def test_an_empty_queue_is_never_old() -> None:
    assert not check_queue_age(None, RULES, lasts=True)
    assert check_queue_age(100.0, RULES, lasts=False)
    assert not check_queue_age(90.0, RULES, lasts=False)
    assert check_queue_age(90.0, RULES, lasts=True), "shorter, but not clearly"
