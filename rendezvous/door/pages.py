"""The few pages that a person's browser may open: the start, the docs, and a join link."""

from __future__ import annotations

import html
from typing import Final

from aiohttp import web

from rendezvous.door.call import Call
from rendezvous.door.openapi import page
from rendezvous.door.resources import Door

__all__ = ["HEADERS", "join", "start"]

#: These pages run no script and load nothing.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


async def start(door: Door, call: Call) -> web.Response:
    """What this is, and where to go on."""
    del call
    name = html.escape(door.site.charter.name)
    body = (
        f"<p>This is the door of the task swarm <b>{name}</b>.</p>"
        "<ul><li><a href='docs'>the calls</a>, <a href='openapi.json'>openapi.json</a></li>"
        "<li><a href='settings'>settings</a>, as a worker reads them</li></ul>"
        "<p>To work for it, ask its operator for a join link: <code>swarm-worker 'LINK'</code>.</p>"
        "<p>To have pages scraped, ask for a key, then: <code>swarm login URL</code> with this page's address, and "
        "<code>swarm submit urls.txt</code>.</p>"
    )
    return web.Response(text=page("Task swarm", body), content_type="text/html", headers=HEADERS)


async def join(door: Door, call: Call) -> web.Response:
    """Somebody opened a join link in a browser."""
    del call
    body = (
        f"<p>This link admits a worker to the task swarm <b>{html.escape(door.site.charter.name)}</b>.</p>"
        "<p>Copy the whole address, with what stands behind <code>#</code>, and run on the machine that shall work:</p>"
        "<pre>swarm-worker 'THE WHOLE ADDRESS'</pre>"
    )
    return web.Response(text=page("Join the swarm", body), content_type="text/html", headers=HEADERS)
