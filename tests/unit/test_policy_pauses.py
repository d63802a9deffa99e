"""What is paused, by whom and why."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rendezvous.policy.pauses import Pause, Pauses, Scope, check_paused, pauses_of
from swarm.model import RefusalCode

AT = datetime(2026, 11, 3, 14, 5, 9, tzinfo=UTC).timestamp()


def pause(scope: Scope, name: str = "", why: str = "a test") -> Pause:
    return Pause(scope=scope, name=name, who="olga", why=why, since=AT)


EVERYTHING, SITE, JOB = pause(Scope.SWARM), pause(Scope.HOST, "site.test"), pause(Scope.JOB, "a-job")


def test_pauses_are_sorted_by_what_they_stop() -> None:
    assert pauses_of([SITE, EVERYTHING, JOB]) == Pauses(
        swarm=EVERYTHING, hosts={"site.test": SITE}, jobs={"a-job": JOB}
    )
    assert pauses_of([]) == Pauses()


@pytest.mark.parametrize(
    ("paused", "what"),
    [([EVERYTHING], "the swarm"), ([SITE], "host site.test"), ([JOB], "job a-job")],
    ids=["swarm", "host", "job"],
)
def test_a_pause_is_said_with_what_who_when_and_why(paused: list[Pause], what: str) -> None:
    refusal = check_paused(pauses_of(paused), host="site.test", job="a-job")
    assert refusal is not None
    assert refusal.code is RefusalCode.PAUSED
    assert refusal.message == f"{what} was paused by olga at 2026-11-03 14:05:09 UTC: a test"
    (one,) = paused
    assert refusal.details == {
        "scope": one.scope.value, "name": one.name, "who": "olga", "why": "a test", "since": AT
    }  # fmt: skip


def test_a_pause_without_a_reason_says_so() -> None:
    refusal = check_paused(pauses_of([pause(Scope.SWARM, why="")]))
    assert refusal is not None
    assert refusal.message.endswith(" UTC: no reason given")


def test_of_several_pauses_the_widest_is_said() -> None:
    for paused, widest in (([JOB, SITE, EVERYTHING], EVERYTHING), ([JOB, SITE], SITE)):
        refusal = check_paused(pauses_of(paused), host="site.test", job="a-job")
        assert refusal is not None
        assert refusal.details is not None
        assert refusal.details["scope"] == widest.scope.value


def test_other_hosts_and_jobs_go_on() -> None:
    assert check_paused(pauses_of([SITE, JOB]), host="other.test", job="another") is None
    assert check_paused(pauses_of([SITE, JOB])) is None
    assert check_paused(Pauses(), host="site.test", job="a-job") is None


def test_whoever_asks_about_no_host_or_no_job_is_told_of_the_other() -> None:
    assert check_paused(pauses_of([SITE, JOB]), job="a-job") is not None
    assert check_paused(pauses_of([SITE, JOB]), host="site.test") is not None
