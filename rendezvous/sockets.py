"""Where the root listens: the door's socket, with or without TLS, and the peer's port, the same at every start."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import structlog
from aiohttp import web

from rendezvous.settings import Bind, RootSettings
from swarm.errors import ConfigurationError

__all__ = ["claim_bind", "listen", "peer_address", "peer_port", "rpc_multiaddr"]

log = structlog.get_logger()


def claim_bind(settings: RootSettings) -> tuple[RootSettings, socket.socket | None]:
    """Find out early whether the door will be able to listen, before the peer has met anybody; warn where it is open.

    Port 0 stands for a free one: it is taken here, so that whatever says where the door is says the real port.

    *Resource handling*: the socket is the caller's to close.

    Returns:
        The settings with the real port, and the socket that holds it; None where ``listen`` opens one itself.

    Raises:
        ConfigurationError: it won't.
    """
    bind = settings.bind
    if not bind.is_loopback and settings.tls_cert is None:
        log.warning("door_without_tls", bind=f"{bind.host}:{bind.port}", todo="--tls-cert and --tls-key, or a proxy")
    with contextlib.ExitStack() as stack:
        try:
            family, _, _, _, address = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM)[0]
            probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        except OSError as fault:
            raise _cannot_listen(bind, fault) from fault
        if bind.port != 0:
            return settings, None
        stack.pop_all()
        return attrs.evolve(settings, bind=attrs.evolve(bind, port=probe.getsockname()[1])), probe


async def listen(settings: RootSettings, runner: web.AppRunner, held: socket.socket | None) -> web.BaseSite:
    """Open the door's socket, or listen at the one that ``claim_bind`` holds.

    Raises:
        ConfigurationError: it can't be opened, or the certificate can't be used.
    """
    bind = settings.bind
    tls = _tls(settings.tls_cert, settings.tls_key)
    site: web.BaseSite
    if held is not None:
        site = web.SockSite(runner, held, ssl_context=tls)
    else:
        site = web.TCPSite(runner, bind.host, bind.port, ssl_context=tls, reuse_address=True)
    try:
        await site.start()
    except OSError as fault:
        raise _cannot_listen(bind, fault) from fault
    return site


def _cannot_listen(bind: Bind, fault: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the door can't listen on {bind.host}:{bind.port}: {fault.strerror or fault}",
        hint="stop what listens there, or give another --bind",
    )


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as fault:
        raise ConfigurationError(f"the certificate {cert} can't be used: {fault}", hint="both files are PEM") from fault
    return context


def rpc_multiaddr(settings: RootSettings) -> str | None:
    """The multiaddr of the door's guarded IPFS RPC; None where it can't be told, or has a path before it."""
    parts = urlsplit(settings.url)
    if parts.path or (settings.public_url is None and settings.bind.is_wildcard):
        return None
    host = parts.hostname or ""
    try:
        protocol = f"ip{ipaddress.ip_address(host).version}"
    except ValueError:
        protocol = "dns"
    return f"/{protocol}/{host}/tcp/{parts.port or (443 if parts.scheme == 'https' else 80)}/{parts.scheme}"


def _host(bind: Bind) -> str:
    return "127.0.0.1" if bind.host == "localhost" else bind.host


def peer_address(bind: Bind, port: int) -> str:
    """The peer listens where the door does: on loopback only, unless the operator opened the door."""
    host = _host(bind)
    return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"


def peer_port(bind: Bind, kept: int | None) -> int:
    """The port of the last start while it is free, else another: workers find the peer again where it was.

    Raises:
        ConfigurationError: there is no such address on this machine.
    """
    host = _host(bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (kept, 0) if kept else (0,):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            found: int = probe.getsockname()[1]
            return found
    raise ConfigurationError(f"the peer can't listen on {host}", hint="name an address with --p2p-listen")
