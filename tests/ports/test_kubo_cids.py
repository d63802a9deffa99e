"""Our CIDs and blocks are Kubo's own: held against the real daemon."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from swarm.content import cid as cid_module
from swarm.content.cid import LEAF_BYTES, build, dag_pb_cid, links, parse_file_node, raw_cid
from swarm.errors import ConfigurationError, IpfsUnreachable, MalformedInput
from swarm.ipfs import IpfsUploader
from tests.kubo import Kubo, find_kubo, running_kubo

SIZES = [
    0,
    1,
    262_143,
    262_144,
    262_145,
    LEAF_BYTES - 1,
    LEAF_BYTES,
    LEAF_BYTES + 1,
    2 * LEAF_BYTES - 1,
    2 * LEAF_BYTES,
    2 * LEAF_BYTES + 1,
    64 * LEAF_BYTES,
]


@pytest.fixture(scope="module")
def kubo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubo]:
    with running_kubo(tmp_path_factory.mktemp("kubo")) as daemon:
        yield daemon


@pytest.fixture
def uploader(kubo: Kubo) -> Iterator[IpfsUploader]:
    with IpfsUploader(kubo.multiaddr, api_key=None, timeout_s=20) as uploader:
        yield uploader


def content(size_bytes: int) -> bytes:
    return hashlib.shake_128(str(size_bytes).encode()).digest(size_bytes)


def add(kubo: Kubo, data: bytes, options: Mapping[str, str] | None = None) -> str:
    answer = httpx.post(f"{kubo.url}/api/v0/add", params=options, files={"file": data}, timeout=60)
    return str(answer.raise_for_status().json()["Hash"])


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_content_has_the_cid_that_kubo_gives_it(kubo: Kubo, size_bytes: int) -> None:
    data = content(size_bytes)
    assert build(data).root == add(kubo, data)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_kubo_reads_a_content_from_our_blocks(kubo: Kubo, uploader: IpfsUploader, size_bytes: int) -> None:
    data = content(size_bytes)[::-1]
    dag = build(data)
    uploader.put_blocks(dag.blocks.items())
    read = httpx.post(f"{kubo.url}/api/v0/cat", params={"arg": dag.root, "offline": "true"}, timeout=60)
    assert read.content == data
    assert uploader.get(dag.root, size_bytes) == data
    stat = httpx.post(f"{kubo.url}/api/v0/files/stat", params={"arg": f"/ipfs/{dag.root}", "offline": "true"}).json()
    assert stat["Size"] == size_bytes
    assert stat["CumulativeSize"] == sum(map(len, dag.blocks.values()))


@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 9, 10, 27, 28, 30, 100])
def test_a_tree_of_several_levels_is_kubos_too(kubo: Kubo, leaves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shape as beyond 1,024 leaves (a gigabyte), of small leaves and three links."""
    monkeypatch.setattr(cid_module, "LEAF_BYTES", 100)
    monkeypatch.setattr(cid_module, "MAX_LINKS", 3)
    data = content(100 * leaves - 1)
    assert build(data).root == add(kubo, data, {"chunker": "size-100", "max-file-links": "3"})


@pytest.mark.parametrize("size_bytes", [0, 1, 262_145, 3 * LEAF_BYTES])
@pytest.mark.parametrize("raw_leaves", ["true", "false"])
def test_files_of_kubos_older_profiles_can_be_read(
    kubo: Kubo, uploader: IpfsUploader, size_bytes: int, raw_leaves: str
) -> None:
    data = content(size_bytes)
    options = {"cid-version": "1", "raw-leaves": raw_leaves, "chunker": "size-262144", "max-file-links": "174"}
    assert uploader.get(add(kubo, data, options), size_bytes) == data


def test_a_directory_of_kubo_is_refused_as_no_file(kubo: Kubo, uploader: IpfsUploader) -> None:
    answer = httpx.post(
        f"{kubo.url}/api/v0/add", params={"wrap-with-directory": "true"}, files={"file": ("name", b"hello")}
    )
    directory = json.loads(answer.text.splitlines()[-1])["Hash"]
    with pytest.raises(MalformedInput):
        parse_file_node(uploader.get_block(directory))
    with pytest.raises(MalformedInput):
        uploader.get(directory, 1000)


def test_the_links_of_a_node_are_those_that_kubo_names(kubo: Kubo) -> None:
    data = content(3 * LEAF_BYTES)
    root = add(kubo, data)
    said = httpx.post(f"{kubo.url}/api/v0/refs", params={"arg": root}).text.splitlines()
    assert [link.cid for link in links(root, build(data).blocks[root])] == [json.loads(line)["Ref"] for line in said]


def test_a_content_with_a_leaf_missing_is_not_truncated(kubo: Kubo) -> None:
    data = content(3 * LEAF_BYTES + 7)
    dag = build(data)
    with IpfsUploader(kubo.multiaddr, api_key=None, timeout_s=1) as uploader:
        absent = raw_cid(data[LEAF_BYTES : 2 * LEAF_BYTES])
        uploader.put_blocks((cid, block) for cid, block in dag.blocks.items() if cid != absent)
        with pytest.raises(IpfsUnreachable):
            uploader.get(dag.root, len(data))


def test_a_block_beyond_what_kubo_takes_is_refused_and_the_next_is_put(uploader: IpfsUploader) -> None:
    block = bytes(2 * LEAF_BYTES + 1)
    with pytest.raises(IpfsUnreachable, match="2MiB"):
        uploader.put_blocks([(raw_cid(block), block)])
    uploader.put_blocks([(raw_cid(block[1:]), block[1:]), (dag_pb_cid(b"\x0a\x00"), b"\x0a\x00")])
    assert uploader.get_block(dag_pb_cid(b"\x0a\x00")) == b"\x0a\x00"


def test_a_block_that_kubo_does_not_find_in_time_is_unreachable(kubo: Kubo) -> None:
    with IpfsUploader(kubo.multiaddr, api_key=None, timeout_s=1) as uploader, pytest.raises(IpfsUnreachable):
        uploader.get_block(raw_cid(b"nobody has it"))


def test_uploaders_of_many_threads_do_not_mix_their_blocks(kubo: Kubo) -> None:
    def put(number: int) -> None:
        with IpfsUploader(kubo.multiaddr, api_key=None, timeout_s=20) as uploader:
            for item in range(20):
                data = f"{number}/{item}".encode()
                uploader.put_blocks([(raw_cid(data), data)])
                assert uploader.get_block(raw_cid(data)) == data

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(put, number) for number in range(8)]:
            done.result()


def test_kubo_with_a_secret_refuses_who_does_not_know_it(tmp_path: Path) -> None:
    rights = '{"worker":{"AuthSecret":"bearer:secret","AllowedPaths":["/api/v0/block","/api/v0/id"]}}'
    with running_kubo(tmp_path / "kubo", configuration={"API.Authorizations": rights}, secret="secret") as own:
        with IpfsUploader(own.multiaddr, api_key="secret", timeout_s=5) as uploader:
            uploader.put_blocks([(raw_cid(b"x"), b"x")])
            assert uploader.get_block(raw_cid(b"x")) == b"x"
        for key in (None, "guess"):
            with (
                IpfsUploader(own.multiaddr, api_key=key, timeout_s=5) as uploader,
                pytest.raises(IpfsUnreachable, match="403"),
            ):
                uploader.get_block(raw_cid(b"x"))


def test_a_missing_binary_is_an_error_that_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWARM_KUBO", str(tmp_path / "ipfs"))
    with pytest.raises(FileNotFoundError, match="scripts/kubo/build"):
        find_kubo()


def test_a_client_of_a_wrong_address_is_told_before_it_dials() -> None:
    with pytest.raises(ConfigurationError):
        IpfsUploader("/ip4/127.0.0.1/tcp/99999", api_key=None)
