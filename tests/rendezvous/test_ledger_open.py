"""The open ledger: one writer thread under an event loop, readers beside it, sweeps, the archive."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uuid6
from structlog.testing import capture_logs

from rendezvous.ledger import statements
from rendezvous.ledger.ledger import Ledger, LedgerClock, open_ledger
from rendezvous.ledger.ops import (
    Cancel,
    DoneItem,
    LedgerEvent,
    SeenWorker,
    SeeWorkers,
    SetHostPace,
    Submit,
    SubmitResult,
    TakeTurn,
)
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerRef
from swarm.errors import ClosedError, LedgerUnavailable
from swarm.model import Move, Status
from tests.patience import PATIENCE_S
from tests.rendezvous.ledger_world import ALICE, CID, FAST, NOOP, World, new_task


class Clock:
    """Ledger time in the hands of a test."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def submission(*tasks: Any, job: str | None = None) -> Submit:
    return Submit(owner="owner", job=job or str(uuid6.uuid7()), job_named=False, name=None, tasks=tasks)


def turn(worker: WorkerRef = ALICE, **changes: Any) -> TakeTurn:
    return TakeTurn(worker=worker, boot="boot-boot", facts=NOOP, partial=True, **changes)


@asynccontextmanager
async def opened(location: Path | str, **options: Any) -> AsyncIterator[Ledger]:
    async with (
        asyncio.timeout(PATIENCE_S),
        open_ledger(str(location), options.pop("settings", FAST), **options) as ledger,
    ):
        yield ledger


async def event_of(ledger: Ledger, move: Move) -> LedgerEvent:
    """Wait for the next event of a kind."""
    found: asyncio.Future[LedgerEvent] = asyncio.get_running_loop().create_future()

    def look(events: Sequence[LedgerEvent]) -> None:
        for event in events:
            if event.move is move and not found.done():
                found.set_result(event)

    stop = ledger.subscribe(look)
    try:
        return await found
    finally:
        stop()


async def test_two_hundred_callers_at_once_are_all_answered(database: str) -> None:
    heard: list[LedgerEvent] = []
    async with opened(database) as ledger:
        ledger.subscribe(heard.extend)

        async def life(worker: WorkerRef) -> None:
            await ledger.call(submission(new_task()))
            (grant,) = (await ledger.call(turn(worker, want=1))).granted
            done = DoneItem(task=grant.task.id, fence=grant.fence, cid=CID, size_bytes=1)
            (ended,) = (await ledger.call(turn(worker, done=(done,)))).ended
            assert ended.outcome is Status.COMPLETED

        await asyncio.gather(*(life(WorkerRef(f"0x{n:040d}", "instance")) for n in range(200)))
        assert (await ledger.read(lambda reader: reader.counts()))[Status.COMPLETED] == 200
    assert [event.id for event in heard] == list(range(1, 601))


async def test_what_a_call_did_is_readable_when_it_returns_and_after_reopening(database: str) -> None:
    async with opened(database) as ledger:
        answer = await ledger.call(submission(new_task()))
        assert isinstance(answer, SubmitResult)
        task = answer.tasks[0][0]
        assert await ledger.read(lambda reader: reader.task(task)) is not None
        before = ledger.now()
    async with opened(database) as ledger:
        view = await ledger.read(lambda reader: reader.task(task))
        assert view is not None
        assert view.status == "pending"
        assert ledger.now() >= before


async def test_another_pace_of_hosts_holds_for_those_that_are_known_but_for_slowed_ones(database: str) -> None:
    clock = Clock()
    hosts = ["fast.example", "slowed.example"] * 8
    async with opened(database, settings=LedgerSettings(host_rate_per_s=0.01, host_burst=5.0), clock=clock) as ledger:
        await ledger.call(submission(*(new_task(host=host) for host in hosts)))
        await ledger.call(SetHostPace(host="slowed.example", rate_per_s=0.01, burst=1.0))
        assert len((await ledger.call(turn(ALICE, want=16))).granted) == 5 + 1
    clock.now += 1.0
    async with opened(
        database, settings=LedgerSettings(host_rate_per_s=1_000, host_burst=1_000.0), clock=clock
    ) as ledger:
        clock.now += 1.0
        assert len((await ledger.call(turn(ALICE, want=16))).granted) == 3
        clock.now += 100.0
        assert len((await ledger.call(turn(ALICE, want=16))).granted) == 1


async def test_listeners_hear_of_a_group_before_its_callers_go_on(database: str) -> None:
    async with opened(database) as ledger:
        heard: list[str] = []
        stop = ledger.subscribe(lambda events: heard.extend(event.task for event in events))
        answer = await ledger.call(submission(new_task()))
        assert isinstance(answer, SubmitResult)
        assert heard == [answer.tasks[0][0]]
        stop()
        await ledger.call(submission(new_task()))
        assert len(heard) == 1


async def test_a_listener_that_breaks_keeps_nobody_from_an_answer(database: str) -> None:
    def broken(_events: Sequence[LedgerEvent]) -> None:
        raise ValueError("a defect")

    async with opened(database) as ledger:
        ledger.subscribe(broken)
        with capture_logs() as logs:
            assert isinstance(await ledger.call(submission(new_task())), SubmitResult)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["ledger_listener_failed"]


async def test_a_caller_that_gives_up_leaves_the_others_alone(database: str) -> None:
    async with opened(database) as ledger:
        calls = [asyncio.create_task(ledger.call(submission(new_task()))) for _ in range(10)]
        await asyncio.sleep(0)
        calls[3].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[3], asyncio.CancelledError)
        assert all(isinstance(answer, SubmitResult) for n, answer in enumerate(answers) if n != 3)


async def test_what_is_due_happens_without_being_asked(database: str) -> None:
    async with opened(database) as ledger:
        woken = asyncio.create_task(event_of(ledger, Move.WAKE))
        await asyncio.sleep(0)
        await ledger.call(submission(new_task(not_before_s=0.05)))
        assert (await woken).to is Status.PENDING


async def test_a_clock_that_leaps_ahead_reaps_no_lease(database: str) -> None:
    """After a stall the leases are re-armed before anything is reaped; an hour's leap looks like a stall."""
    clock = Clock()
    async with opened(database, clock=clock) as ledger:
        await ledger.call(submission(new_task(), new_task(not_before_s=100.0)))
        (grant,) = (await ledger.call(turn(want=1))).granted
        with capture_logs() as logs:
            woken = asyncio.create_task(event_of(ledger, Move.WAKE))
            await asyncio.sleep(0)
            clock.now += 3600.0
            await woken  # the sweep that woke it didn't reap the lease
        assert [line["event"] for line in logs] == ["leases_rearmed"]
        done = DoneItem(task=grant.task.id, fence=grant.fence, cid=CID, size_bytes=1)
        assert (await ledger.call(turn(done=(done,)))).ended[0].outcome is Status.COMPLETED


async def test_leases_survive_a_root_that_was_down_for_long(database: str) -> None:
    clock = Clock()
    async with opened(database, clock=clock) as ledger:
        await ledger.call(submission(new_task(), new_task(not_before_s=100.0)))
        (grant,) = (await ledger.call(turn(want=1))).granted
    clock.now += 3600.0
    async with opened(database, clock=clock) as ledger:
        done = DoneItem(task=grant.task.id, fence=grant.fence, cid=CID, size_bytes=1)
        while (await ledger.read(lambda reader: reader.counts()))[Status.WAITING]:
            await ledger.call(turn())  # until the first sweep has been
        assert (await ledger.call(turn(done=(done,)))).ended[0].outcome is Status.COMPLETED


async def test_a_locked_database_is_waited_for_and_the_writer_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    async with opened(path, busy_timeout_ms=10) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with capture_logs(), pytest.raises(LedgerUnavailable, match="locked"):
            await ledger.call(submission(new_task()))
        assert await ledger.read(lambda reader: reader.last_event_id()) == 0  # readers go on
        other.execute("ROLLBACK")
        other.close()
        assert isinstance(await ledger.call(submission(new_task())), SubmitResult)


async def test_a_whole_job_is_cancelled_in_batches(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(database) as ledger:
        job = str(uuid6.uuid7())
        for _ in range(3):
            await ledger.call(submission(*(new_task() for _ in range(statements.BATCH // 2)), job=job))
        ended = await ledger.call(Cancel(owner="owner", who="owner", job=job))
        assert len({item.task for item in ended}) == len(ended) == 3 * statements.BATCH // 2
        view = await ledger.read(lambda reader: reader.job(job))
        assert view is not None
        assert view.done


async def test_a_closed_ledger_says_so(database: str) -> None:
    async with opened(database) as ledger:
        pass
    with pytest.raises(ClosedError):
        await ledger.call(submission(new_task()))
    with pytest.raises(ClosedError):
        await ledger.read(lambda reader: reader.counts())


async def test_a_ledger_that_is_not_there_is_an_error_with_its_address(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="nowhere"):
        async with opened(tmp_path / "nowhere" / "ledger.sqlite"):
            pass


async def test_finished_tasks_are_archived_after_thirty_days_with_their_history(tmp_path: Path, database: str) -> None:
    clock = Clock()
    archive = tmp_path / "archive"
    async with opened(database, clock=clock) as ledger:
        old = await ledger.call(submission(new_task(meta={"row": 1}), new_task(dedupe_ttl_s=1e7)))
        for grant in (await ledger.call(turn(want=2))).granted:
            done = DoneItem(task=grant.task.id, fence=grant.fence, cid=CID, size_bytes=1, manifest=b"the manifest")
            await ledger.call(turn(done=(done,)))
    assert isinstance(old, SubmitResult)
    clock.now += 31 * 86_400.0
    keeping = LedgerSettings(archive_directory=archive)
    async with opened(database, clock=clock, settings=keeping) as ledger:
        new = await ledger.call(submission(new_task()))
        assert isinstance(new, SubmitResult)
        while await ledger.read(lambda reader: reader.task(old.tasks[0][0])) is not None:
            pass
        assert await ledger.read(lambda reader: reader.task(new.tasks[0][0])) is not None
        # its dedupe key is remembered for longer, so it stays
        assert await ledger.read(lambda reader: reader.task(old.tasks[1][0])) is not None
        assert (await ledger.read(lambda reader: reader.counts()))[Status.COMPLETED] == 1
        last = await ledger.read(lambda reader: reader.last_event_id())
    (file,) = archive.iterdir()
    (line,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert line["task"]["id"] == old.tasks[0][0]
    assert line["task"]["meta"] == {"row": 1}
    assert [event["move"] for event in line["events"]] == ["submitted", "granted", "completed"]
    assert base64.b64decode(line["manifest"]) == b"the manifest"
    assert last == 7  # numbers of events are never used twice


def test_ledger_time_follows_a_steady_clock_and_never_begins_in_the_past() -> None:
    clock = LedgerClock(not_before=9e9)
    first = clock()
    assert first >= 9e9
    assert clock() >= first


def test_the_clock_of_a_root_that_lies_behind_another_ones_follows_it_and_never_goes_back() -> None:
    steady_s = 100.0
    clock = LedgerClock(wall=5_000.0, steady_s=lambda: steady_s)
    clock.follow(8_600.0)
    assert clock() == 8_600.0
    clock.follow(8_000.0)
    steady_s += 1.0
    assert clock() == 8_601.0


def test_ledger_time_begins_no_earlier_than_a_workers_last_turn(database: str) -> None:
    world = World(database)
    assert world.reader.last_moment() == 0.0
    world.one()
    assert world.reader.last_moment() == world.now
    ref, later = WorkerRef("0x" + "e" * 40, "instance"), world.now + 500.0
    seen = SeenWorker(worker=ref, payout=ref.address, peer_id=None, boot="boot", hello="", stats="", at=later)
    world.do(SeeWorkers(seen=(seen,)))
    assert world.reader.last_moment() == later
    world.close()
