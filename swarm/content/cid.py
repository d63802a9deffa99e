"""Names of contents: CIDs, and the UnixFS blocks of a file, as Kubo's profile ``unixfs-v1-2025`` makes them.

One CID form is taken: version 1, base32, sha2-256, codec raw or dag-pb. Up to 1 MiB a content is one raw block; above,
leaves of 1 MiB under dag-pb nodes of at most 1,024 links. So a content has one CID, whoever computes it.
What comes from peers is parsed strictly and within caps. This module knows no disk and no network.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from swarm.content.protobuf import encode_field, read_fields
from swarm.errors import ContentMismatch, MalformedInput
from swarm.model import Cid

__all__ = [
    "LEAF_BYTES",
    "MAX_BLOCK_BYTES",
    "MAX_LINKS",
    "Codec",
    "Dag",
    "FileBuilder",
    "FileNode",
    "Link",
    "ParsedCid",
    "build",
    "cid_bytes",
    "cid_from_bytes",
    "dag_pb_cid",
    "format_cid",
    "iter_blocks",
    "links",
    "parse_cid",
    "parse_file_node",
    "raw_cid",
    "verify_block",
]

#: The leaf size of Kubo's profile ``unixfs-v1-2025`` (facts/ipfs.md, 2).
LEAF_BYTES: Final = 1024 * 1024
#: The most links a node of that profile has.
MAX_LINKS: Final = 1024
#: What Kubo and Bitswap take as one block.
MAX_BLOCK_BYTES: Final = 2 * 1024 * 1024

SHA2_256: Final = b"\x12\x20"
CID_BYTES: Final = 36
CID_CHARACTERS: Final = 59
#: 36 bytes are 57 characters and three bits: the last character's other two are zero in the one spelling that is taken.
LAST_CHARACTERS: Final = frozenset("aeimquy4")

# Field numbers of dag-pb (PBNode, PBLink) and of UnixFS (Data).
NODE_DATA, NODE_LINK = 1, 2
LINK_HASH, LINK_NAME, LINK_TOTAL = 1, 2, 3
FILE_TYPE, FILE_DATA, FILE_SIZE, FILE_BLOCK_SIZE, FILE_MODE, FILE_MTIME = 1, 2, 3, 4, 7, 8
TYPE_FILE: Final = 2


_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
#: Base32 by ten bits at a time: less than half of the time that the standard library's takes.
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_SHIFTS: Final = tuple(range(280, -1, -10))


class Codec(enum.IntEnum):
    """How a block's bytes are to be read; the codes are multicodec's."""

    #: The bytes are the content.
    RAW = 0x55
    #: A node with links.
    DAG_PB = 0x70


@attrs.frozen
class ParsedCid:
    """A CID taken apart: codec, and the sha2-256 of the block."""

    codec: Codec
    digest: bytes


@attrs.frozen
class Link:
    """A child of a file node, and how many bytes of the file lie under it."""

    cid: Cid
    size_bytes: int


@attrs.frozen(kw_only=True)
class FileNode:
    """A node of a file: bytes of its own (Kubo's older profiles have them), then what its links hold."""

    data: bytes
    links: tuple[Link, ...]
    size_bytes: int


@attrs.frozen
class Dag:
    """A content as blocks: the root's CID, and all blocks by CID."""

    root: Cid
    blocks: Mapping[Cid, bytes]


# ── CIDs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def format_cid(codec: Codec, digest: bytes) -> Cid:
    """Put codec and sha2-256 digest together."""
    bits = int.from_bytes(bytes((1, codec)) + SHA2_256 + digest) << 2  # 288 bits are 57 characters and three fifths
    return "b" + "".join([_PAIRS[bits >> shift & 1023] for shift in _SHIFTS])


def raw_cid(data: bytes) -> Cid:
    """The CID of bytes as one raw block."""
    return format_cid(Codec.RAW, hashlib.sha256(data).digest())


def dag_pb_cid(block: bytes) -> Cid:
    """The CID of a dag-pb node."""
    return format_cid(Codec.DAG_PB, hashlib.sha256(block).digest())


def parse_cid(text: str) -> ParsedCid:
    """Take a CID apart.

    Raises:
        MalformedInput: it isn't a CIDv1 in lower-case base32, sha2-256, raw or dag-pb. No other spelling of the same
            CID is taken, so that equal contents have equal text.
    """
    if len(text) != CID_CHARACTERS or not text.startswith("b") or not text.isascii() or text.lower() != text:
        raise MalformedInput("not a CID of version 1 in base32 (b…, 59 characters)")
    try:
        binary = base64.b32decode(text[1:].upper() + "======")
    except binascii.Error as fault:
        raise MalformedInput("not a CID: it isn't base32") from fault
    if text[-1] not in LAST_CHARACTERS:
        raise MalformedInput("not a CID: its last character has stray bits")
    return _take_apart(binary)


def cid_bytes(cid: Cid) -> bytes:
    """The binary form of a CID, 36 bytes."""
    parsed = parse_cid(cid)
    return bytes((1, parsed.codec)) + SHA2_256 + parsed.digest


def cid_from_bytes(binary: bytes) -> Cid:
    """The text of a binary CID.

    Raises:
        MalformedInput: it isn't of the one form that is taken.
    """
    parsed = _take_apart(binary)
    return format_cid(parsed.codec, parsed.digest)


def verify_block(cid: Cid, data: bytes) -> None:
    """Check bytes against the CID they were asked by.

    Raises:
        ContentMismatch: they are others.
        MalformedInput: the CID isn't one.
    """
    digest = hashlib.sha256(data).digest()
    if cid == format_cid(Codec.RAW, digest):  # the usual case, at a third of the cost of taking the CID apart
        return
    if digest != parse_cid(cid).digest:
        raise ContentMismatch(cid, f"{len(data)} bytes that aren't those of {cid}")


def _take_apart(binary: bytes) -> ParsedCid:
    if len(binary) != CID_BYTES or binary[0] != 1 or binary[2:4] != SHA2_256:
        raise MalformedInput("not a CID of version 1 with sha2-256")
    try:
        codec = Codec(binary[1])
    except ValueError as fault:
        raise MalformedInput(f"a CID of codec 0x{binary[1]:02x} where raw or dag-pb is taken") from fault
    return ParsedCid(codec, binary[4:])


# ── a file as blocks ──────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Child:
    """A finished subtree: its CID, the file bytes under it, and the bytes of all its blocks (dag-pb's Tsize)."""

    binary: bytes
    size_bytes: int
    total_bytes: int


class FileBuilder:
    """Cuts a content into blocks as it comes; holds one leaf and the links of the open nodes.

    Both methods yield CID and block, children before parents: the last one of ``finish`` or, where it yields none, of
    ``feed`` is the root. They are generators: what isn't iterated isn't done.
    """

    def __init__(self) -> None:
        #: The root and the bytes of all blocks together (dag-pb's Tsize), once finished.
        self.root: Cid = ""
        self.total_bytes = 0
        self._leaf = bytearray()
        self._levels: list[list[_Child]] = [[]]

    def feed(self, piece: bytes) -> Iterator[tuple[Cid, bytes]]:
        """Take the next bytes, of any length."""
        view = memoryview(piece)
        while view:
            taken = view[: LEAF_BYTES - len(self._leaf)]
            self._leaf += taken
            view = view[len(taken) :]
            if len(self._leaf) == LEAF_BYTES:
                yield from self._finish_leaf()

    def finish(self) -> Iterator[tuple[Cid, bytes]]:
        """Close what is open. A lone leaf is its own root."""
        if self._leaf or not self._levels[0]:
            yield from self._finish_leaf()
        depth = 0
        while depth < len(self._levels) - 1 or len(self._levels[depth]) > 1:
            cid, block, child = _node(self._levels[depth])
            yield cid, block
            depth += 1
            yield from self._push(depth, child)
        (top,) = self._levels[depth]
        self.root, self.total_bytes = cid_from_bytes(top.binary), top.total_bytes

    def _finish_leaf(self) -> Iterator[tuple[Cid, bytes]]:
        leaf = bytes(self._leaf)
        self._leaf.clear()
        cid = raw_cid(leaf)
        yield cid, leaf
        yield from self._push(0, _Child(cid_bytes(cid), len(leaf), len(leaf)))

    def _push(self, depth: int, child: _Child) -> Iterator[tuple[Cid, bytes]]:
        """Add a child to the open node of its depth; where that is full it is finished first."""
        levels = self._levels
        while depth < len(levels) and len(levels[depth]) == MAX_LINKS:
            full, levels[depth] = levels[depth], [child]
            cid, block, child = _node(full)
            yield cid, block
            depth += 1
        if depth == len(levels):
            levels.append([])
        levels[depth].append(child)


def iter_blocks(pieces: Iterable[bytes]) -> Iterator[tuple[Cid, bytes]]:
    """Cut a content that doesn't fit memory into blocks.

    Args:
        pieces: the content, in pieces of any length.

    Yields:
        CID and block, children before parents: the last one is the root.
    """
    builder = FileBuilder()
    for piece in pieces:
        yield from builder.feed(piece)
    yield from builder.finish()


def build(data: bytes) -> Dag:
    """Cut a content that fits memory into blocks.

    Returns:
        The root's CID, and all blocks, children before parents.
    """
    if len(data) <= LEAF_BYTES:  # nearly all contents, and every small manifest
        root = raw_cid(data)
        return Dag(root, {root: data})
    builder = FileBuilder()
    blocks = dict(builder.feed(data))
    blocks.update(builder.finish())
    return Dag(builder.root, blocks)


def _node(children: list[_Child]) -> tuple[Cid, bytes, _Child]:
    size_bytes = sum(child.size_bytes for child in children)
    encoded_links = b"".join(
        encode_field(
            NODE_LINK,
            encode_field(LINK_HASH, child.binary)
            + encode_field(LINK_NAME, b"")
            + encode_field(LINK_TOTAL, child.total_bytes),
        )
        for child in children
    )
    file = encode_field(FILE_TYPE, TYPE_FILE) + encode_field(FILE_SIZE, size_bytes)
    file += b"".join(encode_field(FILE_BLOCK_SIZE, child.size_bytes) for child in children)
    block = encoded_links + encode_field(NODE_DATA, file)
    cid = dag_pb_cid(block)
    total_bytes = len(block) + sum(child.total_bytes for child in children)
    return cid, block, _Child(cid_bytes(cid), size_bytes, total_bytes)


# ── blocks of peers ───────────────────────────────────────────────────────────────────────────────────────────────


def links(cid: Cid, block: bytes) -> tuple[Link, ...]:
    """The children of a block: none of a raw one, those of a file node otherwise.

    Raises:
        MalformedInput: the block isn't a file node.
    """
    if parse_cid(cid).codec is Codec.RAW:
        return ()
    return parse_file_node(block).links


def parse_file_node(block: bytes) -> FileNode:
    """Parse a dag-pb block as a node of a UnixFS file.

    Every size in it is checked against the others, so that a reader can bound its work by the root's size alone: a
    link holds at least one byte of the file.

    Raises:
        MalformedInput: it is something else, or contradicts itself, or breaks a cap.
    """
    if len(block) > MAX_BLOCK_BYTES:
        raise MalformedInput(f"a node of {len(block)} bytes where at most {MAX_BLOCK_BYTES} are taken")
    children: list[Cid] = []
    file: bytes | None = None
    for number, value in read_fields(block):
        if number == NODE_LINK and isinstance(value, bytes):
            if len(children) == MAX_LINKS:
                raise MalformedInput(f"a node of more than {MAX_LINKS} links")
            children.append(_parse_link(value))
        elif number == NODE_DATA and isinstance(value, bytes) and file is None:
            file = value
        else:
            raise MalformedInput(f"field {number} isn't one of a dag-pb node")
    if file is None:
        raise MalformedInput("a dag-pb node that isn't a file")
    return _parse_file(file, children)


def _parse_link(message: bytes) -> Cid:
    binary: bytes | None = None
    for number, value in read_fields(message):
        if number == LINK_HASH and isinstance(value, bytes) and binary is None:
            binary = value
        elif not (number == LINK_NAME and value == b"") and not (number == LINK_TOTAL and isinstance(value, int)):
            raise MalformedInput(f"field {number} isn't one of a link inside a file")
    if binary is None:
        raise MalformedInput("a link without a CID")
    return cid_from_bytes(binary)


def _parse_file(message: bytes, children: list[Cid]) -> FileNode:
    kind = size_bytes = None
    data = b""
    sizes: list[int] = []
    for number, value in read_fields(message):
        if number == FILE_BLOCK_SIZE and isinstance(value, int) and value > 0 and len(sizes) < len(children):
            sizes.append(value)
        elif number == FILE_TYPE and isinstance(value, int) and kind is None:
            kind = value
        elif number == FILE_SIZE and isinstance(value, int) and size_bytes is None:
            size_bytes = value
        elif number == FILE_DATA and isinstance(value, bytes) and not data:
            data = value
        elif number not in (FILE_MODE, FILE_MTIME):
            raise MalformedInput(f"field {number} isn't one of a UnixFS file, or is there too often")
    if kind != TYPE_FILE:
        raise MalformedInput(f"a UnixFS node of type {kind} where a file (2) is taken")
    if len(sizes) != len(children):
        raise MalformedInput(f"a file node of {len(children)} links and {len(sizes)} sizes")
    if size_bytes != len(data) + sum(sizes):
        raise MalformedInput("a file node whose size isn't the sum of its parts")
    return FileNode(data=data, links=tuple(map(Link, children, sizes)), size_bytes=size_bytes)
