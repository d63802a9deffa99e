"""The door's guarded IPFS RPC: workers' uploads through it, ``ipfshttpclient`` on it, and what it refuses."""

from __future__ import annotations

import asyncio
import io
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import attrs
import ipfshttpclient
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rendezvous.door import ipfs_rpc
from rendezvous.door.ipfs_rpc import MAX_ADD_BYTES, add_ipfs_routes
from rendezvous.store import DirectoryStore, RootStore
from swarm.blocks import BlockStore
from swarm.content.cid import LEAF_BYTES, MAX_BLOCK_BYTES, build, dag_pb_cid, raw_cid
from swarm.errors import BlockNotFound, ConfigurationError, ContentMismatch, IpfsUnreachable, MalformedInput
from swarm.ipfs import IpfsUploader
from tests.patience import PATIENCE_S

T = TypeVar("T")
KEY = "swk_alice"

#: ipfshttpclient as it comes; ``swarm.ipfs`` takes the cause out.
as_it_comes = pytest.mark.filterwarnings("ignore:The 'strict' parameter:FutureWarning")


async def is_worker(request: web.Request) -> bool:
    return request.headers.get("Authorization") == f"Bearer {KEY}"


@attrs.define
class Rpc:
    """The door's RPC on a real port."""

    store: RootStore
    blocks: BlockStore
    port: int
    session: aiohttp.ClientSession

    @property
    def multiaddr(self) -> str:
        return f"/ip4/127.0.0.1/tcp/{self.port}/http"

    async def post(self, command: str, data: Any = None, **options: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {KEY}"}
        url = f"http://127.0.0.1:{self.port}/api/v0/{command}"
        async with self.session.post(url, params=options, data=data, headers=headers) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.read()

    async def threaded(self, work: Callable[[ipfshttpclient.Client], T]) -> T:
        """Run ``ipfshttpclient``, which blocks, beside the server."""

        def run() -> T:
            headers = {"Authorization": f"Bearer {KEY}"}
            with ipfshttpclient.Client(self.multiaddr, headers=headers, timeout=PATIENCE_S) as client:
                return work(client)

        return await asyncio.to_thread(run)

    async def uploaded(self, work: Callable[[IpfsUploader], T], *, api_key: str | None = KEY) -> T:
        def run() -> T:
            with IpfsUploader(self.multiaddr, api_key=api_key, timeout_s=PATIENCE_S) as uploader:
                return work(uploader)

        return await asyncio.to_thread(run)


@pytest_asyncio.fixture
async def rpc(tmp_path: Path) -> AsyncIterator[Rpc]:
    blocks = BlockStore(tmp_path, max_bytes=None)
    store = DirectoryStore(blocks)
    app = web.Application()
    add_ipfs_routes(app, store, authenticate=is_worker, identity=lambda: ("12D3KooWRoot", ["/ip4/127.0.0.1/tcp/4001"]))
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        assert server.port is not None
        yield Rpc(store, blocks, server.port, session)


def files(*contents: bytes, name: str = "file") -> aiohttp.FormData:
    form = aiohttp.FormData()
    for content in contents:
        form.add_field(name, io.BytesIO(content), filename="name.bin", content_type="application/octet-stream")
    return form


def rot(directory: Path, cid: str) -> None:
    """Change the bytes of a block on disk, but not their number: only reading finds it out."""
    (path,) = directory.rglob(cid)
    path.write_bytes(bytes(path.stat().st_size))


# ── a worker's uploads ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size_bytes", [0, 1, LEAF_BYTES, 2 * LEAF_BYTES + 3])
async def test_a_worker_uploads_a_content_and_the_root_can_read_it(rpc: Rpc, size_bytes: int) -> None:
    data = os.urandom(size_bytes)
    dag = build(data)
    await rpc.uploaded(lambda uploader: uploader.put_blocks(dag.blocks.items()))
    assert await rpc.store.missing(dag.root) == []
    assert await rpc.store.read(dag.root, size_bytes) == data
    assert await rpc.uploaded(lambda uploader: uploader.get(dag.root, size_bytes)) == data


async def test_a_content_beyond_what_the_reader_takes_is_refused(rpc: Rpc) -> None:
    dag = build(bytes(2 * LEAF_BYTES))
    await rpc.uploaded(lambda uploader: uploader.put_blocks(dag.blocks.items()))
    with pytest.raises(MalformedInput):
        await rpc.uploaded(lambda uploader: uploader.get(dag.root, 2 * LEAF_BYTES - 1))


async def test_a_block_that_is_not_there_says_so(rpc: Rpc) -> None:
    with pytest.raises(BlockNotFound) as caught:
        await rpc.uploaded(lambda uploader: uploader.get_block(raw_cid(b"absent")))
    assert caught.value.cid == raw_cid(b"absent")


async def test_without_a_workers_key_nothing_is_given_or_taken(rpc: Rpc) -> None:
    cid = raw_cid(b"secret")
    await rpc.store.put(cid, b"secret")
    for key in (None, "", "swk_mallory"):
        with pytest.raises(IpfsUnreachable, match="API key"):
            await rpc.uploaded(lambda uploader: uploader.get_block(cid), api_key=key)
        with pytest.raises(IpfsUnreachable, match="API key"):
            await rpc.uploaded(lambda uploader: uploader.put_blocks([(raw_cid(b"x"), b"x")]), api_key=key)
    for command in ("add", "cat", "block/get", "block/put", "id", "version"):
        url = f"http://127.0.0.1:{rpc.port}/api/v0/{command}"
        async with rpc.session.post(url, params={"arg": cid}) as response:
            assert response.status == 403
            assert (await response.json())["Type"] == "error"
    assert await rpc.store.cids() == [cid]


async def test_an_address_where_nobody_listens_is_unreachable(unused_tcp_port: int) -> None:
    def put() -> None:
        with IpfsUploader(f"/ip4/127.0.0.1/tcp/{unused_tcp_port}", api_key=None, timeout_s=5) as uploader:
            uploader.put_blocks([(raw_cid(b"x"), b"x")])

    with pytest.raises(IpfsUnreachable):
        await asyncio.to_thread(put)


@pytest.mark.parametrize(
    "address", ["", "http://127.0.0.1:5001", "/ip4/1.2.3/tcp/1", "/dns4/a b/tcp/1", "/ip4/1.2.3.4"]
)
def test_an_address_that_is_no_multiaddr_of_an_rpc_says_what_to_write(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        IpfsUploader(address, api_key=None)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (200, b'{"Key":"bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq","Size":1}', ContentMismatch),
        (200, b'{"Key":7}', ContentMismatch),
        (200, b'{"Other":1}', IpfsUnreachable),
        (200, b"[]", IpfsUnreachable),
        (200, b"", IpfsUnreachable),
        (200, b"<html>", IpfsUnreachable),
        (200, b"\xff" * 100, IpfsUnreachable),
        (500, b"", IpfsUnreachable),
        (500, b'{"Message":7,"Type":"error"}', IpfsUnreachable),
        (301, b"", IpfsUnreachable),
    ],
)
async def test_an_address_that_answers_nonsense_is_a_fault_of_ours_by_name(
    status: int, body: bytes, fault: type[Exception]
) -> None:
    async def nonsense(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=status, body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/{path:.*}", nonsense)
    async with TestServer(app) as server:

        def put() -> None:
            with IpfsUploader(f"/ip4/127.0.0.1/tcp/{server.port}", api_key=None, timeout_s=5) as uploader:
                uploader.put_blocks([(raw_cid(b"x"), b"x")])

        with pytest.raises(fault):
            await asyncio.to_thread(put)


async def test_other_bytes_than_asked_for_are_never_returned() -> None:
    async def lie(_request: web.Request) -> web.Response:
        return web.Response(body=b"other bytes")

    app = web.Application()
    app.router.add_post("/api/v0/block/get", lie)
    async with TestServer(app) as server:

        def get() -> bytes:
            with IpfsUploader(f"/ip4/127.0.0.1/tcp/{server.port}", api_key=None, timeout_s=5) as uploader:
                return uploader.get_block(raw_cid(b"x"))

        with pytest.raises(ContentMismatch):
            await asyncio.to_thread(get)


# ── clients of Kubo ───────────────────────────────────────────────────────────────────────────────────────────────


@as_it_comes
async def test_ipfshttpclient_adds_and_reads_back(rpc: Rpc) -> None:
    for data in (b"", b"hello", os.urandom(2 * LEAF_BYTES + 3)):
        cid = await rpc.threaded(lambda client, data=data: client.add_bytes(data))  # type: ignore[misc]
        assert cid == build(data).root
        assert await rpc.threaded(lambda client, cid=cid: client.cat(cid)) == data  # type: ignore[misc]
        added = await rpc.threaded(lambda client, data=data: client.add(io.BytesIO(data), cid_version=1))  # type: ignore[misc]
        assert added["Hash"] == cid


@as_it_comes
async def test_ipfshttpclient_connects_and_asks_who_is_there(rpc: Rpc) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}

    def connect() -> dict[str, Any]:
        with ipfshttpclient.connect(rpc.multiaddr, headers=headers) as client:
            return dict(client.id())

    who = await asyncio.to_thread(connect)
    assert who["ID"] == "12D3KooWRoot"
    assert who["Addresses"] == ["/ip4/127.0.0.1/tcp/4001"]


@as_it_comes
async def test_ipfshttpclient_puts_and_gets_blocks(rpc: Rpc) -> None:
    def put(client: ipfshttpclient.Client) -> tuple[str, str]:
        raw = client.block.put(io.BytesIO(b"hello"))
        node = client.block.put(io.BytesIO(b"\x0a\x00"), opts={"cid-codec": "dag-pb", "some-later-option": "x"})
        return raw["Key"], node["Key"]

    raw, node = await rpc.threaded(put)
    assert (raw, node) == (raw_cid(b"hello"), dag_pb_cid(b"\x0a\x00"))
    assert await rpc.threaded(lambda client: client.block.get(raw)) == b"hello"
    assert await rpc.threaded(lambda client: client.block.get(f"/ipfs/{raw}")) == b"hello"


@as_it_comes
async def test_ipfshttpclient_is_told_why(rpc: Rpc) -> None:
    for work, why in (
        (lambda client: client.cat(raw_cid(b"absent")), "could not find"),
        (lambda client: client.block.get("zzz"), "not a CID"),
        (lambda client: client.block.put(io.BytesIO(bytes(MAX_BLOCK_BYTES + 1))), "more than"),
        (lambda client: client.add_bytes(b"x", opts={"cid-version": "0"}), "CID version"),
        (lambda client: client.add(io.BytesIO(b"x"), trickle=True), "trickle"),
    ):
        with pytest.raises(ipfshttpclient.exceptions.ErrorResponse, match=why):
            await rpc.threaded(work)
    assert await rpc.store.cids() == []


@pytest.mark.parametrize(
    ("offset", "length"), [(None, 10), (5, None), (5, 10), (LEAF_BYTES - 3, 6), (0, 0), (10**9, 5), (7, 10**15)]
)
async def test_cat_gives_the_range_that_is_asked_for(rpc: Rpc, offset: int | None, length: int | None) -> None:
    data = os.urandom(2 * LEAF_BYTES)
    dag = build(data)
    for cid, block in dag.blocks.items():
        await rpc.store.put(cid, block)
    options = {name: str(value) for name, value in (("offset", offset), ("length", length)) if value is not None}
    begin = offset or 0
    end = None if length is None else begin + length
    assert await rpc.post("cat", arg=dag.root, **options) == (200, data[begin:end])


async def test_cat_of_a_content_that_is_not_whole_is_an_error_not_a_part(rpc: Rpc) -> None:
    data = os.urandom(3 * LEAF_BYTES)
    dag = build(data)
    for cid, block in dag.blocks.items():
        await rpc.store.put(cid, block)
    await rpc.store.delete(raw_cid(data[LEAF_BYTES : 2 * LEAF_BYTES]))
    status, answer = await rpc.post("cat", arg=dag.root)
    assert status == 404
    assert "could not find" in answer["Message"]


async def test_cat_of_a_content_that_rots_meanwhile_breaks_off_instead_of_ending(rpc: Rpc, tmp_path: Path) -> None:
    data = os.urandom(3 * LEAF_BYTES)
    dag = build(data)
    for cid, block in dag.blocks.items():
        await rpc.store.put(cid, block)
    rot(tmp_path, raw_cid(data[LEAF_BYTES : 2 * LEAF_BYTES]))
    with pytest.raises(aiohttp.ClientError):
        await rpc.post("cat", arg=dag.root)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "options", "status"),
    [
        ("cat", {}, 400),
        ("cat", {"arg": "bafy"}, 400),
        ("cat", {"arg": raw_cid(b"x") + "/path"}, 400),
        ("cat", {"arg": raw_cid(b"x"), "offset": "-1"}, 400),
        ("cat", {"arg": raw_cid(b"x"), "length": "ten"}, 400),
        ("cat", {"arg": raw_cid(b"x"), "length": "9" * 30}, 400),
        ("cat", {"arg": raw_cid(b"x")}, 404),
        ("block/get", {}, 400),
        ("block/get", {"arg": "../../etc/passwd"}, 400),
        ("block/get", {"arg": raw_cid(b"x")}, 404),
        ("block/put", {}, 400),
        ("block/put", {"cid-codec": "dag-cbor"}, 400),
        ("block/put", {"mhtype": "sha3-256"}, 400),
        ("add", {}, 400),
        ("add", {"chunker": "size-262144"}, 400),
        ("add", {"wrap-with-directory": "true"}, 400),
        ("pin/ls", {}, 404),
        ("config/show", {}, 404),
        ("shutdown", {}, 404),
    ],
)
async def test_a_wrong_call_is_told_so_in_kubos_shape(
    rpc: Rpc, command: str, options: dict[str, str], status: int
) -> None:
    answered, body = await rpc.post(command, **options)
    assert answered == status
    if command in ("cat", "block/get", "block/put", "add"):
        assert set(body) == {"Message", "Code", "Type"}
        assert body["Type"] == "error"


async def test_get_is_not_a_way_to_call(rpc: Rpc) -> None:
    async with rpc.session.get(f"http://127.0.0.1:{rpc.port}/api/v0/version") as response:
        assert response.status == 405


async def test_several_blocks_in_one_request_are_answered_line_by_line(rpc: Rpc) -> None:
    async with rpc.session.post(
        f"http://127.0.0.1:{rpc.port}/api/v0/block/put",
        data=files(b"one", b"two"),
        headers={"Authorization": f"Bearer {KEY}"},
    ) as response:
        lines = (await response.text()).splitlines()
    assert [raw_cid(b"one") in lines[0], raw_cid(b"two") in lines[1]] == [True, True]
    assert len(lines) == 2


async def test_only_hash_keeps_nothing(rpc: Rpc) -> None:
    status, answer = await rpc.post("add", files(b"hello"), **{"only-hash": "true"})
    assert (status, answer["Hash"], answer["Size"]) == (200, raw_cid(b"hello"), "5")
    assert await rpc.store.cids() == []


async def test_a_file_of_the_most_that_is_taken_needs_little_memory(rpc: Rpc) -> None:
    data = bytes(MAX_ADD_BYTES)

    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
        for at in range(0, MAX_ADD_BYTES, 65_536):
            yield data[at : at + 65_536]
        yield b"\r\n--x--\r\n"

    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "multipart/form-data; boundary=x"}
    tracemalloc.start()
    try:
        url = f"http://127.0.0.1:{rpc.port}/api/v0/add"
        async with rpc.session.post(url, data=body(), headers=headers) as response:
            answer = await response.json()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer["Hash"] == build(data).root
    assert peak_bytes < 8 * LEAF_BYTES


async def test_a_byte_more_is_refused(rpc: Rpc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipfs_rpc, "MAX_ADD_BYTES", 1000)
    assert (await rpc.post("add", files(bytes(1000))))[0] == 200
    assert (await rpc.post("add", files(bytes(1001))))[0] == 413
    assert (await rpc.post("add", files(bytes(600), bytes(600))))[0] == 413
    assert (await rpc.post("block/put", files(bytes(600), bytes(600))))[0] == 413


@pytest.mark.parametrize("command", ["add", "block/put"])
async def test_files_that_weigh_nothing_are_counted_too(
    rpc: Rpc, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipfs_rpc, "MAX_FILES", 1)
    assert (await rpc.post(command, files(b"")))[0] == 200
    assert (await rpc.post(command, files(b"", b"")))[0] == 413


async def test_an_upload_that_does_not_come_on_is_cut(rpc: Rpc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipfs_rpc, "UPLOAD_TIMEOUT_S", 0.1)
    stalled = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nbeginning'
        await stalled.wait()

    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "multipart/form-data; boundary=x"}
    url = f"http://127.0.0.1:{rpc.port}/api/v0/add"
    async with asyncio.timeout(PATIENCE_S), rpc.session.post(url, data=body(), headers=headers) as response:
        assert response.status == 408
        stalled.set()
    assert await rpc.store.cids() == []


async def test_a_full_store_is_said_to_be_full(tmp_path: Path) -> None:
    store = DirectoryStore(BlockStore(tmp_path, max_bytes=10))
    app = web.Application()
    add_ipfs_routes(app, store, authenticate=is_worker)
    async with TestServer(app) as server:

        def put() -> None:
            with IpfsUploader(f"/ip4/127.0.0.1/tcp/{server.port}", api_key=KEY, timeout_s=5) as uploader:
                uploader.put_blocks([(raw_cid(bytes(11)), bytes(11))])

        with pytest.raises(IpfsUnreachable, match="no space left"):
            await asyncio.to_thread(put)
    assert await store.cids() == []


GOOD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhello\r\n--x--\r\n'


@pytest.mark.filterwarnings("ignore::aiohttp.multipart.BadContentDispositionHeader")
@pytest.mark.filterwarnings("ignore::aiohttp.multipart.BadContentDispositionParam")
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_a_body_that_is_no_form_is_refused_and_never_a_fault_of_ours(rpc: Rpc, data: st.DataObject) -> None:
    body = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        end = at + data.draw(st.integers(0, 5))
        body[at:end] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"\r\n", b"--x", b"\r\n\r\n", b"--x--", b":"])
        )
    boundary = data.draw(st.sampled_from(["x", "y", "", "x" * 71, '"x"', "x; charset=utf-7"]))
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": f"multipart/form-data; boundary={boundary}"}
    for command in ("add", "block/put"):
        url = f"http://127.0.0.1:{rpc.port}/api/v0/{command}"
        async with rpc.session.post(url, data=bytes(body), headers=headers) as response:
            assert response.status in (200, 400)
