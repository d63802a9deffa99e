"""The worker's side of the door: signed settings, enrolment, a session that is kept, and calls beside it.

Trust: settings are signed. A join link names the key; without one the first key seen is trusted, said aloud and kept,
and another one is refused from then on. The API key goes to the doors that signed settings name, and to the one that
gave it. Showing such settings proves nothing: anybody can repeat them. A link's address that is neither is enrolled at
anew, when the worker starts and none of its doors answers. What is given then is only as safe as that address: whoever
sits there can pass an enrolment on to the root, and reads the key in the answer; old settings name doors of old.

Refusals are typed (``DoorRefused``), silence is ``DoorUnreachable``. While the session is down it is opened again with
jittered backoff, at the other doors that the settings name as well. This module knows no tasks; a turn is a value.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import httpx
import structlog
import trio

from swarm.certificates import trust_certificates
from swarm.content.urls import is_same
from swarm.door_calls import CALL_S, call, data_of
from swarm.door_session import NoWebSocket, Push, Session, run_session
from swarm.errors import DoorRefused, DoorUnreachable, MalformedInput, UntrustedSettings
from swarm.groups import the_one_fault
from swarm.identity import Identity
from swarm.membership import Membership, keep_membership, keep_settings, read_membership, read_settings
from swarm.model import TURNS_AWAY, Address, RefusalCode
from swarm.signing import JoinLink, enrolment_digest, sign_enrolment, verify_settings
from swarm.turn_wire import Nudge, Turn, TurnAnswer, TurnRefused
from swarm.wire import Enrolled, Enrolment, ErrorBody, Hello, RobotsAnswer, Settings, encode

__all__ = ["DoorClient", "open_door"]

log = structlog.get_logger()

T = TypeVar("T")

#: How long a first start tries to reach any door; a member of the swarm starts without one. An attempt is
#: finished in its own time, also then: a door where many join at once is slow, and not away.
START_S: Final = 10.0
#: One attempt may take all of that, and says little: a busy root didn't come to it.
LEAST_ATTEMPTS: Final = 2
#: robots.txt may have to be fetched by the root first.
ROBOTS_S: Final = 30.0
#: Waits between attempts: half to whole of these, doubling. They stay short for a minute, since a root that restarts is
#: back within seconds, and a lease may be only 15 s long; then they grow on.
FIRST_WAIT_S: Final = 0.4
SHORT_WAIT_S: Final = 2.0
SHORT_FOR_S: Final = 60.0
LAST_WAIT_S: Final = 15.0
#: A session that lived so long was a good one: the next attempt starts with the short wait.
GOOD_SESSION_S: Final = 5.0
#: Where WebSockets don't pass, turns go by POST and the session is tried again after this.
PLAIN_FOR_S: Final = 60.0
#: A door that asks for a longer wait is tried again after this, after the others.
LONGEST_WAIT_S: Final = 300.0
ENROL_TRIES: Final = 3
#: A WebSocket close takes milliseconds; a frozen door's takes ``door_session.CLOSE_S``.
GOODBYE_S: Final = 2.5

_TRY_AGAIN: Final = frozenset({RefusalCode.CHALLENGE_EXPIRED, RefusalCode.CHALLENGE_USED})
#: The key opens nothing here, whatever it is used for.
_KEY_REFUSED: Final = frozenset({RefusalCode.UNAUTHORIZED, RefusalCode.KEY_REVOKED})


class DoorClient:
    """The door; made by ``open_door``.

    Attributes:
        settings: what the swarm is; verified.
        key_id: the key that signed them.
        api_key: this worker's.
        pushes: what the door says first, and a nudge when a session was opened. Hints: one that doesn't fit is dropped,
            the next turn tells the same.
        sessions: how many sessions were opened; a change means that the door may not know us any more.
        url: the door that answers; once joined, one that our key is for.
    """

    settings: Settings
    key_id: str
    api_key: str

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
        self.url = link.url
        self.sessions = 0
        self._link = link
        self._identity = identity
        self._hello = hello
        self._directory = directory
        self._payout = payout
        self._http = http
        self._tls = tls
        self._rng = rng
        self._session: Session | None = None
        self._opened = trio.Event()
        self._plain = False
        self._why = "no session yet"
        self._closing = False
        #: The door that gave our key, where that is known.
        self._enrolled_at: str | None = None
        #: Whether the key was got or taken in this process: then a revocation is meant for us as we are.
        self._key_is_fresh = False
        #: A door that refused us asked not to be asked again before this.
        self._ask_again_at = -math.inf
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

    def _read(self, body: bytes, shape: type[T]) -> T:
        """The data of an answer; one that makes no sense is as good as none."""
        try:
            return data_of(body, shape)
        except MalformedInput as fault:
            raise DoorUnreachable(self.url, f"its answer makes no sense: {fault}") from fault

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

    # ── settings and trust ────────────────────────────────────────────────────────────────────────────────────────

    def _doors(self) -> list[str]:
        """The doors to ask for settings: the one that answered last, the link's, those that are ours."""
        gave = [self._enrolled_at] if self._enrolled_at is not None else []
        return list(dict.fromkeys([self.url, self._link.url, *gave, *self._named()]))

    def _own_doors(self) -> list[str]:
        """Those of them that our key is for."""
        return [url for url in self._doors() if self._is_own(url)]

    def _is_own(self, url: str) -> bool:
        return any(is_same(url, own) for own in (self._enrolled_at, *self._named()) if own is not None)

    def _named(self) -> list[str]:
        """The doors that the root's settings name."""
        return [door.rstrip("/") for door in self.settings.swarm.doors] if hasattr(self, "settings") else []

    def _trusted_key(self) -> str | None:
        if self._link.key_id is not None:
            return self._link.key_id
        kept = read_membership(self._directory)
        return kept.key_id if kept is not None else None

    async def learn_settings(self) -> str:
        """Get the settings from the first door that answers, and check who signed them.

        Returns:
            Where they were got; our key may not be for that one.

        Raises:
            DoorUnreachable: no door answers.
            UntrustedSettings: all of them answer, and none is the root that we trust.
        """
        fault: DoorUnreachable | None = None
        impostor: UntrustedSettings | None = None
        for url in self._doors():
            try:
                await self._learn_from(url)
            except DoorUnreachable as unreachable:
                fault = fault or unreachable
            except UntrustedSettings as untrusted:
                log.warning("door_untrusted", url=url, reason=str(untrusted))
                impostor = untrusted
            else:
                return url
        why = fault or impostor  # a root that is away may be back; an impostor doesn't end a worker before
        assert why is not None  # noqa: S101 -- there is always the link's door
        raise why

    async def _learn_from(self, url: str) -> None:
        try:
            body = await call(self._http, "GET", f"{url}/settings", api_key=None)
            trusted = self._trusted_key()
            settings, key_id = verify_settings(body, key_id=trusted)
        except (DoorRefused, MalformedInput) as strange:
            raise DoorUnreachable(url, f"it doesn't answer as a door does: {strange}") from strange
        if trusted is None:
            log.warning(
                "root_trusted_on_first_use", key_id=key_id, url=url, hint="a join link with a key would check it"
            )
        self.settings, self.key_id = settings, key_id
        if self._is_own(url):
            self.url = url
        await trio.to_thread.run_sync(keep_settings, self._directory, body)

    def recall_settings(self) -> bool:
        """Use the settings that were kept, where they are of the swarm that the link means and we are its member."""
        member = read_membership(self._directory)
        if member is None or member.api_key is None or self._payout_of(member) != self._payout:
            return False
        kept = read_settings(self._directory, key_id=self._link.key_id or member.key_id)
        if kept is None or kept[0].swarm.network_id != member.network_id:
            return False
        settings, key_id = kept
        self.settings, self.key_id, self.api_key = settings, key_id, member.api_key
        self._enrolled_at = member.url
        own = self._own_doors()
        if own:
            self.url = own[0]
        return bool(own)

    def _payout_of(self, member: Membership) -> Address:
        return member.payout or self._identity.address

    # ── enrolment ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def enrol_if_needed(self, url: str, *, again: bool = False) -> None:
        """Get an API key for this swarm and payout address, unless there is one for a door that answers.

        Args:
            url: the door that showed its settings; it is enrolled at.
            again: even if there is one: the door doesn't know it.

        Raises:
            DoorRefused: the swarm doesn't admit us.
            DoorUnreachable: the door doesn't answer.
        """
        member = read_membership(self._directory)
        fits = (
            member is not None
            and member.api_key is not None
            and (member.key_id, member.network_id) == (self.key_id, self.settings.swarm.network_id)
            and self._payout_of(member) == self._payout
        )
        if fits and not again and member is not None and member.api_key is not None:
            self.api_key, self._enrolled_at = member.api_key, member.url
            if await self._find_own_door(url):
                return
            log.warning("door_not_named", url=url, instead="enrolling there; the kept key is for other doors")
        for attempt in range(ENROL_TRIES):
            try:
                enrolled = await self._enrol(url)
                break
            except DoorRefused as refused:
                if refused.code not in _TRY_AGAIN or attempt == ENROL_TRIES - 1:
                    raise
                await self.learn_settings()
        self.api_key, self._key_is_fresh = enrolled.api_key, True
        self.url = self._enrolled_at = url
        kept = Membership(
            key_id=self.key_id,
            network_id=self.settings.swarm.network_id,
            api_key=enrolled.api_key,
            payout=self._payout,
            url=url,
        )
        await trio.to_thread.run_sync(keep_membership, self._directory, kept)
        log.info("worker_enrolled", worker=enrolled.address, payout=enrolled.payout, network=kept.network_id)

    async def _find_own_door(self, url: str) -> bool:
        """Whether a door answers that our key is for: the one that just did, or another one."""
        if self._is_own(url):
            return True
        for own in self._own_doors():
            with contextlib.suppress(DoorUnreachable, UntrustedSettings):
                await self._learn_from(own)
                if self._is_own(own):
                    return True
        return False

    async def _enrol(self, url: str) -> Enrolled:
        digest = await trio.to_thread.run_sync(self._digest)  # its imports take half a second
        signature, peer_signature = sign_enrolment(self._identity.eth_key, self._identity.peer_seed, digest)
        enrolment = Enrolment(
            challenge=self.settings.challenge,
            address=self._identity.address,
            payout=self._payout,
            instance=self._identity.instance,
            peer_id=self._identity.peer_id,
            signature=signature,
            peer_signature=peer_signature,
            invite=self._link.invite,
            hello=self._hello,
        )
        body = await call(self._http, "POST", f"{url}/v1/enrolments", api_key=None, body=encode(enrolment))
        return self._read(body, Enrolled)

    def _digest(self) -> bytes:
        return enrolment_digest(
            challenge=self.settings.challenge,
            network_id=self.settings.swarm.network_id,
            root_peer=self.key_id,
            address=self._identity.address,
            payout=self._payout,
            instance=self._identity.instance,
        )

    async def join(self) -> None:
        """Learn the settings and become a member; with kept settings a door that is down is no hindrance.

        Raises:
            DoorUnreachable: no door answers, and this directory isn't a member yet.
            DoorRefused: the swarm doesn't admit us.
            UntrustedSettings: the root isn't the one that we trust.
        """
        waits = self._waits()
        last_attempt_at = trio.current_time() + START_S
        log.info("joining_began", url=self.url, tries_for_s=START_S)
        for attempt in itertools.count(1):
            wait_s = next(waits)
            try:
                await self.enrol_if_needed(await self.learn_settings())
                return
            except DoorUnreachable as unreachable:
                if self.recall_settings():
                    log.warning("door_unreachable", url=unreachable.address, reason=unreachable.reason)
                    return
                if unreachable.hint is not None:
                    raise  # trying again won't change it
                self._why = unreachable.reason
                if attempt == 1:
                    log.warning("door_unreachable", url=unreachable.address, reason=unreachable.reason)
            except DoorRefused as refused:
                if refused.retry_after_s is None:
                    raise
                self._why = str(refused)
                wait_s += refused.retry_after_s
            if attempt >= LEAST_ATTEMPTS and trio.current_time() + wait_s > last_attempt_at:
                raise DoorUnreachable(self.url, self._why, hint="is the link right, and is the root up?")
            await trio.sleep(wait_s)

    # ── the session ───────────────────────────────────────────────────────────────────────────────────────────────

    def _waits(self) -> Iterator[float]:
        wait_s, waited_s = FIRST_WAIT_S, 0.0
        while True:
            yield wait_s * self._rng.uniform(0.5, 1.0)
            waited_s += wait_s
            wait_s = min(wait_s * 2, SHORT_WAIT_S if waited_s < SHORT_FOR_S else LAST_WAIT_S)

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

    async def check_key(self) -> bool:
        """Ask the door whether it takes our key, and enrol again where it doesn't and would have us.

        Returns:
            Whether we have a key that it takes, be it another one; ask again where we haven't.

        Raises:
            DoorRefused: it turned this worker away.
            DoorUnreachable: the door doesn't answer, or not now.
        """
        try:
            await call(self._http, "GET", f"{self.url}/v1/robots", api_key=self.api_key)
        except DoorRefused as refused:  # that no origin was named says that the key was taken
            if refused.code in _KEY_REFUSED:
                return await self._turned_away(refused)
            if refused.retry_after_s is not None or refused.status >= httpx.codes.INTERNAL_SERVER_ERROR:
                raise DoorUnreachable(self.url, str(refused)) from refused
        return True

    async def settle_key(self) -> None:
        """Get a key that the door takes, where it refuses the one we have; one that is away refuses none.

        Raises:
            DoorRefused: it turned this worker away.
            DoorUnreachable: it refused our key, and gave us no other one within ``START_S``.
        """
        waits = self._waits()
        last_attempt_at = trio.current_time() + START_S
        was_refused = False
        while True:
            try:
                if await self.check_key():
                    return
                was_refused = True
            except DoorUnreachable as unreachable:
                if not was_refused:
                    return
                self._why = unreachable.reason
            again_at = max(trio.current_time() + next(waits), self._ask_again_at)
            if again_at > last_attempt_at:
                said = f"it doesn't take this worker's key, and gave no other one: {self._why}"
                raise DoorUnreachable(self.url, said, hint="try again later")
            await trio.sleep_until(again_at)

    async def _turned_away(self, refused: DoorRefused) -> bool:
        """The key isn't taken: enrol again where the root has forgotten it or may have us again, else give up.

        Returns:
            Whether we have another key now.
        """
        was_revoked_before = refused.code == RefusalCode.KEY_REVOKED and not self._key_is_fresh
        if refused.code == RefusalCode.UNAUTHORIZED or was_revoked_before:
            log.warning("key_not_taken", url=self.url, reason=str(refused), instead="enrolling again")
            return await self._enrol_again(refused)
        if refused.code in TURNS_AWAY:
            raise refused
        self._wait_for(refused)
        return False

    async def _enrol_again(self, why: DoorRefused) -> bool:
        """Get another key for the same identity; what a revoked worker is refused then is why it ends."""
        try:
            await self.learn_settings()
            await self.enrol_if_needed(self.url, again=True)
        except DoorUnreachable as unreachable:
            self._why = unreachable.reason
            return False
        except DoorRefused as refused:
            if refused.retry_after_s is not None:
                self._why = str(refused)
                self._wait_for(refused)
                return False
            if why.code != RefusalCode.KEY_REVOKED or refused.code == RefusalCode.KEY_REVOKED:
                raise
            said = f"{why}; enrolling again was refused too: {refused}"
            raise DoorRefused(why.code, said, status=why.status, details=why.details) from refused
        return True

    def _wait_for(self, refused: DoorRefused) -> None:
        self._ask_again_at = trio.current_time() + min(refused.retry_after_s or FIRST_WAIT_S, LONGEST_WAIT_S)

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
