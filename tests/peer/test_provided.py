"""Who has a content is found by the DHT, and how much is said of it is bounded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import trio

from swarm.blocks import BlockStore
from swarm.content.cid import build, parse_cid, raw_cid
from swarm.model import Cid
from swarm.peer import provided
from swarm.peer.dht import key_of_digest
from swarm.peer.node import Peer, open_peer
from swarm.peer.provided import AGAIN_S, Provided
from swarm.worker.join import Part
from swarm.worker.storage import Storage
from tests.patience import PATIENCE_S
from tests.peer.harness import config, eventually
from tests.peer.test_bitswap import serving
from tests.peer.test_dht import member, rendezvous_of

CIDS = [raw_cid(b"content %d" % n) for n in range(6)]


# ── what is said next ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_newest_is_said_first_and_each_once() -> None:
    kept = Provided()
    for cid in CIDS[:3]:
        kept.add(cid)

    assert said_at(kept, 0.0) == [CIDS[2], CIDS[1], CIDS[0]]
    assert said_at(kept, AGAIN_S - 1) == []


def test_what_is_due_again_comes_before_what_is_new() -> None:
    kept = Provided()
    for cid in CIDS[:2]:
        kept.add(cid)
    said_at(kept, 0.0)
    kept.add(CIDS[2])

    assert sorted(said_at(kept, AGAIN_S)[:2]) == sorted(CIDS[:2])


def test_what_nobody_heard_stays_due() -> None:
    kept = Provided()
    kept.add(CIDS[0])
    kept.said(CIDS[0], False, now=0.0)

    assert kept.next_due(now=1.0) == CIDS[0]


def test_the_oldest_is_forgotten_at_the_cap_and_told_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provided, "MAX_KEPT", 2)
    kept = Provided()
    kept.add(CIDS[0])
    said_at(kept, 0.0)
    for cid in CIDS[1:4]:
        kept.add(cid)

    assert len(kept) == 2
    assert kept.take_forgotten() == [CIDS[0]]  # the others were never said
    assert kept.take_forgotten() == []
    assert said_at(kept, 0.0) == [CIDS[3], CIDS[2]]


def test_all_is_said_again_to_newcomers() -> None:
    kept = Provided()
    kept.add(CIDS[0])
    said_at(kept, 0.0)
    kept.say_all_again()

    assert said_at(kept, 1.0) == [CIDS[0]]


def said_at(kept: Provided, now: float) -> list[Cid]:
    said = []
    while (cid := kept.next_due(now=now)) is not None:
        kept.said(cid, True, now=now)
        said.append(cid)
    return said


# ── in a swarm ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_second_peer_finds_who_has_a_result_and_fetches_it_from_there() -> None:
    content = bytes(3_000_000)
    dag = build(content)
    async with (
        open_peer(config("root", dht=True)) as root,
        open_peer(member(root, provide_interval_s=0.01, serve_to="any")) as alice,
        open_peer(member(root)) as bob,
    ):
        serving(alice, dag.blocks)
        alice.keep_providing([dag.root])

        assert await found(bob, dag.root) == (alice.id,)
        assert await bob.fetch(alice.id, dag.root, max_bytes=len(content)) == content


async def test_a_root_that_comes_back_without_its_records_is_told_again() -> None:
    blocks = {CIDS[0]: b"content 0"}
    async with open_peer(config("root", dht=True)) as root:
        listen, worker = (root.addrs[0].split("/p2p/")[0],), member(root, provide_interval_s=0.01)
    async with open_peer(worker) as alice:
        serving(alice, blocks)
        alice.keep_providing(blocks)
        for _ in range(2):
            async with open_peer(config("root", dht=True, listen=listen)) as root:
                await eventually(lambda root=root: known(root, CIDS[0]))  # type: ignore[misc]


async def test_what_isnt_here_any_more_is_not_said() -> None:
    blocks = {CIDS[0]: b"content 0", CIDS[1]: b"content 1"}
    async with (
        open_peer(config("root", dht=True)) as root,
        open_peer(member(root, provide_interval_s=0.01)) as alice,
    ):
        serving(alice, {CIDS[0]: b"content 0"})
        alice.keep_providing(blocks)  # the one that is missing is the newest
        await eventually(lambda: known(root, CIDS[0]))

        assert not known(root, CIDS[1])
        assert len(alice._provided) == 1


async def test_no_more_is_kept_in_the_dht_than_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provided, "MAX_KEPT", 2)
    blocks: Mapping[Cid, bytes] = {cid: b"content %d" % n for n, cid in enumerate(CIDS)}
    async with (
        open_peer(config("root", dht=True)) as root,
        open_peer(member(root, provide_interval_s=0.01)) as alice,
    ):
        serving(alice, blocks)
        for cid in CIDS:
            alice.keep_providing([cid])
            await eventually(lambda cid=cid: known(root, cid))  # type: ignore[misc]
        keys = rendezvous_of(alice)._dht.provider_store.providing_keys
        await eventually(lambda: len(keys) <= 3)  # and the swarm's tag


async def test_what_a_worker_made_before_its_peer_was_open_is_said_once_it_is(tmp_path: Path) -> None:
    blocks = BlockStore(tmp_path, max_bytes=None)
    blocks.put(CIDS[0], b"content 0")
    part, storage = Part(), Storage(blocks, owed=list)
    part.provide([CIDS[0]])
    async with open_peer(config("root", dht=True)) as root, trio.open_nursery() as nursery:
        alice = member(root, provide_interval_s=0.01)
        take = partial(part.take, alice, storage, root=lambda: None, heard=lambda _: None, opened=lambda _: None)
        nursery.start_soon(take)
        await eventually(lambda: known(root, CIDS[0]))
        part.leave()


async def test_without_a_dht_nobody_is_told_and_nobody_found() -> None:
    async with open_peer(config()) as alice:
        alice.keep_providing(CIDS)

        assert await alice.find_providers(CIDS[0]) == ()


def known(peer: Peer, cid: Cid) -> bool:
    store = rendezvous_of(peer)._dht.provider_store
    return bool(store.get_providers(bytes.fromhex(key_of_digest(parse_cid(cid).digest))))


async def found(peer: Peer, cid: Cid) -> tuple[str, ...]:
    with trio.fail_after(PATIENCE_S):
        while not (providers := await peer.find_providers(cid)):  # noqa: ASYNC110 - libp2p has no event for it
            await trio.sleep(0.02)
    return providers
