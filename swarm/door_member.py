"""A worker as a member of a swarm: whom it trusts, which doors its key is for, and how it gets one.

Trust: settings are signed. A join link names the key; without one the first key seen is trusted, said aloud and kept,
and another one is refused from then on. The API key goes to the doors that signed settings name, and to the one that
gave it. Showing such settings proves nothing: anybody can repeat them. A link's address that is neither is enrolled at
anew, when the worker starts and none of its doors answers. What is given then is only as safe as that address: whoever
sits there can pass an enrolment on to the root, and reads the key in the answer; old settings name doors of old.

This module keeps no session; ``door_client`` does.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import httpx
import structlog
import trio

from swarm.content.urls import is_same
from swarm.door_calls import call, data_of
from swarm.errors import DoorRefused, DoorUnreachable, MalformedInput, UntrustedSettings
from swarm.identity import Identity
from swarm.membership import Membership, keep_membership, keep_settings, read_membership, read_settings
from swarm.model import TURNS_AWAY, Address, RefusalCode
from swarm.signing import JoinLink, enrolment_digest, sign_enrolment, verify_settings
from swarm.wire import Enrolled, Enrolment, Hello, Settings, encode

__all__ = ["DoorMember"]

log = structlog.get_logger()

T = TypeVar("T")

#: How long a first start tries to reach any door; a member of the swarm starts without one. An attempt is
#: finished in its own time, also then: a door where many join at once is slow, and not away.
START_S: Final = 10.0
#: One attempt may take all of that, and says little: a busy root didn't come to it.
LEAST_ATTEMPTS: Final = 2
#: Waits between attempts: half to whole of these, doubling. They stay short for a minute, since a root that restarts is
#: back within seconds, and a lease may be only 15 s long; then they grow on.
FIRST_WAIT_S: Final = 0.4
SHORT_WAIT_S: Final = 2.0
SHORT_FOR_S: Final = 60.0
LAST_WAIT_S: Final = 15.0
#: A door that asks for a longer wait is tried again after this, after the others.
LONGEST_WAIT_S: Final = 300.0
ENROL_TRIES: Final = 3

_TRY_AGAIN: Final = frozenset({RefusalCode.CHALLENGE_EXPIRED, RefusalCode.CHALLENGE_USED})
#: The key opens nothing here, whatever it is used for.
_KEY_REFUSED: Final = frozenset({RefusalCode.UNAUTHORIZED, RefusalCode.KEY_REVOKED})


class DoorMember:
    """A member, or one who wants to be.

    Attributes:
        settings: what the swarm is; verified.
        key_id: the key that signed them.
        api_key: this worker's.
        url: the door that answers; once joined, one that our key is for.

    Args:
        link: where the swarm is.
        identity: who we are.
        hello: what we are.
        directory: where membership and settings are kept, 0700.
        payout: who is paid.
        http: without a time-out of its own.
        rng: spreads the waits.
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
        rng: random.Random,
    ) -> None:
        self.url = link.url
        self._link = link
        self._identity = identity
        self._hello = hello
        self._directory = directory
        self._payout = payout
        self._http = http
        self._rng = rng
        self._why = "no session yet"
        #: The door that gave our key, where that is known.
        self._enrolled_at: str | None = None
        #: Whether the key was got or taken in this process: then a revocation is meant for us as we are.
        self._key_is_fresh = False
        #: A door that refused us asked not to be asked again before this.
        self._ask_again_at = -math.inf

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

    # ── whether the key is taken ──────────────────────────────────────────────────────────────────────────────────────

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

    def _read(self, body: bytes, shape: type[T]) -> T:
        """The data of an answer; one that makes no sense is as good as none."""
        try:
            return data_of(body, shape)
        except MalformedInput as fault:
            raise DoorUnreachable(self.url, f"its answer makes no sense: {fault}") from fault

    def _waits(self) -> Iterator[float]:
        wait_s, waited_s = FIRST_WAIT_S, 0.0
        while True:
            yield wait_s * self._rng.uniform(0.5, 1.0)
            waited_s += wait_s
            wait_s = min(wait_s * 2, SHORT_WAIT_S if waited_s < SHORT_FOR_S else LAST_WAIT_S)
