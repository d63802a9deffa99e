"""A key is for one door: whoever redirects a request to another address doesn't send the key there too."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import trio

from rendezvous import operate
from swarm.client import Client
from swarm.content.cid import raw_cid
from swarm.door_calls import call
from swarm.errors import SwarmError
from swarm.ipfs import IpfsUploader
from swarm.worker.ipfs_address import door_multiaddr

KEY = "key-of-alice"


@contextlib.contextmanager
def _server(status: int, location: str | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """An address, and the ``Authorization`` of each request that came to it."""
    heard: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            heard.append(self.headers.get("authorization"))
            self.send_response(status)
            if location is not None:
                self.send_header("location", location + self.path)
            self.send_header("content-length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", heard
        finally:
            server.shutdown()
            thread.join()


def _a_requester(url: str) -> None:
    with Client(url, KEY, patience_s=0.0) as client:
        client.account()


def _an_operator(url: str) -> None:
    operate._request("GET", url, "/v1/admin/acts", KEY)


def _a_worker(url: str) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            await call(http, "POST", f"{url}/v1/turns", api_key=KEY, body=b"{}")

    trio.run(ask)


def _an_upload(url: str) -> None:
    with IpfsUploader(door_multiaddr(url), api_key=KEY) as uploader:
        uploader.put_blocks([(raw_cid(b"block"), b"block")])


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("ask", [_a_requester, _an_operator, _a_worker, _an_upload])
def test_a_key_does_not_follow_a_redirect(ask: Callable[[str], None], status: int) -> None:
    with (
        _server(200) as (elsewhere, heard_elsewhere),
        _server(status, elsewhere) as (door, heard),
        pytest.raises(SwarmError),
    ):
        ask(door)
    assert heard == [f"Bearer {KEY}"]
    assert set(heard_elsewhere) <= {None}
