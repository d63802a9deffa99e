"""What the root keeps: results as blocks, in its own directory or in a Kubo, and the manifests in the ledger.

Both stores promise the same: what ``put`` returned from stays, until ``delete`` or ``collect``; what is read is checked
against its CID; a content is either read whole or said to be missing. Which contents are worth keeping is the ledger's
question.
"""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import orjson
import structlog

from swarm.blocks import ABANDONED_AFTER_S, BlockStore
from swarm.content.cid import MAX_BLOCK_BYTES, parse_cid, verify_block
from swarm.content.walk import FileWalk, MissingWalk
from swarm.errors import ConfigurationError, ContentMismatch, IpfsUnreachable, MalformedInput, PeerError, StoreFull
from swarm.ipfs import CODEC_NAMES, NOT_FOUND, rpc_url
from swarm.model import Cid
from swarm.reasons import reason_of

__all__ = ["DirectoryStore", "Inline", "KuboStore", "RootStore", "open_kubo_store", "open_store"]

log = structlog.get_logger()

#: Looks a small manifest up in the ledger.
Inline = Callable[[Cid], Awaitable[bytes | None]]

#: The longest that one call to Kubo may take; it answers in milliseconds (facts/ipfs.md, 2).
KUBO_TIMEOUT_S: Final = 30.0
#: Pins of this name, and the Unix time of the put, are ours; so others' in the same Kubo are never touched.
PIN_NAME: Final = "task-swarm/"
OUR_PIN: Final = re.compile(re.escape(PIN_NAME) + r"([0-9]{1,15}(?:\.[0-9]{1,6})?)")
#: A line of ``pin/ls`` has some 150 bytes; an error some hundred.
MAX_ANSWER_BYTES: Final = 64 * 1024
#: What Kubo says where its disk, or its datastore's limit, is full.
FULL: Final = ("no space left on device", "disk quota exceeded", "file too large")


class RootStore(Protocol):
    """The contents that the root keeps."""

    async def put(self, cid: Cid, data: bytes) -> None:
        """Keep a block, durably.

        Raises:
            ContentMismatch: the bytes aren't those of the CID.
            MalformedInput: it is longer than a block may be.
            StoreFull: it doesn't fit.
            IpfsUnreachable: Kubo doesn't answer.
        """

    async def get(self, cid: Cid) -> bytes | None:
        """One block; None where it isn't here."""

    async def has(self, cid: Cid) -> bool:
        """Whether a block is here."""

    async def missing(self, cid: Cid, *, size_bytes: int | None = None) -> list[Cid]:
        """The blocks of a content that aren't here, as far as they can be known.

        Those that are here count as put just now: a result is about to name them, so ``collect`` spares them.

        Args:
            cid: the root of the content.
            size_bytes: what somebody says that it holds; None: nothing is said.

        Raises:
            MalformedInput: it isn't a file.
            ContentMismatch: its blocks contradict each other, or what is said.
        """

    async def read(self, cid: Cid, max_bytes: int) -> bytes | None:
        """A content by its root; None where a block of it isn't here.

        Raises:
            MalformedInput: it is longer than ``max_bytes``, or isn't a file.
            ContentMismatch: its blocks contradict each other.
        """

    async def delete(self, cid: Cid) -> bool:
        """Remove a block; whether it was kept here. One in the ledger isn't removed."""

    async def peer_ids(self) -> tuple[str, ...]:
        """As which libp2p peers it asks others for blocks, beside the root; none where it isn't known."""

    async def cids(self) -> list[Cid]:
        """All blocks that are kept, without those in the ledger."""

    async def collect(self, keep: Iterable[Cid], *, min_age_s: float = ABANDONED_AFTER_S) -> tuple[int, int]:
        """Remove what no kept content needs.

        Args:
            keep: the roots of the contents to keep, with all blocks under them.
            min_age_s: spare what was put within so many seconds before the call, and all that is put during it: its
                result may not be recorded yet.

        Returns:
            How many blocks were removed, and their bytes.
        """


async def _nothing_inline(_cid: Cid) -> None:
    return None


@asynccontextmanager
async def open_store(
    directory: Path, *, ipfs: str | None = None, max_bytes: int | None = None, inline: Inline = _nothing_inline
) -> AsyncIterator[RootStore]:
    """The store that the operator chose.

    *Resource handling*: with Kubo it holds connections until the block is left.

    Args:
        directory: where blocks lie, without Kubo.
        ipfs: the multiaddr of a Kubo RPC; None: the directory.
        max_bytes: the cap of the directory.
        inline: finds a manifest in the ledger.

    Raises:
        ConfigurationError: the settings don't go together, or the directory can't be used.
        IpfsUnreachable: no Kubo answers there.
    """
    if ipfs is None:
        yield DirectoryStore(BlockStore(directory, max_bytes=max_bytes), inline=inline)
        return
    if max_bytes is not None:
        raise ConfigurationError(
            "a cap of the disk is for the data directory, but Kubo keeps the blocks",
            hint="leave --max-disk out, and set Kubo's Datastore.StorageMax",
        )
    async with open_kubo_store(ipfs, inline=inline) as store:
        yield store


class DirectoryStore:
    """Blocks in the root's own directory."""

    def __init__(self, blocks: BlockStore, *, inline: Inline = _nothing_inline) -> None:
        self._blocks = blocks
        self._inline = inline

    async def put(self, cid: Cid, data: bytes) -> None:
        """See ``RootStore``."""
        await asyncio.to_thread(self._blocks.put, cid, data)

    async def get(self, cid: Cid) -> bytes | None:
        """See ``RootStore``."""
        block = await asyncio.to_thread(self._blocks.get, cid)
        return await self._inline(cid) if block is None else block

    async def has(self, cid: Cid) -> bool:
        """See ``RootStore``."""
        return await asyncio.to_thread(self._blocks.has, cid) or await self._inline(cid) is not None

    async def missing(self, cid: Cid, *, size_bytes: int | None = None) -> list[Cid]:
        """See ``RootStore``."""
        missing = await asyncio.to_thread(lambda: self._blocks.missing(cid, size_bytes=size_bytes))
        if missing == [cid] and await self._inline(cid) is not None:
            return []
        return missing

    async def read(self, cid: Cid, max_bytes: int) -> bytes | None:
        """See ``RootStore``."""
        content = await asyncio.to_thread(lambda: self._blocks.read(cid, max_bytes=max_bytes))
        if content is None:
            inline = await self._inline(cid)
            return None if inline is None else FileWalk(cid, max_bytes=max_bytes).feed(inline)
        return content

    async def delete(self, cid: Cid) -> bool:
        """See ``RootStore``."""
        return await asyncio.to_thread(self._blocks.delete, cid)

    async def peer_ids(self) -> tuple[str, ...]:
        """See ``RootStore``."""
        return ()

    async def cids(self) -> list[Cid]:
        """See ``RootStore``."""
        return await asyncio.to_thread(lambda: list(self._blocks.cids()))

    async def collect(self, keep: Iterable[Cid], *, min_age_s: float = ABANDONED_AFTER_S) -> tuple[int, int]:
        """See ``RootStore``."""
        return await asyncio.to_thread(lambda: self._blocks.collect(keep, min_age_s=min_age_s))


@asynccontextmanager
async def open_kubo_store(
    multiaddr: str,
    *,
    inline: Inline = _nothing_inline,
    timeout_s: float = KUBO_TIMEOUT_S,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[KuboStore]:
    """Keep blocks in a Kubo, which may be shared with other roots and other uses.

    *Resource handling*: holds connections until the block is left.

    Args:
        multiaddr: its RPC.
        inline: finds a manifest in the ledger.
        timeout_s: the longest that one call may take.
        clock: Unix time, seconds.

    Raises:
        ConfigurationError: the multiaddr isn't one of an RPC.
        IpfsUnreachable: no Kubo answers there.
    """
    url = rpc_url(multiaddr)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session:
        store = KuboStore(session, url, address=multiaddr, inline=inline, clock=clock)
        await store.check()
        yield store


class _KuboError(Exception):
    """An error that Kubo answered with."""


class KuboStore:
    """Blocks in a Kubo; made by ``open_kubo_store``.

    Each block has a direct pin of its own: it needs no children, is safe from Kubo's collector from the put on, and
    says by its name that it is ours and since when. Nothing is looked for in the network.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        address: str,
        inline: Inline,
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._url = url
        self._address = address
        self._inline = inline
        self._clock = clock

    async def check(self) -> None:
        """Find out whether a Kubo answers; raises ``IpfsUnreachable`` where none does."""
        await self._call("version")

    async def put(self, cid: Cid, data: bytes) -> None:
        """See ``RootStore``."""
        if len(data) > MAX_BLOCK_BYTES:
            raise MalformedInput(f"a block of {len(data)} bytes where at most {MAX_BLOCK_BYTES} are taken")
        verify_block(cid, data)
        form = aiohttp.FormData()
        form.add_field("data", io.BytesIO(data), filename="block", content_type="application/octet-stream")
        options = {"cid-codec": CODEC_NAMES[parse_cid(cid).codec], "mhtype": "sha2-256", "pin": "false"}
        stored = self._decode(await self._call("block/put", options, form)).get("Key")
        if stored != cid:
            raise IpfsUnreachable(self._address, f"it stored {stored} where {cid} was put")
        if not await self._pin(cid):
            raise IpfsUnreachable(self._address, f"it lost {cid} right after the put")

    async def get(self, cid: Cid) -> bytes | None:
        """See ``RootStore``."""
        parse_cid(cid)
        try:
            block = await self._ask("block/get", {"arg": cid, "offline": "true"}, max_bytes=MAX_BLOCK_BYTES)
        except _KuboError as fault:
            if NOT_FOUND in str(fault):
                return await self._inline(cid)
            raise self._fault(fault) from fault
        try:
            verify_block(cid, block)
        except ContentMismatch:
            log.warning("block_rotted", cid=cid, size_bytes=len(block))
            await self.delete(cid)
            return await self._inline(cid)
        return block

    async def has(self, cid: Cid) -> bool:
        """See ``RootStore``."""
        return await self._size(cid) is not None or await self._inline(cid) is not None

    async def missing(self, cid: Cid, *, size_bytes: int | None = None) -> list[Cid]:
        """See ``RootStore``."""
        walk = MissingWalk(cid, size_bytes=size_bytes)
        await self._run(walk, pin=True)
        if walk.missing == [cid] and await self._inline(cid) is not None:
            return []
        return walk.missing

    async def read(self, cid: Cid, max_bytes: int) -> bytes | None:
        """See ``RootStore``."""
        walk = FileWalk(cid, max_bytes=max_bytes)
        parts = []
        while (wanted := walk.wanted) is not None:
            block = await self.get(wanted)
            if block is None:
                return None
            parts.append(walk.feed(block))
        return b"".join(parts)

    async def delete(self, cid: Cid) -> bool:
        """See ``RootStore``. One that the operator has pinned too is left to the operator."""
        parse_cid(cid)
        was_kept = True
        try:
            await self._ask("pin/rm", {"arg": cid, "recursive": "false"})
        except _KuboError as fault:
            if "pinned" not in str(fault):
                raise self._fault(fault) from fault
            was_kept = await self._size(cid) is not None
        await self._call("block/rm", {"arg": cid, "force": "true"})
        return was_kept

    async def peer_ids(self) -> tuple[str, ...]:
        """See ``RootStore``. A Kubo whose RPC doesn't allow ``id`` keeps blocks all the same."""
        try:
            peer_id = self._decode(await self._ask("id", {})).get("ID")
        except (_KuboError, IpfsUnreachable) as fault:
            log.warning("kubo_id_unknown", reason=str(fault))
            return ()
        return (peer_id,) if isinstance(peer_id, str) and peer_id else ()

    async def cids(self) -> list[Cid]:
        """See ``RootStore``."""
        return list(await self._pins())

    async def collect(self, keep: Iterable[Cid], *, min_age_s: float = ABANDONED_AFTER_S) -> tuple[int, int]:
        """See ``RootStore``."""
        put_before = self._clock() - min_age_s
        pins = await self._pins()
        kept: set[Cid] = set()
        for root in keep:
            if root not in kept:
                walk = MissingWalk(root)
                try:
                    await self._run(walk, pin=False)
                except PeerError:  # no result names such a content; what was reached is kept all the same
                    log.warning("content_unreadable", cid=root)
                kept |= walk.seen
        removed = removed_bytes = 0
        for cid in pins.keys() - kept:
            # Asked again: it may have been put meanwhile.
            put_at = (await self._pins(cid)).get(cid)
            if put_at is not None and put_at <= put_before:
                size_bytes = await self._size(cid)
                if await self.delete(cid):
                    removed += 1
                    removed_bytes += size_bytes or 0
        return removed, removed_bytes

    async def _run(self, walk: MissingWalk, *, pin: bool) -> None:
        while (wanted := walk.wanted) is not None:
            if pin:
                await self._pin(wanted)
            if walk.needs_bytes:
                walk.feed(await self.get(wanted))
            else:
                walk.found(await self._size(wanted))

    async def _pin(self, cid: Cid) -> bool:
        """Make a block ours, as of now; False where it isn't here."""
        name = f"{PIN_NAME}{self._clock():.6f}"
        try:
            await self._ask("pin/add", {"arg": cid, "recursive": "false", "name": name, "offline": "true"})
        except _KuboError as fault:
            if NOT_FOUND in str(fault):
                return False
            if "already pinned recursively" not in str(fault):  # by the operator; that keeps it as well
                raise self._fault(fault) from fault
        return True

    async def _size(self, cid: Cid) -> int | None:
        parse_cid(cid)
        try:
            answer = await self._ask("block/stat", {"arg": cid, "offline": "true"})
        except _KuboError as fault:
            if NOT_FOUND in str(fault):
                return None
            raise self._fault(fault) from fault
        size_bytes = self._decode(answer).get("Size")
        if not isinstance(size_bytes, int):
            raise IpfsUnreachable(self._address, "it gave a block no size")
        return size_bytes

    async def _pins(self, cid: Cid | None = None) -> dict[Cid, float]:
        """Our pins, or that of one block, and the Unix time of each put."""
        options = {"type": "direct", "names": "true", "name": PIN_NAME, "stream": "true"}
        if cid is not None:
            options["arg"] = cid
        pins: dict[Cid, float] = {}
        try:
            async with self._session.post(f"{self._url}/api/v0/pin/ls", params=options) as response:
                async for line in response.content:
                    pin = self._decode(line)
                    if "not pinned" in str(pin.get("Message", "")):
                        continue
                    if response.status != 200 or "Cid" not in pin:
                        raise IpfsUnreachable(self._address, str(pin.get("Message", "it lists pins in another way")))
                    put_at = OUR_PIN.fullmatch(str(pin.get("Name")))
                    if put_at is not None:
                        pins[str(pin["Cid"])] = float(put_at.group(1))
        except (aiohttp.ClientError, TimeoutError) as fault:
            raise IpfsUnreachable(self._address, reason_of(fault)) from fault
        return pins

    async def _call(
        self, command: str, options: Mapping[str, str] | None = None, form: aiohttp.FormData | None = None
    ) -> bytes:
        try:
            return await self._ask(command, options or {}, form=form)
        except _KuboError as fault:
            raise self._fault(fault) from fault

    async def _ask(
        self,
        command: str,
        options: Mapping[str, str],
        *,
        form: aiohttp.FormData | None = None,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> bytes:
        """One call; raises ``_KuboError`` where Kubo answers with an error."""
        try:
            async with self._session.post(f"{self._url}/api/v0/{command}", params=options, data=form) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > max_bytes:
                        raise IpfsUnreachable(self._address, f"it answered {command} with more than {max_bytes} bytes")
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as fault:
            raise IpfsUnreachable(self._address, reason_of(fault)) from fault
        if status == 200:
            return bytes(body)
        try:
            message = str(self._decode(bytes(body))["Message"])
        except (IpfsUnreachable, KeyError):
            message = f"HTTP {status}: {body[:200].decode(errors='replace')}"
        raise _KuboError(message)

    def _fault(self, fault: _KuboError) -> StoreFull | IpfsUnreachable:
        if any(words in str(fault).lower() for words in FULL):
            return StoreFull(self._address)
        return IpfsUnreachable(self._address, str(fault))

    def _decode(self, body: bytes) -> dict[str, object]:
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError as fault:
            raise IpfsUnreachable(self._address, "it answered something that isn't JSON") from fault
        if not isinstance(answer, dict):
            raise IpfsUnreachable(self._address, "it answered JSON of another shape")
        return answer
