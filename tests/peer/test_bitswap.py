"""Blocks go to whom they are due, come whole or not at all, and a hostile peer costs little."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import trio
from libp2p.bitswap.pb.bitswap_pb2 import Message
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import StreamFailure
from libp2p.peer.id import ID
from libp2p.utils.varint import encode_varint_prefixed

from swarm.content.cid import MAX_BLOCK_BYTES, build, cid_bytes, cid_from_bytes, raw_cid
from swarm.errors import MalformedInput, UnreachableError
from swarm.model import Cid
from swarm.peer.bitswap import MAX_BLOCKS_TAKEN, MAX_WANTS_PER_PEER, PROTOCOLS, Bitswap
from swarm.peer.node import Peer, open_peer
from tests.patience import PATIENCE_S
from tests.peer.harness import config, connect, eventually, open_host, open_stranger, seed_of, send_frame

BLOCK = b"a result"
CID = raw_cid(BLOCK)


def serving(peer: Peer, blocks: Mapping[Cid, bytes]) -> Peer:
    async def get(cid: Cid) -> bytes | None:
        return blocks.get(cid)

    peer.serve_blocks(get)
    return peer


@contextlib.asynccontextmanager
async def open_pair(blocks: Mapping[Cid, bytes], **changes: object) -> AsyncIterator[tuple[Peer, Peer]]:
    """A root, and alice who serves these blocks; they are connected."""
    async with open_peer(config("root")) as root:
        changes = {"roots": frozenset({root.id})} | changes
        async with open_peer(config("alice", **changes)) as alice:
            serving(alice, blocks)
            assert await root.dial(alice.addrs[0])
            yield root, alice


async def test_a_root_gets_a_block_from_a_worker() -> None:
    async with open_pair({CID: BLOCK}) as (root, alice):
        assert await root.fetch_block(alice.id, CID, timeout_s=PATIENCE_S) == BLOCK


async def test_a_peer_that_isnt_connected_is_dialled_where_its_address_is_known() -> None:
    async with open_pair({CID: BLOCK}) as (root, alice):
        await root.disconnect(alice.id)
        await eventually(lambda: not root.peers())

        assert await root.fetch_block(alice.id, CID, timeout_s=PATIENCE_S) == BLOCK


async def test_what_a_peer_doesnt_have_is_said_at_once() -> None:
    async with open_pair({}) as (root, alice):
        with pytest.raises(UnreachableError, match="doesn't have"), trio.fail_after(PATIENCE_S):
            await root.fetch_block(alice.id, CID, timeout_s=10 * PATIENCE_S)


async def test_a_stranger_gets_nothing() -> None:
    async with open_pair({CID: BLOCK}) as (_, alice), open_peer(config("mallory")) as mallory:
        assert await mallory.dial(alice.addrs[0])
        with pytest.raises(UnreachableError, match="or not for us"):
            await mallory.fetch_block(alice.id, CID, timeout_s=5)


async def test_whom_the_worker_names_gets_its_blocks() -> None:
    async with open_peer(config("bob")) as bob:
        for serve_to in (frozenset({bob.id}), "any"):
            async with open_peer(config("alice", serve_to=serve_to)) as alice:
                serving(alice, {CID: BLOCK})
                assert await bob.dial(alice.addrs[0])
                assert await bob.fetch_block(alice.id, CID, timeout_s=PATIENCE_S) == BLOCK


async def test_in_a_closed_network_everybody_gets_blocks() -> None:
    key = seed_of("psk")
    async with open_peer(config("bob", psk=key)) as bob, open_peer(config("alice", psk=key)) as alice:
        serving(alice, {CID: BLOCK})
        assert await bob.dial(alice.addrs[0])
        assert await bob.fetch_block(alice.id, CID, timeout_s=PATIENCE_S) == BLOCK


@pytest.mark.parametrize("size_bytes", [0, 1, 1024 * 1024, 1024 * 1024 + 1, 5_000_000])
async def test_a_content_of_any_size_arrives_whole(size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    dag = build(content)
    async with open_pair(dag.blocks) as (root, alice):
        assert await root.fetch(alice.id, dag.root, max_bytes=size_bytes, timeout_s=PATIENCE_S) == content


async def test_a_content_with_a_missing_leaf_is_an_error_and_never_short() -> None:
    dag = build(os.urandom(3_000_000))
    leaf = next(cid for cid in dag.blocks if cid != dag.root)
    async with open_pair({cid: block for cid, block in dag.blocks.items() if cid != leaf}) as (root, alice):
        with pytest.raises(UnreachableError, match=leaf):
            await root.fetch(alice.id, dag.root, max_bytes=10**7, timeout_s=20)


async def test_a_content_longer_than_asked_for_is_refused() -> None:
    big, small = build(os.urandom(3_000_000)), build(b"12345")
    async with open_pair({**big.blocks, **small.blocks}) as (root, alice):
        with pytest.raises(MalformedInput, match="3000000 bytes where at most 2999999 are taken"):
            await root.fetch(alice.id, big.root, max_bytes=2_999_999, timeout_s=20)
        with pytest.raises(MalformedInput, match="5 bytes where at most 4 are taken"):
            await root.fetch(alice.id, small.root, max_bytes=4, timeout_s=20)


async def test_a_content_of_too_many_blocks_is_refused_before_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dag = build(os.urandom(3_000_000))
    asked: list[Cid] = []

    async def get(cid: Cid) -> bytes | None:
        asked.append(cid)
        return dag.blocks.get(cid)

    async with open_pair({}) as (root, alice):
        alice.serve_blocks(get)
        monkeypatch.setattr("swarm.peer.bitswap.MAX_DAG_BLOCKS", len(dag.blocks) - 1)
        with pytest.raises(MalformedInput, match="more than 3 blocks"):
            await root.fetch(alice.id, dag.root, max_bytes=10**7, timeout_s=20)
        assert asked == [dag.root]

        monkeypatch.setattr("swarm.peer.bitswap.MAX_DAG_BLOCKS", len(dag.blocks))
        assert len(await root.fetch(alice.id, dag.root, max_bytes=10**7, timeout_s=PATIENCE_S)) == 3_000_000


async def test_a_peer_that_sends_other_bytes_is_as_good_as_silent() -> None:
    async with open_peer(config("root")) as root, open_stranger() as mallory:

        async def lie(stream) -> None:  # type: ignore[no-untyped-def]
            await stream.read(1)
            message = Message()
            message.payload.add(prefix=cid_bytes(CID)[:-32], data=b"another result")
            await send_frame(mallory, root.id, message.SerializeToString(), protocol=PROTOCOLS[0])

        mallory.set_stream_handler(PROTOCOLS[0], lie)
        await connect(mallory, root.addrs[0])
        with pytest.raises(UnreachableError, match="didn't send"):
            await root.fetch_block(str(mallory.get_id()), CID, timeout_s=1)


async def test_blocks_that_nobody_asked_for_are_dropped_and_their_sender_blocked() -> None:
    async with open_pair({}) as (_, alice), open_stranger() as mallory:
        await connect(mallory, alice.addrs[0])
        message = Message()
        message.payload.add(prefix=cid_bytes(CID)[:-32], data=BLOCK)
        with contextlib.suppress(StreamFailure):  # it is hung up on
            for _ in range(10):
                await send_frame(mallory, alice.id, message.SerializeToString(), protocol=PROTOCOLS[0])

        await eventually(lambda: alice.blocked == {str(mallory.get_id())})


@pytest.mark.parametrize("frame", [os.urandom(300), b"\x0a\x06\x0a\x04\x0a\x02\xff\xff", b"\xff" * 20, b""])
async def test_malformed_messages_leave_the_peer_serving(frame: bytes) -> None:
    async with open_pair({CID: BLOCK}) as (root, alice), open_stranger() as mallory:
        await connect(mallory, alice.addrs[0])
        await send_frame(mallory, alice.id, frame, protocol=PROTOCOLS[0])
        stream = await mallory.new_stream(ID.from_string(alice.id), [TProtocol(PROTOCOLS[0])])
        await stream.write(b"\xff" * 30)  # no length at all

        assert await root.fetch_block(alice.id, CID, timeout_s=PATIENCE_S) == BLOCK


async def test_of_a_message_of_thousands_of_wants_or_blocks_only_a_bounded_part_is_looked_at() -> None:
    looked_at: list[str] = []
    made_up = Message()
    for n in range(20 * MAX_WANTS_PER_PEER):
        made_up.wantlist.entries.add(block=b"%d" % n)
    for n in range(20 * MAX_BLOCKS_TAKEN):
        made_up.payload.add(prefix=b"%d" % n)
    async with open_host() as alice, open_host() as mallory:
        bitswap = Bitswap(alice, may_have=lambda _: True, get=_never_read, misbehaved=lambda *_: None)
        peer = mallory.get_id()
        bitswap._asked_peers[peer] = 1
        bitswap._take_block = lambda *_: looked_at.append("block")  # type: ignore[method-assign]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                "swarm.peer.bitswap.cid_from_bytes", lambda cid: (looked_at.append("want"), cid_from_bytes(cid))[1]
            )
            bitswap._take_blocks(peer, made_up)
            bitswap._take_wants(peer, made_up)

    assert looked_at.count("want") == MAX_WANTS_PER_PEER
    assert looked_at.count("block") == MAX_BLOCKS_TAKEN


def wants(cids: list[Cid]) -> bytes:
    message = Message()
    for cid in cids:
        message.wantlist.entries.add(block=cid_bytes(cid), priority=1, sendDontHave=True)
    return message.SerializeToString()


async def _never_read(_: object) -> None:
    await trio.sleep_forever()


async def test_the_wants_of_one_peer_are_capped() -> None:
    gate = trio.Event()

    async def get(_: Cid) -> None:
        await gate.wait()

    async with open_pair({}) as (_, alice), open_stranger() as mallory:
        alice.serve_blocks(get)
        alice._alive().bitswap._may_have = lambda _: True
        await connect(mallory, alice.addrs[0])
        for start in range(0, 3 * MAX_WANTS_PER_PEER, MAX_WANTS_PER_PEER):
            cids = [raw_cid(b"%d" % n) for n in range(start, start + MAX_WANTS_PER_PEER)]
            await send_frame(mallory, alice.id, wants(cids), protocol=PROTOCOLS[0])
        queues = alice._alive().bitswap._queues
        await eventually(lambda: any(len(queue.wants) >= MAX_WANTS_PER_PEER - 1 for queue in queues.values()))
        await trio.testing.wait_all_tasks_blocked(0.2)

        assert all(len(queue.wants) <= MAX_WANTS_PER_PEER for queue in queues.values())
        gate.set()


async def test_strangers_leave_room_for_those_who_may_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.peer.bitswap.MAX_PEERS_SERVED", 3)
    monkeypatch.setattr("swarm.peer.bitswap.MAX_STRANGERS_ANSWERED", 2)
    async with open_pair({CID: BLOCK}) as (root, alice), contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            mallory = await stack.enter_async_context(open_stranger())
            for protocol in PROTOCOLS:
                mallory.set_stream_handler(protocol, _never_read)
            await connect(mallory, alice.addrs[0])
            await send_frame(mallory, alice.id, wants([CID]), protocol=PROTOCOLS[0])
        queues = alice._alive().bitswap._queues
        await eventually(lambda: len(queues) >= 2)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert len(queues) == 2

        assert await root.fetch_block(alice.id, CID, timeout_s=PATIENCE_S) == BLOCK


async def test_a_peer_that_never_reads_its_blocks_doesnt_keep_others_from_theirs() -> None:
    content = {raw_cid(block): block for block in (os.urandom(1_000_000) for _ in range(8))}
    async with open_pair(content, serve_to="any") as (root, alice), open_stranger() as mallory:
        for protocol in PROTOCOLS:
            mallory.set_stream_handler(protocol, _never_read)
        await connect(mallory, alice.addrs[0])
        for _ in range(10):
            await send_frame(mallory, alice.id, wants(list(content)), protocol=PROTOCOLS[0])

        for cid, block in content.items():
            assert await root.fetch_block(alice.id, cid, timeout_s=PATIENCE_S) == block


async def test_the_stream_to_a_peer_that_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.peer.bitswap.WRITE_S", 0.3)
    block = os.urandom(MAX_BLOCK_BYTES)  # more than what one may send unread
    answers: list[Any] = []
    async with open_pair({raw_cid(block): block}, serve_to="any") as (_, alice), open_stranger() as mallory:

        async def never_read(stream: Any) -> None:
            answers.append(stream.muxed_stream)
            await trio.sleep_forever()

        for protocol in PROTOCOLS:
            mallory.set_stream_handler(protocol, never_read)
        await connect(mallory, alice.addrs[0])
        await send_frame(mallory, alice.id, wants([raw_cid(block)]), protocol=PROTOCOLS[0])

        await eventually(lambda: answers and answers[0].reset_received)


async def test_a_cancelled_want_is_not_answered() -> None:
    asked: list[Cid] = []
    gate = trio.Event()

    async def get(cid: Cid) -> None:
        asked.append(cid)
        await gate.wait()

    first, second = raw_cid(b"1"), raw_cid(b"2")
    async with open_pair({}, serve_to="any") as (_, alice), open_stranger() as bob:
        alice.serve_blocks(get)
        await connect(bob, alice.addrs[0])
        stream = await bob.new_stream(ID.from_string(alice.id), [TProtocol(PROTOCOLS[0])])
        await stream.write(encode_varint_prefixed(wants([first, second])))
        await eventually(lambda: asked == [first])
        cancel = Message()
        cancel.wantlist.entries.add(block=cid_bytes(second), cancel=True)
        await stream.write(encode_varint_prefixed(cancel.SerializeToString()))
        queues = alice._alive().bitswap._queues
        await eventually(lambda: not any(queue.wants for queue in queues.values()))
        gate.set()
        await eventually(lambda: alice._alive().bitswap._queues)

        assert asked == [first]


async def test_a_block_is_fetched_after_the_connection_was_lost_and_came_back() -> None:
    async with open_pair({CID: BLOCK, raw_cid(b"2"): b"2"}) as (root, alice):
        assert await root.fetch_block(alice.id, CID, timeout_s=PATIENCE_S) == BLOCK
        await root.disconnect(alice.id)
        await eventually(lambda: not root.peers() and not alice.peers())
        assert await root.dial(alice.addrs[0])

        assert await root.fetch_block(alice.id, raw_cid(b"2"), timeout_s=PATIENCE_S) == b"2"


async def test_the_same_block_asked_for_twice_at_once_arrives_twice() -> None:
    async with open_pair({CID: BLOCK}) as (root, alice):
        got: list[bytes] = []

        async def fetch() -> None:
            got.append(await root.fetch_block(alice.id, CID, timeout_s=PATIENCE_S))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(fetch)

        assert got == [BLOCK] * 5
        assert not root._alive().bitswap._asked


async def test_what_isnt_a_cid_is_refused_before_anybody_is_asked() -> None:
    async with open_pair({}) as (root, alice):
        with pytest.raises(MalformedInput):
            await root.fetch_block(alice.id, "bafynonsense", timeout_s=5)
