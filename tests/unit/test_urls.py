"""The canonical form of a URL."""

from __future__ import annotations

import string
from urllib.parse import unquote_to_bytes, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.content.urls import MAX_URL_CHARACTERS, canonical, host_of
from swarm.errors import MalformedInput


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com", "http://example.com/"),
        ("HTTP://EXAMPLE.com/Path", "http://example.com/Path"),
        ("  http://example.com/ \n", "http://example.com/"),
        ("http://example.com:80/", "http://example.com/"),
        ("https://example.com:443/", "https://example.com/"),
        ("https://example.com:80/", "https://example.com:80/"),
        ("http://example.com:/", "http://example.com/"),
        ("http://example.com:08080/", "http://example.com:8080/"),
        ("http://example.com./", "http://example.com/"),
        ("http://my_host.example.com/", "http://my_host.example.com/"),
        ("http://Bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://bücher。example/", "http://xn--bcher-kva.example/"),
        ("http://xn--bcher-kva.example/", "http://xn--bcher-kva.example/"),
        ("http://[2001:DB8:0:0:0:0:0:1]:8080/", "http://[2001:db8::1]:8080/"),
        ("http://１２７.0.0.1/", "http://127.0.0.1/"),
        ("http://a.example/b/./c/../d", "http://a.example/b/d"),
        ("http://a.example/../..", "http://a.example/"),
        ("http://a.example/b/..", "http://a.example/"),
        ("http://a.example/b/.", "http://a.example/b/"),
        ("http://a.example/b/%2e%2E/c", "http://a.example/c"),
        ("http://a.example//b//c", "http://a.example//b//c"),
        ("http://a.example\\b\\c", "http://a.example/b/c"),
        ("http://a.example\\@evil.example/", "http://a.example/@evil.example/"),
        ("http://a.example/%7Euser/%c3%a9%2f", "http://a.example/~user/%C3%A9%2F"),
        ("http://a.example/é b", "http://a.example/%C3%A9%20b"),
        ("http://a.example/100%", "http://a.example/100%25"),
        ("http://a.example/100%zz", "http://a.example/100%25zz"),
        ("http://a.example/?b=2&a=1&b=1", "http://a.example/?b=2&a=1&b=1"),
        ("http://a.example/?a+b=%2b&c[]=/?:@", "http://a.example/?a+b=%2B&c%5B%5D=/?:@"),
        ("http://a.example/?", "http://a.example/"),
        ("http://a.example?x=1#frag", "http://a.example/?x=1"),
        ("http://a.example/#?x=1", "http://a.example/"),
    ],
)
def test_two_spellings_of_one_address_become_one_text(url: str, expected: str) -> None:
    assert canonical(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "/path",
        "http:/example.com",
        "http://",
        "http:///path",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript://x/%0aalert(1)",
        "http://user@example.com/",
        "http://user:password@example.com/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:80a/",
        "http://example.com:８０/",
        "http://exa mple.com/",
        "http://exa%6Dple.com/",
        "http://-example.com/",
        "http://example..com/",
        "http://./",
        "http://℀.example/",
        "http://\u202eexample.com/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://0x7f000001/",
        "http://127.0.0.01/",
        "http://1.2.3.4.5/",
        "http://[::1/",
        "http://[::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://[not an address]/",
        "http://::1/",
        "http://a.example/a\nb",
        "http://a.example/a\tb",
        "http://a.example/\x00",
        "http://a.example/\ud800",
        f"http://{'a' * 64}.example/",
        f"http://{'a.' * 130}example/",
        "http://a.example/" + "x" * MAX_URL_CHARACTERS,
        "http://a.example/" + "é" * (MAX_URL_CHARACTERS // 2),
    ],
)
def test_what_is_no_public_web_address_is_refused(url: str) -> None:
    with pytest.raises(MalformedInput):
        canonical(url)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Example.com/a", "example.com"),
        ("https://example.com:443/b", "example.com"),
        ("http://example.com:8080/", "example.com:8080"),
        ("http://[::1]:8000/", "[::1]:8000"),
    ],
)
def test_pacing_goes_by_host_and_unusual_port(url: str, host: str) -> None:
    assert host_of(url) == host


HOSTS = st.sampled_from(["a.example", "B.Example", "bücher.example", "127.0.0.1", "[::1]", "x_y.example."])
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("%./\\?&=+;'[]~2eEfF"), max_size=40)
URLS = st.builds("{}://{}{}/{}?{}".format, st.sampled_from(["http", "HTTPS"]), HOSTS, st.just(""), TEXT, TEXT)


@given(URLS)
def test_the_canonical_form_of_a_canonical_url_is_itself(url: str) -> None:
    once = canonical(url)
    assert canonical(once) == once
    assert set(once) <= set(string.printable) - set(string.whitespace)


@given(URLS)
def test_what_is_asked_of_the_site_is_the_canonical_form_to_the_letter(url: str) -> None:
    once = canonical(url)
    asked = httpx.URL(once)
    assert asked.raw_path.decode() == "/" + once.split("/", 3)[3]
    assert str(asked) == once


@given(TEXT.filter(lambda text: "#" not in text))
def test_the_query_still_means_the_same(query: str) -> None:
    kept = urlsplit(canonical(f"http://a.example/?q={query}.")).query
    assert unquote_to_bytes(kept) == unquote_to_bytes(f"q={query}.")


@given(st.text(max_size=100) | TEXT.map("http://".__add__))
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        once = canonical(text)
    except MalformedInput:
        return
    assert canonical(once) == once
    assert host_of(once) == once.split("/", 3)[2]
