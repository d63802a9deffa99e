"""What sites ask for is heeded by a whole swarm of real processes: crawl-delays, and waits within reason."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.exactly_once import assert_ended_once
from tests.acceptance.harness import Root, Scene, Worker, until
from tests.acceptance.test_two_roots import second_root
from tests.kubo import Kubo, running_kubo
from tests.postgres import Postgres, postgres_cluster

CRAWL_DELAY_S = 2.0
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy")
PAGES = 12
#: So many are killed with a task of the site in hand; the last of them comes back at once.
KILLED = 3
#: The site's clock and the ledger's are one; what is told of it is rounded.
ROUNDING_S = 0.001


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with postgres_cluster(durable=True) as cluster:
        yield cluster


@pytest.fixture
def kubo(tmp_path: Path) -> Iterator[Kubo]:
    with running_kubo(tmp_path / "kubo") as daemon:
        yield daemon


def page(url: str, **more: Any) -> dict[str, Any]:
    return {"kind": "scrape", "urls": [url], "spec": {"extract": {"title": "h1::text"}}, **more}


def test_a_crawl_delay_holds_on_two_roots_and_ten_workers_of_which_some_are_killed(
    scene: Scene, postgres: Postgres, kubo: Kubo
) -> None:
    log = scene.directory / "requests.jsonl"
    site = scene.site(
        *("--pages", str(PAGES), "--delay", "0.7", "--crawl-delay", str(CRAWL_DELAY_S), "--log", str(log))
    )
    options = (
        *("--ledger", postgres.new_database(), "--ipfs", kubo.multiaddr, "--p2p", "off"),
        *("--host-rate", "50", "--allow-private", "on", "--first-lease", "3"),
    )
    one = scene.root(*options, name="one")
    two = second_root(scene, one, *options)
    how = ("--slots", "2", "--allow-private", "on", "--p2p", "off")
    workers = [scene.worker((one, two)[number % 2], *how, name=name, wait=False) for number, name in enumerate(NAMES)]
    for worker in workers:
        worker.wait_seen()
    urls = [f"{site}/item/{number}" for number in range(1, PAGES + 1)]
    job = one.door.submit([page(url, max_attempts=9) for url in urls])["job"]

    killed: list[Worker] = []
    while len(killed) < KILLED:
        holder = until(lambda: _holder(two, job, workers, log), "a worker to be at the site")
        holder.kill()
        killed.append(holder)
    killed[-1].start()

    assert two.door.wait_done(job)["counts"] == {"completed": PAGES}
    histories = [one.door.history(task["id"]) for task in one.door.tasks_of(job)]
    for history in histories:
        assert_ended_once(history)
    asked_at = [entry["at"] for entry in _asked(log)]
    gaps_s = [later - earlier for earlier, later in pairwise(asked_at)]
    print(f"{len(asked_at)} requests, {min(gaps_s):.3f} s apart at least")
    assert len(asked_at) >= PAGES
    assert min(gaps_s) >= CRAWL_DELAY_S - ROUNDING_S
    events = [event for history in histories for event in history]
    ends = [event["at"] for event in events if event.get("source") == "active" != event["to"]]
    lost = [event for event in events if event["move"] == "lease_expired"]
    assert len(lost) >= KILLED - 1
    for at in asked_at:  # not only from request to request: from the end of whatever was granted, a lease's too
        assert not [end for end in ends if end - ROUNDING_S < at < end + CRAWL_DELAY_S - ROUNDING_S]


def _asked(log: Path) -> list[dict[str, Any]]:
    """What the site was asked for, but for its robots.txt, in order."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if line["path"] != "/robots.txt"]


def _holder(root: Root, job: str, workers: Sequence[Worker], log: Path) -> Worker | None:
    """The live worker that has just asked the site for a page, while the site still thinks about it."""
    asked = _asked(log)
    if not asked or time.time() - asked[-1]["at"] > 0.5:
        return None
    active = root.door.call("GET", "/v1/tasks", job=job, status="active", limit=10).ok()["items"]
    holding = {task["assignee"] for task in active}
    return next((worker for worker in workers if worker.address in holding and worker.process.alive), None)


def test_an_endless_retry_after_binds_only_the_worker_that_was_told_and_only_for_an_hour(scene: Scene) -> None:
    site = scene.site("--pages", "3")
    root = scene.root("--host-rate", "0", "--p2p", "off", "--allow-private", "on")
    how = ("--slots", "4", "--allow-private", "on", "--p2p", "off")
    alice = scene.worker(root, *how, name="alice")
    said = {
        "/status/429?retry_after=1000000000": "blocked",
        "/status/429?retry_after=Fri,%2031%20Dec%209999%2023:59:59%20GMT": "blocked",
        "/status/503?retry_after=1e999": "http_5xx",
        "/status/403?retry_after=-1%20soon": "blocked",
    }
    job = root.door.submit([page(f"{site}{path}", max_attempts=1) for path in said])["job"]
    assert root.door.wait_done(job, guard=[alice.process])["counts"] == {"failed": len(said)}
    found = {task["urls"][0].removeprefix(site): task["reason"] for task in root.door.tasks_of(job)}
    assert found == said
    assert not [event for event in alice.process.events() if "malformed" in json.dumps(event)]

    later = root.door.submit([page(f"{site}/item/1")])
    (why,) = _refusals(root, later["tasks"][0]["id"])
    assert why["code"] == "cooling_off"
    assert 3_000 < why["retry_after_s"] <= 3_600
    scene.worker(root, *how, name="bob")
    assert root.door.wait_done(later["job"])["counts"] == {"completed": 1}


def _refusals(root: Root, task: str) -> list[dict[str, Any]]:
    why = root.door.call("GET", f"/v1/tasks/{task}/why").ok()
    return [worker["refusal"] for worker in why["workers"]]
