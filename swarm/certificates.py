"""By which certificates a door is checked. Nothing here knows a door."""

from __future__ import annotations

import ssl
from pathlib import Path

__all__ = ["trust_certificates", "write_ca_bundle"]


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
