"""Meeting on the local network by mDNS as go-libp2p does: ``_p2p._udp.local`` with ``dnsaddr=`` in the TXT record.

A network may have several swarms, and nodes that are none of ours. So the record also says ``swarm=`` and a digest of
the rendezvous tag, which tells nobody the tag, and only who says the same is reported: a scope, not a proof, since
anybody on the network can repeat it. Kubo says nothing of the kind; it finds us, as our addresses are where it looks.

libp2p's own module blocks the trio loop for 1.7 s, keeps one of several addresses and writes a second one where
go-libp2p doesn't look (facts/libp2p.md). Ours runs python-zeroconf in its own threads and worker threads; what is found
crosses into trio through one bounded channel. It announces and finds addresses, and dials nobody.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import structlog
import trio
from zeroconf import EventLoopBlocked, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from swarm.errors import MalformedInput
from swarm.peer.addresses import MAX_ADDRESS_CHARS, parse_address

__all__ = ["SERVICE", "encode_txt", "parse_txt", "run_mdns", "scope_of"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

SERVICE: Final = "_p2p._udp.local."
ATTRIBUTE: Final = b"dnsaddr="
SCOPE: Final = b"swarm="
#: Enough that no two swarms of one network share it by chance.
SCOPE_DIGEST_BYTES: Final = 16
#: A string of a TXT record has one length byte (RFC 6763 §6.1).
MAX_TXT_STRING_BYTES: Final = 255
MAX_ADDRESSES: Final = 16
#: Names that wait to be resolved. Anybody on the network can announce any number; the surplus is dropped.
MAX_WAITING: Final = 64
RESOLVE_S: Final = 1.0
RESOLVED_AT_ONCE: Final = 4
#: Closing says goodbye to the network, 0.25 s as a rule.
CLOSE_S: Final = 3.0


def scope_of(rendezvous_tag: str) -> str:
    """What a swarm's records say to be told from others': a digest of its tag, for this use alone."""
    return hashlib.blake2s(rendezvous_tag.encode(), digest_size=SCOPE_DIGEST_BYTES, person=b"mdns").hexdigest()


def encode_txt(addresses: Sequence[str], *, scope: str) -> bytes:
    """A TXT record's bytes: the scope, then one ``dnsaddr=`` string an address, those that fit no string left out."""
    strings = [SCOPE + scope.encode(), *(ATTRIBUTE + address.encode() for address in addresses[:MAX_ADDRESSES])]
    return b"".join(bytes([len(string)]) + string for string in strings if len(string) <= MAX_TXT_STRING_BYTES)


def parse_txt(record: bytes, *, scope: str) -> tuple[str, ...]:
    """The addresses with a peer id in a TXT record of this scope; none in another's. Hostile bytes give none."""
    strings = tuple(_strings(record))
    if SCOPE + scope.encode() not in strings:
        return ()
    found: list[str] = []
    for string in strings:
        if not string.startswith(ATTRIBUTE) or len(string) > MAX_ADDRESS_CHARS:
            continue
        try:
            address = string[len(ATTRIBUTE) :].decode("ascii")
            if parse_address(address).peer_id is not None:
                found.append(address)
        except (UnicodeDecodeError, MalformedInput):
            continue
        if len(found) == MAX_ADDRESSES:
            break
    return tuple(found)


def _strings(record: bytes) -> Iterator[bytes]:
    while record:
        length = record[0]
        yield record[1 : 1 + length]
        record = record[1 + length :]


async def run_mdns(
    peer_id: str,
    addresses: Sequence[str],
    found: trio.MemorySendChannel[tuple[str, ...]],
    *,
    scope: str,
) -> None:
    """Announce ourselves and report the others of our swarm, until cancelled.

    Args:
        peer_id: our own peer id: the name we announce, and what is filtered from what is found.
        addresses: our addresses, each with ``/p2p/ID``. Loopback ones are announced only if there are no others.
        found: gets the addresses of each peer that appears or changes; closed at the end.
        scope: ``scope_of`` the swarm's tag; who announces another one, or none, isn't reported.

    *Resource handling*: sockets and threads are closed within ``CLOSE_S``, also when it is cancelled.
    """
    token = trio.lowlevel.current_trio_token()
    send_name, names = trio.open_memory_channel[str](MAX_WAITING)

    def appeared(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        """Runs in a thread of zeroconf's."""
        if state_change is ServiceStateChange.Removed or name.startswith(peer_id):
            return
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(_offer, send_name, name)

    usable = [address for address in addresses if not _is_loopback(address)] or list(addresses)
    interfaces = sorted({str(ip) for address in usable if (ip := parse_address(address).ip) is not None})
    async with found:
        zeroconf = await trio.to_thread.run_sync(functools.partial(Zeroconf, interfaces=interfaces))
        try:
            # The browser first: what is there already answers while we announce.
            await trio.to_thread.run_sync(functools.partial(ServiceBrowser, zeroconf, SERVICE, handlers=[appeared]))
            async with trio.open_nursery() as nursery:
                for _ in range(RESOLVED_AT_ONCE):
                    nursery.start_soon(_resolve, zeroconf, names.clone(), found, peer_id, scope)
                await _in_thread(functools.partial(_register, zeroconf, peer_id, usable, scope))
                log.info("mdns_announced", addresses=usable)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_S):
                await _in_thread(zeroconf.close)


async def _in_thread(call: Callable[[], T]) -> T:
    """Call what waits for the network. Where we are cancelled it goes on alone, until zeroconf is closed."""
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)  # type: ignore[call-arg]  # stubs of an old trio


def _offer(send: trio.MemorySendChannel[str], name: str) -> None:
    try:
        send.send_nowait(name)
    except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
        log.debug("mdns_name_dropped", name=name)


def _is_loopback(address: str) -> bool:
    ip = parse_address(address).ip
    return ip is not None and ip.is_loopback


def _register(zeroconf: Zeroconf, peer_id: str, addresses: Sequence[str], scope: str) -> None:
    parsed = [parse_address(address) for address in addresses]
    service = ServiceInfo(
        SERVICE,
        f"{peer_id}.{SERVICE}",
        parsed_addresses=[str(address.ip) for address in parsed if address.ip is not None],
        port=parsed[0].port,
        properties=encode_txt(addresses, scope=scope),
        server=f"{peer_id}.local.",
    )
    try:
        # A peer id is nobody else's, so there is no name to fight for: that saves 1.7 s of probing.
        zeroconf.register_service(service, cooperating_responders=True)
    except EventLoopBlocked:  # registered all the same; a busy machine was late to say so
        log.debug("mdns_register_slow")


async def _resolve(
    zeroconf: Zeroconf,
    names: trio.MemoryReceiveChannel[str],
    found: trio.MemorySendChannel[tuple[str, ...]],
    own_id: str,
    scope: str,
) -> None:
    async with names:
        async for name in names:
            info = await _in_thread(functools.partial(zeroconf.get_service_info, SERVICE, name, int(RESOLVE_S * 1000)))
            if info is None:
                continue
            said = parse_txt(info.text or b"", scope=scope)
            others = tuple(address for address in said if parse_address(address).peer_id != own_id)
            if others:
                await found.send(others)
