"""What every store of the root promises; one suite, run against the directory and against a real Kubo."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_asyncio

from rendezvous.store import DirectoryStore, RootStore, open_kubo_store, open_store
from swarm.blocks import BlockStore
from swarm.content.cid import LEAF_BYTES, MAX_BLOCK_BYTES, build, dag_pb_cid, raw_cid
from swarm.errors import ConfigurationError, ContentMismatch, IpfsUnreachable, MalformedInput, StoreFull
from tests.free_port import free_port
from tests.kubo import Kubo, running_kubo

pytestmark = pytest.mark.asyncio

INLINE = b'{"kind":"noop"}'


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


async def ledger(cid: str) -> bytes | None:
    """A ledger that has one manifest inline."""
    return INLINE if cid == raw_cid(INLINE) else None


@attrs.frozen(kw_only=True)
class Backend:
    """A store, and what tests do to it behind its back."""

    store: RootStore
    clock: Clock
    lose: Callable[[str], object]
    rot: Callable[[str], None]


@pytest.fixture(scope="module")
def kubo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubo]:
    with running_kubo(tmp_path_factory.mktemp("kubo")) as daemon:
        yield daemon


@pytest_asyncio.fixture(params=["directory", "kubo"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    clock = Clock()
    if request.param == "directory":
        blocks = BlockStore(tmp_path, max_bytes=None, clock=clock)

        def rot(cid: str) -> None:
            (path,) = tmp_path.rglob(cid)
            path.write_bytes(b"rotten")

        yield Backend(store=DirectoryStore(blocks, inline=ledger), clock=clock, lose=blocks.delete, rot=rot)
        return
    daemon: Kubo = request.getfixturevalue("kubo")

    def lose(cid: str) -> None:
        daemon.command("pin", "rm", cid)
        daemon.command("block", "rm", cid)

    def rot_in_kubo(cid: str) -> None:
        key = daemon.command("cid", "format", "-f", "%M", "-b", "base32upper", cid).strip().removeprefix("B")
        (path,) = daemon.repository.rglob(f"{key}.data")
        path.write_bytes(b"rotten")

    async with open_kubo_store(daemon.multiaddr, inline=ledger, clock=clock) as store:
        yield Backend(store=store, clock=clock, lose=lose, rot=rot_in_kubo)
        for cid in await store.cids():
            await store.delete(cid)


@pytest.fixture
def store(backend: Backend) -> RootStore:
    return backend.store


async def put(store: RootStore, data: bytes) -> str:
    dag = build(data)
    for cid, block in dag.blocks.items():
        await store.put(cid, block)
    return dag.root


async def test_what_was_put_can_be_got_by_its_cid(store: RootStore) -> None:
    data = os.urandom(100)
    cid = await put(store, data)
    assert cid == raw_cid(data)
    assert await store.get(cid) == data
    assert await store.has(cid)
    assert await store.cids() == [cid]
    assert await store.missing(cid) == []
    assert await store.read(cid, 100) == data


async def test_an_unknown_block_is_absent_not_an_error(store: RootStore) -> None:
    for cid in (raw_cid(b"never put"), dag_pb_cid(b"never put")):
        assert await store.get(cid) is None
        assert not await store.has(cid)
        assert await store.missing(cid) == [cid]
        assert await store.read(cid, 100) is None
        assert not await store.delete(cid)


async def test_a_block_can_be_put_twice_and_the_empty_one_too(store: RootStore) -> None:
    for data in (b"twice", b"twice", b""):
        assert await store.get(await put(store, data)) == data


async def test_a_content_of_many_blocks_comes_out_whole(store: RootStore) -> None:
    data = os.urandom(2 * LEAF_BYTES + 17)
    cid = await put(store, data)
    assert await store.missing(cid) == []
    assert await store.read(cid, len(data)) == data
    assert set(await store.cids()) == set(build(data).blocks)
    with pytest.raises(MalformedInput):
        await store.read(cid, len(data) - 1)


async def test_a_missing_leaf_is_named_and_the_content_is_not_truncated(backend: Backend) -> None:
    data = os.urandom(2 * LEAF_BYTES)
    cid = await put(backend.store, data)
    leaf = raw_cid(data[LEAF_BYTES:])
    backend.lose(leaf)
    assert await backend.store.missing(cid) == [leaf]
    assert await backend.store.read(cid, len(data)) is None


async def test_a_rotted_block_counts_as_absent_and_can_be_put_again(backend: Backend) -> None:
    data = os.urandom(100)
    cid = await put(backend.store, data)
    backend.rot(cid)
    assert await backend.store.get(cid) is None
    assert not await backend.store.has(cid)
    await put(backend.store, data)
    assert await backend.store.get(cid) == data


async def test_a_manifest_in_the_ledger_is_found_as_if_it_were_kept(store: RootStore) -> None:
    cid = raw_cid(INLINE)
    assert await store.get(cid) == INLINE
    assert await store.has(cid)
    assert await store.missing(cid) == []
    assert await store.read(cid, 100) == INLINE
    assert await store.cids() == []
    with pytest.raises(MalformedInput):
        await store.read(cid, len(INLINE) - 1)


async def test_bytes_of_another_cid_are_refused_and_nothing_is_stored(store: RootStore) -> None:
    with pytest.raises(ContentMismatch):
        await store.put(raw_cid(b"asked"), b"given")
    assert await store.cids() == []


async def test_the_longest_block_is_taken_and_a_longer_one_is_refused(store: RootStore) -> None:
    longest = os.urandom(MAX_BLOCK_BYTES)
    await store.put(raw_cid(longest), longest)
    assert await store.get(raw_cid(longest)) == longest
    with pytest.raises(MalformedInput):
        await store.put(raw_cid(longest + b"x"), longest + b"x")


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "bafy&arg=x"])
async def test_a_name_that_is_no_cid_is_refused(store: RootStore, name: str) -> None:
    for call in (store.get, store.has, store.missing, store.delete):
        with pytest.raises(MalformedInput):
            await call(name)
    with pytest.raises(MalformedInput):
        await store.put(name, b"x")


async def test_a_deleted_block_is_gone(store: RootStore) -> None:
    cid = await put(store, os.urandom(100))
    assert await store.delete(cid)
    assert not await store.delete(cid)
    assert not await store.has(cid)
    assert await store.cids() == []


async def test_collecting_keeps_contents_that_are_named_and_blocks_put_just_now(backend: Backend) -> None:
    store = backend.store
    named = os.urandom(2 * LEAF_BYTES)
    root = await put(store, named)
    old, again = await put(store, b"old"), await put(store, b"old, put again")
    backend.clock.now += 7200
    await put(store, b"old, put again")
    fresh = await put(store, b"fresh")
    assert await store.collect([root, raw_cid(INLINE), raw_cid(b"absent")]) == (1, 3)
    assert set(await store.cids()) == {*build(named).blocks, again, fresh}
    assert not await store.has(old)
    assert await store.collect([root], min_age_s=0) == (2, 19)


async def test_collecting_spares_what_a_result_is_about_to_name(backend: Backend) -> None:
    """Uploaded long ago, completed just now: the ledger that the collector read doesn't name it yet."""
    data = os.urandom(2 * LEAF_BYTES)
    cid = await put(backend.store, data)
    backend.clock.now += 7200
    assert await backend.store.missing(cid) == []
    assert await backend.store.collect([]) == (0, 0)
    assert await backend.store.read(cid, len(data)) == data


# ── one of them alone ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_full_directory_refuses_with_store_full(tmp_path: Path) -> None:
    async with open_store(tmp_path, max_bytes=10) as store:
        with pytest.raises(StoreFull):
            await put(store, bytes(11))
        assert await store.cids() == []


async def test_what_others_keep_in_the_same_kubo_is_never_touched(kubo: Kubo, tmp_path: Path) -> None:
    ours, theirs = os.urandom(50), tmp_path / "theirs"
    theirs.write_bytes(os.urandom(50))
    cid = kubo.command("add", "--quieter", str(theirs)).strip()
    async with open_store(tmp_path, ipfs=kubo.multiaddr) as store:
        assert await store.get(cid) == theirs.read_bytes()
        await store.put(cid, theirs.read_bytes())  # the same content may be a result as well
        our_cid = await put(store, ours)
        assert await store.collect([], min_age_s=0) == (1, 50)
        assert not await store.has(our_cid)
        assert await store.get(cid) == theirs.read_bytes()


async def test_the_peer_that_asks_others_for_blocks_is_the_kubo(kubo: Kubo, tmp_path: Path) -> None:
    async with open_store(tmp_path, ipfs=kubo.multiaddr) as store:
        assert await store.peer_ids() == (kubo.command("id", "-f", "<id>").strip(),)
    async with open_store(tmp_path) as store:
        assert await store.peer_ids() == ()


async def test_what_is_put_while_a_kubo_is_collected_stays(kubo: Kubo) -> None:
    clock, data = Clock(), b"put again meanwhile"

    async def put_meanwhile(_cid: str) -> None:
        clock.now += 0.25
        await shared.put(raw_cid(data), data)

    async with open_kubo_store(kubo.multiaddr, inline=put_meanwhile, clock=clock) as shared:
        clock.now += 0.5
        abandoned = await put(shared, b"abandoned")
        assert await put(shared, data) == raw_cid(data)
        clock.now += 0.125
        # The ledger is asked for what isn't here, which is when the other is put.
        assert await shared.collect([dag_pb_cid(b"absent")], min_age_s=0) == (1, 9)
        assert not await shared.has(abandoned)
        assert await shared.get(raw_cid(data)) == data
        assert await shared.delete(raw_cid(data))


async def test_kubos_own_collector_leaves_what_was_put(kubo: Kubo, tmp_path: Path) -> None:
    data = os.urandom(2 * LEAF_BYTES)
    dag = build(data)
    async with open_store(tmp_path, ipfs=kubo.multiaddr) as store:
        await store.put(dag.root, dag.blocks[dag.root])  # the root first: its children aren't there yet
        kubo.command("repo", "gc")
        await put(store, data)
        kubo.command("repo", "gc")
        assert await store.read(dag.root, len(data)) == data
        await store.collect([], min_age_s=0)


async def test_a_kubo_that_is_down_is_unreachable_and_then_serves_again(tmp_path: Path) -> None:
    with running_kubo(tmp_path / "kubo", configuration={"Addresses.API": f'"/ip4/127.0.0.1/tcp/{free_port()}"'}) as own:
        async with open_store(tmp_path, ipfs=own.multiaddr) as store:
            cid = await put(store, b"kept")
            own.stop()
            for call in (store.get, store.has, store.missing, store.delete):
                with pytest.raises(IpfsUnreachable):
                    await call(cid)
            with pytest.raises(IpfsUnreachable):
                await store.cids()
            with pytest.raises(IpfsUnreachable):
                await put(store, b"more")
            with pytest.raises(IpfsUnreachable):
                async with open_store(tmp_path, ipfs=own.multiaddr):
                    pass
            own.start()
            assert await store.get(cid) == b"kept"


async def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"ipfs": "http://127.0.0.1:5001"},
        {"ipfs": "/ip4/127.0.0.1/udp/5001"},
        {"ipfs": "/ip4/127.0.0.1/tcp/5001", "max_bytes": 10},
    )
    for options in refused:
        with pytest.raises(ConfigurationError) as caught:
            async with open_store(tmp_path, **options):
                pass
        assert caught.value.hint
