"""How often one peer may ask something of us: a bucket a peer. Pure: the clock comes in."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import attrs
from libp2p.peer.id import ID

__all__ = ["Pace"]

#: Peers that are counted; the one that asked longest ago is forgotten first, and begins anew.
MAX_COUNTED: Final = 4096


@attrs.define
class _Tokens:
    left: float
    at: float


class Pace:
    """When a peer's next request is served.

    Args:
        per_s: requests a second, in the long run.
        burst: requests that needn't wait after a pause.
    """

    def __init__(self, per_s: float, *, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens: OrderedDict[ID, _Tokens] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens)

    def take(self, peer: ID, *, now: float) -> float:
        """Count a request; how long it has to wait, seconds."""
        tokens = self._tokens.setdefault(peer, _Tokens(self._burst, now))
        self._tokens.move_to_end(peer)
        if len(self._tokens) > MAX_COUNTED:
            self._tokens.popitem(last=False)
        tokens.left = min(self._burst, tokens.left + (now - tokens.at) * self._per_s) - 1
        tokens.at = now
        return max(0.0, -tokens.left / self._per_s)
