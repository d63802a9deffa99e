from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import trio

from swarm.content.manifest import ContentRef, Manifest, UrlOutcome, decode_manifest, encode_manifest
from swarm.executors.base import Capture, Execution, Executor, TaskDeferred, TaskFailed, Tools
from swarm.executors.fetch import Fetch
from swarm.executors.noop import Noop
from swarm.executors.registry import kinds, load_executors
from swarm.executors.scrape import Scrape
from swarm.model import is_retryable
from swarm.web.fetcher import FetchSettings, open_fetcher
from swarm.wire import RobotsAnswer, TaskBody
from tests.patience import PATIENCE_S
from tests.sites import Page, open_site, redirect, reply

ALICE = "0x71C7656EC7ab88b098defB751B7401B5f6d8976F"
TASK_ID = "0192d3a0-0000-7000-8000-000000000001"
LIMIT_S = PATIENCE_S


class Store:
    """Keeps contents by a text of a CID's length; the real blocks are another room's."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    async def put(self, content: bytes) -> ContentRef:
        cid = "bafk" + hashlib.sha256(content).hexdigest()[:56]
        self.contents[cid] = content
        return ContentRef(cid=cid, size_bytes=len(content))

    def read(self, ref: ContentRef | None) -> bytes:
        assert ref is not None
        assert len(self.contents[ref.cid]) == ref.size_bytes
        return self.contents[ref.cid]

    def records(self, ref: ContentRef | None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read(ref).splitlines()]


def task(kind: str, *urls: str, spec: Mapping[str, Any] | None = None) -> TaskBody:
    return TaskBody(id=TASK_ID, job=TASK_ID, kind=kind, urls=urls, spec=dict(spec or {}))


async def run(
    executor: Executor, pages: Mapping[str, Page], paths: list[str], spec: Mapping[str, Any] | None = None
) -> tuple[Execution, Store, list[str]]:
    """Run a task against a real site; gives the execution, what was stored, and what was asked of the site."""
    store = Store()
    with open_site(pages) as site:
        async with open_fetcher(FetchSettings(allow_private=True), robots=no_rules, worker=ALICE) as fetcher:
            tools = Tools(fetch=fetcher.get, store=store.put, worker=ALICE)
            with trio.fail_after(PATIENCE_S):
                urls = [site.url + path for path in paths]
                execution = await executor.run(task("any", *urls, spec=spec), tools)
        return execution, store, site.paths


async def failing(
    executor: Executor, pages: Mapping[str, Page], paths: list[str], spec: Mapping[str, Any] | None = None
) -> TaskFailed:
    with pytest.raises(TaskFailed) as failed:
        await run(executor, pages, paths, spec)
    return failed.value


async def no_rules(origin: str) -> RobotsAnswer:
    return RobotsAnswer(origin=origin, rules="", fresh_s=3600)


async def no_fetch(url: str) -> Capture:
    raise AssertionError("the network was touched")


def offline(store: Store | None = None) -> Tools:
    return Tools(fetch=no_fetch, store=(store or Store()).put, worker=ALICE)


def page(body: str, **headers: str) -> bytes:
    return reply(body.encode(), headers={"Content-Type": "text/html; charset=utf-8"} | headers)


ITEM = page('<h1>A thing</h1><p class="price">€ 9.50</p><ul><li>red</li><li>blue</li></ul>')

# ── fetch ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_fetch_stores_the_body_and_the_facts_of_the_answer() -> None:
    execution, store, _ = await run(Fetch(), {"/a": redirect("/b"), "/b": ITEM}, ["/a"])

    (outcome,) = execution.outcomes
    assert outcome.reason is None
    assert outcome.status == 200
    assert outcome.url.endswith("/a")
    assert outcome.final_url is not None
    assert outcome.final_url.endswith("/b")
    assert outcome.headers == {"content-type": "text/html; charset=utf-8"}
    assert b"A thing" in store.read(outcome.body)
    assert outcome.records is None


@pytest.mark.parametrize("status", [201, 404, 410, 500, 503])
async def test_fetch_takes_any_answer_as_data(status: int) -> None:
    execution, store, _ = await run(Fetch(), {"/": reply(b"as it is", status)}, ["/"])

    assert (execution.outcomes[0].status, execution.outcomes[0].reason) == (status, None)
    assert store.read(execution.outcomes[0].body) == b"as it is"


async def test_fetch_reports_a_403_as_a_block_unless_it_is_asked_for() -> None:
    pages = {"/": reply(b"no", 403, {"Retry-After": "30"})}

    failure = await failing(Fetch(), pages, ["/"])
    assert (failure.reason, failure.retry_after_s) == ("blocked", 30)
    execution, _, _ = await run(Fetch(), pages, ["/"], {"ok_status": [200, 403]})
    assert execution.outcomes[0].status == 403


async def test_fetch_never_takes_a_429_or_a_challenge_as_data() -> None:
    for answer in (reply(status=429), reply(status=403, headers={"cf-mitigated": "challenge"})):
        failure = await failing(Fetch(), {"/": answer}, ["/"], {"ok_status": [403, 429]})
        assert failure.reason == "blocked"


# ── what a status means ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "reason", "retryable"),
    [
        (400, "http_4xx", False),
        (401, "http_4xx", False),
        (403, "blocked", True),
        (404, "http_4xx", False),
        (408, "http_408", True),
        (410, "http_4xx", False),
        (429, "blocked", True),
        (500, "http_5xx", True),
        (503, "http_5xx", True),
        (304, "unexpected_status", False),
    ],
)
async def test_scrape_fails_with_the_reason_of_the_status(status: int, reason: str, retryable: bool) -> None:
    answer = reply(status=status, headers={"Retry-After": "7"})
    failure = await failing(Scrape(), {"/": answer}, ["/"], {"extract": {"a": "h1::text"}})

    assert failure.reason == reason
    assert failure.retry_after_s == 7
    assert is_retryable(failure.reason, failure.retryable) is retryable


# ── scrape ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_scrape_stores_a_record_beside_its_page() -> None:
    spec = {"extract": {"title": "h1::text", "price": ".price::text", "none": ".none::text"}}
    execution, store, _ = await run(Scrape(), {"/": ITEM}, ["/"], spec)

    (outcome,) = execution.outcomes
    assert store.records(outcome.records) == [{"title": "A thing", "price": "€ 9.50", "none": None}]
    assert outcome.record_count == 1
    assert b"<h1>" in store.read(outcome.body)


async def test_scrape_makes_a_record_of_each_element() -> None:
    execution, store, _ = await run(Scrape(), {"/": ITEM}, ["/"], {"extract": {"colour": "::text"}, "each": "li"})

    assert store.records(execution.outcomes[0].records) == [{"colour": "red"}, {"colour": "blue"}]
    assert execution.outcomes[0].record_count == 2


async def test_scrape_of_the_same_page_gives_the_same_bytes() -> None:
    spec = {"extract": {"title": "h1::text", "price": "//p[@class='price']/text()"}}
    results = []
    for _ in range(2):
        execution, store, _ = await run(Scrape(), {"/": ITEM}, ["/"], spec)
        results.append(store.read(execution.outcomes[0].records))

    assert results[0] == results[1]
    assert results[0] == '{"title":"A thing","price":"€ 9.50"}\n'.encode()


async def test_a_required_field_that_is_not_found_fails_for_good() -> None:
    spec = {"extract": {"title": "h1::text", "sku": ".sku::text"}, "require": ["title", "sku"]}
    failure = await failing(Scrape(), {"/": ITEM}, ["/"], spec)

    assert (failure.reason, failure.detail) == ("selector_missing", "nothing found for sku")
    assert not is_retryable(failure.reason)


async def test_a_required_field_of_no_element_at_all_is_missing() -> None:
    spec = {"extract": {"colour": "::text"}, "each": "li.none", "require": ["colour"]}

    assert (await failing(Scrape(), {"/": ITEM}, ["/"], spec)).reason == "selector_missing"


async def test_another_status_is_data_where_ok_status_says_so() -> None:
    answer = reply(b"<h1>Gone</h1>", 410)
    execution, store, _ = await run(
        Scrape(), {"/": answer}, ["/"], {"extract": {"title": "h1::text"}, "ok_status": [200, 410]}
    )

    assert store.records(execution.outcomes[0].records) == [{"title": "Gone"}]


# ── several URLs ──────────────────────────────────────────────────────────────────────────────────────────────────

TITLE = {"extract": {"title": "h1::text"}}


async def test_a_task_completes_if_any_url_gave_data_and_each_has_its_own_outcome() -> None:
    pages = {"/good": ITEM, "/bad": reply(b"oops", 500)}
    execution, _, _ = await run(Scrape(), pages, ["/gone", "/good", "/bad"], TITLE)

    assert [(outcome.status, outcome.reason) for outcome in execution.outcomes] == [
        (404, "http_4xx"),
        (200, None),
        (500, "http_5xx"),
    ]
    assert [outcome.records is not None for outcome in execution.outcomes] == [False, True, False]


async def test_a_task_of_which_no_url_gave_data_fails_with_the_first_reason() -> None:
    failure = await failing(Scrape(), {"/bad": reply(status=500)}, ["/gone", "/bad"], TITLE)

    assert failure.reason == "http_4xx"


async def test_after_a_block_the_host_is_asked_for_nothing_more() -> None:
    pages = {"/1": ITEM, "/2": reply(status=429), "/3": ITEM}
    execution, _, asked = await run(Scrape(), pages, ["/1", "/2", "/3"], TITLE)

    assert asked == ["/1", "/2"]
    assert [outcome.reason for outcome in execution.outcomes] == [None, "blocked", "blocked"]


async def test_a_deferral_gives_the_task_back_while_nothing_was_got() -> None:
    async def deferring(url: str) -> Capture:
        raise TaskDeferred("robots.txt answers 503", retry_after_s=60)

    tools = Tools(fetch=deferring, store=Store().put, worker=ALICE)
    with pytest.raises(TaskDeferred):
        await Fetch().run(task("fetch", "http://shop.example/"), tools)


async def test_a_deferral_after_data_was_got_is_that_urls_own_outcome() -> None:
    async def second_deferred(url: str) -> Capture:
        if url.endswith("2"):
            raise TaskDeferred("robots.txt answers 503", retry_after_s=60)
        return Capture(url=url, final_url=url, status=200, headers={}, body=b"x", charset=None, took_s=0.1)

    tools = Tools(fetch=second_deferred, store=Store().put, worker=ALICE)
    execution = await Fetch().run(task("fetch", "http://shop.example/1", "http://shop.example/2"), tools)

    assert [outcome.reason for outcome in execution.outcomes] == [None, "robots"]


async def test_a_manifest_of_a_hundred_urls_can_be_written_and_read() -> None:
    paths = [f"/{number}" for number in range(100)]
    execution, _, _ = await run(Fetch(), {}, paths)
    manifest = Manifest(task=TASK_ID, worker=ALICE, kind="fetch", outcomes=execution.outcomes)

    assert decode_manifest(encode_manifest(manifest)) == manifest


# ── specs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("executor", "spec", "named"),
    [
        (Fetch(), {"ok_statuses": [200]}, "ok_statuses"),
        (Fetch(), {"ok_status": "200"}, "ok_status"),
        (Fetch(), {"ok_status": [99]}, "ok_status"),
        (Fetch(), {"ok_status": []}, "ok_status"),
        (Scrape(), {}, "extract"),
        (Scrape(), {"extract": {}}, "extract"),
        (Scrape(), {"extract": {"a": 1}}, "extract"),
        (Scrape(), {"extract": {"a": "h1"}, "each": ""}, "each"),
        (Scrape(), {"extract": {"a": "h1"}, "require": ["b"]}, "b"),
        (Scrape(), {"extract": {"a": "h1[["}}, "a"),
        (Scrape(), {"extract": {"a": "//h1["}}, "a"),
        (Scrape(), {"extract": {"a": "h1"}, "each": "li["}, "each"),
        (Noop(), {"sleep": 1}, "sleep"),
        (Noop(), {"sleep_s": -1}, "sleep_s"),
        (Noop(), {"fail": "Not A Reason"}, "fail"),
        (Noop(), {"size": 10**12}, "size"),
    ],
)
async def test_a_spec_that_does_not_fit_fails_for_good_and_names_the_field(
    executor: Executor, spec: dict[str, Any], named: str
) -> None:
    with pytest.raises(TaskFailed) as failed:
        await executor.run(task("any", "http://shop.example/", spec=spec), offline())

    assert failed.value.reason == "bad_spec"
    assert named in failed.value.detail
    assert not is_retryable(failed.value.reason)


# ── noop ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_noop_gives_an_outcome_for_each_url_and_touches_no_network() -> None:
    execution = await Noop().run(task("noop", "http://a.example/1", "http://a.example/2"), offline())

    assert execution.outcomes == (UrlOutcome(url="http://a.example/1"), UrlOutcome(url="http://a.example/2"))


async def test_noop_takes_as_long_as_asked(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    await Noop().run(task("noop", "http://a.example/", spec={"sleep_s": 30}), offline())

    assert trio.current_time() - began == pytest.approx(30)


async def test_noop_fails_as_asked() -> None:
    with pytest.raises(TaskFailed) as failed:
        await Noop().run(task("noop", "http://a.example/", spec={"fail": "timeout"}), offline())

    assert failed.value.reason == "timeout"


async def test_noop_stores_what_is_asked_the_same_each_time() -> None:
    store = Store()
    runs = [
        await Noop().run(task("noop", "http://a.example/", "http://a.example/2", spec={"size": 1000}), offline(store))
        for _ in range(2)
    ]

    assert runs[0] == runs[1]
    assert len(store.contents) == 2
    assert all(len(content) == 1000 for content in store.contents.values())


# ── registry ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Echo:
    version = "7"

    async def run(self, task: TaskBody, tools: Tools) -> Execution:
        return Execution(outcomes=tuple(UrlOutcome(url=url) for url in task.urls))


class Nameless:
    version = ""


def plugin(kind: str, name: str, module: str = __name__) -> EntryPoint:
    return EntryPoint(kind, f"{module}:{name}", "swarm.executors")


def test_the_built_in_kinds_are_there_with_their_versions() -> None:
    found = kinds()

    assert found.keys() >= {"fetch", "scrape", "noop"}
    assert all(found.values())


def test_the_built_in_kinds_need_no_installed_distribution() -> None:
    assert set(load_executors(plugins=[])) == {"fetch", "noop", "scrape"}


def test_a_plugin_adds_a_kind() -> None:
    executors = load_executors(plugins=[plugin("echo", "Echo")])

    assert executors.kinds()["echo"] == "7"
    assert isinstance(executors["echo"], Echo)
    assert executors["echo"] is executors["echo"]


def test_an_executor_of_ones_own_wins() -> None:
    mine = Echo()
    executors = load_executors({"fetch": mine, "crawl": mine}, plugins=[])

    assert executors["fetch"] is mine
    assert executors.kinds()["crawl"] == "7"


@pytest.mark.parametrize(
    "broken",
    [
        plugin("broken", "Echo", "no_such_module"),
        plugin("broken", "no_such_class"),
        plugin("broken", "Nameless"),
        plugin("broken", "LIMIT_S"),
        plugin("Not A Kind", "Echo"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_left_out_and_the_others_work(broken: EntryPoint) -> None:
    executors = load_executors(plugins=[broken, plugin("echo", "Echo")])

    assert set(executors.kinds()) == {"echo", "fetch", "noop", "scrape"}
    assert executors.get("broken") is None
    assert set(executors) == {"echo", "fetch", "noop", "scrape"}


def test_a_plugin_cannot_take_the_name_of_a_built_in_kind() -> None:
    executors = load_executors(plugins=[plugin("fetch", "Echo")])

    assert isinstance(executors["fetch"], Fetch)


def test_an_unknown_kind_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        load_executors(plugins=[])["teleport"]


def test_no_parser_is_loaded_until_something_is_scraped() -> None:
    import subprocess
    import sys

    code = "import sys; from swarm.executors.registry import kinds; kinds(); print('parsel' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)

    assert said.stdout.strip() == "False"
