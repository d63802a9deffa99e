"""What a worker owes the door outlives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from swarm.errors import ConfigurationError
from swarm.turn_wire import Done, Failed
from swarm.worker.journal import FOLD_AFTER, KEEP_S, MAX_KEPT, open_journal
from swarm.worker.records import Record, State

TASK = "0192a000-0000-7000-8000-000000000001"
CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ready(number: int = 1, *, state: State = State.READY) -> Record:
    task = f"0192a000-0000-7000-8000-{number:012d}"
    report = Done(task=task, fence=number, cid=CID, manifest=b"{}")
    return Record(task=task, fence=number, state=state, manifest=b"{}", report=report, ran_s=1.5, size_bytes=100)


async def test_outcomes_are_there_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    failed = Failed(task=TASK, fence=2, reason="dns", detail="no such host")
    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        await journal.put(ready(1))
        await journal.put(Record(task=TASK, fence=2, state=State.READY, report=failed))
        before = journal.records(State.READY)

    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        assert journal.records(State.READY) == before
        assert journal.records(State.STORED) == []
        assert journal.owed_bytes == 100


async def test_an_answered_outcome_is_gone_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        await journal.put(ready(1))
        journal.forget(ready(1).task, 1)
        assert len(journal) == 0

    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        assert len(journal) == 0


def test_an_outcome_survives_a_kill_as_soon_as_it_was_put(tmp_path: Path) -> None:
    program = """
import os, pathlib, sys, trio
from swarm.turn_wire import Done
from swarm.worker.journal import open_journal
from swarm.worker.records import Record, State
async def main():
    async with open_journal(pathlib.Path(sys.argv[1]), clock=lambda: 0.0) as journal:
        await journal.put(Record(task=sys.argv[2], fence=7, state=State.READY, report=Done(
            task=sys.argv[2], fence=7, cid=sys.argv[3])))
        os.kill(os.getpid(), 9)
trio.run(main)
"""
    path = tmp_path / "journal.db"
    ended = subprocess.run([sys.executable, "-c", program, str(path), TASK, CID], check=False)
    assert ended.returncode == -9

    async def read() -> list[Record]:
        async with open_journal(path, clock=lambda: 0.0) as journal:
            return journal.records(State.READY)

    (record,) = trio.run(read)
    assert (record.task, record.fence) == (TASK, 7)


async def test_the_log_doesnt_grow_with_what_was_answered(tmp_path: Path, clock: Clock) -> None:
    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        for number in range(4 * FOLD_AFTER):
            await journal.put(ready(number + 1))
            journal.forget(ready(number + 1).task, number + 1)
        assert (tmp_path / "journal.db-wal").stat().st_size < 3 * FOLD_AFTER * 4096
        assert journal.owed_bytes == 0

    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        assert len(journal) == 0


async def test_a_record_that_is_forgotten_and_put_again_stays(tmp_path: Path, clock: Clock) -> None:
    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        await journal.put(ready(1))
        journal.forget(ready(1).task, 1)
        await journal.put(ready(1))

    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        assert journal.get(ready(1).task, 1) is not None


async def test_a_result_whose_lease_is_over_is_found_by_its_task(tmp_path: Path, clock: Clock) -> None:
    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        assert journal.result_of(ready(1).task) is None
        await journal.keep(ready(1))
        kept = journal.result_of(ready(1).task)

    assert kept is not None
    assert kept.state is State.KEPT


async def test_kept_results_go_after_their_time(tmp_path: Path, clock: Clock) -> None:
    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        await journal.keep(ready(1))
        clock.now += KEEP_S + 1
        await journal.keep(ready(2))

        assert [record.fence for record in journal.records(State.KEPT)] == [2]


async def test_kept_results_are_bounded(tmp_path: Path, clock: Clock) -> None:
    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        async with trio.open_nursery() as nursery:
            for number in range(MAX_KEPT):
                nursery.start_soon(journal.put, ready(number + 1, state=State.KEPT))
        clock.now += 1
        await journal.keep(ready(MAX_KEPT + 1))

        assert len(journal.records(State.KEPT)) == MAX_KEPT
        assert journal.result_of(ready(MAX_KEPT + 1).task) is not None


async def test_owed_outcomes_are_never_dropped_for_their_age(tmp_path: Path, clock: Clock) -> None:
    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        await journal.put(ready(1))
        await journal.put(ready(2, state=State.STORED))
    clock.now += 30 * 86_400

    async with open_journal(tmp_path / "journal.db", clock=clock) as journal:
        assert len(journal) == 2


async def test_a_damaged_journal_is_named_and_left_alone(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database, but long enough to be looked at" * 30)
    before = path.read_bytes()

    with pytest.raises(ConfigurationError, match=r"journal\.db"):
        async with open_journal(path, clock=clock):
            pass

    assert path.read_bytes() == before


async def test_the_journal_is_private(tmp_path: Path, clock: Clock) -> None:
    async with open_journal(tmp_path / "journal.db", clock=clock):
        assert {path.stat().st_mode & 0o077 for path in list(tmp_path.iterdir())} == {0}  # noqa: ASYNC240
