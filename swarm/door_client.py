"""The worker's side of the door: a member with a session that is kept, and calls beside it.

Refusals are typed (``DoorRefused``), silence is ``DoorUnreachable``. While the session is down it is opened again with
jittered backoff, at the other doors that the settings name as well. This module knows no tasks; a turn is a value to
it. Whom the worker trusts and which key it has is ``door_member``'s.
"""

from __future__ import annotations

import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import httpx
import structlog
import trio

from swarm.certificates import trust_certificates
from swarm.door_calls import CALL_S, call
from swarm.door_member import DoorMember
from swarm.door_session import NoWebSocket, Push, Session, run_session
from swarm.errors import DoorRefused, DoorUnreachable
from swarm.groups import the_one_fault
from swarm.identity import Identity
from swarm.model import TURNS_AWAY, Address
from swarm.signing import JoinLink
from swarm.turn_wire import Nudge, Turn, TurnAnswer, TurnRefused
from swarm.wire import ErrorBody, Hello, RobotsAnswer, encode

__all__ = ["DoorClient", "open_door"]

log = structlog.get_logger()

#: robots.txt may have to be fetched by the root first.
ROBOTS_S: Final = 30.0
#: A session that lived so long was a good one: the next attempt starts with the short wait.
GOOD_SESSION_S: Final = 5.0
#: Where WebSockets don't pass, turns go by POST and the session is tried again after this.
PLAIN_FOR_S: Final = 60.0
#: A WebSocket close takes milliseconds; a frozen door's takes ``door_session.CLOSE_S``.
GOODBYE_S: Final = 2.5


class DoorClient(DoorMember):
    """The door; made by ``open_door``.

    Attributes:
        pushes: what the door says first, and a nudge when a session was opened. Hints: one that doesn't fit is dropped,
            the next turn tells the same.
        sessions: how many sessions were opened; a change means that the door may not know us any more.
    """

    def __init__(
        self,
        link: JoinLink,
        identity: Identity,
        hello: Hello,
        *,
        directory: Path,
        payout: Address,
        http: httpx.AsyncClient,
        tls: ssl.SSLContext,
        rng: random.Random,
    ) -> None:
        super().__init__(link, identity, hello, directory=directory, payout=payout, http=http, rng=rng)
        self.sessions = 0
        self._tls = tls
        self._session: Session | None = None
        self._opened = trio.Event()
        self._plain = False
        self._closing = False
        self._push, self.pushes = trio.open_memory_channel[Push](64)

    # ── what the worker does with it ──────────────────────────────────────────────────────────────────────────────

    @property
    def connected(self) -> bool:
        """Whether turns can be said now."""
        return self._session is not None or self._plain

    @property
    def saying_goodbye(self) -> bool:
        """Whether an open session is being closed."""
        return self._closing and self._session is not None

    async def wait_joined(self) -> None:
        """Wait until a door has taken our key and turns can be said."""
        await self._opened.wait()

    async def turn(self, turn: Turn) -> TurnAnswer | TurnRefused:
        """Say one turn; one at a time.

        Raises:
            DoorUnreachable: no answer; repeat the same turn.
            DoorRefused: the door turned this worker away.
        """
        if self._session is not None and self._session.ending.is_set():
            self._session_over("the session is being closed")
        with trio.move_on_after(CALL_S):
            await self._opened.wait()
        if self._session is not None:
            return await self._session.exchange(turn)
        if self._plain:
            return await self._turn_by_post(turn)
        raise DoorUnreachable(self.url, self._why)

    async def _turn_by_post(self, turn: Turn) -> TurnAnswer | TurnRefused:
        try:
            body = await call(self._http, "POST", f"{self.url}/v1/turns", api_key=self.api_key, body=encode(turn))
        except DoorRefused as refused:
            if refused.code in TURNS_AWAY:
                raise
            return TurnRefused(n=turn.n, error=_error_body(refused))
        return self._read(body, TurnAnswer)

    async def robots(self, origin: str) -> RobotsAnswer:
        """The rules of an origin's robots.txt for our agent.

        Raises:
            DoorRefused: ``robots_unavailable`` where the site doesn't give it.
            DoorUnreachable: the door doesn't answer.
        """
        body = await call(
            self._http,
            "GET",
            f"{self.url}/v1/robots",
            api_key=self.api_key,
            params={"origin": origin},
            timeout_s=ROBOTS_S,
        )
        return self._read(body, RobotsAnswer)

    # ── the session ───────────────────────────────────────────────────────────────────────────────────────────────

    async def keep_session(self) -> None:
        """Hold a session open until ``close``, at whichever door answers.

        Raises:
            DoorRefused: this worker was turned away for good.
            UntrustedSettings: the root isn't the one that we trust any more.
        """
        waits = self._waits()
        doors = iter(self._own_doors())
        while not self._closing:
            url = next(doors, None)
            if url is None:
                await trio.sleep(next(waits))
                doors = iter(self._own_doors())
                continue
            began = trio.current_time()
            try:
                await run_session(url, self.api_key, tls=self._tls, push=self._take_push, opened=self._session_opened)
            except NoWebSocket as unreachable:
                self._session_over(unreachable.reason)
                with contextlib.suppress(DoorUnreachable):
                    await self._go_plain(url)
            except DoorUnreachable as away:
                self._session_over(away.reason)
            except DoorRefused as refused:
                self._session_over(str(refused))
                await self._turned_away(refused)
            if self._closing:
                return
            if trio.current_time() - began > GOOD_SESSION_S:
                waits = self._waits()
            await trio.sleep_until(max(trio.current_time() + next(waits), self._ask_again_at))
            with contextlib.suppress(DoorUnreachable):
                await self.learn_settings()

    def _session_opened(self, session: Session) -> None:
        if self._closing:
            session.ending.set()
        self.url = session.url
        self._session = session
        self._plain = False
        self._key_is_fresh = True
        self.sessions += 1
        self._opened.set()
        self._take_push(Nudge())  # say hello now: a root that was restarted doesn't know us yet
        log.info("session_opened", url=session.url)

    def _session_over(self, reason: str) -> None:
        """Forget the session, so that turns wait for the next one; who notices first says so."""
        self._why = reason
        if self._session is not None:
            if not self._closing:
                log.warning("session_lost", url=self.url, reason=str(self._session.fault()))
            self._session = None
            self._opened = trio.Event()

    async def _go_plain(self, url: str) -> None:
        self.url = url
        if not await self.check_key():
            return  # the next attempt comes here again
        log.warning("websocket_does_not_pass", url=url, instead="turns by POST")
        self._plain = self._key_is_fresh = True
        self.sessions += 1
        self._opened.set()
        await trio.sleep(PLAIN_FOR_S)

    def _take_push(self, push: Push) -> None:
        with contextlib.suppress(trio.WouldBlock):
            self._push.send_nowait(push)

    def close(self) -> None:
        """Say goodbye; ``open_door`` waits for it."""
        self._closing = True
        if self._session is not None:
            self._session.ending.set()


def _error_body(refused: DoorRefused) -> ErrorBody:
    return ErrorBody(
        code=refused.code, message=str(refused), retry_after_s=refused.retry_after_s, details=refused.details or None
    )


@contextlib.asynccontextmanager
async def open_door(
    link: JoinLink,
    identity: Identity,
    hello: Hello,
    *,
    directory: Path,
    payout: Address | None = None,
    tls: ssl.SSLContext | None = None,
    rng: random.Random | None = None,
    on_join: Callable[[DoorClient], None] | None = None,
) -> AsyncIterator[DoorClient]:
    """Become a member of the swarm, and keep a session with its door while the block is open.

    Args:
        link: where the swarm is.
        identity: who we are.
        hello: what we are.
        directory: where membership and settings are kept, 0700.
        payout: who is paid; by default the worker itself.
        tls: checks the door's certificate; by default against the machine's and certifi's CAs.
        rng: spreads the waits.
        on_join: told the client once it is a member, before the first session.

    Raises:
        DoorUnreachable: no door answers.
        DoorRefused: the swarm doesn't admit us, or turned us away for good.
        UntrustedSettings: the root isn't the one that we trust.

    *Resource handling*: leaving the block says goodbye (a WebSocket close, 3 ms as a rule, 2 s at most).
    """
    context = trust_certificates() if tls is None else tls
    # Proxies of the environment are left out: the session wouldn't go through them either.
    async with httpx.AsyncClient(verify=context, trust_env=False, timeout=None) as http:  # noqa: S113 -- fail_after
        door = DoorClient(
            link,
            identity,
            hello,
            directory=directory,
            payout=payout or identity.address,
            http=http,
            tls=context,
            rng=rng or random.Random(),  # noqa: S311 -- spreads waits, no secrets
        )
        await door.join()
        if on_join is not None:
            on_join(door)
        try:
            async with trio.open_nursery() as nursery:
                ended = trio.Event()

                async def keep() -> None:
                    try:
                        await door.keep_session()
                    finally:
                        ended.set()

                nursery.start_soon(keep)
                try:
                    yield door
                finally:
                    door.close()
                with trio.move_on_after(GOODBYE_S if door.saying_goodbye else 0):
                    await ended.wait()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            alone = the_one_fault(group)
            if alone is None:
                raise
            raise alone from None
