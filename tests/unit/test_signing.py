"""Enrolments, settings and join links: what is signed, by whom, and what is refused."""

from __future__ import annotations

import msgspec
import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from hypothesis import given
from hypothesis import strategies as st

from swarm import signing
from swarm.errors import MalformedInput, UntrustedSettings
from swarm.wire import Enrolment, Settings, SwarmSettings, encode

SEED = bytes(range(32))
ETH_KEY = b"\x11" * 32
ADDRESS = Account.from_key(ETH_KEY).address
INSTANCE = "instance-one"
CHALLENGE = "challenge"
NETWORK = "network"


def digest_of(**changes: str) -> bytes:
    fields = {
        "challenge": CHALLENGE,
        "network_id": NETWORK,
        "root_peer": signing.peer_id_from_seed(SEED),
        "address": ADDRESS,
        "payout": ADDRESS,
        "instance": INSTANCE,
        **changes,
    }
    return signing.enrolment_digest(**fields)


def enrolment(**changes: object) -> Enrolment:
    signature, peer_signature = signing.sign_enrolment(ETH_KEY, SEED, digest_of())
    fields = {
        "challenge": CHALLENGE,
        "address": ADDRESS,
        "payout": ADDRESS,
        "instance": INSTANCE,
        "peer_id": signing.peer_id_from_seed(SEED),
        "signature": signature,
        "peer_signature": peer_signature,
        **changes,
    }
    return Enrolment(**fields)  # type: ignore[arg-type]


def fault_of(request: Enrolment) -> str | None:
    return signing.enrolment_fault(request, network_id=NETWORK, root_peer=signing.peer_id_from_seed(SEED))


def settings() -> Settings:
    swarm = SwarmSettings(
        name="test", network_id=NETWORK, rendezvous_tag="tag", admission="open", roots=(), doors=("http://127.0.0.1",)
    )
    return Settings(peer=None, ethereum=None, swarm=swarm, challenge=CHALLENGE)


def test_the_peer_id_of_an_ed25519_key_is_the_one_libp2p_gives() -> None:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID

    pair = create_new_key_pair(SEED)

    assert signing.peer_id_from_seed(SEED) == str(ID.from_pubkey(pair.public_key))
    assert signing.public_key_of(signing.peer_id_from_seed(SEED)) == pair.public_key.to_bytes()


def test_a_wallet_that_shows_eip_712_signs_the_same_digest() -> None:
    typed = {
        "types": {
            "EIP712Domain": [{"name": "name", "type": "string"}, {"name": "version", "type": "string"}],
            "Enrolment": [
                {"name": "challenge", "type": "string"},
                {"name": "network", "type": "string"},
                {"name": "rootPeer", "type": "string"},
                {"name": "worker", "type": "address"},
                {"name": "payout", "type": "address"},
                {"name": "instance", "type": "string"},
            ],
        },
        "primaryType": "Enrolment",
        "domain": {"name": "task-swarm", "version": "1"},
        "message": {
            "challenge": CHALLENGE,
            "network": NETWORK,
            "rootPeer": signing.peer_id_from_seed(SEED),
            "worker": ADDRESS,
            "payout": ADDRESS,
            "instance": INSTANCE,
        },
    }
    by_wallet = Account.sign_message(encode_typed_data(full_message=typed), ETH_KEY)

    assert signing.recover(digest_of(), "0x" + bytes(by_wallet.signature).hex()) == ADDRESS


def test_an_enrolment_signed_by_both_keys_is_taken() -> None:
    assert fault_of(enrolment()) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"challenge": "another"},
        {"instance": "another-one"},
        {"payout": Account.from_key(b"\x22" * 32).address},
        {"address": Account.from_key(b"\x22" * 32).address},
        {"address": ADDRESS.lower()},
        {"peer_id": signing.peer_id_from_seed(b"\x05" * 32)},
        {"peer_signature": b"\0" * 64},
        {"peer_signature": b""},
        {"signature": "0x" + "00" * 65},
        {"signature": "0x" + "ff" * 65},
    ],
)
def test_an_enrolment_changed_after_signing_is_refused(changes: dict[str, object]) -> None:
    assert fault_of(enrolment(**changes)) is not None


@given(st.text(alphabet="0123456789abcdef", min_size=130, max_size=130))
def test_no_signature_of_the_right_shape_breaks_recovery(text: str) -> None:
    found = signing.recover(digest_of(), "0x" + text)
    assert found is None or signing.is_address(found)


def test_settings_come_back_as_they_were_signed() -> None:
    body = encode(signing.sign_settings(SEED, encode(settings())))

    found, key = signing.verify_settings(body, key_id=signing.peer_id_from_seed(SEED))

    assert found == settings()
    assert key == signing.peer_id_from_seed(SEED)


def test_settings_signed_by_another_key_than_the_link_names_are_refused() -> None:
    body = encode(signing.sign_settings(SEED, encode(settings())))

    with pytest.raises(UntrustedSettings):
        signing.verify_settings(body, key_id=signing.peer_id_from_seed(b"\x05" * 32))


def test_settings_changed_after_signing_are_refused_even_on_first_use() -> None:
    signed = signing.sign_settings(SEED, encode(settings()))
    changed = msgspec.structs.replace(signed, data=msgspec.Raw(bytes(signed.data).replace(b'"open"', b'"nope"')))

    with pytest.raises(UntrustedSettings):
        signing.verify_settings(encode(changed), key_id=None)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_never_settings(body: bytes) -> None:
    with pytest.raises((MalformedInput, UntrustedSettings)):
        signing.verify_settings(body, key_id=None)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://root.example/join", "https://root.example"),
        ("https://root.example/", "https://root.example"),
        ("http://127.0.0.1:8765/join#", "http://127.0.0.1:8765"),
        ("https://root.example/swarm/join", "https://root.example/swarm"),
    ],
)
def test_a_link_without_a_fragment_trusts_on_first_use(text: str, url: str) -> None:
    assert signing.parse_join_link(text) == signing.JoinLink(url=url)


def test_a_join_link_survives_being_written_and_read() -> None:
    link = signing.JoinLink(url="https://root.example", invite="abc-_9", key_id=signing.peer_id_from_seed(SEED))

    assert signing.parse_join_link(signing.format_join_link(link)) == link
    assert "abc-_9" not in repr(link)


@pytest.mark.parametrize(
    "text",
    ["", "root.example", "ftp://root.example/join", "https://u:p@root.example/join", "https://root.example/join#a b.c",
     "https://root.example/join#abc.12D3KooWshort", "https://root.example:99999/join", "https://[::1/join"],
)  # fmt: skip
def test_a_damaged_join_link_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(MalformedInput, match=r"\w+ \w+"):
        signing.parse_join_link(text)
