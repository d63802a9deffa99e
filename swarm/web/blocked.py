"""When does a site say "stop"?

A 429 and a recognisable challenge page are a block whatever was asked for; a 403 is one unless the requester counts it
as data. A block is an answer: it is reported, the site is left alone for a while, and nobody tries to get round it.
"""

from __future__ import annotations

import email.utils
import math
from collections.abc import Mapping
from datetime import UTC
from typing import Final

#: What a site asks for is honoured up to a day; beyond that the root's own cooling off decides.
MAX_RETRY_AFTER_S: Final = 86_400.0

#: Headers by which the big protection services mark an answer that isn't the page. Value None: any value.
_CHALLENGE_HEADERS: Final[Mapping[str, frozenset[str] | None]] = {
    "cf-mitigated": frozenset({"challenge"}),  # Cloudflare
    "x-amzn-waf-action": frozenset({"challenge", "captcha"}),  # AWS WAF
    "x-vercel-mitigated": frozenset({"challenge", "deny"}),
    "x-datadome": frozenset({"protected"}),
    "x-sucuri-block": None,
}
#: Marks in the page of services that set no header; looked for only where the status isn't a page's.
_CHALLENGE_MARKS: Final = (
    b"_cf_chl_opt",
    b"cf-browser-verification",
    b"/cdn-cgi/challenge-platform/",
    b"geo.captcha-delivery.com",
    b"_Incapsula_Resource",
    b"px-captcha",
)
_CHALLENGE_STATUSES: Final = frozenset({202, 401, 403, 405, 406, 429, 503})
#: Challenge pages are short, and name themselves early.
_LOOKED_AT_BYTES: Final = 64 * 1024
_TOO_MANY_REQUESTS: Final = 429


def why_blocked(status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """Say how a site told us to stop, in words for the task's detail; None where it didn't.

    Args:
        status: of the answer.
        headers: all of them, lower-case names.
        body: decoded.
    """
    if status == _TOO_MANY_REQUESTS:
        return "429 Too Many Requests"
    for name, values in _CHALLENGE_HEADERS.items():
        said = headers.get(name)
        if said is not None and (values is None or said.strip().lower() in values):
            return f"a challenge page ({name}: {said[:40]})"
    if status in _CHALLENGE_STATUSES:
        head = body[:_LOOKED_AT_BYTES]
        for mark in _CHALLENGE_MARKS:
            if mark in head:
                return f"a challenge page ({mark.decode()})"
    return None


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """How long the site asks to be left alone, seconds.

    Args:
        headers: lower-case names; ``retry-after`` is a number of seconds or a date, which is read against the
            answer's own ``date`` where there is one, so that a wrong clock on either side doesn't matter.
        now: Unix seconds, for answers without a date.
    """
    said = headers.get("retry-after", "").strip()
    if not said:
        return None
    try:
        wait_s = float(said) if said.isascii() and said[0].isdigit() else _date(said) - _answered_at(headers, now)
    except (ValueError, OverflowError):
        return None
    return heeded(wait_s)


def heeded(wait_s: float) -> float | None:
    """What is heeded of a wait that somebody asks for, seconds; None where it isn't one."""
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(wait_s) else None


def _answered_at(headers: Mapping[str, str], now: float) -> float:
    try:
        return _date(headers.get("date", ""))
    except ValueError:
        return now


def _date(text: str) -> float:
    moment = email.utils.parsedate_to_datetime(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
