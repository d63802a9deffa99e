"""A directory of blocks: whole or not at all, checked, capped."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarm.blocks import ABANDONED_AFTER_S, REMEASURE_AFTER_S, BlockStore
from swarm.content.cid import LEAF_BYTES, MAX_BLOCK_BYTES, build, raw_cid
from swarm.errors import ConfigurationError, ContentMismatch, MalformedInput, StoreFull
from tests.tied import tied

NOW = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> BlockStore:
    return BlockStore(tmp_path / "blocks", max_bytes=None, clock=clock)


def put(store: BlockStore, data: bytes) -> str:
    cid = raw_cid(data)
    store.put(cid, data)
    return cid


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


@contextmanager
def full_after(size_bytes: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_put_can_be_got_by_its_cid(store: BlockStore) -> None:
    cid = put(store, b"hello")
    assert store.get(cid) == b"hello"
    assert store.has(cid)
    assert store.size(cid) == 5
    assert list(store.cids()) == [cid]
    assert store.total_bytes() == 5


def test_an_unknown_block_is_absent_not_an_error(store: BlockStore) -> None:
    cid = raw_cid(b"never put")
    assert store.get(cid) is None
    assert not store.has(cid)
    assert store.size(cid) is None
    assert not store.delete(cid)
    assert store.read(cid) is None
    assert store.missing(cid) == [cid]


def test_another_store_of_the_same_directory_sees_the_blocks(store: BlockStore, tmp_path: Path) -> None:
    cid = put(store, b"hello")
    other = BlockStore(tmp_path / "blocks", max_bytes=None)
    assert other.get(cid) == b"hello"
    assert other.total_bytes() == 5


def test_bytes_of_another_cid_are_refused_and_nothing_is_stored(store: BlockStore, tmp_path: Path) -> None:
    with pytest.raises(ContentMismatch) as caught:
        store.put(raw_cid(b"asked"), b"given")
    assert caught.value.cid == raw_cid(b"asked")
    assert files(tmp_path) == []


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "bafkrei/../../x", "b" + "a" * 58, raw_cid(b"x").upper()])
def test_a_name_that_is_no_cid_never_reaches_the_disk(store: BlockStore, name: str) -> None:
    for call in (store.get, store.has, store.size, store.delete, store.read, store.missing):
        with pytest.raises(MalformedInput):
            call(name)
    with pytest.raises(MalformedInput):
        store.put(name, b"x")


def test_a_block_longer_than_a_block_may_be_is_refused(store: BlockStore) -> None:
    data = bytes(MAX_BLOCK_BYTES + 1)
    with pytest.raises(MalformedInput):
        store.put(raw_cid(data), data)


def test_a_rotted_block_counts_as_absent_and_can_be_put_again(store: BlockStore, tmp_path: Path) -> None:
    cid = put(store, b"hello")
    (path,) = files(tmp_path)
    path.write_bytes(b"hellO")
    assert store.get(cid) is None
    assert not store.has(cid)
    put(store, b"hello")
    assert store.get(cid) == b"hello"


def test_a_deleted_block_is_gone_and_its_bytes_are_free(store: BlockStore) -> None:
    cid = put(store, b"hello")
    assert store.delete(cid)
    assert not store.has(cid)
    assert store.total_bytes() == 0


def test_a_block_beyond_the_cap_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, max_bytes=10)
    put(store, b"123456")
    with pytest.raises(StoreFull) as caught:
        put(store, b"abcdef")
    assert caught.value.limit_bytes == 10
    assert len(files(tmp_path)) == 1
    put(store, b"1234")
    assert store.total_bytes() == 10
    put(store, b"1234")  # there already: needs no room


def test_room_that_another_process_made_is_found(tmp_path: Path, clock: Clock) -> None:
    store = BlockStore(tmp_path, max_bytes=10, clock=clock)
    cid = put(store, b"12345678")
    BlockStore(tmp_path, max_bytes=None).delete(cid)
    clock.now += REMEASURE_AFTER_S
    put(store, b"abcdefgh")
    assert store.total_bytes() == 8


def test_a_full_disk_leaves_nothing_half_written(store: BlockStore, tmp_path: Path) -> None:
    small = put(store, b"small")
    data = os.urandom(100_000)
    with full_after(50_000), pytest.raises(StoreFull) as caught:
        put(store, data)
    assert caught.value.limit_bytes is None
    assert [path.name for path in files(tmp_path)] == [small]
    assert store.total_bytes() == 5
    assert store.get(put(store, data)) == data


def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="block directory"):
        BlockStore(tmp_path / "file" / "blocks", max_bytes=None)


def test_an_abandoned_write_is_removed_and_a_fresh_one_is_not(tmp_path: Path) -> None:
    clock = Clock()
    BlockStore(tmp_path, max_bytes=None)
    for name, age_s in (("abandoned", ABANDONED_AFTER_S + 1), ("fresh", 1)):
        path = tmp_path / "incoming" / name
        path.write_bytes(b"half")
        os.utime(path, (NOW - age_s, NOW - age_s))
    BlockStore(tmp_path, max_bytes=None, clock=clock)
    assert [path.name for path in files(tmp_path)] == ["fresh"]


def test_files_that_are_no_blocks_are_left_alone(store: BlockStore, tmp_path: Path) -> None:
    cid = put(store, b"hello")
    (tmp_path / "blocks" / "README").write_text("x")
    (tmp_path / "blocks" / cid[-3:-1] / "notes").write_text("x")
    assert list(store.cids()) == [cid]
    assert store.collect([], min_age_s=0) == (1, 5)
    assert len(files(tmp_path)) == 2


def test_a_content_of_many_blocks_comes_out_whole(store: BlockStore) -> None:
    data = os.urandom(3 * LEAF_BYTES + 17)
    dag = build(data)
    for cid, block in dag.blocks.items():
        store.put(cid, block)
    assert store.read(dag.root) == data
    assert store.missing(dag.root) == []
    with pytest.raises(MalformedInput):
        store.read(dag.root, max_bytes=len(data) - 1)


def test_a_missing_leaf_is_named_and_the_content_is_not_truncated(store: BlockStore) -> None:
    dag = build(os.urandom(3 * LEAF_BYTES))
    for cid, block in dag.blocks.items():
        store.put(cid, block)
    leaf = list(dag.blocks)[1]
    store.delete(leaf)
    assert store.missing(dag.root) == [leaf]
    assert store.read(dag.root) is None


def test_a_truncated_leaf_is_found_missing_without_reading_the_others(store: BlockStore, tmp_path: Path) -> None:
    dag = build(os.urandom(3 * LEAF_BYTES))
    for cid, block in dag.blocks.items():
        store.put(cid, block)
    leaf = list(dag.blocks)[1]
    (path,) = (path for path in files(tmp_path) if path.name == leaf)
    os.truncate(path, 10)
    assert store.missing(dag.root) == [leaf]


def test_collecting_spares_what_is_put_meanwhile(store: BlockStore, clock: Clock) -> None:
    put(store, b"old")

    def named() -> Iterator[str]:
        clock.now += 1
        put(store, b"put meanwhile")
        yield from ()

    assert store.collect(named(), min_age_s=0) == (1, 3)
    assert list(store.cids()) == [raw_cid(b"put meanwhile")]


def test_collecting_keeps_contents_that_are_named_and_blocks_put_just_now(store: BlockStore, clock: Clock) -> None:
    named = build(os.urandom(2 * LEAF_BYTES))
    for cid, block in named.blocks.items():
        store.put(cid, block)
    old, again = put(store, b"old"), put(store, b"old, put again")
    clock.now += 7200
    put(store, b"old, put again")
    fresh = put(store, b"fresh")
    assert store.collect([named.root]) == (1, 3)
    assert set(store.cids()) == {*named.blocks, again, fresh}
    assert not store.has(old)


def test_threads_that_put_the_same_blocks_agree_on_what_is_there(tmp_path: Path) -> None:
    blocks = [os.urandom(1000) for _ in range(20)]
    store = BlockStore(tmp_path, max_bytes=20_000)
    start = threading.Barrier(4)

    def put_all() -> None:
        start.wait()
        for block in blocks:
            put(store, block)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(put_all) for _ in range(4)]:
            done.result()
    assert store.total_bytes() == 20_000
    assert sorted(store.cids()) == sorted(map(raw_cid, blocks))
    assert len(files(tmp_path)) == 20


def test_threads_together_keep_the_cap(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, max_bytes=10_000)

    def fits(block: bytes) -> bool:
        try:
            put(store, block)
        except StoreFull:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(fits, [os.urandom(1000) for _ in range(40)])) == 10
    assert store.total_bytes() == 10_000


def test_a_killed_process_leaves_whole_blocks_only(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from swarm.blocks import BlockStore
from swarm.content.cid import raw_cid
store = BlockStore(Path(sys.argv[1]), max_bytes=None)
while True:
    data = os.urandom(300_000)
    store.put(raw_cid(data), data)
    print(raw_cid(data), flush=True)
"""
    acknowledged = []
    with subprocess.Popen(tied([sys.executable, "-c", program, tmp_path]), stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            acknowledged.append(line.strip())
            if len(acknowledged) == 20:
                writer.kill()
    store = BlockStore(tmp_path, max_bytes=None)
    assert all(store.get(cid) for cid in acknowledged)
    assert all(store.get(cid) for cid in list(store.cids()))
