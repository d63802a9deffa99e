"""By which certificates a door is checked, and whether it has any. Nothing here knows a door."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from swarm.content.urls import is_this_machine

__all__ = ["PLAIN", "plain_hint", "speaks_plain_http", "trust_certificates", "write_ca_bundle"]

#: What ``speaks_plain_http`` is called for people.
PLAIN: Final = "it speaks plain HTTP, not HTTPS"
#: What OpenSSL says of an answer that isn't TLS; the second from 3.2 on.
NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})


def speaks_plain_http(fault: BaseException) -> bool:
    """Whether a connection failed since the other side answered a TLS handshake without TLS."""
    cause: BaseException | None = fault
    while cause is not None:  # httpx wraps httpcore wraps ssl
        if isinstance(cause, ssl.SSLError):
            return cause.reason in NOT_TLS
        cause = cause.__cause__ or cause.__context__
    return False


def plain_hint(url: str) -> str:
    """What to try where a door speaks plain HTTP."""
    parts = urlsplit(url)
    safe = parts.hostname is not None and is_this_machine(parts.hostname)
    return f"try http://{parts.netloc}" + ("" if safe else ", if nobody on the way may listen: the key isn't encrypted")


def write_ca_bundle(path: Path, ca_file: Path) -> None:
    """Write a file that trusts what ``trust_certificates`` does, for libraries that take files only.

    Raises:
        OSError: a file can't be read or written.
    """
    import certifi

    path.write_bytes(Path(certifi.where()).read_bytes() + b"\n" + ca_file.read_bytes())


def trust_certificates(ca_file: Path | None = None) -> ssl.SSLContext:
    """The certificates that a door is checked by: the machine's and certifi's, and those of ``ca_file``.

    Raises:
        OSError: ``ca_file`` can't be read or holds no certificate.
    """
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(cafile=certifi.where())
    if ca_file is not None:
        context.load_verify_locations(cafile=str(ca_file))
    return context
