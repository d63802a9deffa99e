"""The demo's site, asked by the worker's own fetcher."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from swarm.content.parse import extract
from swarm.web.capture import Capture, TaskFailed
from swarm.web.fetcher import FetchSettings, open_fetcher, trusted_cas
from swarm.wire import RobotsAnswer
from tests.patience import PATIENCE_S
from tests.tied import tied

ROOT = Path(__file__).parent.parent.parent
ALICE = "0x71C7656EC7ab88b098defB751B7401B5f6d8976F"
CAS = trusted_cas()


@attrs.frozen
class Running:
    url: str
    log: Path

    def asked(self) -> list[str]:
        return [json.loads(line)["path"] for line in self.log.read_text().splitlines()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("site") / "requests.jsonl"
    command = [sys.executable, str(ROOT / "scripts" / "site"), "--pages", "5", "--crawl-delay", "2", "--log", str(log)]
    with subprocess.Popen(tied(command), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Running(process.stdout.readline().strip(), log)
        process.terminate()
        assert process.wait(timeout=PATIENCE_S) == 0


async def get(url: str, **limits: float) -> Capture:
    async def no_rules(origin: str) -> RobotsAnswer:
        return RobotsAnswer(origin=origin, rules="", fresh_s=60)

    settings = FetchSettings(allow_private=True, **limits)  # type: ignore[arg-type]
    async with open_fetcher(settings, robots=no_rules, worker=ALICE, tls=CAS) as fetcher:
        with trio.fail_after(PATIENCE_S):
            return await fetcher.get(url)


async def test_an_item_has_a_title_and_a_price(site: Running) -> None:
    capture = await get(f"{site.url}/item/3")
    selectors = {"title": "h1::text", "price": ".price::text", "next": "a[rel=next]::attr(href)"}

    assert extract(capture.body, capture.charset, selectors, base_url=capture.final_url) == [
        {"title": "Item 3", "price": "€ 12.11", "next": f"{site.url}/item/4"}
    ]
    assert site.asked()[-1] == "/item/3"


async def test_the_list_names_every_item_and_one_that_is_gone(site: Running) -> None:
    capture = await get(f"{site.url}/")
    links = extract(capture.body, None, {"url": "::attr(href)"}, base_url=capture.final_url, each="li a")

    assert [link["url"] for link in links] == [f"{site.url}/item/{n}" for n in range(1, 6)] + [f"{site.url}/missing"]
    assert (await get(f"{site.url}/missing")).status == 404


async def test_robots_txt_closes_private_and_asks_for_a_delay(site: Running) -> None:
    assert (await get(f"{site.url}/robots.txt")).body == b"User-agent: *\nDisallow: /private\nCrawl-delay: 2\n"


async def test_a_flaky_page_answers_after_as_many_failures_as_it_is_told(site: Running) -> None:
    statuses = [(await get(f"{site.url}/flaky/2/one")).status for _ in range(4)]

    assert statuses == [503, 503, 200, 200]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/loop", "too_many_redirects"),
        ("/hop/11", "too_many_redirects"),
        ("/challenge", "blocked"),
        ("/status/429?retry_after=5", "blocked"),
        ("/big/200000", "too_large"),
        ("/big/2000000?gzip=1", "too_large"),
        ("/slow/30", "timeout"),
        ("/drip/1", "timeout"),
        ("/cut", "connect"),
        ("/to?url=ftp://example.org/", "address_refused"),
    ],
)
async def test_its_bad_pages_are_bad_in_the_way_that_they_say(site: Running, path: str, reason: str) -> None:
    with pytest.raises(TaskFailed) as failed:
        await get(site.url + path, timeout_s=1, max_bytes=100_000, max_decompressed_bytes=1_000_000)

    assert failed.value.reason == reason


async def test_redirects_that_end_lead_to_an_item(site: Running) -> None:
    assert (await get(f"{site.url}/hop/3")).final_url == f"{site.url}/item/1"
