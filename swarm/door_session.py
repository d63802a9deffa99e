"""One session with the door: turns and pushes over one WebSocket, from the handshake to a clean close.

The recipes and traps of facts/skeleton.md §4 are kept here: TLS is shaken hands on before the WebSocket is (an
untrusted certificate would hang otherwise), a reader always reads (unread messages stop pongs), pings find a frozen
door, the close is waited for while the reader lives, and the socket is closed by ourselves (the library leaves it open
after a close by the server). It knows no enrolment, no retries and no other doors.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult, urlsplit

import structlog
import trio
import trio_websocket
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection

from swarm.errors import DoorRefused, DoorUnreachable, MalformedInput
from swarm.model import RefusalCode
from swarm.reasons import reason_of
from swarm.turn_wire import CancelPush, Frame, GrantPush, Nudge, PausePush, Turn, TurnAnswer, TurnRefused
from swarm.wire import MAX_TURN_BYTES, Answer, ErrorBody, decode, encode

__all__ = ["Push", "Session", "refused_by", "run_session"]

log = structlog.get_logger()

Push = Nudge | CancelPush | PausePush | GrantPush

CONNECT_S: Final = 10.0
HANDSHAKE_S: Final = 10.0
#: An answer that takes longer than the shortest lease is as good as lost; the turn is repeated by number.
ANSWER_S: Final = 15.0
PING_EVERY_S: Final = 5.0
PONG_S: Final = 5.0
CLOSE_S: Final = 2.0
#: Answers carry up to 256 tasks of 64 KiB in the worst case; more than a turn may be.
MAX_FRAME_BYTES: Final = 4 * MAX_TURN_BYTES
#: The library's default of one stops pongs as soon as three messages are unread.
QUEUED_MESSAGES: Final = 64
#: The door ended the session since the worker's key was revoked (``rendezvous.door.session``).
CLOSE_REVOKED: Final = 4001


class _ErrorEnvelope(Answer, frozen=True):
    error: ErrorBody


def refused_by(status: int, body: bytes | None) -> DoorRefused | None:
    """The door's "no" in an HTTP answer; None where the answer isn't one of our door's."""
    try:
        error = decode(body or b"", _ErrorEnvelope, max_bytes=MAX_TURN_BYTES).error
    except MalformedInput:
        return None
    return DoorRefused(
        error.code, error.message, status=status, retry_after_s=error.retry_after_s, details=error.details
    )


class Session:
    """An open session; made by ``run_session``.

    Attributes:
        ending: set when the session is over or is to be closed.
    """

    def __init__(self, url: str, socket: WebSocketConnection, push: Callable[[Push], None]) -> None:
        self.url = url
        self.ending = trio.Event()
        self._socket = socket
        self._push = push
        self._put, self._answers = trio.open_memory_channel[TurnAnswer | TurnRefused](QUEUED_MESSAGES)
        self._why = "the session was closed"
        self._code: int | None = None
        #: What the operator said of it.
        self._said = ""

    async def exchange(self, turn: Turn) -> TurnAnswer | TurnRefused:
        """Say one turn and wait for its answer; one at a time.

        Raises:
            DoorUnreachable: no answer came; the session is over, the same turn has to be repeated in another one.
            DoorRefused: the session was ended since the key was revoked.
        """
        try:
            with trio.fail_after(ANSWER_S):
                await self._socket.send_message(encode(turn))
                while True:
                    answer = await self._answers.receive()
                    if answer.n == turn.n or (answer.n == 0 and isinstance(answer, TurnRefused)):
                        return answer
        except (trio.TooSlowError, trio.EndOfChannel, ConnectionClosed) as fault:
            self._why = "no answer to a turn in time" if isinstance(fault, trio.TooSlowError) else self._why
            self.ending.set()
            raise self.fault() from fault

    def fault(self) -> DoorUnreachable | DoorRefused:
        """Why the session is over."""
        if self._code == CLOSE_REVOKED:
            told = f": {self._said}" if self._said else ""
            return DoorRefused(RefusalCode.KEY_REVOKED, f"the operator revoked this worker's key{told}", status=401)
        return DoorUnreachable(self.url, self._why)

    async def read(self) -> None:
        """Take in frames until the socket is closed."""
        with self._put:
            try:
                while True:
                    frame = decode(await self._socket.get_message(), Frame, max_bytes=MAX_FRAME_BYTES)  # type: ignore[arg-type,var-annotated]
                    if isinstance(frame, (TurnAnswer, TurnRefused)):
                        self._put.send_nowait(frame)
                    else:
                        self._push(frame)
            except ConnectionClosed as closed:
                if closed.reason is not None:
                    self._code = closed.reason.code
                    self._said = (closed.reason.reason or "").partition(": ")[2].strip()
                    self._why = f"the door closed the session ({closed.reason.code} {closed.reason.reason or ''})"
            except (MalformedInput, trio.WouldBlock) as fault:
                self._why = f"the door sent what can't be understood: {fault}"
            finally:
                self.ending.set()

    async def beat(self) -> None:
        """Ping, so that a frozen or half-open door is noticed within ten seconds."""
        try:
            while True:
                await trio.sleep(PING_EVERY_S)
                with trio.fail_after(PONG_S):
                    await self._socket.ping()
        except trio.TooSlowError:
            self._why = f"the door didn't answer a ping within {PONG_S:g} s"
        except ConnectionClosed:
            pass
        finally:
            self.ending.set()


async def run_session(
    url: str,
    api_key: str,
    *,
    tls: ssl.SSLContext,
    push: Callable[[Push], None],
    opened: Callable[[Session], None],
) -> None:
    """Open a session and keep it until its ``ending`` is set, by the door, by a fault, or by the caller.

    Args:
        url: the door's base URL.
        api_key: the worker's.
        tls: checks the door's certificate.
        push: told what the door says first; must not block.
        opened: told the session once turns can be said.

    Raises:
        DoorUnreachable: there was no session, or it broke.
        DoorRefused: the door turned this worker away.

    *Resource handling*: the socket is closed when this returns, by a WebSocket close where there is time for one.
    """
    where = urlsplit(url)
    stream = await _connect(url, where, tls)
    try:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(HANDSHAKE_S):
                socket = await trio_websocket.wrap_client_stream(
                    nursery,
                    stream,
                    where.netloc.rpartition("@")[2],
                    f"{where.path}/v1/session",
                    extra_headers=[(b"Authorization", f"Bearer {api_key}".encode())],
                    message_queue_size=QUEUED_MESSAGES,
                    max_message_size=MAX_FRAME_BYTES,
                    receive_buffer_size=None,
                )
            session = Session(url, socket, push)
            nursery.start_soon(session.read)
            nursery.start_soon(session.beat)
            opened(session)
            await session.ending.wait()
            with trio.move_on_after(CLOSE_S):
                await socket.aclose()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        fault = _translated(url, group)
        if fault is None:
            raise
        raise fault from group
    finally:
        await trio.aclose_forcefully(stream)
    raise session.fault()


async def _connect(url: str, where: SplitResult, tls: ssl.SSLContext) -> trio.SocketStream | trio.SSLStream:
    host = where.hostname or ""
    stream: trio.SocketStream | trio.SSLStream | None = None
    try:
        with trio.fail_after(CONNECT_S):
            tcp = stream = await trio.open_tcp_stream(host, where.port or (443 if where.scheme == "https" else 80))
            if where.scheme == "https":
                stream = trio.SSLStream(tcp, tls, server_hostname=host, https_compatible=True)
                await stream.do_handshake()
            return stream
    except (OSError, trio.TooSlowError, trio.BrokenResourceError, UnicodeError) as fault:
        if stream is not None:
            await trio.aclose_forcefully(stream)
        raise DoorUnreachable(url, reason_of(fault)) from fault


def _translated(url: str, group: BaseExceptionGroup[BaseException]) -> DoorUnreachable | DoorRefused | None:
    """The one fault that says what happened; None where it is more than a door that failed."""
    known, rest = group.split((ConnectionRejected, ConnectionClosed, trio.TooSlowError, trio_websocket.HandshakeError))
    if rest is not None or known is None:
        return None
    first: BaseException = known
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, ConnectionRejected):
        refused = refused_by(first.status_code, first.body)
        if refused is not None:
            return refused
        return NoWebSocket(url, f"it answered {first.status_code} to a WebSocket")
    return DoorUnreachable(url, reason_of(first))


class NoWebSocket(DoorUnreachable):
    """Something between us and the door doesn't pass WebSockets."""
