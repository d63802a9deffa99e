"""Blocks over Bitswap 1.2: serve ours to whom they are due, fetch one from a given peer.

libp2p's own client serves Kubo nothing (it answers on the stream that Kubo opened, which Kubo never reads), keeps
whatever is sent to it and stalls for seconds (facts/ipfs.md §7). This responder answers on a stream of its own, takes
only blocks that it asked that very peer for, and holds bounded queues: one task and at most one block a peer.

Every block is checked against its CID before anybody sees it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import structlog
import trio
from libp2p.abc import INetStream
from libp2p.bitswap.pb.bitswap_pb2 import Message
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID
from libp2p.utils.varint import encode_varint_prefixed, read_varint_prefixed_bytes_limited

from swarm.content.cid import (
    MAX_BLOCK_BYTES,
    Codec,
    cid_bytes,
    cid_from_bytes,
    parse_cid,
    parse_file_node,
    verify_block,
)
from swarm.content.walk import MAX_DAG_BLOCKS
from swarm.errors import ContentMismatch, MalformedInput, UnreachableError
from swarm.groups import faults_in
from swarm.model import Cid
from swarm.peer.addresses import parse_peer_id

__all__ = ["Bitswap", "GetBlock"]

log = structlog.get_logger(__name__)

GetBlock = Callable[[Cid], Awaitable[bytes | None]]

PROTOCOLS: Final = (TProtocol("/ipfs/bitswap/1.2.0"), TProtocol("/ipfs/bitswap/1.1.0"))
#: A message of a peer that owes us nothing holds wants alone: 1,024 of them are 60 KiB.
MAX_WANTS_MESSAGE_BYTES: Final = 256 * 1024
#: A message of a peer that we asked holds a block, its CID's prefix and some wants.
MAX_BLOCK_MESSAGE_BYTES: Final = MAX_BLOCK_BYTES + 64 * 1024
MAX_WANTS_PER_PEER: Final = 1024
#: Blocks that one message may bring; each is hashed for each CID that we wait for.
MAX_BLOCKS_TAKEN: Final = 64
MAX_PEERS_SERVED: Final = 128
#: Of these, peers that get no block; they are told so where they ask. The rest is for those who may be served.
MAX_STRANGERS_ANSWERED: Final = 32
#: A peer that doesn't read its answer for this long loses its queue.
WRITE_S: Final = 10.0
#: The answering stream of a peer that wants nothing is closed after this long.
IDLE_S: Final = 30.0
#: Streams of wants that one peer may hold open; Kubo opens one a burst of wants and closes it.
MAX_STREAMS_PER_PEER: Final = 16
CLOSE_S: Final = 1.0
#: Blocks of one content that are asked for at once.
FETCHES_AT_ONCE: Final = 4
#: Levels of a file's tree: with 1,024 links a node, three hold a petabyte.
MAX_DEPTH: Final = 4


@attrs.define(eq=False)
class _Queue:
    """What one peer waits for. ``wants``: CID → (only whether we have it, whether to say that we don't)."""

    wants: OrderedDict[Cid, tuple[bool, bool]] = attrs.field(factory=OrderedDict)
    woken: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        self.woken.set()
        self.woken = trio.Event()


@attrs.define(eq=False)
class _Asked:
    """A block that we asked one peer for. ``block`` stays None where the peer says that it doesn't have it."""

    answered: trio.Event = attrs.field(factory=trio.Event)
    block: bytes | None = None
    waiting: int = 0


class Bitswap:
    """Both directions, for one host; answers go out while ``run`` runs.

    Args:
        host: whose streams are used.
        may_have: whether a peer gets our blocks.
        get: reads a block of ours, None where we don't have it.
        misbehaved: told of a peer that sent what no honest one sends.
    """

    def __init__(
        self,
        host: BasicHost,
        *,
        may_have: Callable[[str], bool],
        get: GetBlock,
        misbehaved: Callable[[str, str], None],
    ) -> None:
        self._host = host
        self._may_have = may_have
        self._get = get
        self._misbehaved = misbehaved
        self._queues: dict[ID, _Queue] = {}
        self._asked: dict[tuple[ID, bytes], _Asked] = {}
        self._asked_peers: Counter[ID] = Counter()
        self._streams: Counter[ID] = Counter()
        # As many entries as there can be queues: sending to it never blocks and never fails.
        self._new, self._to_serve = trio.open_memory_channel[tuple[ID, _Queue]](MAX_PEERS_SERVED)
        for protocol in PROTOCOLS:
            host.set_stream_handler(protocol, self._receive)

    # ── serving ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Answer the peers that want blocks, each in its own task, for ever."""
        async with trio.open_nursery() as nursery:
            async for peer, queue in self._to_serve:
                nursery.start_soon(self._serve, peer, queue)

    async def _receive(self, stream: INetStream) -> None:
        """Read one stream of a peer to its end. Malformed bytes end it in ``hardened``'s guard, which counts them."""
        peer = stream.muxed_conn.peer_id
        if self._streams[peer] >= MAX_STREAMS_PER_PEER:
            await stream.reset()
            return
        self._streams[peer] += 1
        try:
            while True:
                limit = MAX_BLOCK_MESSAGE_BYTES if self._asked_peers[peer] else MAX_WANTS_MESSAGE_BYTES
                message = Message()
                message.ParseFromString(await read_varint_prefixed_bytes_limited(stream, limit))
                self._take_blocks(peer, message)
                self._take_wants(peer, message)
        except (StreamError, IncompleteReadError):
            return  # it said all it wanted
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]

    def _take_wants(self, peer: ID, message: Message) -> None:
        entries = message.wantlist.entries
        queue = self._queues.get(peer)
        if queue is not None and message.wantlist.full:
            queue.wants.clear()
        if not entries:
            return
        if queue is None:
            if not self._has_room(peer):
                log.debug("bitswap_peer_not_served", peer=str(peer), reason="too many peers")
                return
            queue = self._queues[peer] = _Queue()
            self._new.send_nowait((peer, queue))
        for entry in entries[:MAX_WANTS_PER_PEER]:  # the rest wouldn't be kept: not even read
            try:
                cid = cid_from_bytes(bytes(entry.block))
            except MalformedInput:  # a CID of another form names nothing that we have
                continue
            if entry.cancel:
                queue.wants.pop(cid, None)
            elif len(queue.wants) < MAX_WANTS_PER_PEER:
                queue.wants[cid] = (entry.wantType == Message.Wantlist.WantType.Have, entry.sendDontHave)
        queue.wake()

    def _has_room(self, peer: ID) -> bool:
        """Whether one more queue may be had; those who get nothing never take the place of those who get blocks."""
        if len(self._queues) >= MAX_PEERS_SERVED:
            return False
        if self._may_have(str(peer)):
            return True
        return sum(not self._may_have(str(other)) for other in self._queues) < MAX_STRANGERS_ANSWERED

    async def _serve(self, peer: ID, queue: _Queue) -> None:
        """Answer one peer until it wants nothing for a while."""
        stream: INetStream | None = None
        finished = False
        try:
            while True:
                woken = queue.woken
                while queue.wants:
                    cid, (have, say_no) = queue.wants.popitem(last=False)
                    answer = await self._answer(peer, cid, have=have, say_no=say_no)
                    if answer is not None:
                        stream = await self._write(peer, stream, answer)
                with trio.move_on_after(IDLE_S):
                    await woken.wait()
                if not queue.wants and not woken.is_set():
                    finished = True
                    return
        except Exception as fault:  # noqa: BLE001 - supervision boundary: libp2p raises what it likes; this peer asks anew
            log.debug("bitswap_answer_failed", peer=str(peer), fault=repr(fault))
        finally:
            if self._queues.get(peer) is queue:
                del self._queues[peer]
            if stream is not None:
                await _leave(stream, abruptly=not finished)

    async def _answer(self, peer: ID, cid: Cid, *, have: bool, say_no: bool) -> Message | None:
        """What to say to one want. A block goes out for a mere "have you?" too: it saves a round trip (20 of 40 ms)."""
        block = await self._get(cid) if self._may_have(str(peer)) else None
        message = Message()
        if block is not None:
            message.payload.add(prefix=cid_bytes(cid)[:-32], data=block)
        elif say_no:
            message.blockPresences.add(cid=cid_bytes(cid), type=Message.BlockPresenceType.DontHave)
        else:
            return None
        return message

    async def _write(self, peer: ID, stream: INetStream | None, message: Message) -> INetStream:
        """Send an answer. A stream kept from a closed connection fails on its first write: then on a new one."""
        frame = encode_varint_prefixed(message.SerializeToString())
        if stream is not None:
            try:
                with trio.fail_after(WRITE_S):
                    await stream.write(frame)
            except trio.TooSlowError:
                raise
            except Exception as fault:  # noqa: BLE001 - one of libp2p's many ways to say that it is closed
                log.debug("bitswap_stream_stale", peer=str(peer), fault=repr(fault))
            else:
                return stream
        with trio.fail_after(WRITE_S):
            stream = await self._host.new_stream(peer, list(PROTOCOLS))
            try:
                await stream.write(frame)
            except BaseException:  # nobody else knows of it yet
                await _leave(stream, abruptly=True)
                raise
        return stream

    # ── fetching ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_blocks(self, peer: ID, message: Message) -> None:
        """Hand blocks to who asked for them; what nobody asked this peer for is dropped unread."""
        for absence in message.blockPresences[:MAX_WANTS_PER_PEER]:
            if absence.type == Message.BlockPresenceType.DontHave:
                asked = self._asked.get((peer, bytes(absence.cid)[-32:]))
                if asked is not None:
                    asked.answered.set()
        if not self._asked_peers[peer]:
            if message.payload or message.blocks:
                self._misbehaved(str(peer), "unsolicited block")
            return
        for payload in message.payload[:MAX_BLOCKS_TAKEN]:
            self._take_block(peer, payload.prefix, payload.data)

    def _take_block(self, peer: ID, prefix: bytes, data: bytes) -> None:
        for (asked_peer, digest), asked in self._asked.items():
            if asked_peer != peer or asked.answered.is_set():
                continue
            cid = _cid(prefix, digest)
            if cid is None:
                continue
            try:
                verify_block(cid, data)
            except ContentMismatch:
                continue
            asked.block = data
            asked.answered.set()
            return

    async def fetch_block(self, peer_id: str, cid: Cid, *, timeout_s: float) -> bytes:
        """Get one block from one peer.

        Args:
            peer_id: whom to ask; dialled where there is no connection and its address may be dialled.
            cid: what to ask for.
            timeout_s: how long all of it may take.

        Returns:
            The block, checked against its CID.

        Raises:
            UnreachableError: the peer doesn't answer, or says that it doesn't have it.
            MalformedInput: the CID or the peer id isn't one.
        """
        peer = parse_peer_id(peer_id)
        key = (peer, parse_cid(cid).digest)
        asked = self._asked.setdefault(key, _Asked())
        asked.waiting += 1
        self._asked_peers[peer] += 1
        stream: INetStream | None = None
        try:
            with trio.fail_after(timeout_s):
                stream = await self._host.new_stream(peer, list(PROTOCOLS))
                await stream.write(encode_varint_prefixed(_want(cid)))
                await asked.answered.wait()
        except trio.TooSlowError as fault:
            raise UnreachableError(peer_id, f"didn't send {cid} within {timeout_s} s") from fault
        except Exception as fault:
            raise UnreachableError(peer_id, f"can't be asked for {cid}: {fault}") from fault
        finally:
            asked.waiting -= 1
            if not asked.waiting:
                self._asked.pop(key, None)
            self._asked_peers[peer] -= 1
            if not self._asked_peers[peer]:
                del self._asked_peers[peer]
            if stream is not None:
                await _leave(stream, abruptly=False)
        if asked.block is None:
            raise UnreachableError(peer_id, f"doesn't have {cid}, or not for us")
        return asked.block

    async def fetch(self, peer_id: str, cid: Cid, *, max_bytes: int, timeout_s: float) -> bytes:
        """Get a whole content from one peer: a raw block, or a UnixFS file of any number of blocks.

        Args:
            peer_id: whom to ask.
            cid: the content's root.
            max_bytes: a content that claims to be longer is refused before it is fetched.
            timeout_s: how long all of it may take.

        Raises:
            UnreachableError: the peer doesn't answer in time, or lacks a block.
            MalformedInput: it is longer, has more than ``MAX_DAG_BLOCKS`` blocks, or isn't a file.
        """
        limit = trio.CapacityLimiter(FETCHES_AT_ONCE)
        deadline = trio.current_time() + timeout_s
        known_blocks = 1

        async def read(part: Cid, size_bytes: int | None, depth: int) -> bytes:
            async with limit:
                block = await self.fetch_block(peer_id, part, timeout_s=max(0.0, deadline - trio.current_time()))
            if parse_cid(part).codec is Codec.RAW:
                content = block
            else:
                node = parse_file_node(block)
                if node.size_bytes > max_bytes or depth == MAX_DEPTH:
                    raise MalformedInput(f"{part} claims {node.size_bytes} bytes where at most {max_bytes} are taken")
                nonlocal known_blocks
                known_blocks += len(node.links)
                if known_blocks > MAX_DAG_BLOCKS:  # before any of them is asked for, or waits in a task
                    raise MalformedInput(f"{cid} has more than {MAX_DAG_BLOCKS} blocks")
                pieces = [node.data] + [b""] * len(node.links)

                async def read_child(index: int, child: Cid, child_bytes: int) -> None:
                    pieces[index] = await read(child, child_bytes, depth + 1)

                async with trio.open_nursery() as nursery:
                    for index, link in enumerate(node.links, start=1):
                        nursery.start_soon(read_child, index, link.cid, link.size_bytes)
                content = b"".join(pieces)
            if len(content) != size_bytes and size_bytes is not None:
                raise MalformedInput(f"{part} has {len(content)} bytes where its parent says {size_bytes}")
            return content

        try:
            content = await read(cid, None, 0)
        except BaseExceptionGroup as faults:
            found = faults_in(faults)
            if not found:
                raise
            raise found[0] from faults  # the siblings of a lost block are cancelled, or lost too: one says it all
        if len(content) > max_bytes:
            raise MalformedInput(f"{cid} has {len(content)} bytes where at most {max_bytes} are taken")
        return content


def _cid(prefix: bytes, digest: bytes) -> Cid | None:
    try:
        return cid_from_bytes(bytes(prefix) + digest)
    except MalformedInput:
        return None


def _want(cid: Cid) -> bytes:
    message = Message()
    message.wantlist.entries.add(block=cid_bytes(cid), priority=1, sendDontHave=True)
    return message.SerializeToString()


async def _leave(stream: INetStream, *, abruptly: bool) -> None:
    """Close a stream: after a failure by reset; else not, since that loses bytes in flight."""
    with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_S):
        try:
            await (stream.reset() if abruptly else stream.close())
        except Exception as fault:  # noqa: BLE001 - it is gone already
            log.debug("bitswap_stream_gone", fault=repr(fault))
