"""Which addresses are dialled, and which ones are listened on."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import ConfigurationError, MalformedInput
from swarm.peer import addresses
from swarm.peer.addresses import MAX_VOUCHED, AddressRule, Multiaddr, expand_listen, networks_of, parse_address

PEER = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
LAN = AddressRule([ipaddress.ip_network("192.168.7.0/24")])
LOCAL = AddressRule([ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")])


def test_an_address_is_taken_apart() -> None:
    parsed = parse_address(f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}")

    assert parsed.transport == "/ip4/192.0.2.7/tcp/4001"
    assert (parsed.port, parsed.ip, parsed.peer_id) == (4001, ipaddress.ip_address("192.0.2.7"), PEER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "nonsense",
        "/ip4/1.2.3.4",
        "/ip4/1.2.3.4/udp/1/quic-v1",
        "/ip4/1.2.3.4/tcp/1/ws",
        "/ip4/1.2.3.4/tcp/99999",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{PEER}",
        "/unix/tmp/x",
        "/dns4/" + "a" * 300 + "/tcp/1",
    ],
)
def test_what_isnt_plain_tcp_is_no_address(text: str) -> None:
    with pytest.raises(MalformedInput):
        parse_address(text)
    assert not LAN.may_dial(text)


@given(st.text(max_size=80))
def test_any_text_is_an_address_or_is_refused(text: str) -> None:
    for candidate in (text, f"/ip4/1.2.3.4/{text}", f"/dns4/{text}/tcp/1"):
        LAN.may_dial(candidate)


@pytest.mark.parametrize("ip", ["8.8.8.8", "1.1.1.1"])
def test_a_public_address_may_be_dialled(ip: str) -> None:
    assert LAN.may_dial(f"/ip4/{ip}/tcp/4001")
    assert LAN.may_dial("/ip6/2606:4700:4700::1111/tcp/4001")


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/127.0.0.1/tcp/4001",
        "/ip6/::1/tcp/4001",
        "/ip4/10.0.0.1/tcp/22",
        "/ip4/192.168.8.1/tcp/80",
        "/ip4/169.254.169.254/tcp/80",
        "/ip4/100.64.0.1/tcp/80",
        "/ip4/224.0.0.1/tcp/80",
        "/ip4/0.0.0.0/tcp/80",
        "/ip4/255.255.255.255/tcp/80",
        "/ip6/fe80::1/tcp/80",
        "/ip6/fd00::1/tcp/80",
        "/ip4/8.8.8.8/tcp/0",
        "/dns4/router.lan/tcp/80",
    ],
)
def test_a_strangers_private_address_or_name_is_not_dialled(address: str) -> None:
    assert not LAN.may_dial(address)


def test_an_address_in_our_own_private_network_may_be_dialled() -> None:
    assert LAN.may_dial("/ip4/192.168.7.9/tcp/4001")
    assert LOCAL.may_dial("/ip4/127.0.0.2/tcp/4001")
    assert LOCAL.may_dial("/ip6/::1/tcp/4001")
    assert not LOCAL.may_dial("/ip4/192.168.7.9/tcp/4001")


def test_a_vouched_address_may_be_dialled_whatever_it_is() -> None:
    rule = AddressRule()
    rule.vouch(f"/ip4/10.0.0.7/tcp/4001/p2p/{PEER}")
    rule.vouch("/dns4/root.example/tcp/4001")

    assert rule.may_dial("/ip4/10.0.0.7/tcp/4001")
    assert rule.may_dial("/dns4/root.example/tcp/4001")
    assert not rule.may_dial("/ip4/10.0.0.7/tcp/4002")


def test_vouched_addresses_are_bounded() -> None:
    rule = AddressRule()
    for port in range(1, MAX_VOUCHED + 2):
        rule.vouch(f"/ip4/10.0.0.7/tcp/{port}")

    assert not rule.is_vouched("/ip4/10.0.0.7/tcp/1")
    assert rule.is_vouched(f"/ip4/10.0.0.7/tcp/{MAX_VOUCHED + 1}")


def test_a_wildcard_becomes_the_addresses_of_every_interface() -> None:
    expanded = {str(address) for address in expand_listen(["/ip4/0.0.0.0/tcp/0"])}

    assert "/ip4/127.0.0.1/tcp/0" in expanded
    assert "/ip4/0.0.0.0/tcp/0" not in expanded


@pytest.mark.parametrize("text", ["/dns4/localhost/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1", "here", "/ip4/127.0.0.1"])
def test_what_cant_be_listened_on_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigurationError, match="can't listen on"):
        expand_listen([text])


def test_nothing_to_listen_on_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no address to listen on"):
        expand_listen([])


def test_our_networks_are_those_of_our_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = ipaddress.ip_interface("192.168.7.4/24")
    monkeypatch.setattr(addresses, "_interfaces", lambda: [(interface.ip, interface.network)])
    ours = networks_of([Multiaddr("/ip4/192.168.7.4/tcp/1"), Multiaddr("/ip4/127.0.0.1/tcp/1")])

    assert interface.network in ours
    assert ipaddress.ip_network("127.0.0.0/8") in ours
    assert ipaddress.ip_network("10.0.0.0/8") not in ours
