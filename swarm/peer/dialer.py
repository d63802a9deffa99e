"""Whom we dial, when, and at which address; who is turned away.

Roots are redialled from one second on for ever: libp2p alone never rejoins. Others (providers of the rendezvous tag,
mDNS, known peers) are dialled while we have few peers, and a dead one ever more rarely. libp2p asks here before each
dial of its own too, so that a DHT look-up follows the same rules (``hardened.Admission``).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs
import structlog
import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee
from libp2p.host.basic_host import BasicHost
from libp2p.network.exceptions import SwarmException
from libp2p.peer.peerstore import PeerStoreError

from swarm.errors import MalformedInput
from swarm.logs import LineBudget
from swarm.peer.addresses import AddressRule, Multiaddr, parse_address, parse_peer_id
from swarm.peer.known import KnownPeers
from swarm.peer.reputation import MALFORMED, Reputation

__all__ = ["Dialer"]

log = structlog.get_logger(__name__)

#: Peers we look for; beyond that we wait to be found. GossipSub meshes with 6, and 200 peers do well with 16 each.
ENOUGH_PEERS: Final = 16
ROOT_BACKOFF_S: Final = 1.0
#: A dial of a closed port costs next to nothing, and without its root a worker hears nothing.
ROOT_BACKOFF_MAX_S: Final = 10.0
PEER_BACKOFF_S: Final = 10.0
PEER_BACKOFF_MAX_S: Final = 1800.0
#: Dead peers remembered; the one that failed longest ago is forgotten first.
MAX_REMEMBERED: Final = 4096
MAX_ADDRESSES: Final = 8
#: How long libp2p keeps an address that we were given, seconds.
ADDRESS_TTL_S: Final = 600
SAVE_EVERY_S: Final = 30.0
DIALS_AT_ONCE: Final = 8
#: Lines of one event that strangers cause in so many seconds: peer ids are free, and each can be met and blocked.
LINES: Final = 30
LINES_PER_S: Final = 60.0


@attrs.define
class _Failures:
    count: int = 0
    not_before: float = 0.0


class Dialer(INotifee):
    """The dialling of one host. Implements ``hardened.Admission``, and listens to the host's connections.

    Args:
        own_id: our own peer id, which is never dialled.
        rule: which addresses may be dialled.
        reputation: who is blocked.
        known: the peers we met.
        bootstrap: the roots' addresses, each with ``/p2p/ID``.
        rng: jitter of the backoff.
    """

    def __init__(
        self,
        own_id: str,
        *,
        rule: AddressRule,
        reputation: Reputation,
        known: KnownPeers,
        bootstrap: Iterable[str],
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._own_id = own_id
        self._rule = rule
        self._reputation = reputation
        self._known = known
        self._rng = rng
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._roots: dict[str, list[Multiaddr]] = {}
        for address in bootstrap:
            self._add_root(address)
        self._changed = trio.Event()
        self._hurried = trio.Event()
        self._met = trio.Event()
        self._to_drop: list[str] = []
        self._dialling: set[str] = set()
        self._blocked_lines = LineBudget(LINES, per_s=LINES_PER_S, clock=trio.current_time)
        self._met_lines = LineBudget(LINES, per_s=LINES_PER_S, clock=trio.current_time)

    def _add_root(self, address: str) -> None:
        parsed = parse_address(address)
        if parsed.peer_id is None:
            raise MalformedInput(f"a root's address names no peer: {address}")
        if parsed.peer_id == self._own_id:
            return
        self._rule.vouch(address)
        transports = self._roots.setdefault(parsed.peer_id, [])
        if (transport := Multiaddr(parsed.transport)) not in transports:
            transports.append(transport)

    def is_root(self, peer_id: str) -> bool:
        """Whether this is one of the peers that we were told to begin with."""
        return peer_id in self._roots

    # ── hardened.Admission ────────────────────────────────────────────────────────────────────────────────────────

    def is_blocked(self, peer_id: str) -> bool:
        """Whether this peer is neither dialled nor answered."""
        return self._reputation.is_blocked(peer_id, now=trio.current_time())

    def dialable(self, peer_id: str, addresses: Sequence[Multiaddr]) -> list[Multiaddr]:
        """The addresses to try now: a root's own first, then what is known of the peer and allowed."""
        if peer_id == self._own_id or self.is_blocked(peer_id):
            return []
        failures = self._failures.get(peer_id)
        if failures is not None and failures.not_before > trio.current_time():
            return []
        wanted: dict[str, None] = {str(address): None for address in self._roots.get(peer_id, ())}
        for address in addresses:
            if self._rule.may_dial(address):
                wanted.setdefault(parse_address(address).transport)
        return [Multiaddr(address) for address in list(wanted)[:MAX_ADDRESSES]]

    def dialled(self, peer_id: str, *, answered: bool) -> None:
        """Back off from a peer that didn't answer; a root has its own, shorter, backoff in ``_keep_root``."""
        if answered:
            self._failures.pop(peer_id, None)
            return
        if peer_id in self._roots:
            return
        failures = self._failures.setdefault(peer_id, _Failures())
        self._failures.move_to_end(peer_id)
        if len(self._failures) > MAX_REMEMBERED:
            self._failures.popitem(last=False)
        wait_s = min(PEER_BACKOFF_S * 2**failures.count, PEER_BACKOFF_MAX_S)
        failures.count += 1
        failures.not_before = trio.current_time() + wait_s * (0.75 + self._rng() / 2)

    def misbehaved(self, peer_id: str, what: str, points: float = MALFORMED) -> None:
        """Count a fault; the one too many ends the connection."""
        if self._reputation.note(peer_id, points, now=trio.current_time()):
            held_back = self._blocked_lines.take()
            if held_back is not None:
                log.warning("peer_blocked", peer=peer_id, what=what, held_back=held_back)
            self._to_drop.append(peer_id)
            self._wake()

    # ── libp2p tells us of connections ────────────────────────────────────────────────────────────────────────────

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        """A connection is up: whoever was alone may look again."""
        self._met.set()
        self._met = trio.Event()

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        """A connection is gone: see at once whether it was a root's."""
        self._wake()

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        """Not of interest."""

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        """Not of interest."""

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Not of interest."""

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Not of interest."""

    def hurry(self) -> None:
        """Try the roots that are away at once: there is a sign that they are back."""
        self._hurried.set()
        self._hurried = trio.Event()

    async def connection_made(self) -> None:
        """Wait until there is a new connection."""
        await self._met.wait()

    async def connection_lost(self) -> None:
        """Wait until a connection is gone."""
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # ── dialling ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def dial(self, host: BasicHost, address: str, *, vouched: bool = False) -> bool:
        """Dial one address with its peer id.

        Args:
            host: who dials.
            address: a TCP multiaddr with ``/p2p/ID``.
            vouched: whether mDNS or a root named it, so that it may be private.

        Returns:
            Whether we are connected with that peer now.

        Raises:
            MalformedInput: it is no such address.
        """
        parsed = parse_address(address)
        if parsed.peer_id is None:
            raise MalformedInput(f"an address without a peer id can't be dialled: {address}")
        if vouched:
            self._rule.vouch(address)
        return await self.dial_peer(host, parsed.peer_id, [Multiaddr(parsed.transport)])

    async def dial_peer(self, host: BasicHost, peer_id: str, addresses: Sequence[Multiaddr]) -> bool:
        """Dial a peer at these addresses and those known of it; True where we are connected with it now."""
        if peer_id == self._own_id:
            return False
        peer = parse_peer_id(peer_id)
        self.note(host, peer_id, addresses)
        try:
            await host.get_network().dial_peer(peer)
        except SwarmException as fault:
            log.debug("peer_not_dialled", peer=peer_id, reason=str(fault))
            return False
        return True

    def note(self, host: BasicHost, peer_id: str, addresses: Sequence[Multiaddr]) -> None:
        """Remember for a while where a peer may be; whether it may be dialled there is decided at the dial."""
        if addresses:
            host.get_peerstore().add_addrs(parse_peer_id(peer_id), list(addresses)[:MAX_ADDRESSES], ADDRESS_TTL_S)

    def _wants(self, host: BasicHost, peer_id: str) -> bool:
        if peer_id == self._own_id or peer_id in self._dialling or self.is_blocked(peer_id):
            return False
        connections = host.get_network().connections
        return len(connections) < ENOUGH_PEERS and not connections.get(parse_peer_id(peer_id))

    async def consider(
        self, host: BasicHost, found: Sequence[tuple[str, Sequence[Multiaddr]]], *, found_by: str
    ) -> int:
        """Dial those of the peers found that are new, not dead to us, and needed; several at once.

        Args:
            host: who dials.
            found: peer ids with their addresses.
            found_by: how they were found: ``dht``, ``mdns`` or ``known``; for the log.

        Returns:
            How many new peers we are connected with.
        """
        met = 0
        limit = trio.CapacityLimiter(DIALS_AT_ONCE)

        async def meet(peer_id: str, addresses: Sequence[Multiaddr]) -> None:
            nonlocal met
            async with limit:
                if not self._wants(host, peer_id):
                    return
                self._dialling.add(peer_id)
                try:
                    if await self.dial_peer(host, peer_id, addresses):
                        met += 1
                        if self._met_lines.take() is not None:
                            log.info("peer_met", peer=peer_id, found_by=found_by)
                finally:
                    self._dialling.discard(peer_id)

        async with trio.open_nursery() as nursery:
            for peer_id, addresses in found:
                nursery.start_soon(meet, peer_id, addresses)
        return met

    async def meet_neighbour(self, host: BasicHost, addresses: Sequence[str]) -> None:
        """Dial a peer that mDNS found; its addresses may be private, all of one peer."""
        peer_id = parse_address(addresses[0]).peer_id
        parsed = [found for address in addresses if (found := parse_address(address)).peer_id == peer_id]
        for address in parsed:
            self._rule.vouch(address.transport)
        if peer_id is not None:
            await self.consider(
                host, [(peer_id, [Multiaddr(address.transport) for address in parsed])], found_by="mdns"
            )

    async def run(self, host: BasicHost) -> None:
        """Keep the roots, meet the known, drop the blocked, save whom we met; for ever."""
        async with trio.open_nursery() as nursery:
            for root in self._roots:
                nursery.start_soon(self._keep_root, host, root)
            nursery.start_soon(self._meet_known, host)
            nursery.start_soon(self._drop_blocked, host)
            nursery.start_soon(self._save_known, host)

    async def _keep_root(self, host: BasicHost, root: str) -> None:
        peer = parse_peer_id(root)
        wait_s = ROOT_BACKOFF_S
        while True:
            changed = self._changed
            if host.get_network().get_connections(peer) or await self.dial_peer(host, root, ()):
                wait_s = ROOT_BACKOFF_S
                with trio.move_on_after(ROOT_BACKOFF_S):
                    await changed.wait()
            else:
                with trio.move_on_after(wait_s * (0.75 + self._rng() / 2)):
                    await self._hurried.wait()
                wait_s = min(wait_s * 2, ROOT_BACKOFF_MAX_S)

    async def _meet_known(self, host: BasicHost) -> None:
        found = []
        for peer in self._known:
            try:
                parse_peer_id(peer.id)
                transports = [parse_address(address).transport for address in peer.addrs]
            except MalformedInput as fault:  # the file is ours, but anybody may have written it
                log.warning("known_peer_ignored", reason=str(fault))
                continue
            if peer.vouched:
                for transport in transports:
                    self._rule.vouch(transport)
            found.append((peer.id, [Multiaddr(transport) for transport in transports]))
        await self.consider(host, found, found_by="known")

    async def _drop_blocked(self, host: BasicHost) -> None:
        while True:
            changed = self._changed
            while self._to_drop:
                await host.get_network().close_peer(parse_peer_id(self._to_drop.pop()))
            await changed.wait()

    async def _save_known(self, host: BasicHost) -> None:
        while True:
            await trio.sleep(SAVE_EVERY_S)
            self.note_connected(host)
            await trio.to_thread.run_sync(self._known.save)

    def note_connected(self, host: BasicHost) -> None:
        """Remember whom we are connected with, at the addresses they announce and we may dial."""
        peerstore = host.get_peerstore()
        for peer in list(host.get_network().connections):
            if (peer_id := str(peer)) in self._roots:
                continue
            try:
                addresses = peerstore.addrs(peer)
            except PeerStoreError:
                continue
            allowed = tuple(parse_address(address).transport for address in addresses if self._rule.may_dial(address))
            self._known.note(peer_id, allowed, vouched=any(map(self._rule.is_vouched, allowed)))

    def save(self, host: BasicHost) -> None:
        """Write whom we are connected with now; blocks for one small file."""
        self.note_connected(host)
        self._known.save()
