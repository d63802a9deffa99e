"""Results with a real Kubo behind the door, fetched from the worker that made them, and with Kubo away for a while."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from swarm.content.cid import raw_cid
from swarm.content.manifest import Manifest, decode_manifest
from tests.acceptance.exactly_once import assert_ended_once
from tests.acceptance.harness import Door, Scene, Worker, noop, until
from tests.free_port import free_port
from tests.kubo import Kubo, make_kubo, running_kubo

PAGES = 12


def test_result_of_the_demos_flow_comes_by_bitswap_from_the_worker_that_made_it(scene: Scene) -> None:
    with running_kubo(scene.directory / "kubo-root") as kubo, running_kubo(scene.directory / "kubo-friend") as friend:
        site = scene.site("--pages", str(PAGES))
        root = scene.root("--host-rate", "0", "--allow-private", "on", "--ipfs", kubo.multiaddr)
        options = ("--allow-private", "on", "--slots", "2", "--serve-to", "any")
        workers = scene.workers(root, *options, names=("alice", "bob", "carol"))
        urls = scene.directory / "urls.txt"
        urls.write_text("".join(f"{site}/item/{number}\n" for number in range(1, PAGES + 1)) + f"{site}/missing\n")
        job = scene.swarm("submit", str(urls), "--extract", "title=h1::text").strip()
        assert root.door.wait_done(job)["counts"] == {"completed": PAGES, "failed": 1}
        found = scene.directory / "found.jsonl"
        scene.swarm("results", job, "-o", str(found))
        records = [json.loads(line) for line in found.read_text().splitlines()]
        assert sorted(record["title"] for record in records) == sorted(f"Item {n}" for n in range(1, PAGES + 1))
        results = [task for task in root.door.tasks_of(job) if task["status"] == "completed"]
        for task in results:
            for content in assert_whole(root.door, task).named():
                assert kubo.command("block", "stat", "--offline", content.cid)

        kubo.stop()
        for worker in workers:
            (opened,) = worker.process.events("peer_opened")
            friend.command("swarm", "connect", opened["addrs"][0])
        task = results[0]
        manifest = decode_manifest(_fetch(friend, task["result"]))
        assert (manifest.task, manifest.worker) == (task["id"], task["assignee"])
        for content in manifest.named():
            assert len(_fetch(friend, content.cid)) == content.size_bytes


def test_kubos_find_by_dht_which_worker_made_a_result_and_fetch_it_there(scene: Scene) -> None:
    friend = scene.closing.enter_context(running_kubo(scene.directory / "kubo-friend", routing="dhtserver"))
    stranger = scene.closing.enter_context(running_kubo(scene.directory / "kubo-stranger", routing="dhtserver"))
    friends_address = next(address for address in friend.addresses() if "/tcp/" in address and "/ws" not in address)
    stranger.command("swarm", "connect", friends_address)
    root = scene.root("--host-rate", "0")
    worker = scene.worker(root, "--serve-to", "any", name="alice")
    (opened,) = until(lambda: worker.process.events("peer_opened"), "alice's peer to open")
    friend.command("swarm", "connect", opened["addrs"][0])
    job = root.door.submit([noop(size=20_000)])["job"]
    root.door.wait_done(job)
    (task,) = root.door.tasks_of(job)

    until(lambda: opened["peer_id"] in _providers(stranger, task["result"]), "alice to be found")
    manifest = decode_manifest(_fetch(stranger, task["result"]))
    for content in manifest.named():
        until(lambda cid=content.cid: opened["peer_id"] in _providers(stranger, cid), "alice to be found")
        assert len(_fetch(stranger, content.cid)) == content.size_bytes


def test_results_wait_while_kubo_is_away_and_none_is_lost(scene: Scene) -> None:
    kubo = make_kubo(scene.directory / "kubo", configuration={"Addresses.API": f'"/ip4/127.0.0.1/tcp/{free_port()}"'})
    scene.closing.callback(kubo.stop)
    kubo.start()
    root = scene.root("--host-rate", "0", "--ipfs", kubo.multiaddr)
    workers = scene.workers(root, names=("alice", "bob"))
    door = root.door
    before = door.submit([noop(size=20_000) for _ in range(10)])["job"]
    door.wait_done(before)

    kubo.stop()
    during = door.submit([noop(size=20_000) for _ in range(30)])["job"]
    until(lambda: _waiting_uploads(workers), "uploads to wait for Kubo")
    assert not door.job(during)["done"]
    kubo.start()

    assert door.wait_done(during)["counts"] == {"completed": 30}
    for job in (before, during):
        for task in door.tasks_of(job):
            assert_ended_once(door.history(task["id"]))
            assert_whole(door, task)


def test_small_results_get_into_kubo_and_its_gateway_shows_them_also_after_an_outage_and_a_kill(scene: Scene) -> None:
    gateway = free_port()
    addresses = {
        "Addresses.API": f'"/ip4/127.0.0.1/tcp/{free_port()}"',
        "Addresses.Gateway": f'"/ip4/127.0.0.1/tcp/{gateway}"',
    }
    kubo = make_kubo(scene.directory / "kubo", configuration=addresses)
    scene.closing.callback(kubo.stop)
    kubo.start()
    root = scene.root("--host-rate", "0", "--ipfs", kubo.multiaddr)
    scene.worker(root, name="alice")
    first = _small_results(root.door, 5)
    until(lambda: first <= _pinned(kubo), "the manifests to be copied")
    for cid in first:
        page = httpx.get(f"http://127.0.0.1:{gateway}/ipfs/{cid}?format=raw")
        assert page.is_success, page.text
        assert raw_cid(page.content) == cid

    kubo.stop()
    second = _small_results(root.door, 5)
    root.kill()
    kubo.start()
    root.start()
    until(lambda: second <= _pinned(kubo), "the manifests to be copied after all")


def _small_results(door: Door, number: int) -> set[str]:
    """Results whose manifests come inside the turns, with nothing else to upload."""
    job = door.submit([noop() for _ in range(number)])["job"]
    assert door.wait_done(job)["counts"] == {"completed": number}
    return {task["result"] for task in door.tasks_of(job)}


def _pinned(kubo: Kubo) -> set[str]:
    return set(kubo.command("pin", "ls", "--type=direct", "--quiet").split())


def assert_whole(door: Door, task: dict[str, Any]) -> Manifest:
    """The door has the manifest of a task and all that it names. Returns the manifest."""
    manifest = decode_manifest(door.call("GET", f"/v1/content/{task['result']}").raw)
    assert manifest.task == task["id"]
    for content in manifest.named():
        assert len(door.call("GET", f"/v1/content/{content.cid}").raw) == content.size_bytes
    return manifest


def _waiting_uploads(workers: Sequence[Worker]) -> bool:
    return any(worker.process.events("upload_waits") for worker in workers)


def _providers(kubo: Kubo, cid: str) -> list[str]:
    return kubo.command("routing", "findprovs", "--timeout=5s", cid).split()


def _fetch(kubo: Kubo, cid: str) -> bytes:
    """A block's bytes, from whomever this Kubo is connected with."""
    path = Path(kubo.repository) / "fetched"
    kubo.command("block", "stat", "--timeout=20s", cid)
    kubo.command("get", "--timeout=20s", "-o", str(path), cid)
    body = path.read_bytes()
    path.unlink()
    return body
