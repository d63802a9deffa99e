"""Selectors over HTML."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.content.parse import MAX_PAGE_BYTES, MAX_RECORDS, check_selectors, extract
from swarm.errors import MalformedInput

PAGE = b"""<html><head><title> Books </title></head><body>
<h1 class="top">All <b>books</b></h1>
<article><h3><a href="one.html" title="One">1</a></h3><p class="price">&pound;1.50</p><img src="/i/1.png"></article>
<article><h3><a href="../two.html" title="Two">2</a></h3></article>
</body></html>"""
URL = "https://books.example/shop/index.html"


def one(selector: str, page: bytes = PAGE, charset: str | None = "utf-8") -> str | None:
    (record,) = extract(page, charset, {"value": selector}, base_url=URL)
    return record["value"]


@pytest.mark.parametrize(
    ("selector", "value"),
    [
        ("title::text", "Books"),
        ("h1::text", "All"),
        ("h1", '<h1 class="top">All <b>books</b></h1>'),
        ("h1::attr(class)", "top"),
        ("//h1/b/text()", "books"),
        ("string(//h1)", None),
        ("(//article)[2]//a/@title", "Two"),
        ("./body/h1/@class", "top"),
        ("h7::text", None),
        ("p.price::text", "£1.50"),
    ],
)
def test_a_selector_gives_its_first_match_or_none(selector: str, value: str | None) -> None:
    if selector.startswith("string("):
        with pytest.raises(MalformedInput, match="'value'"):  # XPath begins with "/", "./" or "("
            one(selector)
    else:
        assert one(selector) == value


def test_a_number_or_truth_of_xpath_comes_out_as_text() -> None:
    assert one("(count(//article))") == "2.0"
    assert one("(count(//article) = 2)") == "1"


def test_each_gives_a_record_for_each_match_with_selectors_relative_to_it() -> None:
    records = extract(
        PAGE,
        None,
        {"title": "a::attr(title)", "price": "p.price::text", "link": "a::attr(href)", "image": "./img/@src"},
        base_url=URL,
        each="article",
    )
    assert records == [
        {
            "title": "One",
            "price": "£1.50",
            "link": "https://books.example/shop/one.html",
            "image": "https://books.example/i/1.png",
        },
        {"title": "Two", "price": None, "link": "https://books.example/two.html", "image": None},
    ]


def test_each_without_a_match_gives_no_record() -> None:
    assert extract(PAGE, None, {"title": "a::text"}, base_url=URL, each="section") == []


def test_the_base_element_of_a_page_counts_for_its_addresses() -> None:
    page = b'<base href="/elsewhere/"><a href="x">'
    assert one("a::attr(href)", page) == "https://books.example/elsewhere/x"


def test_an_address_that_cannot_be_read_is_given_as_it_is() -> None:
    assert one("a::attr(href)", b'<a href="http://[">') == "http://["


@pytest.mark.parametrize(
    ("page", "charset"),
    [
        ("<p>Zürich".encode("latin-1"), "iso-8859-1"),
        ("<p>Zürich".encode(), "utf-8"),
        ("<p>Zürich".encode(), None),
        ("<p>Zürich".encode(), "no-such-charset"),
        ("<meta charset=iso-8859-1><p>Zürich".encode("latin-1"), None),
        ("<p>Zürich".encode("utf-16"), None),
    ],
)
def test_the_charset_is_what_the_answer_says_or_what_the_page_says(page: bytes, charset: str | None) -> None:
    assert one("p::text", page, charset) == "Zürich"


def test_bytes_that_are_no_text_give_replacement_characters_not_an_error() -> None:
    assert one("p::text", b"<p>a\xff\xfeb\x00c", "utf-8") == "a��bc"


@pytest.mark.parametrize("page", [b"", b" ", b"\x00", b"<", b"<!--", b"\xff\xfe", b"not html"])
def test_a_page_that_is_hardly_one_has_no_heading(page: bytes) -> None:
    assert one("h1::text", page) is None


@pytest.mark.parametrize("selector", ["", "h1[", "h1::nonsense", "//h1[", "//x:y", "/" * 3000, "a" * 3000])
def test_a_selector_that_cannot_be_read_is_named(selector: str) -> None:
    with pytest.raises(MalformedInput, match="'price'"):
        extract(PAGE, None, {"price": selector}, base_url=URL)
    with pytest.raises(MalformedInput, match="'price'"):
        check_selectors({"price": selector})
    with pytest.raises(MalformedInput, match="'each'"):
        check_selectors({"price": "h1::text"}, each=selector)


def test_good_selectors_pass_the_check_and_none_at_all_do_not() -> None:
    check_selectors({"title": "h1::text", "n": "(count(//a))"}, each="//article")
    with pytest.raises(MalformedInput):
        check_selectors({})


def test_a_page_or_records_beyond_the_caps_are_refused() -> None:
    with pytest.raises(MalformedInput, match="bytes"):
        one("p::text", bytes(MAX_PAGE_BYTES + 1))
    with pytest.raises(MalformedInput, match="records"):
        extract(b"<p>" * (MAX_RECORDS + 1), None, {"x": "(.)"}, base_url=URL, each="p")
    page = b"<div>" + b"<p>x" * 5_000
    with pytest.raises(MalformedInput, match="characters"):
        extract(page, None, {"x": "(ancestor::div)"}, base_url=URL, each="p")


@pytest.mark.parametrize("tag", ["div", "b", "table", "ul><li", "font", "a"])
def test_a_page_nested_beyond_reason_neither_crashes_nor_hangs(tag: str) -> None:
    page = f"<h1>top</h1>{f'<{tag}>' * 100_000}x".encode()
    assert one("h1::text", page) == "top"
    assert one("(string(//body))", page) is not None


@given(st.binary(max_size=300), st.sampled_from([None, "utf-8", "utf-16", "shift_jis", "x"]))
def test_any_bytes_give_a_record(page: bytes, charset: str | None) -> None:
    records = extract(page, charset, {"a": "a::attr(href)", "all": "/*"}, base_url=URL)
    assert len(records) == 1
    assert set(records[0]) == {"a", "all"}
