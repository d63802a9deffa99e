"""A real Kubo: it connects, fetches results from a worker, and takes part in the DHT, also in a closed network."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from structlog.testing import capture_logs

from swarm.content.cid import Codec, build, format_cid, raw_cid
from swarm.model import Cid
from swarm.peer.node import Peer, open_peer
from tests.kubo import Kubo, running_kubo
from tests.patience import PATIENCE_S
from tests.peer.harness import TAG, config, eventually, seed_of
from tests.peer.test_bitswap import serving
from tests.peer.test_dht import rendezvous_of

KEY = seed_of("a pre-shared key")


@attrs.define
class Rpc:
    """Calls to one daemon."""

    kubo: Kubo

    async def call(self, path: str, *arguments: str, data: bytes | None = None, **options: str) -> bytes:
        files = None if data is None else {"file": data}
        parameters: Any = [("arg", argument) for argument in arguments] + list(options.items())
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            answer = await client.post(f"{self.kubo.url}/api/v0/{path}", params=parameters, files=files)
        assert answer.is_success, answer.text
        return answer.content

    async def address(self) -> str:
        addresses = json.loads(await self.call("id"))["Addresses"]
        return str(next(address for address in addresses if "/127.0.0.1/tcp/" in address and "/ws" not in address))

    async def id(self) -> str:
        return str(json.loads(await self.call("id"))["ID"])

    async def providers(self, cid: Cid) -> set[str]:
        lines = (await self.call("routing/findprovs", cid, **{"num-providers": "5"})).splitlines()
        answers = [json.loads(line) for line in lines]
        return {peer["ID"] for answer in answers if answer["Type"] == 4 for peer in answer["Responses"]}


@pytest.fixture(scope="module")
def kubo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rpc]:
    with running_kubo(tmp_path_factory.mktemp("kubo") / "repository", routing="dhtserver") as daemon:
        yield Rpc(daemon)


@pytest.fixture(scope="module")
def closed_kubo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rpc]:
    repository = tmp_path_factory.mktemp("closed kubo") / "repository"
    repository.mkdir()
    (repository / "swarm.key").write_text(f"/key/swarm/psk/1.0.0/\n/base16/\n{KEY.hex()}\n")
    with running_kubo(repository, routing="dhtserver") as daemon:
        yield Rpc(daemon)


async def test_kubo_connects_to_a_peer(kubo: Rpc) -> None:
    async with open_peer(config()) as alice:
        await kubo.call("swarm/connect", alice.addrs[0])

        assert await kubo.id() in alice.peers()


@pytest.mark.parametrize("size_bytes", [1_000, 1024 * 1024, 8_000_000])
async def test_kubo_fetches_a_result_from_the_worker_itself(kubo: Rpc, size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    dag = build(content)
    kubo_id = await kubo.id()
    async with open_peer(config(serve_to=frozenset({kubo_id}))) as alice:
        serving(alice, dag.blocks)
        assert await alice.dial(await kubo.address())
        with trio.fail_after(PATIENCE_S):
            assert await kubo.call("cat", dag.root) == content


async def test_kubo_fetches_one_block(kubo: Rpc) -> None:
    block = os.urandom(2_000)
    async with open_peer(config(serve_to="any")) as alice:
        serving(alice, {raw_cid(block): block})
        assert await alice.dial(await kubo.address())
        with trio.fail_after(PATIENCE_S):
            assert await kubo.call("block/get", raw_cid(block)) == block


async def test_kubo_pins_a_result_and_keeps_it_when_the_worker_is_gone(kubo: Rpc) -> None:
    content = os.urandom(3_000_000)
    dag = build(content)
    async with open_peer(config(serve_to="any")) as alice:
        serving(alice, dag.blocks)
        assert await alice.dial(await kubo.address())
        with trio.fail_after(PATIENCE_S):
            await kubo.call("pin/add", dag.root)
    with trio.fail_after(PATIENCE_S):
        assert await kubo.call("cat", dag.root, offline="true") == content


async def test_a_peer_fetches_from_kubo(kubo: Rpc) -> None:
    content = os.urandom(3_000_000)
    root = json.loads(await kubo.call("add", data=content, **{"cid-version": "1"}))["Hash"]
    async with open_peer(config()) as alice:
        assert await alice.dial(await kubo.address())

        assert root == build(content).root
        assert await alice.fetch(await kubo.id(), root, max_bytes=len(content), timeout_s=PATIENCE_S) == content


async def test_a_kubo_that_isnt_connected_finds_the_worker_by_the_dht(kubo: Rpc, tmp_path: Path) -> None:
    block = os.urandom(2_000)
    make = partial(running_kubo, tmp_path / "second", routing="dhtserver")
    with make() as daemon:
        second = Rpc(daemon)
        await second.call("swarm/connect", await kubo.address())
        async with open_peer(config(dht=True, dht_interval_s=0.2, serve_to="any")) as alice:
            serving(alice, {raw_cid(block): block})
            assert await alice.dial(await kubo.address())
            await until_provided(alice, raw_cid(block))
            with trio.fail_after(PATIENCE_S):
                assert await second.call("block/get", raw_cid(block)) == block


async def test_kubo_knows_the_members_of_the_swarm_and_introduces_them(kubo: Rpc) -> None:
    tag_cid = format_cid(Codec.RAW, hashlib.sha256(TAG.encode()).digest())
    changes = {"dht": True, "dht_interval_s": 0.2, "bootstrap": (await kubo.address(),)}
    async with open_peer(config(**changes)) as alice, open_peer(config(**changes)) as bob:
        await eventually(lambda: bob.id in alice.peers() or alice.id in bob.peers())
        with trio.fail_after(PATIENCE_S):
            found = await kubo.providers(tag_cid)

        assert {alice.id, bob.id} <= found


async def test_in_a_closed_network_kubo_connects_fetches_and_finds(closed_kubo: Rpc) -> None:
    content = os.urandom(3_000_000)
    dag = build(content)
    async with open_peer(config(psk=KEY, dht=True, dht_interval_s=0.2)) as alice:
        serving(alice, dag.blocks)
        assert await alice.dial(await closed_kubo.address())
        with trio.fail_after(PATIENCE_S):
            assert await closed_kubo.call("cat", dag.root) == content
        await until_provided(alice, dag.root)
        with trio.fail_after(PATIENCE_S):
            assert alice.id in await closed_kubo.providers(dag.root)


async def test_kubo_without_the_key_gets_no_connection(kubo: Rpc) -> None:
    async with open_peer(config(psk=KEY)) as alice:
        with trio.fail_after(PATIENCE_S):
            assert not await alice.dial(await kubo.address())
        assert not alice.peers()


async def until_provided(peer: Peer, cid: Cid) -> None:
    """Provide once Kubo's answer to identify has come: until then it is no DHT server to us."""
    with trio.fail_after(PATIENCE_S):
        while not await peer.provide(cid):  # noqa: ASYNC110 - what is waited for happens in Kubo
            await trio.sleep(0.05)


async def test_a_kubo_that_isnt_connected_finds_a_result_that_is_kept_provided(kubo: Rpc, tmp_path: Path) -> None:
    content = os.urandom(2_000_000)
    dag = build(content)
    with running_kubo(tmp_path / "second", routing="dhtserver") as daemon:
        second = Rpc(daemon)
        await second.call("swarm/connect", await kubo.address())
        changes = {"dht": True, "dht_interval_s": 0.2, "provide_interval_s": 0.05, "bootstrap": (await kubo.address(),)}
        async with open_peer(config(serve_to="any", **changes)) as alice:
            serving(alice, dag.blocks)
            alice.keep_providing([dag.root])
            with trio.fail_after(PATIENCE_S):
                while alice.id not in await second.providers(dag.root):  # noqa: ASYNC110 - it happens in Kubo
                    await trio.sleep(0.05)
                assert await second.call("cat", dag.root) == content


async def test_a_kubo_without_dht_as_a_root_is_said_once_and_asked_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="libp2p")
    with running_kubo(tmp_path / "repository", routing="none") as daemon, capture_logs() as logs:
        plain = Rpc(daemon)
        changes = {"dht": True, "dht_interval_s": 0.05, "bootstrap": (await plain.address(),)}
        async with open_peer(config(**changes)) as alice:
            await eventually(alice.peers)
            interval = rendezvous_of(alice)._interval
            await eventually(lambda: said(logs, "root_without_dht"))
            begun = interval._idle_rounds
            await eventually(lambda: interval._idle_rounds > begun + 1)  # the round that was under way is over
            caplog.clear()
            await eventually(lambda: interval._idle_rounds > begun + 10)

    assert not caplog.records
    assert [line["log_level"] for line in said(logs, "root_without_dht")] == ["info"]
    assert not [line for line in logs if line["log_level"] in {"warning", "error"}]


def said(logs: list[MutableMapping[str, Any]], event: str) -> list[MutableMapping[str, Any]]:
    return [line for line in logs if line["event"] == event]
