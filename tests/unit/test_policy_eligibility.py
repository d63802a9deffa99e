"""May this worker have that task?"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from rendezvous.policy.contexts import Context
from rendezvous.policy.egress import Flag
from rendezvous.policy.eligibility import (
    Candidate,
    Contexts,
    Demand,
    Rules,
    check_contexts,
    check_demand,
    check_passed_over,
    check_suspect,
    decide,
)
from rendezvous.policy.hours import parse_hours
from rendezvous.policy.pacing import Bucket, new_bucket
from rendezvous.policy.pauses import Pause, Scope, pauses_of
from rendezvous.policy.records import CLEAN, Record, quarantined
from rendezvous.policy.retry import PASSED_OVER_S
from swarm.model import RefusalCode
from swarm.wire import Requires

BUCKET = new_bucket(rate_per_s=1.0, burst=1.0, now=0.0)


@attrs.frozen(kw_only=True)
class Said:
    kinds: frozenset[str] = frozenset({"fetch"})
    labels: frozenset[str] = frozenset()
    region: str | None = None
    versions: dict[str, str] = attrs.field(factory=dict)
    prefix: str | None = None
    slots: int = 8


def demand(**requires: Any) -> Demand:
    return Demand(tier="bulk", kind="fetch", requires=Requires(**requires))


def test_a_worker_without_the_kind_is_refused() -> None:
    refusal = check_demand(demand(), Said(kinds=frozenset({"noop"})))
    assert refusal is not None
    assert refusal.code is RefusalCode.KIND_UNSUPPORTED
    assert refusal.message == "this worker doesn't run tasks of the kind fetch"


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        ({"region": "eu"}, {"region": "eu"}),
        ({"labels": ("gpu", "big")}, {"labels": frozenset({"gpu", "big", "more"})}),
        ({"versions": {"fetch": "2"}}, {"versions": {"fetch": "2", "noop": "1"}}),
        ({"profile": "osaka"}, {"labels": frozenset({"profile:osaka"})}),
    ],
)
def test_each_requirement_is_met_by_who_says_so_and_by_nobody_else(
    requires: dict[str, Any], said: dict[str, Any]
) -> None:
    assert check_demand(demand(**requires), Said(**said)) is None
    refusal = check_demand(demand(**requires), Said())
    assert refusal is not None
    assert refusal.code is (RefusalCode.PROFILE if "profile" in requires else RefusalCode.REQUIRES_UNMET)


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ({"profile": "osaka"}, "the task is of the profile osaka, which this worker doesn't have"),
        ({"region": "eu"}, "the task asks for the region eu, which this worker doesn't have"),
        ({"labels": ("gpu",)}, "the task asks for the label gpu, which this worker doesn't have"),
        ({"versions": {"fetch": "2"}}, "the task asks for fetch 2, which this worker doesn't have"),
    ],
)
def test_who_lacks_something_is_told_what(requires: dict[str, Any], message: str) -> None:
    refusal = check_demand(demand(**requires), Said())
    assert refusal is not None
    assert refusal.message == message


def test_a_profile_and_a_session_are_this_workers_to_use_or_it_is_refused() -> None:
    both = demand(profile="osaka", session="s")
    mine, other = Context(worker=1, used_at=0.0), Context(worker=2, used_at=0.0)

    def code(asked: Demand, **known: Context) -> RefusalCode | None:
        refusal = check_contexts(asked, Contexts(**known), 1, now=100.0)
        return None if refusal is None else refusal.code

    assert code(both) is None
    assert code(both, profile=mine, session=mine) is None
    assert code(both, profile=other, session=other) is RefusalCode.PROFILE
    assert code(both, profile=mine, session=other) is RefusalCode.SESSION_ELSEWHERE
    assert code(demand(profile="osaka"), profile=mine, session=other) is None
    assert code(demand(session="s"), profile=other, session=mine) is None
    assert [each.has_context for each in (demand(), demand(profile="osaka"), demand(session="s"))] == [
        False, True, True
    ]  # fmt: skip


def test_a_refused_context_is_named() -> None:
    other = Context(worker=2, used_at=0.0)
    contexts = Contexts(profile=other, session=other)
    for asked, name in ((demand(profile="osaka"), "the profile osaka"), (demand(session="s9"), "the session s9")):
        refusal = check_contexts(asked, contexts, 1, now=1.0)
        assert refusal is not None
        assert name in refusal.message


def test_who_lost_it_is_passed_over_only_while_another_can_run_it() -> None:
    lost = attrs.evolve(demand(), passed_over=frozenset({7}))
    refusal = check_passed_over(lost, 7, another=True)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.PASSED_OVER, PASSED_OVER_S)
    assert refusal.message == "this worker lost the task before; others are asked first for up to 10 min"
    assert check_passed_over(lost, 7, another=False) is None
    assert check_passed_over(lost, 8, another=True) is None


def test_who_holds_a_suspect_task_gets_no_other_suspect() -> None:
    suspect = attrs.evolve(demand(), suspect=True)
    refusal = check_suspect(suspect, holds_suspect=True)
    assert refusal is not None
    assert refusal.code is RefusalCode.SUSPECT_HELD
    assert "one at a time, so that it shows which of them it was" in refusal.message
    assert check_suspect(suspect, holds_suspect=False) is None
    assert check_suspect(demand(), holds_suspect=True) is None


def test_the_first_rule_that_refuses_is_the_one_that_is_said() -> None:
    empty = attrs.evolve(BUCKET, tokens=0.0)
    lost = attrs.evolve(demand(region="eu"), passed_over=frozenset({1}), suspect=True)
    suspect = attrs.evolve(demand(), suspect=True)
    pause = Pause(scope=Scope.JOB, name="a-job", who="olga", why="a test", since=0.0)
    quarantine = quarantined(CLEAN, for_s=60.0, by="olga", why="a test", now=0.0)

    def code(asked: Demand, said: Said, bucket: Bucket = empty, **known: Any) -> Any:
        rules = Rules(**{name: known.pop(name) for name in ("pauses", "approved") if name in known})
        slow = known.pop("slow", False)
        refusal = decide(
            asked,
            "site.test",
            bucket,
            Candidate(number=1, facts=said, **{"holds_suspect": True, **known}),
            rules=rules,
            job="a-job",
            another=True,
            slow=slow,
            now=0.0,
        )
        return None if refusal is None else refusal.code

    assert code(lost, Said(), pauses=pauses_of([pause])) is RefusalCode.PAUSED
    assert code(lost, Said()) is RefusalCode.REQUIRES_UNMET
    europe = Said(region="eu")
    assert code(lost, europe, approved={"fetch": {"2"}}, record=quarantine) is RefusalCode.VERSION_NOT_APPROVED
    flag = Flag(until=60.0, why="a test")
    careful = attrs.evolve(lost, careful=True)
    assert code(lost, europe, held=16, budget=16, troubled=100) is RefusalCode.CLAIM_BUDGET
    assert code(lost, europe, troubled=100, flag=flag) is RefusalCode.QUARANTINED
    assert code(lost, europe, flag=flag, record=quarantine) is RefusalCode.EGRESS_FLAGGED
    assert code(lost, europe, record=quarantine, crowded=True) is RefusalCode.QUARANTINED
    assert code(careful, europe, crowded=True, proven=False) is RefusalCode.PREFIX_TAKEN
    assert code(careful, europe, proven=False) is RefusalCode.NEWCOMER
    assert code(lost, europe) is RefusalCode.PASSED_OVER
    assert code(suspect, Said(), slow=True, slow_held=4, others=True) is RefusalCode.SUSPECT_HELD
    assert code(demand(), Said(), slow=True, slow_held=4, others=True) is RefusalCode.HOST_SLOW
    assert code(demand(), Said()) is RefusalCode.HOST_PACED
    assert code(demand(), Said(), attrs.evolve(BUCKET, paused=True)) is RefusalCode.PAUSED
    assert code(demand(), Said(), BUCKET) is None


NOW = 12 * 3_600.0  #: noon, UTC
QUARANTINE = quarantined(CLEAN, for_s=60.0, by="olga", why="a test", now=NOW)
WAITS = Record(held_until=NOW + 60.0, held_why="blocked", reports=(NOW,))
EMPTY = attrs.evolve(BUCKET, tokens=0.0, refilled_at=NOW)
ELSEWHERE = Contexts(session=Context(worker=2, used_at=NOW))


def pause(scope: Scope, name: str) -> Pause:
    return Pause(scope=scope, name=name, who="olga", why="a test", since=0.0)


@pytest.mark.parametrize(
    ("asked", "known", "said"),
    [
        ({}, {"rules": Rules(pauses=pauses_of([pause(Scope.HOST, "site.test")]))}, "host site.test was paused by olga"),
        ({}, {"rules": Rules(pauses=pauses_of([pause(Scope.JOB, "a-job")]))}, "job a-job was paused by olga"),
        ({}, {"rules": Rules(pauses=pauses_of([pause(Scope.HOST, "other.test"), pause(Scope.JOB, "other")]))}, None),
        ({}, {"rules": Rules(approved={"worker": {"2.0"}})}, "worker 1.0 isn't approved here; approved: 2.0"),
        ({}, {"rules": Rules(approved={"fetch": {"2"}})}, "fetch of no known version isn't approved here"),
        ({}, {"rules": Rules(hours=dict([parse_hours("eu=UTC,13:00-14:00")]))}, "it is 12:00 in eu"),
        ({}, {"rules": Rules(hours=dict([parse_hours("eu=UTC,11:00-14:00")]))}, None),
        ({"session": "s"}, {"contexts": ELSEWHERE}, "another worker began the session s"),
        ({"session": "s"}, {"contexts": Contexts(session=Context(worker=1, used_at=NOW))}, None),
        ({"session": "s"}, {}, None),
        ({"session": "s"}, {"contexts": Contexts(session=Context(worker=2, used_at=NOW - 3_600.0))}, None),
        ({}, {"held": 4, "budget": 4}, "this worker holds 4 tasks and may hold 4"),
        ({}, {"held": 3, "budget": 4}, None),
        ({}, {"troubled": 100}, "100 sites turn this worker away at once"),
        ({}, {"flag": Flag(until=NOW + 60.0, why="a test")}, "192.0.2.0/24 is kept off site.test for 60 s more"),
        ({}, {"flag": Flag(until=NOW, why="a test")}, None),
        ({}, {"record": QUARANTINE}, "this worker is in quarantine on site.test by olga for 60 s more: a test"),
        ({}, {"record": WAITS}, "this worker reported that site.test turned it away (blocked); it asks again in 60 s"),
        ({}, {"crowded": True}, "another worker of the network 192.0.2.0/24 has a task of site.test"),
        ({"careful": True}, {"proven": False}, "none of this worker's work has been accepted yet"),
        ({"careful": True}, {}, None),
        ({"careful": True}, {"record": attrs.evolve(WAITS, held_until=None), "cleaner": True}, "with a clean record"),
        ({"careful": True}, {"record": attrs.evolve(WAITS, held_until=None)}, None),
        ({"careful": True}, {"record": Record(reports=(NOW - 1_800.0,)), "cleaner": True}, None),
        ({}, {"proven": False, "record": attrs.evolve(WAITS, held_until=None), "cleaner": True}, None),
        ({"passed_over": frozenset({1})}, {"another": True}, "this worker lost the task before"),
        ({"passed_over": frozenset({1})}, {}, None),
        ({"passed_over": frozenset({1}), "careful": True}, {}, "this worker lost the task before"),
        ({"passed_over": frozenset({2})}, {"another": True}, None),
        ({"suspect": True}, {"holds_suspect": True}, "this worker holds another such task"),
        ({"suspect": True}, {}, None),
        ({}, {"slow": True, "slow_held": 4, "others": True}, "site.test keeps tasks for more than 3 s; of its 8 slots"),
        ({}, {"slow": True, "slow_held": 3, "others": True}, None),
        ({}, {"slow": True, "slow_held": 4}, None),
        ({}, {"slow_held": 4, "others": True}, None),
        ({}, {"swarm": EMPTY}, "the swarm sends at most 1 requests a second; the next turn is in 1.0 s"),
        ({}, {"swarm": BUCKET}, None),
        ({}, {"bucket": EMPTY}, "site.test is asked at most 1 times a second; the next turn is in 1.0 s"),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_each_rule_is_asked_of_what_is_known_and_says_so(
    asked: dict[str, Any], known: dict[str, Any], said: str | None
) -> None:
    requires = Requires(session=asked.get("session"))
    marks = {name: value for name, value in asked.items() if name != "session"}
    facts = Said(region="eu", prefix="192.0.2.0/24", versions={"worker": "1.0"})
    own = ("rules", "contexts", "another", "cleaner", "slow", "swarm", "bucket")
    candidate = Candidate(number=1, facts=facts, **{name: known[name] for name in known if name not in own})
    refusal = decide(
        Demand(tier="bulk", kind="fetch", requires=requires, **marks),
        "site.test",
        known.get("bucket", BUCKET),
        candidate,
        rules=known.get("rules", Rules()),
        job="a-job",
        another=known.get("another", False),
        now=NOW,
        **{name: known[name] for name in ("contexts", "cleaner", "slow", "swarm") if name in known},
    )
    assert (None if refusal is None else said is not None and said in refusal.message) == (
        None if said is None else True
    )


def test_against_a_worker_of_whom_nothing_is_known_nothing_is_held() -> None:
    candidate = Candidate(number=1, facts=Said(), budget=1)
    assert (candidate.held, candidate.troubled, candidate.proven) == (0, 0, True)
    assert (candidate.slow_held, candidate.others) == (0, False)
    marks = (candidate.crowded, candidate.holds_suspect, demand().suspect, demand().careful, demand().parked)
    assert not any(marks)
    assert decide(demand(), "site.test", BUCKET, candidate, rules=Rules(), job=None, another=True, now=0.0) is None
