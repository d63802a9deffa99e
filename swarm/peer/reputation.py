"""Which peers misbehaved so often that we hang up and don't answer for a while.

libp2p's own scoring is inert unless every weight is set, and a disconnect wipes it (facts/libp2p.md). Here each fault
adds points that fade with time; at the limit the peer is blocked for ten minutes. Roots are never blocked: whoever
relays through them would cut us off. Pure: the clock comes in.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import attrs

__all__ = ["FADE_PER_S", "LIMIT", "MALFORMED", "UNWANTED", "Reputation"]

#: Bytes that no honest implementation sends: a malformed RPC, a signature that doesn't hold, an oversized block.
MALFORMED: Final = 20.0
#: A message that our validator refuses. An honest peer relays such while it knows a new root that we don't know yet,
#: at up to 20 a second for the ten seconds until our next turn: that must not block it, a flood must.
UNWANTED: Final = 0.2
LIMIT: Final = 100.0
#: A peer that errs once in a while is never blocked.
FADE_PER_S: Final = 1.0
BLOCK_S: Final = 600.0
#: Peer ids are free to make, so what we remember of them is bounded.
MAX_REMEMBERED: Final = 4096


@attrs.define
class _Record:
    points: float
    at: float
    blocked_until: float = 0.0


class Reputation:
    """The faults of peers. ``exempt`` are peer ids that are never blocked."""

    def __init__(self, exempt: frozenset[str] = frozenset()) -> None:
        self.exempt = exempt
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def note(self, peer_id: str, points: float, *, now: float) -> bool:
        """Add a fault.

        Args:
            peer_id: who did it, base58.
            points: ``MALFORMED`` or ``UNWANTED``.
            now: monotonic seconds.

        Returns:
            True where this fault is the one that blocks the peer.
        """
        if peer_id in self.exempt:
            return False
        record = self._records.setdefault(peer_id, _Record(points=0.0, at=now))
        self._records.move_to_end(peer_id)
        if len(self._records) > MAX_REMEMBERED:
            self._records.popitem(last=False)
        record.points = max(0.0, record.points - (now - record.at) * FADE_PER_S) + points
        record.at = now
        if record.points < LIMIT or record.blocked_until > now:
            return False
        record.blocked_until = now + BLOCK_S
        record.points = 0.0
        return True

    def is_blocked(self, peer_id: str, *, now: float) -> bool:
        """Whether we neither dial nor answer this peer."""
        record = self._records.get(peer_id)
        return record is not None and record.blocked_until > now and peer_id not in self.exempt

    def blocked(self, *, now: float) -> frozenset[str]:
        """The peer ids that are blocked now."""
        return frozenset(peer for peer in self._records if self.is_blocked(peer, now=now))
