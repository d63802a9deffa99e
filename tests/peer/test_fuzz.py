"""Whatever bytes a stranger sends on any of our protocols, the node it sends them to is the same one afterwards."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest
import trio
from libp2p.bitswap.pb.bitswap_pb2 import Message as BitswapMessage
from libp2p.exceptions import BaseLibp2pError
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.kad_dht.pb.kademlia_pb2 import Message as KadMessage
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from swarm.content.cid import cid_bytes, raw_cid
from swarm.peer.bitswap import PROTOCOLS
from swarm.peer.hardened import MESH_PROTOCOL
from swarm.peer.hardened_dht import KAD_PROTOCOL
from swarm.peer.node import open_peer
from tests.peer.harness import TOPIC, config, connect, open_stranger, send_frame

FRAMES = 150


def gossip_frames() -> Iterator[bytes]:
    control = rpc_pb2.ControlMessage()
    for topic in (TOPIC, "/other", ""):
        control.graft.add(topicID=topic)
        control.prune.add(topicID=topic, backoff=2**62)
        control.ihave.add(topicID=topic, messageIDs=[b"x", b"('a', 'b')", b""])
        control.iwant.add(messageIDs=[b"x", b"('a', 'b')", bytes(40)])
        control.idontwant.add(messageIDs=[b"x"])
    message = rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], from_id=b"", seqno=b"")
    subscriptions = [rpc_pb2.RPC.SubOpts(subscribe=flag, topicid=TOPIC) for flag in (True, False, True)]
    yield rpc_pb2.RPC(control=control).SerializeToString()
    yield rpc_pb2.RPC(publish=[message], subscriptions=subscriptions).SerializeToString()
    yield rpc_pb2.RPC(senderRecord=b"\xff" * 20, publish=[message]).SerializeToString()


def kad_frames() -> Iterator[bytes]:
    for kind in KadMessage.MessageType.values():
        message = KadMessage(type=kind, key=b"\x12\x20" + bytes(32))
        message.providerPeers.add(id=b"\1\2", addrs=[b"\xff\xff", b"\4\x7f\0\0\1\6\0\1"])
        message.closerPeers.add(id=b"")
        message.record.key = b"/pk/x"
        message.record.value = b"v"
        yield message.SerializeToString()
        yield KadMessage(type=kind).SerializeToString()


def bitswap_frames() -> Iterator[bytes]:
    message = BitswapMessage()
    message.wantlist.entries.add(block=cid_bytes(raw_cid(b"x")), priority=-1, wantType=1, sendDontHave=True)
    message.wantlist.entries.add(block=b"")
    message.blockPresences.add(cid=b"x", type=1)
    message.pendingBytes = 2**31 - 1
    yield message.SerializeToString()
    yield BitswapMessage(blocks=[b"x"]).SerializeToString()


def identify_frames() -> Iterator[bytes]:
    yield Identify(
        protocol_version="\0", public_key=b"x", listen_addrs=[b"\xff", b""], observed_addr=b"x", protocols=["x" * 9000]
    ).SerializeToString()


PROTOCOL_FRAMES = {
    MESH_PROTOCOL: gossip_frames,
    KAD_PROTOCOL: kad_frames,
    PROTOCOLS[0]: bitswap_frames,
    "/ipfs/id/push/1.0.0": identify_frames,
    "/ipfs/id/1.0.0": identify_frames,
    "/ipfs/ping/1.0.0": identify_frames,
}


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """The same frame with a few bytes changed, cut off, doubled or put in."""
    result = bytearray(frame)
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(result) + 1)
        match rng.randrange(4):
            case 0:
                result[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del result[at : at + rng.randint(1, 8)]
            case 2:
                result[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                result[at:at] = result[max(0, at - 8) : at]
    return bytes(result)


@pytest.mark.parametrize("protocol", PROTOCOL_FRAMES)
async def test_no_frame_ends_the_node(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.peer.reputation.LIMIT", float("inf"))  # or it would be blocked after the first few
    rng = random.Random(protocol)
    frames = list(PROTOCOL_FRAMES[protocol]())
    async with open_peer(config(dht=True, serve_to="any")) as alice, open_stranger() as mallory:
        node = alice._alive()
        await connect(mallory, alice.addrs[0])
        for n in range(FRAMES):
            frame = frames[n] if n < len(frames) else mutated(rng.choice(frames), rng)
            with contextlib.suppress(BaseLibp2pError):  # the stream is reset, or the connection gone
                await send_frame(mallory, alice.id, frame, protocol=protocol)
            if not mallory.get_network().get_connections(ID.from_string(alice.id)):
                await connect(mallory, alice.addrs[0])
        await trio.testing.wait_all_tasks_blocked(0.05)

        assert alice._node is node
        async with open_peer(config()) as bob:
            assert await bob.dial(alice.addrs[0])
