"""A whole worker against a door in memory: what a user of the swarm can see of it."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from swarm.blocks import BlockStore
from swarm.content.manifest import UrlOutcome
from swarm.errors import DoorRefused
from swarm.executors.base import Capture, Execution, TaskDeferred, TaskFailed, Tools
from swarm.executors.parser import open_parser
from swarm.executors.registry import load_executors
from swarm.identity import Identity
from swarm.model import Status
from swarm.testing import MemoryDoor, MemoryIpfs
from swarm.wire import ErrorBody, TaskBody
from swarm.worker.journal import Journal, open_journal
from swarm.worker.records import Record
from swarm.worker.run import Means, work
from swarm.worker.settings import WorkerSettings
from tests.patience import PATIENCE_S

ALICE = Identity(
    directory=Path("/nonexistent"),
    address="0x71C7656EC7ab88b098defB751B7401B5f6d8976F",
    eth_key=b"\1" * 32,
    peer_seed=b"\2" * 32,
    peer_id="12D3KooWGRUacmEmsDhdzQQ4RKPBoJSvLAjFVXUQzjKs1YeXKp3a",
    instance="0123456789abcdef",
)


class Played:
    """An executor played by the test: each run waits for its cue."""

    version = "1"

    def __init__(self) -> None:
        self.running: list[str] = []
        self.runs: list[str] = []
        self.cancelled: list[str] = []
        self.cue = trio.Event()
        self.changed = trio.Event()
        self.act: Callable[[TaskBody, Tools], Any] | None = None

    async def run(self, task: TaskBody, tools: Tools) -> Execution:
        self.runs.append(task.id)
        self.running.append(task.id)
        self._tell()
        try:
            await self.cue.wait()
            if self.act is not None:
                await self.act(task, tools)
        except trio.Cancelled:
            self.cancelled.append(task.id)
            self._tell()
            raise
        finally:
            self.running.remove(task.id)
        return Execution(outcomes=(UrlOutcome(url=task.urls[0]),))

    def _tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.changed.wait()


@attrs.define
class Alice:
    """A worker that runs, and all that a test can reach of it."""

    door: MemoryDoor
    ipfs: MemoryIpfs
    played: Played
    stop: trio.MemorySendChannel[None]
    gone: trio.Event
    said: list[str]


Start = Callable[..., Any]


@asynccontextmanager
async def alice_at(
    path: Path,
    door: MemoryDoor,
    ipfs: MemoryIpfs,
    *,
    played: Played | None = None,
    clock: Callable[[], float] = trio.current_time,
    fetched: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> AsyncIterator[Alice]:
    """Run a worker while the block is open; leaving it kills the worker, as a power cut would."""
    played = played or Played()
    stop, stops = trio.open_memory_channel[None](8)
    gone = trio.Event()
    said: list[str] = []

    async def fetch(url: str) -> Capture:
        fetched(url)
        raise TaskFailed("connect", url)

    async def run() -> None:
        async with open_journal(path / "journal.db", clock=lambda: 0.0) as journal, open_parser() as parser:
            means = Means(
                identity=ALICE,
                door=door,
                journal=journal,
                blocks=BlockStore(path / "blocks", max_bytes=settings.get("max_disk_bytes", 10**9)),
                executors=load_executors({"played": played}, plugins=()),
                fetch=fetch,
                learn=lambda _: None,
                parser=parser,
                open_uploader=lambda: ipfs,
                rng=random.Random(1),
            )
            chosen = WorkerSettings(**({"p2p": False, "slots": 3} | settings))
            await work(chosen, means, stops=stops, say=said.append, clock=clock)
        gone.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        # Where time jumps, pytest counts the seconds.
        jumps = isinstance(trio.lowlevel.current_clock(), MockClock)
        with trio.fail_after(math.inf if jumps else PATIENCE_S):
            yield Alice(door=door, ipfs=ipfs, played=played, stop=stop, gone=gone, said=said)
        nursery.cancel_scope.cancel()


#: How long nobody could do anything when a jumping clock jumps to the next deadline.
QUIET_S = 0.005


@pytest.fixture
def ipfs() -> MemoryIpfs:
    return MemoryIpfs()


@pytest.fixture
def door(ipfs: MemoryIpfs) -> MemoryDoor:
    return MemoryDoor(clock=trio.current_time, ipfs=ipfs)


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """Time passes when nobody can do anything, in no thread either."""
    clock = MockClock(autojump_threshold=QUIET_S)
    in_a_thread = trio.to_thread.run_sync
    threads = 0

    async def standing_still(*args: Any, **how: Any) -> Any:
        nonlocal threads
        threads += 1
        clock.autojump_threshold = math.inf
        try:
            return await in_a_thread(*args, **how)
        finally:
            threads -= 1
            clock.autojump_threshold = math.inf if threads else QUIET_S

    monkeypatch.setattr(trio.to_thread, "run_sync", standing_still)
    return clock


async def test_a_task_is_run_and_its_result_is_with_the_door(
    tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs):
        task = await door.until_status(door.submit(), Status.COMPLETED)

    assert task.result is not None
    assert (task.result.task, task.result.worker) == (task.body.id, ALICE.address)
    assert task.result.versions == {"swarm": "0.1.0", "noop": "1"}


async def test_contents_are_uploaded_before_the_result_is_said(
    tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs):
        task = await door.until_status(door.submit(spec={"size": 3_000_000}), Status.COMPLETED)

    assert task.result is not None
    (ref,) = task.result.named()
    assert ref.size_bytes == 3_000_000
    assert ref.cid in ipfs.blocks


async def test_no_more_tasks_run_than_there_are_slots(tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs) -> None:
    async with alice_at(tmp_path, door, ipfs) as alice:
        tasks = [door.submit("played") for _ in range(10)]
        await alice.played.until(lambda: len(alice.played.running) == 3)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(alice.played.running) == 3

        alice.played.cue.set()
        for task in tasks:
            await door.until_status(task, Status.COMPLETED)

    assert all(turn.want + len(turn.offers) <= turn.free <= 3 for turn in door.turns)
    assert all(row.completions == 1 for row in door.tasks.values())


async def test_results_that_are_ready_together_are_said_in_one_turn(
    tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs, slots=8) as alice:
        tasks = [door.submit("played") for _ in range(8)]
        await alice.played.until(lambda: len(alice.played.running) == 8)
        alice.played.cue.set()
        for task in tasks:
            await door.until_status(task, Status.COMPLETED)

    assert [len(turn.done) for turn in door.turns if turn.done] == [8]


async def test_a_failure_is_reported_with_its_reason(tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs) -> None:
    async with alice_at(tmp_path, door, ipfs):
        task = await door.until_status(door.submit(spec={"fail": "http_4xx"}), Status.FAILED)
    assert task.reason == "http_4xx"


async def test_an_executor_that_breaks_costs_its_own_task_alone(
    tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async def act(task: TaskBody, tools: Tools) -> None:
        raise ZeroDivisionError("lone \ud800 surrogate")

    async with alice_at(tmp_path, door, ipfs) as alice:
        alice.played.act = act
        alice.played.cue.set()
        broken = await door.until_status(door.submit("played"), Status.WAITING)
        await door.until_status(door.submit(), Status.COMPLETED)
    assert broken.reason == "executor_error"


async def test_a_lost_lease_stops_its_execution_at_once(
    tmp_path: Path, jumping_clock: MockClock, ipfs: MemoryIpfs
) -> None:
    door = MemoryDoor(clock=trio.current_time, ipfs=ipfs, lease_s=15.0)
    async with alice_at(tmp_path, door, ipfs) as alice:
        lost, other = door.submit("played"), door.submit("played")
        await alice.played.until(lambda: len(alice.played.running) == 2)
        door.take_away(lost)
        await alice.played.until(lambda: alice.played.cancelled == [lost])
        alice.played.cue.set()
        await door.until_status(other, Status.COMPLETED)

    assert door.tasks[lost].completions == 0


async def test_a_cancelled_task_is_stopped_at_once(tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs) -> None:
    async with alice_at(tmp_path, door, ipfs) as alice:
        task = door.submit("played")
        await alice.played.until(lambda: alice.played.running == [task])
        door.cancel(task)
        await alice.played.until(lambda: alice.played.cancelled == [task])
        await door.until_status(door.submit(), Status.COMPLETED)


async def test_leases_are_renewed_while_a_task_runs(tmp_path: Path, jumping_clock: MockClock, ipfs: MemoryIpfs) -> None:
    door = MemoryDoor(clock=trio.current_time, ipfs=ipfs, lease_s=15.0)
    async with alice_at(tmp_path, door, ipfs) as alice:
        task = door.submit("played", max_run_s=1000.0)
        await alice.played.until(lambda: len(alice.played.running) == 1)
        await trio.sleep(100)  # of the jumping clock
        alice.played.cue.set()
        await door.until_status(task, Status.COMPLETED)
        assert alice.played.runs == [task]


async def test_while_the_door_is_silent_work_stops_with_its_lease_and_nothing_more_is_sent_to_the_site(
    tmp_path: Path, jumping_clock: MockClock, ipfs: MemoryIpfs
) -> None:
    door = MemoryDoor(clock=trio.current_time, ipfs=ipfs, lease_s=15.0)
    async with alice_at(tmp_path, door, ipfs) as alice:
        task = door.submit("played", max_run_s=1000.0)
        await alice.played.until(lambda: len(alice.played.running) == 1)
        last_said = trio.current_time()
        door.down = True
        await alice.played.until(lambda: alice.played.cancelled == [task])
        assert trio.current_time() - last_said <= 16.0

        door.down = False
        alice.played.cue.set()
        await door.until_status(task, Status.COMPLETED)
    assert door.tasks[task].completions == 1


async def test_after_the_machine_slept_no_request_leaves_for_a_lease_that_ran_out_meanwhile(
    tmp_path: Path, ipfs: MemoryIpfs
) -> None:
    door = MemoryDoor(clock=trio.current_time, ipfs=ipfs, lease_s=15.0)
    slept_s = 0.0
    asked: list[str] = []
    played = Played()
    played.act = lambda task, tools: tools.fetch(task.urls[0])

    def boottime() -> float:
        return trio.current_time() + slept_s

    async with alice_at(tmp_path, door, ipfs, played=played, clock=boottime, fetched=asked.append):
        task = door.submit("played")
        await played.until(lambda: played.running == [task])
        slept_s = 20.0
        played.cue.set()  # whatever the execution waited for is there at once
        await played.until(lambda: played.cancelled == [task])
        assert not asked


async def test_a_result_that_missed_its_lease_is_used_for_a_new_grant_without_running_again(
    tmp_path: Path, jumping_clock: MockClock, ipfs: MemoryIpfs
) -> None:
    door = MemoryDoor(clock=trio.current_time, ipfs=ipfs, lease_s=15.0)
    async with alice_at(tmp_path, door, ipfs) as alice:
        task = door.submit("played")
        await alice.played.until(lambda: len(alice.played.running) == 1)
        door.down = True
        alice.played.cue.set()
        await trio.sleep(60)
        door.down = False
        await door.until_status(task, Status.COMPLETED)

        assert alice.played.runs == [task]


async def test_a_lost_answer_is_made_good_by_repeating_the_turn(
    tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs):
        await door.until_status(door.submit(), Status.COMPLETED)
        door.lose_answers = 2
        await door.until_status(door.submit(), Status.COMPLETED)
        await door.until_status(door.submit(), Status.COMPLETED)

    said = [(turn.n, turn) for turn in door.turns]
    assert len(said) > len(dict(said))  # some were repeated
    assert all(turn == dict(said)[n] for n, turn in said)  # with the same content
    assert all(row.completions == 1 for row in door.tasks.values())


async def test_a_killed_worker_says_its_results_after_the_restart_with_their_old_fence(
    tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs) as alice:
        task = door.submit("played")
        await alice.played.until(lambda: len(alice.played.running) == 1)
        await trio.testing.wait_all_tasks_blocked()  # no turn is under way, so the next one says the result
        door.down = True
        alice.played.cue.set()
        await door.until(lambda: any(turn.done for turn in door.unheard))
    fence = door.tasks[task].fence
    door.down = False

    async with alice_at(tmp_path, door, ipfs) as alice:
        await door.until_status(task, Status.COMPLETED)
        assert alice.played.runs == []
    assert door.tasks[task].fence == fence


async def test_a_killed_worker_gives_back_what_it_was_running(
    tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs) as alice:
        task = door.submit("played")
        await alice.played.until(lambda: len(alice.played.running) == 1)
    played = Played()
    played.cue.set()

    async with alice_at(tmp_path, door, ipfs, played=played):
        await door.until_status(task, Status.COMPLETED)
    assert door.tasks[task].failures == 0


async def test_while_ipfs_is_down_results_wait_wanting_stops_and_nothing_is_lost(
    tmp_path: Path, jumping_clock: MockClock, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    ipfs.down = True
    async with alice_at(tmp_path, door, ipfs):
        tasks = [door.submit(spec={"size": 100}) for _ in range(3)]
        await door.until(lambda: any(turn.free == 0 for turn in door.turns))
        later = door.submit()
        await trio.sleep(20)  # of the jumping clock
        assert door.turns[-1].free == 0
        assert door.tasks[later].status is Status.PENDING

        ipfs.down = False
        for task in (*tasks, later):
            await door.until_status(task, Status.COMPLETED)
    assert all(row.completions == 1 for row in door.tasks.values())


async def test_results_that_were_not_uploaded_are_uploaded_after_a_restart(
    tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    ipfs.down = True
    async with alice_at(tmp_path, door, ipfs):
        task = door.submit(spec={"size": 100})
        await door.until(lambda: door.tasks[task].status is Status.ACTIVE)
        await trio.testing.wait_all_tasks_blocked(0.2)
    ipfs.down = False

    async with alice_at(tmp_path, door, ipfs):
        await door.until_status(task, Status.COMPLETED)
    assert door.tasks[task].completions == 1


async def test_blocks_that_the_root_cannot_read_are_uploaded_again(
    tmp_path: Path, jumping_clock: MockClock, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    class Forgetful(MemoryIpfs):
        def put_blocks(self, blocks: Any) -> None:
            super().put_blocks(blocks)
            if not forgotten:
                forgotten.extend(ipfs.blocks)
                ipfs.blocks.clear()

    forgotten: list[str] = []
    uploader = Forgetful()
    uploader.blocks = ipfs.blocks
    async with alice_at(tmp_path, door, uploader):
        await door.until_status(door.submit(spec={"size": 100}), Status.COMPLETED)
    assert forgotten


async def test_a_result_that_is_neither_with_the_root_nor_here_is_given_back_and_frees_its_slot(
    tmp_path: Path, jumping_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(MemoryIpfs):
        def put_blocks(self, blocks: Any) -> None:
            if lost:
                super().put_blocks(blocks)
            else:
                lost.append(True)  # says that it took them

    def lose(self: Journal, task: str, fence: int) -> Record | None:
        monkeypatch.undo()
        self.forget(task, fence)
        return None

    lost: list[bool] = []
    uploader = Forgetful()
    door = MemoryDoor(clock=trio.current_time, ipfs=uploader)
    monkeypatch.setattr(Journal, "get", lose)
    with trio.fail_after(300):
        async with alice_at(tmp_path, door, uploader, slots=1):
            task = door.submit(spec={"size": 100})
            await door.until_status(task, Status.COMPLETED)
    assert door.tasks[task].completions == 1


async def test_a_deferred_task_is_given_back_uncounted_and_others_run(
    tmp_path: Path, jumping_clock: MockClock, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async def act(task: TaskBody, tools: Tools) -> None:
        if len(alice.played.runs) < 4:
            raise TaskDeferred("robots.txt can't be read", retry_after_s=30.0)

    async with alice_at(tmp_path, door, ipfs) as alice:
        alice.played.act = act
        alice.played.cue.set()
        began = trio.current_time()
        task = await door.until_status(door.submit("played"), Status.COMPLETED)
        took_s = trio.current_time() - began

    assert task.failures == 0
    assert took_s > 3.0  # it wasn't taken again and again in a loop


async def test_unrelated_hosts_that_fail_in_a_row_make_it_stop_and_give_back_everything(
    tmp_path: Path, jumping_clock: MockClock, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async def act(task: TaskBody, tools: Tools) -> None:
        if broken:
            raise TaskFailed("connect", "no route to host")
        await tools.store(b"page")

    broken = True
    async with alice_at(tmp_path, door, ipfs) as alice:
        alice.played.act = act
        alice.played.cue.set()
        tasks = [door.submit("played", url=f"http://{name}.test/") for name in ("one", "two", "three", "four")]
        await door.until(lambda: any(turn.released for turn in door.turns))
        released = next(turn for turn in door.turns if turn.released)
        assert released.free == 0
        assert sum(row.failures for row in door.tasks.values()) <= 3
        await door.until(lambda: door.turns[-1].free == 1)  # on probation

        broken = False
        for task in tasks:
            if door.tasks[task].status is Status.PENDING:
                await door.until_status(task, Status.COMPLETED)


async def test_a_refusal_of_a_site_shows_that_the_network_works_again(
    tmp_path: Path, jumping_clock: MockClock, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async def act(task: TaskBody, tools: Tools) -> None:
        raise TaskFailed(reason, "as the site or the network has it")

    reason = "connect"
    async with alice_at(tmp_path, door, ipfs) as alice:
        alice.played.act = act
        alice.played.cue.set()
        for name in ("one", "two", "three", "four"):
            door.submit("played", url=f"http://{name}.test/")
        await door.until(lambda: any(turn.released for turn in door.turns))
        await door.until(lambda: door.turns[-1].free == 1)  # on probation

        reason = "http_4xx"
        await door.until(lambda: door.turns[-1].free == 3)


async def test_a_pause_is_kept(tmp_path: Path, jumping_clock: MockClock, door: MemoryDoor, ipfs: MemoryIpfs) -> None:
    door.paused = "maintenance"
    async with alice_at(tmp_path, door, ipfs):
        task = door.submit()
        await door.until(lambda: len(door.turns) >= 3)
        assert door.tasks[task].status is Status.PENDING
        door.paused = None
        await door.until_status(task, Status.COMPLETED)


async def test_a_worker_with_want_off_takes_nothing_it_has_not_heard_of(
    tmp_path: Path, jumping_clock: MockClock, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs, want=False):
        task = door.submit()
        await door.until(lambda: len(door.turns) >= 3)
        assert door.tasks[task].status is Status.PENDING


async def test_a_worker_that_was_turned_away_ends(tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs) -> None:
    door.refuse = ErrorBody(code="key_revoked", message="no")
    with pytest.RaisesGroup(pytest.RaisesExc(DoorRefused), flatten_subgroups=True):
        async with alice_at(tmp_path, door, ipfs) as alice:
            await alice.gone.wait()


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_signal_lets_running_tasks_finish_and_takes_no_more(
    tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs) as alice:
        running = [door.submit("played") for _ in range(3)]
        await alice.played.until(lambda: len(alice.played.running) == 3)
        waiting = door.submit()
        await alice.stop.send(None)
        await door.until(lambda: door.turns[-1].free == 0 and door.turns[-1].want == 0)
        alice.played.cue.set()
        await alice.gone.wait()

    assert [door.tasks[task].status for task in running] == [Status.COMPLETED] * 3
    assert door.tasks[waiting].status is Status.PENDING


async def test_an_idle_worker_leaves_at_once(tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs) -> None:
    async with alice_at(tmp_path, door, ipfs) as alice:
        await door.until(lambda: len(door.turns) == 1)
        await alice.stop.send(None)
        with trio.fail_after(WorkerSettings().grace_s - 1):
            await alice.gone.wait()


async def test_after_the_grace_the_rest_is_given_back(
    tmp_path: Path, jumping_clock: MockClock, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs) as alice:
        task = door.submit("played")
        await alice.played.until(lambda: len(alice.played.running) == 1)
        began = trio.current_time()
        await alice.stop.send(None)
        await alice.gone.wait()
        took_s = trio.current_time() - began

    assert 8.0 <= took_s < 9.0
    assert door.tasks[task].status is Status.PENDING
    assert [line.split(",")[1].strip() for line in alice.said if "Finishing" in line][:3] == [
        "8 s left; once more Ctrl-C gives them back now.",
        "7 s left; once more Ctrl-C gives them back now.",
        "6 s left; once more Ctrl-C gives them back now.",
    ]


async def test_the_second_signal_gives_everything_back_now(tmp_path: Path, door: MemoryDoor, ipfs: MemoryIpfs) -> None:
    async with alice_at(tmp_path, door, ipfs) as alice:
        task = door.submit("played")
        await alice.played.until(lambda: len(alice.played.running) == 1)
        await alice.stop.send(None)
        await alice.stop.send(None)
        with trio.fail_after(WorkerSettings().grace_s - 1):
            await alice.gone.wait()

    assert door.tasks[task].status is Status.PENDING
    assert alice.played.cancelled == [task]


async def test_with_the_door_down_it_leaves_all_the_same(
    tmp_path: Path, jumping_clock: MockClock, door: MemoryDoor, ipfs: MemoryIpfs
) -> None:
    async with alice_at(tmp_path, door, ipfs) as alice:
        door.submit("played")
        await alice.played.until(lambda: len(alice.played.running) == 1)
        door.down = True
        began = trio.current_time()
        await alice.stop.send(None)
        await alice.gone.wait()
        assert trio.current_time() - began < 12.0
