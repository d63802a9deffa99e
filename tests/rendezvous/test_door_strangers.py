"""What strangers and hostile workers send: refused as theirs, without a fault of ours and without filling the log."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.http_exceptions import BadHttpMessage

from rendezvous.door import ipfs_rpc
from rendezvous.door.strangers import quieten_strangers
from swarm.content.cid import raw_cid
from swarm.content.manifest import ContentRef, UrlOutcome
from swarm.wire import MAX_INT
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import Stage, Worker, door

#: More than two sockets hold.
SIZE_BYTES = 32 * 1024 * 1024
SERVER = logging.getLogger("aiohttp.server")


@pytest.fixture
def quiet() -> Iterator[None]:
    before = list(SERVER.filters)
    quieten_strangers()
    try:
        yield
    finally:
        SERVER.filters[:] = before


def outcome(cid: str, *sizes: int) -> UrlOutcome:
    refs = [ContentRef(cid=cid, size_bytes=size) for size in sizes]
    return UrlOutcome(url="http://h0.example/", body=refs[0], records=refs[-1])


async def granted(stage: Stage) -> tuple[Worker, dict[str, Any]]:
    alice, carol = await stage.worker("alice"), await stage.requester("carol")
    await stage.submit(carol)
    (grant,) = (await alice.take(want=1))["grants"]
    return alice, grant


@pytest.mark.parametrize("sizes", [(2,), (0,), (MAX_INT,), (MAX_INT, MAX_INT - 1)])
async def test_a_manifest_that_lies_about_sizes_is_unreadable(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    async with door(tmp_path) as stage:
        alice, grant = await granted(stage)
        await stage.door.store.put(raw_cid(b"x"), b"x")
        lie = alice.done(grant, outcomes=(outcome(raw_cid(b"x"), *sizes),))
        (refused,) = (await alice.take(done=[lie]))["outcomes"]
        assert refused["error"]["code"] == "result_unreadable"
        truth = alice.done(grant, outcomes=(outcome(raw_cid(b"x"), 1),))
        (taken,) = (await alice.take(done=[truth]))["outcomes"]
        assert taken["status"] == "completed"


async def test_a_session_that_breaks_the_protocol_ends_without_a_fault_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        headers = {"Authorization": f"Bearer {alice.key}"}
        async with stage.http.ws_connect(f"{stage.url}/v1/session", headers=headers) as socket:
            transport = socket._response.connection.transport  # type: ignore[union-attr]
            transport.write(b"\xf2\x80\0\0\0\0")  # reserved bits
            transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            while stage.door.sessions:  # noqa: ASYNC110 - a session has no event for its end
                await asyncio.sleep(0.01)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def form(stage: Stage, key: str | None, body: bytes, **headers: str) -> tuple[int, str]:
    sent = {"Authorization": f"Bearer {key}", "Content-Type": "multipart/form-data; boundary=x", **headers}
    async with stage.http.post(f"{stage.url}/api/v0/add", data=io.BytesIO(body), headers=sent) as answer:
        return answer.status, await answer.text()


async def test_a_file_name_that_is_no_text_is_answered(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        part = b'--x\r\nContent-Disposition: form-data; filename="a\xff\xed\xa0\x80"\r\n\r\naa\r\n--x--\r\n'
        status, said = await form(stage, alice.key, part)
        assert (status, raw_cid(b"aa") in said) == (200, True)


async def test_a_form_that_does_not_unpack_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        status, _ = await form(stage, alice.key, b"not deflate", **{"Content-Encoding": "deflate"})
        assert status == 400


async def test_who_does_not_read_a_content_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipfs_rpc, "SEND_TIMEOUT_S", 0.2)
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        _, said = await form(stage, alice.key, b"--x\r\n\r\n" + bytes(SIZE_BYTES) + b"\r\n--x--\r\n")
        cid = said.split('"Hash":"')[1].split('"')[0]
        await stage.asks_and_is_cut(f"POST /api/v0/cat?arg={cid}", alice.key)


async def test_junk_leaves_no_traceback(tmp_path: Path, quiet: None, caplog: pytest.LogCaptureFixture) -> None:
    async with door(tmp_path) as stage:
        port = int(stage.url.rsplit(":", 1)[1])
        for junk in (
            b"\x16\x03\x01\x02\0",
            b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
            b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(junk)
            writer.write_eof()
            async with asyncio.timeout(PATIENCE_S):
                await reader.read()
            writer.close()
    assert [record for record in caplog.records if record.name == SERVER.name] == []


def test_a_fault_of_ours_is_still_told(quiet: None, caplog: pytest.LogCaptureFixture) -> None:
    for fault in (
        BadHttpMessage("theirs"),
        ConnectionResetError("theirs"),
        aiohttp.ClientPayloadError("theirs"),
        ValueError("ours"),
    ):
        SERVER.error("Error handling request", exc_info=fault)
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("ours",)]  # type: ignore[union-attr]
