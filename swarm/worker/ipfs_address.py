"""Where results are uploaded to: the IPFS address of the settings, or the door's own guarded RPC."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from swarm.wire import Settings


def ipfs_address(settings: Settings, door_url: str) -> tuple[str, bool]:
    """The multiaddr to upload to, and whether it is the door itself, which is the only one that gets our key."""
    door = door_multiaddr(door_url)
    named = settings.peer.ipfs if settings.peer is not None else None
    if named is None:
        return door, True
    doors = {door, *(door_multiaddr(url) for url in settings.swarm.doors)}
    return named, named in doors | {one.removesuffix("/http") for one in doors}


def door_multiaddr(url: str) -> str:
    """A door's URL as ipfshttpclient takes it, such as ``/ip4/127.0.0.1/tcp/8765/http``."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        protocol = f"ip{ipaddress.ip_address(host).version}"
    except ValueError:
        protocol = "dns"
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"/{protocol}/{host}/tcp/{port}/{parts.scheme}"
