"""Meeting on the local network. zeroconf binds port 5353 on all addresses, so it runs in a network of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.peer.mdns import MAX_ADDRESSES, encode_txt, parse_txt, scope_of
from tests.tied import tied

PEER = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
ADDRESSES = tuple(f"/ip4/10.0.0.{n}/tcp/4001/p2p/{PEER}" for n in range(1, 4))
TAG = "/swarm/ours"
SCOPE = scope_of(TAG)
NETWORK = """
ip link set lo up
ip link add here type veth peer name there
ip address add 10.78.0.1/24 dev here
ip link set here up
ip link set there up
exec "$@"
"""


def test_peers_and_kubo_meet_in_a_network_of_their_own(request: pytest.FixtureRequest) -> None:
    inside = Path(__file__).with_name("in_a_namespace.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(inside)]
    done = subprocess.run(
        tied(["unshare", "--net", "sh", "-ec", NETWORK, "sh", *command]),
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_address_has_a_string_of_its_own_as_go_libp2p_reads_it() -> None:
    record = encode_txt(ADDRESSES, scope=SCOPE)

    assert record.count(b"dnsaddr=") == 3
    first = record[1 + record[0] :]
    assert first[: 1 + first[0]] == bytes([first[0]]) + f"dnsaddr={ADDRESSES[0]}".encode()
    assert parse_txt(record, scope=SCOPE) == ADDRESSES


def test_the_record_of_another_swarm_or_of_none_names_nobody() -> None:
    unscoped = b"".join(bytes([len(text)]) + text for text in (f"dnsaddr={one}".encode() for one in ADDRESSES))

    assert parse_txt(encode_txt(ADDRESSES, scope=scope_of("/swarm/theirs")), scope=SCOPE) == ()
    assert parse_txt(unscoped, scope=SCOPE) == ()


def test_the_record_doesnt_tell_the_swarms_tag() -> None:
    assert TAG.encode() not in encode_txt(ADDRESSES, scope=SCOPE)
    assert scope_of(TAG + "2") != SCOPE


def test_what_fits_no_string_is_left_out() -> None:
    long = "/dns4/" + "a" * 250 + f"/tcp/1/p2p/{PEER}"

    assert parse_txt(encode_txt([long, *ADDRESSES], scope=SCOPE), scope=SCOPE) == ADDRESSES


def test_addresses_without_a_peer_are_ignored_and_their_number_is_bounded() -> None:
    assert parse_txt(encode_txt(["/ip4/10.0.0.1/tcp/4001"], scope=SCOPE), scope=SCOPE) == ()
    strings = f"dnsaddr={ADDRESSES[0]}".encode()
    many = encode_txt([], scope=SCOPE) + (bytes([len(strings)]) + strings) * 1000
    assert len(parse_txt(many, scope=SCOPE)) == MAX_ADDRESSES


@given(st.binary(max_size=600))
def test_any_bytes_are_a_record_or_none(record: bytes) -> None:
    ours = encode_txt([], scope=SCOPE)
    for hostile in (record, ours + record, ours + b"\x10dnsaddr=" + record):
        assert isinstance(parse_txt(hostile, scope=SCOPE), tuple)
