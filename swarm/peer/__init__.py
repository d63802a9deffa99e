"""The libp2p side of the swarm, and the only importer of libp2p. Begin at ``node.py``.

The version is checked here, before any module of ours touches a private name of another one.
"""

from __future__ import annotations

import importlib.metadata
from typing import Final

from swarm.errors import ConfigurationError

#: The one version whose private names ``hardened.py`` overrides.
LIBP2P_VERSION: Final = "0.8.1"


def check_version(found: str) -> None:
    """Refuse any other libp2p.

    Raises:
        ConfigurationError: another version is installed.
    """
    if found != LIBP2P_VERSION:
        raise ConfigurationError(
            f"libp2p {found} is installed, but the hardening of swarm.peer is written for {LIBP2P_VERSION}",
            hint=f"pip install libp2p=={LIBP2P_VERSION}, or run with --p2p off",
        )


check_version(importlib.metadata.version("libp2p"))
