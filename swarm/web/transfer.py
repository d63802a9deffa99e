"""One hop: GET a URL from addresses that were vetted, and read the answer within its caps.

h11 speaks HTTP/1.1; what is ours is where the connection goes and when it stops. No proxies, no environment, no
cookies, no connection kept: what one task leaves behind on the way reaches no other. Whatever goes wrong leaves as
``TaskFailed`` with the reason that the retry policy needs; the time limit is the caller's. It runs below trio and
asyncio alike, and knows nothing of redirects being followed or of robots.txt.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urljoin, urlsplit

import anyio
import attrs
import h11
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from swarm.content.urls import canonical
from swarm.errors import MalformedInput
from swarm.model import Reason
from swarm.web.capture import TaskFailed
from swarm.web.guard import dial
from swarm.web.inflate import ACCEPT_ENCODING, Inflater

#: What the head of an answer may weigh, bytes; nginx and Apache send at most 8 KiB, Node.js 16 KiB.
MAX_HEADER_BYTES: Final = 64 * 1024
#: How long connecting may take, and the TLS handshake again, seconds.
CONNECT_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 64 * 1024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_SWITCHING_PROTOCOLS: Final = 101
_HEADERS_TOO_LARGE: Final = 431  # how h11 marks a head that passes its buffer


@attrs.frozen(kw_only=True)
class Hop:
    """One answer, before any redirect is followed.

    Args:
        url: the canonical URL that was asked.
        headers: lower-case names; repeated ones joined by a comma.
        location: where it redirects to, absolute but not yet checked; None where it doesn't.
        body: decoded from its content encoding; empty for a redirect.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    location: str | None
    body: bytes


@attrs.define(kw_only=True)
class Caps:
    """What one answer may weigh, all its hops together; it counts as the bytes come.

    Args:
        max_bytes: on the wire, heads and framing included.
        max_decompressed_bytes: of the decoded body.
        truncate: keep what fits of a longer body, instead of refusing it.
    """

    max_bytes: int
    max_decompressed_bytes: int
    truncate: bool = False
    read_bytes: int = attrs.field(init=False, default=0)

    def count(self, size_bytes: int) -> None:
        """Add what came over the wire.

        Raises:
            TaskFailed: ``too_large``.
        """
        self.read_bytes += size_bytes
        if self.read_bytes > self.max_bytes:
            raise TaskFailed(Reason.TOO_LARGE, f"more than {self.max_bytes} bytes came over the wire")


def canonical_or_refused(url: str) -> str:
    """The canonical form of a URL that is about to be asked.

    Raises:
        TaskFailed: ``address_refused``: another scheme, a user name in it, or no URL at all.
    """
    try:
        return canonical(url)
    except MalformedInput as fault:
        raise TaskFailed(Reason.ADDRESS_REFUSED, f"{url[:200]!r}: {fault}") from fault


def host_and_port(url: str) -> tuple[str, int]:
    """Where a canonical URL is to be dialled."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]


def origin_of(url: str) -> str:
    """``scheme://host[:port]`` of a canonical URL: what one robots.txt speaks for."""
    return url[: url.index("/", len("https://"))]


async def get_once(url: str, addresses: Sequence[str], *, user_agent: str, tls: ssl.SSLContext, caps: Caps) -> Hop:
    """GET a canonical URL.

    Args:
        url: canonical.
        addresses: where its host is, vetted.
        user_agent: who we say we are.
        tls: checks certificates.
        caps: counts on; a chain of redirects shares them.

    Raises:
        TaskFailed: ``connect timeout tls too_large`` or ``bad_encoding``.
    """
    host, port = host_and_port(url)
    stream: ByteStream = await dial(addresses, port, timeout_s=CONNECT_TIMEOUT_S)
    try:
        if url.startswith("https:"):
            stream = await _handshake(stream, host, tls)
        return await _exchange(stream, url, user_agent, caps)
    except (anyio.BrokenResourceError, anyio.EndOfStream, OSError) as fault:
        raise TaskFailed(Reason.CONNECT, f"{host} cut the connection: {_root_cause(fault)}") from fault
    except h11.RemoteProtocolError as fault:
        too_large = fault.error_status_hint == _HEADERS_TOO_LARGE
        raise TaskFailed(Reason.TOO_LARGE if too_large else Reason.CONNECT, f"{host} broke HTTP: {fault}") from fault
    finally:
        await anyio.aclose_forcefully(stream)


async def _handshake(stream: ByteStream, host: str, tls: ssl.SSLContext) -> ByteStream:
    try:
        with anyio.fail_after(CONNECT_TIMEOUT_S):
            return await TLSStream.wrap(stream, hostname=host, ssl_context=tls, standard_compatible=False)
    except TimeoutError as fault:
        raise TaskFailed(Reason.TIMEOUT, f"{host}: no TLS handshake within {CONNECT_TIMEOUT_S:.0f} s") from fault
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        raise  # cut, rather than refused: worth another try
    except (ssl.SSLError, ValueError) as fault:
        raise TaskFailed(Reason.TLS, f"{host}: {fault}") from fault


async def _exchange(stream: ByteStream, url: str, user_agent: str, caps: Caps) -> Hop:
    parts = urlsplit(url)
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
    request = h11.Request(
        method="GET",
        target=(parts.path or "/") + (f"?{parts.query}" if "?" in url else ""),
        headers=[
            ("Host", parts.netloc),
            ("User-Agent", user_agent),
            ("Accept", "*/*"),
            ("Accept-Encoding", ACCEPT_ENCODING),
            ("Connection", "close"),
        ],
    )
    await stream.send(http.send(request) + http.send(h11.EndOfMessage()))
    answer = await _head(stream, http, caps)
    headers = _headers(answer)
    location = _location(url, answer.status_code, headers)
    body = b"" if location is not None else await _body(stream, http, headers, caps)
    return Hop(url=url, status=answer.status_code, headers=headers, location=location, body=body)


async def _head(stream: ByteStream, http: h11.Connection, caps: Caps) -> h11.Response:
    while True:
        event = http.next_event()
        if isinstance(event, h11.Response):
            return event
        if event is h11.NEED_DATA:
            await _receive(stream, http, caps)
        elif not isinstance(event, h11.InformationalResponse) or event.status_code == _SWITCHING_PROTOCOLS:
            raise h11.RemoteProtocolError("no HTTP answer came")


async def _body(stream: ByteStream, http: h11.Connection, headers: Mapping[str, str], caps: Caps) -> bytes:
    inflater = Inflater(headers.get("content-encoding", ""), max_bytes=caps.max_decompressed_bytes)
    try:
        # h11 has checked that it is a number; asking it first spares the site sending what we would drop
        if not caps.truncate and int(headers.get("content-length", "0")) > caps.max_bytes:
            raise TaskFailed(Reason.TOO_LARGE, f"Content-Length is over {caps.max_bytes} bytes")
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                await _receive(stream, http, caps)
            elif isinstance(event, h11.Data):
                inflater.feed(bytes(event.data))
            else:
                return inflater.finish()
    except TaskFailed as failure:
        if caps.truncate and failure.reason == Reason.TOO_LARGE:
            return inflater.so_far()
        raise


async def _receive(stream: ByteStream, http: h11.Connection, caps: Caps) -> None:
    try:
        data = await stream.receive(_READ_BYTES)
    except anyio.EndOfStream:
        data = b""  # h11 knows whether that was the right moment
    caps.count(len(data))
    http.receive_data(data)


def _headers(answer: h11.Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in answer.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _location(url: str, status: int, headers: Mapping[str, str]) -> str | None:
    """Where an answer redirects to. Sites send UTF-8 in ``Location`` as often as what the standard wants."""
    if status not in _REDIRECTS or not headers.get("location"):
        return None
    raw = headers["location"].encode("latin-1")
    try:
        return urljoin(url, raw.decode())
    except UnicodeDecodeError:
        return urljoin(url, raw.decode("latin-1"))
    except ValueError as fault:  # brackets that hold no IPv6 address
        raise TaskFailed(Reason.ADDRESS_REFUSED, f"Location {headers['location'][:200]!r}: {fault}") from fault


def _root_cause(fault: BaseException) -> str:
    while fault.__cause__ is not None:
        fault = fault.__cause__
    return str(fault) or type(fault).__name__
