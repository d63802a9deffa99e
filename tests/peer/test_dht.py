"""Peers of one swarm meet by the DHT, and an idle swarm looks rarely."""

from __future__ import annotations

import pytest
import trio
from libp2p.kad_dht.provider_store import ProviderRecord
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr
from structlog.testing import capture_logs

from swarm.peer.dht import IDLE_INTERVAL_S, IDLE_ROUNDS, Interval, Rendezvous, key_of_tag
from swarm.peer.node import Peer, PeerConfig, open_peer
from tests.patience import PATIENCE_S
from tests.peer.harness import TAG, announcement, config, eventually
from tests.peer.test_dialer import open_trap


def member(root: Peer, **changes: object) -> PeerConfig:
    values: dict[str, object] = {"dht": True, "dht_interval_s": 0.2, "roots": frozenset({root.id})}
    return config(**(values | {"bootstrap": root.addrs} | changes))


def rendezvous_of(peer: Peer) -> Rendezvous:
    rendezvous = peer._alive().rendezvous
    assert rendezvous is not None
    return rendezvous


def provided(peer: Peer) -> bool:
    return bool(rendezvous_of(peer)._provided_to)


async def test_two_workers_of_one_root_meet_and_gossip_on_without_it() -> None:
    async with (
        open_peer(config("second root", dht=True, dht_interval_s=0.2)) as second,
        open_peer(config("root", dht=True)) as root,
        open_peer(member(root, roots=frozenset({second.id}))) as alice,
        open_peer(member(root, roots=frozenset({second.id}))) as bob,
    ):
        await second.dial(root.addrs[0])
        await eventually(lambda: bob.id in alice.peers() and second.id in alice.peers())
        await eventually(lambda: second.id in bob.peers())
        root.close()
        await eventually(lambda: root.id not in alice.peers() and root.id not in bob.peers())
        await eventually(lambda: second.mesh_size >= 2)
        await second.publish(announcement(second.id, seq=4))
        for worker in (alice, bob):
            with trio.fail_after(PATIENCE_S):
                assert (await worker.heard.receive()).seq == 4


async def test_a_newcomer_meets_the_others_without_waiting_for_the_next_round() -> None:
    async with open_peer(config("root", dht=True)) as root, open_peer(member(root, dht_interval_s=60)) as alice:
        await eventually(lambda: provided(alice))
        async with open_peer(member(root, dht_interval_s=60)) as bob:
            await eventually(lambda: alice.id in bob.peers())


async def test_a_root_that_is_back_without_its_records_is_told_the_tag_again() -> None:
    async with open_peer(config("root", dht=True)) as root, open_peer(member(root)) as alice:
        records = rendezvous_of(root)._dht.provider_store.providers
        key = bytes.fromhex(key_of_tag(TAG))
        await eventually(lambda: str(alice.id) in records.get(key, {}) and provided(alice))
        await root.disconnect(alice.id)
        records.clear()

        await eventually(lambda: str(alice.id) in records.get(key, {}))


async def test_peers_of_another_tag_are_not_found() -> None:
    async with (
        open_peer(config("root", dht=True)) as root,
        open_peer(member(root)) as alice,
        open_peer(member(root)) as carol,
        open_peer(member(root, rendezvous_tag="/swarm/other")) as bob,
    ):
        await eventually(lambda: carol.id in alice.peers())
        await eventually(lambda: provided(bob))
        with trio.fail_after(PATIENCE_S):
            found = dict(await rendezvous_of(alice).find())

        assert carol.id in found
        assert bob.id not in found


async def test_a_dead_provider_is_knocked_at_only_once_however_often_it_is_found() -> None:
    dead = ID.from_string("12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo")
    async with open_peer(config("root", dht=True)) as root, open_trap() as trap:
        record = PeerInfo(dead, [Multiaddr(trap.address)])
        rendezvous_of(root)._dht.provider_store.add_provider(bytes.fromhex(key_of_tag(TAG)), record)
        async with open_peer(member(root, dht_interval_s=0.05)) as alice:
            await eventually(lambda: trap.knocks == 2)  # the root's, and ours
            rounds = rendezvous_of(alice)._interval
            await eventually(lambda: rounds._idle_rounds > 10)

            assert trap.knocks == 2


async def test_a_provider_is_told_of_others_and_not_of_itself() -> None:
    async with (
        open_peer(config("root", dht=True)) as root,
        open_peer(member(root)) as alice,
        open_peer(member(root)) as bob,
    ):
        await eventually(lambda: bob.id in alice.peers())
        with trio.fail_after(PATIENCE_S):
            found = dict(await rendezvous_of(alice).find())

        assert bob.id in found
        assert alice.id not in found


async def test_what_is_no_peer_id_in_an_answer_ends_no_round() -> None:
    nobody = ProviderRecord(PeerInfo(ID(b""), [Multiaddr("/ip4/127.0.0.1/tcp/1")]))
    async with open_peer(config("root", dht=True)) as root:
        rendezvous_of(root)._dht.provider_store.providers[bytes.fromhex(key_of_tag(TAG))] = {"": nobody}
        with capture_logs() as logs:
            async with open_peer(member(root)) as alice, open_peer(member(root)) as bob:
                await eventually(lambda: bob.id in alice.peers())
                with trio.fail_after(PATIENCE_S):
                    found = dict(await rendezvous_of(alice).find())

        assert bob.id in found
        assert "" not in found
        assert not [line for line in logs if line["event"] == "dht_round_failed"]


def test_look_ups_become_rare_after_thirty_idle_rounds_and_frequent_at_a_loss() -> None:
    interval = Interval(10.0)
    for _ in range(IDLE_ROUNDS - 1):
        interval.round_done(met=0)
    assert interval.wait_s == 10.0
    interval.round_done(met=0)
    assert interval.wait_s == IDLE_INTERVAL_S == 60.0
    interval.lost()
    assert interval.wait_s == 10.0


def test_a_new_peer_keeps_the_look_ups_frequent() -> None:
    interval = Interval(10.0)
    for n in range(5 * IDLE_ROUNDS):
        interval.round_done(met=n % (IDLE_ROUNDS - 1) == 0)

    assert interval.wait_s == 10.0


def test_an_interval_longer_than_the_idle_one_is_never_shortened() -> None:
    interval = Interval(100.0)
    for _ in range(IDLE_ROUNDS):
        interval.round_done(met=0)

    assert interval.wait_s == pytest.approx(100.0)


async def test_a_round_that_took_longer_than_the_interval_is_followed_by_the_next_at_once() -> None:
    async with open_peer(config("alone", dht=True, dht_interval_s=2 * PATIENCE_S)) as alone:
        with trio.fail_after(PATIENCE_S):
            await rendezvous_of(alone)._wait(trio.current_time() - 3_600)
