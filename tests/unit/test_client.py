"""The client against a door in memory: submit once, watch to the end, hand out nothing unverified."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import httpx
import pytest

from swarm.client import Client
from swarm.content.cid import LEAF_BYTES, build
from swarm.errors import ContentMismatch, DoorRefused, DoorUnreachable, MalformedInput
from swarm.model import Status
from swarm.wire import MAX_SUBMISSION_BYTES, MAX_TASKS_PER_SUBMISSION, NewTask
from tests.fake_door import KEY, FakeDoor, task_id
from tests.patience import PATIENCE_S

BUSY = (503, {"code": "ledger_unavailable", "message": "the disk is full", "retry_after_s": 7.0})


class Time:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def door() -> FakeDoor:
    return FakeDoor()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def client(door: FakeDoor, time: Time) -> Iterator[Client]:
    with Client("http://door", KEY, transport=door.transport(), sleep=time.sleep, clock=lambda: time.now) as opened:
        yield opened


def pages(count: int, *, spec_bytes: int = 0) -> list[NewTask]:
    spec = {"padding": "x" * spec_bytes} if spec_bytes else {}
    return [NewTask(kind="fetch", urls=(f"http://site/{number}",), spec=spec) for number in range(count)]


# ── submit ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_many_tasks_become_one_job_in_chunks_that_the_door_takes(client: Client, door: FakeDoor) -> None:
    progress: list[int] = []

    receipt = client.submit(pages(2_500), name="pages", on_progress=progress.append)

    assert progress == [MAX_TASKS_PER_SUBMISSION, 2 * MAX_TASKS_PER_SUBMISSION, 2_500]
    assert (receipt.created, receipt.duplicates) == (2_500, 0)
    assert list(door.jobs) == [receipt.job]
    assert client.job(receipt.job).total == 2_500
    assert client.job(receipt.job).name == "pages"


def test_big_tasks_are_chunked_by_length(client: Client, door: FakeDoor) -> None:
    receipt = client.submit(pages(100, spec_bytes=60_000))

    assert len(door.requests) == 100 * 60_000 // MAX_SUBMISSION_BYTES + 1
    assert receipt.created == 100


def test_a_task_that_no_door_takes_is_refused_before_it_is_sent(client: Client, door: FakeDoor) -> None:
    with pytest.raises(MalformedInput, match=r"the task of http://site/0 has .* bytes"):
        client.submit(pages(1, spec_bytes=70_000))

    assert door.requests == []


def test_a_submission_that_was_cut_off_goes_on_where_it_stopped(client: Client, door: FakeDoor) -> None:
    class CutOff(Exception):
        pass

    def cut_off(sent: int) -> None:
        if sent == 2_000:
            raise CutOff

    with pytest.raises(CutOff):
        client.submit(pages(2_500), token="t", on_progress=cut_off)
    receipt = client.submit(pages(2_500), token="t")

    assert len(door.jobs) == 1
    assert (receipt.created, receipt.duplicates) == (2_500, 0)


def test_the_same_submission_made_twice_on_purpose_is_two_jobs(client: Client) -> None:
    assert client.submit(pages(1)).job != client.submit(pages(1)).job


def test_tasks_that_the_swarm_knows_are_counted_as_duplicates(client: Client) -> None:
    job = client.submit(pages(3)).job

    receipt = client.submit(pages(5), job=job)

    assert (receipt.job, receipt.created, receipt.duplicates) == (job, 2, 3)


def test_a_submission_without_tasks_is_refused(client: Client) -> None:
    with pytest.raises(MalformedInput, match="without tasks"):
        client.submit([])


# ── a door that falters ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_door_that_never_answered_is_not_waited_for(client: Client, door: FakeDoor, time: Time) -> None:
    door.faults = [httpx.ConnectError("refused")]

    with pytest.raises(DoorUnreachable) as told:
        client.status()

    assert told.value.address == "http://door"
    assert told.value.hint is not None
    assert time.slept == []


def test_a_door_that_goes_away_during_a_submission_is_waited_for(client: Client, door: FakeDoor, time: Time) -> None:
    client.submit(pages(1))
    door.faults = [httpx.ConnectError("refused"), httpx.ReadTimeout("late"), BUSY]

    receipt = client.submit(pages(2))

    assert receipt.created == 2
    assert time.slept[-1] >= 7.0


def test_patience_with_a_door_ends(client: Client, door: FakeDoor, time: Time) -> None:
    client.submit(pages(1))
    door.faults = [httpx.ConnectError("refused")] * 1_000

    with pytest.raises(DoorUnreachable):
        client.job("any")

    assert 50 < time.now <= 60


def test_a_refusal_keeps_its_code_and_sentence(client: Client) -> None:
    with pytest.raises(DoorRefused) as told:
        client.task(task_id(99))

    assert (told.value.code, told.value.status) == ("not_found", 404)


def test_a_server_that_is_no_door_is_told_as_such() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(404, html="<h1>nginx</h1>"))

    with Client("http://door", KEY, transport=transport) as client, pytest.raises(DoorRefused) as told:
        client.status()

    assert told.value.code == "not_a_door"


def test_an_answer_without_an_envelope_is_malformed() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"hello": 1}))

    with Client("http://door", KEY, transport=transport) as client, pytest.raises(MalformedInput, match="swarm's door"):
        client.status()


# ── watch, results ────────────────────────────────────────────────────────────────────────────────────────────────


def test_watching_ends_with_the_last_task(client: Client, door: FakeDoor, time: Time) -> None:
    job = client.submit(pages(3)).job
    left = list(door.tasks)
    looks: list[str] = []

    def one_ends_between_looks(asked: str) -> None:
        looks.append(asked)
        if len(looks) > 1 and left:
            door.finish(left.pop(0))

    door.on_look = one_ends_between_looks

    counts = [view.counts.get("completed", 0) for view in client.watch(job)]

    assert counts == [0, 1, 2, 3]
    assert len(time.slept) == 3


def test_results_come_in_order_with_records_and_reasons(client: Client, door: FakeDoor) -> None:
    job = client.submit(pages(50)).job
    for number, task in enumerate(door.tasks):
        if number == 7:
            door.fail(task, "http_4xx")
        else:
            door.finish(task, {"title": f"page {number}"})

    results = list(client.results(job))

    assert [result.task for result in results] == list(door.tasks)
    assert results[3].records == ({"title": "page 3"},)
    assert results[3].manifest is not None
    assert (results[7].status, results[7].reason, results[7].records) == (Status.FAILED, "http_4xx", ())
    assert not any(result.problem for result in results)


def test_results_page_on_beyond_the_first_page(client: Client, door: FakeDoor) -> None:
    job = client.submit(pages(450)).job
    for task in door.tasks:
        door.fail(task, "dns")

    assert len(list(client.results(job))) == 450
    assert len(list(client.tasks(job=job, status=Status.FAILED))) == 450


def test_a_door_that_is_lost_ends_the_results_by_the_first_fetch_that_gives_up(door: FakeDoor) -> None:
    """The other fetches wait for ever here: nobody waits for them, nor for those not begun."""
    time, over = Time(), threading.Event()
    first: set[int] = set()

    def sleep(seconds: float) -> None:
        if threading.get_ident() in first:
            time.sleep(seconds)
        else:
            over.wait()

    def lose(cid: str) -> None:
        move = first.add if cid == door.tasks[task_id(0)]["result"] else first.discard
        move(threading.get_ident())
        raise httpx.ConnectError("refused")

    opened = Client("http://door", KEY, transport=door.transport(), sleep=sleep, clock=lambda: time.now)
    job = opened.submit(pages(190)).job
    for number, task in enumerate(door.tasks):
        door.finish(task, {"title": f"page {number}"})
    door.on_content = lose
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            list(opened.results(job))
            ended.put(None)
        except DoorUnreachable as fault:
            ended.put(fault)

    with opened:
        threading.Thread(target=read, daemon=True).start()
        try:
            assert isinstance(ended.get(timeout=PATIENCE_S), DoorUnreachable)
        finally:
            over.set()
    assert 50 < time.now <= 60


@pytest.mark.parametrize("what", ["changed", "gone", "another task's", "no manifest"])
def test_a_result_that_is_not_what_its_cid_promises_is_never_handed_out(
    client: Client, door: FakeDoor, what: str
) -> None:
    job = client.submit(pages(2)).job
    bad, good = door.tasks
    cid = door.finish(bad, {"title": "true"})
    other = door.finish(good, {"title": "other"})
    match what:
        case "changed":
            door.blocks[cid] = door.blocks[cid].replace(b"http", b"HTTP")
        case "gone":
            del door.blocks[cid]
        case "another task's":
            door.tasks[bad]["result"] = other
        case "no manifest":
            door.tasks[bad]["result"] = door.store(b"[1, 2]").cid

    first, second = client.results(job)

    assert first.problem
    assert first.records == ()
    assert first.manifest is None
    assert second.records == ({"title": "other"},)


def test_a_big_content_is_read_block_by_block(client: Client, door: FakeDoor) -> None:
    data = bytes(range(256)) * (3 * LEAF_BYTES // 256) + b"tail"
    ref = door.store(data)

    assert client.content(ref.cid) == data


def test_a_content_above_the_cap_is_refused_by_its_first_block(client: Client, door: FakeDoor) -> None:
    ref = door.store(b"x" * (2 * LEAF_BYTES))

    with pytest.raises(MalformedInput, match="at most 1000"):
        client.content(ref.cid, max_bytes=1_000)

    assert len(door.requests) == 1


def test_a_changed_leaf_of_a_big_content_is_found(client: Client, door: FakeDoor) -> None:
    dag = build(b"x" * LEAF_BYTES + b"y" * LEAF_BYTES)
    door.blocks.update(dag.blocks)
    leaf = next(cid for cid in dag.blocks if cid != dag.root)
    door.blocks[leaf] = b"z" * LEAF_BYTES

    with pytest.raises(ContentMismatch):
        client.content(dag.root)
