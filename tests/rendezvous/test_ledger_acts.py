"""What the operator does: pause, quarantine, pin versions, fail by hand, take back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous.ledger.act_ops import ApproveVersion, FailByHand, LiftQuarantine, Pause, Quarantine, Resume, TakeBack
from rendezvous.ledger.ops import TakeTurn
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.pauses import Scope
from rendezvous.policy.retry import RetryRules
from swarm.model import Refusal, RefusalCode, Status, TaskId
from tests.rendezvous.ledger_world import ALICE, BOB, CAROL, NOOP, World, check_consistency, facts, new_task

OTHER = "other.test"


@pytest.fixture
def world(database: str) -> Iterator[World]:
    world = World(database)
    yield world
    check_consistency(world)
    world.close()


def refusal_of(world: World, task: TaskId, worker: WorkerRef = ALICE, **turn: object) -> Refusal | None:
    """What a claim of this very task is answered; ``why`` must say the same."""
    result = world.turn(worker, offers=(task,), explain=True, partial=True, **turn)
    refusal = result.refused.get(task)
    said = turn.get("facts", NOOP)
    ((_, why),) = world.reader.refusals(task, [(worker, said)], now=world.now)  # type: ignore[list-item]
    if refusal is not None:
        assert why == refusal
    return refusal


def acts(world: World) -> list[tuple[str, str, str, str]]:
    return [(act.who, act.act, act.subject, act.why) for act in world.reader.acts()]


# ── pauses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_paused_swarm_grants_nothing_and_lets_what_is_held_end(world: World) -> None:
    held, waiting = world.submit(new_task(), new_task())
    (lease,) = world.claim(ALICE)
    assert lease.task == held
    assert world.do(Pause(scope=Scope.SWARM, who="olga", why="the site's owner called")) is None
    refusal = refusal_of(world, waiting)
    assert refusal is not None
    assert refusal.code is RefusalCode.PAUSED
    assert "olga" in refusal.message
    assert "the site's owner called" in refusal.message
    result = world.turn(BOB, want=1)
    assert result.granted == ()
    assert result.paused == refusal.message
    assert world.complete(ALICE, lease) is Status.COMPLETED
    assert world.do(Resume(scope=Scope.SWARM, who="olga")) is None
    assert world.turn(BOB, want=1).paused is None
    assert [act[:3] for act in acts(world)] == [("olga", "resumed", "swarm"), ("olga", "paused", "swarm")]


def test_a_pause_outlives_the_process(world: World) -> None:
    world.one()
    world.do(Pause(scope=Scope.SWARM, who="olga", why="repairs"))
    world.close()
    world.open()
    assert world.claim(ALICE) == []
    ((pause),) = world.reader.pauses()
    assert (pause.scope, pause.who, pause.why, pause.since) == (Scope.SWARM, "olga", "repairs", world.now)


def test_a_paused_host_stands_in_nobodys_way(world: World) -> None:
    tasks = world.submit(*(new_task(priority=9) for _ in range(3)))
    other = world.one(host=OTHER, priority=0)
    world.do(Pause(scope=Scope.HOST, name="site.test", who="olga", why="it asked us to"))
    refusal = refusal_of(world, tasks[0])
    assert refusal is not None
    assert refusal.code is RefusalCode.PAUSED
    assert refusal.details == {
        "scope": "host", "name": "site.test", "who": "olga", "why": "it asked us to", "since": world.now
    }  # fmt: skip
    assert [lease.task for lease in world.claim(ALICE, 5)] == [other]
    assert world.reader.openings(world.now) == (None, 0)
    world.do(Resume(scope=Scope.HOST, name="site.test", who="olga"))
    assert [lease.task for lease in world.claim(ALICE, 5)] == tasks


def test_a_paused_job_stands_aside_whatever_its_size_and_comes_back_in_its_old_order(world: World) -> None:
    tasks = world.submit(*(new_task(priority=9) for _ in range(1_500)))
    job = world.task(tasks[0]).job
    other = world.one(priority=0)
    world.do(Pause(scope=Scope.JOB, name=job, who="olga", why="a wrong selector"))
    refusal = refusal_of(world, tasks[0])
    assert refusal is not None
    assert refusal.code is RefusalCode.PAUSED
    world.claim(ALICE)  # sets the first thousand aside, and no more at once
    assert [lease.task for lease in world.claim(ALICE)] == [other]
    refusal = refusal_of(world, tasks[1])
    assert refusal is not None
    assert refusal.code is RefusalCode.PAUSED
    check_consistency(world)
    world.do(Resume(scope=Scope.JOB, name=job, who="olga"))
    world.later(0)
    assert [lease.task for lease in world.claim(ALICE, 1_500)] == tasks
    assert world.reader.pauses() == []


def test_a_task_of_a_paused_job_that_was_cancelled_replayed_or_delayed_isnt_lost_aside(world: World) -> None:
    tasks = world.submit(*(new_task() for _ in range(3)))
    job = world.task(tasks[0]).job
    world.do(Pause(scope=Scope.JOB, name=job, who="olga", why="a test"))
    assert world.claim(ALICE, 3) == []
    world.do(FailByHand(tasks=(tasks[0],), who="olga", reason="timeout"))  # waits, aside
    world.do(FailByHand(tasks=(tasks[1],), who="olga"))  # a dead letter, aside
    world.do(Resume(scope=Scope.JOB, name=job, who="olga"))
    world.later(0)
    world.replay(tasks[1])
    world.later(60)
    assert {lease.task for lease in world.claim(ALICE, 5)} == set(tasks)


def test_a_job_paused_again_while_it_comes_back_is_paused(world: World) -> None:
    tasks = world.submit(*(new_task() for _ in range(2)))
    job = world.task(tasks[0]).job
    world.do(Pause(scope=Scope.JOB, name=job, who="olga", why="a test"))
    world.do(Resume(scope=Scope.JOB, name=job, who="olga"))
    world.do(Pause(scope=Scope.JOB, name=job, who="olga", why="a second one"))
    world.later(0)
    assert world.claim(ALICE, 2) == []
    ((pause),) = world.reader.pauses()
    assert pause.why == "a second one"


@pytest.mark.parametrize(("scope", "name"), [(Scope.SWARM, ""), (Scope.HOST, "site.test"), (Scope.JOB, "no-job")])
def test_what_isnt_paused_cant_be_resumed(world: World, scope: Scope, name: str) -> None:
    refusal = world.do(Resume(scope=scope, name=name, who="olga"))
    assert refusal.code is RefusalCode.NOT_FOUND


def test_a_job_that_isnt_there_cant_be_paused(world: World) -> None:
    refusal = world.do(Pause(scope=Scope.JOB, name="no-job", who="olga", why="a test"))
    assert refusal.code is RefusalCode.NOT_FOUND
    assert acts(world) == []


# ── quarantine ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_quarantined_worker_gives_back_that_hosts_work_and_keeps_the_rest(world: World) -> None:
    world.one()
    (lease,) = world.claim(BOB)
    world.complete(BOB, lease)  # what is taken from others isn't for newcomers
    here, there = world.one(), world.one(host=OTHER)
    world.claim(ALICE, 2)
    op = Quarantine(worker=ALICE, host="site.test", for_s=600.0, who="olga", why="it sends nonsense")
    assert world.do(op) == (here,)
    assert world.task(there).status == Status.ACTIVE
    history = world.reader.history(here)
    assert (history[-1].move, history[-1].to, history[-1].who) == ("quarantined", "pending", "olga")
    assert history[-1].detail == "it sends nonsense"
    assert world.task(here).attempts == 0
    refusal = refusal_of(world, here)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.QUARANTINED, 600.0)
    assert "it sends nonsense" in refusal.message
    brand_new = refusal_of(world, here, CAROL)
    assert brand_new is not None
    assert brand_new.code is RefusalCode.NEWCOMER
    assert refusal_of(world, here, BOB) is None
    assert acts(world) == [("olga", "quarantined", f"{ALICE.address}:{ALICE.instance} on site.test", op.why)]


def test_a_quarantine_ends_by_itself_or_when_it_is_lifted(world: World) -> None:
    world.submit(new_task(), new_task())
    world.do(Quarantine(worker=ALICE, host="site.test", for_s=600.0, who="olga", why="a test"))
    assert world.claim(ALICE) == []
    (view,) = world.reader.quarantines(now=world.now)
    assert (view.worker, view.host, view.left_s, view.who, view.times) == (ALICE, "site.test", 600.0, "olga", 1)
    world.later(601)
    assert len(world.claim(ALICE)) == 1
    world.do(Quarantine(worker=ALICE, host="site.test", for_s=600.0, who="olga", why="a test"))
    assert world.claim(ALICE) == []
    assert world.do(LiftQuarantine(worker=ALICE, host="site.test", who="olga")) is None
    assert world.reader.quarantines(now=world.now) == []
    assert len(world.claim(ALICE)) == 1
    assert world.do(LiftQuarantine(worker=ALICE, host="site.test", who="olga")).code is RefusalCode.NOT_FOUND


def test_lines_of_hosts_where_a_worker_is_quarantined_dont_hide_the_others(world: World) -> None:
    for number in range(20):
        world.one(host=f"bad{number}.test", priority=9)
        world.do(Quarantine(worker=ALICE, host=f"bad{number}.test", for_s=600.0, who="olga", why="a test"))
    good = world.one(priority=0)
    alice, bob = world.all(
        *(TakeTurn(worker=worker, boot="some-boot", facts=NOOP, want=1, partial=True) for worker in (ALICE, BOB))
    )
    assert [grant.task.id for grant in alice.granted] == [good]
    assert [grant.host for grant in bob.granted] == ["bad0.test"], "what one passed is there for the other"


# ── versions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_workers_of_a_pinned_version_are_granted_tasks(world: World) -> None:
    task = world.one()
    old, new = facts(versions={"worker": "0.1", "noop": "1"}), facts(versions={"worker": "0.2", "noop": "1"})
    assert world.do(ApproveVersion(name="worker", version="0.2", who="olga")) == ("0.2",)
    refusal = refusal_of(world, task, facts=old)
    assert refusal is not None
    assert refusal.code is RefusalCode.VERSION_NOT_APPROVED
    assert refusal.message == "worker 0.1 isn't approved here; approved: 0.2"
    assert world.claim(ALICE, facts=old) == []
    refusal = refusal_of(world, task, facts=NOOP)
    assert refusal is not None
    assert "of no known version" in refusal.message
    assert len(world.claim(ALICE, facts=new)) == 1


def test_a_kinds_own_version_is_pinned_apart_and_with_none_left_all_are_approved(world: World) -> None:
    world.one()
    said = facts(versions={"worker": "0.1", "noop": "1"})
    world.do(ApproveVersion(name="noop", version="2", who="olga"))
    assert world.do(ApproveVersion(name="noop", version="3", who="olga")) == ("2", "3")
    world.do(ApproveVersion(name="fetch", version="9", who="olga"))
    assert world.claim(ALICE, facts=said) == []
    assert [(view.name, view.version, view.who) for view in world.reader.approvals()] == [
        ("fetch", "9", "olga"), ("noop", "2", "olga"), ("noop", "3", "olga")
    ]  # fmt: skip
    for version in ("2", "3"):
        world.do(ApproveVersion(name="noop", version=version, approved=False, who="olga"))
    assert len(world.claim(ALICE, facts=said)) == 1


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_task_that_is_failed_by_hand_waits_or_is_a_dead_letter_by_its_reason(tmp_path: Path) -> None:
    retry = RetryRules(extra_retryable=frozenset({"selector_removed"}))
    world = World(tmp_path / "ledger.sqlite", LedgerSettings(host_rate_per_s=0, retry=retry))
    task, other = world.one(), world.one(max_attempts=1)
    (ended,) = world.do(FailByHand(tasks=(task,), who="olga", reason="selector_removed", detail="see the ticket"))
    assert ended.outcome is Status.WAITING
    (event,) = world.reader.history(task)[1:]
    assert (event.move, event.by, event.who, event.reason) == ("failed_by_hand", "operator", "olga", "selector_removed")
    assert event.detail == "see the ticket"
    (ended,) = world.do(FailByHand(tasks=(other,), who="olga", reason="selector_removed"))
    assert ended.outcome is Status.FAILED
    (ended,) = world.do(FailByHand(tasks=(task,), who="olga"))
    assert (ended.outcome, world.task(task).reason, world.task(task).attempts) == (Status.FAILED, "by_hand", 2)
    again, missing = world.do(FailByHand(tasks=(task, "no-task"), who="olga"))
    assert again.outcome.code is RefusalCode.WRONG_STATUS
    assert missing.outcome.code is RefusalCode.NOT_FOUND
    check_consistency(world)
    world.close()


def test_a_lease_that_is_taken_back_is_somebody_elses_next_and_uncounted(world: World) -> None:
    task = world.one()
    (lease,) = world.claim(ALICE)
    (ended,) = world.do(TakeBack(tasks=(task,), who="olga", why="it hangs"))
    assert ended.outcome is Status.PENDING
    assert world.turn(ALICE, renew=(lease,)).lost == (lease.fence,)
    (again,) = world.claim(BOB)
    assert world.task(task).attempts == 0
    assert world.complete(ALICE, lease).code is RefusalCode.INVALID_ASSIGNEE
    assert world.complete(BOB, again) is Status.COMPLETED
    (ended,) = world.do(TakeBack(tasks=(task,), who="olga"))
    assert ended.outcome.code is RefusalCode.WRONG_STATUS
