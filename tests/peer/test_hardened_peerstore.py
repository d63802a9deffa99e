"""What strangers can make us remember of peers, and what stays whatever they do."""

from __future__ import annotations

import time

import pytest
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.host.basic_host import BasicHost
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.identity.update import update_peerstore_from_identify
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from multiaddr import Multiaddr

from swarm.peer import hardened_peerstore
from swarm.peer.hardened_peerstore import MAX_ADDRESSES, MAX_PROTOCOLS, HardenedPeerStore
from tests.peer.harness import connect, open_host, seed_of

SOMEBODY = ID(b"\x00\x02no")
ADDRESS = Multiaddr("/ip4/192.0.2.1/tcp/1")


def addresses(number: int) -> list[Multiaddr]:
    return [Multiaddr(f"/ip4/10.{n // 65536}.{n // 256 % 256}.{n % 256}/tcp/1") for n in range(number)]


def store_of(host: BasicHost) -> HardenedPeerStore:
    store = host.get_peerstore()
    assert isinstance(store, HardenedPeerStore)
    return store


async def test_a_flood_of_made_up_peers_evicts_neither_our_key_nor_who_is_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardened_peerstore, "MAX_PEERS", 20)
    async with open_host() as alice, open_host() as bob:
        await connect(alice, bob)
        store = store_of(alice)
        for n in range(200):
            store.add_addrs(ID(b"\x00\x03%03d" % n), [ADDRESS], 60)

        assert len(store.peer_data_map) == 20
        assert alice.get_private_key()
        assert store.addrs(bob.get_id())
        assert store.addrs(ID(b"\x00\x03199"))


async def test_thousands_of_addresses_of_one_peer_cost_no_time_and_little_room() -> None:
    async with open_host() as alice:
        store, flood = store_of(alice), addresses(6000)
        started_at = time.process_time()
        store.add_addrs(SOMEBODY, flood, 60)

        assert len(store.addrs(SOMEBODY)) == MAX_ADDRESSES
        assert time.process_time() - started_at < 1  # four seconds where each is compared with all others


async def test_the_newest_addresses_are_kept() -> None:
    async with open_host() as alice:
        store = store_of(alice)
        store.add_addrs(SOMEBODY, addresses(MAX_ADDRESSES), 60)
        store.add_addrs(SOMEBODY, [ADDRESS], 60)

        assert store.addrs(SOMEBODY)[-1] == ADDRESS


async def test_what_a_peer_says_of_itself_is_kept_in_part() -> None:
    said = Identify(
        protocols=["/" + "a" * 1000, *(f"/protocol/{n}" for n in range(1000))],
        listen_addrs=[address.to_bytes() for address in addresses(900)],
    )
    async with open_host() as alice:
        store = store_of(alice)
        await update_peerstore_from_identify(store, SOMEBODY, said)
        store.add_protocols(SOMEBODY, [f"/more/{n}" for n in range(1000)])

        assert len(store.get_protocols(SOMEBODY)) <= MAX_PROTOCOLS
        assert all(len(one) < 300 for one in store.get_protocols(SOMEBODY))
        assert len(store.addrs(SOMEBODY)) <= MAX_ADDRESSES


@pytest.mark.parametrize(("number", "is_taken"), [(10, True), (3000, False)])
async def test_a_signed_record_longer_than_any_honest_one_is_refused(number: int, is_taken: bool) -> None:
    keys = create_new_key_pair(seed_of("mallory"))
    peer = ID.from_pubkey(keys.public_key)
    record = seal_record(PeerRecord(peer_id=peer, addrs=addresses(number), seq=1), keys.private_key)
    async with open_host() as alice:
        assert store_of(alice).consume_peer_record(record, 60) is is_taken
