"""What a root does because it may have neighbours: say who it is, believe their gossip, know their workers.

With SQLite there are none, and all of this costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog

from rendezvous.door.resources import Door
from rendezvous.door.site import Charter
from rendezvous.door.workers import hear_of_elsewhere
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.neighbours import Alone
from rendezvous.ledger.roots import BEAT_S, RootCard
from rendezvous.peer_thread import PeerThread

__all__ = ["follow_neighbours", "introduce"]

log = structlog.get_logger()

#: How often the workers of other roots are looked at; each root writes its own every 5 s.
LOOK_S: Final = 5.0


async def introduce(ledger: Ledger, charter: Charter, *, has_peer: bool) -> None:
    """Register this root among those that share the ledger.

    Raises:
        ConfigurationError: it may not share it, and why.
        LedgerUnavailable: the database can't be written.
    """
    card = RootCard(
        id=charter.peer_id,
        key_id=charter.key_id,
        network_id=charter.network_id,
        door=charter.doors[0],
        peer_id=charter.peer_id if has_peer else None,
        stores=charter.stores,
    )
    await asyncio.to_thread(ledger.neighbours.introduce, card)


async def follow_neighbours(door: Door, peer: PeerThread | None) -> None:
    """Keep up with the other roots until cancelled."""
    if isinstance(door.ledger.neighbours, Alone):
        return
    known: tuple[str, ...] = ()
    looked_at = time.monotonic()
    while True:
        await asyncio.sleep(BEAT_S)
        roots = door.site.roots()
        if roots != known:
            known = roots
            log.info("roots_changed", doors=door.site.doors())
            if peer is not None:
                peer.believe(frozenset(roots))
        if time.monotonic() - looked_at >= LOOK_S:
            looked_at = time.monotonic()
            await hear_of_elsewhere(door)
