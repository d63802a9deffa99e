"""Selectors over HTML: from the bytes of a page to records. The same bytes give the same records, always.

A selector is CSS with parsel's ``::text`` and ``::attr(name)``, or XPath where it begins with "/", "./" or "(". A
record holds the first match of each, stripped; None where there is none. ``href`` and ``src`` come out absolute.
How long a hostile page may take can't be bounded from within (libxml2 needs a second for 20,000 attributes in one tag,
and four times that for twice as many): ``swarm.executors.parser`` runs this in a process with a deadline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

from swarm.errors import MalformedInput

if TYPE_CHECKING:
    from parsel import Selector, SelectorList

__all__ = ["MAX_PAGE_BYTES", "MAX_RECORDS", "MAX_RECORD_CHARACTERS", "check_selectors", "extract"]

#: A tree takes about 200 times the bytes of a page that is all tags (measured: 4 MB, 700 MB).
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
#: Of one page.
MAX_RECORDS: Final = 50_000
#: All records of one page together: a selector may name a whole page, once a record.
MAX_RECORD_CHARACTERS: Final = 32 * 1024 * 1024
MAX_SELECTOR_CHARACTERS: Final = 2_000
XPATH_BEGINNINGS: Final = ("/", "./", "(")
#: Selectors whose value is an address, relative to the page.
ADDRESS: Final = re.compile(r"(::attr\((href|src)\)|@(href|src))\s*\)?\s*$")

Record = dict[str, str | None]


def extract(
    html: bytes, charset: str | None, selectors: Mapping[str, str], *, base_url: str, each: str | None = None
) -> list[Record]:
    """Run selectors over a page.

    Args:
        html: the body as it came.
        charset: what the answer's Content-Type said; None: a byte order mark, the page itself, or UTF-8.
        selectors: by the name that the record shall have.
        base_url: where the page came from, for relative addresses; a ``<base>`` in it counts too.
        each: one record for each match, its selectors relative to it; None: one record, of the whole page.

    Raises:
        MalformedInput: a selector can't be read (the message names it), or page or records break a cap.
    """
    if len(html) > MAX_PAGE_BYTES:
        raise MalformedInput(f"a page of {len(html)} bytes where at most {MAX_PAGE_BYTES} are parsed")
    page = _parse(html, charset)
    base = _get(page, "base::attr(href)", "base")
    if base is not None:
        base_url = _absolute(base, base_url)
    parts = [page] if each is None else _select(page, each, "each")
    if len(parts) > MAX_RECORDS:
        raise MalformedInput(f"{len(parts)} records where at most {MAX_RECORDS} are taken from one page")
    records: list[Record] = []
    characters = 0
    for part in parts:
        record: Record = {}
        for name, selector in selectors.items():
            value = _get(part, selector, name)
            if value is not None:
                if ADDRESS.search(selector):
                    value = _absolute(value, base_url)
                characters += len(value)
                if characters > MAX_RECORD_CHARACTERS:
                    raise MalformedInput(f"more than {MAX_RECORD_CHARACTERS} characters of records from one page")
            record[name] = value
        records.append(record)
    return records


def check_selectors(selectors: Mapping[str, str], *, each: str | None = None) -> None:
    """Find out whether selectors can be read, without a page.

    Raises:
        MalformedInput: one can't; the message names it.
    """
    if not selectors:
        raise MalformedInput("no selector is given")
    named = dict(selectors) if each is None else {**selectors, "each": each}
    empty = _parse(b"<html></html>", None)
    for name, selector in named.items():
        _select(empty, selector, name)


def _parse(html: bytes, charset: str | None) -> Selector:
    from parsel import Selector
    from w3lib.encoding import html_to_unicode

    content_type = None if charset is None else f"text/html; charset={charset}"
    _, text = html_to_unicode(content_type, html, default_encoding="utf-8")
    return Selector(text=text, type="html")


def _select(part: Selector, selector: str, name: str) -> SelectorList[Selector]:
    from cssselect import SelectorError

    if len(selector) > MAX_SELECTOR_CHARACTERS:
        raise MalformedInput(f"selector {name!r} has more than {MAX_SELECTOR_CHARACTERS} characters")
    try:
        if selector.startswith(XPATH_BEGINNINGS):
            return part.xpath(selector)
        return part.css(selector)
    except (SelectorError, ValueError, RecursionError) as fault:
        raise MalformedInput(f"selector {name!r} ({selector[:200]}) can't be read: {fault}") from fault


def _get(part: Selector, selector: str, name: str) -> str | None:
    value = _select(part, selector, name).get()
    return None if value is None else value.strip()


def _absolute(address: str, base_url: str) -> str:
    try:
        return urljoin(base_url, address)
    except ValueError:  # not an address that can be read, such as http://[
        return address
