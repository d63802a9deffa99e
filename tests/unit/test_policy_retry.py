"""What follows a failure, and how long a dedupe key must live."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.policy.retry import (
    RetryRules,
    backoff_s,
    check_dedupe_ttl,
    counts_restart,
    is_suspect,
    longest_hold_s,
    retry_delay_s,
    retry_horizon_s,
)
from swarm.model import Reason, RefusalCode

RULES = RetryRules()


def delay(reason: str, *, attempts: int = 1, **changes: object) -> float | None:
    values: dict[str, object] = {"said_retryable": None, "max_attempts": 3, "rules": RULES}
    return retry_delay_s(reason, attempts=attempts, rng=random.Random(1), **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("failures", "base_s"), [(1, 15.0), (2, 30.0), (3, 60.0), (12, 3600.0)])
def test_backoff_doubles_with_jitter_up_to_an_hour(failures: int, base_s: float) -> None:
    rng = random.Random(3)
    waits = [backoff_s(failures, rules=RULES, rng=rng) for _ in range(200)]
    assert base_s <= min(waits) < base_s * 1.02
    assert base_s * 1.23 < max(waits) <= base_s * 1.25


@pytest.mark.parametrize("reason", ["dns", "connect", "timeout", "http_5xx", "http_408", "blocked"])
def test_retryable_reasons_wait(reason: str) -> None:
    assert delay(reason) is not None


@pytest.mark.parametrize("reason", ["http_4xx", "tls", "robots", "too_large", "selector_missing", "bad_spec"])
def test_other_reasons_are_final_whatever_the_executor_says(reason: str) -> None:
    assert delay(reason, said_retryable=True) is None


def test_an_executors_own_word_is_retried_as_it_says_or_as_the_operator_declares() -> None:
    assert delay("selector-removed") is None
    assert delay("selector-removed", said_retryable=True) is not None
    assert delay("selector-removed", rules=RetryRules(extra_retryable=frozenset({"selector-removed"}))) is not None


def test_the_last_attempt_is_final() -> None:
    assert delay("timeout", attempts=2) is not None
    assert delay("timeout", attempts=3) is None


def test_a_block_cools_off_for_a_minute_at_least() -> None:
    assert delay(Reason.BLOCKED) == 60.0


def test_no_backoff_is_possible() -> None:
    assert delay("timeout", rules=RetryRules(backoff_s=0.0)) == 0.0


def test_a_dedupe_ttl_shorter_than_the_retries_is_refused_with_the_arithmetic() -> None:
    horizon_s = retry_horizon_s(max_attempts=3, max_run_s=300.0, rules=RULES)
    assert horizon_s == 2 * 3600.0 + 2 * 1200.0
    least_s = horizon_s + longest_hold_s(300.0)
    refusal = check_dedupe_ttl(least_s, max_attempts=3, max_run_s=300.0, rules=RULES)
    assert refusal is not None
    assert refusal.code is RefusalCode.DEDUPE_TTL_TOO_SHORT
    assert "9600 s (retries) + 1200 s (longest lease) = 10800 s" in refusal.message
    assert refusal.message.endswith("ask for more than 10800")
    assert refusal.details == {"retry_horizon_s": 9_600.0, "longest_lease_s": 1_200.0, "least_ttl_s": 10_800.0}
    assert check_dedupe_ttl(least_s + 1.0, max_attempts=3, max_run_s=300.0, rules=RULES) is None


@pytest.mark.parametrize(
    ("rules", "wait_s"),
    [
        (RetryRules(backoff_s=1e9), 3_600.0 * 1.25),
        (RetryRules(backoff_s=3_200.0), 3_200.0 * 1.25),
        (RetryRules(cool_off_s=7_200.0), 7_200.0),
        (RetryRules(backoff_s=0.0, cool_off_s=0.0), 3_600.0),
    ],
    ids=["capped backoff", "backoff", "cooling off", "what a site asks for"],
)
def test_the_horizon_holds_the_longest_wait_that_there_can_be(rules: RetryRules, wait_s: float) -> None:
    assert retry_horizon_s(max_attempts=2, max_run_s=100.0, rules=rules) == wait_s + longest_hold_s(100.0)
    assert retry_horizon_s(max_attempts=1, max_run_s=100.0, rules=rules) == 0.0


@given(
    max_attempts=st.integers(1, 20),
    max_run_s=st.floats(1.0, 3600.0),
    seed=st.integers(0, 1000),
)
def test_a_task_never_outlives_a_dedupe_ttl_that_is_accepted(max_attempts: int, max_run_s: float, seed: int) -> None:
    rng = random.Random(seed)
    elapsed_s = 0.0
    for attempt in range(1, max_attempts + 1):
        elapsed_s += longest_hold_s(max_run_s)
        wait = retry_delay_s(
            "blocked",
            said_retryable=None,
            attempts=attempt,
            max_attempts=max_attempts,
            rules=RULES,
            rng=rng,
        )
        elapsed_s += wait or 0.0
    horizon_s = retry_horizon_s(max_attempts=max_attempts, max_run_s=max_run_s, rules=RULES)
    accepted_s = horizon_s + longest_hold_s(max_run_s) + 1e-3
    assert check_dedupe_ttl(accepted_s, max_attempts=max_attempts, max_run_s=max_run_s, rules=RULES) is None
    assert elapsed_s < accepted_s


def test_the_first_restart_is_forgiven_and_makes_a_suspect_all_the_same() -> None:
    assert [counts_restart(restarts) for restarts in (1, 2, 3)] == [False, True, True]
    assert is_suspect(losses=1, restarts=1, attempts=0, max_attempts=3)


def test_leases_that_ran_out_make_a_suspect_before_the_last_attempt() -> None:
    assert not is_suspect(losses=1, restarts=0, attempts=1, max_attempts=3)
    assert is_suspect(losses=1, restarts=0, attempts=2, max_attempts=3)
    assert not is_suspect(losses=0, restarts=0, attempts=2, max_attempts=3)
