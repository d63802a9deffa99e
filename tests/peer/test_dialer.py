"""Whom a peer dials, and how often."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from swarm.peer.addresses import AddressRule, Multiaddr
from swarm.peer.dialer import LINES, PEER_BACKOFF_MAX_S, PEER_BACKOFF_S, Dialer
from swarm.peer.known import KnownPeers
from swarm.peer.node import open_peer
from swarm.peer.reputation import LIMIT, Reputation
from tests.peer.harness import config, eventually, open_host

BOB = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
OURSELVES = "12D3KooWDMCQbZZvLgHiHntG1KwcHoqHPAxL37KvhgibWqFtpqUY"


def dialer(*, rule: AddressRule | None = None, known: KnownPeers | None = None, **more: object) -> Dialer:
    return Dialer(
        OURSELVES,
        rule=rule or AddressRule(),
        reputation=Reputation(),
        known=known or KnownPeers(None),
        bootstrap=(),
        rng=lambda: 0.5,
        **more,  # type: ignore[arg-type]
    )


class Trap:
    """A port that counts who knocks, and lets nobody in."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.knocks = 0

    async def knocked(self, stream: trio.SocketStream) -> None:
        self.knocks += 1
        await stream.aclose()


@contextlib.asynccontextmanager
async def open_trap() -> AsyncIterator[Trap]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    trap = Trap(f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, trap.knocked, [listener])
        yield trap
        nursery.cancel_scope.cancel()


async def test_a_flood_of_strangers_that_get_blocked_fills_no_log() -> None:
    alice = dialer()
    with capture_logs() as logs:
        for n in range(10 * LINES):
            alice.misbehaved(f"stranger {n}", "nonsense", LIMIT)

    assert len([line for line in logs if line["event"] == "peer_blocked"]) == LINES
    assert alice.is_blocked(f"stranger {10 * LINES - 1}")


async def test_a_strangers_private_address_is_not_even_knocked_at() -> None:
    alice = dialer()
    async with open_trap() as trap, open_host(admission=alice) as host:  # type: ignore[arg-type]
        assert not await alice.dial(host, f"{trap.address}/p2p/{BOB}")
        assert trap.knocks == 0

        assert not await alice.dial(host, f"{trap.address}/p2p/{BOB}", vouched=True)
        assert trap.knocks == 1


async def test_a_dead_peer_is_dialled_ever_more_rarely(autojump_clock: trio.testing.MockClock) -> None:
    alice = dialer()
    address = Multiaddr("/ip4/8.8.8.8/tcp/4001")
    dials = []
    with trio.move_on_after(24 * 3600):
        while True:
            if alice.dialable(BOB, [address]):
                dials.append(trio.current_time())
                alice.dialled(BOB, answered=False)
            await trio.sleep(10)

    waits = [later - earlier for earlier, later in itertools.pairwise(dials)]
    assert waits[0] == pytest.approx(PEER_BACKOFF_S, abs=10)
    assert waits[-1] == pytest.approx(PEER_BACKOFF_MAX_S, abs=10)
    assert len(dials) < 60


async def test_a_peer_that_answers_again_is_as_good_as_new(autojump_clock: trio.testing.MockClock) -> None:
    alice = dialer()
    address = Multiaddr("/ip4/8.8.8.8/tcp/4001")
    for _ in range(5):
        alice.dialled(BOB, answered=False)
    assert not alice.dialable(BOB, [address])
    alice.dialled(BOB, answered=True)

    assert alice.dialable(BOB, [address]) == [address]


async def test_neither_we_ourselves_nor_who_is_blocked_is_dialled() -> None:
    reputation = Reputation()
    alice = Dialer(OURSELVES, rule=AddressRule(), reputation=reputation, known=KnownPeers(None), bootstrap=())
    address = Multiaddr("/ip4/8.8.8.8/tcp/4001")
    assert not alice.dialable(OURSELVES, [address])
    assert alice.dialable(BOB, [address])
    reputation.note(BOB, LIMIT, now=trio.current_time())

    assert not alice.dialable(BOB, [address])


async def test_peers_that_met_find_each_other_again_without_root_and_door(tmp_path: Path) -> None:
    async with open_peer(config("bob")) as bob:
        for _ in range(2):  # the second time alice knows nobody but whom the file names
            async with open_peer(config("alice", known_peers=tmp_path / "peers.json")) as alice:
                if not (tmp_path / "peers.json").exists():
                    assert await alice.dial(bob.addrs[0])
                    await eventually(
                        lambda alice=alice: (
                            alice._alive()
                            .host.get_peerstore()
                            .get_protocols(next(iter(alice._alive().host.get_network().connections)))
                        )
                    )
                await eventually(lambda alice=alice: bob.id in alice.peers())
            await eventually(lambda: not bob.peers())


async def test_a_file_of_known_peers_that_somebody_wrote_harms_nobody(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    peers = [{"id": "x" * 45, "addrs": ["/ip4/127.0.0.1/tcp/1"]}, {"id": BOB, "addrs": ["nonsense"], "vouched": True}]
    path.write_text(json.dumps(peers))
    async with open_peer(config("alice", known_peers=path)) as alice, open_peer(config("bob")) as bob:
        node = alice._alive()

        assert await bob.dial(alice.addrs[0])
        assert alice._node is node


async def test_a_peer_dialled_by_two_at_once_has_one_connection() -> None:
    async with open_peer(config("alice")) as alice, open_peer(config("bob")) as bob:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(alice.dial, bob.addrs[0])

        assert len(alice._alive().host.get_network().get_connections()) == 1
