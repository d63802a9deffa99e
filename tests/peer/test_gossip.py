"""Only what a root says once, in order, and in the right shape is heard; whatever else the topic carries."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from swarm.peer.gossip import HEARD_CAPACITY, WINDOW, Gossip, ReplayWindow
from swarm.peer.node import Peer, open_peer
from swarm.wire import MAX_GOSSIP_BYTES
from tests.patience import PATIENCE_S
from tests.peer.harness import (
    TOPIC,
    announcement,
    config,
    connect,
    eventually,
    open_stranger,
    seed_of,
    send_rpc,
    signed,
)

ROOT_KEY = create_new_key_pair(seed_of("root"))
ROOT = str(ID.from_pubkey(ROOT_KEY.public_key))


class Relay:
    """A stranger that sends alice whatever it is given, as if it had relayed it."""

    def __init__(self, alice: Peer, stranger) -> None:  # type: ignore[no-untyped-def]
        self.alice = alice
        self.id = str(stranger.get_id())
        self._stranger = stranger
        self._seqno = 0

    async def send(self, *messages: rpc_pb2.Message) -> None:
        await send_rpc(self._stranger, self.alice.id, *messages)

    async def say(self, data: bytes, *, key: KeyPair = ROOT_KEY, topic: str = TOPIC) -> None:
        self._seqno += 1
        await self.send(signed(key, data, seqno=self._seqno, topic=topic))


@contextlib.asynccontextmanager
async def alice_and_a_relay() -> AsyncIterator[Relay]:
    async with open_peer(config("alice", roots=frozenset({ROOT}))) as alice, open_stranger() as stranger:
        await connect(stranger, alice.addrs[0])
        yield Relay(alice, stranger)


async def next_seq(alice: Peer) -> int:
    with trio.fail_after(PATIENCE_S):
        return (await alice.heard.receive()).seq


async def test_what_the_root_says_is_heard_in_order() -> None:
    async with open_peer(config("root")) as root:
        changes = {"roots": frozenset({root.id}), "bootstrap": root.addrs}
        async with open_peer(config("alice", **changes)) as alice:
            await eventually(lambda: root.mesh_size and alice.mesh_size)
            for seq in range(1, 21):
                await root.publish(announcement(root.id, seq=seq))

            assert [await next_seq(alice) for _ in range(20)] == list(range(1, 21))
            assert alice.gaps == 0


async def test_a_stranger_that_claims_to_be_the_root_is_not_heard() -> None:
    mallory = create_new_key_pair(seed_of("mallory"))
    async with alice_and_a_relay() as relay:
        claimed = ID.from_pubkey(ROOT_KEY.public_key).to_bytes()
        await relay.send(signed(mallory, announcement(ROOT), seqno=1, origin=claimed))
        await relay.say(announcement(ROOT), key=mallory)  # its own signature, the root's name inside
        await eventually(lambda: relay.alice.refused)
        await relay.say(announcement(ROOT, seq=7))

        assert await next_seq(relay.alice) == 7


async def test_a_replayed_message_is_not_heard_again() -> None:
    async with alice_and_a_relay() as relay:
        await relay.say(announcement(ROOT, seq=1))
        await relay.say(announcement(ROOT, seq=1))  # the same under a fresh pubsub number
        await eventually(lambda: relay.alice.refused == 1)
        await relay.say(announcement(ROOT, epoch=0, seq=9))  # of an epoch before
        await eventually(lambda: relay.alice.refused == 2)
        await relay.say(announcement(ROOT, seq=2))

        assert [await next_seq(relay.alice) for _ in range(2)] == [1, 2]


async def test_an_oversized_message_is_not_heard() -> None:
    async with alice_and_a_relay() as relay:
        big = announcement(ROOT, seq=1)
        await relay.say(big[:-1] + b" " * (MAX_GOSSIP_BYTES - len(big) + 1) + b"}")
        await eventually(lambda: relay.alice.refused)
        await relay.say(announcement(ROOT, seq=2))

        assert await next_seq(relay.alice) == 2


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"{}", b"[]", b'{"v":0}', b"[" * 50_000, announcement(ROOT).replace(b'"seq":1', b'"seq":-1')],
)
async def test_a_malformed_message_of_the_root_itself_is_not_heard(data: bytes) -> None:
    async with alice_and_a_relay() as relay:
        await relay.say(data)
        await eventually(lambda: relay.alice.refused)
        await relay.say(announcement(ROOT, seq=2))

        assert await next_seq(relay.alice) == 2


async def test_a_message_for_two_topics_is_not_heard() -> None:
    async with alice_and_a_relay() as relay:
        message = rpc_pb2.Message(
            data=announcement(ROOT), topicIDs=[TOPIC, "/other"], from_id=ID.from_string(ROOT).to_bytes(), seqno=bytes(8)
        )
        message.signature = ROOT_KEY.private_key.sign(b"libp2p-pubsub:" + message.SerializeToString())
        await relay.send(message)
        await eventually(lambda: relay.alice.refused)


async def test_a_late_message_is_relayed_but_is_no_news() -> None:
    async with alice_and_a_relay() as relay:
        await relay.say(announcement(ROOT, seq=5))
        assert await next_seq(relay.alice) == 5
        await relay.say(announcement(ROOT, seq=4))
        await relay.say(announcement(ROOT, seq=6))

        assert await next_seq(relay.alice) == 6
        assert relay.alice.refused == 0


async def test_the_same_message_from_two_peers_is_heard_once_and_blames_nobody() -> None:
    async with alice_and_a_relay() as relay, open_stranger() as other:
        await connect(other, relay.alice.addrs[0])
        first = signed(ROOT_KEY, announcement(ROOT, seq=1), seqno=1)
        await relay.send(first)
        await send_rpc(other, relay.alice.id, first)
        await relay.send(signed(ROOT_KEY, announcement(ROOT, seq=2), seqno=2))

        assert [await next_seq(relay.alice) for _ in range(2)] == [1, 2]
        assert relay.alice.refused == 0


async def test_a_hole_in_the_sequence_and_a_new_epoch_are_counted() -> None:
    async with alice_and_a_relay() as relay:
        for epoch, seq in ((1, 1), (1, 2), (1, 5), (1, 6), (2, 1), (2, 2)):
            await relay.say(announcement(ROOT, epoch=epoch, seq=seq))
            assert await next_seq(relay.alice) == seq

        assert relay.alice.gaps == 2


async def test_nobody_reading_costs_the_oldest_and_is_counted() -> None:
    async with open_peer(config("root")) as root:
        changes = {"roots": frozenset({root.id}), "bootstrap": root.addrs}
        async with open_peer(config("alice", **changes)) as alice:
            await eventually(lambda: root.mesh_size and alice.mesh_size)
            last = HEARD_CAPACITY + 50
            for seq in range(1, last + 1):
                await root.publish(announcement(root.id, seq=seq))
            await eventually(lambda: alice.gaps == 50)

            assert await next_seq(alice) == 51
            assert alice.heard.statistics().current_buffer_used == HEARD_CAPACITY - 1


async def test_a_root_that_a_turn_named_is_heard_and_one_it_left_out_is_not() -> None:
    other_key = create_new_key_pair(seed_of("second root"))
    other = str(ID.from_pubkey(other_key.public_key))
    async with alice_and_a_relay() as relay:
        relay.alice.set_roots(frozenset({other}))
        await relay.say(announcement(ROOT, seq=1))
        await eventually(lambda: relay.alice.refused == 1)
        await relay.say(announcement(other, seq=2), key=other_key)

        assert await next_seq(relay.alice) == 2


async def test_a_flood_of_forgeries_ends_with_its_sender_blocked() -> None:
    mallory = create_new_key_pair(seed_of("mallory"))
    async with alice_and_a_relay() as relay:
        forgeries = [signed(mallory, announcement(ROOT, seq=n), seqno=n) for n in range(1, 600)]
        await relay.send(*forgeries)
        await eventually(lambda: relay.alice.blocked)

        assert relay.alice.blocked == {relay.id}
        await eventually(lambda: relay.id not in relay.alice.peers())


async def test_a_few_refused_messages_dont_block_who_relayed_them() -> None:
    unknown_root = create_new_key_pair(seed_of("a root we don't know yet"))
    async with alice_and_a_relay() as relay:
        for seq in range(1, 101):
            await relay.say(announcement(ROOT, seq=seq), key=unknown_root)
        await eventually(lambda: relay.alice.refused == 100)

        assert not relay.alice.blocked


# ── the window ────────────────────────────────────────────────────────────────────────────────────────────────────

positions = st.tuples(st.integers(0, 3), st.integers(0, 3 * WINDOW))


@given(st.lists(positions, max_size=60))
def test_no_position_is_admitted_twice(heard: list[tuple[int, int]]) -> None:
    window = ReplayWindow()
    admitted = [position for position in heard if window.admit(*position)]

    assert len(admitted) == len(set(admitted))


@given(st.permutations(range(20)), st.integers(0, 2**62))
def test_any_order_within_the_window_is_admitted(order: list[int], start: int) -> None:
    window = ReplayWindow()

    assert all(window.admit(1, start + n) for n in order)


@given(st.lists(positions, min_size=1, max_size=60))
def test_what_is_newer_than_everything_is_always_admitted(heard: list[tuple[int, int]]) -> None:
    window = ReplayWindow()
    for position in heard:
        window.admit(*position)
    epoch, seq = max(heard)

    assert window.admit(epoch, seq + 1)
    assert window.admit(epoch + 1, 0)


def test_what_is_older_than_the_window_is_a_replay() -> None:
    window = ReplayWindow()
    window.admit(1, WINDOW)

    assert not window.admit(1, 0)
    assert window.admit(1, 1)


def _messages() -> Iterator[st.SearchStrategy[bytes]]:
    yield st.binary(max_size=200)
    yield st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))


@given(
    data=st.one_of(*_messages()),
    origin=st.binary(max_size=50),
    topics=st.lists(st.text(max_size=10), max_size=3),
    forwarder=st.binary(max_size=50),
)
def test_the_validator_never_raises(data: bytes, origin: bytes, topics: list[str], forwarder: bytes) -> None:
    gossip = Gossip(ID(b"me"), TOPIC, frozenset({ROOT}))
    try:
        for sender in (origin, ID.from_string(ROOT).to_bytes()):
            message = rpc_pb2.Message(data=data, topicIDs=topics, from_id=sender)
            assert gossip.validate(ID(forwarder), message) is False
    finally:
        gossip.close()
