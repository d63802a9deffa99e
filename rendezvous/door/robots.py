"""``GET /v1/robots``: a site's rules for workers; and what they mean for the pace of its host.

A crawl-delay slows the host's bucket, never quickens it. A site whose robots.txt can't be read now is held until it is
asked again: else its tasks would be granted and given back in circles. A fault that lies in the address itself (no such
name, nobody listens, a bad certificate) holds nothing: each task of it fails by itself.

What was granted of a host before its crawl-delay was known is given back by its workers, which are told so here: there
may be several at once, where the site wants one request after another.

Sites that the worker holds no task of (a page redirected there) are asked slowly, so that no worker can have the root
call on the whole web.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from rendezvous.door.call import Call
from rendezvous.door.resources import Door
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.ops import HoldHost, SetHostPace
from swarm.content.urls import canonical, host_of
from swarm.model import Reason, Refusal, RefusalCode
from swarm.web.transfer import origin_of
from swarm.wire import RobotsAnswer

__all__ = ["HostPaces", "robots"]

log = structlog.get_logger()

#: The site is in trouble, or asks for patience.
_HOLDING: Final = frozenset({Reason.TIMEOUT, Reason.HTTP_5XX, Reason.BLOCKED})
#: Hosts whose pace was set; forgetting one costs a ledger operation.
MAX_REMEMBERED: Final = 20_000
#: What a worker is told to wait at most, seconds; the ledger says when the host may be asked again.
MAX_WAIT_S: Final = 60.0


class HostPaces:
    """Tells the ledger what robots.txt says of a host's pace, once.

    Args:
        ledger: where hosts are paced.
        rate_per_s: the pace of a host that nothing is known of; 0 is no limit.
        clock: monotonic seconds.
    """

    def __init__(self, ledger: Ledger, *, rate_per_s: float, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._rate_per_s = rate_per_s
        self._clock = clock
        self._delays: dict[str, float] = {}
        self._held: dict[str, float] = {}

    async def heed(self, host: str, answer: RobotsAnswer | Refusal) -> None:
        """Slow a host down, or hold it, as its robots.txt asks."""
        if isinstance(answer, Refusal):
            await self._hold(host, answer)
        elif answer.crawl_delay_s is not None and answer.crawl_delay_s > 0:
            await self._slow(host, answer.crawl_delay_s)

    async def _hold(self, host: str, refusal: Refusal) -> None:
        reason = (refusal.details or {}).get("reason")
        if refusal.code is not RefusalCode.ROBOTS_UNAVAILABLE or reason not in _HOLDING:
            return
        for_s = refusal.retry_after_s or 0.0
        if self._held.get(host, 0.0) >= self._clock() + for_s - 1.0:
            return
        if len(self._held) >= MAX_REMEMBERED:
            self._held.clear()
        self._held[host] = self._clock() + for_s
        await self._ledger.call(HoldHost(host=host, for_s=for_s, why=f"its robots.txt can't be read ({reason})"))
        log.info("host_held", host=host, for_s=round(for_s, 1), reason=reason)

    async def _slow(self, host: str, delay_s: float) -> None:
        if self._delays.get(host, 0.0) >= delay_s:
            return
        rate_per_s = 1.0 / delay_s
        if self._rate_per_s > 0:
            rate_per_s = min(rate_per_s, self._rate_per_s)
        if len(self._delays) >= MAX_REMEMBERED:
            self._delays.clear()
        self._delays[host] = delay_s
        await self._ledger.call(SetHostPace(host=host, rate_per_s=rate_per_s, burst=1.0, one_at_a_time=True))
        log.info("host_slowed", host=host, crawl_delay_s=delay_s)


async def robots(door: Door, call: Call) -> RobotsAnswer | Refusal:
    """The rules of one origin for our agent."""
    origin = canonical(call.queries["origin"])
    refusal = await _stray(door, call, origin)
    if refusal is not None:
        return refusal
    answer = await door.robots.rules(origin)
    host = host_of(origin)
    await door.paces.heed(host, answer)
    if isinstance(answer, RobotsAnswer) and answer.crawl_delay_s and await _outran(door, call, host):
        return Refusal(
            RefusalCode.HOST_BUSY,
            f"{host} asks for {answer.crawl_delay_s:g} s between requests, and that wasn't known when the task was "
            "granted: give it back",
            retry_after_s=min(answer.crawl_delay_s, MAX_WAIT_S),
        )
    return answer


async def _outran(door: Door, call: Call, host: str) -> bool:
    """Whether the worker has a task of the host that others may have been granted at the same time."""
    worker = call.who.worker
    return worker is not None and await door.ledger.read(lambda reader: reader.outran_delay(worker, host))


async def _stray(door: Door, call: Call, origin: str) -> Refusal | None:
    """Charge a look-up that would ask a site which the worker holds no task of."""
    if door.robots.at_hand(origin_of(origin)) is not None:
        return None
    worker = call.who.worker
    if worker is not None and await door.ledger.read(lambda reader: reader.holds_host(worker, host_of(origin))):
        return None
    return door.limiter.charge_stray(call.who.digest)
