"""Alerts by POST to a URL that the operator named. It never makes the root wait: what can't be delivered is logged.

Deliveries go out one after another, each tried a few times with growing waits. The body is signed where a secret is
set: ``X-Swarm-Signature: t=SECONDS,v1=HEX``, HEX = HMAC-SHA256(secret, SECONDS + "." + body). The URL is the operator's
own, so private addresses are as good as others; redirects aren't followed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import random
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import structlog

from rendezvous.alerts import Alert
from swarm.errors import ConfigurationError
from swarm.identity import read_private
from swarm.reasons import reason_of

__all__ = ["Webhook", "read_secret", "signature"]

log = structlog.get_logger()

#: Waits before a delivery is tried again, seconds; then it is given up.
WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Up to so much of a wait comes on top, so that many roots don't come together.
JITTER: Final = 0.25
#: An answer that takes longer is none, seconds.
TIMEOUT_S: Final = 10.0
#: What waits to be delivered; then the oldest is dropped.
MAX_WAITING: Final = 200
SECRET_CHARS: Final = 16
SIGNATURE_HEADER: Final = "X-Swarm-Signature"
#: Answers after which trying again can help.
_AGAIN: Final = frozenset({408, 425, 429})


class AlertBody(msgspec.Struct, frozen=True):
    """The alert in a message."""

    code: str
    subject: str
    message: str
    hint: str
    since: float


class Message(msgspec.Struct, frozen=True):
    """What is posted. ``id`` is the same each time that a message is tried; ``at`` and ``since`` are Unix seconds."""

    id: str
    swarm: str
    network_id: str
    state: str
    at: float
    alert: AlertBody


def read_secret(path: Path) -> bytes:
    """The secret that messages are signed with.

    Raises:
        ConfigurationError: there is none, others may read it, or it is too short to be one.
    """
    body = read_private(path)
    if body is None:
        raise ConfigurationError(f"--alert-secret-file: there is no {path}", hint="write a random secret to it, 0600")
    secret = body.strip()
    if len(secret) < SECRET_CHARS:
        raise ConfigurationError(f"--alert-secret-file: {path} has fewer than {SECRET_CHARS} characters")
    return secret


def signature(secret: bytes, body: bytes, *, at: int) -> str:
    """What the signature header says of a body posted at a Unix second."""
    digest = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class Webhook:
    """Posts alerts.

    Args:
        url: where to.
        secret: signs the messages; None leaves them unsigned.
        swarm: its name.
        network_id: its id.
        wall: Unix seconds.
        rng: spreads the waits.
        waits_s: before a message is tried again.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: bytes | None,
        swarm: str,
        network_id: str,
        wall: Callable[[], float],
        rng: random.Random,
        waits_s: tuple[float, ...] = WAITS_S,
    ) -> None:
        self._url: Final = url
        self._secret: Final = secret
        self._swarm: Final = swarm
        self._network_id: Final = network_id
        self._wall: Final = wall
        self._rng: Final = rng
        self._waits_s: Final = waits_s
        self._waiting: Final[deque[Message]] = deque()
        self._woken: Final = asyncio.Event()

    def tell(self, alert: Alert, begins: bool) -> None:
        """Have an alert delivered that begins or ends; doesn't wait."""
        if len(self._waiting) >= MAX_WAITING:
            dropped = self._waiting.popleft()
            log.warning("alert_not_delivered", code=dropped.alert.code, reason="too many wait to be delivered")
        body = AlertBody(
            code=alert.code, subject=alert.subject, message=alert.message, hint=alert.hint, since=alert.since
        )
        self._waiting.append(
            Message(
                id=str(uuid.uuid4()),
                swarm=self._swarm,
                network_id=self._network_id,
                state="began" if begins else "ended",
                at=self._wall(),
                alert=body,
            )
        )
        self._woken.set()

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    async def run(self) -> None:
        """Deliver until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as http:
            while True:
                while self._waiting:
                    await self._deliver(http, self._waiting.popleft())
                self._woken.clear()
                await self._woken.wait()

    async def _deliver(self, http: aiohttp.ClientSession, message: Message) -> None:
        reason = None
        for wait_s in (0.0, *self._waits_s):
            await asyncio.sleep(wait_s * (1.0 + JITTER * self._rng.random()))
            try:
                status = await self._post(http, msgspec.json.encode(message))
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as fault:
                reason = reason_of(fault)
                continue
            if 200 <= status < 300:
                log.debug("alert_delivered", code=message.alert.code, state=message.state)
                return
            reason = f"it answered {status}"
            if status < 500 and status not in _AGAIN:
                break
        log.warning("alert_not_delivered", code=message.alert.code, state=message.state, reason=reason)

    async def _post(self, http: aiohttp.ClientSession, body: bytes) -> int:
        headers = {"Content-Type": "application/json", "User-Agent": "task-swarm-root"}
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._secret, body, at=int(self._wall()))
        async with http.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
            return answer.status
