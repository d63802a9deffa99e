"""libp2p's address book made fit for strangers: the override of ``hardened`` that is about what is kept of peers.

Anybody fills it: a look-up's answer names peers by the hundred, an identify message addresses by the thousand. 0.8.1
compares each new address with all others (four seconds of the loop for 64 KiB of them), keeps all, and at a thousand
peers first evicts those without an address: our own entry, with the private key, so that nothing is signed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from libp2p.peer.envelope import Envelope
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from multiaddr import Multiaddr  # type: ignore[import-untyped]

__all__ = ["HardenedPeerStore"]

#: Peers that are remembered; a look-up in a large swarm meets some hundred.
MAX_PEERS: Final = 4096
#: Addresses of one peer, the newest, and their length. A Kubo on a server has some ten.
MAX_ADDRESSES: Final = 32
MAX_ADDRESS_BYTES: Final = 128
#: What a peer says that it speaks; Kubo names thirty.
MAX_PROTOCOLS: Final = 128
MAX_PROTOCOL_CHARS: Final = 256
#: A signed record that is kept and passed on: 32 addresses and their envelope.
MAX_RECORD_BYTES: Final = 8 * 1024


class HardenedPeerStore(PeerStore):
    """The address book of one host.

    Args:
        own: our own peer, which is never evicted.
        is_connected: whether there is a connection with a peer; such are not evicted either.
    """

    def __init__(self, own: ID, is_connected: Callable[[ID], bool]) -> None:
        super().__init__(max_records=MAX_PEERS, max_peers=MAX_PEERS)
        self._own = own
        self._is_connected = is_connected

    def _enforce_peer_limit(self) -> None:
        surplus = len(self.peer_data_map) - self.max_peers
        for peer in list(self.peer_data_map) if surplus > 0 else ():
            if surplus <= 0:
                return
            if peer != self._own and not self._is_connected(peer):
                del self.peer_data_map[peer]
                self.peer_record_map.pop(peer, None)
                surplus -= 1

    def add_addrs(self, peer_id: ID, addrs: Sequence[Multiaddr], ttl: int = 0) -> None:
        """Remember some of a peer's addresses, the newest of all that were given."""
        usable = [one for one in addrs[:MAX_ADDRESSES] if len(one.to_bytes()) <= MAX_ADDRESS_BYTES]
        super().add_addrs(peer_id, usable, ttl)
        known = self.peer_data_map.get(peer_id)
        if known is not None and len(known.addrs) > MAX_ADDRESSES:
            del known.addrs[:-MAX_ADDRESSES]

    def add_protocols(self, peer_id: ID, protocols: Sequence[str]) -> None:
        """Remember what a peer speaks, in all that it ever said."""
        known = self.peer_data_map.get(peer_id)
        before = known.protocols if known is not None else []
        self.set_protocols(peer_id, list(dict.fromkeys([*before, *protocols])))

    def set_protocols(self, peer_id: ID, protocols: Sequence[str]) -> None:
        """Remember what a peer speaks."""
        named = [str(one) for one in protocols[:MAX_PROTOCOLS] if len(one) <= MAX_PROTOCOL_CHARS]
        super().set_protocols(peer_id, named)
        if len(self.peer_data_map) > self.max_peers:
            self._enforce_peer_limit()

    def consume_peer_record(self, envelope: Envelope, ttl: int) -> bool:
        """Take a peer's signed record, unless it is longer than any honest one."""
        payload: Any = envelope.raw_payload
        return len(payload) <= MAX_RECORD_BYTES and super().consume_peer_record(envelope, ttl)
