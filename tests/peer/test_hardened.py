"""Each override of libp2p 0.8.1, by what a peer would suffer without it."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import StreamFailure
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.stream_muxer.yamux.yamux import YAMUX_HEADER_FORMAT
from libp2p.utils.varint import decode_varint_with_size, encode_uvarint
from multiaddr import Multiaddr

import swarm.peer
from swarm.errors import ConfigurationError
from swarm.peer import hardened, hardened_dht
from swarm.peer.hardened import MAX_BUFFERED_BYTES, MAX_STREAMS_PER_PEER
from swarm.peer.hardened_dht import build_dht
from tests.patience import PATIENCE_S
from tests.peer.harness import (
    TOPIC,
    Anyone,
    connect,
    eventually,
    open_host,
    open_pubsub,
    open_stranger,
    seed_of,
    send_frame,
    send_rpc,
    signed,
)

#: A warning at libp2p's import where websockets is installed, as in ``pyproject.toml``.
LIBP2PS_OWN = "ignore:websockets.legacy is deprecated:DeprecationWarning"


async def answers(victim: str) -> None:
    """The victim takes a new connection, and a stream on it."""
    async with open_stranger() as witness:
        await connect(witness, victim)
        with trio.fail_after(PATIENCE_S):
            stream = await witness.new_stream(ID.from_string(victim.rsplit("/", 1)[1]), [TProtocol("/ipfs/ping/1.0.0")])
            await stream.write(bytes(32))
            assert await stream.read(32) == bytes(32)
            await stream.reset()


# ── remote kill ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_bytes_that_arent_utf8_end_the_stream_and_not_the_node() -> None:
    admission = Anyone()
    async with open_host(admission=admission) as victim, open_stranger() as mallory:
        await connect(mallory, victim)
        stream = await mallory.get_network().new_stream(victim.get_id())
        await stream.write(b"\x03\xff\xfe\n")
        await eventually(lambda: admission.faults)

        await answers(str(victim.get_addrs()[0]))
        assert admission.faults == [(str(mallory.get_id()), "stream: UnicodeDecodeError")]


async def test_a_malformed_rpc_ends_the_stream_and_not_the_node() -> None:
    admission = Anyone()
    async with open_pubsub(admission=admission) as (victim, pubsub, _), open_stranger() as mallory:
        await connect(mallory, victim)
        await send_frame(mallory, str(victim.get_id()), b"\xff\xff\xff\xff")
        await eventually(lambda: admission.faults)

        await answers(str(victim.get_addrs()[0]))
        assert pubsub.manager.is_running
        assert admission.faults == [(str(mallory.get_id()), "stream: DecodeError")]


async def test_a_malformed_signer_key_drops_the_message_and_not_the_node() -> None:
    admission = Anyone()
    async with open_pubsub(admission=admission) as (victim, pubsub, _), open_stranger() as mallory:
        await connect(mallory, victim)
        forged = rpc_pb2.Message(
            data=b"x", topicIDs=[TOPIC], from_id=b"\1\2\3", seqno=bytes(8), signature=b"zz", key=b"\xff\xff\xff"
        )
        await send_rpc(mallory, str(victim.get_id()), forged)
        await eventually(lambda: admission.faults)

        await answers(str(victim.get_addrs()[0]))
        assert pubsub.manager.is_running


async def test_a_bad_signature_counts_against_who_sent_it() -> None:
    admission = Anyone()
    async with open_pubsub(admission=admission) as (victim, _, _), open_stranger() as mallory:
        await connect(mallory, victim)
        key_pair = create_new_key_pair(seed_of("mallory"))
        message = signed(key_pair, b"x", seqno=1)
        message.signature = bytes(64)
        await send_rpc(mallory, str(victim.get_id()), message)
        await eventually(lambda: admission.faults)

        assert admission.faults == [(str(mallory.get_id()), "signature")]


async def test_an_exception_in_a_stream_handler_ends_that_stream_alone() -> None:
    reached = trio.Event()

    async def broken(_: object) -> None:
        reached.set()
        raise KeyError("a defect of ours")

    async with open_host() as victim, open_stranger() as bob:
        victim.set_stream_handler(TProtocol("/broken/1"), broken)
        await connect(bob, victim)
        with contextlib.suppress(StreamFailure):  # the reset may be faster than the answer
            await bob.new_stream(victim.get_id(), [TProtocol("/broken/1")])
        with trio.fail_after(PATIENCE_S):
            await reached.wait()

        await answers(str(victim.get_addrs()[0]))


async def test_an_exception_in_the_validator_drops_the_message_alone() -> None:
    reached = trio.Event()

    def broken(*_: object) -> bool:
        reached.set()
        raise ZeroDivisionError

    async with open_pubsub() as (victim, pubsub, _), open_stranger() as bob:
        pubsub.set_topic_validator(TOPIC, broken, is_async_validator=False)
        await connect(bob, victim)
        await send_rpc(bob, str(victim.get_id()), signed(create_new_key_pair(seed_of("b")), b"x", seqno=1))
        with trio.fail_after(PATIENCE_S):
            await reached.wait()

        await answers(str(victim.get_addrs()[0]))
        assert pubsub.manager.is_running


async def test_a_negotiation_of_an_absurd_length_costs_no_memory() -> None:
    async with open_host() as victim:
        port = int(str(victim.get_transport_addrs()[0]).rsplit("/", 1)[1])
        for length in (10**9, 2**62):
            with trio.fail_after(PATIENCE_S):
                async with await trio.open_tcp_stream("127.0.0.1", port) as mallory:
                    await mallory.send_all(b"\x13/multistream/1.0.0\n" + encode_uvarint(length) + bytes(1000))
                    with contextlib.suppress(trio.BrokenResourceError):
                        while await mallory.receive_some(4096):
                            pass

        await answers(str(victim.get_addrs()[0]))


@pytest.mark.parametrize("answer", [encode_uvarint(2**62) + bytes(1000), b"\x03\xff\xfe\n", b"\x00" * 100])
async def test_whoever_answers_a_dial_cant_end_the_node_that_dialled(answer: bytes) -> None:
    async def absurd(stream: trio.SocketStream) -> None:
        await stream.send_all(answer)
        await trio.sleep_forever()

    async with open_host() as alice, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, absurd, [listener])
        address = Multiaddr(f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}")
        mallory = ID.from_pubkey(create_new_key_pair(seed_of("mallory")).public_key)
        alice.get_peerstore().add_addrs(mallory, [address], 60)
        with pytest.raises(SwarmException), trio.fail_after(PATIENCE_S):
            await alice.get_network().dial_peer(mallory)
        nursery.cancel_scope.cancel()


# ── who may connect ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_plaintext_is_refused_so_nobody_connects_as_somebody_else() -> None:
    mallory = create_new_key_pair(seed_of("mallory"))
    alice = create_new_key_pair(seed_of("alice"))
    disguised = InsecureTransport(KeyPair(private_key=mallory.private_key, public_key=alice.public_key))
    options = {"sec_opt": {TProtocol(PLAINTEXT_PROTOCOL_ID): disguised}}
    async with open_host() as victim, open_stranger(mallory, **options) as stranger:
        with pytest.raises(SwarmException):
            await connect(stranger, victim)

        assert not victim.get_network().connections


async def test_a_blocked_peer_gets_no_connection() -> None:
    admission = Anyone()
    async with open_host(admission=admission) as victim, open_stranger() as mallory:
        admission.blocked.add(str(mallory.get_id()))
        try:
            await connect(mallory, victim)
        except SwarmException:
            pass
        else:  # it sees the connection end as soon as it would use it
            await eventually(lambda: not mallory.get_network().get_connections(victim.get_id()))

        assert not victim.get_network().connections


async def test_connections_of_the_past_take_no_inbound_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardened, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(hardened, "HIGH_WATERMARK", 3)
    async with open_host() as victim:
        for _ in range(6):
            async with open_stranger() as bob:
                await connect(bob, victim)
                await eventually(lambda: victim.get_network().connections)
            await eventually(lambda: not victim.get_network().connections)


async def test_strangers_cant_fill_the_memory_with_subscriptions() -> None:
    async with open_pubsub() as (victim, pubsub, _), open_stranger() as mallory:
        await connect(mallory, victim)
        topics = [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=f"/junk/{n}") for n in range(100)]
        topics.append(rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC))
        await send_frame(mallory, str(victim.get_id()), rpc_pb2.RPC(subscriptions=topics).SerializeToString())
        await eventually(lambda: pubsub.peer_topics)

        assert set(pubsub.peer_topics) == {TOPIC}


async def test_one_peer_cant_use_up_the_streams_of_all() -> None:
    held = 0

    async def hold(_: object) -> None:
        nonlocal held
        held += 1
        await trio.sleep_forever()

    async with open_host() as victim, open_stranger() as mallory:
        victim.set_stream_handler(TProtocol("/hold/1"), hold)
        await connect(mallory, victim)
        for _ in range(MAX_STREAMS_PER_PEER + 20):
            with contextlib.suppress(StreamFailure):  # it is reset
                await mallory.new_stream(victim.get_id(), [TProtocol("/hold/1")])

        await trio.testing.wait_all_tasks_blocked(0.1)

        assert 0 < held <= MAX_STREAMS_PER_PEER
        await answers(str(victim.get_addrs()[0]))


async def test_a_peer_that_opens_stream_after_stream_is_served_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardened, "STREAMS_AT_ONCE", 5.0)
    monkeypatch.setattr(hardened, "STREAMS_PER_S", 20.0)
    async with open_host() as victim, open_stranger() as mallory:
        await connect(mallory, victim)
        started_at = time.monotonic()
        with trio.fail_after(PATIENCE_S):
            for _ in range(25):
                stream = await mallory.new_stream(victim.get_id(), [TProtocol("/ipfs/id/1.0.0")])
                await stream.reset()

        assert time.monotonic() - started_at > 0.9
        await answers(str(victim.get_addrs()[0]))


async def test_a_peer_that_ignores_the_window_fills_no_memory() -> None:
    async def never_read(_: object) -> None:
        await trio.sleep_forever()

    async with open_host() as victim, open_stranger() as mallory:
        victim.set_stream_handler(TProtocol("/hold/1"), never_read)
        await connect(mallory, victim)
        stream = await mallory.new_stream(victim.get_id(), [TProtocol("/hold/1")])
        yamux = stream.muxed_conn
        frame = struct.pack(YAMUX_HEADER_FORMAT, 0, 0, 0, stream.muxed_stream.stream_id, 65536) + bytes(65536)
        for _ in range(200):  # 13 MB
            await yamux._write_frame(frame)
        (connection,) = victim.get_network().get_connections(mallory.get_id())
        buffers = connection.muxed_conn.stream_buffers
        await eventually(lambda: sum(map(len, buffers.values())) > MAX_BUFFERED_BYTES / 2)

        assert sum(map(len, buffers.values())) <= MAX_BUFFERED_BYTES
        await answers(str(victim.get_addrs()[0]))


async def test_streams_that_we_are_done_with_are_reset_and_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardened, "LINGER_S", 0.3)
    async with open_host() as victim, open_stranger() as mallory:
        await connect(mallory, victim)
        (connection,) = victim.get_network().get_connections(mallory.get_id())
        before = len(connection.muxed_conn.streams)
        for _ in range(30):  # each is answered and half closed by the victim, and kept open by mallory
            stream = await mallory.new_stream(victim.get_id(), [TProtocol("/ipfs/id/1.0.0")])
            await stream.write(bytes(200_000))
        buffers = connection.muxed_conn.stream_buffers
        await eventually(lambda: not sum(map(len, buffers.values())))
        await eventually(lambda: len(connection.muxed_conn.streams) <= before)


async def test_connections_that_are_gone_leave_no_task_behind() -> None:
    async with open_host() as hub:
        tasks = trio.lowlevel.current_statistics().tasks_living
        for _ in range(10):
            await _visit(hub)
        await eventually(lambda: not hub.get_network().connections)
        await eventually(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks + 2)


def _syn(stream_id: int) -> bytes:
    """The frame that opens a stream; by frames alone, since mallory's own libp2p keeps to the caps as well."""
    return struct.pack(YAMUX_HEADER_FORMAT, 0, 1, 1, stream_id, 0)


async def test_a_peer_that_opens_streams_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardened, "MAX_STREAMS_PER_CONNECTION", 20)
    async with open_host() as victim, open_stranger() as mallory:
        await connect(mallory, victim)
        (connection,) = mallory.get_network().get_connections(victim.get_id())
        with contextlib.suppress(RawConnError):
            for n in range(30):
                await connection.muxed_conn._write_frame(_syn(1001 + 2 * n))
        await eventually(lambda: not victim.get_network().connections)
        await answers(str(victim.get_addrs()[0]))


async def test_streams_that_each_keep_to_their_window_fill_no_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_read(_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(hardened, "MAX_BUFFERED_PER_CONNECTION_BYTES", 150_000)
    async with open_host() as victim, open_stranger() as mallory:
        victim.set_stream_handler(TProtocol("/hold/1"), never_read)
        await connect(mallory, victim)
        for _ in range(20):
            stream = await mallory.new_stream(victim.get_id(), [TProtocol("/hold/1")])
            await stream.write(bytes(60_000))
        (connection,) = victim.get_network().get_connections(mallory.get_id())
        buffers = connection.muxed_conn.stream_buffers
        await eventually(lambda: sum(map(len, buffers.values())) > 60_000)

        assert sum(map(len, buffers.values())) <= 150_000
        await answers(str(victim.get_addrs()[0]))


async def test_reading_small_messages_costs_no_frame_each() -> None:
    async def swallow(stream) -> None:  # type: ignore[no-untyped-def]
        while True:
            await stream.read(1)
            read.append(1)

    read: list[int] = []
    async with open_host() as victim, open_stranger() as bob:
        victim.set_stream_handler(TProtocol("/swallow/1"), swallow)
        await connect(bob, victim)
        stream = await bob.new_stream(victim.get_id(), [TProtocol("/swallow/1")])
        (connection,) = victim.get_network().get_connections(bob.get_id())
        frames = _count_frames(connection.muxed_conn)
        for _ in range(200):
            await stream.write(b"x")
        await eventually(lambda: len(read) == 200)

        assert len(frames) < 10


def _count_frames(yamux) -> list[int]:  # type: ignore[no-untyped-def]
    sent: list[int] = []
    write = yamux._write_frame

    async def counted(data: bytes) -> None:
        sent.append(len(data))
        await write(data)

    yamux._write_frame = counted
    return sent


async def test_a_peer_that_says_a_megabyte_of_itself_isnt_listened_to() -> None:
    said = Identify(agent_version="x" * 100_000, protocols=["/junk/1"]).SerializeToString()

    async def boast(stream) -> None:  # type: ignore[no-untyped-def]
        await stream.write(encode_uvarint(len(said)) + said)
        boasted.set()

    boasted = trio.Event()
    async with open_host() as victim, open_stranger() as mallory:
        mallory.set_stream_handler(TProtocol("/ipfs/id/1.0.0"), boast)
        await connect(mallory, victim)
        with trio.fail_after(PATIENCE_S):
            await boasted.wait()
        await answers(str(victim.get_addrs()[0]))

        assert mallory.get_id() not in victim.get_peerstore().peer_ids()


async def test_a_large_transfer_isnt_held_up_by_the_window() -> None:
    content = os.urandom(8_000_000)
    received = bytearray()

    async def receive(stream) -> None:  # type: ignore[no-untyped-def]
        while len(received) < len(content):
            received.extend(await stream.read(65536))

    async with open_host() as alice, open_host() as bob:
        bob.set_stream_handler(TProtocol("/receive/1"), receive)
        await connect(alice, bob)
        stream = await alice.new_stream(bob.get_id(), [TProtocol("/receive/1")])
        with trio.fail_after(PATIENCE_S):
            await stream.write(content)
            await eventually(lambda: len(received) == len(content))

        assert bytes(received) == content


# ── dialling ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _dead_address() -> Multiaddr:
    return Multiaddr("/ip4/127.0.0.1/tcp/1")


async def test_a_peer_is_reached_by_its_second_address_when_the_first_is_dead() -> None:
    async with open_host() as alice, open_host() as bob:
        alice.get_peerstore().add_addrs(bob.get_id(), [_dead_address(), bob.get_transport_addrs()[0]], 60)
        with trio.fail_after(PATIENCE_S):
            await alice.get_network().dial_peer(bob.get_id())

        assert bob.get_id() in alice.get_network().connections


async def test_a_peer_that_was_down_is_reached_as_soon_as_it_is_up() -> None:
    async with open_host() as alice, open_host() as bob:
        alice.get_peerstore().add_addrs(bob.get_id(), [_dead_address()], 60)
        with pytest.raises(SwarmException):
            await alice.get_network().dial_peer(bob.get_id())
        alice.get_peerstore().add_addrs(bob.get_id(), bob.get_transport_addrs(), 60)
        with trio.fail_after(PATIENCE_S):
            await alice.get_network().dial_peer(bob.get_id())

        assert bob.get_id() in alice.get_network().connections


async def test_loopback_is_dialled_although_another_address_is_known() -> None:
    async with open_host() as alice, open_host() as bob:
        elsewhere = Multiaddr("/ip4/0.0.0.1/tcp/1")  # refused by the kernel at once
        alice.get_peerstore().add_addrs(bob.get_id(), [elsewhere, bob.get_transport_addrs()[0]], 60)
        with trio.fail_after(PATIENCE_S):
            await alice.get_network().dial_peer(bob.get_id())

        assert bob.get_id() in alice.get_network().connections


async def test_nobody_is_dialled_only_because_an_address_is_known() -> None:
    async with open_host() as alice, open_host() as bob:
        alice.get_peerstore().add_addrs(bob.get_id(), bob.get_transport_addrs(), 60)
        await alice.get_network().auto_connector.maybe_connect()
        await trio.testing.wait_all_tasks_blocked(0.1)

        assert not bob.get_network().connections


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_burst_of_two_hundred_messages_arrives_whole() -> None:
    async with open_pubsub() as (alice, sender, router), open_pubsub() as (bob, receiver, _):
        subscription = await receiver.subscribe(TOPIC)
        await connect(alice, bob)
        await eventually(lambda: router.mesh.get(TOPIC))
        for n in range(200):
            await sender.publish(TOPIC, b"%d" % n)
        with trio.fail_after(PATIENCE_S):
            heard = {(await subscription.get()).data for _ in range(200)}

        assert len(heard) == 200


async def test_messages_wait_for_a_reader_that_is_busy() -> None:
    async with open_pubsub() as (_, pubsub, _):
        subscription = await pubsub.subscribe(TOPIC)
        for n in range(200):
            await pubsub.publish(TOPIC, b"%d" % n)
        with trio.fail_after(PATIENCE_S):
            heard = [(await subscription.get()).data for _ in range(200)]

        assert heard == [b"%d" % n for n in range(200)]


@pytest.mark.parametrize(
    "flood",
    [
        rpc_pb2.RPC(publish=[rpc_pb2.Message(topicIDs=[TOPIC])] * 5_000),
        rpc_pb2.RPC(control=rpc_pb2.ControlMessage(iwant=[rpc_pb2.ControlIWant(messageIDs=[b"00"] * 50_000)])),
        rpc_pb2.RPC(control=rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID=TOPIC)] * 5_000)),
    ],
    ids=["messages", "ids", "control"],
)
async def test_an_rpc_of_more_parts_than_any_honest_one_is_malformed(flood: rpc_pb2.RPC) -> None:
    admission = Anyone()
    async with open_pubsub(admission=admission) as (alice, _, _), open_stranger() as mallory:
        await connect(mallory, alice)
        await send_frame(mallory, str(alice.get_id()), flood.SerializeToString())
        await eventually(lambda: admission.faults)

        assert admission.faults == [(str(mallory.get_id()), "stream: MalformedInput")]


async def test_nothing_is_kept_of_topics_that_a_stranger_makes_up_and_no_peer_dialled_that_he_recommends() -> None:
    made_up = [f"topic {n}" for n in range(100)]
    control = rpc_pb2.ControlMessage(
        ihave=[rpc_pb2.ControlIHave(topicID=topic, messageIDs=[b"00"]) for topic in made_up],
        graft=[rpc_pb2.ControlGraft(topicID=topic) for topic in made_up],
        prune=[rpc_pb2.ControlPrune(topicID=TOPIC, backoff=5, peers=[rpc_pb2.PeerInfo(peerID=b"\x00\x01a")])],
    )
    async with open_pubsub() as (alice, _, router), open_stranger() as mallory:
        recommended = []
        router._do_px = recommended.append  # type: ignore[method-assign, assignment]
        await connect(mallory, alice)
        await send_frame(mallory, str(alice.get_id()), rpc_pb2.RPC(control=control).SerializeToString())
        await eventually(lambda: router.back_off.get(TOPIC))

        kept = (
            router.back_off,
            router.ihave_message_limits[mallory.get_id()],
            router.graft_flood_tracking[mallory.get_id()],
        )
        assert not {topic for records in kept for topic in records} & set(made_up)
        assert not recommended


class _SlowStream:
    """A stream that sends 64 KiB at a time, as yamux does when its window is full."""

    def __init__(self) -> None:
        self.sent = b""

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), 65536):
            await trio.lowlevel.checkpoint()
            self.sent += data[start : start + 65536]


async def test_two_writers_of_one_stream_dont_mix_their_frames() -> None:
    async with open_pubsub() as (_, pubsub, _):
        stream = _SlowStream()
        async with trio.open_nursery() as nursery:
            for letter in (b"a", b"b", b"c"):
                message = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=letter * 200_000)])
                nursery.start_soon(pubsub.write_msg, stream, message)

    rest, heard = stream.sent, set()
    while rest:
        length, prefix = decode_varint_with_size(rest)
        frame, rest = rest[prefix : prefix + length], rest[prefix + length :]
        heard.add(rpc_pb2.RPC.FromString(frame).publish[0].data)
    assert heard == {b"a" * 200_000, b"b" * 200_000, b"c" * 200_000}


async def test_a_restart_repeats_no_sequence_number() -> None:
    async with open_pubsub("root") as (_, first, _):
        used = {first._next_seqno() for _ in range(5_000)}
    async with open_pubsub("root") as (_, second, _):
        assert not used & {second._next_seqno() for _ in range(5_000)}


async def test_what_only_the_adaptive_mode_reads_is_forgotten() -> None:
    async with open_pubsub() as (_, pubsub, router):
        for n in range(20):
            await pubsub.publish(TOPIC, b"%d" % n)
        assert router.recent_message_deliveries

        await eventually(lambda: not any(router.recent_message_deliveries.values()))


async def test_the_heartbeat_stays_at_a_second_in_a_small_swarm() -> None:
    async with open_pubsub() as (alice, _, router), open_pubsub() as (bob, _, _):
        await connect(alice, bob)
        await eventually(lambda: router.mesh.get(TOPIC))
        router.last_health_update = 0  # half a minute has passed
        router._update_network_health()
        router._adapt_gossip_parameters()

        assert router.heartbeat_interval == 1


# ── the DHT ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_dht_speaks_the_lan_protocol_that_kubo_speaks() -> None:
    async with open_host() as host:
        build_dht(host)

        assert "/ipfs/lan/kad/1.0.0" in host.get_mux().get_protocols()
        assert "/ipfs/kad/1.0.0" not in host.get_mux().get_protocols()


async def test_a_key_has_room_for_more_than_twenty_providers() -> None:
    async with open_host() as host:
        store = build_dht(host).provider_store
        for n in range(60):
            store.add_provider(b"key", _provider(n))

        assert len(store.get_providers(b"key")) == 60


async def test_what_strangers_store_is_bounded_and_our_own_keys_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardened_dht, "MAX_PROVIDER_KEYS", 10)
    async with open_host() as host:
        dht = build_dht(host)
        dht.provider_store.providing_keys.add(b"ours")
        dht.provider_store.add_provider(b"ours", _provider(0))
        for n in range(50):
            dht.provider_store.add_provider(b"%d" % n, _provider(n))

        assert len(dht.provider_store.providers) == 10
        assert dht.provider_store.get_providers(b"ours")


def _provider(n: int):  # type: ignore[no-untyped-def]
    from libp2p.peer.peerinfo import PeerInfo

    return PeerInfo(ID.from_pubkey(create_new_key_pair(seed_of(f"provider {n}")).public_key), [])


async def test_two_nodes_of_one_data_centre_are_both_in_the_table() -> None:
    async with open_host() as host:
        assert build_dht(host).routing_table.max_peers_per_subnet == 0


# ── the process ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_leaving_closes_every_socket_in_parallel() -> None:
    async with open_host() as hub:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(_visit, hub)
        started_at = trio.current_time()
    assert trio.current_time() - started_at < 2
    gc.collect()  # an unclosed socket is a ResourceWarning, which is an error here


async def _visit(hub) -> None:  # type: ignore[no-untyped-def]
    async with open_host() as visitor:
        await connect(visitor, hub)


def test_another_version_of_libp2p_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"libp2p 0\.9\.0 is installed") as refused:
        swarm.peer.check_version("0.9.0")

    assert refused.value.hint is not None
    assert "0.8.1" in refused.value.hint


def test_libp2p_logs_to_our_handlers_and_never_to_stderr_by_itself() -> None:
    program = """
        import logging, trio
        import swarm.peer.hardened
        from tests.peer.harness import connect, open_host

        async def main():
            async with open_host() as alice, open_host() as bob:
                await connect(alice, bob)

        trio.run(main)
        logging.getLogger("libp2p.kad_dht.kad_dht").warning("chatter")
        logging.getLogger("libp2p.transport.tcp.tcp").error("chatter")
        logging.getLogger("libp2p.pubsub").warning("chatter")
        assert logging.getLogger("libp2p").propagate
        assert not logging.getLogger().handlers
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", LIBP2PS_OWN, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(swarm.peer.__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


async def test_a_peer_that_froze_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEALTH_DELAY_S", "HEALTH_INTERVAL_S", "PING_S"):
        monkeypatch.setattr(hardened, name, 0.3)
    program = """
        import trio
        from tests.peer.harness import open_host

        async def main():
            async with open_host("frozen") as host:
                print(host.get_addrs()[0], flush=True)
                await trio.sleep_forever()

        trio.run(main)
    """
    async with open_host() as alice:
        frozen = await trio.lowlevel.open_process(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(swarm.peer.__file__).parents[2])},
        )
        try:
            assert frozen.stdout is not None
            async with frozen.stdout as output:
                address = await output.receive_some()
                await connect(alice, address.decode().strip())
                frozen.send_signal(signal.SIGSTOP)
                await eventually(lambda: not alice.get_network().connections)
        finally:
            frozen.kill()
            await frozen.wait()
