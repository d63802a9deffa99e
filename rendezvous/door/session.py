"""The session: turns over one WebSocket, and what the door says first (nudge, cancel, shutdown).

One reader takes turns in the order they arrive; pushes go out beside it through a small queue that a slow worker can
fill only once: nudges merge, and a full queue ends the session, since a worker that can't hear a cancel must not go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import structlog
from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from rendezvous.door.call import Call, Caller
from rendezvous.door.envelope import error_body, refusal_of
from rendezvous.door.limits import client_address
from rendezvous.door.resources import Door
from rendezvous.door.storable import storable_fault
from rendezvous.fleet import Worker
from swarm.errors import MalformedInput, SwarmError
from swarm.model import Refusal, RefusalCode, TaskId
from swarm.turn_wire import CancelPush, Frame, GrantPush, Nudge, PausePush, Turn, TurnAnswer, TurnRefused
from swarm.wire import MAX_TURN_BYTES, decode, encode

__all__ = ["CLOSE_REPLACED", "CLOSE_REVOKED", "Sessions", "session"]

log = structlog.get_logger()

#: The worker opened another session.
CLOSE_REPLACED: Final = 4000
#: The worker's key was revoked: it must not come back.
CLOSE_REVOKED: Final = 4001
CLOSE_GOING_AWAY: Final = 1001
CLOSE_POLICY: Final = 1008
#: A half-open connection is noticed within half as long again (facts/skeleton.md §4), seconds.
HEARTBEAT_S: Final = 20.0
#: A worker that doesn't take an answer in this time is cut, seconds.
SEND_TIMEOUT_S: Final = 20.0
#: How long all sessions together may take to close at a shutdown, seconds.
CLOSE_TIMEOUT_S: Final = 2.0
#: How often a session's key is looked up again, seconds.
RECHECK_S: Final = 5.0
#: Messages that aren't turns that a session may send before it is ended.
MAX_FAULTS: Final = 5
MAX_QUEUED: Final = 64
#: What a close frame has room for beside its code.
MAX_REASON_BYTES: Final = 123
#: aiohttp refuses a message of exactly its limit.
_ROOM_BYTES: Final = 64


class _Session:
    """One open session; ``rendezvous.fleet.Pushes``."""

    def __init__(self, socket: web.WebSocketResponse, caller: Caller, transport: asyncio.WriteTransport | None) -> None:
        self.socket = socket
        self.caller = caller
        self._transport = transport
        self._queue: asyncio.Queue[Frame] = asyncio.Queue(MAX_QUEUED)
        self._nudging = False
        self._end: tuple[int, str] | None = None
        self._ended = asyncio.Event()

    def nudge(self) -> None:
        if not self._nudging:
            self._nudging = True
            self._put(Nudge())

    def cancel(self, tasks: tuple[TaskId, ...]) -> None:
        self._put(CancelPush(tasks=tasks))

    def grant(self, push: GrantPush) -> None:
        self._put(push)

    def pause(self, reason: str | None) -> None:
        self._put(PausePush(reason=reason))

    def close(self, code: int, reason: str) -> None:
        if self._end is None:
            self._end = (code, reason)
            self._ended.set()

    def _put(self, frame: Frame) -> None:
        try:
            self._queue.put_nowait(frame)
        except asyncio.QueueFull:
            self.close(CLOSE_POLICY, "too slow: pushes were left unread")

    async def send(self, frame: Frame) -> None:
        """Send one frame.

        Raises:
            TimeoutError: the worker didn't take it in time; it was cut, since a goodbye wouldn't reach it either.
            ConnectionError: the worker has gone.
        """
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self.socket.send_bytes(encode(frame))
        except (TimeoutError, ConnectionError):
            if self._transport is not None:
                self._transport.abort()
            raise

    async def push(self) -> None:
        """Send what was queued, until the session is to end; then end it."""
        ending = asyncio.create_task(self._ended.wait())
        try:
            while self._end is None:
                getting = asyncio.create_task(self._queue.get())
                await asyncio.wait({getting, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    break
                frame = getting.result()
                if isinstance(frame, Nudge):
                    self._nudging = False
                await self.send(frame)
        except (TimeoutError, ConnectionError):
            log.info("session_cut", reason="the worker doesn't read its pushes", worker=self.caller.owner)
            self.close(CLOSE_POLICY, "too slow: a push was left unread")
        finally:
            ending.cancel()
        code, reason = self._end or (CLOSE_GOING_AWAY, "")
        # cut between characters: a close with half of one would be a protocol error, and its code lost
        told = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
        await self.socket.close(code=code, message=told)


class Sessions:
    """All open sessions, so that they can be closed together."""

    def __init__(self) -> None:
        self._open: set[_Session] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: _Session) -> None:
        """Note an open session."""
        self._open.add(one)

    def discard(self, one: _Session) -> None:
        """Forget a closed session."""
        self._open.discard(one)

    async def recheck(self, door: Door) -> None:
        """Close the sessions whose key was revoked; runs until cancelled."""
        while True:
            await asyncio.sleep(RECHECK_S)
            for one in list(self._open):
                try:
                    caller = await door.keys.caller_by_digest(one.caller.digest)
                except SwarmError as fault:
                    log.warning("key_recheck_failed", error=str(fault))
                    break
                if isinstance(caller, Refusal):
                    one.close(CLOSE_REVOKED, f"{caller.code.value}: {(caller.details or {}).get('why', '')}")

    async def close_all(self) -> None:
        """Say goodbye to every worker, together, within ``CLOSE_TIMEOUT_S``."""
        closing = [
            asyncio.create_task(one.socket.close(code=CLOSE_GOING_AWAY, message=b"the root is stopping"))
            for one in self._open
        ]
        if not closing:
            return
        _, late = await asyncio.wait(closing, timeout=CLOSE_TIMEOUT_S)
        for one in late:
            one.cancel()


async def session(door: Door, call: Call) -> web.StreamResponse | Refusal:
    """Take a worker's turns for as long as it stays connected."""
    caller = call.who
    if caller.worker is None or caller.payout is None:
        return Refusal(RefusalCode.FORBIDDEN, "this key isn't bound to a worker; enrol first")
    if not web.WebSocketResponse().can_prepare(call.request):
        return Refusal(RefusalCode.BAD_REQUEST, "this is a WebSocket; send an upgrade, or use POST /v1/turns")
    worker = await door.fleet.met(caller.worker, caller.payout)
    door.fleet.comes_from(worker, client_address(call.request, door.trusted_proxies))
    socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, compress=False, max_msg_size=MAX_TURN_BYTES + _ROOM_BYTES)
    await socket.prepare(call.request)
    one = _Session(socket, caller, call.request.transport)
    if worker.session is not None:
        worker.session.close(CLOSE_REPLACED, "another session of this worker was opened")
    worker.session = one
    door.sessions.add(one)
    pushing = asyncio.create_task(one.push())
    try:
        await _converse(door, one, worker)
    finally:
        door.sessions.discard(one)
        if worker.session is one:
            worker.session = None
            if socket.close_code == WSCloseCode.OK:
                door.fleet.leave(worker)
        if not pushing.done():
            one.close(CLOSE_GOING_AWAY, "")
        with contextlib.suppress(TimeoutError, ConnectionError, asyncio.CancelledError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await pushing
    return socket


async def _converse(door: Door, one: _Session, worker: Worker) -> None:
    faults = 0
    with structlog.contextvars.bound_contextvars(worker=worker.ref.address):
        async for message in one.socket:
            try:
                turn = _read(message)
            except MalformedInput as fault:
                faults += 1
                if faults > MAX_FAULTS:
                    one.close(CLOSE_POLICY, "too many messages that aren't turns")
                    return
                answer: Frame = TurnRefused(n=0, error=error_body(Refusal(RefusalCode.BAD_REQUEST, str(fault))))
            else:
                answer = await _answer(door, one, worker, turn)
            try:
                await one.send(answer)
            except (TimeoutError, ConnectionError):
                log.info("session_cut", reason="the worker doesn't read its answers")
                return


def _read(message: WSMessage) -> Turn:
    if message.type not in {WSMsgType.BINARY, WSMsgType.TEXT}:
        raise MalformedInput(f"a message of type {message.type.name}; turns are text or binary")
    raw = message.data.encode() if isinstance(message.data, str) else message.data
    turn = decode(raw, Turn, max_bytes=MAX_TURN_BYTES)
    fault = storable_fault(raw, turn)
    if fault is not None:
        raise MalformedInput(fault)
    return turn


async def _answer(door: Door, one: _Session, worker: Worker, turn: Turn) -> Frame:
    if door.is_stopping():
        stopping = Refusal(RefusalCode.SHUTTING_DOWN, "the root is stopping; come back in a moment", 2.0)
        return TurnRefused(n=turn.n, error=error_body(stopping))
    refusal = door.limiter.charge_key(one.caller.digest)
    if refusal is not None:
        return TurnRefused(n=turn.n, error=error_body(refusal))
    try:
        answer = await door.turns.take(worker.ref, worker.payout, turn, seen_at=door.wall(), way="session")
    except SwarmError as fault:
        refusal = refusal_of(fault)
        if refusal is None:
            raise
        answer = refusal
    except Exception:
        # The supervision boundary of a session: a defect at one turn must not cut the worker's others off.
        log.exception("turn_failed", n=turn.n)
        answer = Refusal(RefusalCode.INTERNAL, "the root failed at this turn; it is logged there, say it again", 1.0)
    if isinstance(answer, Refusal):
        return TurnRefused(n=turn.n, error=error_body(answer))
    return answer


async def turns(door: Door, call: Call) -> TurnAnswer | Refusal:
    """Take one turn over plain HTTP."""
    caller = call.who
    if caller.worker is None or caller.payout is None:
        return Refusal(RefusalCode.FORBIDDEN, "this key isn't bound to a worker; enrol first")
    worker = await door.fleet.met(caller.worker, caller.payout)
    door.fleet.comes_from(worker, client_address(call.request, door.trusted_proxies))
    return await door.turns.take(caller.worker, caller.payout, call.body, seen_at=door.wall(), way="http")
