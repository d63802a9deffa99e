"""The published run of a worker fleet, step by step against the real ledger, on a clock that the run owns.

Outcomes, fences and all counts must be those of the published table. Its ablation (a key that is unique to each
delivery, and no duplicate check) applied an effect twice; here no setting and no key can.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rendezvous.ledger.act_ops import FailByHand, Quarantine, TakeBack
from rendezvous.ledger.ops import LeaseRef
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from rendezvous.policy.retry import RetryRules
from swarm.content.cid import raw_cid
from swarm.model import Move, Refusal, RefusalCode, Status
from swarm.wire import Requires
from tests.rendezvous.ledger_world import START, World, check_consistency, new_task

RUN: Final = json.loads((Path(__file__).parents[1] / "vectors" / "fleet.json").read_text())
HOST: Final = "target.test"
#: As the file's notes say: no backoff, no pacing; the reason is declared as one that is tried again.
PUBLISHED: Final = LedgerSettings(
    host_rate_per_s=0,
    newcomer_budget=0,
    first_lease_s=RUN["lease_ttl_s"],
    retry=RetryRules(backoff_s=0.0, extra_retryable=frozenset({"selector-removed"})),
)
REQUEUED: Final = {Status.PENDING: "requeued", Status.WAITING: "requeued", Status.FAILED: "dead"}


class Replay:
    """The run's steps, and the counts that it publishes.

    Args:
        world: a fresh ledger.
        key_per_delivery: each delivery of a result is another one: its key, and so its content, is its own.
        as_published: whether each step must come out as published.
    """

    def __init__(self, world: World, *, key_per_delivery: bool = False, as_published: bool = True) -> None:
        self.world = world
        self.key_per_delivery = key_per_delivery
        self.as_published = as_published
        self.counts: Counter[str] = Counter()
        self.deliveries = 0
        self.tasks: dict[str, str] = {}
        for step in RUN["steps"]:
            name = step.get("task")
            if name is not None and name not in self.tasks:
                requires = Requires(profile=step.get("requires_profile"))
                key = f"{name}-{len(self.tasks)}" if key_per_delivery else name
                task = new_task(host=HOST, requires=requires, max_attempts=RUN["max_attempts"], dedupe_key=key)
                self.tasks[name] = world.submit(task)[0]

    def run(self) -> None:
        """Do all steps."""
        for step in RUN["steps"]:
            self.world.now = START + step["at_s"]
            before = len(self.world.events)
            found = getattr(self, step["do"])(step)
            expected = {name: value for name, value in step["expect"].items() if name != "door"}
            if self.as_published:
                assert found == expected, step
            self.counts["side_effects"] += sum(event.move is Move.COMPLETE for event in self.world.events[before:])

    def published(self) -> dict[str, Any]:
        """The counts as the run's table has them; the ratio is of effects that were applied, a job."""
        done = {event.task for event in self.world.events if event.move is Move.COMPLETE}
        ratio = self.counts["side_effects"] / max(1, len(done))
        return {**self.counts, "distinct_jobs": len(done), "over_apply_ratio": ratio}

    def worker(self, name: str) -> WorkerRef:
        return WorkerRef(f"0x{name:0>40}", name)

    def facts(self, name: str) -> WorkerFacts:
        profile = RUN["workers"][name]["profile"]
        return WorkerFacts(kinds=frozenset({"noop"}), labels=frozenset({f"profile:{profile}"}))

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, step: Any) -> dict[str, Any]:
        task, name = self.tasks[step["task"]], step["worker"]
        result = self.world.turn(self.worker(name), facts=self.facts(name), offers=(task,), explain=True, partial=True)
        if result.granted:
            self.counts["grants"] += 1
            assert result.granted[0].lease_s == RUN["lease_ttl_s"] or not self.as_published
            return {"fence": result.granted[0].fence}
        code = result.refused[task].code
        self.counts["grants_refused_quarantine" if code is RefusalCode.QUARANTINED else f"grants_refused_{code}"] += 1
        return {"refused": code.value}

    def take_back(self, step: Any) -> dict[str, Any]:
        held = self.world.task(self.tasks[step["task"]])
        (ended,) = self.world.do(TakeBack(tasks=(held.id,), who="operator"))
        assert ended.outcome is Status.PENDING
        self.counts["reaped"] += 1
        return {"held_by": held.instance}

    def complete(self, step: Any) -> dict[str, Any]:
        self.counts["commits"] += 1
        self.deliveries += 1
        what = f"{step['key']}#{self.deliveries}" if self.key_per_delivery else step["key"]
        lease = LeaseRef(self.tasks[step["task"]], step["fence"])
        before = len(self.world.events)
        outcome = self.world.complete(self.worker(step["worker"]), lease, cid=raw_cid(what.encode()))
        if isinstance(outcome, Refusal):
            return self._rejected(outcome)
        assert outcome is Status.COMPLETED
        if len(self.world.events) == before:
            self.counts["suppressed_dedupe"] += 1
            return {"outcome": "duplicate"}
        self.counts["accepted"] += 1
        return {"outcome": "committed"}

    def _rejected(self, refusal: Refusal) -> dict[str, Any]:
        if refusal.code is RefusalCode.INVALID_ASSIGNEE:
            assert refusal.details is not None
            self.counts["rejected_fenced"] += 1
            return {"outcome": "rejected", "reason": refusal.details["reason"]}
        self.counts["rejected_expired"] += refusal.code is RefusalCode.LEASE_EXPIRED
        return {"outcome": "rejected", "reason": refusal.code.value}

    def quarantine(self, step: Any) -> dict[str, Any]:
        self.counts["quarantines"] += 1
        op = Quarantine(
            worker=self.worker(step["worker"]), host=HOST, for_s=1_800.0, who="operator", why="as published"
        )
        requeued = self.world.do(op)
        self.counts["requeued"] += len(requeued)
        names = {task: name for name, task in self.tasks.items()}
        return {"requeued": [names[task] for task in requeued]}

    def fail(self, step: Any) -> dict[str, Any]:
        op = FailByHand(tasks=(self.tasks[step["task"]],), who=step["by"], reason=step["reason"])
        (ended,) = self.world.do(op)
        if isinstance(ended.outcome, Refusal):
            return {"refused": ended.outcome.code.value}
        outcome = REQUEUED[ended.outcome]
        if outcome == "requeued":
            self.counts["requeued"] += 1
            return {"outcome": outcome}
        return {"outcome": outcome, "reason": self.world.task(ended.task).reason}


def test_the_published_run_comes_out_as_published(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.sqlite", PUBLISHED)
    replay = Replay(world)
    replay.run()
    assert replay.published() == RUN["counts"]
    assert replay.published()["over_apply_ratio"] == 1.0
    assert world.value("SELECT count(*) FROM events WHERE move = 'completed'") == RUN["counts"]["side_effects"]
    check_consistency(world)
    world.close()


def test_a_reason_that_isnt_tried_again_ends_the_task_at_its_first_failure(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.sqlite")
    task = world.one()
    (ended,) = world.do(FailByHand(tasks=(task,), who="operator", reason="selector-removed"))
    view = world.task(task)
    assert (ended.outcome, view.attempts, view.reason) == (Status.FAILED, 1, "selector-removed")
    world.close()


def test_the_fence_alone_refuses_what_the_ablation_let_through(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.sqlite", PUBLISHED)
    replay = Replay(world, key_per_delivery=True, as_published=False)
    replay.run()
    counts = replay.published()
    for count in ("commits", "grants"):
        assert counts[count] == RUN["ablation"]["counts"][count]
    assert counts.get("suppressed_dedupe", 0) == RUN["ablation"]["counts"]["suppressed_dedupe"]
    assert (counts["accepted"], counts["side_effects"], counts["over_apply_ratio"]) == (1, 1, 1.0)
    history = [event.move for event in world.reader.history(replay.tasks["j-101"])]
    assert history.count("completed") == 1
    world.close()


def changed(value: Any) -> st.SearchStrategy[Any]:
    """Other values of a setting of this kind."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int | float):
        return st.sampled_from((0.0, 1.0, 1e9))
    if isinstance(value, frozenset):
        return st.sampled_from((frozenset(), frozenset({"selector-removed"}), frozenset({"timeout"})))
    return st.just(value)


def any_of(section: type[Any], published: Any) -> st.SearchStrategy[Any]:
    """Any values of the settings of a section."""
    fields = {field.name: getattr(published, field.name) for field in attrs.fields(section)}
    strategies = {
        name: any_of(RetryRules, value) if isinstance(value, RetryRules) else changed(value)
        for name, value in fields.items()
    }
    return st.builds(section, **strategies)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty ledger, to be copied."""
    path = tmp_path_factory.mktemp("template") / "ledger.sqlite"
    World(path).close()
    return path


@settings(max_examples=30, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(section=any_of(LedgerSettings, PUBLISHED), key_per_delivery=st.booleans())
def test_no_setting_and_no_key_applies_an_effect_twice(
    template: Path, section: LedgerSettings, key_per_delivery: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ledger.sqlite"
        shutil.copy(template, path)
        world = World(path, section)
        Replay(world, key_per_delivery=key_per_delivery, as_published=False).run()
        effects = Counter(event.task for event in world.events if event.move is Move.COMPLETE)
        assert set(effects.values()) <= {1}
        check_consistency(world)
        world.close()
