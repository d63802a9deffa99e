"""Whose results the door looks at: a walk over blocks is done for nobody who couldn't end a task by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous.ledger.ops import DoneItem, LeaseRef, TakeTurn
from swarm.content.cid import raw_cid
from swarm.content.manifest import ContentRef, UrlOutcome
from swarm.model import Refusal, RefusalCode, Status
from tests.rendezvous.door_harness import door
from tests.rendezvous.ledger_world import ALICE, BOB, CID, NOOP, World, new_task
from tests.rendezvous.test_door_turns import granted

UNREADABLE = UrlOutcome(url="http://site.test/", body=ContentRef(cid=raw_cid(b"nowhere"), size_bytes=7))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "ledger.sqlite")
    yield world
    world.close()


async def test_a_result_for_anothers_task_is_refused_before_it_is_looked_at(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, bob = await stage.worker("alice"), await stage.worker("bob")
        (grant,) = await granted(stage, alice)
        task = grant["task"]["id"]
        claimed = bob.done(grant, outcomes=(UNREADABLE,))

        (outcome,) = (await bob.take(done=[claimed]))["outcomes"]
        assert outcome["error"]["code"] == "invalid_assignee"
        single = {name: value for name, value in claimed.items() if name != "task"}
        assert (await bob.post(f"/v1/tasks/{task}/complete", single)).code == "invalid_assignee"
        assert (await stage.operator.get(f"/v1/tasks/{task}")).data["status"] == "active"


async def test_a_task_is_looked_at_once_a_turn(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        (grant,) = await granted(stage, alice)
        said = alice.done(grant)
        (outcome,) = (await alice.take(done=[said, said]))["outcomes"]
        assert outcome["status"] == "completed"


def test_a_result_that_nobody_looked_at_ends_nothing(world: World) -> None:
    task = world.one()
    (lease,) = world.claim(ALICE)
    blind = DoneItem(task=task, fence=lease.fence, cid=CID, size_bytes=0, verified=False)

    refused = world.do(TakeTurn(worker=ALICE, boot="", facts=NOOP, done=(blind,), partial=True)).ended[0].outcome

    assert isinstance(refused, Refusal)
    assert refused.code is RefusalCode.RESULT_UNREADABLE
    assert world.task(task).status == "active"
    assert world.complete(ALICE, lease) is Status.COMPLETED


def test_only_live_leases_of_the_worker_may_be_ended(world: World) -> None:
    world.submit(*(new_task() for _ in range(2)))
    (mine,), (theirs,) = world.claim(ALICE), world.claim(BOB)
    guessed = LeaseRef(mine.task, mine.fence + 7)

    assert world.reader.may_end(ALICE, [mine, theirs, guessed]) == {mine}
    world.complete(ALICE, mine)
    assert world.reader.may_end(ALICE, [mine]) == frozenset()
