"""An operator acts at one root; what it says holds at the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.harness import Scene, noop
from tests.acceptance.test_operator import _root, _submit
from tests.acceptance.test_two_roots import second_root
from tests.kubo import Kubo, running_kubo
from tests.patience import PATIENCE_S
from tests.postgres import Postgres, postgres_cluster


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with postgres_cluster(durable=False) as cluster:
        yield cluster


@pytest.fixture
def kubo(tmp_path: Path) -> Iterator[Kubo]:
    with running_kubo(tmp_path / "kubo") as daemon:
        yield daemon


def test_what_an_operator_says_at_one_root_holds_at_the_other(scene: Scene, postgres: Postgres, kubo: Kubo) -> None:
    options = ("--ledger", postgres.new_database(), "--ipfs", kubo.multiaddr, "--host-rate", "0", "--p2p", "off")
    one = scene.root(*options, "--mode", "assign", name="one")
    two = second_root(scene, one, *options, "--mode", "assign")
    alice = scene.worker(one, name="alice")
    bob = scene.worker(two, name="bob")

    # A task that is submitted at one door is pushed by whichever root has the worker.
    job, tasks = _submit(one, *(noop(sleep_s=0.2) for _ in range(40)))
    assert two.door.wait_done(job)["counts"] == {"completed": 40}
    seen = [one.door.task(task) for task in tasks]
    assert {task["via"] for task in seen} == {"assign"}
    assert {task["assignee"] for task in seen} == {alice.address, bob.address}

    _root(one, "pause", "--why", "both are to stop")
    job, (task,) = _submit(two, noop())
    assert "both are to stop" in two.door.call("GET", f"/v1/tasks/{task}/why").ok()["message"]
    assert two.door.call("GET", "/v1/status").ok()["paused"][0]["who"].startswith("operator")
    assert two.door.task(task)["status"] == "pending"
    _root(one, "resume")
    one.door.wait_done(job)

    # Bob's session is two's; one revokes it.
    _root(one, "revoke", str(bob.address), "--why", "sends broken results")
    assert bob.process.wait(PATIENCE_S) == 5
    assert "sends broken results" in bob.process.tail()
    job, (task,) = _submit(two, noop())
    assert one.door.wait_done(job)["counts"] == {"completed": 1}
    assert one.door.task(task)["assignee"] == alice.address
