"""The answer to a turn is lost on the wire: what it granted is granted again, and the attempt isn't counted twice."""

from __future__ import annotations

import threading

import pytest

from tests.acceptance.exactly_once import assert_ended_once
from tests.acceptance.harness import Scene, noop, until
from tests.acceptance.proxy import Proxy, Verdict
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("root_dies", [False, True], ids=["door_remembers", "root_restarts_meanwhile"])
def test_grant_whose_answer_is_lost_is_sent_again_and_not_counted(scene: Scene, root_dies: bool) -> None:
    root = scene.root("--host-rate", "0")
    lost = threading.Event()
    passing = threading.Event()

    def lose_first_grant(message: bytes) -> Verdict:
        if b'"grants":[{' not in message or lost.is_set():
            return Verdict.FORWARD
        lost.set()
        passing.wait(PATIENCE_S)
        return Verdict.CUT

    with Proxy((root.host, root.port), on_message=lose_first_grant) as proxy:
        alice = scene.worker(root, name="alice", link=proxy.link(root.join_link))
        task = root.door.submit([noop()])["tasks"][0]["id"]
        assert lost.wait(PATIENCE_S), "no grant came by the proxy"
        granted = root.door.task(task)
        assert (granted["status"], granted["assignee"]) == ("active", alice.address)
        if root_dies:
            root.kill()
            root.start()
        passing.set()
        until(lambda: root.door.task(task)["status"] == "completed", "alice to get the grant again")

    completed = root.door.task(task)
    assert (completed["attempts"], completed["fence"]) == (1, granted["fence"])
    assert_ended_once(root.door.history(task))
