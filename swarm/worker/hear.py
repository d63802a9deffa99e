"""Hear the roots' gossip. Announcement → the book of offers; a hint, never more."""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarm.wire import Announcement


async def hear(heard: trio.MemoryReceiveChannel[Announcement], take: Callable[[Announcement], None]) -> None:
    """Pass on what is heard until the channel closes.

    Args:
        heard: validated announcements, each root's in order.
        take: must not block; the channel drops the oldest where nobody reads.
    """
    async for announcement in heard:
        take(announcement)
