"""mDNS as it is on a network; run by ``test_mdns.py`` in a network namespace of its own, never collected by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from zeroconf import ServiceInfo, Zeroconf

from swarm.peer.mdns import SERVICE, encode_txt, run_mdns, scope_of
from swarm.peer.node import LEAVE_S, Peer, PeerConfig, open_peer
from tests.kubo import running_kubo
from tests.patience import PATIENCE_S
from tests.peer.harness import TAG, config, eventually
from tests.peer.test_kubo import Rpc

ADDRESS = "10.78.0.1"
SCOPE = scope_of(TAG)


def neighbour(name: str, **changes: object) -> PeerConfig:
    values: dict[str, object] = {"mdns": True, "listen": (f"/ip4/{ADDRESS}/tcp/0", "/ip4/127.0.0.1/tcp/0")}
    return config(name, **(values | changes))


async def test_two_peers_meet_within_two_seconds_of_the_later_ones_start() -> None:
    async with open_peer(neighbour("alice")) as alice:
        await eventually(lambda: alice.addrs)
        took_s = []
        for name in ("bob", "carol", "dave"):
            async with open_peer(neighbour(name)) as other:
                started_at = time.monotonic()
                await eventually(partial(are_connected, alice, other))
                took_s.append(time.monotonic() - started_at)
    assert min(took_s) < 2  # the quickest: a machine that is busy with other things is no fault of mDNS


def are_connected(alice: Peer, bob: Peer) -> bool:
    return bob.id in alice.peers() and alice.id in bob.peers()


async def test_two_swarms_on_one_network_dont_meet() -> None:
    async with (
        open_peer(neighbour("alice")) as alice,
        open_peer(neighbour("mallory", rendezvous_tag="/swarm/other")) as mallory,
        open_peer(neighbour("bob")) as bob,
        open_peer(neighbour("trudy", rendezvous_tag="/swarm/other")) as trudy,
    ):
        await eventually(lambda: are_connected(alice, bob) and are_connected(mallory, trudy))
        async with open_peer(neighbour("carol")) as carol:  # whoever dials whom he hears of has dialled by now
            await eventually(lambda: are_connected(alice, carol) and are_connected(bob, carol))

            assert set(carol.peers()) == {alice.id, bob.id}
            assert set(alice.peers()) == {bob.id, carol.id}
            assert set(mallory.peers()) == {trudy.id}


async def test_what_is_found_is_everybody_else_at_every_address_that_is_no_loopback() -> None:
    ids = [
        "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo",
        "12D3KooWDMCQbZZvLgHiHntG1KwcHoqHPAxL37KvhgibWqFtpqUY",
    ]
    ports = [("4001", "4002"), ("5001", "5002")]
    addresses = [
        [f"/ip4/127.0.0.1/tcp/1/p2p/{peer}", *(f"/ip4/{ADDRESS}/tcp/{port}/p2p/{peer}" for port in their_ports)]
        for peer, their_ports in zip(ids, ports, strict=True)
    ]
    channels = [trio.open_memory_channel[tuple[str, ...]](16) for _ in ids]
    async with trio.open_nursery() as nursery:
        for peer, own, (send, _) in zip(ids, addresses, channels, strict=True):
            nursery.start_soon(partial(run_mdns, peer, own, send, scope=SCOPE))
        for (_, found), others in zip(channels, reversed(addresses), strict=True):
            with trio.fail_after(PATIENCE_S):
                assert list(await found.receive()) == others[1:]
        nursery.cancel_scope.cancel()


async def test_hostile_records_harm_nobody() -> None:
    unusable = ["/ip4/8.8.8.8/tcp/1", "nonsense", "/dns4/" + "a" * 240 + "/tcp/1"]
    junk = [b"", b"\xff" * 300, encode_txt(unusable, scope=SCOPE), b"\x08dnsaddr="]
    zeroconf = await trio.to_thread.run_sync(partial(Zeroconf, interfaces=[ADDRESS]))
    try:
        async with open_peer(neighbour("alice")) as alice, open_peer(neighbour("bob")) as bob:
            for n in range(100):
                service = ServiceInfo(
                    SERVICE,
                    f"junk{n}.{SERVICE}",
                    parsed_addresses=[ADDRESS],
                    port=1,
                    properties=junk[n % len(junk)],
                    server="junk.local.",
                )
                zeroconf.registry.async_add(service)
                await trio.to_thread.run_sync(zeroconf.send, zeroconf.generate_service_broadcast(service, 4500))
            await eventually(partial(are_connected, alice, bob))
            async with open_peer(neighbour("carol")) as carol:
                await eventually(partial(are_connected, alice, carol))
    finally:
        await trio.to_thread.run_sync(zeroconf.close)


async def test_leaving_says_goodbye_in_a_moment() -> None:
    async with open_peer(neighbour("alice")):
        started_at = time.monotonic()  # also while it still registers
    assert time.monotonic() - started_at < LEAVE_S  # it waited for nobody until its time was over


@pytest.fixture
def kubo(tmp_path: Path) -> Iterator[Rpc]:
    changes = {"Discovery.MDNS.Enabled": "true", "Addresses.Swarm": f'["/ip4/{ADDRESS}/tcp/0"]'}
    with running_kubo(tmp_path / "repository", configuration=changes) as daemon:
        yield Rpc(daemon)


async def test_kubo_and_a_peer_find_each_other(kubo: Rpc) -> None:
    kubo_id = await kubo.id()
    async with open_peer(neighbour("alice")) as alice:
        await eventually(lambda: kubo_id in alice.peers())
