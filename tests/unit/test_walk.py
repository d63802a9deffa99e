"""A content whose blocks say different things of its length can't be read, so it isn't whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.content.cid import cid_bytes, dag_pb_cid, raw_cid
from swarm.content.walk import MAX_CONTENT_BYTES, FileWalk, MissingWalk
from swarm.errors import ContentMismatch, MalformedInput


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def node(*children: tuple[str, int]) -> bytes:
    """A file node of dag-pb, that says what its children hold."""
    file = b"\x08\x02\x18" + varint(sum(size for _, size in children))
    file += b"".join(b"\x20" + varint(size) for _, size in children)
    links = b"".join(field(2, field(1, cid_bytes(cid)) + b"\x12\0\x18" + varint(size)) for cid, size in children)
    return links + field(1, file)


def missing(root: str, blocks: dict[str, bytes], *, size_bytes: int | None = None) -> list[str]:
    walk = MissingWalk(root, size_bytes=size_bytes)
    while (wanted := walk.wanted) is not None:
        if walk.needs_bytes:
            walk.feed(blocks.get(wanted))
        else:
            walk.found(len(blocks[wanted]) if wanted in blocks else None)
    return walk.missing


def read(root: str, blocks: dict[str, bytes]) -> bytes:
    walk = FileWalk(root, max_bytes=MAX_CONTENT_BYTES)
    parts = []
    while (wanted := walk.wanted) is not None:
        parts.append(walk.feed(blocks[wanted]))
    return b"".join(parts)


def stored(*blocks: bytes) -> dict[str, bytes]:
    return {cid: block for block in blocks for cid in (raw_cid(block), dag_pb_cid(block))}


LEAF = b"leaf"
LEAF_CID = raw_cid(LEAF)


def test_what_is_said_of_the_whole_is_checked() -> None:
    top = node((LEAF_CID, 4), (LEAF_CID, 4))
    assert missing(dag_pb_cid(top), stored(LEAF, top), size_bytes=8) == []
    assert missing(LEAF_CID, stored(LEAF), size_bytes=4) == []
    for root, size_bytes in ((dag_pb_cid(top), 7), (LEAF_CID, 5)):
        with pytest.raises(ContentMismatch):
            missing(root, stored(LEAF, top), size_bytes=size_bytes)


def test_a_block_that_two_parents_give_two_lengths_is_found_out() -> None:
    honest, liar = node((LEAF_CID, 4)), node((LEAF_CID, 5))
    top = node((dag_pb_cid(liar), 5), (dag_pb_cid(honest), 4))
    with pytest.raises(ContentMismatch):
        missing(dag_pb_cid(top), stored(LEAF, honest, liar, top))


def test_a_few_nodes_that_claim_more_than_can_be_read_are_refused() -> None:
    block, size_bytes, blocks = LEAF, 4, [LEAF]
    cid = LEAF_CID
    while size_bytes <= MAX_CONTENT_BYTES:
        block = node(*[(cid, size_bytes)] * 1024)
        cid, size_bytes = dag_pb_cid(block), size_bytes * 1024
        blocks.append(block)
    with pytest.raises(MalformedInput):
        missing(cid, stored(*blocks))


def test_a_block_that_is_named_again_and_again_counts_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few blocks, long to read: a root that let it pass would keep what no client can have."""
    row = node(*[(LEAF_CID, 4)] * 10)
    top = node(*[(dag_pb_cid(row), 40)] * 10)
    blocks = stored(LEAF, row, top)
    monkeypatch.setattr("swarm.content.walk.MAX_DAG_BLOCKS", 111)
    assert missing(dag_pb_cid(top), blocks) == []
    assert read(dag_pb_cid(top), blocks) == LEAF * 100
    monkeypatch.setattr("swarm.content.walk.MAX_DAG_BLOCKS", 110)
    for walk in (missing, read):
        with pytest.raises(MalformedInput, match="more than 110 blocks"):
            walk(dag_pb_cid(top), blocks)


@given(
    levels=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6),
    most=st.integers(1, 60),
)
def test_what_is_found_whole_can_be_read_and_nothing_else(levels: list[list[int]], most: int) -> None:
    """Each level is a node that names some of the blocks before it."""
    made = [(LEAF_CID, LEAF)]
    lengths = {LEAF_CID: len(LEAF)}
    for names in levels:
        children = [made[name % len(made)][0] for name in names]
        block = node(*((cid, lengths[cid]) for cid in children))
        made.append((dag_pb_cid(block), block))
        lengths[made[-1][0]] = sum(lengths[cid] for cid in children)
    root, blocks = made[-1][0], dict(made)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("swarm.content.walk.MAX_DAG_BLOCKS", most)
        outcomes = []
        for walk in (missing, read):
            try:
                walk(root, blocks)
                outcomes.append(True)
            except MalformedInput:
                outcomes.append(False)
    assert outcomes[0] == outcomes[1]
