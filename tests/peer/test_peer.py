"""A peer's life: it joins, rejoins, is replaced when libp2p dies, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import socket
import threading

import pytest
import trio
from libp2p.peer.id import ID

from swarm.errors import ClosedError, ConfigurationError, MalformedInput
from swarm.peer.dialer import ROOT_BACKOFF_MAX_S
from swarm.peer.node import LEAVE_S, Peer, PeerConfig, open_peer
from tests.patience import PATIENCE_S
from tests.peer.harness import announcement, config, eventually, seed_of

WILDCARD = "/ip4/0.0.0.0/"


def following(root: Peer, **changes: object) -> PeerConfig:
    return config(roots=frozenset({root.id}), bootstrap=root.addrs, **changes)


def port_of(peer: Peer) -> int:
    return int(peer.addrs[0].split("/")[4])


async def test_the_peer_id_follows_from_the_seed() -> None:
    async with open_peer(config("alice")) as alice:
        first = alice.id
    async with open_peer(config("alice")) as alice:
        assert alice.id == first
        assert alice.addrs[0].endswith(f"/p2p/{first}")


async def test_a_worker_rejoins_within_seconds_of_its_roots_restart() -> None:
    async with open_peer(config("root")) as root:
        port = port_of(root)
        worker = following(root)
    with trio.CancelScope() as scope:
        async with open_peer(worker) as alice:  # the root is down
            await eventually(lambda: alice.addrs)
            for epoch in (1, 2):
                async with open_peer(config("root", listen=(f"/ip4/127.0.0.1/tcp/{port}",))) as root:
                    await eventually(
                        lambda root=root: root.mesh_size and alice.mesh_size, within_s=2 * ROOT_BACKOFF_MAX_S
                    )
                    await root.publish(announcement(root.id, epoch=epoch))
                    with trio.fail_after(PATIENCE_S):
                        assert (await alice.heard.receive()).epoch == epoch
                await eventually(lambda: not alice.peers())
            scope.cancel()


async def test_a_root_that_is_back_is_dialled_at_once_where_there_is_a_sign_of_it() -> None:
    async with open_peer(config("root")) as root:
        port, worker = port_of(root), following(root)
    async with open_peer(worker) as alice:
        alice._alive().dialer._rng = lambda: 1e6  # it would wait for days
        await eventually(lambda: alice._alive().dialer._hurried.statistics().tasks_waiting)
        async with open_peer(config("root", listen=(f"/ip4/127.0.0.1/tcp/{port}",))) as root:
            alice.redial()
            await eventually(lambda: root.id in alice.peers())


async def test_what_is_no_peer_id_is_no_root_and_harms_nobody() -> None:
    async with open_peer(config("root")) as root, open_peer(following(root)) as alice:
        alice.set_roots(frozenset({root.id, "nonsense", "", "0OIl"}))
        await eventually(lambda: root.mesh_size and alice.mesh_size)
        await root.publish(announcement(root.id, seq=1))
        with trio.fail_after(PATIENCE_S):
            assert (await alice.heard.receive()).seq == 1


async def test_a_message_that_nobody_would_take_is_not_sent() -> None:
    async with open_peer(config("root")) as root:
        with pytest.raises(MalformedInput, match="60001 bytes where at most 60000 are taken"):
            await root.publish(bytes(60_001))


async def test_each_address_of_a_root_is_tried() -> None:
    async with open_peer(config("root")) as root:
        dead = root.addrs[0].replace(f"/tcp/{port_of(root)}/", "/tcp/1/")
        async with open_peer(config(roots=frozenset({root.id}), bootstrap=(dead, *root.addrs))) as alice:
            await eventually(lambda: root.id in alice.peers())


async def test_where_libp2p_dies_a_fresh_node_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.peer.node.RESTART_S", 0.05)
    async with open_peer(config("root")) as root, open_peer(following(root)) as alice:
        await eventually(lambda: alice.mesh_size)
        addresses = alice.addrs
        first = alice._node
        assert first is not None

        async def die() -> None:
            raise RuntimeError("a defect of libp2p")

        first.pubsub.manager.run_task(die)
        await eventually(lambda: alice._node not in (None, first))
        await eventually(lambda: root.mesh_size and alice.mesh_size)
        await root.publish(announcement(root.id, seq=1))
        with trio.fail_after(PATIENCE_S):
            assert (await alice.heard.receive()).seq == 1
        assert alice.addrs == addresses


async def test_two_peers_that_cant_share_a_port_say_so() -> None:
    async with open_peer(config()) as alice:
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1 port {port_of(alice)}: Address already in use"):
            async with open_peer(config(listen=(f"/ip4/127.0.0.1/tcp/{port_of(alice)}",))):
                pass


async def test_an_address_of_another_machine_cant_be_listened_on() -> None:
    with pytest.raises(ConfigurationError, match=r"can't listen on 192\.0\.2\.1 port 0"):
        async with open_peer(config(listen=("/ip4/192.0.2.1/tcp/0",))):
            pass


async def test_a_wildcard_is_announced_as_addresses_that_others_can_dial() -> None:
    async with open_peer(config(listen=("/ip4/0.0.0.0/tcp/0",))) as alice, open_peer(config()) as bob:
        assert alice.addrs
        assert not any(WILDCARD in address for address in alice.addrs)
        loopback = next(address for address in alice.addrs if "/127.0.0.1/" in address)
        assert await bob.dial(loopback)
        identified = bob._alive().host.get_peerstore()
        await eventually(lambda: len(identified.addrs(ID.from_string(alice.id))) >= len(alice.addrs))
        assert not any(WILDCARD in str(address) for address in identified.addrs(ID.from_string(alice.id)))


async def test_a_seed_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="32 bytes, not 3"):
        config(seed=b"abc")


async def test_a_bootstrap_address_without_a_peer_id_is_refused() -> None:
    with pytest.raises(MalformedInput, match="names no peer"):
        async with open_peer(config(bootstrap=("/ip4/127.0.0.1/tcp/4001",))):
            pass


async def test_an_address_without_a_peer_id_cant_be_dialled() -> None:
    async with open_peer(config()) as alice:
        with pytest.raises(MalformedInput, match="without a peer id"):
            await alice.dial("/ip4/127.0.0.1/tcp/4001")


async def test_secrets_dont_show_in_the_configuration() -> None:
    shown = repr(config("alice", psk=seed_of("psk")))

    assert str(seed_of("alice")) not in shown
    assert str(seed_of("psk")) not in shown


async def test_a_fault_of_the_block_leaves_it_as_it_was_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_peer(config()):
            raise ZeroDivisionError


async def test_a_closed_peer_says_that_it_is_closed() -> None:
    async with open_peer(config()) as alice:
        pass
    with pytest.raises(ClosedError):
        await alice.publish(b"{}")
    with pytest.raises(trio.EndOfChannel):
        await alice.heard.receive()
    assert alice.addrs == ()
    assert alice.peers() == ()


async def test_a_peer_that_is_cancelled_while_it_starts_is_gone_in_a_moment() -> None:
    sockets = _sockets()
    with trio.fail_after(2 * LEAVE_S):
        for delay_s in (0.0, 0.001, 0.01):
            with trio.move_on_after(delay_s):
                async with open_peer(config(dht=True)):
                    await trio.sleep_forever()
    gc.collect()
    assert _sockets() == sockets


@pytest.mark.parametrize("how", ["left", "cancelled"])
async def test_leaving_takes_a_moment_and_leaves_no_socket_and_no_thread(how: str) -> None:
    threads = threading.active_count()
    sockets = _sockets()
    async with open_peer(config("root")) as root:
        with trio.CancelScope() as scope:
            async with open_peer(following(root, dht=True)) as alice, open_peer(following(root, dht=True)) as bob:
                await eventually(lambda: alice.mesh_size and bob.mesh_size)
                started_at = trio.current_time()
                if how == "cancelled":
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
        assert trio.current_time() - started_at < LEAVE_S  # nobody was waited for until the time was over
        await eventually(lambda: not root.peers())
    gc.collect()
    assert _sockets() == sockets
    assert threading.active_count() <= threads + 1  # trio keeps an idle worker thread


def _sockets() -> int:
    return sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in _open_fds())


def _open_fds() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        found.append(fd)
    return found


async def test_a_taken_port_is_found_out_although_its_owner_shares_it() -> None:
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        with pytest.raises(ConfigurationError, match="Address already in use"):
            async with open_peer(config(listen=(f"/ip4/127.0.0.1/tcp/{owner.getsockname()[1]}",))):
                pass
