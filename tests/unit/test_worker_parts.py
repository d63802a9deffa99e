"""The smaller parts of a worker, each by itself."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from swarm.blocks import BlockStore
from swarm.content.cid import LEAF_BYTES, build
from swarm.content.manifest import UrlOutcome
from swarm.errors import ConfigurationError, StoreFull
from swarm.executors.base import Execution, TaskFailed, Tools
from swarm.identity import open_identity
from swarm.turn_wire import Failed, Grant
from swarm.wire import Hello, PeerSettings, Settings, SwarmSettings, TaskBody, decode, encode
from swarm.worker import Worker
from swarm.worker.effects import StopReason
from swarm.worker.embed import FunctionExecutor
from swarm.worker.execute import clean, run_grant
from swarm.worker.ipfs_address import door_multiaddr, ipfs_address
from swarm.worker.join import listen_by_default, peer_config
from swarm.worker.leases import Executions, boottime
from swarm.worker.results import Broken, Deferred, Executed
from swarm.worker.selfcheck import FIRST_WAIT_S, LAST_WAIT_S, SelfCheck, relation
from swarm.worker.settings import WorkerSettings
from swarm.worker.storage import ContentLostError, Storage
from swarm.worker.tell import why_idle
from swarm.worker.turns import Turns

TASK = "0192a000-0000-7000-8000-000000000001"


def swarm_at(ipfs: str | None, *doors: str) -> Settings:
    peer = PeerSettings(id="peer", addrs=(), ipfs=ipfs, topic="topic")
    swarm = SwarmSettings(name="s", network_id="n", rendezvous_tag="t", admission="open", roots=(), doors=doors)
    return Settings(peer=peer, ethereum=None, swarm=swarm, challenge="")


# ── whom our peer believes and serves ─────────────────────────────────────────────────────────────────────────────


async def test_the_roots_kubo_is_served_blocks_and_not_believed(tmp_path: Path) -> None:
    swarm = swarm_at(None, "http://127.0.0.1:1")
    swarm = msgspec.structs.replace(swarm, swarm=msgspec.structs.replace(swarm.swarm, stores=("kubo",)))
    with open_identity(tmp_path) as identity:
        config = await peer_config(WorkerSettings(serve_to=("bob",)), identity, swarm, door_url="http://127.0.0.1:1")
    assert config is not None
    assert config.serve_to == frozenset({"kubo", "bob"})
    assert config.roots == {"peer"}


# ── is it the sites, or is it us? ─────────────────────────────────────────────────────────────────────────────────


def test_three_unrelated_hosts_in_a_row_are_our_own_fault() -> None:
    check = SelfCheck()
    assert check.failed_at("a.one.test", "connect") is None
    assert check.failed_at("two.test", "dns") is None
    assert check.failed_at("three.test", "timeout") == FIRST_WAIT_S


def test_related_hosts_count_once() -> None:
    check = SelfCheck()
    for host in ("a.shop.test", "b.shop.test", "shop.test", "127.0.0.1", "127.0.0.1"):
        assert check.failed_at(host, "connect") is None


def test_a_success_in_between_begins_anew() -> None:
    check = SelfCheck()
    check.failed_at("one.test", "connect")
    check.failed_at("two.test", "connect")
    assert not check.succeeded()
    assert check.failed_at("three.test", "connect") is None


def test_a_sites_own_answers_are_no_fault_of_ours() -> None:
    check = SelfCheck()
    for host in ("one.test", "two.test", "three.test", "four.test"):
        assert check.failed_at(host, "http_5xx") is None


def test_on_probation_each_failure_doubles_the_wait_and_a_success_ends_it() -> None:
    check = SelfCheck()
    waits = [check.failed_at(f"{number}.test{number}", "connect") for number in range(10)]
    assert waits[2:5] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-1] == LAST_WAIT_S
    assert check.succeeded()
    assert check.failed_at("one.test", "connect") is None


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("www.Example.org:8080", "example.org"),
        ("[::1]", "::1"),
        ("10.0.0.1:80", "10.0.0.1"),
        ("localhost", "localhost"),
    ],
)
def test_relation_is_the_address_or_the_end_of_the_name(host: str, expected: str) -> None:
    assert relation(host) == expected


# ── storage ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_contents_of_many_blocks_are_read_back_block_by_block(tmp_path: Path) -> None:
    storage = Storage(BlockStore(tmp_path / "blocks", max_bytes=None), owed=list)
    ref = await storage.store(1, bytes(2 * LEAF_BYTES + 1))

    blocks = dict(storage.blocks_of(ref.cid))
    assert ref.size_bytes == 2 * LEAF_BYTES + 1
    assert ref.cid in blocks
    assert sum(len(block) for block in blocks.values()) > LEAF_BYTES


async def test_at_its_cap_it_evicts_what_nothing_owed_needs(tmp_path: Path) -> None:
    owed: list[str] = []
    storage = Storage(BlockStore(tmp_path / "blocks", max_bytes=250), owed=lambda: owed)
    accepted = await storage.store(1, b"a" * 100)
    storage.release(1)
    kept = await storage.store(2, b"b" * 100)
    storage.release(2)
    owed.append(kept.cid)

    fresh = await storage.store(3, b"c" * 100)

    assert await storage.get(accepted.cid) is None
    assert await storage.get(kept.cid) is not None
    assert await storage.get(fresh.cid) is not None


async def test_what_an_execution_under_way_has_stored_is_not_evicted(tmp_path: Path) -> None:
    storage = Storage(BlockStore(tmp_path / "blocks", max_bytes=250), owed=list)
    first = await storage.store(1, b"a" * 100)
    await storage.store(1, b"b" * 100)
    with pytest.raises(StoreFull):
        await storage.store(2, b"c" * 100)
    assert await storage.get(first.cid) is not None


async def test_what_another_slot_stores_while_room_is_made_is_not_evicted(tmp_path: Path) -> None:
    blocks = BlockStore(tmp_path / "blocks", max_bytes=None)
    (cid,) = build(b"stored meanwhile").blocks

    def owed() -> list[str]:
        blocks.put(cid, b"stored meanwhile")
        return []

    await Storage(blocks, owed=owed).evict()
    assert blocks.has(cid)


async def test_a_content_with_a_block_missing_is_lost(tmp_path: Path) -> None:
    blocks = BlockStore(tmp_path / "blocks", max_bytes=None)
    storage = Storage(blocks, owed=list)
    ref = await storage.store(1, bytes(range(256)) * 8192)
    leaf = next(cid for cid in blocks.cids() if cid != ref.cid)
    blocks.delete(leaf)
    with pytest.raises(ContentLostError):
        list(storage.blocks_of(ref.cid))


# ── executing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def grant(kind: str = "mine", **more: object) -> Grant:
    body = TaskBody(id=TASK, job=TASK, kind=kind, urls=("http://site/", "http://site/2"), **more)  # type: ignore[arg-type]
    return Grant(task=body, fence=1, lease_s=60.0, via="want")


def tools(storage: Storage | None = None) -> Tools:
    async def never(*_: object) -> object:
        raise AssertionError

    async def store(data: bytes) -> object:
        assert storage is not None
        return await storage.store(1, data)

    return Tools(fetch=never, store=store, worker="0x71C7656EC7ab88b098defB751B7401B5f6d8976F")  # type: ignore[arg-type]


async def run(
    executor: object, executions: Executions | None = None, **more: object
) -> Executed | Broken | Deferred | None:
    return await run_grant(
        grant(**more),
        {"mine": executor},
        lambda _: tools(),
        versions={},
        executions=Executions() if executions is None else executions,
        clock=trio.current_time,  # type: ignore[dict-item]
    )


async def test_a_task_that_takes_longer_than_it_may_is_stopped(autojump_clock: object) -> None:
    async def slow(task: TaskBody, tools: Tools) -> None:
        await trio.sleep(1000)

    result = await run(FunctionExecutor(slow), max_run_s=5.0)
    assert isinstance(result, Broken)
    assert (result.reason, result.ran_s) == ("run_too_long", 5.0)


async def test_a_stopped_task_has_no_result() -> None:
    executions = Executions()

    async def stopped(task: TaskBody, tools: Tools) -> None:
        executions.stop(1, StopReason.LOST)
        await trio.sleep_forever()

    assert await run(FunctionExecutor(stopped), executions=executions) is None


async def test_a_task_completes_if_any_url_gave_data() -> None:
    async def half(task: TaskBody, tools: Tools) -> Execution:
        return Execution(outcomes=(UrlOutcome(url=task.urls[0], reason="dns"), UrlOutcome(url=task.urls[1])))

    assert isinstance(await run(FunctionExecutor(half)), Executed)


async def test_a_task_of_which_no_url_gave_data_fails_with_the_first_reason() -> None:
    async def none(task: TaskBody, tools: Tools) -> Execution:
        return Execution(
            outcomes=(UrlOutcome(url=task.urls[0], reason="dns"), UrlOutcome(url=task.urls[1], reason="tls"))
        )

    result = await run(FunctionExecutor(none))
    assert isinstance(result, Broken)
    assert result.reason == "dns"


@pytest.mark.parametrize(
    ("said", "reason", "asked_s", "wait_s"),
    [
        ("blocked", "blocked", 1e9, 86_400.0),
        ("blocked", "blocked", -5.0, 0.0),
        ("blocked", "blocked", float("nan"), None),
        ("Too slow!", "executor_error", 5.0, 5.0),
        ("x" * 41, "executor_error", None, None),
    ],
)
async def test_whatever_an_executor_says_of_its_failure_the_door_can_read(
    said: str, reason: str, asked_s: float | None, wait_s: float | None
) -> None:
    async def fails(task: TaskBody, tools: Tools) -> None:
        raise TaskFailed(said, "as it has it", retry_after_s=asked_s)

    result = await run(FunctionExecutor(fails))
    assert isinstance(result, Broken)
    assert (result.reason, result.retry_after_s) == (reason, wait_s)
    assert said in result.detail or reason == said
    failed = Failed(
        task=result.grant.task.id,
        fence=1,
        reason=result.reason,
        detail=result.detail,
        retry_after_s=result.retry_after_s,
        ran_s=result.ran_s,
    )
    assert decode(encode(failed), Failed) == failed


async def test_an_unknown_kind_is_a_failure_of_the_task() -> None:
    result = await run_grant(
        grant("alien"), {}, lambda _: tools(), versions={}, executions=Executions(), clock=trio.current_time
    )
    assert isinstance(result, Broken)
    assert result.reason == "bad_spec"


async def test_a_full_disk_gives_the_task_back() -> None:
    async def full(task: TaskBody, tools: Tools) -> None:
        raise StoreFull("here")

    result = await run(FunctionExecutor(full))
    assert isinstance(result, Deferred)
    assert result.disk_full


def test_a_detail_can_always_be_stored() -> None:
    assert clean("a\0b\ud800c" + "x" * 1000).startswith("a�b?c")
    assert len(clean("x" * 1000)) == 500


async def test_a_stopped_execution_says_why() -> None:
    executions = Executions()
    with executions.scope(7) as execution:
        executions.stop(7, StopReason.LOST)
        await trio.sleep_forever()
    assert execution.stopped is StopReason.LOST
    assert len(executions) == 0
    executions.stop(7, StopReason.LOST)  # an unknown one is left alone


def test_the_clock_of_leases_goes_on_while_the_machine_sleeps() -> None:
    assert boottime() > 0


# ── a function as an executor ─────────────────────────────────────────────────────────────────────────────────────


async def test_records_of_a_function_are_stored_as_json_lines(tmp_path: Path) -> None:
    async def crawl(task: TaskBody, tools: Tools) -> list[dict[str, str]]:
        return [{"title": "one"}, {"title": "two"}]

    blocks = BlockStore(tmp_path / "blocks", max_bytes=None)
    execution = await FunctionExecutor(crawl).run(grant().task, tools(Storage(blocks, owed=list)))

    outcome = execution.outcomes[0]
    assert outcome.record_count == 2
    assert outcome.records is not None
    assert blocks.read(outcome.records.cid) == b'{"title":"one"}\n{"title":"two"}\n'


async def _crawl(depth: int, task: TaskBody, tools: Tools) -> list[dict[str, int]]:
    await trio.lowlevel.checkpoint()
    return [{"depth": depth}]


@pytest.mark.parametrize(
    "function",
    [partial(_crawl, 1), partial(partial(_crawl), 1), lambda task, tools: _crawl(1, task, tools)],
    ids=["partial", "partial of a partial", "lambda"],
)
async def test_what_makes_a_coroutine_is_awaited(function: Any, tmp_path: Path) -> None:
    blocks = BlockStore(tmp_path / "blocks", max_bytes=None)
    execution = await FunctionExecutor(function).run(grant().task, tools(Storage(blocks, owed=list)))
    assert execution.outcomes[0].record_count == 1


async def test_an_async_callable_object_runs_on_the_loop_as_an_async_function_does() -> None:
    loop_thread, threads = threading.get_ident(), []

    class Crawler:
        async def __call__(self, task: TaskBody, tools: Tools) -> None:
            threads.append(threading.get_ident())

    execution = await FunctionExecutor(Crawler()).run(grant().task, tools())
    assert len(execution.outcomes) == 2
    assert threads == [loop_thread]


async def test_a_sync_function_may_block() -> None:
    execution = await FunctionExecutor(lambda task, tools: None).run(grant().task, tools())
    assert [outcome.url for outcome in execution.outcomes] == ["http://site/", "http://site/2"]


async def test_a_function_that_returns_something_else_breaks_its_own_task() -> None:
    result = await run(FunctionExecutor(lambda task, tools: 7))
    assert isinstance(result, Broken)
    assert result.reason == "executor_error"


def test_a_worker_takes_functions_and_executors_and_nothing_else() -> None:
    Worker("http://root", crawl=lambda task, tools: None, other=FunctionExecutor(lambda task, tools: None))
    with pytest.raises(ConfigurationError, match="neither a function nor an executor"):
        Worker("http://root", crawl=7)  # type: ignore[arg-type]


# ── addresses, words ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8765", "/ip4/127.0.0.1/tcp/8765/http"),
        ("https://root.example", "/dns/root.example/tcp/443/https"),
        ("http://[::1]:80/swarm", "/ip6/::1/tcp/80/http"),
    ],
)
def test_a_doors_url_as_a_multiaddr(url: str, expected: str) -> None:
    assert door_multiaddr(url) == expected


def test_only_the_door_gets_our_key() -> None:
    url = "http://127.0.0.1:8765"
    assert ipfs_address(swarm_at(None), url) == ("/ip4/127.0.0.1/tcp/8765/http", True)
    assert ipfs_address(swarm_at("/ip4/127.0.0.1/tcp/8765/http", url), url)[1]
    assert ipfs_address(swarm_at("/dns4/ipfs.example/tcp/5001", url), url) == ("/dns4/ipfs.example/tcp/5001", False)


def test_a_worker_of_a_loopback_root_listens_on_the_loopback_alone() -> None:
    assert listen_by_default("http://127.0.0.2:8765") == ("/ip4/127.0.0.1/tcp/0",)
    assert listen_by_default("http://localhost:8765") == ("/ip4/127.0.0.1/tcp/0",)
    assert listen_by_default("https://root.example") == ("/ip4/0.0.0.0/tcp/0",)


def test_an_idle_worker_knows_why() -> None:
    turns = Turns(boot="boot-one", hello=Hello(version="1", kinds={}), instance="alice", now=0.0)
    assert why_idle(turns, connected=False, now=0.0) == "the door doesn't answer"
    assert why_idle(turns, connected=True, now=0.0) == "there is no task for this worker"
    turns.hold("the disk is full")
    assert why_idle(turns, connected=True, now=0.0) == "the disk is full"
    turns.pause("maintenance")
    assert why_idle(turns, connected=True, now=0.0) == "paused: maintenance"
