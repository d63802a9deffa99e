"""CIDs, the blocks of a file, and walks over the blocks of peers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.content import cid as cid_module
from swarm.content import walk as walk_module
from swarm.content.cid import (
    LEAF_BYTES,
    MAX_BLOCK_BYTES,
    MAX_LINKS,
    Codec,
    Link,
    build,
    cid_bytes,
    cid_from_bytes,
    dag_pb_cid,
    iter_blocks,
    links,
    parse_cid,
    parse_file_node,
    raw_cid,
    verify_block,
)
from swarm.content.protobuf import encode_field, encode_varint, read_fields
from swarm.content.walk import FileWalk, MissingWalk
from swarm.errors import ContentMismatch, MalformedInput, PeerError

HELLO = "bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq"  # what Kubo says of b"hello"
EMPTY = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"


def content(size_bytes: int) -> bytes:
    """Bytes that don't repeat within a leaf."""
    return hashlib.shake_128(b"content").digest(size_bytes)


def file_node(children: Iterable[tuple[str, int]], *, size_bytes: int | None = None, data: bytes = b"") -> bytes:
    """A node as ``build`` would make it, but of any children."""
    children = tuple(children)
    block = b"".join(
        encode_field(2, encode_field(1, cid_bytes(child)) + encode_field(2, b"") + encode_field(3, size))
        for child, size in children
    )
    total_bytes = sum(size for _, size in children) + len(data) if size_bytes is None else size_bytes
    file = encode_field(1, 2) + (encode_field(2, data) if data else b"") + encode_field(3, total_bytes)
    return block + encode_field(1, file + b"".join(encode_field(4, size) for _, size in children))


# ── CIDs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_cid_of_bytes_is_the_one_that_ipfs_gives_them() -> None:
    assert raw_cid(b"hello") == HELLO
    assert raw_cid(b"") == EMPTY


def test_a_cid_can_be_taken_apart_and_put_together() -> None:
    parsed = parse_cid(HELLO)
    assert parsed.codec is Codec.RAW
    assert parsed.digest == hashlib.sha256(b"hello").digest()
    assert cid_from_bytes(cid_bytes(HELLO)) == HELLO
    assert parse_cid(dag_pb_cid(b"x")).codec is Codec.DAG_PB


@pytest.mark.parametrize(
    "text",
    [
        "",
        "b",
        HELLO[:-1],
        HELLO + "a",
        HELLO.upper(),
        "B" + HELLO[1:],
        HELLO[:-1] + "r",  # another spelling of the same bytes: stray bits
        HELLO[:10] + "1" + HELLO[11:],
        HELLO[:10] + "=" + HELLO[11:],
        HELLO[:10] + "ſ" + HELLO[11:],  # upper() makes it an S
        " " + HELLO[1:],
        "QmWATWQ7fVPP2EFGu71UkfnqhYXDYH566qy47CnJDgvs8u",  # version 0
        "zb2rhZfjRh2FHHB2RkHVEvL2vJnCTcu7kwRqgVsf9gpkLgteo",  # base58
        "bafyreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq",  # dag-cbor
        "bafkrmibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq",  # another hash
    ],
)
def test_another_form_of_cid_is_refused(text: str) -> None:
    with pytest.raises(MalformedInput):
        parse_cid(text)


def test_bytes_that_are_not_those_of_the_cid_are_found_out() -> None:
    verify_block(HELLO, b"hello")
    with pytest.raises(ContentMismatch) as caught:
        verify_block(HELLO, b"hellO")
    assert caught.value.cid == HELLO


@given(st.text(max_size=70) | st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=58, max_size=58).map("b".__add__))
def test_any_text_is_a_cid_of_one_spelling_or_refused(text: str) -> None:
    try:
        parse_cid(text)
    except MalformedInput:
        return
    assert cid_from_bytes(cid_bytes(text)) == text


@given(st.binary(max_size=40) | st.binary(min_size=32, max_size=32).map(b"\x01\x70\x12\x20".__add__))
def test_any_bytes_are_a_binary_cid_or_refused(binary: bytes) -> None:
    try:
        text = cid_from_bytes(binary)
    except MalformedInput:
        return
    assert cid_bytes(text) == binary


# ── a file as blocks ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size_bytes", [0, 1, LEAF_BYTES - 1, LEAF_BYTES])
def test_a_content_of_up_to_a_leaf_is_one_raw_block(size_bytes: int) -> None:
    data = content(size_bytes)
    dag = build(data)
    assert dag.root == raw_cid(data)
    assert dict(dag.blocks) == {dag.root: data}
    assert links(dag.root, data) == ()


def test_a_longer_content_is_leaves_under_a_node_that_names_their_sizes() -> None:
    data = content(2 * LEAF_BYTES + 5)
    dag = build(data)
    leaves = [data[:LEAF_BYTES], data[LEAF_BYTES : 2 * LEAF_BYTES], data[2 * LEAF_BYTES :]]
    assert links(dag.root, dag.blocks[dag.root]) == tuple(Link(raw_cid(leaf), len(leaf)) for leaf in leaves)
    assert list(dag.blocks) == [*map(raw_cid, leaves), dag.root]


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_pieces_of_any_length_give_the_same_blocks(pieces: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cid_module, "LEAF_BYTES", 8)
        patch.setattr(cid_module, "MAX_LINKS", 3)
        whole = build(b"".join(pieces))
        assert dict(iter_blocks(pieces)) == dict(whole.blocks)
        assert read(whole.root, whole.blocks) == b"".join(pieces)


@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 9, 10, 12, 13, 27, 28, 81, 82])
def test_a_file_of_many_leaves_is_a_balanced_tree(leaves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cid_module, "LEAF_BYTES", 2)
    monkeypatch.setattr(cid_module, "MAX_LINKS", 3)
    data = content(2 * leaves)
    dag = build(data)

    def depth(cid: str) -> int:
        depths = {depth(link.cid) for link in links(cid, dag.blocks[cid])}
        assert len(depths) <= 1  # all leaves lie equally deep
        return 1 + max(depths, default=0)

    assert 3 ** (depth(dag.root) - 2) < leaves <= 3 ** (depth(dag.root) - 1) or leaves == 1
    assert read(dag.root, dag.blocks) == data


# ── blocks of peers ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_of_kubos_older_profiles_has_bytes_of_its_own() -> None:
    node = parse_file_node(file_node([], data=b"hello"))
    assert (node.data, node.links, node.size_bytes) == (b"hello", (), 5)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"", "isn't a file"),
        (b"\xff", "cut off"),
        (encode_field(1, b""), "type"),
        (encode_field(1, encode_field(1, 1)), "type 1"),  # a directory
        (encode_field(1, encode_field(1, 2)), "sum"),
        (file_node([(HELLO, 5)], size_bytes=6), "sum"),
        (file_node([(HELLO, 0)]), "field 4"),
        (file_node([(HELLO, 5)]) + file_node([], data=b"x"), "field 1"),
        (file_node([(HELLO, 1)] * (MAX_LINKS + 1)), "links"),
        (file_node([(HELLO, 5)]) + encode_field(3, 1), "field 3"),
        (encode_field(2, encode_field(1, cid_bytes(HELLO))) + file_node([], data=b"x"), "1 links and 0 sizes"),
        (encode_field(2, b"") + file_node([(HELLO, 5)]), "without a CID"),
        (encode_field(2, encode_field(1, b"\x01\x55")) + file_node([(HELLO, 5)]), "not a CID"),
        (encode_field(2, encode_field(1, cid_bytes(HELLO)) * 2) + file_node([]), "field 1"),
        (encode_field(2, encode_field(2, b"name")) + file_node([]), "field 2"),
        (encode_varint(1 << 3 | 2) + encode_varint(2**62), "beyond"),
        (encode_varint(1 << 3 | 5) + b"1234", "wire type"),
        (b"\x0a\x80\x00", "shortest"),
        (b"\x0a" + b"\xff" * 10, "63 bits"),
        (bytes(MAX_BLOCK_BYTES + 1), "bytes"),
    ],
)
def test_a_block_that_is_no_file_node_is_refused(block: bytes, why: str) -> None:
    with pytest.raises(MalformedInput, match=why):
        parse_file_node(block)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_file_node_that_adds_up_or_refused(block: bytes) -> None:
    try:
        node = parse_file_node(block)
    except MalformedInput:
        return
    assert node.size_bytes == len(node.data) + sum(link.size_bytes for link in node.links)


@given(st.data())
def test_a_node_with_bytes_changed_adds_up_or_is_refused(data: st.DataObject) -> None:
    block = bytearray(file_node([(HELLO, 5), (raw_cid(b"x"), 300), (dag_pb_cid(b""), 7)], data=b"own"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(block) - 1))
        block[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        node = parse_file_node(bytes(block))
    except MalformedInput:
        return
    assert node.size_bytes == len(node.data) + sum(link.size_bytes for link in node.links)
    assert all(parse_cid(link.cid) for link in node.links)


@given(st.binary(max_size=100))
def test_any_bytes_are_fields_or_refused(message: bytes) -> None:
    try:
        fields = list(read_fields(message))
    except MalformedInput:
        return
    assert b"".join(encode_field(*field) for field in fields) == message


# ── walks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(
    root: str, blocks: Mapping[str, bytes], *, max_bytes: int = 2**40, offset: int = 0, length: int | None = None
) -> bytes:
    walk = FileWalk(root, max_bytes=max_bytes, offset_bytes=offset, length_bytes=length)
    parts = []
    while (wanted := walk.wanted) is not None:
        parts.append(walk.feed(blocks[wanted]))
    return b"".join(parts)


def missing(root: str, blocks: Mapping[str, bytes]) -> list[str]:
    walk = MissingWalk(root)
    while (wanted := walk.wanted) is not None:
        if walk.needs_bytes:
            walk.feed(blocks.get(wanted))
        else:
            walk.found(len(blocks[wanted]) if wanted in blocks else None)
    return walk.missing


@given(
    size=st.integers(0, 60), offset=st.integers(0, 70), length=st.none() | st.integers(0, 70), leaf=st.integers(1, 9)
)
def test_a_range_is_the_same_as_that_slice_of_the_whole(size: int, offset: int, length: int | None, leaf: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cid_module, "LEAF_BYTES", leaf)
        patch.setattr(cid_module, "MAX_LINKS", 3)
        data = content(size)
        dag = build(data)
        until = None if length is None else offset + length
        assert read(dag.root, dag.blocks, offset=offset, length=length) == data[offset:until]


def test_only_the_blocks_of_the_range_are_read() -> None:
    data = content(4 * LEAF_BYTES)
    dag = build(data)
    wanted = {dag.root, raw_cid(data[2 * LEAF_BYTES : 3 * LEAF_BYTES])}
    blocks = {cid: block for cid, block in dag.blocks.items() if cid in wanted}
    assert read(dag.root, blocks, offset=2 * LEAF_BYTES + 1, length=10) == data[2 * LEAF_BYTES + 1 :][:10]


def test_a_content_beyond_the_cap_is_refused_at_its_root() -> None:
    dag = build(content(2 * LEAF_BYTES))
    with pytest.raises(MalformedInput, match="at most"):
        read(dag.root, {dag.root: dag.blocks[dag.root]}, max_bytes=2 * LEAF_BYTES - 1)


@pytest.mark.parametrize("said", [4, 6])
def test_a_parent_that_lies_about_a_size_is_found_out(said: int) -> None:
    block = file_node([(HELLO, said)])
    blocks = {dag_pb_cid(block): block, HELLO: b"hello"}
    with pytest.raises(ContentMismatch):
        read(dag_pb_cid(block), blocks)
    with pytest.raises(ContentMismatch):
        missing(dag_pb_cid(block), blocks)


def repetitive(levels: int) -> tuple[str, dict[str, bytes]]:
    """1,024 links to one child, so many levels deep: a lot of bytes said by a few kilobytes."""
    child, size, blocks = raw_cid(b"x"), 1, {raw_cid(b"x"): b"x"}
    for _ in range(levels):
        block = file_node([(child, size)] * MAX_LINKS)
        child, size = dag_pb_cid(block), size * MAX_LINKS
        blocks[child] = block
    return child, blocks


def test_a_tree_that_names_itself_over_and_over_costs_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_module, "MAX_DAG_BLOCKS", 2_000)
    root, blocks = repetitive(3)
    with pytest.raises(MalformedInput, match="blocks"):
        missing(root, blocks)
    with pytest.raises(MalformedInput, match="at most"):
        read(root, blocks, max_bytes=2**20)
    with pytest.raises(MalformedInput, match="blocks"):
        read(root, blocks, max_bytes=2**60)


def test_a_tree_that_says_more_bytes_than_any_content_has_is_refused() -> None:
    root, blocks = repetitive(5)
    with pytest.raises(MalformedInput, match="bytes"):
        missing(root, blocks)


def test_missing_names_what_is_absent_and_nothing_else() -> None:
    dag = build(content(3 * LEAF_BYTES))
    first, second, *_ = dag.blocks
    assert missing(dag.root, dag.blocks) == []
    assert missing(dag.root, {}) == [dag.root]
    assert set(missing(dag.root, {dag.root: dag.blocks[dag.root]})) == set(dag.blocks) - {dag.root}
    assert missing(dag.root, {cid: block for cid, block in dag.blocks.items() if cid != second}) == [second]
    assert first != second


@given(st.dictionaries(st.sampled_from("abc"), st.binary(max_size=80), min_size=1))
def test_a_walk_over_any_blocks_ends_with_a_content_or_a_peers_fault(names: dict[str, bytes]) -> None:
    blocks = {dag_pb_cid(block): block for block in names.values()}
    for root in blocks:
        try:
            assert len(read(root, blocks)) <= 80
        except (PeerError, KeyError):
            continue
