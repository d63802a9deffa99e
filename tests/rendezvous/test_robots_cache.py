from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rendezvous.robots import RobotsCache
from swarm.model import Refusal, RefusalCode
from swarm.web.fetcher import trusted_cas
from swarm.web.robots import MAX_ROBOTS_BYTES, Rules
from swarm.wire import RobotsAnswer
from tests.patience import PATIENCE_S
from tests.sites import Asked, Page, Site, head, open_site, redirect, reply

CAS = trusted_cas()
DAY_S = 86_400
RULES = b"User-agent: *\nDisallow: /private\nCrawl-delay: 2\n\nUser-agent: otherbot\nDisallow: /\n"


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def cache(clock: Clock | None = None, **options: Any) -> RobotsCache:
    options = {"allow_private": True, "agent": "task-swarm/test (root)", "tls": CAS} | options
    return RobotsCache(clock=clock or Clock(), **options)


async def ask(robots: RobotsCache, origin: str) -> RobotsAnswer | Refusal:
    async with asyncio.timeout(PATIENCE_S):
        return await robots.rules(origin)


async def rules_of(robots: RobotsCache, origin: str) -> RobotsAnswer:
    answer = await ask(robots, origin)
    assert isinstance(answer, RobotsAnswer), answer
    return answer


async def refusal_of(robots: RobotsCache, origin: str) -> Refusal:
    answer = await ask(robots, origin)
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.fixture
def pages() -> dict[str, Page]:
    return {"/robots.txt": reply(RULES)}


@pytest.fixture
def site(pages: dict[str, Page]) -> Iterator[Site]:
    with open_site(pages) as running:
        yield running


async def test_a_worker_gets_the_group_of_our_agent_and_its_crawl_delay(site: Site) -> None:
    answer = await rules_of(cache(), site.url)

    assert answer == RobotsAnswer(
        origin=site.url,
        rules="User-agent: task-swarm\nDisallow: /private\nCrawl-delay: 2\n",
        fresh_s=DAY_S,
        crawl_delay_s=2,
    )
    assert site.paths == ["/robots.txt"]
    assert site.asked[0].headers["user-agent"] == "task-swarm/test (root)"


async def test_the_file_is_fetched_once_a_day(site: Site) -> None:
    clock = Clock()
    robots = cache(clock)

    await rules_of(robots, site.url)
    clock.now += DAY_S - 10
    assert (await rules_of(robots, site.url)).fresh_s == 10
    assert len(site.asked) == 1
    clock.now += 10
    assert (await rules_of(robots, site.url)).fresh_s == DAY_S
    assert len(site.asked) == 2


async def test_many_that_ask_at_once_cause_one_fetch(site: Site) -> None:
    robots = cache()

    answers = await asyncio.gather(*(rules_of(robots, site.url) for _ in range(50)))

    assert len({answer.rules for answer in answers}) == 1
    assert len(site.asked) == 1


async def test_one_who_gives_up_leaves_the_fetch_to_the_next(site: Site, pages: dict[str, Page]) -> None:
    began, release = threading.Event(), threading.Event()

    def slow(asked: Asked) -> bytes:
        began.set()
        release.wait(PATIENCE_S)
        return reply(RULES)

    pages["/robots.txt"] = slow
    robots = cache()
    first = asyncio.create_task(robots.rules(site.url))
    await asyncio.to_thread(began.wait, PATIENCE_S)
    second = asyncio.create_task(rules_of(robots, site.url))
    first.cancel()
    release.set()

    assert (await second).crawl_delay_s == 2
    assert first.cancelled() or first.cancelling()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
async def test_a_4xx_means_that_there_are_no_rules(site: Site, pages: dict[str, Page], status: int) -> None:
    pages["/robots.txt"] = reply(b"User-agent: *\nDisallow: /\n", status)

    answer = await rules_of(cache(), site.url)

    assert (answer.rules, answer.fresh_s) == ("", DAY_S)


@pytest.mark.parametrize(("status", "reason"), [(500, "http_5xx"), (503, "http_5xx"), (429, "blocked")])
async def test_a_5xx_or_429_means_wait(site: Site, pages: dict[str, Page], status: int, reason: str) -> None:
    pages["/robots.txt"] = reply(status=status)

    refusal = await refusal_of(cache(), site.url)

    assert refusal.code is RefusalCode.ROBOTS_UNAVAILABLE
    assert refusal.retry_after_s == 60
    assert refusal.details == {"reason": reason}
    assert str(status) in refusal.message


async def test_the_wait_grows_up_to_an_hour_and_a_success_ends_it(site: Site, pages: dict[str, Page]) -> None:
    pages["/robots.txt"] = reply(status=503)
    clock = Clock()
    robots = cache(clock)
    waits = []
    for _ in range(9):
        refusal = await refusal_of(robots, site.url)
        waits.append(refusal.retry_after_s)
        clock.now += refusal.retry_after_s or 0
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]

    pages["/robots.txt"] = reply(RULES)
    assert (await rules_of(robots, site.url)).crawl_delay_s == 2
    pages["/robots.txt"] = reply(status=503)
    clock.now += DAY_S
    assert (await refusal_of(robots, site.url)).retry_after_s == 60


async def test_while_it_waits_the_site_is_left_alone(site: Site, pages: dict[str, Page]) -> None:
    pages["/robots.txt"] = reply(status=503)
    clock = Clock()
    robots = cache(clock)

    await refusal_of(robots, site.url)
    clock.now += 45
    assert (await refusal_of(robots, site.url)).retry_after_s == 15
    assert len(site.asked) == 1


async def test_a_longer_retry_after_of_the_site_is_honoured(site: Site, pages: dict[str, Page]) -> None:
    pages["/robots.txt"] = reply(status=503, headers={"Retry-After": "7200"})

    assert (await refusal_of(cache(), site.url)).retry_after_s == 7200


async def test_a_site_that_is_slow_means_wait(site: Site, pages: dict[str, Page]) -> None:
    release = threading.Event()

    def silent(asked: Asked) -> bytes:
        release.wait(PATIENCE_S)
        return reply()

    pages["/robots.txt"] = silent
    refusal = await refusal_of(cache(timeout_s=0.1), site.url)
    release.set()

    assert refusal.details == {"reason": "timeout"}


async def test_a_site_that_is_down_is_told_from_one_that_is_slow() -> None:
    with open_site({}) as gone:
        pass

    assert (await refusal_of(cache(), gone.url)).details == {"reason": "connect"}


async def test_a_private_origin_is_refused_without_being_asked(site: Site) -> None:
    refusal = await refusal_of(cache(allow_private=False), site.url)

    assert refusal.details == {"reason": "address_refused"}
    assert site.asked == []


async def test_a_redirect_to_a_private_address_is_refused() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return {"shop.example": ["127.0.0.1"], "evil.example": ["169.254.169.254"]}[host]

    with open_site({"/robots.txt": redirect("http://evil.example/robots.txt")}) as site:
        robots = cache(allow_private=False, allow_networks=("127.0.0.0/8",), resolve=resolve)
        refusal = await refusal_of(robots, f"http://shop.example:{site.port}")

    assert refusal.details == {"reason": "address_refused"}
    assert "metadata" in refusal.message


async def test_five_redirects_are_followed_and_the_rules_are_the_first_origins() -> None:
    pages: dict[str, Page] = {f"/{n}": redirect(f"/{n + 1}") for n in range(1, 5)}
    with open_site(pages | {"/robots.txt": redirect("/1"), "/5": reply(RULES)}) as site:
        answer = await rules_of(cache(), site.url)

    assert answer.origin == site.url
    assert answer.crawl_delay_s == 2


async def test_redirects_without_end_mean_that_there_are_no_rules(site: Site, pages: dict[str, Page]) -> None:
    pages["/robots.txt"] = redirect("/robots.txt")

    assert (await rules_of(cache(), site.url)).rules == ""
    assert len(site.asked) == 6


async def test_a_huge_file_is_read_up_to_the_cap(site: Site, pages: dict[str, Page]) -> None:
    def endless(asked: Asked) -> Iterator[bytes]:
        yield head(200, {"Content-Type": "text/plain"})
        yield b"User-agent: *\nDisallow: /private\n"
        while True:
            yield b"Disallow: /abcdefgh\n" * 1_000

    pages["/robots.txt"] = endless
    answer = await rules_of(cache(), site.url)

    assert len(answer.rules) <= MAX_ROBOTS_BYTES + 100
    assert not Rules(answer.rules).allowed(f"{site.url}/private")


async def test_a_declared_length_over_the_cap_is_read_up_to_it_too(site: Site, pages: dict[str, Page]) -> None:
    pages["/robots.txt"] = reply(RULES + b"# long\n" * 1_000_000)

    assert (await rules_of(cache(), site.url)).crawl_delay_s == 2


async def test_a_compressed_bomb_is_read_up_to_the_cap(site: Site, pages: dict[str, Page]) -> None:
    packed = gzip.compress(RULES + b"# long\n" * 10_000_000)
    pages["/robots.txt"] = reply(packed, headers={"Content-Encoding": "gzip"})

    assert (await rules_of(cache(), site.url)).crawl_delay_s == 2


async def test_the_least_recently_asked_origin_is_forgotten(pages: dict[str, Page]) -> None:
    robots = cache(max_origins=2)
    with open_site(pages) as one, open_site(pages) as two, open_site(pages) as three:
        for site in (one, two, one, three, one, two):
            await rules_of(robots, site.url)

    assert [len(site.asked) for site in (one, two, three)] == [1, 2, 1]


async def test_rules_at_hand_cost_no_fetch(site: Site) -> None:
    clock = Clock()
    robots = cache(clock)
    assert robots.at_hand(site.url) is None

    answer = await rules_of(robots, site.url)
    assert robots.at_hand(site.url) == answer
    clock.now += DAY_S
    assert robots.at_hand(site.url) is None
    assert len(site.asked) == 1


@pytest.mark.parametrize(
    "origin", ["", "shop.example", "ftp://shop.example", "http://", "http://user@shop.example", "http://x:99999", "\0"]
)
async def test_what_is_no_origin_is_a_bad_url(origin: str) -> None:
    assert (await refusal_of(cache(), origin)).code is RefusalCode.BAD_URL


async def test_other_spellings_of_an_origin_are_one(site: Site) -> None:
    robots = cache()
    for spelling in (site.url, f"{site.url}/", f"HTTP://127.0.0.1:{site.port}/some/page?x#y"):
        assert (await rules_of(robots, spelling)).origin == site.url

    assert len(site.asked) == 1


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(answer=st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(reply)))
async def test_no_bytes_break_the_cache(answer: bytes) -> None:
    with open_site({"/robots.txt": answer}) as site:
        said = await ask(cache(), site.url)

    assert isinstance(said, RobotsAnswer) or said.code is RefusalCode.ROBOTS_UNAVAILABLE
