"""What of the topic is heard: announcements of our roots, each once, in order.

Two gates. The *validator* runs inside libp2p for each message before it is relayed: it lets pass what one of ``roots``
signed, that is no larger than a message may be, parses as an announcement of its signer and was not heard before. A
refusal is final (libp2p caches it and counts it against the relaying peer), so it may not hit what the mesh merely
delivered late: an anti-replay window tells late from replayed. The *reader* behind it is strict: only a rising
(epoch, seq) is news.

Gossip is a hint: a full channel drops its oldest entry, and a hole in the sequence is counted, not filled.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio
from libp2p.abc import ISubscriptionAPI
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from swarm.errors import MalformedInput
from swarm.peer.addresses import parse_peer_id
from swarm.wire import MAX_GOSSIP_BYTES, Announcement, decode

__all__ = ["HEARD_CAPACITY", "Gossip", "ReplayWindow"]

log = structlog.get_logger(__name__)

#: Announcements that wait for the worker. At 20 a second it is 13 s of sleep; older offers are worth nothing.
HEARD_CAPACITY: Final = 256
#: How far behind the newest a message may arrive: 50 s of a root's fastest rate, longer than any mesh path.
WINDOW: Final = 1024


class ReplayWindow:
    """Which (epoch, seq) of one root were accepted: the sliding window of RFC 4303 §3.4.3, one bit a message."""

    def __init__(self) -> None:
        self._epoch = -1
        self._newest = -1
        self._accepted = 0

    def admit(self, epoch: int, seq: int) -> bool:
        """Accept a message once. A later epoch ends the earlier ones."""
        if epoch < self._epoch:
            return False
        if epoch > self._epoch:
            self._epoch, self._newest, self._accepted = epoch, seq, 1
            return True
        ahead = seq - self._newest
        if ahead > 0:
            kept = self._accepted << ahead if ahead < WINDOW else 0
            self._newest, self._accepted = seq, (kept | 1) & ((1 << WINDOW) - 1)
            return True
        bit = 1 << -ahead if -ahead < WINDOW else 0
        if not bit or self._accepted & bit:
            return False
        self._accepted |= bit
        return True


class Gossip:
    """Both gates of one topic, and the channel behind them.

    Attributes:
        heard: the announcements, in order.
        gaps: holes seen in the sequences so far, new epochs and entries dropped here included. A change of it is a
            reason to take a turn soon.
        refused: messages that the validator let not pass.

    Args:
        own_id: our own peer id; our own messages pass, and aren't heard.
        topic: the one topic.
        roots: peer ids whose messages pass.
    """

    def __init__(self, own_id: ID, topic: str, roots: frozenset[str]) -> None:
        self._own = own_id.to_bytes()
        self._topic = topic
        self._roots: dict[bytes, str] = {}
        self._windows: dict[str, ReplayWindow] = {}
        self._newest: dict[str, tuple[int, int]] = {}
        self._send, self.heard = trio.open_memory_channel[Announcement](HEARD_CAPACITY)
        self._oldest = self.heard.clone()
        self.gaps = 0
        self.refused = 0
        self.set_roots(roots)

    def set_roots(self, roots: frozenset[str]) -> None:
        """Let from now on only these pass; what is known of one that stays is kept. What is no peer id is left out."""
        self._roots = {}
        for root in roots:
            try:
                self._roots[parse_peer_id(root).to_bytes()] = root
            except MalformedInput as fault:
                log.warning("root_ignored", reason=str(fault))
        for gone in self._windows.keys() - roots:
            del self._windows[gone]
        for gone in self._newest.keys() - roots:
            del self._newest[gone]

    def validate(self, forwarder: ID, message: rpc_pb2.Message) -> bool:
        """Say whether a message is relayed and read. Never raises: an exception would end the pubsub service."""
        if message.from_id == self._own:
            return len(message.data) <= MAX_GOSSIP_BYTES
        if self._passes(message):
            return True
        self.refused += 1
        log.debug("gossip_refused", forwarder=str(forwarder))
        return False

    def _passes(self, message: rpc_pb2.Message) -> bool:
        announcement = self._announcement(message)
        if announcement is None:
            return False
        window = self._windows.setdefault(announcement.root, ReplayWindow())
        return window.admit(announcement.epoch, announcement.seq)

    def _announcement(self, message: rpc_pb2.Message) -> Announcement | None:
        signer = self._roots.get(message.from_id)
        if signer is None or list(message.topicIDs) != [self._topic]:
            return None
        try:
            announcement = decode(message.data, Announcement, max_bytes=MAX_GOSSIP_BYTES)
        except MalformedInput:
            return None
        return announcement if announcement.root == signer else None

    async def read(self, subscription: ISubscriptionAPI) -> None:
        """Move what passed into ``heard``, for ever. Never waits for the worker, so libp2p's queue stays empty."""
        while True:
            message = await subscription.get()
            if message.from_id == self._own:
                continue
            announcement = self._announcement(message)
            if announcement is not None:
                self._hear(announcement)

    def _hear(self, announcement: Announcement) -> None:
        position = (announcement.epoch, announcement.seq)
        newest = self._newest.get(announcement.root)
        if newest is not None and position <= newest:
            return
        self._newest[announcement.root] = position
        if newest is not None and position != (newest[0], newest[1] + 1):
            self.gaps += 1
        try:
            self._send.send_nowait(announcement)
        except trio.WouldBlock:
            self._oldest.receive_nowait()
            self.gaps += 1
            self._send.send_nowait(announcement)

    def close(self) -> None:
        """End ``heard`` for its reader."""
        self._send.close()
        self._oldest.close()
