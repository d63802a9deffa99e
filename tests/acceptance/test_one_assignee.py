"""A task moves only for the worker that it was granted to."""

from __future__ import annotations

from tests.acceptance.by_hand import HandWorker
from tests.acceptance.exactly_once import assert_ended_once
from tests.acceptance.harness import Scene, until
from tests.acceptance.plugins import HELD, Hold, install


def test_second_workers_claim_and_completion_are_refused_with_invalid_assignee(scene: Scene) -> None:
    root = scene.root("--host-rate", "0")
    alice = scene.worker(root, name="alice", env=install(scene.directory / "plugins", HELD))
    bob = HandWorker(root.join_link)
    scene.closing.callback(bob.door.close)
    door = root.door
    hold = Hold(scene.directory)
    task = door.submit([hold.task()])["tasks"][0]["id"]
    active = until(lambda: _if_status(door.task(task), "active"), "alice to hold the task")
    assert active["assignee"] == alice.address

    for refused in (bob.claim(task), bob.complete(task, active["fence"])):
        assert (refused.status, refused.code) == (400, "invalid_assignee")
    assert door.task(task)["fence"] == active["fence"]

    hold.let_go()
    completed = until(lambda: _if_status(door.task(task), "completed"), "alice to complete it")
    for refused in (bob.claim(task), bob.complete(task, active["fence"])):
        assert (refused.status, refused.code) == (400, "invalid_assignee")
    after = door.task(task)
    assert (after["result"], after["assignee"]) == (completed["result"], alice.address)
    assert_ended_once(door.history(task))


def _if_status(task: dict[str, object], status: str) -> dict[str, object] | None:
    return task if task["status"] == status else None
