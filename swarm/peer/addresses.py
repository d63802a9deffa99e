"""Which addresses a peer listens on, and which ones it may dial.

A stranger's record can name any address: dialling it blindly makes us a port scanner of our own network. So a private
address is dialled only where someone we trust vouched for it (mDNS, a root), or where it lies in the range of one of
our own listen addresses (DESIGN §6). Public addresses are always fine. No address is resolved or dialled here.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import ifaddr
from libp2p.peer.id import ID
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from multiaddr.exceptions import BinaryParseError, ProtocolLookupError, StringParseError  # type: ignore[import-untyped]

from swarm.errors import ConfigurationError, MalformedInput

__all__ = [
    "AddressRule",
    "Multiaddr",
    "PeerAddress",
    "expand_listen",
    "networks_of",
    "parse_address",
    "parse_peer_id",
]

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Vouched addresses that are remembered; the oldest is forgotten first.
MAX_VOUCHED: Final = 4096
#: A longer multiaddr is nobody's address (wire.MultiaddrText has the same cap).
MAX_ADDRESS_CHARS: Final = 256


@attrs.frozen(kw_only=True)
class PeerAddress:
    """A TCP address of a peer. ``ip`` is None where it is a name; ``peer_id`` is None where none was given."""

    transport: str
    port: int
    ip: IpAddress | None
    peer_id: str | None


def parse_peer_id(text: str) -> ID:
    """Read a peer id.

    Raises:
        MalformedInput: it isn't one.
    """
    try:
        peer = ID.from_string(text)
    except ValueError as fault:
        raise MalformedInput(f"not a peer id: {text:.80}") from fault
    if not text or str(peer) != text:  # one spelling a peer: it is compared as text
        raise MalformedInput(f"not a peer id in base58: {text:.80}")
    return peer


def parse_address(text: str | Multiaddr) -> PeerAddress:
    """Read ``/ip4|ip6|dns|dns4|dns6/HOST/tcp/PORT[/p2p/ID]``, the only shape we dial.

    Raises:
        MalformedInput: it isn't a multiaddr, or one of another shape (QUIC, WebSocket, a relay's).
    """
    if isinstance(text, str) and len(text) > MAX_ADDRESS_CHARS:
        raise MalformedInput(f"an address of {len(text)} characters")
    try:
        address = text if isinstance(text, Multiaddr) else Multiaddr(text)
        parts = [(protocol.name, value) for protocol, value in address.items()]
    except (StringParseError, BinaryParseError, ProtocolLookupError, ValueError) as fault:
        raise MalformedInput(f"not a multiaddr: {text!s:.80}") from fault
    names = [name for name, _ in parts]
    if names not in (shape := [names[:1][0] if names else "", "tcp"], [*shape, "p2p"]):
        raise MalformedInput(f"not an address of TCP alone: {address}")
    host, port = parts[0], parts[1][1]
    if host[0] not in {"ip4", "ip6", "dns", "dns4", "dns6"}:
        raise MalformedInput(f"not an address of TCP alone: {address}")
    return PeerAddress(
        transport=f"/{host[0]}/{host[1]}/tcp/{port}",
        port=int(port or 0),
        ip=ipaddress.ip_address(str(host[1])) if host[0] in {"ip4", "ip6"} else None,
        peer_id=str(parse_peer_id(str(parts[2][1]))) if len(parts) == 3 else None,
    )


def expand_listen(addresses: Sequence[str]) -> tuple[Multiaddr, ...]:
    """Turn what was configured into explicit interface addresses.

    libp2p advertises ``0.0.0.0`` verbatim in identify, DHT and peer records, where nobody can use it, so a wildcard
    becomes one address an interface. A port that another process listens on is refused here, since libp2p shares it
    silently (SO_REUSEPORT).

    Raises:
        ConfigurationError: an address isn't one that can be listened on, or its port is taken.
    """
    expanded: list[Multiaddr] = []
    for text in addresses:
        try:
            address = parse_address(text)
        except MalformedInput as fault:
            raise ConfigurationError(
                f"can't listen on {text}: {fault}", hint="give an address like /ip4/192.0.2.7/tcp/4001"
            ) from fault
        if address.ip is None:
            raise ConfigurationError(f"can't listen on {text}: it names no IP address")
        wanted = _interface_addresses(address.ip.version) if address.ip.is_unspecified else [address.ip]
        for ip in wanted:
            _check_free(ip, address.port)
            expanded.append(Multiaddr(f"/ip{ip.version}/{ip}/tcp/{address.port}"))
    if not expanded:
        raise ConfigurationError("there is no address to listen on", hint="give --listen an interface address")
    return tuple(expanded)


def _interface_addresses(version: int) -> list[IpAddress]:
    found = [ip for ip, _ in _interfaces() if ip.version == version and not ip.is_link_local]
    return sorted(found, key=lambda ip: (ip.is_loopback, str(ip)))


def _interfaces() -> list[tuple[IpAddress, IpNetwork]]:
    """Every address of this machine, with its network."""
    found: list[tuple[IpAddress, IpNetwork]] = []
    for adapter in ifaddr.get_adapters():
        for entry in adapter.ips:
            text = entry.ip if isinstance(entry.ip, str) else entry.ip[0]
            interface = ipaddress.ip_interface(f"{text}/{entry.network_prefix}")
            found.append((interface.ip, interface.network))
    return found


def _check_free(ip: IpAddress, port: int) -> None:
    """Refuse an address that can't be bound: taken, or not this machine's."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a socket in TIME_WAIT isn't in our way
        try:
            probe.bind((str(ip), port))
            probe.listen(1)
        except OSError as fault:
            raise ConfigurationError(
                f"can't listen on {ip} port {port}: {fault.strerror}",
                hint="another process uses this port, or the address isn't one of this machine's",
            ) from fault


def networks_of(listen: Iterable[Multiaddr]) -> tuple[IpNetwork, ...]:
    """The networks that our listen addresses lie in: an interface's own, and loopback as a whole."""
    of_interface = dict(_interfaces())
    networks: set[IpNetwork] = set()
    for address in listen:
        ip = parse_address(address).ip
        if ip is None:
            continue
        if ip.is_loopback:
            networks |= {ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")}
        else:
            networks.add(of_interface.get(ip, ipaddress.ip_network(ip)))
    return tuple(networks)


class AddressRule:
    """The rule of the module's docstring, for one peer.

    Args:
        networks: the networks of our own listen addresses.
    """

    def __init__(self, networks: Iterable[IpNetwork] = ()) -> None:
        self._networks = tuple(networks)
        self._vouched: OrderedDict[str, None] = OrderedDict()

    def vouch(self, address: Multiaddr | str) -> None:
        """Remember that mDNS or a root named this address."""
        transport = parse_address(address).transport
        self._vouched[transport] = None
        self._vouched.move_to_end(transport)
        if len(self._vouched) > MAX_VOUCHED:
            self._vouched.popitem(last=False)

    def is_vouched(self, address: Multiaddr | str) -> bool:
        """Whether mDNS or a root named this address."""
        return parse_address(address).transport in self._vouched

    def may_dial(self, address: Multiaddr | str) -> bool:
        """Whether this address may be dialled. Never raises: what doesn't parse isn't dialled."""
        try:
            parsed = parse_address(address)
        except MalformedInput:
            return False
        if parsed.port == 0:
            return False
        if parsed.transport in self._vouched:
            return True
        if parsed.ip is None:  # a stranger's name may resolve to anything
            return False
        if parsed.ip.is_multicast or parsed.ip.is_unspecified:
            return False
        if parsed.ip.is_global and not parsed.ip.is_reserved:
            return True
        return any(parsed.ip in network for network in self._networks if network.version == parsed.ip.version)
