"""What aiohttp answers before, or instead of, the application: in the shape of every other refusal.

Bytes that aren't HTTP, lines that are too long and an ``Expect`` that nobody meets never reach a route. What is left as
aiohttp has it: a connection that is cut while its request arrives or its answer leaves gets nothing, as before.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from rendezvous.door.envelope import refused
from swarm.model import Refusal, RefusalCode

__all__ = ["DoorRunner", "unrouted"]

_EXPECTATION_FAILED: Final = 417


def unrouted(no: web.HTTPException, path: str) -> web.Response:
    """Aiohttp's own "no" in the shape of ours.

    Args:
        no: of a status from 400 on.
        path: what was asked for.
    """
    if isinstance(no, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(no.allowed_methods))
        return refused(Refusal(RefusalCode.METHOD_NOT_ALLOWED, f"{path} takes {allowed}"), headers={"Allow": allowed})
    if isinstance(no, web.HTTPNotFound):
        return refused(Refusal(RefusalCode.NOT_FOUND, "there is nothing here; GET /docs lists the calls"))
    if isinstance(no, web.HTTPRequestEntityTooLarge):
        return refused(Refusal(RefusalCode.BODY_TOO_LARGE, "the body is longer than this call takes"))
    if no.status == _EXPECTATION_FAILED:
        return refused(Refusal(RefusalCode.EXPECTATION_FAILED, "of Expect only 100-continue is met"))
    return refused(Refusal(RefusalCode.BAD_REQUEST, no.reason))


class _Handler(RequestHandler):
    """One connection."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what couldn't be parsed, or a handler that broke; the connection ends with it."""
        super().handle_error(request, status, exc, message)  # logs, and refuses to answer twice
        if status >= 500:
            refusal = Refusal(RefusalCode.INTERNAL, "the root failed at this request; its log has the reason")
        elif isinstance(exc, LineTooLong):
            limit_bytes = exc.args[1]
            refusal = Refusal(
                RefusalCode.HEADERS_TOO_LARGE, f"a line of the request's head is longer than {limit_bytes} bytes"
            )
        else:
            refusal = Refusal(RefusalCode.BAD_REQUEST, "this isn't a request of HTTP/1.1")
        response = refused(refusal)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; what was refused outside of the application's middlewares is put in its shape first."""
        if isinstance(resp, web.HTTPException) and resp.status >= 400 and not resp.prepared:
            resp = unrouted(resp, request.path)
        return await super().finish_response(request, resp, start_time)


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Handler(self, loop=self._loop, **self._kwargs)


class DoorRunner(web.AppRunner):
    """Serves the application; the same as aiohttp's own but for the shape of its refusals."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            loop=asyncio.get_running_loop(),
            **made._kwargs,
        )
