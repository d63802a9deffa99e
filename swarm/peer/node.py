"""A member of the swarm's peer-to-peer side: one object, whose services run until its block is left.

``open_peer`` runs the host, gossip, DHT, mDNS, dialling and Bitswap below a supervisor: where libp2p dies of a fault
of its own, a fresh node takes its place and the ``Peer`` goes on. The worker opens it in its own trio loop, the root in
a trio thread. This module decides nothing about tasks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import attrs
import structlog
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service

from swarm.content.cid import parse_cid
from swarm.errors import ClosedError, ConfigurationError, MalformedInput
from swarm.groups import faults_in, the_one_fault
from swarm.model import Cid
from swarm.peer.addresses import AddressRule, expand_listen, networks_of, parse_peer_id
from swarm.peer.bitswap import Bitswap, GetBlock
from swarm.peer.dht import Rendezvous
from swarm.peer.dialer import Dialer
from swarm.peer.gossip import Gossip
from swarm.peer.hardened import HardenedGossipSub, HardenedPubsub, build_host, build_pubsub, hang_up
from swarm.peer.hardened_dht import build_dht
from swarm.peer.known import KnownPeers
from swarm.peer.mdns import run_mdns, scope_of
from swarm.peer.provided import Provided
from swarm.peer.reputation import UNWANTED, Reputation
from swarm.wire import MAX_GOSSIP_BYTES, Announcement

if TYPE_CHECKING:
    from trio_typing import TaskStatus  # comes with libp2p, and its stubs stand in front of trio's own

__all__ = ["Peer", "PeerConfig", "open_peer"]

log = structlog.get_logger(__name__)

#: Leaving: hang up, close listeners, stop services. What takes longer is cut off.
LEAVE_S: Final = 6.0
#: A node that died is replaced after this long, doubling while it keeps dying.
RESTART_S: Final = 1.0
RESTART_MAX_S: Final = 60.0
SEED_BYTES: Final = 32

#: Peers that mDNS found and that wait to be dialled.
MAX_FOUND: Final = 16
NEIGHBOURS_AT_ONCE: Final = 4


async def _has_nothing(_: Cid) -> None:
    """The blocks of a peer that serves none."""


def _seed(_: object, __: object, value: bytes) -> None:
    if len(value) != SEED_BYTES:
        raise ConfigurationError(f"a peer's seed has {SEED_BYTES} bytes, not {len(value)}")


@attrs.frozen(kw_only=True)
class PeerConfig:
    """What a peer is made from.

    Args:
        seed: the Ed25519 seed, 32 bytes; the peer id follows from it.
        topic: the gossip topic.
        rendezvous_tag: what the members of the swarm provide in the DHT.
        listen: multiaddrs; ``0.0.0.0`` and ``::`` become every interface's address, port 0 a free port.
        roots: peer ids whose gossip passes.
        bootstrap: the roots' addresses with ``/p2p/ID``; a connection to each is kept.
        dht: whether to take part in the LAN DHT and meet by it.
        dht_interval_s: seconds between look-ups while the swarm is young.
        provide_interval_s: seconds between two contents that are said in the DHT to be here.
        mdns: whether to meet by mDNS.
        psk: the pre-shared key of a closed network, 32 bytes.
        known_peers: the file that keeps whom we met.
        serve_to: peer ids that get our blocks besides the roots, or "any". With a ``psk`` every peer gets them.
    """

    seed: bytes = attrs.field(repr=False, validator=_seed)
    topic: str
    rendezvous_tag: str
    listen: tuple[str, ...] = ("/ip4/127.0.0.1/tcp/0",)
    roots: frozenset[str] = frozenset()
    bootstrap: tuple[str, ...] = ()
    dht: bool = True
    dht_interval_s: float = 10.0
    #: One costs some forty milliseconds of CPU; servers take ten in ten seconds from one peer.
    provide_interval_s: float = 5.0
    mdns: bool = False
    psk: bytes | None = attrs.field(default=None, repr=False)
    known_peers: Path | None = None
    serve_to: frozenset[str] | Literal["any"] = frozenset()


@attrs.frozen(kw_only=True)
class _Node:
    """The libp2p services of one life of a peer."""

    host: BasicHost
    pubsub: HardenedPubsub
    router: HardenedGossipSub
    dialer: Dialer
    bitswap: Bitswap
    rendezvous: Rendezvous | None


class Peer:
    """What the worker and the root see of the peer-to-peer side.

    Attributes:
        id: our peer id, base58.
        heard: announcements of the roots, in order; the oldest are dropped when nobody reads.
    """

    def __init__(self, config: PeerConfig) -> None:
        self._config = config
        self._key_pair = create_new_key_pair(config.seed)
        own_id = ID.from_pubkey(self._key_pair.public_key)
        self.id = str(own_id)
        self._gossip = Gossip(own_id, config.topic, config.roots)
        self._reputation = Reputation(exempt=config.roots)
        self._known = KnownPeers(config.known_peers)
        self._listen = expand_listen(config.listen)
        self._rule = AddressRule(networks_of(self._listen))
        self._node: _Node | None = None
        self._started = trio.Event()
        self._stop = trio.Event()
        self._get_block: GetBlock = _has_nothing
        self._provided = Provided()
        self.heard: trio.MemoryReceiveChannel[Announcement] = self._gossip.heard

    # ── what it knows ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def addrs(self) -> tuple[str, ...]:
        """Our addresses, each with ``/p2p/ID``; empty for the moment in which a node is replaced."""
        return tuple(map(str, self._node.host.get_addrs())) if self._node else ()

    @property
    def mesh_size(self) -> int:
        """With how many peers we exchange gossip directly."""
        return len(self._node.router.mesh.get(self._config.topic, ())) if self._node else 0

    @property
    def gaps(self) -> int:
        """Holes in what was heard; a change is a reason to take a turn soon."""
        return self._gossip.gaps

    @property
    def refused(self) -> int:
        """Gossip messages that were not let pass."""
        return self._gossip.refused

    @property
    def blocked(self) -> frozenset[str]:
        """Peers that misbehaved and are turned away for a while."""
        return self._reputation.blocked(now=trio.current_time())

    def peers(self) -> tuple[str, ...]:
        """The peers we are connected with."""
        return tuple(map(str, self._node.host.get_network().connections)) if self._node else ()

    # ── what it does ──────────────────────────────────────────────────────────────────────────────────────────────

    def set_roots(self, roots: frozenset[str]) -> None:
        """Let from now on only these roots' gossip pass (a turn's answer names them)."""
        self._gossip.set_roots(roots)
        self._reputation.exempt = roots

    async def publish(self, data: bytes) -> None:
        """Send one message to the topic. Only a root's messages are relayed by others.

        Raises:
            MalformedInput: it is longer than a gossip message may be.
            ClosedError: the peer is closed, or its node is just being replaced.
        """
        if len(data) > MAX_GOSSIP_BYTES:
            raise MalformedInput(f"a gossip message of {len(data)} bytes where at most {MAX_GOSSIP_BYTES} are taken")
        await self._alive().pubsub.publish(self._config.topic, data)

    async def dial(self, address: str, *, vouched: bool = False) -> bool:
        """Connect with the peer at ``…/p2p/ID``; False where it doesn't answer or may not be dialled.

        Args:
            address: a TCP multiaddr with a peer id.
            vouched: whether it comes from somebody who may name private addresses.

        Raises:
            MalformedInput: it is no such address.
            ClosedError: the peer is closed, or its node is just being replaced.
        """
        node = self._alive()
        return await node.dialer.dial(node.host, address, vouched=vouched)

    def serve_blocks(self, get: GetBlock) -> None:
        """Answer Bitswap with the blocks that ``get`` reads, to those whom ``serve_to`` and the roots name."""
        self._get_block = get

    async def fetch_block(self, peer_id: str, cid: Cid, *, timeout_s: float = 30.0) -> bytes:
        """Get one block from one peer, checked against its CID.

        Raises:
            UnreachableError: the peer doesn't answer in time, or has no such block for us.
            MalformedInput: the CID isn't one.
            ClosedError: the peer is closed, or its node is just being replaced.
        """
        return await self._alive().bitswap.fetch_block(peer_id, cid, timeout_s=timeout_s)

    async def fetch(self, peer_id: str, cid: Cid, *, max_bytes: int, timeout_s: float = 120.0) -> bytes:
        """Get a content of any number of blocks from one peer, every block checked against its CID.

        Raises:
            UnreachableError: the peer doesn't answer in time, or lacks a block.
            MalformedInput: it is longer than ``max_bytes``, or isn't a file.
            ClosedError: the peer is closed, or its node is just being replaced.
        """
        return await self._alive().bitswap.fetch(peer_id, cid, max_bytes=max_bytes, timeout_s=timeout_s)

    async def provide(self, cid: Cid) -> bool:
        """Say in the DHT that we have this content; True where somebody was told. Its root is enough."""
        rendezvous = self._alive().rendezvous
        return rendezvous is not None and await rendezvous.provide(parse_cid(cid).digest)

    def keep_providing(self, cids: Iterable[Cid]) -> None:
        """Say in the DHT that we have these contents, one after another and again and again, the newest 256 of all.

        One whose root ``serve_blocks`` can't read any more is dropped. Without a DHT it does nothing.
        """
        for cid in cids:
            self._provided.add(cid)

    async def find_providers(self, cid: Cid) -> tuple[str, ...]:
        """Ask the DHT who has a content; ``fetch`` gets it from one of them. None where there is no DHT.

        Raises:
            MalformedInput: the CID isn't one.
            ClosedError: the peer is closed, or its node is just being replaced.
        """
        node = self._alive()
        if node.rendezvous is None:
            return ()
        found = await node.rendezvous.providers(parse_cid(cid).digest)
        for peer_id, addresses in found:
            node.dialer.note(node.host, peer_id, addresses)
        return tuple(peer_id for peer_id, _ in found)

    async def _block(self, cid: Cid) -> bytes | None:
        return await self._get_block(cid)

    async def _has(self, cid: Cid) -> bool:
        return await self._get_block(cid) is not None

    def _may_have(self, peer_id: str) -> bool:
        config = self._config
        if config.psk is not None or config.serve_to == "any":
            return True
        return peer_id in config.serve_to or peer_id in self._reputation.exempt

    async def disconnect(self, peer_id: str) -> None:
        """Close the connections with a peer, if there are any."""
        await self._alive().host.get_network().close_peer(parse_peer_id(peer_id))

    def redial(self) -> None:
        """Dial the roots that are away at once (the door answers again, so they may be back)."""
        if self._node is not None:
            self._node.dialer.hurry()

    def _alive(self) -> _Node:
        if self._node is None:
            raise ClosedError("the peer is closed, or its node is just being replaced")
        return self._node

    # ── its life ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """Run one node after another until ``_stop`` is set. Shielded: only ``_stop`` ends it, so that it hangs up."""
        with trio.CancelScope(shield=True):
            wait_s = RESTART_S
            while not self._stop.is_set():
                born_at = trio.current_time()
                try:
                    async with trio.open_nursery() as nursery:
                        await nursery.start(self._run_node)
                        self._started.set()
                except* (ConfigurationError, MalformedInput):
                    raise
                except* Exception as faults:  # supervision boundary: libp2p raises what it likes
                    if not self._started.is_set():
                        raise
                    log.error("peer_node_died", faults=[repr(fault) for fault in faults_in(faults)])
                if self._stop.is_set():
                    return
                if trio.current_time() - born_at > RESTART_MAX_S:
                    wait_s = RESTART_S
                with trio.move_on_after(wait_s):
                    await self._stop.wait()
                wait_s = min(wait_s * 2, RESTART_MAX_S)

    async def _run_node(self, *, task_status: TaskStatus[None]) -> None:
        dialer = Dialer(
            self.id, rule=self._rule, reputation=self._reputation, known=self._known, bootstrap=self._config.bootstrap
        )
        host = build_host(self._key_pair, self._listen, psk=self._config.psk, admission=dialer)
        pubsub, router = build_pubsub(host, topic=self._config.topic, admission=dialer)
        pubsub.set_topic_validator(self._config.topic, self._validate(dialer), is_async_validator=False)
        host.get_network().register_notifee(dialer)
        bitswap = Bitswap(host, may_have=self._may_have, get=self._block, misbehaved=dialer.misbehaved)
        dht = build_dht(host) if self._config.dht else None
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(host.run(self._listen))
            bound = host.get_transport_addrs()
            if len(bound) != len(self._listen):
                raise ConfigurationError(f"could listen on {len(bound)} of {len(self._listen)} addresses only")
            self._listen = tuple(bound)  # a fresh node of ours keeps the ports that others know
            await stack.enter_async_context(background_trio_service(pubsub))
            await stack.enter_async_context(background_trio_service(router))
            rendezvous: Rendezvous | None = None
            if dht is not None:
                await stack.enter_async_context(background_trio_service(dht))
                config = self._config
                rendezvous = Rendezvous(host, dht, dialer, tag=config.rendezvous_tag, interval_s=config.dht_interval_s)
            await pubsub.wait_until_ready()
            subscription = await pubsub.subscribe(self._config.topic)
            self._node = _Node(
                host=host, pubsub=pubsub, router=router, dialer=dialer, bitswap=bitswap, rendezvous=rendezvous
            )
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._gossip.read, subscription)
                    nursery.start_soon(dialer.run, host)
                    nursery.start_soon(bitswap.run)
                    if rendezvous is not None:
                        nursery.start_soon(rendezvous.run)
                        self._provided.say_all_again()  # a fresh node has told nobody
                        nursery.start_soon(
                            functools.partial(
                                rendezvous.keep_provided,
                                self._provided,
                                self._has,
                                interval_s=self._config.provide_interval_s,
                            )
                        )
                    if self._config.mdns:
                        nursery.start_soon(self._meet_by_mdns, host, dialer)
                    task_status.started()
                    await self._stop.wait()
                    nursery.cancel_scope.cancel()
                dialer.save(host)
            finally:
                self._node = None
                await hang_up(host)

    async def _meet_by_mdns(self, host: BasicHost, dialer: Dialer) -> None:
        send, found = trio.open_memory_channel[tuple[str, ...]](MAX_FOUND)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._announce, send)
            for _ in range(NEIGHBOURS_AT_ONCE):
                nursery.start_soon(self._meet_neighbours, host, dialer, found)

    async def _meet_neighbours(
        self, host: BasicHost, dialer: Dialer, found: trio.MemoryReceiveChannel[tuple[str, ...]]
    ) -> None:
        async for addresses in found:
            await dialer.meet_neighbour(host, addresses)

    async def _announce(self, found: trio.MemorySendChannel[tuple[str, ...]]) -> None:
        try:
            await run_mdns(self.id, self.addrs, found, scope=scope_of(self._config.rendezvous_tag))
        except OSError as fault:  # no multicast here: the DHT and the roots remain
            log.warning("mdns_unavailable", reason=str(fault))

    def _validate(self, dialer: Dialer) -> Callable[..., bool]:
        def validate(forwarder: ID, message: object) -> bool:
            if self._gossip.validate(forwarder, message):  # type: ignore[arg-type]
                return True
            dialer.misbehaved(str(forwarder), "unwanted gossip", UNWANTED)
            return False

        return validate

    def close(self) -> None:
        """Ask it to hang up and end; ``open_peer`` waits for it."""
        self._stop.set()


@contextlib.asynccontextmanager
async def open_peer(config: PeerConfig) -> AsyncIterator[Peer]:
    """Run a peer while the block is open.

    Args:
        config: what it is made from.

    Raises:
        ConfigurationError: an address can't be listened on, or the configuration is malformed.

    *Resource handling*: sockets, tasks and threads are the block's. It is left after hanging up, 0.3 s as a rule,
    also when the block is cancelled.
    """
    peer = Peer(config)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer._run)  # not ``start``: cancelled, that would wait for a shielded task for ever
            try:
                await peer._started.wait()
                yield peer
            finally:
                peer.close()
    except BaseExceptionGroup as faults:
        # The nursery is ours, not the caller's: a fault of the block leaves it as it was raised.
        alone = the_one_fault(faults)
        if alone is None:
            raise
        raise alone from None
    finally:
        peer._gossip.close()
