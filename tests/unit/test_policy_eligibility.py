"""May this worker have that task?"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from rendezvous.policy.egress import Flag
from rendezvous.policy.eligibility import (
    Candidate,
    Demand,
    Rules,
    check_demand,
    check_passed_over,
    check_suspect,
    decide,
)
from rendezvous.policy.pacing import Bucket, new_bucket
from rendezvous.policy.pauses import Pause, Scope, pauses_of
from rendezvous.policy.records import CLEAN, quarantined
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


def demand(**requires: Any) -> Demand:
    return Demand(tier="bulk", kind="fetch", requires=Requires(**requires))


def test_a_worker_without_the_kind_is_refused() -> None:
    refusal = check_demand(demand(), Said(kinds=frozenset({"noop"})))
    assert refusal is not None
    assert refusal.code is RefusalCode.KIND_UNSUPPORTED


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


def test_who_lost_it_is_passed_over_only_while_another_can_run_it() -> None:
    lost = attrs.evolve(demand(), passed_over=frozenset({7}))
    refusal = check_passed_over(lost, 7, another=True)
    assert refusal is not None
    assert refusal.code is RefusalCode.PASSED_OVER
    assert check_passed_over(lost, 7, another=False) is None
    assert check_passed_over(lost, 8, another=True) is None


def test_who_holds_a_suspect_task_gets_no_other_suspect() -> None:
    suspect = attrs.evolve(demand(), suspect=True)
    refusal = check_suspect(suspect, holds_suspect=True)
    assert refusal is not None
    assert refusal.code is RefusalCode.SUSPECT_HELD
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
        refusal = decide(
            asked,
            "site.test",
            bucket,
            Candidate(number=1, facts=said, **{"holds_suspect": True, **known}),
            rules=rules,
            job="a-job",
            another=True,
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
    assert code(suspect, Said()) is RefusalCode.SUSPECT_HELD
    assert code(demand(), Said()) is RefusalCode.HOST_PACED
    assert code(demand(), Said(), attrs.evolve(BUCKET, paused=True)) is RefusalCode.PAUSED
    assert code(demand(), Said(), BUCKET) is None
