"""What the peer tests share: configurations, waiting with a deadline, and strangers that speak libp2p unhardened."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import trio
from libp2p import new_host
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.tools.anyio_service import background_trio_service
from libp2p.utils.varint import encode_varint_prefixed
from multiaddr import Multiaddr

from swarm.peer.hardened import (
    MESH_PROTOCOL,
    HardenedGossipSub,
    HardenedPubsub,
    build_host,
    build_pubsub,
    hang_up,
)
from swarm.peer.node import PeerConfig
from swarm.wire import Announcement
from tests.patience import PATIENCE_S

TOPIC = "/swarm/test/tasks/1"
TAG = "/swarm/test"
LOOPBACK = (Multiaddr("/ip4/127.0.0.1/tcp/0"),)
POLL_S = 0.01

_names = itertools.count()


def seed_of(name: str) -> bytes:
    """The same 32 bytes for the same name."""
    return hashlib.sha256(name.encode()).digest()


def config(name: str | None = None, **changes: Any) -> PeerConfig:
    """A peer on loopback, without DHT and mDNS unless asked for."""
    seed = seed_of(name or f"peer {next(_names)}")
    values: dict[str, Any] = {"seed": seed, "topic": TOPIC, "rendezvous_tag": TAG, "dht": False}
    return PeerConfig(**(values | changes))


def announcement(root: str, *, epoch: int = 1, seq: int = 1, **more: Any) -> bytes:
    """A gossip message of a root."""
    return msgspec.json.encode(Announcement(v=1, root=root, epoch=epoch, seq=seq, **more))


async def eventually(holds: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
    """Wait until it holds; fail at the deadline."""
    with trio.fail_after(within_s):
        while not holds():  # noqa: ASYNC110 - what is waited for happens inside libp2p, which has no event for it
            await trio.sleep(POLL_S)


class Anyone:
    """An admission that admits everybody and everything, and remembers what it was told."""

    def __init__(self) -> None:
        self.faults: list[tuple[str, str]] = []
        self.blocked: set[str] = set()

    def is_blocked(self, peer_id: str) -> bool:
        return peer_id in self.blocked

    def dialable(self, peer_id: str, addresses: Sequence[Multiaddr]) -> list[Multiaddr]:
        return list(addresses)

    def dialled(self, peer_id: str, *, answered: bool) -> None:
        pass

    def misbehaved(self, peer_id: str, what: str) -> None:
        self.faults.append((peer_id, what))


@contextlib.asynccontextmanager
async def open_host(
    name: str | None = None, *, admission: Anyone | None = None, psk: bytes | None = None
) -> AsyncIterator[BasicHost]:
    """A hardened host alone."""
    key_pair = create_new_key_pair(seed_of(name or f"host {next(_names)}"))
    host = build_host(key_pair, LOOPBACK, psk=psk, admission=admission or Anyone())
    async with host.run(LOOPBACK):
        try:
            yield host
        finally:
            await hang_up(host)


@contextlib.asynccontextmanager
async def open_pubsub(
    name: str | None = None, *, admission: Anyone | None = None, subscribe: bool = True
) -> AsyncIterator[tuple[BasicHost, HardenedPubsub, HardenedGossipSub]]:
    """A hardened host with its message layer."""
    admission = admission or Anyone()
    async with open_host(name, admission=admission) as host:
        pubsub, router = build_pubsub(host, topic=TOPIC, admission=admission)
        async with background_trio_service(pubsub), background_trio_service(router):
            await pubsub.wait_until_ready()
            if subscribe:
                await pubsub.subscribe(TOPIC)
            try:
                yield host, pubsub, router
            finally:
                await hang_up(host)


@contextlib.asynccontextmanager
async def open_stranger(key_pair: KeyPair | None = None, **options: Any) -> AsyncIterator[IHost]:
    """A host that is libp2p's own, for attacks. Noise only unless told otherwise."""
    key_pair = key_pair or create_new_key_pair(seed_of(f"stranger {next(_names)}"))
    options.setdefault("sec_opt", {NOISE: Noise(key_pair, noise_privkey=create_noise_key_pair().private_key)})
    stranger = new_host(key_pair=key_pair, listen_addrs=LOOPBACK, muxer_preference="YAMUX", **options)
    async with stranger.run(LOOPBACK):
        try:
            yield stranger
        finally:
            await hang_up(stranger)  # type: ignore[arg-type]


async def connect(one: IHost, other: IHost | str) -> None:
    """Connect by libp2p's own means."""
    address = other if isinstance(other, str) else str(other.get_addrs()[0])
    with trio.fail_after(PATIENCE_S):
        await one.connect(info_from_p2p_addr(Multiaddr(address)))


def signed(
    key_pair: KeyPair, data: bytes, *, seqno: int, topic: str = TOPIC, origin: bytes | None = None
) -> rpc_pb2.Message:
    """A pubsub message signed by ``key_pair``; ``origin`` claims another sender."""
    message = rpc_pb2.Message(
        data=data,
        topicIDs=[topic],
        from_id=origin or ID.from_pubkey(key_pair.public_key).to_bytes(),
        seqno=seqno.to_bytes(8, "big"),
    )
    message.signature = key_pair.private_key.sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
    message.key = key_pair.public_key.serialize()
    return message


async def send_rpc(stranger: IHost, peer_id: str, *messages: rpc_pb2.Message) -> None:
    """Send messages in one RPC over a new pubsub stream."""
    await send_frame(stranger, peer_id, rpc_pb2.RPC(publish=messages).SerializeToString())


async def send_frame(stranger: IHost, peer_id: str, frame: bytes, *, protocol: str = MESH_PROTOCOL) -> None:
    """Send one length-prefixed frame over a new stream."""
    with trio.fail_after(PATIENCE_S):
        stream = await stranger.new_stream(ID.from_string(peer_id), [TProtocol(protocol)])
        await stream.write(encode_varint_prefixed(frame))
        await stream.close()
