"""py-libp2p 0.8.1 made fit for strangers: every override of it, each with its reason.

With its defaults any peer can kill a node with one stream, and ordinary load can too (facts/libp2p.md). The overrides
are here, those of the DHT in ``hardened_dht``, that of the address book in ``hardened_peerstore``, and nowhere else,
behind a check of the version, since they touch private names. Each has a test in ``tests/peer`` that fails without it.

It is long (the table of overrides is one thing): the patches of module globals come first, then the classes, then how
a host is built and how it is left.
"""

from __future__ import annotations

import functools
import logging
import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import libp2p.host.basic_host
import libp2p.identity.identify_push.identify_push
import libp2p.network.connection.swarm_connection
import libp2p.protocol_muxer.multiselect_communicator
import libp2p.pubsub.pubsub
import libp2p.stream_muxer.muxer_multistream
import structlog
import trio
from google.protobuf.message import DecodeError
from libp2p.abc import IMuxedConn, INetConn, INetStream, IRawConnection
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.exceptions import ParseError
from libp2p.host.basic_host import BasicHost
from libp2p.io.abc import Reader
from libp2p.io.exceptions import IOException, MessageTooLarge
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamError
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.pubsub.validators import signature_validator
from libp2p.rcmgr.connection_limits import ConnectionLimits
from libp2p.rcmgr.manager import new_resource_manager
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL_ID
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL_ID
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from swarm.errors import MalformedInput
from swarm.peer.addresses import Multiaddr
from swarm.peer.hardened_peerstore import HardenedPeerStore
from swarm.peer.pace import Pace
from swarm.peer.psk import patch_psk

__all__ = [
    "MESH_PROTOCOL",
    "Admission",
    "HardenedGossipSub",
    "HardenedPubsub",
    "HardenedSwarm",
    "build_host",
    "build_pubsub",
    "hang_up",
]

log = structlog.get_logger(__name__)

#: From 1.2 on each message costs one IDONTWANT to each mesh peer.
MESH_PROTOCOL: Final = "/meshsub/1.1.0"
#: Outbound RPCs that wait for one peer; the default of 32 lost 70 % of a burst. A mesh drop in a star is permanent.
RPC_QUEUE_SIZE: Final = 1024
#: Messages that wait for our own reader; the default is 32, what is lost is already marked seen.
SUBSCRIPTION_QUEUE_SIZE: Final = 4096
#: The cap of go-multistream on one line.
MAX_NEGOTIATION_BYTES: Final = 64 * 1024
#: What a peer may say of itself, and what we keep of it; 1 MiB by default. Kubo says some 2 KiB.
MAX_IDENTIFY_BYTES: Final = 64 * 1024
#: One RPC's messages (the replay to a newcomer has some sixty), ids (go-libp2p names 5,000 at most) and control parts.
MAX_RPC_MESSAGES: Final = 1024
MAX_RPC_IDS: Final = 10_000
MAX_RPC_PARTS: Final = 256
#: What a peer may send on one stream before we have read it: 20 MB/s over 50 ms.
STREAM_WINDOW_BYTES: Final = 1024 * 1024
#: Above it the stream is closed. A peer that keeps to the window stays below by far.
MAX_BUFFERED_BYTES: Final = 2 * STREAM_WINDOW_BYTES
#: All streams of one connection together; what is read as it comes never adds up to it.
MAX_BUFFERED_PER_CONNECTION_BYTES: Final = 16 * 1024 * 1024
#: A stream that holds no more isn't worth adding up; so many streams at once, both sides', have room for that.
SMALL_BUFFER_BYTES: Final = 16 * 1024
MAX_STREAMS_PER_CONNECTION: Final = 1024
#: How long a peer may take to close a stream that we are done with. Until then it counts as one of its streams.
LINGER_S: Final = 5.0
#: Streams that one peer may hold open; a busy Kubo has some twenty. All peers share 10,000.
MAX_STREAMS_PER_PEER: Final = 64
#: Streams that one peer may open; the rest wait. One costs some milliseconds; a fetch of 50 MB/s opens so many.
STREAMS_PER_S: Final = 50.0
STREAMS_AT_ONCE: Final = 500.0
#: One dial of one address: TCP, Noise and yamux.
DIAL_ADDRESS_S: Final = 5.0
#: Connections above which the least used are closed. A hub of 200 workers stays below it.
HIGH_WATERMARK: Final = 512
MAX_CONNECTIONS: Final = 2048
#: How long we hang up before we leave; 0.2 s is usual.
HANG_UP_S: Final = 2.0
HEARTBEAT_S: Final = 1
#: A peer that doesn't answer a ping is dropped within 20 s.
HEALTH_DELAY_S: Final = 5.0
HEALTH_INTERVAL_S: Final = 10.0
PING_S: Final = 8.0
#: What only malformed bytes raise: not UTF-8, not protobuf, not a varint, longer than a frame may be. All else that
#: ends a stream is a peer that left, or a fault of ours.
MALFORMED_FAULTS: Final = (UnicodeDecodeError, DecodeError, ParseError, MessageTooLarge, MalformedInput)


async def _read_negotiation(reader: Reader) -> bytes:
    """Read one line of a protocol negotiation.

    0.8.1 believes whatever length comes, before anybody has said who it is: a gigabyte is allocated, 2⁶⁰ bytes are a
    MemoryError.
    """
    line = await read_varint_prefixed_bytes_limited(reader, MAX_NEGOTIATION_BYTES)
    if not line.endswith(b"\n"):
        raise ParseError("a line of the negotiation without an end")
    return line[:-1]


async def _read_identify(stream: INetStream, use_varint_format: bool = True) -> bytes:
    """Read what a peer says of itself: nothing where that is too long, or no frame.

    0.8.1 takes and keeps a megabyte; and what it can't read as a frame it takes as one of an older format, whole.
    """
    try:
        return await read_varint_prefixed_bytes_limited(stream, MAX_IDENTIFY_BYTES)
    except (IOException, ParseError) as fault:
        log.debug("identify_ignored", peer=str(stream.muxed_conn.peer_id), reason=repr(fault))
        return b""


async def _read_rpc(stream: Any, max_bytes: int) -> bytes:
    """Read one RPC of the message layer; one of more parts than any honest peer sends is malformed.

    Each message in it becomes a task and a signature to verify, each id a look-up: a megabyte of them are seconds.
    """
    frame = await read_varint_prefixed_bytes_limited(stream, max_bytes)
    rpc = rpc_pb2.RPC.FromString(frame)
    control = rpc.control
    naming: tuple[Any, ...] = (control.ihave, control.iwant, control.idontwant)
    ids = sum(len(one.messageIDs) for many in naming for one in many)
    parts = sum(len(many) for many in (*naming, control.graft, control.prune))
    if len(rpc.publish) > MAX_RPC_MESSAGES or ids > MAX_RPC_IDS or parts > MAX_RPC_PARTS:
        raise MalformedInput(f"an RPC of {len(rpc.publish)} messages, {ids} ids and {parts} parts of control")
    return frame


async def _give_window_back(self: YamuxStream, *, bytes_read: int = 0) -> None:
    """Let the sender send on once half of the window is used up, as go-yamux does.

    0.8.1 answers every read with a frame of its own, also the one-byte reads of a length: two thirds of all frames. It
    also lets the window grow to 16 MiB a stream.
    """
    async with self.window_lock:
        buffered = len(self.conn.stream_buffers.get(self.stream_id, b""))
        used_bytes = STREAM_WINDOW_BYTES - self.recv_window - buffered
        if used_bytes < STREAM_WINDOW_BYTES // 2:
            return
        self.recv_window += used_bytes
    await self.send_window_update(used_bytes, skip_lock=True)


class _Buffer(bytearray):
    """What a stream has received and nobody has read yet. 0.8.1 only logs a peer that ignores the window."""

    of_connection: _Buffers

    def extend(self, data: Any) -> None:
        if len(self) + len(data) > MAX_BUFFERED_BYTES:
            raise MalformedInput(f"a peer sent {len(data)} bytes beyond the window")
        if len(self) + len(data) > SMALL_BUFFER_BYTES and not self.of_connection.has_room(len(data)):
            raise MalformedInput(f"a peer sent {len(data)} bytes more on streams that nobody reads")
        super().extend(data)


class _Buffers(dict[int, bytearray]):
    """The buffers of one connection: each bounded, and all together, and how many there are.

    A peer may keep to the window of each stream, and open another and another.
    """

    def __setitem__(self, stream_id: int, buffer: bytearray) -> None:
        if len(self) >= MAX_STREAMS_PER_CONNECTION:  # of a class at which 0.8.1 closes the connection
            raise ConnectionAbortedError(f"a peer holds {len(self)} streams open")
        bounded = _Buffer(buffer)
        bounded.of_connection = self
        super().__setitem__(stream_id, bounded)

    def has_room(self, more_bytes: int) -> bool:
        """Whether all streams together may hold so much more."""
        return sum(map(len, self.values())) + more_bytes <= MAX_BUFFERED_PER_CONNECTION_BYTES


class HardenedYamux(Yamux):
    """The multiplexer: what a peer can make us hold is bounded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stream_buffers = _Buffers()


def _patch_modules() -> None:
    """Set what 0.8.1 offers no argument for. Each is read when it is used, so this works after the import."""
    muxer: Any = libp2p.stream_muxer.muxer_multistream
    muxer.Yamux = HardenedYamux  # it makes this class whatever the upgrader was given
    stream: Any = YamuxStream
    stream._auto_tune_and_send_window_update = _give_window_back
    identify: tuple[Any, ...] = (libp2p.host.basic_host, libp2p.identity.identify_push.identify_push)
    for module in identify:
        module.read_length_prefixed_protobuf = _read_identify
    negotiation: Any = libp2p.protocol_muxer.multiselect_communicator
    negotiation.read_delim = _read_negotiation
    pubsub: Any = libp2p.pubsub.pubsub
    pubsub.RpcQueue = functools.partial(RpcQueue, max_size=RPC_QUEUE_SIZE)
    pubsub.SUBSCRIPTION_CHANNEL_SIZE = SUBSCRIPTION_QUEUE_SIZE
    pubsub.read_varint_prefixed_bytes_limited = _read_rpc
    patch_psk()


def _quieten() -> None:
    """Give libp2p's loggers to the application's handlers, and only what an operator can act on.

    ``import libp2p`` sets ``propagate=False`` without a handler, so its warnings reach stderr as bare text; each
    failed dial and each served DHT request is an ERROR or WARNING of its own (facts/skeleton.md §7).
    """
    root = logging.getLogger("libp2p")
    root.propagate = True
    root.setLevel(logging.CRITICAL)
    for name in ("libp2p.network.auto_connector", "libp2p.transport.tcp.tcp"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # It logs to the root logger by logging.debug(), which gives that a handler of its own at the first connection.
    connection: Any = libp2p.network.connection.swarm_connection
    connection.logging = logging.getLogger(connection.__name__)


_patch_modules()
_quieten()


class Admission(Protocol):
    """What the application decides about peers and their addresses."""

    def is_blocked(self, peer_id: str) -> bool:
        """Whether this peer is neither dialled nor answered."""

    def dialable(self, peer_id: str, addresses: Sequence[Multiaddr]) -> list[Multiaddr]:
        """The addresses that may be dialled now, best first; none while the peer is dead to us."""

    def dialled(self, peer_id: str, *, answered: bool) -> None:
        """What became of a dial."""

    def misbehaved(self, peer_id: str, what: str) -> None:
        """A peer sent what no honest one sends."""


class HardenedSwarm(Swarm):
    """Connections: who may have one, and how one is dialled."""

    admission: Admission

    async def dial_peer(self, peer_id: ID) -> list[INetConn]:
        """Dial a peer at each of its addresses in turn.

        0.8.1 tries only the first TCP address, drops loopback where another address exists, and then refuses the peer
        for 60 s. It also dials whatever a stranger's record names; here the application says which addresses it may.
        Every dial of this process comes through here, those of DHT look-ups too.
        """
        waiting = self._ongoing_dials.get(peer_id)
        if waiting is not None:
            await waiting.wait()
        if live := [conn for conn in self.get_connections(peer_id) if not conn.is_closed]:
            return live
        name = str(peer_id)
        try:
            known = self.peerstore.addrs(peer_id)
        except Exception:  # noqa: BLE001 - PeerStoreError has no base of its own, and "unknown" is all it can mean
            known = []
        addresses = self.admission.dialable(name, known)
        if not addresses:
            raise SwarmException(f"no address of {name} may be dialled now")
        self._ongoing_dials[peer_id] = done = trio.Event()
        try:
            for address in addresses:
                with trio.move_on_after(DIAL_ADDRESS_S):
                    try:
                        connection = await self._dial_addr_single_attempt(address, peer_id)
                    except Exception as fault:  # noqa: BLE001 - supervision boundary: who answers sends what it likes
                        log.debug("dial_failed", peer=name, address=str(address), reason=repr(fault))
                    else:
                        self.admission.dialled(name, answered=True)
                        return [connection]
            self.admission.dialled(name, answered=False)
            raise SwarmException(f"none of {len(addresses)} addresses of {name} answered")
        finally:
            done.set()
            if self._ongoing_dials.get(peer_id) is done:
                del self._ongoing_dials[peer_id]

    async def upgrade_inbound_raw_conn(self, raw_conn: IRawConnection, maddr: Multiaddr) -> IMuxedConn:
        """Take a connection in, and end with it.

        0.8.1 parks its handler, with all that it holds, until the node ends: some kilobytes for each connection ever.

        Raises:
            SwarmException: it failed, or it is closed now; on this the handler returns.
        """
        connection: Any = await super().upgrade_inbound_raw_conn(raw_conn, maddr)
        await connection.event_closed.wait()
        raise SwarmException(f"the connection from {connection.peer_id} is closed")

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        """Refuse a blocked peer before it gets a connection of any kind; 0.8.1 gates by IP address alone."""
        if self.admission.is_blocked(str(muxed_conn.peer_id)):
            await muxed_conn.close()
            raise SwarmException(f"{muxed_conn.peer_id} is blocked")
        return await super().add_conn(muxed_conn, direction)


class HardenedPubsub(Pubsub):
    """The message layer: bytes of a stranger never end it."""

    admission: Admission

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Two tasks (replay and sender) write one stream, and frames above 64 KiB interleave: a DecodeError at the
        # other end, which dies of it. One lock a stream, dropped with it.
        self._write_locks: weakref.WeakKeyDictionary[INetStream, trio.Lock] = weakref.WeakKeyDictionary()
        # 0.8.1 starts at whole seconds: a restart of a node that sent more than one message a second repeats its
        # sequence numbers, and its peers' seen-caches eat them for two minutes.
        self.counter = time.time_ns()

    async def run(self) -> None:
        """Serve until stopped; then end the thread of the seen-cache, which 0.8.1 leaves behind."""
        try:
            await super().run()
        finally:
            self.seen_messages.stop()

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Take a message in. A malformed signer key or a validator's exception would cancel the whole service."""
        forwarder = str(msg_forwarder)
        try:
            if self.admission.is_blocked(forwarder):
                return
            # 0.8.1 drops a bad signature without telling who sent it. Verified again below: 64 µs of a few a second.
            if not self._is_msg_seen(msg) and not signature_validator(msg):
                self.admission.misbehaved(forwarder, "signature")
                return
            await super().push_msg(msg_forwarder, msg)
        except Exception as fault:  # noqa: BLE001 - supervision boundary: one message, of a stranger, is dropped
            self.admission.misbehaved(forwarder, f"message: {type(fault).__name__}")

    async def write_msg(self, stream: INetStream, rpc_msg: rpc_pb2.RPC) -> bool:
        """Write one frame at a time (see the locks above)."""
        async with self._write_locks.setdefault(stream, trio.Lock()):
            return await super().write_msg(stream, rpc_msg)


class HardenedGossipSub(GossipSub):
    """The router of one topic."""

    topic: str

    async def handle_rpc(self, rpc: rpc_pb2.RPC, sender_peer_id: ID) -> None:
        """Heed what is about our topic. 0.8.1 keeps a record of each topic that a stranger names, without a bound.

        Peers that a PRUNE recommends are left out: whom we dial is the dialer's to say.
        """
        control = rpc.control
        for said in (control.ihave, control.graft, control.prune):
            ours: list[Any] = [one for one in said if one.topicID == self.topic]
            del said[:]
            said.extend(ours)
        for prune in control.prune:
            del prune.peers[:]
        del control.idontwant[:], control.observe[:], control.unobserve[:]
        await super().handle_rpc(rpc, sender_peer_id)

    def _periodic_security_cleanup(self) -> None:
        super()._periodic_security_cleanup()
        # Feeds only the adaptive mode, which is off; with it off nothing ever empties this list.
        self.recent_message_deliveries.clear()


async def _never_connect() -> None:
    """Stand in for the auto-connector, which dials whatever the peerstore holds, dead providers again and again."""


def build_host(key_pair: KeyPair, listen: Sequence[Multiaddr], *, psk: bytes | None, admission: Admission) -> BasicHost:
    """Make a host: TCP, Noise, yamux and nothing else.

    Args:
        key_pair: the Ed25519 identity.
        listen: explicit interface addresses (``addresses.expand_listen``).
        psk: the pre-shared key of a closed network, 32 bytes, or None.
        admission: who may connect, and which addresses may be dialled.
    """
    # Noise alone: by default /plaintext/2.0.0 is accepted, over which anybody connects as anybody.
    noise = Noise(key_pair, noise_privkey=create_noise_key_pair().private_key)
    own_id = ID.from_pubkey(key_pair.public_key)
    peerstore = HardenedPeerStore(own_id, is_connected=lambda peer: bool(swarm.connections.get(peer)))
    swarm = HardenedSwarm(
        own_id,
        peerstore,
        TransportUpgrader(
            secure_transports_by_protocol={NOISE_PROTOCOL_ID: noise},
            muxer_transports_by_protocol={TProtocol(YAMUX_PROTOCOL_ID): HardenedYamux},
        ),
        transports=[TCP()],
        retry_config=RetryConfig(max_retries=0),  # the dialer has its own backoff
        connection_config=ConnectionConfig(
            max_connections=MAX_CONNECTIONS,
            min_connections=0,
            low_watermark=0,
            high_watermark=HIGH_WATERMARK,
            # The only detection of dead peers there is: one that was stopped is otherwise "connected" for ever.
            enable_health_monitoring=True,
            abort_connection_on_ping_failure=True,
            health_initial_delay=HEALTH_DELAY_S,
            health_check_interval=HEALTH_INTERVAL_S,
            ping_timeout=PING_S,
        ),
        psk=psk.hex() if psk is not None else None,
    )
    peerstore.add_key_pair(swarm.get_peer_id(), key_pair)
    swarm.admission = admission
    # Inbound slots are held until the swarm ends, not the connection: the 251st connection of a node's life would be
    # refused. The limits of the resource manager, which are given back, take their place.
    swarm._inbound_limiter = trio.CapacityLimiter(math.inf)
    swarm.auto_connector.maybe_connect = _never_connect  # type: ignore[method-assign]
    host = BasicHost(
        swarm,
        resource_manager=new_resource_manager(
            connection_limits=ConnectionLimits(
                max_established_inbound=1024,
                max_established_outbound=1024,
                max_established_per_peer=4,
                max_established_total=2048,
            ),
            enable_metrics=False,
            # These would let a flood, or another process' memory, close us to everybody.
            enable_memory_limits=False,
            enable_circuit_breaker=False,
            enable_graceful_degradation=False,
        ),
        # Observed addresses would be announced, and each change signs the peer record anew.
        disable_identify_address_discovery=True,
    )
    swarm.set_stream_handler(_guarded(swarm.common_stream_handler, admission))
    return host


def _guarded(handle: Callable[[INetStream], Any], admission: Admission) -> Callable[[INetStream], Any]:
    """Bound one stream's fault to that stream, and one peer's streams to its share.

    Non-UTF-8 bytes in the protocol negotiation, a malformed pubsub RPC, an exception in any stream handler: each
    would cancel the swarm. 10,000 streams of one peer would leave none to others.
    """
    open_streams: Counter[ID] = Counter()
    pace = Pace(STREAMS_PER_S, burst=STREAMS_AT_ONCE)

    async def guarded(stream: INetStream) -> None:
        peer = stream.muxed_conn.peer_id
        if open_streams[peer] >= MAX_STREAMS_PER_PEER:
            await stream.reset()
            return
        open_streams[peer] += 1
        try:
            if (wait_s := pace.take(peer, now=trio.current_time())) > 0:
                await trio.sleep(wait_s)
            await handle(stream)
            await _let_go(stream)
        except Exception as fault:  # noqa: BLE001 - supervision boundary: a stranger's stream ends, the node doesn't
            peer_id = str(peer)
            log.debug("stream_failed", peer=peer_id, fault=repr(fault))
            if isinstance(fault, MALFORMED_FAULTS):
                admission.misbehaved(peer_id, f"stream: {type(fault).__name__}")
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                try:
                    await stream.reset()
                except Exception:  # noqa: BLE001 - it is gone already, in one of libp2p's many ways
                    log.debug("stream_reset_failed", peer=peer_id)
        finally:
            open_streams[peer] -= 1
            if not open_streams[peer]:
                del open_streams[peer]

    return guarded


async def _let_go(stream: INetStream) -> None:
    """Read away what still comes on a stream that we are done with, and reset it if the peer doesn't close it.

    0.8.1 leaves it half open: a peer that asks who we are, again and again, can fill a window each time, for ever.
    """
    with trio.move_on_after(LINGER_S):
        try:
            while await stream.read(SMALL_BUFFER_BYTES):
                pass
        except (StreamError, IOException, MuxedStreamError):  # the ways in which it is closed
            return
        return
    with trio.move_on_after(1):
        await stream.reset()


def build_pubsub(host: BasicHost, *, topic: str, admission: Admission) -> tuple[HardenedPubsub, HardenedGossipSub]:
    """Make the message layer and its router for one topic (table in facts/libp2p.md)."""
    router = HardenedGossipSub(
        protocols=[TProtocol(MESH_PROTOCOL)],
        degree=6,
        degree_low=4,
        degree_high=12,
        heartbeat_interval=HEARTBEAT_S,  # 120 by default: mesh repair waits for it
        adaptive_gossip_enabled=False,  # sets the heartbeat to 30 or 60 s where the swarm is smaller than the degree
        spam_protection_enabled=False,  # throttles our own publishes to 10 messages a second
        eclipse_protection_enabled=False,  # addresses are never recorded: it does nothing
        pending_messages_ttl=0.0,  # every publish is queued for every peer that isn't subscribed …
        max_pending_messages_per_peer=1,  # … and 0 means without bound
    )
    router.topic = topic
    pubsub = HardenedPubsub(
        host,
        router,
        seen_ttl=120,
        validation_cache_size=64,  # a list that is searched for each message
        strict_signing=True,
        allowed_topics={topic},  # strangers can't fill our memory with subscriptions
    )
    pubsub.admission = admission
    return pubsub, router


async def hang_up(host: BasicHost) -> None:
    """Close every connection, all at once, then the listeners, before ``host.run`` is left.

    Leaving it alone leaks both: its own cleanup awaits in a cancelled scope, so a port stays open until the process
    ends. ``host.close`` takes 0.2 s a connection, one after the other.
    """
    network = host.get_network()
    with trio.CancelScope(shield=True), trio.move_on_after(HANG_UP_S):
        async with trio.open_nursery() as nursery:
            for connections in list(network.connections.values()):
                for connection in list(connections):
                    nursery.start_soon(_close, connection)
        for listener in list(network.listeners.values()):
            await listener.close()
        network.listeners.clear()


async def _close(connection: INetConn) -> None:
    try:
        await connection.close()
    except Exception as fault:  # noqa: BLE001 - we leave: one connection that won't close mustn't keep the others
        log.debug("hang_up_failed", fault=repr(fault))
