"""Who signed this? Enrolments, settings and join links: pure functions over bytes and keys.

Two kinds of key meet here. An Ethereum key says *who works* (EIP-712, so that a wallet can show what is signed), an
Ed25519 libp2p key says *who is dialled*. An enrolment is signed by both over one digest. ``/settings`` is signed by
the swarm's key over the exact bytes of ``data``.

This module reads no files, knows no HTTP, and imports ``eth_account`` only where it is used (half a second).
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import attrs
import base58
import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swarm.errors import MalformedInput, UntrustedSettings
from swarm.wire import Enrolment, Settings, Signature, SignedSettings, decode

__all__ = [
    "MAX_SETTINGS_BYTES",
    "JoinLink",
    "enrolment_digest",
    "enrolment_fault",
    "format_join_link",
    "is_address",
    "parse_join_link",
    "peer_id_from_seed",
    "peer_id_of",
    "public_key_of",
    "recover",
    "sign",
    "sign_digest",
    "sign_enrolment",
    "sign_settings",
    "verify",
    "verify_settings",
]

SEED_BYTES: Final = 32
#: A worker reads no longer answer from ``/settings``.
MAX_SETTINGS_BYTES: Final = 64 * 1024
#: Identity multihash (code 0, length 36) of libp2p's protobuf PublicKey{Type: Ed25519, Data: 32 bytes}
#: (libp2p specs, peer-ids).
_PEER_ID_PREFIX: Final = bytes.fromhex("002408011220")
#: What the libp2p key signs at enrolment begins with this, so that the signature is good for nothing else.
_ENROLMENT_CONTEXT: Final = b"task-swarm enrolment\0"
_ENROLMENT_TYPES: Final = {
    "Enrolment": [
        {"name": "challenge", "type": "string"},
        {"name": "network", "type": "string"},
        {"name": "rootPeer", "type": "string"},
        {"name": "worker", "type": "address"},
        {"name": "payout", "type": "address"},
        {"name": "instance", "type": "string"},
    ]
}
_ENROLMENT_DOMAIN: Final = {"name": "task-swarm", "version": "1"}
_INVITE: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_JOIN_PATH: Final = "/join"


# ── Ed25519, the libp2p key ───────────────────────────────────────────────────────────────────────────────────────


def peer_id_of(public_key: bytes) -> str:
    """The libp2p peer id (``12D3KooW…``) of a raw Ed25519 public key of 32 bytes."""
    if len(public_key) != SEED_BYTES:
        raise MalformedInput(f"an Ed25519 public key has 32 bytes, not {len(public_key)}")
    return base58.b58encode(_PEER_ID_PREFIX + public_key).decode()


@functools.lru_cache(maxsize=16)  # asked for in each turn
def peer_id_from_seed(seed: bytes) -> str:
    """The libp2p peer id of an Ed25519 seed of 32 bytes."""
    return peer_id_of(Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())


def public_key_of(peer_id: str) -> bytes:
    """The raw Ed25519 public key in a peer id.

    Raises:
        MalformedInput: it isn't the id of an Ed25519 key.
    """
    if not 40 <= len(peer_id) <= 64:
        raise MalformedInput("a peer id has 40 to 64 characters")
    try:
        raw = base58.b58decode(peer_id)
    except ValueError as fault:
        raise MalformedInput(f"{peer_id!r} isn't a peer id") from fault
    if len(raw) != len(_PEER_ID_PREFIX) + SEED_BYTES or not raw.startswith(_PEER_ID_PREFIX):
        raise MalformedInput(f"{peer_id!r} isn't the peer id of an Ed25519 key")
    return raw[len(_PEER_ID_PREFIX) :]


def sign(seed: bytes, data: bytes) -> bytes:
    """The Ed25519 signature (64 bytes) of ``data`` by a seed of 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(seed).sign(data)


def verify(peer_id: str, data: bytes, signature: bytes) -> bool:
    """Whether the key behind ``peer_id`` signed ``data``; False for anything malformed too."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer_id)).verify(signature, data)
    except (InvalidSignature, MalformedInput, ValueError):
        return False
    return True


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────


def sign_settings(seed: bytes, data: bytes) -> SignedSettings:
    """Sign the exact bytes of ``data`` of ``GET /settings`` with the swarm's key."""
    return SignedSettings(
        data=msgspec.Raw(data), signature=Signature(key=peer_id_from_seed(seed), value=sign(seed, data))
    )


def verify_settings(body: bytes, *, key_id: str | None) -> tuple[Settings, str]:
    """Check an answer of ``GET /settings``.

    Args:
        body: the whole answer.
        key_id: the key that must have signed; None trusts whichever did (first use).

    Returns:
        The settings, and the id of the key that signed them.

    Raises:
        MalformedInput: it isn't such an answer.
        UntrustedSettings: another key signed, or the signature doesn't fit the bytes.
    """
    signed = decode(body, SignedSettings, max_bytes=MAX_SETTINGS_BYTES)
    key = signed.signature.key
    if key_id is not None and key != key_id:
        raise UntrustedSettings(
            f"the settings are signed by {key}, not by {key_id} that the join link names",
            hint="ask the operator for a new join link; this root isn't the one that yours was made by",
        )
    data = bytes(signed.data)
    if not verify(key, data, signed.signature.value):
        raise UntrustedSettings(f"the signature of {key} doesn't fit the settings")
    return decode(data, Settings), key


# ── enrolment ─────────────────────────────────────────────────────────────────────────────────────────────────────


def is_address(text: str) -> bool:
    """Whether it is an Ethereum address with the checksum of EIP-55."""
    from eth_utils.address import is_checksum_address

    return bool(is_checksum_address(text))


def enrolment_digest(
    *, challenge: str, network_id: str, root_peer: str, address: str, payout: str, instance: str
) -> bytes:
    """The EIP-712 digest (32 bytes) that both keys of a newcomer sign.

    Args:
        challenge: from ``/settings``.
        network_id: from ``/settings``.
        root_peer: the id of the key that signed ``/settings``.
        address: the worker's own address.
        payout: who is paid.
        instance: the id of the worker's data directory.

    Raises:
        MalformedInput: an address isn't one.
    """
    from eth_account.messages import encode_typed_data
    from eth_utils.crypto import keccak

    if not is_address(address) or not is_address(payout):
        raise MalformedInput("address and payout must be Ethereum addresses with their EIP-55 checksum")
    message: dict[str, Any] = {
        "challenge": challenge,
        "network": network_id,
        "rootPeer": root_peer,
        "worker": address,
        "payout": payout,
        "instance": instance,
    }
    signable = encode_typed_data(dict(_ENROLMENT_DOMAIN), dict(_ENROLMENT_TYPES), message)
    return bytes(keccak(b"\x19" + signable.version + signable.header + signable.body))


def sign_enrolment(eth_key: bytes, peer_seed: bytes, digest: bytes) -> tuple[str, bytes]:
    """Sign an enrolment's digest with both keys.

    Returns:
        The Ethereum signature (``0x`` and 130 lower-case hex digits) and the libp2p key's (64 bytes).
    """
    return sign_digest(eth_key, digest), sign(peer_seed, _ENROLMENT_CONTEXT + digest)


def sign_digest(eth_key: bytes, digest: bytes) -> str:
    """The Ethereum signature of 32 bytes: ``0x`` and 130 lower-case hex digits (r, s, v); the same each time."""
    signed: bytes = _signer(eth_key).sign_recoverable(digest, hasher=None)
    return "0x" + signed[:-1].hex() + bytes([27 + signed[-1]]).hex()


@functools.lru_cache(maxsize=1)  # a worker signs each of its completions by the one key that it has in memory anyway
def _signer(eth_key: bytes) -> Any:
    from coincurve import PrivateKey  # what eth-keys signs with; by itself at a tenth of the cost

    return PrivateKey(eth_key)


def recover(digest: bytes, signature: str) -> str | None:
    """The address whose key signed ``digest``; None where the signature is no signature.

    Args:
        digest: 32 bytes.
        signature: ``0x`` and 130 hex digits (r, s, v).
    """
    from coincurve import PublicKey
    from eth_hash.auto import keccak

    try:
        raw = bytearray.fromhex(signature.removeprefix("0x"))
    except ValueError:
        return None
    if len(raw) != 65:
        return None
    raw[64] -= 27 if raw[64] >= 27 else 0
    try:
        found = PublicKey.from_signature_and_message(bytes(raw), digest, hasher=None)
    except Exception:  # noqa: BLE001 -- coincurve raises a bare one for what is no signature
        return None
    return _checksummed(keccak(found.format(compressed=False)[1:])[-20:])


@functools.lru_cache(maxsize=4096)
def _checksummed(address: bytes) -> str:
    from eth_utils.address import to_checksum_address

    return str(to_checksum_address(address))


def enrolment_fault(enrolment: Enrolment, *, network_id: str, root_peer: str) -> str | None:
    """Check the two signatures of an enrolment.

    Returns:
        A sentence naming the first fault, or None where both keys signed this very request.
    """
    try:
        digest = enrolment_digest(
            challenge=enrolment.challenge,
            network_id=network_id,
            root_peer=root_peer,
            address=enrolment.address,
            payout=enrolment.payout,
            instance=enrolment.instance,
        )
    except MalformedInput as fault:
        return str(fault)
    if recover(digest, enrolment.signature) != enrolment.address:
        return f"the signature isn't by {enrolment.address} over this enrolment"
    if not verify(enrolment.peer_id, _ENROLMENT_CONTEXT + digest, enrolment.peer_signature):
        return f"the peer signature isn't by {enrolment.peer_id} over this enrolment"
    return None


# ── join links ────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class JoinLink:
    """The one URL that a worker is configured by.

    Args:
        url: the door's base URL, without a trailing slash.
        invite: the secret that admits; kept out of ``repr``.
        key_id: the key that must have signed the settings; None trusts on first use.
    """

    url: str
    invite: str | None = attrs.field(default=None, repr=False)
    key_id: str | None = None


def format_join_link(link: JoinLink) -> str:
    """``https://root.example/join#INVITE.KEYID``; the fragment stays out of logs. Either part may be empty."""
    if link.invite is None and link.key_id is None:
        return link.url + _JOIN_PATH
    return f"{link.url}{_JOIN_PATH}#{link.invite or ''}.{link.key_id or ''}"


def parse_join_link(text: str) -> JoinLink:
    """Read a join link, or a door's bare URL.

    Raises:
        MalformedInput: it isn't one; the message says what is wrong with it.
    """
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as fault:
        raise MalformedInput(f"{text!r} isn't a URL: {fault}") from fault
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise MalformedInput("a join link begins with https:// (or http://) and names a host")
    if parts.username or parts.password or parts.query or (port is not None and port == 0):
        raise MalformedInput("a join link has no user, no query and a real port")
    path = parts.path.rstrip("/").removesuffix(_JOIN_PATH)
    invite, _, key_id = parts.fragment.partition(".")
    if invite and not _INVITE.fullmatch(invite):
        raise MalformedInput("the invite in the join link is damaged; copy the whole link")
    if key_id:
        try:
            public_key_of(key_id)
        except MalformedInput as fault:
            raise MalformedInput("the key in the join link is damaged; copy the whole link") from fault
    return JoinLink(
        url=urlunsplit((parts.scheme, parts.netloc, path, "", "")), invite=invite or None, key_id=key_id or None
    )
