"""What an operator does to a running swarm, on real processes: each act is told with who and why, and undone again."""

from __future__ import annotations

import subprocess
from collections import Counter
from typing import Any

from tests.acceptance.harness import PROJECT, Root, Scene, Worker, command, noop, until
from tests.acceptance.plugins import HELD, Hold, install
from tests.patience import PATIENCE_S

#: What the hosts of these tasks are called decides nothing: a noop asks no site.
BUSY = "busy.invalid"


def _root(root: Root, *arguments: str) -> str:
    """Run ``swarm-root`` beside the running root; what it printed."""
    done = subprocess.run(
        [*command("swarm-root"), *arguments, "--data", str(root.data)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=PROJECT,
    )
    assert done.returncode == 0, f"swarm-root {' '.join(arguments)}: {done.returncode}: {done.stderr}"
    return done.stdout


def _holder(root: Root, task: str) -> str | None:
    seen = root.door.task(task)
    return str(seen["assignee"]) if seen["status"] == "active" else None


def _submit(root: Root, *tasks: dict[str, Any]) -> tuple[str, list[str]]:
    answer = root.door.submit(list(tasks))
    return answer["job"], [one["id"] for one in answer["tasks"]]


def test_an_operator_pauses_quarantines_revokes_and_fails_by_hand(scene: Scene) -> None:
    root = scene.root("--host-rate", "0", "--p2p", "off")
    alice, bob = scene.workers(root, names=("alice", "bob"), env=install(scene.directory / "plugins", HELD))

    # Pause: nothing is granted, and `why` says who, why and since when; resume, and it is done.
    _root(root, "pause", "--why", "the network is being repaired")
    job, (task,) = _submit(root, noop())
    why = scene.swarm("why", task)
    assert "the swarm was paused by operator at" in why
    assert "the network is being repaired" in why
    assert "the network is being repaired" in scene.swarm("status")
    assert root.door.task(task)["status"] == "pending"
    _root(root, "resume")
    root.door.wait_done(job)

    # What is taken from a worker isn't for newcomers: both have done something.
    job, tasks = _submit(root, *(noop(sleep_s=0.5) for _ in range(16)))
    root.door.wait_done(job)
    assert len({root.door.task(one)["assignee"] for one in tasks}) == 2

    # Quarantine: who holds a task of the host loses it to the other, and gets no more of it.
    hold = Hold(scene.directory)
    job, (task,) = _submit(root, hold.task(BUSY))
    held = until(lambda: _holder(root, task), "the task to be granted")
    second = bob if held == alice.address else alice
    _root(root, "quarantine", held, BUSY, "--for", "10m", "--why", "it is being blocked")
    until(lambda: _holder(root, task) == second.address, "the other worker to have it")
    many, tasks = _submit(root, *(noop(host=BUSY) for _ in range(10)))
    root.door.wait_done(many)
    assert {root.door.task(one)["assignee"] for one in tasks} == {second.address}
    assert "quarantined" in {event["move"] for event in root.door.history(task)}
    hold.let_go()
    assert root.door.wait_done(job)["counts"] == {"completed": 1}

    # Revoke in the midst of a task: its session ends, the task waits again, the process ends with 5.
    _root(root, "unquarantine", held, BUSY)
    hold = Hold(scene.directory)
    job, (task,) = _submit(root, hold.task())
    held = until(lambda: _holder(root, task), "the task to be granted")
    revoked, other = (alice, bob) if held == alice.address else (bob, alice)
    assert "sessions ended: 1; tasks that wait again: 1" in _root(root, "revoke", held, "--why", "sends broken results")
    assert revoked.process.wait(PATIENCE_S) == 5
    assert "sends broken results" in revoked.process.tail()
    until(lambda: _holder(root, task) == other.address, "the other worker to have it")
    revoked.start()  # its key is revoked, and so is its address
    assert revoked.process.wait(PATIENCE_S) == 5
    assert "Joined" not in revoked.process.out.read_text().partition("stop ")[2]  # since its first start
    hold.let_go()
    assert root.door.wait_done(job)["counts"] == {"completed": 1}

    # Fail by hand, and replay.
    job, (task,) = _submit(root, Hold(scene.directory).task())
    until(lambda: _holder(root, task), "the task to be granted")
    assert _root(root, "fail", task, "--why", "it hangs") == f"{task}\tfailed\n"
    seen = root.door.task(task)
    assert (seen["status"], seen["reason"], seen["detail"]) == ("failed", "by_hand", "it hangs")
    until(lambda: other.seen() and not other.seen()["active"], "the holder to have dropped it")
    scene.swarm("replay", task)
    until(lambda: _holder(root, task) == other.address, "the task to be granted again")
    scene.swarm("cancel", task)

    # Admit it again: it starts from its own directory as ever, and what it has done before counts as its own.
    assert "may enrol again" in _root(root, "admit", held, "--why", "its disk was replaced")
    revoked.start()
    until(lambda: _listens(revoked), "the worker that was admitted again to be there", guard=[revoked.process])
    assert revoked.seen()["address"] == held

    acts = [line.split("\t")[1:3] for line in _root(root, "acts").splitlines()]
    assert [act for _, act in acts] == [
        "admitted", "failed", "revoked", "quarantine_lifted", "quarantined", "resumed", "paused"
    ]  # fmt: skip
    assert {who for who, _ in acts} == {"operator"}


def test_in_assign_mode_the_load_is_even_and_everything_is_done(scene: Scene) -> None:
    root = scene.root("--host-rate", "0", "--p2p", "off", "--mode", "assign")
    names = ("alice", "bob", "carol")
    workers = scene.workers(root, "--slots", "4", names=names)
    until(lambda: all(_listens(worker) for worker in workers), "all sessions to be open")

    job = root.door.submit([noop(sleep_s=0.2) for _ in range(120)])["job"]
    assert root.door.wait_done(job, guard=[worker.process for worker in workers])["counts"] == {"completed": 120}

    tasks = list(root.door.tasks_of(job))
    assert {task["via"] for task in tasks} == {"assign"}
    shares = Counter(task["assignee"] for task in tasks)
    assert len(shares) == 3
    # They take equally long, so an even load is an equal share; a slow start of one is made up for by the others.
    assert max(shares.values()) <= 60, shares
    assert min(shares.values()) >= 20, shares
    assert all(task["attempts"] == 1 for task in tasks)


def test_an_assigned_task_of_a_worker_that_is_killed_goes_to_another(scene: Scene) -> None:
    root = scene.root("--host-rate", "0", "--p2p", "off", "--mode", "assign", "--first-lease", "2")
    alice, bob = scene.workers(root, names=("alice", "bob"))
    until(lambda: _listens(alice) and _listens(bob), "both sessions to be open")
    job, (task,) = _submit(root, noop(sleep_s=3))
    held = until(lambda: _holder(root, task), "the task to be assigned")
    first, second = (alice, bob) if held == alice.address else (bob, alice)
    first.kill()
    until(lambda: _holder(root, task) == second.address, "the other worker to have it")
    assert root.door.wait_done(job)["counts"] == {"completed": 1}


def _listens(worker: Worker) -> bool:
    seen = worker.seen()
    return bool(seen and seen.get("session"))
