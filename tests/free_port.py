"""A TCP port for a program that has to be told one."""

from __future__ import annotations

import contextlib
import random
import socket

#: Below the ports of outgoing connections (32768 and up), any of which could take it before the program does.
PORTS = range(20_000, 32_000)
#: Never the generator that a test may have seeded: two tests that run at once would be given the same port.
_random = random.SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    while True:
        port = _random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
