"""A door on the loopback for tests of its client: real sockets, HTTP and WebSocket on one port, played by the test."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import h11
import msgspec
import trio
import trio_websocket
from trio_websocket import ConnectionClosed

from swarm.errors import MalformedInput
from swarm.signing import JoinLink, enrolment_fault, peer_id_from_seed, sign_settings
from swarm.turn_wire import Turn, TurnAnswer, TurnRefused
from swarm.wire import Enrolled, Enrolment, Settings, SwarmSettings, decode, encode
from tests.patience import PATIENCE_S

Answer = Callable[[Turn], TurnAnswer | TurnRefused | bytes | None]


class Replayed(trio.abc.HalfCloseableStream):
    """A stream whose first bytes were read already."""

    def __init__(self, stream: Any, read: bytes) -> None:
        self._stream = stream
        self._read = read

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._read:
            read, self._read = self._read, b""
            return read
        received: bytes = await self._stream.receive_some(max_bytes)
        return received

    async def send_all(self, data: Any) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class DoorServer:
    """What the door does is in its attributes; change them while it runs.

    Attributes:
        seed: of the key that signs the settings.
        names_itself: False where the settings don't name this door among the swarm's.
        refuse: path → (status, code) that it is refused with.
        says: path → (status, body) that it is answered with, whatever it is; a redirect goes to the same path.
        answer: what a turn is answered with; None: nothing.
        upgrades: False where something in between doesn't pass WebSockets.
        revoked: the keys that the operator revoked.
        asked: the path of each call and session so far.
        heard_keys: every key that was sent here, whether it is known or not.
    """

    def __init__(self) -> None:
        self.seed = secrets.token_bytes(32)
        self.network_id = "network-one"
        self.doors: tuple[str, ...] = ()
        self.names_itself = True
        self.refuse: dict[str, tuple[int, str]] = {}
        self.says: dict[str, tuple[int, bytes]] = {}
        self.answer: Answer = lambda turn: TurnAnswer(n=turn.n)
        self.upgrades = True
        self.tamper = False
        self.enrolments: list[Enrolment] = []
        self.faults: list[str | None] = []
        self.keys: set[str] = set()
        self.revoked: set[str] = set()
        self.asked: list[str] = []
        self.heard_keys: set[str] = set()
        self.turns: list[Turn] = []
        self.posted: list[Turn] = []
        self.sessions: list[Any] = []
        self.closed: list[int] = []
        self.changed = trio.Event()
        self.url = ""

    @property
    def key_id(self) -> str:
        return peer_id_from_seed(self.seed)

    def link(self, *, with_key: bool = True) -> JoinLink:
        return JoinLink(url=self.url, invite="sesame", key_id=self.key_id if with_key else None)

    def tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self.changed.wait()

    # ── what it serves ────────────────────────────────────────────────────────────────────────────────────────────

    async def handle(self, stream: Any) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            received = await stream.receive_some()
            if not received:
                return
            head += received
        if b"upgrade: websocket" in head.lower() and self.upgrades:
            await self._serve_session(Replayed(stream, head), head)
        else:
            await self._serve_calls(stream, head)

    async def _serve_calls(self, stream: Any, read: bytes) -> None:
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(read)
        request: Any = None
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                status, answer = self._call(request, body)
                headers = [("Content-Length", str(len(answer))), ("Content-Type", "application/json")]
                if 300 <= status < 400:
                    headers.append(("Location", request.target.decode()))
                response = h11.Response(status_code=status, headers=headers)
                await stream.send_all(
                    (connection.send(response) or b"")
                    + (connection.send(h11.Data(data=answer)) or b"")
                    + (connection.send(h11.EndOfMessage()) or b"")
                )
                self.tell()
                connection.start_next_cycle()
            else:
                return

    def _call(self, request: h11.Request, body: bytes) -> tuple[int, bytes]:
        path = request.target.decode().partition("?")[0]
        key = dict(request.headers).get(b"authorization", b"").decode().removeprefix("Bearer ")
        self.heard_keys |= {key} - {""}
        self.asked.append(path)
        if path in self.says:
            return self.says[path]
        if path in self.refuse:
            status, code = self.refuse[path]
            return status, refusal(code)
        if path == "/settings":
            return 200, self.settings()
        if path == "/v1/enrolments":
            return 201, self._enrol(decode(body, Enrolment))
        if key not in self.keys:
            return 401, refusal(self._unfit(key))
        if path == "/v1/turns":
            turn = decode(body, Turn)
            self.posted.append(turn)
            return 200, encode({"data": TurnAnswer(n=turn.n)})
        if path == "/v1/robots":
            return 200, encode({"data": {"origin": "http://site", "rules": "", "fresh_s": 60.0, "news": True}})
        return 404, b"<html>a proxy's page</html>"

    def revoke(self) -> None:
        """Revoke every key that was given so far."""
        self.revoked |= self.keys
        self.keys.clear()

    def _unfit(self, key: str) -> str:
        return "key_revoked" if key in self.revoked else "unauthorized"

    def settings(self) -> bytes:
        settings = Settings(
            peer=None,
            ethereum=None,
            swarm=SwarmSettings(
                name="test",
                network_id=self.network_id,
                rendezvous_tag="tag",
                admission="invite",
                roots=(self.key_id,),
                doors=(self.url, *self.doors) if self.names_itself else self.doors,
            ),
            challenge=secrets.token_hex(8),
        )
        body = encode(sign_settings(self.seed, encode(settings)))
        return body.replace(b"test", b"evil") if self.tamper else body

    def _enrol(self, enrolment: Enrolment) -> bytes:
        self.enrolments.append(enrolment)
        self.faults.append(enrolment_fault(enrolment, network_id=self.network_id, root_peer=self.key_id))
        key = f"key-{len(self.enrolments)}"
        self.keys.add(key)
        enrolled = Enrolled(
            api_key=key, address=enrolment.address, payout=enrolment.payout, instance=enrolment.instance
        )
        return encode({"data": enrolled})

    async def _serve_session(self, stream: Replayed, head: bytes) -> None:
        key = head.partition(b"Bearer ")[2].partition(b"\r\n")[0].decode()
        self.heard_keys.add(key)
        self.asked.append("/v1/session")
        self.tell()
        async with trio.open_nursery() as nursery:
            request = await trio_websocket.wrap_server_stream(nursery, stream)  # type: ignore[arg-type]
            if "/v1/session" in self.refuse or key not in self.keys:
                status, code = self.refuse.get("/v1/session", (401, self._unfit(key)))
                await request.reject(status, body=refusal(code))
                nursery.cancel_scope.cancel()
                return
            socket = await request.accept()
            self.sessions.append(socket)
            self.tell()
            try:
                while True:
                    turn = decode(await socket.get_message(), Turn)
                    self.turns.append(turn)
                    answer = self.answer(turn)
                    self.tell()
                    if answer is not None:
                        await socket.send_message(answer if isinstance(answer, bytes) else encode(answer))
            except (ConnectionClosed, MalformedInput) as fault:
                reason = getattr(fault, "reason", None)
                self.closed.append(reason.code if reason is not None else -1)
                self.tell()  # the nursery ends with the reader, after the close was shaken hands on


def refusal(code: str) -> bytes:
    return encode({"error": {"code": code, "message": f"no: {code}", "news": [1]}})


def frame(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


@asynccontextmanager
async def open_door_server(*, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[DoorServer]:
    server = DoorServer()
    (listener,) = await trio.open_tcp_listeners(0, host=host)
    port = listener.socket.getsockname()[1]
    server.url = f"{'http' if tls is None else 'https'}://{host}:{port}"

    async def handle(stream: Any) -> None:
        shown = stream if tls is None else trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            await server.handle(shown)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        try:
            yield server
        finally:
            nursery.cancel_scope.cancel()
