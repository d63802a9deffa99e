"""What a worker says while it starts: nothing that isn't so yet, and what is wrong before anything is joined."""

from __future__ import annotations

from functools import partial

from tests.acceptance.harness import Scene, Worker, command, until
from tests.free_port import free_port
from tests.patience import PATIENCE_S


def _shown(worker: Worker) -> list[str] | None:
    """The lines that say how it was started, once the last one is there."""
    lines = worker.process.out.read_text().splitlines()
    return lines if lines and lines[-1].startswith("  stop ") else None


def test_a_member_whose_link_leads_elsewhere_names_the_door_that_took_it(scene: Scene) -> None:
    root = scene.root("--p2p", "off")
    alice = scene.worker(root, "--p2p", "off", name="alice")
    assert alice.process.stop() == 0
    site = scene.site("--pages", "1").rstrip("/")
    for elsewhere in (f"http://127.0.0.1:{free_port()}", site):
        alice.process.out.write_text("")
        alice.link = elsewhere
        alice.start()
        first, second, *_ = until(partial(_shown, alice), "how the worker was started", guard=[alice.process])
        assert f" at {root.door_url} as {alice.address}" in first
        assert elsewhere in second
        assert alice.process.stop() == 0


def test_a_newcomer_says_at_once_which_door_it_tries(scene: Scene) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    argv = [*command("swarm-worker"), nowhere, "--data", str(scene.directory / "alice")]
    alice = scene.start("alice", argv)
    assert alice.wait(PATIENCE_S) == 3
    first, second, *_ = alice.events()
    assert (first["event"], first["url"]) == ("joining_began", nowhere)
    assert second["event"] == "door_unreachable"  # and why, long before it gives up
    assert "is the link right" in alice.log.read_text()
    assert alice.out.read_text() == ""


def test_a_member_says_that_it_has_joined_only_when_a_door_has_taken_it(scene: Scene) -> None:
    root = scene.root("--p2p", "off")
    alice = scene.worker(root, "--p2p", "off", name="alice")
    assert alice.process.stop() == 0
    root.kill()
    alice.process.out.write_text("")
    alice.start()
    until(lambda: alice.process.events("worker_started")[1:], "the worker to run without its door")
    assert alice.process.out.read_text() == ""
    root.start()
    until(lambda: "Joined" in alice.process.out.read_text(), "the worker to have joined", guard=[alice.process])
    assert alice.process.stop() == 0
