"""The aiohttp application, built from the route table: keys, limits, bodies, queries, envelopes.

Every answer leaves through here. What a handler raises is a fault of ours or of the caller: known ones become their
refusal, any other becomes 500 ``internal`` and a traceback in the log, never in the answer.
"""

from __future__ import annotations

import asyncio
import difflib
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler as AiohttpHandler

from rendezvous.door.auth import bearer
from rendezvous.door.call import ANYONE, Call, Caller, Query, Route, Shown
from rendezvous.door.envelope import data, refusal_of, refused
from rendezvous.door.limits import client_address
from rendezvous.door.numbers import whole_number
from rendezvous.door.protocol import unrouted
from rendezvous.door.resources import Door
from rendezvous.door.routes import ROUTES
from rendezvous.door.storable import storable_fault
from swarm.errors import MalformedInput, SwarmError
from swarm.model import Refusal, RefusalCode
from swarm.wire import check_storable, decode, encode

__all__ = ["build_app"]

log = structlog.get_logger()

#: A body that takes longer than this is cut, seconds.
BODY_TIMEOUT_S: Final = 30.0
#: A client that doesn't take its answer in this time is cut, seconds: 16 MiB at 2 Mbit/s.
SEND_TIMEOUT_S: Final = 60.0
MAX_QUERY_CHARS: Final = 256


def build_app(door: Door) -> web.Application:
    """The application; more routes may be added to it (the guarded IPFS RPC)."""
    app = web.Application(middlewares=[_unrouted])
    for route in ROUTES:
        app.router.add_route(route.method, route.path, _endpoint(route, door))
    return app


@web.middleware
async def _unrouted(request: web.Request, handler: AiohttpHandler) -> web.StreamResponse:
    """Give aiohttp's own "no" the shape of ours."""
    try:
        return await handler(request)
    except web.HTTPException as no:
        if no.status < 400:
            raise
        return unrouted(no, request.path)


def _endpoint(route: Route, door: Door) -> AiohttpHandler:
    async def endpoint(request: web.Request) -> web.StreamResponse:
        try:
            response = await _answer(route, door, request)
        except SwarmError as fault:
            refusal = refusal_of(fault)
            response = _failed(route) if refusal is None else refused(refusal)
        except web.HTTPException:
            raise
        except (ConnectionError, TimeoutError):  # of a stream: whoever read it has gone, or is too slow
            if request.transport is not None:
                request.transport.abort()
            raise
        except Exception:  # noqa: BLE001 -- supervision boundary: a defect answers 500, and the log has the rest
            response = _failed(route)
        door.metrics.count(
            "swarm_http_requests_total", method=route.method, route=route.path, status=str(response.status)
        )
        await _send(request, response)
        return response

    return endpoint


async def _send(request: web.Request, response: web.StreamResponse) -> None:
    """Send a whole answer in time; who doesn't read it is cut. What a handler streams, it sends itself."""
    if not isinstance(response, web.Response):
        return
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await response.prepare(request)
            await response.write_eof()
    except ConnectionError:  # whoever asked has gone; nothing is wrong here
        if request.transport is not None:
            request.transport.abort()
    except TimeoutError:
        log.info("slow_client_cut", path=request.path)
        if request.transport is not None:
            request.transport.abort()


def _failed(route: Route) -> web.Response:
    """Called inside an ``except``: the traceback goes to the log."""
    log.exception("request_failed", method=route.method, route=route.path)
    return refused(Refusal(RefusalCode.INTERNAL, "the root failed at this request; its log has the reason"))


async def _answer(route: Route, door: Door, request: web.Request) -> web.StreamResponse:
    caller = await _caller(route, door, request)
    if isinstance(caller, Refusal):
        return refused(caller)
    queries = _queries(route, request)
    if isinstance(queries, Refusal):
        return refused(queries)
    raw, body = b"", None
    if route.body is not None or route.raw:
        read = await _read(request, route.max_body_bytes)
        if isinstance(read, Refusal):
            return _hang_up(refused(read))
        raw = read
    if route.body is not None:
        if route.body_optional and not raw:
            raw = b"{}"
        body = decode(raw, route.body)
        fault = storable_fault(raw, body)
        if fault is not None:
            return refused(Refusal(RefusalCode.UNSTORABLE_TEXT, f"{fault}; no ledger can keep it"))
    path_fault = check_storable(dict(request.match_info))
    if path_fault is not None:
        return refused(Refusal(RefusalCode.UNSTORABLE_TEXT, f"the path: {path_fault}"))
    reply = await route.handler(door, Call(request=request, caller=caller, raw=raw, body=body, queries=queries))
    if isinstance(reply, web.StreamResponse):
        return reply
    if isinstance(reply, Refusal):
        return refused(reply)
    if isinstance(reply, Shown):
        if reply.enveloped:
            return web.Response(body=encode(reply.value), content_type="application/json", headers=reply.headers)
        return data(reply.value, request=request, status=reply.status, headers=reply.headers)
    return data(reply, request=request, status=route.status)


async def _caller(route: Route, door: Door, request: web.Request) -> Caller | Refusal | None:
    """Whose call it is, charged to its key or address."""
    if route.who == ANYONE:
        if not route.limited:
            return None
        return door.limiter.charge_address(client_address(request, door.trusted_proxies))
    caller = await door.keys.caller(bearer(request.headers.get("Authorization")))
    if isinstance(caller, Refusal):
        return door.limiter.charge_address(client_address(request, door.trusted_proxies)) or caller
    if caller.role not in route.who:
        needed = " or ".join(sorted(route.who))
        return Refusal(RefusalCode.FORBIDDEN, f"this call is for a key of: {needed}; yours is of: {caller.role}")
    return door.limiter.charge_key(caller.digest) or caller


def _queries(route: Route, request: web.Request) -> dict[str, Any] | Refusal:
    """The query parameters, parsed; unknown ones are refused with the nearest name."""
    known = {query.name: query for query in route.queries}
    for name in request.query:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are: {', '.join(known) or 'none'}"
            return Refusal(RefusalCode.BAD_REQUEST, f"there is no query parameter {name[:40]!r}; {hint}")
    found: dict[str, Any] = {}
    for query in route.queries:
        value = _query(query, request.query.get(query.name))
        if isinstance(value, Refusal):
            return value
        found[query.name] = value
    return found


def _query(query: Query, text: str | None) -> Any:
    if text is None:
        if query.required:
            return Refusal(RefusalCode.BAD_REQUEST, f"the query parameter {query.name} is missing: {query.help}")
        return query.default
    fault = check_storable(text)
    if fault is not None:
        return Refusal(RefusalCode.UNSTORABLE_TEXT, f"{query.name}: {fault}")
    if query.at_most is not None:
        number = whole_number(text, at_most=query.at_most)
        if number is None or number < query.at_least:
            return Refusal(
                RefusalCode.BAD_REQUEST, f"{query.name} is a whole number from {query.at_least} to {query.at_most}"
            )
        return number
    if query.choices and text not in query.choices:
        return Refusal(RefusalCode.BAD_REQUEST, f"{query.name} is one of: {', '.join(query.choices)}")
    if len(text) > MAX_QUERY_CHARS:
        return Refusal(RefusalCode.BAD_REQUEST, f"{query.name} has at most {MAX_QUERY_CHARS} characters")
    return text


async def _read(request: web.Request, max_bytes: int) -> bytes | Refusal:
    """The body, within its cap and in time."""
    too_large = Refusal(RefusalCode.BODY_TOO_LARGE, f"the body is longer than the {max_bytes} bytes this call takes")
    if request.content_length is not None and request.content_length > max_bytes:
        return too_large
    pieces: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.content.iter_any():
                size_bytes += len(piece)
                if size_bytes > max_bytes:
                    return too_large
                pieces.append(piece)
    except TimeoutError:
        return Refusal(RefusalCode.BAD_REQUEST, f"the body took longer than {BODY_TIMEOUT_S:.0f} s to arrive")
    except web.RequestPayloadError as fault:
        raise MalformedInput(f"the body can't be read: {fault}") from fault
    return b"".join(pieces)


def _hang_up(response: web.Response) -> web.Response:
    """Don't read the rest of a body that was refused."""
    response.force_close()
    return response
