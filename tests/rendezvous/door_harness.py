"""A door in the test's own loop: the real application, the real ledger on SQLite, the real block store.

``door(tmp_path)`` opens one; ``stage.worker("alice")`` enrols a worker by its keys, ``stage.requester("carol")`` has a
requester's key. Nothing leaves the process but loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import attrs
from aiohttp.test_utils import TestServer

from rendezvous.directory import LEDGER, open_directory
from rendezvous.door.auth import digest_of, new_key
from rendezvous.door.protocol import DoorRunner
from rendezvous.door.resources import Door
from rendezvous.ledger.act_ops import PutKey
from rendezvous.root import open_door
from rendezvous.settings import RootSettings
from swarm.content.cid import raw_cid
from swarm.content.manifest import Manifest, encode_manifest
from swarm.model import Role
from swarm.signing import enrolment_digest, peer_id_from_seed, sign_enrolment
from swarm.wire import Hello, NewTask, encode
from tests.empty_ledger import write_empty_ledger
from tests.patience import PATIENCE_S

HELLO = Hello(version="0.1.0", kinds={"noop": "1", "fetch": "1"}, slots=8)


@attrs.frozen(kw_only=True)
class Reply:
    """An answer of the door."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def data(self) -> Any:
        assert self.status < 400, self.body
        return self.body["data"]

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


@attrs.define(kw_only=True)
class Caller:
    """Somebody with a key."""

    http: aiohttp.ClientSession
    url: str
    key: str | None

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key is not None:
            sent.setdefault("Authorization", f"Bearer {self.key}")
        raw = None if body is None else io.BytesIO(body if isinstance(body, bytes) else encode(body))
        async with (
            asyncio.timeout(PATIENCE_S),
            self.http.request(method, self.url + path, data=raw, headers=sent) as answer,
        ):
            content = await answer.read()
            is_json = answer.content_type == "application/json"
            return Reply(status=answer.status, body=json.loads(content) if is_json else content, headers=answer.headers)

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.call("GET", path, **headers)

    async def post(self, path: str, body: object = None, **headers: str) -> Reply:
        return await self.call("POST", path, body, **headers)


@attrs.define(kw_only=True)
class Worker(Caller):
    """A worker of the tests: its two keys and its turns."""

    address: str
    instance: str
    eth_key: bytes
    seed: bytes
    boot: str = "boot-0001"
    n: int = 0

    def turn(self, **said: Any) -> dict[str, Any]:
        self.n += 1
        turn = {"boot": self.boot, "n": self.n, "free": 8, **said}
        if self.n == 1:
            turn.setdefault("hello", HELLO)
        return turn

    async def take(self, **said: Any) -> Any:
        """One turn over HTTP."""
        return (await self.post("/v1/turns", self.turn(**said))).data

    def manifest(self, task: str, **changes: Any) -> bytes:
        return encode_manifest(Manifest(**{"task": task, "worker": self.address, "kind": "noop", **changes}))

    def done(self, grant: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
        body = self.manifest(grant["task"]["id"], **changes)
        return {"task": grant["task"]["id"], "fence": grant["fence"], "cid": raw_cid(body), "manifest": body}


@attrs.define(kw_only=True)
class Stage:
    """An open door and those who call it."""

    door: Door
    url: str
    http: aiohttp.ClientSession
    operator: Caller

    @property
    def anyone(self) -> Caller:
        return Caller(http=self.http, url=self.url, key=None)

    async def requester(self, name: str) -> Caller:
        key = new_key(Role.REQUESTER)
        await self.door.ledger.call(PutKey(digest=digest_of(key), role=Role.REQUESTER, owner=name))
        return Caller(http=self.http, url=self.url, key=key)

    async def asks_and_is_cut(self, call: str, key: str) -> None:
        """Ask for something large, read nothing of the answer, and wait until the door has cut the connection."""
        host, port = self.url.removeprefix("http://").split(":")
        loop = asyncio.get_running_loop()
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            await loop.sock_connect(deaf, (host, int(port)))
            await loop.sock_sendall(deaf, f"{call} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        deaf.send(b"\r")
                    except ConnectionError:
                        return
                    await asyncio.sleep(0.05)

    def enrolment(self, name: str, challenge: str, **changes: Any) -> tuple[dict[str, Any], bytes, bytes]:
        from eth_account import Account

        eth_key = hashlib.sha256(f"eth {name}".encode()).digest()
        seed = hashlib.sha256(f"peer {name}".encode()).digest()
        address = Account.from_key(eth_key).address
        signed = {
            "challenge": challenge, "address": address, "payout": address, "instance": f"instance-{name}", **changes
        }  # fmt: skip
        digest = enrolment_digest(
            network_id=self.door.site.charter.network_id,
            root_peer=self.door.site.key_id,
            **{key: signed[key] for key in ("challenge", "address", "payout", "instance")},
        )
        signature, peer_signature = sign_enrolment(eth_key, seed, digest)
        request = {
            "peer_id": peer_id_from_seed(seed), "signature": signature, "peer_signature": peer_signature, **signed
        }  # fmt: skip
        return request, eth_key, seed

    async def challenge(self) -> str:
        return str((await self.anyone.get("/settings")).body["data"]["challenge"])

    async def worker(self, name: str, **changes: Any) -> Worker:
        request, eth_key, seed = self.enrolment(name, self.door.site.new_challenge(), **changes)
        enrolled = (await self.anyone.post("/v1/enrolments", request)).data
        return Worker(
            http=self.http,
            url=self.url,
            key=enrolled["api_key"],
            address=enrolled["address"],
            instance=enrolled["instance"],
            eth_key=eth_key,
            seed=seed,
        )

    async def submit(self, caller: Caller, number: int = 1, **task: Any) -> list[str]:
        """Submit tasks of their own hosts, so that pacing doesn't hold them."""
        made = [NewTask(**{"kind": "noop", "urls": (f"http://h{one}.example/",), **task}) for one in range(number)]
        answer = (await caller.post("/v1/tasks", {"tasks": made})).data
        return [one["id"] for one in answer["tasks"]]


class Served(TestServer):
    """The application as a root serves it."""

    async def _make_runner(self, **how: Any) -> DoorRunner:
        return DoorRunner(self.app, **how)


@contextlib.asynccontextmanager
async def door(tmp_path: Path, **settings: Any) -> AsyncIterator[Stage]:
    """Open a door, as a root without a peer opens it."""
    chosen = RootSettings(data=tmp_path / "root", p2p=False, **settings)
    if chosen.ledger is None and not chosen.data.exists():
        with open_directory(chosen.data, name=chosen.name):
            write_empty_ledger(chosen.data / LEDGER)
    async with contextlib.AsyncExitStack() as stack:
        opened = await stack.enter_async_context(open_door(chosen, stop=asyncio.Event()))
        server = Served(opened.app)
        await stack.enter_async_context(server)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        url = str(server.make_url("")).rstrip("/")
        operator = Caller(http=http, url=url, key=opened.directory.operator_key())
        yield Stage(door=opened.door, url=url, http=http, operator=operator)
        await opened.door.sessions.close_all()
