"""The guarded part of Kubo's RPC: what a worker needs to put its results here, and nothing else.

Kubo's own port is never exposed (it leaves debug paths open); these calls answer like it, so that ``ipfshttpclient``
and other clients of Kubo work: unknown options are ignored, errors have Kubo's JSON shape. Each asks for a key, and
each is bounded in bytes, memory and time. Where this differs: one content has one CID (raw leaves of 1 MiB, whatever
is asked), a content that isn't whole is an error instead of cut short, and statuses other than 500 are used.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import aiohttp
import orjson
import structlog
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from rendezvous.door.numbers import whole_number
from rendezvous.store import RootStore
from swarm import __version__
from swarm.content.cid import MAX_BLOCK_BYTES, FileBuilder, dag_pb_cid, parse_cid, raw_cid
from swarm.content.walk import FileWalk
from swarm.errors import PeerError, StoreFull, UnreachableError
from swarm.ipfs import NOT_FOUND
from swarm.model import AGENT, Cid

__all__ = ["MAX_ADD_BYTES", "add_ipfs_routes"]

log = structlog.get_logger()

#: Whether a request carries a key that may use these calls.
Authenticate = Callable[[web.Request], Awaitable[bool]]
#: Our peer's id and addresses; None while there is none.
Identity = Callable[[], tuple[str, Sequence[str]] | None]

#: One request's files together. A result is cut into blocks by the worker; ``add`` is for small tools.
MAX_ADD_BYTES: Final = 64 * 1024 * 1024
#: Files of one request: empty ones weigh nothing, and each is remembered until the answer.
MAX_FILES: Final = 1_024
#: One request's upload, whatever its size: 64 MiB at 2 Mbit/s.
UPLOAD_TIMEOUT_S: Final = 300.0
#: A client that doesn't take a block in this time is cut, seconds.
SEND_TIMEOUT_S: Final = 60.0
PIECE_BYTES: Final = 64 * 1024
#: The level of the RPC that these calls have been at since; ``ipfshttpclient.connect()`` takes 0.4.23 to below 0.8.
RPC_VERSION: Final = "0.7.0"
CODECS: Final = {"raw": raw_cid, "dag-pb": dag_pb_cid, "protobuf": dag_pb_cid}
MAX_OFFSET: Final = 2**63 - 1


class _RpcError(Exception):
    """What the caller did wrong, for the answer."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def add_ipfs_routes(
    app: web.Application, store: RootStore, *, authenticate: Authenticate, identity: Identity = lambda: None
) -> None:
    """Add the calls to an application.

    Args:
        app: the door.
        store: where blocks are kept.
        authenticate: whether a request's key may use them.
        identity: who our peer is, for ``id``.
    """
    rpc = _Rpc(store, identity)
    for command, handler in {
        "add": rpc.add,
        "cat": rpc.cat,
        "block/get": rpc.block_get,
        "block/put": rpc.block_put,
        "id": rpc.id,
        "version": rpc.version,
    }.items():
        app.router.add_post(f"/api/v0/{command}", _guarded(handler, authenticate))


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _guarded(handler: Handler, authenticate: Authenticate) -> Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            if not await authenticate(request):
                raise _RpcError("send a worker's API key as 'Authorization: Bearer KEY'", status=403)
            return await handler(request)
        except _RpcError as fault:
            return _failed(str(fault), fault.status)
        except PeerError as fault:
            return _failed(str(fault), 400)
        except TimeoutError:
            return _failed(f"the upload took longer than {UPLOAD_TIMEOUT_S:g} s", 408)
        except StoreFull as fault:
            log.warning("store_full", reason=str(fault))
            return _failed("the root's store is full: no space left on device", 507)
        except UnreachableError as fault:
            log.warning("ipfs_call_failed", path=request.path, reason=str(fault))
            return _failed("the root can't reach what it keeps blocks in; ask again", 503)

    return guarded


class _Rpc:
    def __init__(self, store: RootStore, identity: Identity) -> None:
        self._store = store
        self._identity = identity

    async def add(self, request: web.Request) -> web.StreamResponse:
        """Cut files into blocks and keep them; a line of JSON for each."""
        _refuse_other_import(request)
        only_hash = _flag(request, "only-hash")
        lines: list[dict[str, object]] = []
        room_bytes = MAX_ADD_BYTES
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            async for part in _files(request):
                builder = FileBuilder()
                async for piece in _pieces(part):
                    room_bytes -= len(piece)
                    if room_bytes < 0:
                        raise _RpcError(f"more than {MAX_ADD_BYTES} bytes; put blocks instead", status=413)
                    for cid, block in builder.feed(piece):
                        await self._keep(cid, block, only_hash=only_hash)
                for cid, block in builder.finish():
                    await self._keep(cid, block, only_hash=only_hash)
                name = (part.filename or builder.root).encode(errors="replace").decode()
                lines.append({"Name": name, "Hash": builder.root, "Size": str(builder.total_bytes)})
        return _answered(*lines)

    async def _keep(self, cid: Cid, block: bytes, *, only_hash: bool) -> None:
        if not only_hash:
            await self._store.put(cid, block)

    async def cat(self, request: web.Request) -> web.StreamResponse:
        """A content or a range of it, whole or not at all."""
        cid = _cid(request)
        offset_bytes, length_bytes = _number(request, "offset") or 0, _number(request, "length")
        missing = await self._store.missing(cid)
        if missing:
            raise _not_found(missing[0])
        walk = FileWalk(cid, max_bytes=MAX_OFFSET, offset_bytes=offset_bytes, length_bytes=length_bytes)
        content = await self._next(walk)
        size_bytes = max(0, (walk.size_bytes or 0) - offset_bytes)
        if length_bytes is not None:
            size_bytes = min(size_bytes, length_bytes)
        response = web.StreamResponse(headers={"X-Content-Length": str(size_bytes), "X-Stream-Output": "1"})
        response.content_type = "text/plain"
        response.content_length = size_bytes
        await response.prepare(request)
        try:
            await _send(response, content)
            while walk.wanted is not None:
                await _send(response, await self._next(walk))
        except (_RpcError, PeerError, UnreachableError, TimeoutError) as fault:
            # The head is out already: cut the connection, so that nobody takes a part for the whole.
            log.warning("cat_cut", cid=cid, reason=str(fault) or "the client doesn't read")
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _next(self, walk: FileWalk) -> bytes:
        wanted = walk.wanted or ""
        block = await self._store.get(wanted)
        if block is None:
            raise _not_found(wanted)
        return walk.feed(block)

    async def block_get(self, request: web.Request) -> web.StreamResponse:
        """One block."""
        cid = _cid(request)
        block = await self._store.get(cid)
        if block is None:
            raise _not_found(cid)
        return web.Response(
            body=block, content_type="application/vnd.ipld.raw", headers={"X-Content-Type-Options": "nosniff"}
        )

    async def block_put(self, request: web.Request) -> web.StreamResponse:
        """Keep blocks as they are; a line of JSON for each."""
        named = request.query.get("cid-codec") or request.query.get("format") or "raw"
        cid_of = CODECS.get(named)
        if cid_of is None:
            raise _RpcError(f"codec {named[:40]!r} isn't taken, but raw and dag-pb are")
        if request.query.get("mhtype", "sha2-256") != "sha2-256" or request.query.get("mhlen", "-1") not in (
            "-1",
            "32",
        ):
            raise _RpcError("another hash isn't taken, but sha2-256 is")
        lines: list[dict[str, object]] = []
        room_bytes = MAX_ADD_BYTES
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            async for part in _files(request):
                block = await _read(part, min(MAX_BLOCK_BYTES, room_bytes))
                room_bytes -= len(block)
                cid = cid_of(block)
                await self._store.put(cid, block)
                lines.append({"Key": cid, "Size": len(block)})
        return _answered(*lines)

    async def id(self, _request: web.Request) -> web.StreamResponse:
        """Who we are."""
        peer_id, addresses = self._identity() or ("", ())
        return _answered(
            {
                "ID": peer_id,
                "PublicKey": "",
                "Addresses": list(addresses),
                "AgentVersion": f"{AGENT}/{__version__}",
                "Protocols": [],
            }
        )

    async def version(self, _request: web.Request) -> web.StreamResponse:
        """What level of the RPC this is."""
        system = f"{platform.machine()}/{platform.system().lower()}"
        return _answered({"Version": RPC_VERSION, "Commit": "", "Repo": "", "System": system, "Golang": ""})


# ── what is asked ─────────────────────────────────────────────────────────────────────────────────────────────────


def _cid(request: web.Request) -> Cid:
    given = request.query.getall("arg", [])
    if len(given) != 1:
        raise _RpcError('argument "arg" is required, once')
    cid = given[0].removeprefix("/ipfs/")
    parse_cid(cid)
    return cid


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    size_bytes = whole_number(text, at_most=MAX_OFFSET)
    if size_bytes is None:
        raise _RpcError(f"{name} isn't a number of bytes")
    return size_bytes


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "false").lower() in ("", "1", "true", "t")


def _refuse_other_import(request: web.Request) -> None:
    """Refuse options that would give another CID, but for raw-leaves: clients send it unasked."""
    if request.query.get("cid-version", "1") != "1":
        raise _RpcError("another CID version isn't taken, but 1 is")
    if request.query.get("chunker", "size-1048576") != "size-1048576":
        raise _RpcError("another chunker isn't taken, but size-1048576 is")
    if request.query.get("hash", "sha2-256") != "sha2-256":
        raise _RpcError("another hash isn't taken, but sha2-256 is")
    for name in ("trickle", "wrap-with-directory", "nocopy", "inline"):
        if _flag(request, name):
            raise _RpcError(f"{name} isn't taken")


async def _files(request: web.Request) -> AsyncIterator[BodyPartReader]:
    """The files of a multipart body, at least one."""
    if request.content_type != "multipart/form-data":
        raise _RpcError("file argument 'data' is required, as multipart/form-data")
    with _parsing():
        reader = await request.multipart()
    count = 0
    while True:
        with _parsing():
            part = await reader.next()
        if part is None:
            break
        if not isinstance(part, BodyPartReader) or part.headers.get("Content-Type") == "application/x-directory":
            raise _RpcError("directories aren't taken, but files are")
        count += 1
        if count > MAX_FILES:
            raise _RpcError(f"more than {MAX_FILES} files in one request", status=413)
        yield part
    if not count:
        raise _RpcError("file argument 'data' is required")


async def _pieces(part: BodyPartReader) -> AsyncIterator[bytes]:
    while not part.at_eof():
        with _parsing():
            piece = await part.read_chunk(PIECE_BYTES)
        yield piece


@contextmanager
def _parsing() -> Iterator[None]:
    """What aiohttp raises where a multipart body breaks its form: each of its readers has its own way."""
    try:
        yield
    except (
        ValueError,
        AssertionError,
        LookupError,
        EOFError,
        HttpProcessingError,
        aiohttp.ClientPayloadError,
        web.RequestPayloadError,
    ) as fault:
        raise _RpcError(f"the body isn't multipart/form-data: {fault}") from fault


async def _read(part: BodyPartReader, max_bytes: int) -> bytes:
    data = bytearray()
    async for piece in _pieces(part):
        data += piece
        if len(data) > max_bytes:
            raise _RpcError(f"a block of more than {max_bytes} bytes; other peers wouldn't take it", status=413)
    return bytes(data)


# ── what is answered ──────────────────────────────────────────────────────────────────────────────────────────────


def _answered(*lines: dict[str, object]) -> web.Response:
    return web.Response(body=b"".join(orjson.dumps(line) + b"\n" for line in lines), content_type="application/json")


async def _send(response: web.StreamResponse, content: bytes) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await response.write(content)


def _failed(message: str, status: int) -> web.Response:
    body = {"Message": message, "Code": 0, "Type": "error"}
    return web.Response(status=status, body=orjson.dumps(body) + b"\n", content_type="application/json")


def _not_found(cid: Cid) -> _RpcError:
    return _RpcError(f"block was not found locally (offline): ipld: {NOT_FOUND} {cid}", status=404)
