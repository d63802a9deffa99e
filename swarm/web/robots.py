"""What robots.txt says to our agent (RFC 9309).

``cut`` keeps of a robots.txt the one group that speaks to us, as a robots.txt of its own: that is what travels from
the root to the workers. ``Rules`` answers from it; protego parses and matches. Only the root fetches the file; this
module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from protego import Protego

from swarm.model import AGENT

#: RFC 9309 asks that at least 500 KiB are read.
MAX_ROBOTS_BYTES: Final = 512 * 1024
#: Longer rules are worth a thread: a hostile file of half a megabyte takes a second to parse.
LONG_RULES_CHARS: Final = 16 * 1024
#: A longer delay than this between two requests is taken as this.
MAX_CRAWL_DELAY_S: Final = 86_400.0

#: The spellings that protego accepts, so that nothing it would obey is lost in the cutting.
_DIRECTIVE: Final = re.compile(
    r"(?P<agent>user[- ]?agent)|(?P<allow>allow)|(?P<delay>crawl[- ]delay)"
    r"|(?P<disallow>disallow|dissallow|dissalow|disalow|diasllow|disallaw)",
    re.IGNORECASE,
)
#: A product token ends where RFC 9309 says that it does: "task-swarm/1.0" means "task-swarm".
_PRODUCT_TOKEN: Final = re.compile(r"[A-Za-z_-]+")
_NAMES: Final = {"allow": "Allow", "disallow": "Disallow", "delay": "Crawl-delay"}


class Rules:
    """The rules of one origin for our agent.

    Args:
        text: a robots.txt, whole or cut.
    """

    def __init__(self, text: str) -> None:
        self._parsed = Protego.parse(text)

    def allowed(self, url: str) -> bool:
        """Whether our agent may ask for a URL of this origin."""
        return bool(self._parsed.can_fetch(url, AGENT))

    @property
    def crawl_delay_s(self) -> float | None:
        """How long to wait between two requests, seconds; None where the site doesn't say."""
        delay_s = self._parsed.crawl_delay(AGENT)
        return None if delay_s is None else min(float(delay_s), MAX_CRAWL_DELAY_S)


def cut(text: str) -> str:
    """Keep the group of a robots.txt that speaks to our agent: its own, else that of ``*``, else nothing.

    Groups that name the same agent count as one (RFC 9309 §2.2.1). An empty group still is a group: it lets us in
    where ``*`` is kept out.
    """
    ours: list[str] = []
    everyones: list[str] = []
    is_named = False
    for agents, rules in _groups(text):
        if AGENT in agents:
            is_named = True
            ours += rules
        if "*" in agents:
            everyones += rules
    rules = ours if is_named else everyones
    return "".join(f"{line}\n" for line in (f"User-agent: {AGENT}", *rules)) if rules or is_named else ""


def decode_robots(body: bytes) -> str:
    """The text of a robots.txt; a file that was cut at the cap loses its last, half line."""
    if len(body) >= MAX_ROBOTS_BYTES:
        body = body[: max(body.rfind(b"\n"), body.rfind(b"\r")) + 1]
    return body.decode("utf-8-sig", errors="replace")


def _groups(text: str) -> Iterator[tuple[set[str], list[str]]]:
    """The groups in order: the agents that each names (lower case), and its rules in a normal spelling."""
    agents: set[str] = set()
    rules: list[str] = []
    in_head = False
    for kind, value in _directives(text):
        if kind == "agent":
            if not in_head:
                yield agents, rules
                agents, rules, in_head = set(), [], True
            agents.add(_agent_token(value))
        else:
            in_head = False
            rules.append(f"{_NAMES[kind]}: {value}")
    yield agents, rules


def _directives(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        statement = line.partition("#")[0].strip()
        found = _DIRECTIVE.match(statement)
        if found is None or found.lastgroup is None:
            continue
        rest = statement[found.end() :]
        value = rest.lstrip()
        if value.startswith(":"):
            yield found.lastgroup, value[1:].strip()
        elif not rest or rest[0].isspace():  # a colon forgotten
            yield found.lastgroup, value


def _agent_token(value: str) -> str:
    if value.split(maxsplit=1)[:1] == ["*"]:
        return "*"
    found = _PRODUCT_TOKEN.match(value)
    return found.group().lower() if found else ""
