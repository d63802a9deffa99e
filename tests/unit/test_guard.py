from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import ConfigurationError
from swarm.web.capture import TaskFailed
from swarm.web.guard import Guard, dial, why_refused
from tests.patience import PATIENCE_S
from tests.sites import open_site, reply

PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
REFUSED = {
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "::1": "loopback",
    "0.0.0.0": "unspecified",  # noqa: S104 -- refused, not bound
    "0.1.2.3": "unspecified",
    "::": "unspecified",
    "10.0.0.1": "private",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.1.1": "private",
    "100.64.0.1": "carrier-grade NAT",
    "100.100.100.200": "carrier-grade NAT",
    "169.254.169.254": "metadata",
    "168.63.129.16": "metadata",
    "fd00:ec2::254": "metadata",
    "169.254.1.1": "link-local",
    "fe80::1": "link-local",
    "fe80::1%eth0": "link-local",
    "fc00::1": "unique-local",
    "fd12:3456::1": "unique-local",
    "fec0::1": "site-local",
    "224.0.0.1": "multicast",
    "ff02::1": "multicast",
    "255.255.255.255": "reserved",
    "240.0.0.1": "reserved",
    "192.0.2.1": "documentation",
    "2001:db8::1": "documentation",
    "198.18.0.1": "benchmarking",
    "::ffff:127.0.0.1": "loopback in an IPv4-mapped address",
    "::ffff:169.254.169.254": "metadata in an IPv4-mapped address",
    "64:ff9b::10.0.0.1": "private in NAT64",
    "64:ff9b:1::1": "reserved",
    "2002:7f00:1::": "loopback in 6to4",
    "2002:c0a8:101::1": "private in 6to4",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "reserved",
    "2606:4700::5efe:10.0.0.1": "private in ISATAP",
    "::127.0.0.1": "reserved",
    "4000::1": "reserved",
}


def resolving(*addresses: str):
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolve


@pytest.mark.parametrize("address", PUBLIC)
def test_an_ordinary_public_address_may_be_dialled(address: str) -> None:
    assert why_refused(address) is None


@pytest.mark.parametrize(("address", "why"), REFUSED.items())
def test_a_special_address_is_refused_by_its_name(address: str, why: str) -> None:
    assert why_refused(address) == why


@given(st.ip_addresses())
def test_nothing_that_python_knows_as_special_is_let_through(ip: IPv4Address | IPv6Address) -> None:
    if isinstance(ip, IPv6Address) and (ip.ipv4_mapped or ip.sixtofour or ip in IPv6Network("64:ff9b::/96")):
        return  # as good as the IPv4 address in it: see below
    if ip.is_private or ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_reserved or ip.is_unspecified:
        assert why_refused(str(ip)) is not None


@given(st.ip_addresses(v=4))
def test_an_ipv6_form_of_an_ipv4_address_is_as_good_as_that(ip: IPv4Address) -> None:
    is_refused = why_refused(str(ip)) is not None
    for form in (f"::ffff:{ip}", f"64:ff9b::{ip}", str(IPv6Address((0x2002 << 112) | (int(ip) << 80)))):
        assert (why_refused(form) is not None) == is_refused


async def test_a_name_with_one_private_address_is_refused_whole() -> None:
    guard = Guard(resolve=resolving("93.184.216.34", "10.0.0.7"))

    with pytest.raises(TaskFailed) as refused:
        await guard.vet("half.example", 80)

    assert refused.value.reason == "address_refused"
    assert refused.value.detail == "half.example is 10.0.0.7, a private address"


async def test_an_owner_may_let_tasks_reach_private_addresses() -> None:
    guard = Guard(allow_private=True, resolve=resolving("10.0.0.7", "::1"))

    assert await guard.vet("inside.example", 80) == ("10.0.0.7", "::1")


@pytest.mark.parametrize("address", ["169.254.169.254", "168.63.129.16", "fd00:ec2::254", "64:ff9b::a9fe:a9fe"])
async def test_a_clouds_metadata_service_is_opened_by_name_only(address: str) -> None:
    with pytest.raises(TaskFailed, match="metadata"):
        await Guard(allow_private=True, resolve=resolving("10.0.0.7", address)).vet("inside.example", 80)

    named = Guard(allow_private=True, allow_networks=(address,), resolve=resolving(address))
    assert await named.vet("inside.example", 80) == (address,)


async def test_an_owner_may_open_one_network_and_no_other() -> None:
    guard = Guard(allow_networks=("10.1.0.0/16", "fd00::/8"), resolve=resolving("10.1.2.3", "fd00::7", "8.8.8.8"))
    assert len(await guard.vet("inside.example", 80)) == 3

    guard = Guard(allow_networks=("10.1.0.0/16",), resolve=resolving("10.2.0.1"))
    with pytest.raises(TaskFailed, match="private"):
        await guard.vet("beside.example", 80)


def test_a_network_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"'10\.1\.0\.0/99' isn't a network"):
        Guard(allow_networks=("10.1.0.0/99",))


async def test_a_name_without_an_address_fails_with_dns() -> None:
    with pytest.raises(TaskFailed) as failed:
        await Guard(resolve=resolving()).vet("empty.example", 80)

    assert failed.value.reason == "dns"


async def test_a_name_that_is_unknown_fails_with_dns() -> None:
    with pytest.raises(TaskFailed) as failed, trio.fail_after(PATIENCE_S):
        await Guard().vet("no-such-name.invalid", 80)

    assert failed.value.reason == "dns"


@pytest.mark.parametrize(
    "spelling", ["localhost", "127.1", "0x7f.1", "2130706433", "017700000001", "[::1]".strip("[]")]
)
async def test_another_spelling_of_this_machine_is_refused(spelling: str) -> None:
    with pytest.raises(TaskFailed) as refused, trio.fail_after(PATIENCE_S):
        await Guard().vet(spelling, 80)

    assert refused.value.reason == "address_refused"


async def test_the_next_address_is_dialled_where_the_first_refuses() -> None:
    with open_site({"/": reply(b"hello")}) as site, trio.fail_after(PATIENCE_S):
        stream = await dial(["127.0.0.2", "127.0.0.1"], site.port, timeout_s=PATIENCE_S)

        await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1 200")
        await stream.aclose()


async def test_a_port_where_nobody_listens_fails_with_connect() -> None:
    with open_site({}) as site:
        port = site.port

    with pytest.raises(TaskFailed) as failed, trio.fail_after(PATIENCE_S):
        await dial(["127.0.0.1"], port, timeout_s=PATIENCE_S)

    assert failed.value.reason == "connect"
    assert "Connection refused" in failed.value.detail


async def test_an_address_that_never_answers_fails_with_timeout(autojump_clock: trio.testing.MockClock) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))  # the queue is full: further ones hang
        try:
            with pytest.raises(TaskFailed) as failed:
                await dial(["127.0.0.1"], port, timeout_s=10)
        finally:
            for filler in fillers:
                filler.close()

    assert failed.value.reason == "timeout"
