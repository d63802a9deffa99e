"""What a stranger can make a DHT server keep, do and wait for."""

from __future__ import annotations

import contextlib
import time

import pytest
import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.host.exceptions import StreamFailure
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.utils.varint import encode_varint_prefixed, read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from swarm.peer import hardened_dht
from swarm.peer.hardened_dht import (
    IDLE_S,
    KAD_PROTOCOL,
    MAX_CLOSER,
    MAX_PROVIDER_ADDRESSES,
    MAX_PROVIDERS_TOLD,
    MAX_STREAMS_PER_PEER,
    QUESTIONS_AT_ONCE,
    QUESTIONS_PER_S,
    TOLD,
    build_dht,
)
from tests.patience import PATIENCE_S
from tests.peer.harness import connect, eventually, open_host, open_stranger

KEY = b"\x12\x20" + bytes(32)
PING = Message(type=Message.MessageType.PING).SerializeToString()


async def ask(stranger: IHost, victim: BasicHost, *questions: bytes) -> list[Message]:
    """Ask on one stream; the answers."""
    stream = await stranger.new_stream(victim.get_id(), [TProtocol(KAD_PROTOCOL)])
    answers = []
    for question in questions:
        await stream.write(encode_varint_prefixed(question))
        answers.append(Message.FromString(await read_varint_prefixed_bytes_limited(stream, 1024 * 1024)))
    await stream.close()
    return answers


async def test_of_one_provider_a_bounded_number_of_addresses_is_kept() -> None:
    async with open_host() as alice, open_stranger() as mallory:
        dht = build_dht(alice)
        await connect(mallory, alice)
        record = Message(type=Message.MessageType.ADD_PROVIDER, key=KEY)
        provider = record.providerPeers.add(id=mallory.get_id().to_bytes())
        provider.addrs.append(Multiaddr("/dns4/" + ".".join(["a" * 60] * 3) + "/tcp/1").to_bytes())
        provider.addrs.extend(Multiaddr(f"/ip4/10.0.{n // 250}.{n % 250}/tcp/1").to_bytes() for n in range(1000))
        with trio.fail_after(PATIENCE_S):
            await ask(mallory, alice, record.SerializeToString())

        (kept,) = dht.provider_store.get_providers(KEY)
        assert len(kept.addrs) == MAX_PROVIDER_ADDRESSES
        assert not any("dns4" in str(address) for address in kept.addrs)


async def test_an_answer_names_some_of_many_providers_and_another_answer_others() -> None:
    async with open_host() as alice, open_stranger() as mallory:
        dht = build_dht(alice)
        providers = [PeerInfo(ID(b"\x00\x02%02d" % n), [Multiaddr("/ip4/10.0.0.1/tcp/1")]) for n in range(99)]
        providers += [PeerInfo(ID(b"\x00\x03%03d" % n), [Multiaddr("/ip4/10.0.0.1/tcp/1")]) for n in range(200)]
        for provider in providers:
            dht.provider_store.add_provider(KEY, provider)
        await connect(mallory, alice)
        question = Message(type=Message.MessageType.GET_PROVIDERS, key=KEY).SerializeToString()
        with trio.fail_after(PATIENCE_S):
            one, other = await ask(mallory, alice, question, question)

        assert len(one.providerPeers) == len(other.providerPeers) == MAX_PROVIDERS_TOLD
        assert {peer.id for peer in one.providerPeers} != {peer.id for peer in other.providerPeers}


async def test_all_records_together_are_bounded_and_our_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardened_dht, "MAX_PROVIDER_RECORDS", 10)
    async with open_host() as alice:
        store = build_dht(alice).provider_store
        store.providing_keys.add(b"ours")
        for key in (b"ours", b"first", b"second", b"third"):
            for n in range(4):
                store.add_provider(key, PeerInfo(ID(b"\x00\x01%d" % n), [Multiaddr("/ip4/10.0.0.1/tcp/1")]))

        assert set(store.providers) == {b"ours", b"third"}


async def test_a_question_longer_than_any_honest_one_ends_its_stream() -> None:
    async with open_host() as alice, open_stranger() as mallory:
        build_dht(alice)
        await connect(mallory, alice)
        with trio.fail_after(PATIENCE_S):
            (answer,) = await ask(mallory, alice, PING)
            assert answer.type == Message.MessageType.PING
            with pytest.raises(StreamError):
                await ask(mallory, alice, Message(key=bytes(100_000)).SerializeToString())


async def test_a_peer_that_opens_many_streams_and_says_nothing_keeps_nobody_out() -> None:
    async with open_host() as alice, open_stranger() as mallory, open_stranger() as bob:
        dht = build_dht(alice)
        await connect(mallory, alice)
        await connect(bob, alice)
        for _ in range(30):
            with contextlib.suppress(StreamFailure):  # most are reset at once
                await mallory.new_stream(alice.get_id(), [TProtocol(KAD_PROTOCOL)])
        await eventually(lambda: dht._streams[mallory.get_id()] == MAX_STREAMS_PER_PEER)
        with trio.fail_after(PATIENCE_S):
            assert await ask(bob, alice, PING)


async def test_a_flood_of_questions_is_answered_at_the_pace() -> None:
    async with open_host() as alice, open_stranger() as mallory:
        build_dht(alice)
        await connect(mallory, alice)
        questions = 2 * int(QUESTIONS_AT_ONCE)
        started_at = time.monotonic()
        with trio.fail_after(PATIENCE_S):
            await ask(mallory, alice, *[PING] * questions)

        assert time.monotonic() - started_at >= (questions - QUESTIONS_AT_ONCE) / QUESTIONS_PER_S - 0.1


async def test_a_stream_on_which_nothing_is_asked_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardened_dht, "IDLE_S", 0.1)
    assert IDLE_S > 10
    async with open_host() as alice, open_stranger() as mallory:
        dht = build_dht(alice)
        await connect(mallory, alice)
        await mallory.new_stream(alice.get_id(), [TProtocol(KAD_PROTOCOL)])
        await eventually(lambda: not dht._streams)


async def test_of_an_answer_that_names_thousands_of_others_few_are_noted() -> None:
    async with open_host() as alice, open_stranger() as mallory:
        dht = build_dht(alice)

        async def answer(stream: INetStream) -> None:
            await read_varint_prefixed_bytes_limited(stream, 100_000)
            many = Message(type=Message.MessageType.FIND_NODE)
            for n in range(5000):
                many.closerPeers.add(id=b"\x00\x04%04d" % n, addrs=[Multiaddr("/ip4/192.0.2.1/tcp/1").to_bytes()])
            await stream.write(encode_varint_prefixed(many.SerializeToString()))

        mallory.set_stream_handler(TProtocol(KAD_PROTOCOL), answer)
        await connect(alice, mallory)
        with trio.fail_after(PATIENCE_S):
            named = await dht.peer_routing._query_peer_for_closest(mallory.get_id(), KEY)

        assert len(named) == MAX_CLOSER
        assert len(alice.get_peerstore().peer_ids()) < MAX_CLOSER + 5


async def test_of_a_result_the_nearest_few_servers_are_told_and_we_know_it_ourselves() -> None:
    near = [ID(b"\x00\x04%04d" % n) for n in range(20)]
    told: list[ID] = []

    async def send(peer: ID, _: bytes) -> bool:
        told.append(peer)
        return True

    async with open_host() as alice:
        dht = build_dht(alice)
        store = dht.provider_store
        dht.routing_table.find_local_closest_peers = lambda *_: near  # type: ignore[method-assign]
        store._send_add_provider = send  # type: ignore[method-assign]
        assert await dht.provide_nearby(KEY)

        assert set(told) == set(near[:TOLD])
        assert [provider.peer_id for provider in store.get_providers(KEY)] == [alice.get_id()]
        dht.forget(KEY)
        assert store.get_providers(KEY) == []
        assert KEY not in store.providing_keys


async def test_where_nobody_is_near_nobody_is_told() -> None:
    async with open_host() as alice:
        assert not await build_dht(alice).provide_nearby(KEY)
