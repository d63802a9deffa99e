"""Two roots, one swarm: a ledger on PostgreSQL, a Kubo, and what is killed comes back or is done without."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from rendezvous.ledger.engine import open_reading_engine
from rendezvous.ledger.queries import LedgerReader
from tests.acceptance.exactly_once import assert_ended_once
from tests.acceptance.harness import PROJECT, Root, Scene, Worker, command, noop, until
from tests.free_port import free_port
from tests.kubo import Kubo, running_kubo
from tests.patience import PATIENCE_S
from tests.postgres import Postgres, postgres_cluster

SUBMISSIONS, TASKS_PER_SUBMISSION = 40, 50
TOTAL = SUBMISSIONS * TASKS_PER_SUBMISSION
WORKERS = ("alice", "bob", "carol", "dave", "erin", "frank")


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with postgres_cluster(durable=True) as cluster:
        yield cluster


@pytest.fixture
def kubo(tmp_path: Path) -> Iterator[Kubo]:
    with running_kubo(tmp_path / "kubo") as daemon:
        yield daemon


def second_root(scene: Scene, first: Root, *options: str) -> Root:
    """A root of the same swarm on another data directory."""
    _share_swarm(first.data, scene.directory / "two-data")
    return scene.root(*options, name="two")


def _share_swarm(first: Path, second: Path) -> None:
    argv = [*command("swarm-root"), "init", "--data", str(second), "--swarm-of", str(first)]
    subprocess.run(argv, check=True, capture_output=True, timeout=PATIENCE_S, cwd=PROJECT)


def test_two_roots_are_one_swarm_and_one_of_them_can_go(scene: Scene, postgres: Postgres, kubo: Kubo) -> None:
    options = ("--ledger", postgres.new_database(), "--ipfs", kubo.multiaddr, "--host-rate", "0")
    one = scene.root(*options, name="one")
    two = second_root(scene, one, *options)

    def swarm_of(root: Root) -> dict[str, list[str]]:
        swarm: dict[str, list[str]] = json.loads(root.door.call("GET", "/settings").raw)["data"]["swarm"]
        return swarm

    for root in (one, two):
        until(lambda root=root: len(swarm_of(root)["doors"]) == 2, "both doors to be told")
    assert set(swarm_of(one)["doors"]) == {one.door_url, two.door_url}
    assert len(set(swarm_of(one)["roots"])) == 2

    alice = scene.worker(one, name="alice")
    known = one.door.submit([noop()])["job"]
    one.door.wait_done(known)
    assert "warnings" not in two.door.submit([noop()])  # a worker of the other door runs it
    until(lambda: alice.address in [each["address"] for each in two.door.workers()], "two to know one's worker")
    job = two.door.submit([noop() for _ in range(20)])["job"]  # told at one door, done at the other
    assert one.door.wait_done(job)["counts"] == {"completed": 20}
    job = one.door.submit([noop(sleep_s=0.2) for _ in range(60)])["job"]
    one.kill()
    assert two.door.wait_done(job)["counts"] == {"completed": 60}
    until(lambda: swarm_of(two)["doors"] == [two.door_url], "the dead door to be told no more")
    later = two.door.submit([noop(more={"not_before_s": 0.5})])["job"]  # somebody reaps
    assert two.door.wait_done(later)["counts"] == {"completed": 1}


def test_a_root_that_may_not_share_the_ledger_says_why_and_ends(scene: Scene, postgres: Postgres, kubo: Kubo) -> None:
    ledger = postgres.new_database()
    one = scene.root("--ledger", ledger, "--ipfs", kubo.multiaddr, "--p2p", "off", name="one")
    shared, stranger = scene.directory / "shared", scene.directory / "stranger"
    _share_swarm(one.data, shared)

    def refused(data: Path, *options: str) -> str:
        done = subprocess.run(
            [*command("swarm-root"), "run", "--data", data, "--bind", f"127.0.0.1:{free_port()}", *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=PROJECT,
            env={**os.environ, "SWARM_PROFILE": str(scene.directory / "profile.json")},
        )
        assert "Traceback" not in done.stderr
        assert (done.returncode, done.stdout) in ((2, ""), (3, "")), done.stderr
        return done.stderr

    private = refused(shared, "--ledger", ledger, "--p2p", "off")
    assert f"the root at {one.door_url} shares this ledger, and this root would keep its blocks to itself" in private
    assert "--ipfs" in private
    strange = refused(stranger, "--ledger", ledger, "--p2p", "off", "--ipfs", kubo.multiaddr)
    assert "belongs to the swarm with the key" in strange
    assert "--swarm-of" in strange
    nowhere = refused(stranger, "--ledger", "postgresql://root:secret@127.0.0.1:1/swarm", "--p2p", "off")
    assert "127.0.0.1:1" in nowhere
    assert "refused" in nowhere
    assert "secret" not in nowhere
    assert not (stranger / "ledger.sqlite").exists()


def test_a_root_the_database_and_workers_killed_at_random_moments_complete_each_task_once(
    scene: Scene, postgres: Postgres, kubo: Kubo
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    options = ("--ledger", postgres.new_database(), "--ipfs", kubo.multiaddr, "--host-rate", "0", "--p2p", "off")
    one = scene.root(*options, name="one")
    two = second_root(scene, one, *options)
    workers = [
        scene.worker((one, two)[number % 2], "--p2p", "off", name=name, wait=False)
        for number, name in enumerate(WORKERS)
    ]
    for worker in workers:
        worker.wait_seen()
    job = one.door.submit([noop()])["job"]
    submitter = threading.Thread(target=_submit_all, args=(job, (one, two)))
    submitter.start()
    victims = [rng.choice((one, two)), postgres, *rng.sample(workers, 2)]
    rng.shuffle(victims)
    for victim in victims:
        time.sleep(rng.uniform(0.5, 4.0))  # the random moment
        _kill_and_start(victim, down_s=rng.uniform(0.0, 4.0))
    submitter.join(PATIENCE_S)
    assert not submitter.is_alive()

    assert one.door.wait_done(job)["counts"] == {"completed": 1 + TOTAL}
    histories = _histories(options[1])
    assert len(histories) == 1 + TOTAL
    for history in histories.values():
        assert_ended_once(history)


def _histories(ledger: str) -> dict[str, list[dict[str, Any]]]:
    """The events of each task, oldest first, as the door shows them; two thousand calls would take a minute."""
    engine = open_reading_engine(ledger)
    reader = LedgerReader(engine)
    found: dict[str, list[dict[str, Any]]] = {}
    after = 0
    while events := reader.events_after(after):
        for event in events:
            found.setdefault(event.task, []).append(msgspec.to_builtins(event))
        after = events[-1].id
    engine.dispose()
    return found


def _submit_all(job: str, roots: tuple[Root, Root]) -> None:
    for number in range(SUBMISSIONS):
        tasks = [noop(sleep_s=0.02) for _ in range(TASKS_PER_SUBMISSION)]
        until(lambda tasks=tasks, number=number: _submitted(job, roots, tasks, number), "a submission to be taken")
        time.sleep(0.2)  # spread over the kills


def _submitted(job: str, roots: tuple[Root, Root], tasks: list[dict[str, object]], number: int) -> bool:
    """Try the doors in turn; an answer that was lost is asked for again, at whichever door."""
    root = roots[(number + int(time.monotonic() * 10)) % 2]
    try:
        return bool(root.door.submit(tasks, job=job, key=f"submission-{number}-of-{job}"))
    except (httpx.TransportError, AssertionError):  # down, or it says 503
        return False


def _kill_and_start(victim: Root | Worker | Postgres, *, down_s: float) -> None:
    if isinstance(victim, Postgres):
        victim.crash()
        time.sleep(down_s)
        victim.start()
    else:
        victim.kill()
        time.sleep(down_s)
        victim.start()
