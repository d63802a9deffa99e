"""Get a page as a guest would: at the address that was checked, where robots.txt lets us, within limits, by name.

One ``Fetcher`` a worker. For each hop of a redirect chain: canonical URL → addresses vetted → robots.txt of its origin
asked → crawl-delay waited for → GET. The rules come from the root (``robots``), since only the root fetches
robots.txt. It knows nothing of tasks, leases and executors beyond the two exceptions that they understand.
"""

from __future__ import annotations

import codecs
import contextlib
import email.message
import itertools
import ssl
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Final

import anyio.to_thread
import attrs
import trio

import swarm
from swarm.content.manifest import KEPT_HEADERS
from swarm.errors import ConfigurationError, DoorRefused, DoorUnreachable
from swarm.model import AGENT, Address, Reason
from swarm.web.blocked import retry_after, why_blocked
from swarm.web.capture import Capture, TaskDeferred, TaskFailed
from swarm.web.guard import Guard, Resolve, resolve_name
from swarm.web.robots import LONG_RULES_CHARS, Rules
from swarm.web.transfer import Caps, Hop, canonical_or_refused, get_once, host_and_port, origin_of
from swarm.wire import RobotsAnswer

#: The door asks the site for at most some ten seconds, and has other work; longer means that it is stuck.
ROBOTS_TIMEOUT_S: Final = 30.0
#: When to ask the door again that didn't say when.
ROBOTS_RETRY_S: Final = 15.0
#: Rules are small and parsed once; a crawl seldom has more origins under way than this.
MAX_ORIGINS: Final = 1_000
#: A header is evidence, not a place to keep things.
MAX_KEPT_HEADER_CHARS: Final = 1_024

_PERMANENT_OF_ORIGIN: Final = frozenset({Reason.DNS, Reason.CONNECT, Reason.TLS, Reason.ADDRESS_REFUSED})

AskRobots = Callable[[str], Awaitable[RobotsAnswer]]


@attrs.frozen(kw_only=True)
class FetchSettings:
    """The limits of one fetch, and who we say we are.

    Args:
        max_bytes: on the wire, redirects included.
        max_decompressed_bytes: of the page.
        max_redirects: hops beyond the first.
        timeout_s: from the first look-up to the last byte; waiting for a crawl-delay isn't counted.
        allow_private: the owner lets tasks reach this machine and all its networks.
        allow_networks: the owner lets tasks reach these networks ("10.1.0.0/16"), beside the public ones.
        contact: where a site's owner can reach ours, a URL or e-mail address; goes into User-Agent.
    """

    max_bytes: int = 16 * 1024 * 1024
    max_decompressed_bytes: int = 64 * 1024 * 1024
    max_redirects: int = 10
    timeout_s: float = 60.0
    allow_private: bool = False
    allow_networks: tuple[str, ...] = ()
    contact: str | None = None


def user_agent(contact: str | None, *, role: str) -> str:
    """Who we say we are: ``task-swarm/0.1.0 (+https://example.org/bot; worker 0x71C7656E)``.

    Raises:
        ConfigurationError: the contact can't stand in a header.
    """
    if contact is not None and not (contact.isascii() and contact.isprintable() and not set(contact) & set("();")):
        raise ConfigurationError(
            f"the contact {contact!r} can't stand in a User-Agent",
            hint="use a URL or an e-mail address, without brackets and semicolons",
        )
    return f"{AGENT}/{swarm.__version__} ({f'+{contact}; ' if contact else ''}{role})"


@contextlib.asynccontextmanager
async def open_fetcher(
    settings: FetchSettings,
    *,
    robots: AskRobots,
    worker: Address,
    resolve: Resolve = resolve_name,
    tls: ssl.SSLContext | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Fetcher]:
    """A fetcher for one worker.

    Args:
        settings: the limits.
        robots: asks the door for the rules of an origin; raises ``DoorRefused`` or ``DoorUnreachable``.
        worker: the worker's address; its beginning goes into User-Agent.
        resolve: how names become addresses.
        tls: checks certificates; by default against the CAs that come with certifi, whatever the environment says.
        clock: Unix seconds, for ``Retry-After`` dates.

    *Resource handling*: it keeps no connection; leaving the block forgets the rules that it learned.
    """
    fetcher = Fetcher(
        settings,
        robots=robots,
        agent=user_agent(settings.contact, role=f"worker {worker[:10]}"),
        guard=Guard(allow_private=settings.allow_private, allow_networks=settings.allow_networks, resolve=resolve),
        tls=tls or trusted_cas(),
        clock=clock,
    )
    yield fetcher


def trusted_cas() -> ssl.SSLContext:
    """Checks certificates against certifi's CAs; no variable of the environment changes that."""
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


@attrs.define(kw_only=True)
class _Origin:
    """What we know of one origin: its rules while they are fresh, and when the next request may leave."""

    turn: trio.Lock = attrs.field(factory=trio.Lock)
    users: int = 0
    rules: Rules | None = None
    crawl_delay_s: float = 0.0
    fresh_until: float = 0.0
    free_at: float = 0.0


class Fetcher:
    """See the module; made by ``open_fetcher``."""

    def __init__(
        self,
        settings: FetchSettings,
        *,
        robots: AskRobots,
        agent: str,
        guard: Guard,
        tls: ssl.SSLContext,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._robots = robots
        self._agent = agent
        self._guard = guard
        self._tls = tls
        self._clock = clock
        self._origins: OrderedDict[str, _Origin] = OrderedDict()

    def learn(self, url: str, rules: str, *, fresh_s: float) -> None:
        """Take the rules that came with a grant, so that the door needn't be asked.

        Args:
            url: any URL of the origin; one that isn't for us teaches nothing, ``get`` says what is wrong with it.
            rules: a robots.txt of our group alone.
            fresh_s: how long they hold, seconds.
        """
        with contextlib.suppress(TaskFailed):
            self._learn(self._origin(origin_of(canonical_or_refused(url))), Rules(rules), None, fresh_s)

    async def get(self, url: str) -> Capture:
        """GET one URL and follow its redirects.

        Returns:
            The answer, whatever its status; a block is the one answer that isn't returned.

        Raises:
            TaskFailed: ``dns connect timeout tls robots address_refused too_large too_many_redirects``, ``blocked``
                for a 429 or a challenge page, ``bad_encoding``.
            TaskDeferred: robots.txt can't be read yet.
        """
        settings = self._settings
        caps = Caps(max_bytes=settings.max_bytes, max_decompressed_bytes=settings.max_decompressed_bytes)
        began = trio.current_time()
        next_url = canonical_or_refused(url)
        with trio.move_on_after(settings.timeout_s) as limit:
            for _ in range(settings.max_redirects + 1):
                hop = await self._hop(next_url, caps, limit)
                if hop.location is None:
                    return self._captured(url, hop, took_s=trio.current_time() - began)
                next_url = canonical_or_refused(hop.location)
            raise TaskFailed(
                Reason.TOO_MANY_REDIRECTS, f"more than {settings.max_redirects} redirects, the next to {next_url[:200]}"
            )
        raise TaskFailed(Reason.TIMEOUT, f"no whole answer within {settings.timeout_s:g} s")

    async def _hop(self, url: str, caps: Caps, limit: trio.CancelScope) -> Hop:
        addresses = await self._guard.vet(*host_and_port(url))
        with self._using(origin_of(url)) as origin:
            with _uncounted(limit):
                rules = await self._rules(origin_of(url), origin)
            if not rules.allowed(url):
                raise TaskFailed(
                    Reason.ROBOTS, f"robots.txt of {origin_of(url)} doesn't let {AGENT} ask for {url[:200]}"
                )
            if not origin.crawl_delay_s:
                return await get_once(url, addresses, user_agent=self._agent, tls=self._tls, caps=caps)
            with _uncounted(limit):
                await origin.turn.acquire()
            try:
                with _uncounted(limit):
                    await trio.sleep_until(origin.free_at)
                return await get_once(url, addresses, user_agent=self._agent, tls=self._tls, caps=caps)
            finally:
                origin.free_at = trio.current_time() + origin.crawl_delay_s
                origin.turn.release()

    async def _rules(self, name: str, origin: _Origin) -> Rules:
        """The rules of an origin; many that want them at once ask the door once."""
        if origin.rules is not None and trio.current_time() < origin.fresh_until:
            return origin.rules
        async with origin.turn:
            if origin.rules is None or trio.current_time() >= origin.fresh_until:
                answer = await self._ask_door(name)
                is_long = len(answer.rules) > LONG_RULES_CHARS
                rules = await anyio.to_thread.run_sync(Rules, answer.rules) if is_long else Rules(answer.rules)
                self._learn(origin, rules, answer.crawl_delay_s, answer.fresh_s)
                return rules
            return origin.rules

    async def _ask_door(self, name: str) -> RobotsAnswer:
        try:
            with trio.fail_after(ROBOTS_TIMEOUT_S):
                return await self._robots(name)
        except DoorRefused as refused:
            reason = refused.details.get("reason")
            if isinstance(reason, str) and reason in _PERMANENT_OF_ORIGIN:
                # the origin itself is out of reach, so that the page would be as well: a failure that counts
                raise TaskFailed(reason, f"robots.txt of {name}: {refused}") from refused
            wait_s = refused.retry_after_s or ROBOTS_RETRY_S
            raise TaskDeferred(f"robots.txt of {name}: {refused}", retry_after_s=wait_s) from refused
        except (DoorUnreachable, trio.TooSlowError) as fault:
            raise TaskDeferred(
                f"the door doesn't tell robots.txt of {name}: {fault}", retry_after_s=ROBOTS_RETRY_S
            ) from fault

    def _learn(self, origin: _Origin, rules: Rules, crawl_delay_s: float | None, fresh_s: float) -> None:
        origin.rules = rules
        origin.crawl_delay_s = crawl_delay_s or rules.crawl_delay_s or 0.0
        origin.fresh_until = trio.current_time() + fresh_s

    def _origin(self, name: str) -> _Origin:
        origin = self._origins.setdefault(name, _Origin())
        self._origins.move_to_end(name)
        self._forget_oldest()
        return origin

    @contextlib.contextmanager
    def _using(self, name: str) -> Iterator[_Origin]:
        """An origin that isn't forgotten meanwhile: a second one of that name wouldn't keep the crawl-delay of both."""
        origin = self._origin(name)
        origin.users += 1
        try:
            yield origin
        finally:
            origin.users -= 1
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forget what was used least recently; never the newest, nor one in use: those are as many as slots."""
        excess = len(self._origins) - MAX_ORIGINS
        if excess <= 0:
            return
        *older, _ = self._origins.items()
        for name in itertools.islice((name for name, origin in older if not origin.users), excess):
            del self._origins[name]

    def _captured(self, url: str, hop: Hop, *, took_s: float) -> Capture:
        why = why_blocked(hop.status, hop.headers, hop.body)
        if why is not None:
            raise TaskFailed(Reason.BLOCKED, why, retry_after_s=retry_after(hop.headers, now=self._clock()))
        return Capture(
            url=url,
            final_url=hop.url,
            status=hop.status,
            headers={
                name: value[:MAX_KEPT_HEADER_CHARS] for name, value in hop.headers.items() if name in KEPT_HEADERS
            },
            body=hop.body,
            charset=_charset(hop.headers),
            took_s=took_s,
        )


@contextlib.contextmanager
def _uncounted(limit: trio.CancelScope) -> Iterator[None]:
    """Time that isn't the site's (asking the door, keeping a crawl-delay) doesn't count against its limit."""
    deadline, limit.deadline = limit.deadline, float("inf")
    began = trio.current_time()
    try:
        yield
    finally:
        limit.deadline = deadline + trio.current_time() - began


def _charset(headers: Mapping[str, str]) -> str | None:
    """The charset that Content-Type names, where Python knows it."""
    message = email.message.Message()
    message["content-type"] = headers.get("content-type", "")
    charset = message.get_content_charset()
    if charset is None:
        return None
    try:
        b"".decode(charset)  # tells text encodings from the likes of base64
        return codecs.lookup(charset).name
    except (LookupError, ValueError):
        return None
