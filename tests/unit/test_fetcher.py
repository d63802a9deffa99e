from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import swarm
from swarm.errors import ConfigurationError, DoorRefused, DoorUnreachable
from swarm.model import Reason
from swarm.web.capture import Capture, TaskDeferred, TaskFailed
from swarm.web.fetcher import Fetcher, FetchSettings, open_fetcher, trusted_cas, user_agent
from swarm.wire import RobotsAnswer
from tests.patience import PATIENCE_S
from tests.sites import Asked, certificate, head, open_site, redirect, reply

ALICE = "0x71C7656EC7ab88b098defB751B7401B5f6d8976F"
CAS = trusted_cas()  # reading them takes longer than most tests here


async def no_rules(origin: str) -> RobotsAnswer:
    return RobotsAnswer(origin=origin, rules="", fresh_s=3600)


def rules(text: str, *, fresh_s: float = 3600) -> Callable[[str], Any]:
    """A door that gives these rules for every origin, and notes what it was asked."""

    async def robots(origin: str) -> RobotsAnswer:
        asked.append(origin)
        await trio.lowlevel.checkpoint()
        return RobotsAnswer(origin=origin, rules=text, fresh_s=fresh_s)

    asked: list[str] = []
    robots.asked = asked  # type: ignore[attr-defined]
    return robots


@asynccontextmanager
async def fetching(robots: Any = no_rules, **options: Any) -> AsyncIterator[Fetcher]:
    names = {field.name for field in attrs.fields(FetchSettings)}
    limits = {"allow_private": True} | {name: options.pop(name) for name in names & options.keys()}
    options.setdefault("tls", CAS)
    async with open_fetcher(FetchSettings(**limits), robots=robots, worker=ALICE, **options) as fetcher:
        with trio.fail_after(PATIENCE_S):
            yield fetcher


async def get(url: str, robots: Any = no_rules, **options: Any) -> Capture:
    async with fetching(robots, **options) as fetcher:
        return await fetcher.get(url)


async def failing(url: str, robots: Any = no_rules, **options: Any) -> TaskFailed:
    with pytest.raises(TaskFailed) as failed:
        await get(url, robots, **options)
    return failed.value


# ── a page ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_page_is_captured_with_its_facts() -> None:
    headers = {"Content-Type": 'text/html; charset="ISO-8859-1"', "ETag": '"1"', "Set-Cookie": "id=7", "X-Other": "x"}
    with open_site({"/a?b=1": reply("é".encode("latin-1"), headers=headers)}) as site:
        capture = await get(f"{site.url}/a?b=1#part")

    assert (capture.status, capture.body, capture.charset) == (200, b"\xe9", "iso8859-1")
    assert capture.final_url == f"{site.url}/a?b=1"
    assert capture.url == f"{site.url}/a?b=1#part"
    assert capture.headers == {"content-type": 'text/html; charset="ISO-8859-1"', "etag": '"1"'}
    assert 0 < capture.took_s < PATIENCE_S


async def test_we_say_who_we_are_and_nothing_else() -> None:
    with open_site({"/": reply()}) as site:
        await get(f"{site.url}/", contact="https://example.org/bot")

    assert site.asked[0].headers == {
        "host": f"127.0.0.1:{site.port}",
        "user-agent": f"task-swarm/{swarm.__version__} (+https://example.org/bot; worker 0x71C7656E)",
        "accept": "*/*",
        "accept-encoding": "gzip, deflate",
        "connection": "close",
    }


def test_a_contact_that_would_forge_a_header_is_refused() -> None:
    for contact in ("a\r\nX: y", "a)b", "ä@example.org", "a; b"):
        with pytest.raises(ConfigurationError):
            user_agent(contact, role="root")


async def test_a_cookie_goes_nowhere() -> None:
    pages = {"/": reply(headers={"Set-Cookie": "id=7; Path=/"}), "/to": redirect("/")}
    with open_site(pages) as site:
        async with fetching() as fetcher:
            for path in ("/", "/", "/to"):
                await fetcher.get(site.url + path)

    assert all("cookie" not in asked.headers for asked in site.asked)


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with open_site({"/": reply(b"direct")}) as site:
        assert (await get(f"{site.url}/")).body == b"direct"


@pytest.mark.parametrize("status", [200, 204, 404, 410, 403, 500, 503])
async def test_any_status_but_a_block_is_an_answer(status: int) -> None:
    with open_site({"/": reply(status=status)}) as site:
        assert (await get(f"{site.url}/")).status == status


async def test_a_page_without_a_length_ends_with_the_connection() -> None:
    with open_site({"/": [head(200, {}), b"one ", b"two"]}) as site:
        assert (await get(f"{site.url}/")).body == b"one two"


async def test_a_chunked_page_is_put_together() -> None:
    pages = {"/": [head(200, {"Transfer-Encoding": "chunked"}), b"4\r\none \r\n", b"3;x=y\r\ntwo\r\n0\r\n\r\n"]}
    with open_site(pages) as site:
        assert (await get(f"{site.url}/")).body == b"one two"


# ── what goes wrong on the way ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        head(200, {"Content-Length": "100"}) + b"half",
        head(200, {"Transfer-Encoding": "chunked"}) + b"5\r\nab",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        reply(gzip.compress(b"x" * 1000)[:-9], headers={"Content-Encoding": "gzip"}),
    ],
    ids=["nothing", "half a head", "half a body", "half a chunk", "not http", "another protocol", "half a gzip"],
)
async def test_an_answer_that_breaks_off_fails_with_connect(answer: bytes) -> None:
    with open_site({"/": answer}) as site:
        assert (await failing(f"{site.url}/")).reason == "connect"


async def test_a_site_that_is_down_fails_with_connect() -> None:
    with open_site({}) as site:
        pass

    assert (await failing(f"{site.url}/")).reason == "connect"


async def test_a_site_that_says_nothing_fails_with_timeout() -> None:
    release = threading.Event()

    def silent(asked: Asked) -> Iterator[bytes]:
        release.wait(PATIENCE_S)
        yield b""

    with open_site({"/": silent}) as site:
        failure = await failing(f"{site.url}/", timeout_s=0.2)
        release.set()

    assert failure.reason == "timeout"
    assert failure.detail == "no whole answer within 0.2 s"


async def test_a_site_that_drips_for_ever_fails_with_timeout() -> None:
    release = threading.Event()

    def drip(asked: Asked) -> Iterator[bytes]:
        yield head(200, {})
        while not release.wait(0.02):
            yield b"x"

    with open_site({"/": drip}) as site:
        failure = await failing(f"{site.url}/", timeout_s=0.3)
        release.set()

    assert failure.reason == "timeout"


async def test_interim_answers_without_end_are_stopped_at_the_cap() -> None:
    def interim(asked: Asked) -> Iterator[bytes]:
        while True:
            yield b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100

    with open_site({"/": interim}) as site:
        failure = await failing(f"{site.url}/", timeout_s=PATIENCE_S, max_bytes=1_000_000)

    assert failure.reason == "too_large"


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_declared_length_over_the_cap_is_refused_unread() -> None:
    with open_site({"/": [head(200, {"Content-Length": "5000000000"}), b"x"]}) as site:
        failure = await failing(f"{site.url}/", max_bytes=100_000)

    assert (failure.reason, failure.detail) == ("too_large", "Content-Length is over 100000 bytes")


async def test_an_endless_page_is_stopped_at_the_cap() -> None:
    sent = 0

    def endless(asked: Asked) -> Iterator[bytes]:
        nonlocal sent
        yield head(200, {})
        while True:
            yield b"x" * 65536
            sent += 65536

    with open_site({"/": endless}) as site:
        failure = await failing(f"{site.url}/", max_bytes=1_000_000)

    assert failure.reason == "too_large"
    assert sent < 50_000_000  # what sockets buffer, and no more


async def test_chunk_framing_counts_on_the_wire() -> None:
    def padded(asked: Asked) -> Iterator[bytes]:
        yield head(200, {"Transfer-Encoding": "chunked"})
        while True:
            yield b"1;" + b"p" * 5_000 + b"\r\nx\r\n"

    with open_site({"/": padded}) as site:
        assert (await failing(f"{site.url}/", max_bytes=200_000)).reason == "too_large"


async def test_a_gzip_bomb_is_stopped_while_it_inflates() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    packed = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(256)) + bomb.flush()
    with open_site({"/": reply(packed, headers={"Content-Encoding": "gzip"})}) as site:
        failure = await failing(f"{site.url}/", max_bytes=1 << 20, max_decompressed_bytes=2 << 20)

    assert len(packed) < 1 << 20
    assert failure.reason == "too_large"
    assert "decompressed" in failure.detail


async def test_a_bomb_in_a_bomb_is_stopped() -> None:
    packed = gzip.compress(gzip.compress(bytes(64 << 20)))
    with open_site({"/": reply(packed, headers={"Content-Encoding": "gzip, gzip"})}) as site:
        assert (await failing(f"{site.url}/", max_decompressed_bytes=1 << 20)).reason == "too_large"


@pytest.mark.parametrize(
    "header",
    ["X-Long: " + "x" * 300_000, "\r\n".join(f"X-{n}: {'y' * 100}" for n in range(5_000))],
    ids=["one long", "many"],
)
async def test_headers_over_the_cap_fail_with_too_large(header: str) -> None:
    with open_site({"/": f"HTTP/1.1 200 OK\r\n{header}\r\n\r\n".encode()}) as site:
        assert (await failing(f"{site.url}/")).reason == "too_large"


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data, wbits=-15)),
        ("gzip", lambda data: gzip.compress(data[:10]) + gzip.compress(data[10:])),
        ("gzip", lambda data: gzip.compress(data) + bytes(16)),
        ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
        ("identity", bytes),
        ("", bytes),
    ],
)
async def test_a_compressed_page_is_unpacked(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    body = b"<h1>hello</h1>" * 5_000
    packed = pack(body)
    bytewise = [head(200, {"Content-Encoding": encoding}), packed[:1], packed[1:2], packed[2:]]
    with open_site({"/": reply(packed, headers={"Content-Encoding": encoding}), "/slowly": bytewise}) as site:
        assert (await get(f"{site.url}/")).body == body
        assert (await get(f"{site.url}/slowly")).body == body


@pytest.mark.parametrize(("encoding", "body"), [("br", b"x"), ("gzip", b"not gzip at all"), ("gzip,gzip,gzip", b"x")])
async def test_a_body_that_cannot_be_unpacked_fails_for_good(encoding: str, body: bytes) -> None:
    with open_site({"/": reply(body, headers={"Content-Encoding": encoding})}) as site:
        assert (await failing(f"{site.url}/")).reason == "bad_encoding"


# ── redirects ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed(status: int) -> None:
    with open_site({"/a/b": redirect("../c?d=é", status), "/c?d=%C3%A9": reply(b"here")}) as site:
        capture = await get(f"{site.url}/a/b")

    assert (capture.status, capture.body) == (200, b"here")
    assert capture.final_url == f"{site.url}/c?d=%C3%A9"


async def test_a_redirect_without_a_target_is_an_answer() -> None:
    with open_site({"/": reply(b"where to?", 302)}) as site:
        assert (await get(f"{site.url}/")).status == 302


async def test_redirects_without_end_fail_after_the_cap() -> None:
    with open_site({"/loop": redirect("/loop")}) as site:
        failure = await failing(f"{site.url}/loop", max_redirects=4)

    assert failure.reason == "too_many_redirects"
    assert site.paths == ["/loop"] * 5


async def test_all_hops_together_are_under_the_caps() -> None:
    pages = {f"/{n}": reply(b"x" * 40_000, 302, {"Location": f"/{n + 1}"}) for n in range(9)}
    with open_site(pages | {"/9": reply(b"x" * 90_000)}) as site:
        assert (await failing(f"{site.url}/0", max_bytes=95_000)).reason == "too_large"


@pytest.mark.parametrize(
    "location",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "http://user@example.org/",
        "http://[::1",
        "javascript:alert(1)",
        "http://a b/",
    ],
)
async def test_a_redirect_to_no_place_for_us_is_refused(location: str) -> None:
    with open_site({"/": redirect(location)}) as site:
        assert (await failing(f"{site.url}/")).reason == "address_refused"


async def test_a_redirect_to_a_private_address_is_refused() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return {"shop.example": ["127.0.0.1"], "evil.example": ["10.0.0.1"]}[host]

    with open_site({"/": redirect("http://evil.example/latest")}) as site:
        url = f"http://shop.example:{site.port}/"
        failure = await failing(url, resolve=resolve, allow_private=False, allow_networks=("127.0.0.0/8",))

    assert failure.reason == "address_refused"
    assert failure.detail == "evil.example is 10.0.0.1, a private address"
    assert site.paths == ["/"]


async def test_the_address_that_was_checked_is_the_one_that_is_dialled() -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(answers)

    with open_site({"/": reply(b"first")}) as site:
        capture = await get(f"http://rebind.example:{site.port}/", resolve=rebinding)

    assert capture.body == b"first"
    assert site.asked[0].headers["host"] == f"rebind.example:{site.port}"
    assert next(answers) == ["10.0.0.1"]  # the name was resolved once


async def test_nothing_is_asked_of_an_address_that_is_refused() -> None:
    with open_site({"/": reply()}) as site:
        robots = rules("")
        failure = await failing(f"{site.url}/", robots, allow_private=False)

    assert failure.reason == "address_refused"
    assert site.asked == []
    assert robots.asked == []  # the door isn't asked either


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def to_this_machine(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def test_a_certificate_is_checked_for_the_name_not_the_address(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "shop.example")
    with open_site({"/": reply(b"safe")}, tls=server) as site:
        url = f"https://shop.example:{site.port}/"
        assert (await get(url, resolve=to_this_machine, tls=client)).body == b"safe"
        assert (
            await failing(f"https://other.example:{site.port}/", resolve=to_this_machine, tls=client)
        ).reason == "tls"


async def test_a_certificate_that_nobody_vouches_for_fails_with_tls(tmp_path: Path) -> None:
    server, _ = certificate(tmp_path, "shop.example")
    with open_site({"/": reply()}, tls=server) as site:
        failure = await failing(f"https://shop.example:{site.port}/", resolve=to_this_machine)

    assert failure.reason == "tls"
    assert "certificate" in failure.detail


async def test_a_plain_site_asked_by_https_fails_with_tls() -> None:
    with open_site({"/": reply()}) as site:
        assert (await failing(f"https://127.0.0.1:{site.port}/")).reason == "tls"


# ── robots.txt ────────────────────────────────────────────────────────────────────────────────────────────────────

NO_PRIVATE = "User-agent: task-swarm\nDisallow: /private\n"


async def test_a_page_that_robots_txt_closes_is_not_asked_for() -> None:
    with open_site({"/private": reply()}) as site:
        failure = await failing(f"{site.url}/private", rules(NO_PRIVATE))

    assert failure.reason == "robots"
    assert site.asked == []


async def test_a_redirect_to_a_closed_page_is_not_followed() -> None:
    with open_site({"/": redirect("/private"), "/private": reply()}) as site:
        assert (await failing(f"{site.url}/", rules(NO_PRIVATE))).reason == "robots"

    assert site.paths == ["/"]


async def test_the_rules_of_a_new_origin_are_asked_for_before_it_is() -> None:
    robots = rules("")
    with open_site({"/": reply()}) as other, open_site({"/": redirect(f"{other.url}/")}) as site:
        await get(f"{site.url}/", robots)

    assert robots.asked == [site.url, other.url]


async def test_the_door_is_asked_once_while_the_rules_are_fresh() -> None:
    robots = rules("", fresh_s=3600)
    with open_site({"/": reply()}) as site:
        async with fetching(robots) as fetcher, trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(fetcher.get, f"{site.url}/")

    assert robots.asked == [site.url]


async def test_the_door_is_asked_again_when_the_rules_are_stale() -> None:
    robots = rules("", fresh_s=0)
    with open_site({"/": reply()}) as site:
        async with fetching(robots) as fetcher:
            await fetcher.get(f"{site.url}/")
            await fetcher.get(f"{site.url}/")

    assert robots.asked == [site.url, site.url]


async def test_long_rules_hold_as_short_ones_do() -> None:
    long = NO_PRIVATE + "".join(f"Disallow: /{number}\n" for number in range(5_000))
    with open_site({"/": reply(b"open")}) as site:
        assert (await failing(f"{site.url}/4999", rules(long))).reason == "robots"
        assert (await get(f"{site.url}/", rules(long))).body == b"open"


async def test_rules_that_came_with_a_grant_spare_the_door() -> None:
    robots = rules("")
    with open_site({"/private": reply()}) as site:
        async with fetching(robots) as fetcher:
            fetcher.learn(f"{site.url}/anything", NO_PRIVATE, fresh_s=60)
            with pytest.raises(TaskFailed, match="robots"):
                await fetcher.get(f"{site.url}/private")

    assert robots.asked == []


async def test_rules_that_cannot_be_read_yet_defer_the_task() -> None:
    async def refusing(origin: str) -> RobotsAnswer:
        raise DoorRefused(
            "robots_unavailable", "robots.txt answers 503", retry_after_s=120, details={"reason": "http_5xx"}
        )

    with open_site({"/": reply()}) as site, pytest.raises(TaskDeferred) as deferred:
        await get(f"{site.url}/", refusing)

    assert deferred.value.retry_after_s == 120
    assert site.asked == []


@pytest.mark.parametrize("reason", ["connect", "tls", "address_refused", "dns"])
async def test_an_origin_that_the_root_cannot_reach_at_all_fails_with_its_reason(reason: str) -> None:
    async def refusing(origin: str) -> RobotsAnswer:
        raise DoorRefused("robots_unavailable", "no", retry_after_s=60, details={"reason": reason})

    with open_site({"/": reply()}) as site:
        assert (await failing(f"{site.url}/", refusing)).reason == reason


async def test_a_door_that_is_away_defers_the_task() -> None:
    async def away(origin: str) -> RobotsAnswer:
        raise DoorUnreachable("http://door.example", "nobody answers")

    with open_site({"/": reply()}) as site, pytest.raises(TaskDeferred):
        await get(f"{site.url}/", away)


async def test_a_door_that_hangs_defers_the_task_and_does_not_blame_the_site(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def stuck(origin: str) -> RobotsAnswer:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    settings_ = FetchSettings(timeout_s=1, allow_private=True)
    async with open_fetcher(settings_, robots=stuck, worker=ALICE) as fetcher:
        with pytest.raises(TaskDeferred):
            await fetcher.get("http://127.0.0.1:9/")


async def test_a_crawl_delay_is_kept_between_requests_and_not_counted_against_the_site() -> None:
    delay_s = 0.3
    with open_site({"/": reply()}) as site:
        async with fetching(rules(f"User-agent: task-swarm\nCrawl-delay: {delay_s}\n"), timeout_s=0.25) as fetcher:
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(fetcher.get, f"{site.url}/")
            took_s = trio.current_time() - began

    assert took_s >= 2 * delay_s


async def test_an_origin_in_use_keeps_its_crawl_delay_when_many_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.web.fetcher.MAX_ORIGINS", 1)
    delay_s = 0.3
    asked: list[str] = []

    async def robots(origin: str) -> RobotsAnswer:
        asked.append(origin)
        if len(asked) == 1:  # while the first request waits for this answer
            fetcher.learn("http://other.example/", "", fresh_s=3600)
            nursery.start_soon(fetcher.get, f"{site.url}/")
            await trio.testing.wait_all_tasks_blocked()
        return RobotsAnswer(
            origin=origin,
            rules=f"User-agent: task-swarm\nCrawl-delay: {delay_s}\n",
            fresh_s=3600,
            crawl_delay_s=delay_s,
        )

    with open_site({"/": reply()}) as site:
        async with fetching(robots) as fetcher:
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetcher.get, f"{site.url}/")
            took_s = trio.current_time() - began

    assert len(site.asked) == 2
    assert took_s >= delay_s
    assert len(fetcher._origins) == 1


# ── blocks ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_429_is_a_block_that_says_when_to_come_back() -> None:
    with open_site({"/": reply(status=429, headers={"Retry-After": "120"})}) as site:
        failure = await failing(f"{site.url}/")

    assert (failure.reason, failure.retry_after_s) == ("blocked", 120)


@pytest.mark.parametrize(
    ("said", "wait_s"),
    [
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0),
        ("99999999999", 86_400),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("1e999", None),
    ],
)
async def test_retry_after_is_read_in_all_its_forms(said: str, wait_s: float | None) -> None:
    headers = {"Retry-After": said, "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    with open_site({"/": reply(status=429, headers=headers)}) as site:
        assert (await failing(f"{site.url}/")).retry_after_s == wait_s


@pytest.mark.parametrize(
    "answer",
    [
        reply(status=403, headers={"cf-mitigated": "challenge"}),
        reply(status=200, headers={"CF-Mitigated": "challenge"}),
        reply(status=405, headers={"x-amzn-waf-action": "captcha"}),
        reply(status=202, headers={"x-amzn-waf-action": "challenge"}),
        reply(status=503, body=b"<script>window._cf_chl_opt={}</script>"),
        reply(status=403, body=b'<script src="https://geo.captcha-delivery.com/x.js">'),
    ],
)
async def test_a_challenge_page_is_a_block(answer: bytes) -> None:
    with open_site({"/": answer}) as site:
        failure = await failing(f"{site.url}/")

    assert failure.reason == "blocked"
    assert "challenge" in failure.detail
    assert len(site.asked) == 1  # no second try, no way round it


async def test_an_ordinary_page_that_speaks_of_challenges_is_a_page() -> None:
    with open_site({"/": reply(b"how _cf_chl_opt works", headers={"cf-mitigated": "no"})}) as site:
        assert (await get(f"{site.url}/")).status == 200


# ── fuzz ──────────────────────────────────────────────────────────────────────────────────────────────────────────

KNOWN_REASONS = {*Reason, "bad_encoding"}
fuzz = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
locations = st.one_of(
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=40),
    st.sampled_from(
        ["/", "//", "///x", "?", "#", "..", "/%", "/%zz", "//127.0.0.1:1/", "http:", "http:///x", "\\\\x", "/a/../../b"]
    ),
)


async def fate_of(url: str, **options: Any) -> str:
    try:
        await get(url, **options)
    except TaskFailed as failure:
        return failure.reason
    return "captured"


@fuzz
@given(location=locations, status=st.sampled_from([301, 302, 303, 307, 308, 300, 304]))
async def test_no_location_breaks_the_fetcher(location: str, status: int) -> None:
    answer = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nLocation: {location}\r\n\r\n".encode("latin-1")

    async def nowhere(host: str, port: int) -> Sequence[str]:
        if host != "127.0.0.1":
            raise OSError("the test resolves nothing")
        return [host]

    with open_site({"/": answer}) as site:
        end = await fate_of(f"{site.url}/", resolve=nowhere, max_redirects=3)

    assert end == "captured" or end in KNOWN_REASONS


@fuzz
@given(
    answer=st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda tail: b"HTTP/1.1 200 OK\r\n" + tail))
)
async def test_no_bytes_break_the_fetcher(answer: bytes) -> None:
    with open_site({"/": answer}) as site:
        end = await fate_of(f"{site.url}/")

    assert end == "captured" or end in KNOWN_REASONS


@fuzz
@given(
    body=st.binary(max_size=300),
    encoding=st.sampled_from(["gzip", "deflate", "gzip, deflate"]),
    cut=st.integers(0, 400),
)
async def test_no_compressed_body_breaks_the_fetcher(body: bytes, encoding: str, cut: int) -> None:
    packed = zlib.compress(gzip.compress(body))[:cut] if "," in encoding else gzip.compress(body)[:cut]
    with open_site({"/": reply(packed, headers={"Content-Encoding": encoding})}) as site:
        end = await fate_of(f"{site.url}/")

    assert end == "captured" or end in KNOWN_REASONS
