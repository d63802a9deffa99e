"""Processes die at the worst moment, without a word. Every task ends once, and as it should."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import httpx

from swarm.model import Reason, Status
from tests.acceptance.exactly_once import assert_ended_once
from tests.acceptance.harness import Scene, Worker, noop, until
from tests.acceptance.plugins import POISON, install
from tests.acceptance.proxy import Proxy, Verdict
from tests.free_port import free_port
from tests.patience import PATIENCE_S

ROOT_KILLS = 10
SUBMISSIONS, TASKS_PER_SUBMISSION = 30, 20
WORKERS_KILLED_TO_GIVE_UP = 3
#: The first one is forgiven.
RESTARTS_TO_GIVE_UP = 1 + 3


def test_workers_killed_mid_task_lose_nothing_and_repeat_no_ending(scene: Scene) -> None:
    root = scene.root("--host-rate", "0")
    workers = scene.workers(root, "--slots", "4", names=("alice", "bob"))
    job = root.door.submit([noop(sleep_s=0.3) for _ in range(40)])["job"]

    for victim in (*workers, *workers):
        until(lambda victim=victim: _holds(victim, job), f"{victim.name} to hold a task")
        victim.kill()
        victim.start()

    assert root.door.wait_done(job)["counts"] == {"completed": 40}
    for task in root.door.tasks_of(job):
        assert_ended_once(root.door.history(task["id"]))


def test_worker_killed_mid_upload_sends_its_result_when_it_is_back(scene: Scene) -> None:
    uploading = threading.Event()

    def hold_first_upload(piece: bytes) -> Verdict:
        if b"POST /api/v0/" not in piece or uploading.is_set():
            return Verdict.FORWARD
        uploading.set()
        return Verdict.HOLD

    port = free_port()
    with Proxy(("127.0.0.1", port), on_upstream=hold_first_upload) as proxy:
        # Named as the public URL, so that the uploads go by the proxy too.
        root = scene.root("--host-rate", "0", "--public-url", f"http://127.0.0.1:{proxy.port}", port=port)
        alice = scene.worker(root, name="alice")
        task = root.door.submit([noop(size=300_000)])["tasks"][0]["id"]
        assert uploading.wait(PATIENCE_S), "no upload came by the proxy"
        alice.kill()
        assert root.door.task(task)["status"] == "active"
        alice.start()
        until(lambda: root.door.task(task)["status"] == "completed", "the result to be recorded")
        history = root.door.history(task)
        assert root.door.task(task)["attempts"] == 1

    assert_ended_once(history)


def test_root_killed_at_ten_random_moments_ends_every_task_exactly_once(scene: Scene) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    root = scene.root("--host-rate", "0")
    scene.workers(root, names=("alice", "bob"))
    job = root.door.submit([noop()])["job"]
    submissions = [[noop(sleep_s=0.05) for _ in range(TASKS_PER_SUBMISSION)] for _ in range(SUBMISSIONS)]

    def submit_all() -> None:
        for number, tasks in enumerate(submissions):
            until(lambda tasks=tasks, number=number: _submitted(tasks, number), "a submission to be taken")
            time.sleep(0.3)  # spread over the kills

    def _submitted(tasks: list[dict[str, object]], number: int) -> bool:
        try:
            return bool(root.door.submit(tasks, job=job, key=f"submission-{number}-of-{job}"))
        except httpx.TransportError:
            return False

    submitter = threading.Thread(target=submit_all)
    submitter.start()
    for _ in range(ROOT_KILLS):
        time.sleep(rng.uniform(0.05, 1.2))  # the random moment
        root.kill()
        root.start()
    submitter.join(PATIENCE_S)

    total = 1 + SUBMISSIONS * TASKS_PER_SUBMISSION
    assert root.door.wait_done(job)["counts"] == {"completed": total}
    seen = [task["id"] for task in root.door.tasks_of(job)]
    assert len(set(seen)) == len(seen) == total
    for task in seen:
        assert_ended_once(root.door.history(task))


def test_task_that_kills_its_workers_fails_naming_three_and_its_neighbours_complete(
    scene: Scene, tmp_path: Path
) -> None:
    poisoned_env = install(tmp_path / "plugins", POISON)
    root = scene.root("--host-rate", "0", "--first-lease", "2")
    victims = scene.workers(root, names=("alice", "bob", "carol"), env=poisoned_env)
    neighbours = [noop(sleep_s=0.5) for _ in range(40)]
    poison = {"kind": "poison", "urls": ["http://poison.invalid/"]}
    submitted = root.door.submit([*neighbours[:20], poison, *neighbours[20:]])
    poisoned = submitted["tasks"][20]["id"]

    task = until(lambda: _ended(root.door.task(poisoned)), "the task to be given up")
    assert (task["status"], task["reason"]) == ("failed", Reason.WORKER_LOST)
    assert len(victims) == WORKERS_KILLED_TO_GIVE_UP
    for victim in victims:
        assert not victim.process.alive
        assert victim.address is not None
        assert victim.address in task["detail"]
    assert_ended_once(root.door.history(poisoned), how=Status.FAILED)

    scene.worker(root, name="dave", env=poisoned_env)
    assert root.door.wait_done(submitted["job"])["counts"] == {"completed": 40, "failed": 1}


def test_task_that_kills_workers_that_are_started_again_is_given_up_and_its_neighbours_complete(
    scene: Scene, tmp_path: Path
) -> None:
    poisoned_env = install(tmp_path / "plugins", POISON)
    root = scene.root("--host-rate", "0")
    victims = scene.workers(root, "--slots", "8", names=("alice", "bob"), env=poisoned_env)
    poison = {"kind": "poison", "urls": ["http://poison.invalid/"]}
    # long enough to be in hand when the poison beside them kills the worker
    neighbours = [noop(sleep_s=1.0, more={"max_attempts": attempts}) for attempts in (1, 3) for _ in range(12)]
    submitted = root.door.submit([*neighbours[:6], poison, *neighbours[6:]])
    poisoned = submitted["tasks"][6]["id"]
    deaths = 0

    def done() -> bool:
        """Whether the job is; a worker that died is started again, as a supervisor does."""
        nonlocal deaths
        for victim in victims:
            if not victim.process.alive:
                deaths += 1
                victim.start()
        return bool(root.door.job(submitted["job"])["done"])

    until(done, "the job to be done in spite of the poison", within_s=3 * PATIENCE_S)

    task = root.door.task(poisoned)
    assert (task["status"], task["reason"]) == ("failed", Reason.WORKER_LOST)
    assert any(str(victim.address) in task["detail"] for victim in victims)
    assert root.door.job(submitted["job"])["counts"] == {"completed": 24, "failed": 1}
    assert deaths == RESTARTS_TO_GIVE_UP
    for each in root.door.tasks_of(submitted["job"]):
        ended = Status.FAILED if each["id"] == poisoned else Status.COMPLETED
        assert_ended_once(root.door.history(each["id"]), how=ended)


def _holds(worker: Worker, job: str) -> bool:
    """Whether a worker holds a task of a job right now."""
    door, address = worker.root.door, worker.address
    active = door.call("GET", "/v1/tasks", job=job, status="active", limit=100).ok()["items"]
    return any(task["assignee"] == address for task in active)


def _ended(task: dict[str, object]) -> dict[str, object] | None:
    return task if task["status"] in {"completed", "failed", "cancelled"} else None
