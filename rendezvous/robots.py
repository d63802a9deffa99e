"""The robots.txt of every origin that the swarm asks, fetched by the root alone and kept for a day.

A thousand workers would else fetch one file a thousand times. Workers get the group that speaks to our agent
(``swarm.web.robots.cut``). What the site answers decides (RFC 9309 §2.3.1): a file gives its rules; a 4xx, or redirects
without end, mean that there are none; a 429, a 5xx or no answer means "wait", longer each time. The origin comes from a
stranger's task, so the worker's guard holds here too.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import attrs
import structlog

from swarm.model import Reason, Refusal, RefusalCode
from swarm.web.blocked import retry_after
from swarm.web.capture import TaskFailed
from swarm.web.guard import Guard, Resolve, resolve_name
from swarm.web.robots import MAX_ROBOTS_BYTES, Rules, cut, decode_robots
from swarm.web.transfer import Caps, Hop, canonical_or_refused, get_once, host_and_port, origin_of
from swarm.wire import RobotsAnswer

#: RFC 9309 §2.4: a copy shouldn't be used for longer.
FRESH_S: Final = 86_400.0
#: RFC 9309 §2.3.1.2 asks for five.
MAX_REDIRECTS: Final = 5
#: The worker that asks holds a lease meanwhile.
TIMEOUT_S: Final = 10.0
FIRST_RETRY_S: Final = 60.0
LONGEST_RETRY_S: Final = 3_600.0
#: At some 1 KiB each, what a big crawl needs and a small machine has.
MAX_ORIGINS: Final = 10_000
#: Fetches under way at once; each may hold half a megabyte.
MAX_FETCHES: Final = 64

_TOO_MANY_REQUESTS: Final = 429

log = structlog.get_logger()


@attrs.define(kw_only=True)
class _Origin:
    """What is known of one origin: an answer or a refusal, and until when (the cache's clock)."""

    turn: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    users: int = 0
    rules: str | None = None
    crawl_delay_s: float | None = None
    refusal: Refusal | None = None
    until: float = 0.0
    failures: int = 0


class RobotsCache:
    """Answers workers with the rules of an origin, fetching its robots.txt where need be.

    *Resource handling*: none; it keeps no connection and starts no task. A fetch runs in the task of whoever asked
    first; others that ask for the same origin meanwhile wait for that one.

    Args:
        agent: our User-Agent (``swarm.web.fetcher.user_agent``).
        tls: checks certificates (``swarm.web.fetcher.trusted_cas``).
        allow_private: the operator lets the root reach its own machine and networks (a demo, an intranet).
        allow_networks: … or these networks only.
        resolve: how names become addresses.
        timeout_s: for one robots.txt, redirects included.
        clock: rising seconds.
        wall_clock: Unix seconds, for ``Retry-After`` dates.
        max_origins: the least recently asked are forgotten beyond that.
    """

    def __init__(
        self,
        *,
        agent: str,
        tls: ssl.SSLContext,
        allow_private: bool = False,
        allow_networks: tuple[str, ...] = (),
        resolve: Resolve = resolve_name,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        max_origins: int = MAX_ORIGINS,
    ) -> None:
        self._agent = agent
        self._tls = tls
        self._guard = Guard(allow_private=allow_private, allow_networks=allow_networks, resolve=resolve)
        self._timeout_s = timeout_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._max_origins = max_origins
        self._origins: OrderedDict[str, _Origin] = OrderedDict()
        self._fetches = asyncio.Semaphore(MAX_FETCHES)

    async def rules(self, origin: str) -> RobotsAnswer | Refusal:
        """The rules of an origin for our agent.

        Args:
            origin: ``scheme://host[:port]``.

        Returns:
            The rules and how long they hold; or a refusal: ``bad_url`` where that is no origin, ``robots_unavailable``
            where the file can't be read now. Its ``details["reason"]`` says why, as a ``swarm.model.Reason``.
        """
        try:
            name = origin_of(canonical_or_refused(origin))
        except TaskFailed as failure:
            return Refusal(RefusalCode.BAD_URL, f"no origin of a site: {failure.detail}")
        known = self._known(name)
        known.users += 1
        try:
            async with known.turn:
                if self._clock() >= known.until:
                    await self._refresh(name, known)
                return self._answer(name, known)
        finally:
            known.users -= 1
            self._forget_oldest()

    def at_hand(self, origin: str) -> RobotsAnswer | None:
        """The rules of an origin if they are known already; for sending them along with a grant."""
        known = self._origins.get(origin)
        if known is None or known.rules is None or self._clock() >= known.until:
            return None
        answer = self._answer(origin, known)
        return answer if isinstance(answer, RobotsAnswer) else None

    def _answer(self, name: str, known: _Origin) -> RobotsAnswer | Refusal:
        left_s = max(known.until - self._clock(), 0.0)
        if known.refusal is not None:
            return attrs.evolve(known.refusal, retry_after_s=left_s)
        return RobotsAnswer(origin=name, rules=known.rules or "", fresh_s=left_s, crawl_delay_s=known.crawl_delay_s)

    async def _refresh(self, name: str, known: _Origin) -> None:
        asked_s: float | None = None
        try:
            async with self._fetches:
                hop = await self._fetch(f"{name}/robots.txt")
            if hop is not None and (hop.status >= 500 or hop.status == _TOO_MANY_REQUESTS):
                asked_s = retry_after(hop.headers, now=self._wall_clock())
                reason = Reason.HTTP_5XX if hop.status >= 500 else Reason.BLOCKED
                raise TaskFailed(reason, f"{hop.url} answered {hop.status}")
        except TaskFailed as failure:
            self._wait(name, known, failure, asked_s)
            return
        body = hop.body if hop is not None and 200 <= hop.status < 300 else b""
        # a hostile file of half a megabyte takes a second to parse: not on the door's loop
        rules, known.crawl_delay_s = await asyncio.to_thread(_read_rules, body)
        known.rules = rules
        known.refusal, known.failures = None, 0
        known.until = self._clock() + FRESH_S
        log.info("robots_read", origin=name, status=hop.status if hop else None, rules_chars=len(rules))

    def _wait(self, name: str, known: _Origin, failure: TaskFailed, asked_s: float | None) -> None:
        known.failures += 1
        growing_s = min(FIRST_RETRY_S * 2.0 ** min(known.failures - 1, 16), LONGEST_RETRY_S)
        known.until = self._clock() + max(growing_s, asked_s or 0.0)
        known.refusal = Refusal(
            RefusalCode.ROBOTS_UNAVAILABLE,
            f"robots.txt of {name} can't be read ({failure}); without it nothing is asked of the site",
            details={"reason": str(failure.reason)},
        )
        log.warning(
            "robots_unavailable", origin=name, reason=failure.reason, why=failure.detail, failures=known.failures
        )

    async def _fetch(self, url: str) -> Hop | None:
        """GET a robots.txt; None where its redirects never end."""
        caps = Caps(max_bytes=2 * MAX_ROBOTS_BYTES, max_decompressed_bytes=MAX_ROBOTS_BYTES, truncate=True)
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(MAX_REDIRECTS + 1):
                    addresses = await self._guard.vet(*host_and_port(url))
                    hop = await get_once(url, addresses, user_agent=self._agent, tls=self._tls, caps=caps)
                    if hop.location is None:
                        return hop
                    url = canonical_or_refused(hop.location)
                return None
        except TimeoutError as fault:
            raise TaskFailed(Reason.TIMEOUT, f"no whole answer within {self._timeout_s:g} s") from fault

    def _known(self, name: str) -> _Origin:
        known = self._origins.setdefault(name, _Origin())
        self._origins.move_to_end(name)
        return known

    def _forget_oldest(self) -> None:
        while len(self._origins) > self._max_origins:
            oldest = next(iter(self._origins))
            if self._origins[oldest].users:
                return  # someone waits for it; the next call tries again
            del self._origins[oldest]


def _read_rules(body: bytes) -> tuple[str, float | None]:
    rules = cut(decode_robots(body))
    return rules, Rules(rules).crawl_delay_s
