"""Walk the blocks of a content: read it, or find out what a store lacks of it.

Sans-I/O: both walks say which block they want next and are given it, so that one implementation serves a directory,
an HTTP client and an asyncio store. Each block is checked against its CID, each size against what the parent said of
it; so a content that comes out whole is the right one, and a hostile one costs a bounded number of blocks.

A block counts as often as a reader comes by it: what the one walk lets pass, the other can read.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from swarm.content.cid import MAX_BLOCK_BYTES, Codec, FileNode, Link, parse_cid, parse_file_node, verify_block
from swarm.errors import ContentMismatch, MalformedInput
from swarm.model import Cid

#: 64 GiB in leaves of 1 MiB. A file of a few bytes a leaf would cost its reader a block each; so would one block that
#: is named again and again, which is counted each time.
MAX_DAG_BLOCKS: Final = 65_536
#: What so many blocks can hold. A few nodes that name each other again and again can claim far more.
MAX_CONTENT_BYTES: Final = MAX_DAG_BLOCKS * MAX_BLOCK_BYTES


class FileWalk:
    """Read a content, or a range of it, block by block.

    ::

        walk = FileWalk(cid, max_bytes=…)
        while (wanted := walk.wanted) is not None:
            out.write(walk.feed(get(wanted)))

    Args:
        root: the CID of the content.
        max_bytes: refuse a longer content, before more than its root is read.
        offset_bytes: leave out what is before.
        length_bytes: stop after so many bytes; None: read to the end.
    """

    #: The next block to feed; None when all is read.
    wanted: Cid | None
    #: The length of the whole content, bytes; known after the root was fed.
    size_bytes: int | None

    def __init__(self, root: Cid, *, max_bytes: int, offset_bytes: int = 0, length_bytes: int | None = None) -> None:
        parse_cid(root)
        self.size_bytes = None
        self._root = root
        self._max_bytes = max_bytes
        self._from = offset_bytes
        self._until = max_bytes if length_bytes is None else offset_bytes + length_bytes
        self._at = 0
        self._pending: list[Link] = []
        self._fed = 0
        self.wanted = root

    def feed(self, block: bytes) -> bytes:
        """Take the wanted block.

        Returns:
            The next bytes of the content; b"" where the block only names others.

        Raises:
            ContentMismatch: the block isn't the wanted one, or not of the size that its parent says.
            MalformedInput: the DAG isn't a file, is too long or has too many blocks.
        """
        cid = self.wanted
        if cid is None:
            raise ValueError("nothing is wanted any more")
        node = _open_block(cid, block)
        if self.size_bytes is None:
            if node.size_bytes > self._max_bytes:
                raise MalformedInput(f"{cid} has {node.size_bytes} bytes where at most {self._max_bytes} are taken")
            self.size_bytes = node.size_bytes
            self._until = min(self._until, node.size_bytes)
        else:
            _check_size(self._pending.pop(), node)
        self._fed += 1
        if self._fed > MAX_DAG_BLOCKS:
            raise MalformedInput(f"{self._root} has more than {MAX_DAG_BLOCKS} blocks")
        self._pending.extend(reversed(node.links))
        content = self._cut(node.data)
        self._skip()
        return content

    def _cut(self, data: bytes) -> bytes:
        begin, self._at = self._at, self._at + len(data)
        return data[max(0, self._from - begin) : max(0, self._until - begin)]

    def _skip(self) -> None:
        """Pass over subtrees before the range, and stop at its end."""
        while self._pending and self._at + self._pending[-1].size_bytes <= self._from:
            self._at += self._pending.pop().size_bytes
        self.wanted = self._pending[-1].cid if self._pending and self._at < self._until else None


class MissingWalk:
    """Find out which blocks of a content a store lacks.

    ::

        walk = MissingWalk(cid)
        while (wanted := walk.wanted) is not None:
            if walk.needs_bytes:
                walk.feed(get(wanted))
            else:
                walk.found(size(wanted))
        absent = walk.missing

    Of a raw block only the size is asked. Children of an absent node can't be known and aren't in ``missing``.

    Args:
        root: the CID of the content.
        size_bytes: what somebody says that the content holds; None: nothing is said.
    """

    wanted: Cid | None
    #: Whether the wanted block must be fed; otherwise its size is enough.
    needs_bytes: bool
    missing: list[Cid]
    #: All blocks of the content that are known, the absent ones too.
    seen: set[Cid]

    def __init__(self, root: Cid, *, size_bytes: int | None = None) -> None:
        self._root = root
        self.missing = []
        self.seen = {root}
        self._said: dict[Cid, int] = {}
        #: How often a reader comes by each block, and in all; and what each block names, how often.
        self._times: Counter[Cid] = Counter({root: 1})
        self._visits = 1
        self._children: dict[Cid, Counter[Cid]] = {}
        self._pending: list[tuple[Cid, Link | None]] = [
            (root, None if size_bytes is None else Link(cid=root, size_bytes=size_bytes))
        ]
        self._next()

    def feed(self, block: bytes | None) -> None:
        """Take the wanted block, or None where the store doesn't have it.

        Raises:
            ContentMismatch: the block isn't the wanted one, or not of the size that its parent says.
            MalformedInput: the DAG isn't a file, or has too many blocks.
        """
        cid, link = self._pending.pop()
        if block is None:
            self.missing.append(cid)
        else:
            node = _open_block(cid, block)
            if link is not None:
                _check_size(link, node)
            if node.size_bytes > MAX_CONTENT_BYTES:
                raise MalformedInput(f"{self._root} has more than {MAX_CONTENT_BYTES} bytes")
            for child in node.links:
                if child.cid not in self.seen:
                    self.seen.add(child.cid)
                    self._said[child.cid] = child.size_bytes
                    self._pending.append((child.cid, child))
                elif self._said.get(child.cid, child.size_bytes) != child.size_bytes:
                    raise ContentMismatch(child.cid, f"{child.cid} is said to hold two different numbers of bytes")
            self._children[cid] = Counter(child.cid for child in node.links)
            for child_cid, named in self._children[cid].items():
                self._visit(child_cid, named * self._times[cid])
        self._next()

    def _visit(self, cid: Cid, times: int) -> None:
        """Count further visits of a block, and of what it is known to name."""
        visited = [(cid, times)]
        while visited:
            cid, times = visited.pop()
            self._times[cid] += times
            self._visits += times
            if self._visits > MAX_DAG_BLOCKS:  # each turn counts one at least: so many turns are the most
                raise MalformedInput(f"{self._root} has more than {MAX_DAG_BLOCKS} blocks")
            children = self._children.get(cid)
            if children is not None:
                visited += [(child, named * times) for child, named in children.items()]

    def found(self, size_bytes: int | None) -> None:
        """Take the size of the wanted block, or None where the store doesn't have it.

        Where it isn't the size that the parent says, the same block is wanted again, as bytes: a store that has
        lost some of them then answers None, and a parent that lies is found out.
        """
        cid, link = self._pending[-1]
        if size_bytes is not None and link is not None and size_bytes != link.size_bytes:
            self.needs_bytes = True
            return
        self._pending.pop()
        if size_bytes is None:
            self.missing.append(cid)
        self._next()

    def _next(self) -> None:
        if not self._pending:
            self.wanted, self.needs_bytes = None, False
            return
        self.wanted = self._pending[-1][0]
        self.needs_bytes = parse_cid(self.wanted).codec is not Codec.RAW


def _open_block(cid: Cid, block: bytes) -> FileNode:
    verify_block(cid, block)
    if parse_cid(cid).codec is Codec.RAW:
        return FileNode(data=block, links=(), size_bytes=len(block))
    return parse_file_node(block)


def _check_size(link: Link, node: FileNode) -> None:
    if node.size_bytes != link.size_bytes:
        raise ContentMismatch(link.cid, f"{link.cid} holds {node.size_bytes} bytes where {link.size_bytes} are said")
