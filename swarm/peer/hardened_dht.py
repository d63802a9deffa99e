"""libp2p's Kademlia made fit for strangers: the overrides of ``hardened`` that are about the DHT.

What strangers can store with us, what one answer or one message of theirs costs us, and how often they may ask are
bounded. Peers that said they are no DHT servers are never asked: 0.8.1 asks everybody it is connected with while its
table is small, in each look-up anew.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

import libp2p.kad_dht.common
import libp2p.kad_dht.kad_dht
import libp2p.kad_dht.peer_routing
import libp2p.kad_dht.provider_store
import libp2p.kad_dht.value_store
import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.io.exceptions import IncompleteReadError
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.kad_dht.peer_routing import PeerRouting
from libp2p.kad_dht.provider_store import ProviderRecord, ProviderStore
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.peer.peerstore import PeerStoreError
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from swarm.peer.pace import Pace

__all__ = ["KAD_PROTOCOL", "HardenedDht", "build_dht", "speaks_dht"]

#: Kubo's LAN DHT, so that the operator's Kubo takes part. ``KadDHT(protocol_prefix=…)`` is ignored by 0.8.1.
KAD_PROTOCOL: Final = "/ipfs/lan/kad/1.0.0"
#: Providers kept of one key; the default 20 are first come, so dead workers fill it for 48 hours.
MAX_PROVIDERS_PER_KEY: Final = 1000
#: Keys that strangers may store with us: the results of a swarm of 20, or a share of a larger one's. No bound in 0.8.1.
MAX_PROVIDER_KEYS: Final = 8192
#: … and all records together, some kilobyte each at most. A peer provides itself alone, but peer ids are free.
MAX_PROVIDER_RECORDS: Final = 32_768
#: Addresses kept of one provider, and their bytes. A message of 4 MiB would be kept whole.
MAX_PROVIDER_ADDRESSES: Final = 16
MAX_ADDRESS_BYTES: Final = 128
#: Providers told in one answer, at random: a question of 50 bytes gets 50 KiB at most, and who asks again gets others.
MAX_PROVIDERS_TOLD: Final = 100
#: A provider says so again every five minutes, so one that missed six is gone (default: 48 hours).
PROVIDER_TTL_S: Final = 1800
#: Values that strangers may store with us; the swarm uses none.
MAX_VALUES: Final = 64
#: A question holds a key and two signed records; 4 MiB of addresses would cost seconds.
MAX_QUESTION_BYTES: Final = 16 * 1024
#: An answer of Kubo has all providers of a key: a swarm of some thousand.
MAX_ANSWER_BYTES: Final = 512 * 1024
#: Closer peers of one answer; who keeps to Kademlia names twenty. And providers: more are never dialled in a round.
MAX_CLOSER: Final = 32
MAX_PROVIDERS_TAKEN: Final = 256
#: Streams of questions that are served at once, and of one peer. 0.8.1 serves 12, which one silent peer fills.
MAX_STREAMS: Final = 256
MAX_STREAMS_PER_PEER: Final = 8
#: Servers that are told of a result, and how long one may take.
TOLD: Final = 4
TELL_S: Final = 10.0
#: A stream on which nothing is asked for this long is closed; Kubo opens another.
IDLE_S: Final = 60.0
#: Questions that one peer may ask: one costs a millisecond. A busy worker asks some five a second.
QUESTIONS_PER_S: Final = 20.0
QUESTIONS_AT_ONCE: Final = 100.0
#: Entries of 0.8.1's own count of who provided what, which it never empties of the recent ones.
MAX_RATE_LIMITS: Final = 4096


async def _read_question(stream: Any, _: int) -> bytes:
    """Read what a peer asks, not longer, not later and not more often than honest peers ask."""
    with trio.move_on_after(IDLE_S):
        question = await read_varint_prefixed_bytes_limited(stream, MAX_QUESTION_BYTES)
        if isinstance(stream, _Paced):
            await trio.sleep(stream.pace.take(stream.muxed_conn.peer_id, now=trio.current_time()))
        return question
    raise IncompleteReadError("nothing was asked for a while", expected_bytes=1, received_bytes=0)


async def _read_answer(stream: Any, _: int) -> bytes:
    """Read what a peer answers, with no more others in it than any honest peer names.

    Each is noted, with its addresses and a signature to verify, before anything is chosen from them.
    """
    answer = await read_varint_prefixed_bytes_limited(stream, MAX_ANSWER_BYTES)
    message = Message.FromString(answer)
    if len(message.closerPeers) <= MAX_CLOSER and len(message.providerPeers) <= MAX_PROVIDERS_TAKEN:
        return answer
    del message.closerPeers[MAX_CLOSER:]
    del message.providerPeers[MAX_PROVIDERS_TAKEN:]
    return message.SerializeToString()


class _Paced:
    """A peer's stream of questions, with the pace at which they are answered."""

    def __init__(self, stream: INetStream, pace: Pace) -> None:
        self._stream = stream
        self.pace = pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _patch_modules() -> None:
    """Set what 0.8.1 offers no argument for. Each is read when it is used, so this works after the import."""
    kad: tuple[Any, ...] = (
        libp2p.kad_dht.common,
        libp2p.kad_dht.kad_dht,
        libp2p.kad_dht.peer_routing,
        libp2p.kad_dht.provider_store,
        libp2p.kad_dht.value_store,
    )
    for module in kad:
        module.PROTOCOL_ID = TProtocol(KAD_PROTOCOL)
    providers: Any = libp2p.kad_dht.provider_store
    providers.BUCKET_SIZE = MAX_PROVIDERS_PER_KEY
    providers.PROVIDER_RECORD_EXPIRATION_INTERVAL = PROVIDER_TTL_S
    asked: Any = libp2p.kad_dht.kad_dht
    asked.read_varint_prefixed_bytes_limited = _read_question
    asking: tuple[Any, ...] = (
        libp2p.kad_dht.peer_routing,
        libp2p.kad_dht.provider_store,
        libp2p.kad_dht.value_store,
    )
    for module in asking:
        module.read_varint_prefixed_bytes_limited = _read_answer


_patch_modules()


def speaks_dht(host: IHost, peer: ID) -> bool:
    """Whether a peer may be a DHT server; False once it said what it speaks, and the DHT isn't among it."""
    try:
        protocols = host.get_peerstore().get_protocols(peer)
    except PeerStoreError:
        return True
    return not protocols or KAD_PROTOCOL in protocols


class _Routing(PeerRouting):
    """Look-ups."""

    async def _query_peer_for_closest(self, peer: ID, target_key: bytes) -> list[ID]:
        if not speaks_dht(self.host, peer):
            return []
        return await super()._query_peer_for_closest(peer, target_key)


class _Providers(ProviderStore):
    """Who has what, as strangers and we ourselves said."""

    async def _republish_provider_records(self) -> None:
        """Nothing: ``dht`` provides again what is due, at its own pace; 0.8.1 would say all at once."""

    async def _send_add_provider(self, peer_id: ID, key: bytes) -> bool:
        if not speaks_dht(self.host, peer_id):
            return False
        return await super()._send_add_provider(peer_id, key)

    async def _get_providers_from_peer_with_closers(self, peer_id: ID, key: bytes) -> tuple[list[PeerInfo], list[ID]]:
        if not speaks_dht(self.host, peer_id):
            return [], []
        return await super()._get_providers_from_peer_with_closers(peer_id, key)

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        """Keep a provider with some of its addresses; the newest key is the last to be forgotten."""
        addresses = [one for one in provider.addrs if len(one.to_bytes()) <= MAX_ADDRESS_BYTES]
        known: dict[str, ProviderRecord] = self.providers.pop(key, {})
        self.providers[key] = known
        super().add_provider(key, PeerInfo(provider.peer_id, addresses[:MAX_PROVIDER_ADDRESSES]))
        self.forget_surplus()

    def get_providers(self, key: bytes) -> list[PeerInfo]:
        """Some of the providers of a key, at random where there are many."""
        found = super().get_providers(key)
        return random.sample(found, MAX_PROVIDERS_TOLD) if len(found) > MAX_PROVIDERS_TOLD else found

    async def provide_nearby(self, key: bytes) -> bool:
        """Say that we have something to the nearest servers that we know; True where one was told.

        0.8.1 asks everybody for who is nearest and then tells twenty: a hundred milliseconds of CPU in a swarm of
        seven, too much for something that is said of each result. Whoever looks asks the nearest, and us.
        """
        self.providing_keys.add(key)
        self.add_provider(key, PeerInfo(self.local_peer_id, self.host.get_addrs()))
        near = self.peer_routing.routing_table.find_local_closest_peers(key, MAX_CLOSER)
        told: list[ID] = []

        async def tell(peer: ID) -> None:
            with trio.move_on_after(TELL_S):
                if await self._send_add_provider(peer, key):
                    told.append(peer)

        async with trio.open_nursery() as nursery:
            for peer in [one for one in near if one != self.local_peer_id and speaks_dht(self.host, one)][:TOLD]:
                nursery.start_soon(tell, peer)
        return bool(told)

    def forget_own(self, key: bytes) -> None:
        """Provide a key no more."""
        self.providing_keys.discard(key)
        self.providers.get(key, {}).pop(str(self.local_peer_id), None)

    def forget_surplus(self) -> None:
        """Drop the oldest keys beyond the caps, never one that we provide ourselves."""
        surplus_keys = len(self.providers) - MAX_PROVIDER_KEYS
        surplus = sum(map(len, self.providers.values())) - MAX_PROVIDER_RECORDS
        if surplus_keys <= 0 and surplus <= 0:
            return
        for key in list(self.providers):
            if surplus_keys <= 0 and surplus <= 0:
                break
            if key not in self.providing_keys:
                surplus -= len(self.providers.pop(key))
                surplus_keys -= 1


class HardenedDht(KadDHT):
    """The DHT server."""

    provider_store: _Providers

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer_routing = _Routing(self.host, self.routing_table)
        self.provider_store = _Providers(host=self.host, peer_routing=self.peer_routing)
        self._inbound_limiter = trio.CapacityLimiter(MAX_STREAMS)
        self._pace = Pace(QUESTIONS_PER_S, burst=QUESTIONS_AT_ONCE)
        self._streams: Counter[ID] = Counter()

    async def handle_stream(self, stream: INetStream) -> None:
        """Answer one stream of questions, as one of a bounded number of its peer."""
        peer = stream.muxed_conn.peer_id
        if self._streams[peer] >= MAX_STREAMS_PER_PEER:
            await stream.reset()
            return
        self._streams[peer] += 1
        try:
            await super().handle_stream(_Paced(stream, self._pace))  # type: ignore[arg-type]
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]
            self._forget_surplus()

    def _forget_surplus(self) -> None:
        if len(self._provider_rate_limits) > MAX_RATE_LIMITS:
            self._provider_rate_limits.clear()
        values = self.value_store.store
        for value_key in list(values)[: max(0, len(values) - MAX_VALUES)]:
            del values[value_key]

    async def provide_nearby(self, key: bytes) -> bool:
        """Say that we have something, cheaply; True where somebody was told."""
        return await self.provider_store.provide_nearby(key)

    def forget(self, key: bytes) -> None:
        """Provide a key no more; others forget it by themselves."""
        self.provider_store.forget_own(key)


def build_dht(host: BasicHost) -> HardenedDht:
    """Make the DHT server. ``max_peers_per_subnet=0``: two a public /24 would hide a swarm in one data centre."""
    return HardenedDht(host, DHTMode.SERVER, max_peers_per_subnet=0)
