"""Network namespaces that a test makes and removes: machines of their own, joined by cables.

Nothing is added to the machine's own network: a cable (veth pair) is made between two namespaces and goes with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import subprocess
from collections.abc import Iterator

from tests.tied import run_lives

_CLONE_NEWNET = 0x40000000
_numbers = itertools.count(1)


class Namespace:
    """A network namespace: a machine with a loopback and the cables it was given.

    Args:
        name: as ``ip netns`` lists it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix = ["ip", "netns", "exec", name]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets that this thread makes inside belong to the namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.name}") as there:
            _set_namespace(libc, there.fileno())
            try:
                yield
            finally:
                _set_namespace(libc, home.fileno())

    def run(self, *argv: str) -> str:
        """Run a command inside; returns its output."""
        return _run(*self.prefix, *argv)

    def drop_tcp_to(self, address: str, *, but: int) -> None:
        """From now on no TCP that leaves here for an address arrives but to one port (and it is counted)."""
        self.run("nft", "add", "table", "inet", "cut")
        self.run("nft", "add chain inet cut out { type filter hook output priority 0; }")
        self.run("nft", f"add rule inet cut out ip daddr {address} tcp dport != {but} counter drop")

    def dropped(self) -> int:
        """How many packets ``drop_tcp_to`` has dropped."""
        words = self.run("nft", "list", "table", "inet", "cut").split()
        return int(words[words.index("packets") + 1])


def _set_namespace(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Namespace, str, Namespace, str]]:
    """Two namespaces joined by a cable, with an address each; gone at the end.

    Returns:
        The first, its address, the second, its address.
    """
    _remove_what_killed_runs_left()
    run = f"{os.getpid()}-{next(_numbers)}"
    here, there = Namespace(f"swarm-a-{run}"), Namespace(f"swarm-b-{run}")
    addresses = ("10.213.0.1", "10.213.0.2")
    made: list[Namespace] = []
    try:
        for machine in (here, there):
            _run("ip", "netns", "add", machine.name)
            made.append(machine)
            machine.run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "cable", "netns", here.name, "type", "veth", "peer", "cable", "netns", there.name)
        for machine, address in zip((here, there), addresses, strict=True):
            machine.run("ip", "address", "add", f"{address}/24", "dev", "cable")
            machine.run("ip", "link", "set", "cable", "up")
            machine.run("ip", "route", "add", "224.0.0.0/4", "dev", "cable")
        yield here, addresses[0], there, addresses[1]
    finally:
        for machine in made:
            _run("ip", "netns", "del", machine.name)


def _remove_what_killed_runs_left() -> None:
    for name in os.listdir("/run/netns") if os.path.isdir("/run/netns") else ():
        left_by = re.fullmatch(r"swarm-[ab]-(\d+)-\d+", name)
        if left_by and not run_lives(int(left_by[1])):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)  # or another run did it
