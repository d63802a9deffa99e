"""Meeting by the DHT: provide the swarm's rendezvous tag, look for others who do, dial who is new.

Look-ups are nearly all of an idle node's CPU, so their interval grows once nothing new turns up, and falls back when a
peer is lost (DESIGN §6). ``find`` always asks the network: libp2p's own look-up answers from the local store where
there is anything in it, so that a provider would see only itself, for 48 hours. What contents we have is said here too,
by the list that ``provided`` keeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import trio
from libp2p.abc import INetConn
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID

from swarm.content.cid import parse_cid
from swarm.errors import MalformedInput
from swarm.model import Cid
from swarm.peer.addresses import Multiaddr, parse_peer_id
from swarm.peer.dialer import Dialer
from swarm.peer.hardened_dht import HardenedDht, speaks_dht
from swarm.peer.provided import Provided

__all__ = ["Interval", "Rendezvous", "key_of_digest", "key_of_tag"]

log = structlog.get_logger(__name__)

#: A provider record is lost with the node that holds it, and lives for half an hour with us.
PROVIDE_EVERY_S: Final = 300.0
#: Rounds that bring nothing new before the interval grows: five minutes at ten seconds.
IDLE_ROUNDS: Final = 30
IDLE_INTERVAL_S: Final = 60.0
#: A look-up may take 30 s by libp2p's own rule; a round as a whole no longer than this.
ROUND_S: Final = 45.0
#: One peer's answer. libp2p gives it 10 s, which a dead peer in the table would cost in each round.
ASK_S: Final = 5.0
ASKED_AT_ONCE: Final = 10
#: Providers taken from one look-up: what a hostile table can make us try.
MAX_FOUND: Final = 256


def key_of_digest(digest: bytes) -> str:
    """The DHT key of a sha2-256 digest, as libp2p's ``provide`` takes it: a multihash in hex."""
    return "1220" + digest.hex()


def key_of_tag(tag: str) -> str:
    """The DHT key of the rendezvous tag; the same as that of a CIDv1 of its bytes."""
    return key_of_digest(hashlib.sha256(tag.encode()).digest())


def _is_peer_id(peer: ID) -> bool:
    try:
        parse_peer_id(str(peer))
    except MalformedInput:
        return False
    return True


class Interval:
    """How long to wait between look-ups.

    Args:
        base_s: the interval while there is something to find.
    """

    def __init__(self, base_s: float) -> None:
        self.base_s = base_s
        self._idle_rounds = 0

    def round_done(self, *, met: int) -> None:
        """Count a round by the new peers it brought."""
        self._idle_rounds = 0 if met else self._idle_rounds + 1

    def lost(self) -> None:
        """Fall back: a peer is gone."""
        self._idle_rounds = 0

    @property
    def wait_s(self) -> float:
        """The wait until the next look-up."""
        return max(self.base_s, IDLE_INTERVAL_S) if self._idle_rounds >= IDLE_ROUNDS else self.base_s


class Rendezvous:
    """The meeting point of one swarm, for one host.

    Args:
        host: who looks.
        dht: its DHT.
        dialer: who dials.
        tag: what the swarm's members provide.
        interval_s: seconds between look-ups while the swarm is young.
    """

    def __init__(self, host: BasicHost, dht: HardenedDht, dialer: Dialer, *, tag: str, interval_s: float) -> None:
        self._host = host
        self._dht = dht
        self._dialer = dialer
        self._key = key_of_tag(tag)
        self._interval = Interval(interval_s)
        self._provided_at = -PROVIDE_EVERY_S
        self._provided_to: frozenset[INetConn] = frozenset()
        self._fault = ""
        self._without_dht: set[ID] = set()

    async def run(self) -> None:
        """Look, dial, provide, wait; for ever."""
        while True:
            started_at = trio.current_time()
            with trio.move_on_after(ROUND_S):
                try:
                    await self._round()
                    self._fault = ""
                except Exception as fault:  # noqa: BLE001 - supervision boundary: libp2p raises what it likes
                    if type(fault).__name__ != self._fault:  # the same each round is said once
                        self._fault = type(fault).__name__
                        log.warning("dht_round_failed", fault=repr(fault))
            await self._wait(started_at)

    async def _round(self) -> None:
        await self._provide_where_new()
        met = await self._dialer.consider(self._host, await self.find(), found_by="dht")
        self._interval.round_done(met=met)
        if met:
            await self._provide_where_new()

    async def _wait(self, started_at: float) -> None:
        until = started_at + self._interval.wait_s
        if not self._host.get_network().connections:  # nobody was there to ask: the first who comes is asked at once
            with trio.move_on_at(until):  # it may be past: a round, or a sleep of the machine, takes its time
                await self._dialer.connection_made()
            return
        while (left_s := until - trio.current_time()) > 0:
            with trio.move_on_after(left_s):
                await self._dialer.connection_lost()
                self._interval.lost()
                until = min(until, started_at + self._interval.base_s)

    async def _provide_where_new(self) -> None:
        """Provide the tag where five minutes passed, or a connected peer hasn't been told yet."""
        connected = self._servers()
        for connection in connected:
            await self._dht.add_peer(connection.muxed_conn.peer_id)  # connecting doesn't; it refuses who is no server
        if not connected:
            return
        now = trio.current_time()
        due = now - self._provided_at >= PROVIDE_EVERY_S or connected - self._provided_to
        if due and await self._dht.provide(self._key):
            self._provided_at, self._provided_to = now, connected

    def _servers(self) -> frozenset[INetConn]:
        """The connections with peers that may be DHT servers: one that was away may have come back without its records.

        A root that is none is said once: it is likely a mistake.
        """
        servers: set[INetConn] = set()
        for peer, connections in self._host.get_network().connections.items():
            if speaks_dht(self._host, peer):
                servers.update(connections)
            elif self._dialer.is_root(str(peer)) and peer not in self._without_dht:
                self._without_dht.add(peer)
                log.info("root_without_dht", peer=str(peer), todo="a Kubo needs Routing.Type dhtserver to take part")
        return frozenset(servers)

    async def find(self) -> list[tuple[str, Sequence[Multiaddr]]]:
        """Ask the network for the providers of the tag.

        Returns:
            Peer id and addresses of each but ourselves, once each; also those that told us themselves.
        """
        return await self._find(self._key)

    async def providers(self, digest: bytes) -> list[tuple[str, Sequence[Multiaddr]]]:
        """Ask the network who has the block of this sha2-256 digest; as ``find``."""
        return await self._find(key_of_digest(digest))

    async def _find(self, hex_key: str) -> list[tuple[str, Sequence[Multiaddr]]]:
        key = bytes.fromhex(hex_key)
        store = self._dht.provider_store
        found = {provider.peer_id: provider.addrs for provider in store.get_providers(key)}
        limit = trio.CapacityLimiter(ASKED_AT_ONCE)

        async def ask(peer: ID) -> None:
            async with limit:
                with trio.move_on_after(ASK_S):
                    providers, _ = await store._get_providers_from_peer_with_closers(peer, key)
                    for provider in providers[:MAX_FOUND]:
                        found.setdefault(provider.peer_id, provider.addrs)

        async with trio.open_nursery() as nursery:
            for peer in await self._dht.peer_routing.find_closest_peers_network(key):
                if peer != self._host.get_id():
                    nursery.start_soon(ask, peer)
        found.pop(self._host.get_id(), None)
        # An answer may name anything: one entry that is no peer id would end the round for all others.
        usable = [(peer, addresses) for peer, addresses in found.items() if _is_peer_id(peer)]
        return [(str(peer), addresses) for peer, addresses in usable[:MAX_FOUND]]

    async def provide(self, digest: bytes) -> bool:
        """Say in the DHT that we have the block of this sha2-256 digest; True where somebody was told."""
        return await self._dht.provide_nearby(bytes.fromhex(key_of_digest(digest)))

    async def keep_provided(
        self, provided: Provided, has: Callable[[Cid], Awaitable[bool]], *, interval_s: float
    ) -> None:
        """Say one after another which contents we have, and again before they are forgotten; for ever.

        Args:
            provided: what there is to say.
            has: whether a content's root is still here.
            interval_s: seconds between two of them.
        """
        told: frozenset[INetConn] = frozenset()
        while True:
            connected = self._servers()
            if not connected & told:  # whoever was told is gone, or came back without its records
                provided.say_all_again()
            told = connected
            for gone in provided.take_forgotten():
                self._dht.forget(bytes.fromhex(key_of_digest(parse_cid(gone).digest)))
            cid = provided.next_due(now=trio.current_time()) if connected else None
            if cid is None:
                with trio.move_on_after(self._interval.base_s):
                    await provided.changed()
                continue
            if not await has(cid):
                provided.forget(cid)
                continue
            said = False
            with trio.move_on_after(ROUND_S):
                try:
                    said = await self.provide(parse_cid(cid).digest)
                except Exception as fault:  # noqa: BLE001 - supervision boundary: libp2p raises what it likes
                    log.debug("provide_failed", cid=cid, fault=repr(fault))
            provided.said(cid, said, now=trio.current_time())
            await trio.sleep(interval_s if said else max(interval_s, self._interval.base_s))
