"""The canonical form of a URL: two spellings of one address become one text, and no more than that.

It is what tasks hold, what dedupe and pacing compare, and what is asked of the site, character for character. Rules are
those of RFC 3986 (6.2.2, 6.2.3) with the parsing of browsers where they differ (a backslash in a path, spaces around).
The query keeps its order: what a site makes of it isn't known here.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

import idna

from swarm.errors import MalformedInput

__all__ = ["MAX_URL_CHARACTERS", "canonical", "host_of", "is_same", "is_this_machine", "with_scheme"]

#: What ``swarm.wire.Url`` takes.
MAX_URL_CHARACTERS: Final = 4096
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

#: RFC 3986, appendix B, for URLs with an authority; the fragment is dropped.
URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/\\?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::([0-9]{0,5}))?")
#: Host names as they are in use: an underscore isn't one of DNS's own, but sites have it.
HOST_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
MAX_HOST_CHARACTERS: Final = 253

#: RFC 3986's unreserved and reserved characters, as far as they have no meaning of their own there; what isn't one of
#: them is escaped. An apostrophe is legal in a query, but browsers and httpx escape it there.
UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
TO_ESCAPE_IN_PATH: Final = re.compile(r"%[0-9A-Fa-f]{2}|[^A-Za-z0-9\-._~!$&'()*+,;=:@/]")
TO_ESCAPE_IN_QUERY: Final = re.compile(r"%[0-9A-Fa-f]{2}|[^A-Za-z0-9\-._~!$&()*+,;=:@/?]")


def is_this_machine(host: str) -> bool:
    """Whether a host is this machine's loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def with_scheme(text: str) -> str:
    """What somebody meant who left the scheme out: https, but on this machine http."""
    rest = text.rpartition("://")[2]
    host = rest.partition("/")[0]
    bare = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return f"{'http' if is_this_machine(bare) else 'https'}://{rest}"


def canonical(url: str) -> str:
    """The canonical form of an http or https URL; that of a canonical one is itself.

    Raises:
        MalformedInput: it isn't one, or names a user, or is too long; the message says what is wrong with it.
    """
    if len(url) > MAX_URL_CHARACTERS:
        raise MalformedInput(f"a URL of {len(url)} characters where at most {MAX_URL_CHARACTERS} are taken")
    stripped = url.strip(" \t\r\n")
    if CONTROL.search(stripped):
        raise MalformedInput("a URL with a control character in it")
    match = URL.fullmatch(stripped)
    if match is None:
        raise MalformedInput("not an absolute URL (https://host/path)")
    scheme, authority, path, query = match.group(1).lower(), match.group(2), match.group(3), match.group(4)
    if scheme not in DEFAULT_PORTS:
        raise MalformedInput(f"a URL of scheme {scheme} where http and https are taken")
    text = f"{scheme}://{_authority(authority, scheme)}{_path(path)}"
    if query:
        text += "?" + _escape(query, TO_ESCAPE_IN_QUERY)
    if len(text) > MAX_URL_CHARACTERS:
        raise MalformedInput(f"a URL of {len(text)} characters, escaped, where at most {MAX_URL_CHARACTERS} are taken")
    return text


def host_of(url: str) -> str:
    """The host of a URL, with the port where it isn't the scheme's own: what pacing goes by.

    Raises:
        MalformedInput: it isn't an http or https URL.
    """
    return canonical(url).split("/", 3)[2]


def is_same(one: str, other: str) -> bool:
    """Whether two URLs are spellings of one address; a slash at the end makes no difference, nonsense is never one."""
    if "\\" in one + other:  # which some read as a slash, and some as a part of the host
        return False
    try:
        return canonical(one.rstrip("/")) == canonical(other.rstrip("/"))
    except MalformedInput:
        return False


def _authority(authority: str, scheme: str) -> str:
    if "@" in authority:
        raise MalformedInput("a URL with a user or password in it")
    match = AUTHORITY.fullmatch(authority)
    if match is None:
        raise MalformedInput("a URL whose host or port can't be read")
    host, port = _host(match.group(1)), int(match.group(2) or DEFAULT_PORTS[scheme])
    if not 0 < port < 65536:
        raise MalformedInput(f"a URL with port {port}")
    return host if port == DEFAULT_PORTS[scheme] else f"{host}:{port}"


def _host(host: str) -> str:
    if host.startswith("["):
        try:
            address = ipaddress.IPv6Address(host[1:-1])
        except ValueError as fault:
            raise MalformedInput(f"a URL whose host {host} isn't an IPv6 address") from fault
        if address.scope_id is not None:
            raise MalformedInput("a URL whose IPv6 address has a zone, which only its own machine knows")
        return f"[{address.compressed}]"
    name = _ascii(host).removesuffix(".")
    labels = name.split(".")
    if len(name) > MAX_HOST_CHARACTERS or not all(map(HOST_LABEL.fullmatch, labels)):
        raise MalformedInput(f"a URL whose host {host[:100]!r} isn't a host name")
    if NUMBER.fullmatch(labels[-1]):
        # Resolvers read 127.1, 0x7f.1 and 2130706433 as addresses too; one host shall have one name.
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError as fault:
            raise MalformedInput(f"a URL whose host {host[:100]} isn't four decimal numbers") from fault
    return name


def _ascii(host: str) -> str:
    if host.isascii():
        return host.lower()
    try:
        return idna.encode(host, uts46=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError) as fault:
        raise MalformedInput(f"a URL whose host {host[:100]!r} isn't a host name: {fault}") from fault


def _path(path: str) -> str:
    """Escape, then take out "." and "..": their dots may have been escaped."""
    segments = _escape(path.replace("\\", "/"), TO_ESCAPE_IN_PATH).split("/")
    kept: list[str] = []
    for segment in segments[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _escape(text: str, to_escape: re.Pattern[str]) -> str:
    """Bring percent-encoding to its normal form: only what must be is escaped, in capitals."""
    try:
        return to_escape.sub(_escape_one, text)
    except UnicodeEncodeError as fault:
        raise MalformedInput("a URL with a lone surrogate in it") from fault


def _escape_one(match: re.Match[str]) -> str:
    found = match.group()
    if len(found) == 3:
        character = chr(int(found[1:], 16))
        return character if character in UNRESERVED else found.upper()
    return "".join(f"%{byte:02X}" for byte in found.encode())
