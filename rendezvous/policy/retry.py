"""What follows a failure or a lost worker: another attempt after a while, or the dead letter?

Backoff is 15 s × 2ⁿ with jitter. What a worker says that a site asks for (``Retry-After``) isn't the task's affair, but
the worker's on that host (``records.py``): another worker may have the task meanwhile. The longest that all
attempts together can take is computed here too, since a dedupe key must outlive it. Nothing here knows a task's row.
"""

from __future__ import annotations

import random
from typing import Final

import attrs

from rendezvous.policy.leases import LONGEST_LEASE_S
from swarm.model import Reason, Refusal, RefusalCode, is_retryable

__all__ = [
    "COOL_OFF_S",
    "PASSED_OVER_S",
    "RETRY_AFTER_CAP_S",
    "RetryRules",
    "backoff_s",
    "check_dedupe_ttl",
    "counts_restart",
    "is_suspect",
    "longest_hold_s",
    "retry_delay_s",
    "retry_horizon_s",
]

#: DESIGN §8: "Backoff 15 s × 2ⁿ with jitter".
BACKOFF_S: Final = 15.0
#: Jitter lengthens only: a site that is overloaded gains nothing from a shorter wait.
BACKOFF_JITTER: Final = 0.25
#: 20 attempts would otherwise wait for 45 days.
BACKOFF_CAP_S: Final = 3600.0
#: A site may ask for an hour; asking for a year would park the task for good.
RETRY_AFTER_CAP_S: Final = 3600.0
#: After 403, 429 or a challenge page nothing is asked of the site for this task for at least so long.
COOL_OFF_S: Final = 60.0
#: How long a worker that lost a task is passed over for it at most (DESIGN §3).
PASSED_OVER_S: Final = 600.0
#: So often a worker may start anew with a task in hand before that says anything of the task: machines are rebooted.
FORGIVEN_RESTARTS: Final = 1


@attrs.frozen(kw_only=True)
class RetryRules:
    """What an operator may set of the rules; the defaults are DESIGN §8's.

    Args:
        backoff_s: the wait after the first failure, doubled by each further one.
        cool_off_s: the shortest wait after ``blocked``.
        extra_retryable: executors' own reasons that the operator declares retryable.
    """

    backoff_s: float = BACKOFF_S
    cool_off_s: float = COOL_OFF_S
    extra_retryable: frozenset[str] = frozenset()


def backoff_s(failures: int, *, rules: RetryRules, rng: random.Random) -> float:
    """The wait after the n-th failure (from 1), seconds."""
    return _base_s(failures, rules) * (1.0 + BACKOFF_JITTER * rng.random())


def _base_s(failures: int, rules: RetryRules) -> float:
    return min(rules.backoff_s * 2.0 ** (failures - 1), BACKOFF_CAP_S)


def retry_delay_s(
    reason: str,
    *,
    said_retryable: bool | None,
    attempts: int,
    max_attempts: int,
    rules: RetryRules,
    rng: random.Random,
) -> float | None:
    """How long to wait before the next attempt; None where there is none: the task is a dead letter.

    Args:
        reason: a ``Reason``, or an executor's own word.
        said_retryable: what the executor said of its own word.
        attempts: attempts used up, this one included.
        max_attempts: how many the task has.
        rules: the ledger's.
        rng: for the jitter.
    """
    retryable = is_retryable(reason, said_retryable) or reason in rules.extra_retryable
    if not retryable or attempts >= max_attempts:
        return None
    delay_s = backoff_s(attempts, rules=rules, rng=rng)
    if reason == Reason.BLOCKED:
        delay_s = max(delay_s, rules.cool_off_s)
    return delay_s


def counts_restart(restarts: int) -> bool:
    """Whether a task is charged with the end of a worker that started anew while it held the task.

    Args:
        restarts: how often that happened to the task, on whatever workers, this time included.
    """
    return restarts > FORGIVEN_RESTARTS


def is_suspect(*, losses: int, restarts: int, attempts: int, max_attempts: int) -> bool:
    """Whether a task may be what ends its workers: two such tasks are never given to one worker at once.

    A worker that dies with one suspect in hand says which task it was; those that were lost along with it, and are
    suspects for it, aren't there to be charged. After a restart every task that was in hand is a suspect; after leases
    that ran out, which mostly means a network, only before the last attempt.

    Args:
        losses: how often workers were lost with it, restarts included.
        restarts: how many of these were restarts.
        attempts: attempts used up.
        max_attempts: how many the task has.
    """
    return restarts > 0 or (losses > 0 and attempts >= max_attempts - 1)


def longest_hold_s(max_run_s: float) -> float:
    """The longest that one grant can hold a task: renewed until ``max_run_s``, then one lease more."""
    return max_run_s + LONGEST_LEASE_S


def retry_horizon_s(*, max_attempts: int, max_run_s: float, rules: RetryRules) -> float:
    """The longest from the first grant of a task to its last: holds and waits of all attempts but the last."""
    waits_s = sum(
        max(_base_s(failures, rules) * (1.0 + BACKOFF_JITTER), rules.cool_off_s, RETRY_AFTER_CAP_S)
        for failures in range(1, max_attempts)
    )
    return waits_s + (max_attempts - 1) * longest_hold_s(max_run_s)


def check_dedupe_ttl(ttl_s: float, *, max_attempts: int, max_run_s: float, rules: RetryRules) -> Refusal | None:
    """Refuse a dedupe key that would be forgotten while its task can still be run again.

    Args:
        ttl_s: how long the key is to be remembered after the task ended, seconds.
        max_attempts: of the task.
        max_run_s: of the task.
        rules: the ledger's.

    Returns:
        A ``Refusal`` with the arithmetic, or None where the time is long enough.
    """
    horizon_s = retry_horizon_s(max_attempts=max_attempts, max_run_s=max_run_s, rules=rules)
    hold_s = longest_hold_s(max_run_s)
    if ttl_s > horizon_s + hold_s:
        return None
    return Refusal(
        RefusalCode.DEDUPE_TTL_TOO_SHORT,
        f"dedupe.ttl_s is {ttl_s:.0f}, but {max_attempts} attempts of up to {max_run_s:.0f} s can take "
        f"{horizon_s:.0f} s (retries) + {hold_s:.0f} s (longest lease) = {horizon_s + hold_s:.0f} s: "
        f"ask for more than {horizon_s + hold_s:.0f}",
        details={"retry_horizon_s": horizon_s, "longest_lease_s": hold_s, "least_ttl_s": horizon_s + hold_s},
    )
