"""The example of the docs: a worker with a function of its own does a job of a real swarm."""

from __future__ import annotations

import json
import sys

from tests.acceptance.harness import PROJECT, Scene, until


def test_the_embedded_worker_of_the_docs_counts_the_words_of_a_site(scene: Scene) -> None:
    site = scene.site("--pages", "3")
    root = scene.root("--host-rate", "0", "--p2p", "off", "--allow-private", "on")
    urls = [f"{site}/item/{number}" for number in (1, 2, 3)]
    job = root.door.submit([{"kind": "crawl", "urls": [url]} for url in urls])["job"]
    example = scene.start(
        "example",
        [
            *(sys.executable, str(PROJECT / "docs" / "examples" / "count_words.py"), root.join_link),
            *("--data", str(scene.directory / "example-data"), "--allow-private"),
        ],
    )
    assert root.door.wait_done(job, guard=[example])["counts"] == {"completed": 3}

    found = scene.directory / "found.jsonl"
    scene.swarm("results", job, "-o", str(found))
    records = [json.loads(line) for line in found.read_text().splitlines()]
    assert sorted(record["page"] for record in records) == urls
    assert all(record["words"] > 3 for record in records)

    def told() -> bool:
        (worker,) = root.door.workers()
        return "crawl" in worker["kinds"] and worker["stats"].get("tasks_done") == 3

    until(told, "the worker's heartbeat to tell what it did")
    assert example.stop() == 0
    assert {entry["level"] for entry in example.events()} <= {"info", "warning"}
    assert example.events("session_opened"), "it logs as swarm-worker does, to standard error"
    assert example.out.read_text().splitlines()[0].startswith("Joined ")
