"""The pace of hosts that is shared with others (``--pacing``): the group's grants, asked for in one round trip.

It is asked after the group's tasks were picked by the ledger's own buckets, and before they are granted: a transaction
waits for it once, however many hosts and grants it has, and one without grants not at all. What the shared bucket
doesn't give stays pending; the ledger's own bucket then says what the shared one said, so that ``why``, the refusals
and the next look follow it. A group that is rolled back has used its tokens up: the pace is kept, not exceeded.

Nothing is granted of paced hosts while it doesn't answer; it is asked again a second later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog

from rendezvous.ledger.lines import HostState
from swarm.errors import ConfigurationError, QueueUnreachable
from swarm.queue.pace import Ask, Given, RedisPace, open_pace

__all__ = ["AWAY_S", "SharedPace", "open_shared_pace", "shares"]

log = structlog.get_logger()

#: The writer waits for so long at most, seconds: a local answer takes 0.2 ms, one of the next town 10.
TIMEOUT_S: Final = 0.25
#: After a fault the pace isn't asked for so long, so that the writer goes on with everything else, seconds.
AWAY_S: Final = 1.0


class _Pace(Protocol):
    def take(self, asks: Sequence[Ask]) -> list[Given]:
        """Take tokens of several hosts at once."""


class SharedPace:
    """The shared buckets, for the writer thread alone.

    Args:
        pace: asks them.
        where: what it is called in logs and reasons.
        clock: monotonic seconds.
    """

    def __init__(self, pace: _Pace, *, where: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace: Final = pace
        self._clock: Final = clock
        self._away_until: float | None = None
        self.where: Final = where

    def take(self, asks: Sequence[Ask]) -> list[Given] | None:
        """Take tokens; None while the buckets can't be asked."""
        now = self._clock()
        if self._away_until is not None and now < self._away_until:
            return None
        try:
            given = self._pace.take(asks)
        except (QueueUnreachable, ConfigurationError) as fault:
            if self._away_until is None:
                log.error("pacing_unreachable", address=self.where, reason=str(fault))
            self._away_until = self._clock() + AWAY_S
            return None
        if self._away_until is not None:
            log.info("pacing_recovered", address=self.where)
            self._away_until = None
        return given


def shares(pace: SharedPace, picked: Iterable[HostState], *, now: float) -> dict[int, int]:
    """How many of the picked grants each paced host gives; what it doesn't give is taken back from its own bucket.

    Args:
        pace: the shared buckets.
        picked: the host of each pick.
        now: ledger time, seconds.

    Returns:
        Grants by the host's number; hosts without a limit aren't in it.
    """
    hosts: dict[int, HostState] = {}
    wanted: Counter[int] = Counter()
    for host in picked:
        if not host.bucket.unlimited:
            hosts[host.n] = host
            wanted[host.n] += 1
    if not wanted:
        return {}
    asks = [
        Ask(
            host=hosts[number].host,
            wanted=picks,
            rate_per_s=hosts[number].bucket.rate_per_s,
            burst=hosts[number].bucket.burst,
        )
        for number, picks in wanted.items()
    ]
    given = pace.take(asks)
    if given is None:
        for number, picks in wanted.items():
            hosts[number].give_back(picks)
            hosts[number].hold(until=now + AWAY_S, why=f"the shared pace at {pace.where} doesn't answer")
        return dict.fromkeys(wanted, 0)
    for number, one in zip(wanted, given, strict=True):
        hosts[number].give_back(wanted[number] - one.taken)
        hosts[number].follow(one.left)
    return {number: one.taken for number, one in zip(wanted, given, strict=True)}


@contextlib.asynccontextmanager
async def open_shared_pace(location: str | None) -> AsyncIterator[SharedPace | None]:
    """The shared buckets that an operator named; None where none was.

    Raises:
        ConfigurationError: the location makes no sense.
        QueueUnreachable: they don't answer; no other pace was used.

    *Resource handling*: the connection is the block's.
    """
    if location is None:
        yield None
        return
    pace: RedisPace = await asyncio.to_thread(open_pace, location, timeout_s=TIMEOUT_S)
    with pace:
        yield SharedPace(pace, where=pace.where.shown)
