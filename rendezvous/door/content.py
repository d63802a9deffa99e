"""``GET /v1/content/{cid}``: blocks by CID for requesters."""

from __future__ import annotations

from aiohttp import web

from rendezvous.door.call import Call
from rendezvous.door.resources import Door
from swarm.content.cid import parse_cid
from swarm.errors import MalformedInput
from swarm.model import Refusal, RefusalCode

__all__ = ["content"]


async def content(door: Door, call: Call) -> web.Response | Refusal:
    """One block, raw. A CID can't be guessed: who knows it was given it. The client checks the bytes against it."""
    try:
        parse_cid(call.path("cid"))
    except MalformedInput as fault:
        return Refusal(RefusalCode.BAD_REQUEST, str(fault))
    block = await door.store.get(call.path("cid"))
    if block is None:
        return Refusal(RefusalCode.NOT_FOUND, f"the block {call.path('cid')} isn't here (any more)")
    return web.Response(
        body=block,
        content_type="application/vnd.ipld.raw",
        headers={
            # What a site sent is never run in the door's own origin, and never changes.
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": "attachment",
            "Cache-Control": "private, max-age=31536000, immutable",
        },
    )
