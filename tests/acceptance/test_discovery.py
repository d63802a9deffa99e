"""Each way of finding each other, and of passing news on, works with the others taken away."""

from __future__ import annotations

import datetime
import secrets
from pathlib import Path
from typing import Any

from tests.acceptance.harness import Scene, Worker, noop, until
from tests.acceptance.netns import two_machines

#: DESIGN's two seconds on an idle machine; this one may be busy with other tests.
MDNS_S = 5 * 2.0


def test_workers_that_know_only_the_url_meet_by_dht_and_stay_together_without_the_roots_peer(scene: Scene) -> None:
    root = scene.root("--host-rate", "0")
    alice, bob = scene.workers(root, names=("alice", "bob"))

    until(lambda: _peers(alice) == 2 and _peers(bob) == 2, "both to count the root and the other")

    root.kill()
    root.start("--p2p", "off")
    until(lambda: _peers(alice) == 1 and _peers(bob) == 1, "both to have each other alone, the root's peer gone")


def test_workers_meet_by_mdns_within_seconds(scene: Scene) -> None:
    with two_machines() as (here, address, there, other_address):
        root = scene.root("--host-rate", "0", "--dht", "off", "--mdns", "on", netns=here, host=address)
        alice, bob = (
            scene.worker(root, "--dht", "off", "--mdns", "on", "--listen", f"/ip4/{at}/tcp/0", name=name, netns=machine)
            for name, machine, at in (("alice", here, address), ("bob", there, other_address))
        )
        met = until(lambda: _met_by_mdns(alice, bob), "alice and bob to meet by mDNS")
        announced = [
            until(lambda worker=worker: worker.process.events("mdns_announced"), f"{worker.name} to register")
            for worker in (alice, bob)
        ]
        registered = max(_at(events[0]) for events in announced)
        assert _at(met) - registered <= MDNS_S


def test_offer_reaches_a_worker_without_a_way_to_the_root_through_one_that_lacks_its_label(scene: Scene) -> None:
    """Bob takes nothing that he didn't hear of, and only alice can have told him: gossip alone brings him his task."""
    with two_machines() as (here, address, there, other_address):
        alices_address = "10.213.0.3"
        here.run("ip", "address", "add", f"{alices_address}/24", "dev", "cable")
        root = scene.root("--host-rate", "0", "--p2p-listen", f"/ip4/{address}/tcp/0", netns=here, host=address)
        there.drop_tcp_to(address, but=root.port)
        options = ("--mdns", "on")
        listen = (f"/ip4/{alices_address}/tcp/0", f"/ip4/{other_address}/tcp/0")
        alice = scene.worker(root, *options, "--listen", listen[0], name="alice", netns=here)
        bob = scene.worker(
            root, *options, "--listen", listen[1], "--label", "gpu", "--want", "off", name="bob", netns=there
        )
        until(lambda: (seen := bob.seen()) and seen.get("gossip"), "bob to hear gossip")

        submitted = root.door.submit([noop(more={"requires": {"labels": ["gpu"]}}) for _ in range(5)])
        root.door.wait_done(submitted["job"])

        for task in root.door.tasks_of(submitted["job"]):
            assert (task["status"], task["assignee"], task["via"]) == ("completed", bob.address, "offer")
        assert there.dropped() > 0, "bob never tried the root's peer: the cut proves nothing"
        assert _peers(bob) == 1
        assert alice.process.alive


def test_a_closed_network_takes_in_holders_of_its_key_alone(scene: Scene, tmp_path: Path) -> None:
    key = tmp_path / "swarm.key"
    key.write_text(f"/key/swarm/psk/1.0.0/\n/base16/\n{secrets.token_hex(32)}\n")
    root = scene.root("--host-rate", "0", "--psk", str(key))
    alice = scene.worker(root, "--psk", str(key), name="alice")
    mallory = scene.worker(root, name="mallory")

    until(lambda: (seen := alice.seen()) and seen.get("gossip"), "alice to hear gossip")
    until(mallory.seen, "mallory to take turns, which need no peer")
    assert (_peers(alice), _peers(mallory)) == (1, 0)
    assert not (mallory.seen() or {}).get("gossip")


def _met_by_mdns(one: Worker, other: Worker) -> dict[str, Any] | None:
    """The log line by which either worker says that it met the other by mDNS, None where neither did."""
    for here, there in ((one, other), (other, one)):
        seen = there.seen()
        for event in here.process.events("peer_met"):
            if seen and event["peer"] == seen["peer_id"] and event["found_by"] == "mdns":
                return event
    return None


def _peers(worker: Worker) -> int | None:
    seen = worker.seen()
    return seen.get("stats", {}).get("peers", 0) if seen else None


def _at(event: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(event["timestamp"]).timestamp()
