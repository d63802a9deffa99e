"""Which addresses may be dialled, and a dialler that dials nothing else.

A task's URL comes from a stranger, and so does each redirect: neither may make a worker (or the root, which fetches
robots.txt) talk to its own machine, its home network or a cloud's metadata service. A name is resolved once, *all* its
addresses are checked, and the connection goes to one of those very addresses; TLS and ``Host`` still say the name. So
a name that resolves differently a moment later (DNS rebinding) gains nothing.

The code runs below trio and asyncio alike (anyio), since both the worker and the root need the same guard. It knows
nothing of HTTP, robots.txt or tasks.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import anyio
import attrs
from anyio.abc import SocketStream

from swarm.errors import ConfigurationError
from swarm.model import Reason
from swarm.web.capture import TaskFailed

#: One address of several may be dead (a host without working IPv6, say); the next is tried after this long.
ATTEMPT_S: Final = 4.0

#: How a cloud's metadata service is called in a refusal.
METADATA: Final = "metadata"
#: IANA's special-purpose registries. ``ipaddress.is_global`` changed between Python releases, so they are listed.
_SPECIAL_V4: Final = tuple(
    (IPv4Network(text), why)
    for text, why in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "metadata"),  # Azure's wire server, on a public address
        ("169.254.169.254/32", "metadata"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_SPECIAL_V6: Final = tuple(
    (IPv6Network(text), why)
    for text, why in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fd00:ec2::/32", "metadata"),
        ("fc00::/7", "unique-local"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),  # Teredo and other protocol assignments
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
    )
)
#: The only block from which global unicast addresses are given out.
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ISATAP_INTERFACES: Final = (0x0000_5EFE, 0x0200_5EFE)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


def why_refused(address: str) -> str | None:
    """Say why an address may not be dialled.

    Args:
        address: an IPv4 or IPv6 address, as ``getaddrinfo`` gives it.

    Returns:
        What it is ("loopback", "private in NAT64"), or None where it is an ordinary public address.

    Raises:
        ValueError: it isn't an address.
    """
    ip = ip_address(address)
    if isinstance(ip, IPv4Address):
        return next((why for network, why in _SPECIAL_V4 if ip in network), None)
    for inner, form in _embedded(ip):
        why = next((why for network, why in _SPECIAL_V4 if inner in network), None)
        if why is not None:
            return f"{why} in {form}"
    if ip.ipv4_mapped is not None or ip in _NAT64:
        return None
    why = next((why for network, why in _SPECIAL_V6 if ip in network), None)
    if why is None and ip not in _GLOBAL_V6:
        return "reserved"
    return why


def _embedded(ip: IPv6Address) -> list[tuple[IPv4Address, str]]:
    """The IPv4 addresses that a packet to this IPv6 address may end at, with the name of the form."""
    found = []
    if ip.ipv4_mapped is not None:
        found.append((ip.ipv4_mapped, "an IPv4-mapped address"))
    if ip.sixtofour is not None:
        found.append((ip.sixtofour, "6to4"))
    if ip in _NAT64:
        found.append((IPv4Address(int(ip) & 0xFFFF_FFFF), "NAT64"))
    if (int(ip) >> 32) & 0xFFFF_FFFF in _ISATAP_INTERFACES:
        found.append((IPv4Address(int(ip) & 0xFFFF_FFFF), "ISATAP"))
    return found


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """All addresses of a name, by the system's resolver, in its order of preference.

    Raises:
        OSError: the name isn't known, or no resolver answered.
        UnicodeError: it isn't a name.
    """
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _check_networks(_guard: object, _attribute: object, networks: tuple[str, ...]) -> None:
    for text in networks:
        try:
            ip_network(text)
        except ValueError as fault:
            raise ConfigurationError(f"{text!r} isn't a network: {fault}", hint="write it like 10.1.0.0/16") from fault


@attrs.frozen(kw_only=True)
class Guard:
    """The address policy of one process.

    Args:
        allow_private: the owner lets tasks reach this machine and all its networks; not a cloud's metadata service,
            which hands out the machine's own credentials.
        allow_networks: the owner lets tasks reach these networks only, beside the public ones; metadata too.
        resolve: how names become addresses.
    """

    allow_private: bool = False
    allow_networks: tuple[str, ...] = attrs.field(default=(), validator=_check_networks)
    resolve: Resolve = resolve_name

    async def vet(self, host: str, port: int) -> tuple[str, ...]:
        """Resolve a host and check every address of it.

        Returns:
            The addresses that may be dialled, in order of preference; at least one.

        Raises:
            TaskFailed: ``dns``, or ``address_refused`` where any address is refused: a name that is half public and
                half private is someone's attempt, not an accident.
        """
        try:
            addresses = tuple(await self.resolve(host, port))
        except (OSError, UnicodeError) as fault:
            raise TaskFailed(Reason.DNS, f"{host}: {fault}") from fault
        if not addresses:
            raise TaskFailed(Reason.DNS, f"{host} has no address")
        for address in addresses:
            why = why_refused(address)
            if why is None or self._is_allowed(address):
                continue
            if not self.allow_private or why.startswith(METADATA):
                raise TaskFailed(Reason.ADDRESS_REFUSED, f"{host} is {address}, a {why} address")
        return addresses

    def _is_allowed(self, address: str) -> bool:
        ip = ip_address(address)
        return any(ip in ip_network(text) for text in self.allow_networks)


async def dial(addresses: Sequence[str], port: int, *, timeout_s: float) -> SocketStream:
    """Connect to the first vetted address that answers. No name is involved, so none is resolved again.

    *Resource handling*: the caller closes the stream.

    Raises:
        TaskFailed: ``connect`` or ``timeout``, as the last address answered.
    """
    failure = TaskFailed(Reason.CONNECT, "no address")
    with anyio.move_on_after(timeout_s):
        for place, address in enumerate(addresses, start=1):
            is_last = place == len(addresses)
            try:
                with anyio.fail_after(math.inf if is_last else ATTEMPT_S):
                    return await anyio.connect_tcp(address, port)
            except TimeoutError:
                failure = TaskFailed(Reason.TIMEOUT, f"{address} port {port} took more than {ATTEMPT_S:.0f} s")
            except OSError as fault:
                failure = TaskFailed(Reason.CONNECT, f"{address} port {port}: {fault.__cause__ or fault}")
        raise failure
    raise TaskFailed(Reason.TIMEOUT, f"no connection to port {port} within {timeout_s:.0f} s")
