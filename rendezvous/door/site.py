"""``GET /settings``: what the swarm is, signed by its key; and the challenges that enrolments sign.

The signed bytes are kept for ``FRESH_S``, so a crowd of newcomers costs one signature. A challenge is a token that
this key (or another root with the same key) can check without having stored it; the ledger sees to it that it serves
once an address.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final, Literal

import attrs

from rendezvous.door.call import Call, Shown
from rendezvous.door.resources import Door
from rendezvous.ledger.roots import RootCard
from swarm import __version__
from swarm.model import Refusal, RefusalCode
from swarm.signing import peer_id_from_seed, sign_settings
from swarm.wire import (
    MAX_INLINE_MANIFEST_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_META_BYTES,
    MAX_SUBMISSION_BYTES,
    MAX_TASK_BYTES,
    MAX_TASKS_PER_SUBMISSION,
    MAX_TURN_BYTES,
    EthereumSettings,
    PeerSettings,
    Settings,
    SignedSettings,
    SwarmSettings,
    encode,
)

__all__ = ["CHALLENGE_S", "Admission", "Charter", "Site", "settings"]

Admission = Literal["invite", "allowlist", "open"]

#: How long an enrolment may take from reading the settings to posting, seconds.
CHALLENGE_S: Final = 300.0
#: How long an answer of ``/settings`` may be kept by whoever asked, seconds.
CACHE_S: Final = 30.0
#: How long it is kept here, seconds: short, so that a worker that enrols again gets another challenge.
FRESH_S: Final = 1.0
#: Clocks of several roots may differ by this much, seconds.
CLOCK_SKEW_S: Final = 30.0
_STAMP_BYTES: Final = 8
_NONCE_BYTES: Final = 8
_MAC_BYTES: Final = 16
_LIMITS: Final = {
    "task_bytes": MAX_TASK_BYTES,
    "tasks_per_submission": MAX_TASKS_PER_SUBMISSION,
    "submission_bytes": MAX_SUBMISSION_BYTES,
    "meta_bytes": MAX_META_BYTES,
    "inline_manifest_bytes": MAX_INLINE_MANIFEST_BYTES,
    "manifest_bytes": MAX_MANIFEST_BYTES,
    "turn_bytes": MAX_TURN_BYTES,
}


@attrs.frozen(kw_only=True)
class Charter:
    """What doesn't change while the root runs.

    Args:
        seed: the swarm's Ed25519 key, 32 bytes, secret.
        network_id: tells this swarm from every other.
        doors: the URLs that it answers at.
        allowed: addresses that may enrol where admission is ``allowlist``.
        stores: the peer ids of the Kubos that keep our blocks.
        peer_seed: this root's own key, 32 bytes, secret, where it shares the swarm's with other roots.
    """

    seed: bytes = attrs.field(repr=False)
    name: str
    network_id: str
    admission: Admission
    doors: tuple[str, ...]
    allowed: frozenset[str] = frozenset()
    ethereum: EthereumSettings | None = None
    stores: tuple[str, ...] = ()
    peer_seed: bytes | None = attrs.field(default=None, repr=False)

    @property
    def peer_id(self) -> str:
        """The id of this root's peer: whose gossip is to be believed."""
        return peer_id_from_seed(self.seed if self.peer_seed is None else self.peer_seed)

    @property
    def key_id(self) -> str:
        """The id of the swarm's key: what a join link names."""
        return peer_id_from_seed(self.seed)

    @property
    def topic(self) -> str:
        """Where tasks are announced (DESIGN §5)."""
        return f"/swarm/{self.network_id}/tasks/1"

    @property
    def rendezvous_tag(self) -> str:
        """What peers look for in the DHT."""
        return f"/swarm/{self.network_id}/peers/1"


class Site:
    """The signed settings and the challenges in them.

    Args:
        charter: what the swarm is.
        peer: where our peer is now; None while the root runs without one.
        clock: Unix seconds.
        neighbours: the roots that share the ledger, this one among them.
    """

    def __init__(
        self,
        charter: Charter,
        *,
        peer: Callable[[], PeerSettings | None],
        clock: Callable[[], float],
        neighbours: Callable[[], tuple[RootCard, ...]] = tuple,
    ) -> None:
        self.charter = charter
        self._neighbours = neighbours
        self.key_id = charter.key_id
        self.peer = peer
        self._clock = clock
        self._mac_key = hmac.digest(charter.seed, b"task-swarm challenge", hashlib.sha256)
        self._signed: tuple[float, object, SignedSettings] | None = None

    def roots(self) -> tuple[str, ...]:
        """Whose gossip is to be believed: ours, then the other roots'."""
        others = (root.peer_id for root in self._neighbours() if root.peer_id is not None)
        return tuple(dict.fromkeys((self.charter.peer_id, *others)))

    def doors(self) -> tuple[str, ...]:
        """Where the swarm answers: here, then at the other roots."""
        return tuple(dict.fromkeys((*self.charter.doors, *(root.door for root in self._neighbours()))))

    def signed(self) -> SignedSettings:
        """The settings of now; made anew every ``FRESH_S`` and when our addresses change."""
        now = self._clock()
        peer = self.peer()
        says = (peer, self.roots(), self.doors())
        if self._signed is None or not 0 <= now - self._signed[0] < FRESH_S or self._signed[1] != says:
            made = sign_settings(self.charter.seed, encode(self._settings(peer)))
            self._signed = (now, says, made)
        return self._signed[2]

    def new_challenge(self) -> str:
        """A token that says when it was made, and that we made it."""
        body = int(self._clock() * 1000).to_bytes(_STAMP_BYTES, "big") + secrets.token_bytes(_NONCE_BYTES)
        return base64.urlsafe_b64encode(body + self._mac(body)).decode().rstrip("=")

    def check_challenge(self, challenge: str) -> Refusal | None:
        """Refuse a challenge that is older than ``CHALLENGE_S``, or that no root of this swarm made."""
        stale = Refusal(
            RefusalCode.CHALLENGE_EXPIRED, "this challenge has expired or isn't ours; read /settings again and sign"
        )
        try:
            raw = base64.b64decode(challenge + "=" * (-len(challenge) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return stale
        body, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        if len(body) != _STAMP_BYTES + _NONCE_BYTES or not hmac.compare_digest(mac, self._mac(body)):
            return stale
        age_s = self._clock() - int.from_bytes(body[:_STAMP_BYTES], "big") / 1000
        return None if -CLOCK_SKEW_S <= age_s <= CHALLENGE_S else stale

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._mac_key, body, hashlib.sha256)[:_MAC_BYTES]

    def _settings(self, peer: PeerSettings | None) -> Settings:
        charter = self.charter
        return Settings(
            peer=peer,
            ethereum=charter.ethereum,
            swarm=SwarmSettings(
                name=charter.name,
                network_id=charter.network_id,
                rendezvous_tag=charter.rendezvous_tag,
                admission=charter.admission,
                roots=self.roots(),
                doors=self.doors(),
                versions={"root": __version__, "protocol": "1"},
                limits=dict(_LIMITS),
                stores=charter.stores,
            ),
            challenge=self.new_challenge(),
        )


async def settings(door: Door, call: Call) -> Shown:
    """The signed settings; not in the ``data`` envelope alone, since the signature stands beside ``data``."""
    del call
    return Shown(value=door.site.signed(), headers={"Cache-Control": f"public, max-age={CACHE_S:.0f}"}, enveloped=True)
