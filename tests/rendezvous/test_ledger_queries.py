"""What can be read of the ledger."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import uuid6

from rendezvous.ledger.act_ops import Enrol, PutInvite, PutKey, Revoke, Revoked
from rendezvous.ledger.ops import LeaseRef, RemoveWorker, SeenWorker, SeeWorkers, Sweep
from rendezvous.ledger.queries import LedgerReader
from swarm.errors import MalformedInput
from swarm.model import Refusal, RefusalCode, Role, Status
from swarm.wire import Requires
from tests.rendezvous.ledger_world import ALICE, BOB, CID, World, new_task


@pytest.fixture
def world(database: str) -> Iterator[World]:
    world = World(database)
    yield world
    world.close()


def walk(reader: LedgerReader, **asked: object) -> list[str]:
    """All ids of a paged list."""
    found: list[str] = []
    cursor = None
    while True:
        page = reader.tasks(cursor=cursor, limit=3, **asked)  # type: ignore[arg-type]
        found.extend(task.id for task in page.items)
        cursor = page.next
        if cursor is None:
            return found


def test_pages_give_each_task_once_in_order(world: World) -> None:
    jobs = [str(uuid6.uuid7()) for _ in range(3)]
    tasks = {job: world.submit(*(new_task() for _ in range(7)), job=job) for job in jobs}
    late = world.submit(new_task(), job=jobs[0], job_named=True)
    foreign = world.submit(new_task(), owner="another")

    assert walk(world.reader, job=jobs[1]) == tasks[jobs[1]]
    assert walk(world.reader, owner="owner") == [*tasks[jobs[0]], *late, *tasks[jobs[1]], *tasks[jobs[2]]]
    assert walk(world.reader, owner="another") == foreign
    assert walk(world.reader) == [*walk(world.reader, owner="owner"), *foreign]
    assert walk(world.reader, owner="another", job=jobs[0]) == []


def test_tasks_are_found_by_status(world: World) -> None:
    tasks = world.submit(*(new_task() for _ in range(6)))
    world.cancel(*tasks[1:5])
    assert walk(world.reader, owner="owner", status=Status.CANCELLED) == tasks[1:5]
    assert walk(world.reader, owner="owner", status=Status.FAILED) == []


@pytest.mark.parametrize("cursor", ["", "x", "1", "1.2.3", "-1.2", "1.²", "9" * 30 + ".1"])
def test_a_cursor_of_somebody_elses_making_is_malformed(world: World, cursor: str) -> None:
    with pytest.raises(MalformedInput):
        world.reader.tasks(cursor=cursor)


def test_jobs_come_newest_first_with_their_progress(world: World) -> None:
    jobs = [str(uuid6.uuid7()) for _ in range(5)]
    for job in jobs:
        world.submit(new_task(), new_task(not_before_s=9.0), job=job, name=f"job {job[-4:]}")
    first = world.reader.jobs("owner", limit=3)
    rest = world.reader.jobs("owner", cursor=first.next, limit=3)
    assert [job.id for job in (*first.items, *rest.items)] == jobs[::-1]
    assert rest.next is None
    assert first.items[0].counts == {"pending": 1, "waiting": 1}
    assert (first.items[0].total, first.items[0].done) == (2, False)
    assert world.reader.jobs("another").items == ()


def test_another_owners_task_and_job_are_not_there(world: World) -> None:
    job = str(uuid6.uuid7())
    (task,) = world.submit(new_task(), job=job)
    assert world.reader.task(task, "another") is None
    assert world.reader.job(job, "another") is None
    assert world.reader.task(task, "owner") is not None


def test_the_stream_goes_on_after_any_event_and_shows_an_owner_its_own(world: World) -> None:
    world.one()
    world.submit(new_task(), owner="another")
    (lease,) = world.claim(ALICE)
    everything = world.reader.events_after(0)
    assert [event.id for event in everything] == [1, 2, 3]
    assert [event.id for event in world.reader.events_after(1)] == [2, 3]
    assert [event.id for event in world.reader.events_after(0, "owner")] == [1, 3]
    assert [event.id for event in world.reader.events_after(0, limit=2)] == [1, 2]
    assert (everything[2].who, everything[2].fence) == (ALICE.address, lease.fence)
    assert everything[0].who == "owner"
    assert world.reader.last_event_id() == 3


def test_a_task_shows_what_was_asked_and_who_has_it(world: World) -> None:
    requires = Requires(region="eu", labels=("b", "a"))
    task = world.one(requires=requires, reward_wei=10**30, spec={"x": 1})
    view = world.task(task)
    assert view.requires == Requires(region="eu", labels=("a", "b"))
    assert (view.reward_wei, view.spec, view.host, view.assignee) == (str(10**30), {"x": 1}, "site.test", None)


def test_a_lease_shows_what_is_left_of_it(world: World) -> None:
    task = world.one()
    world.claim(ALICE)
    world.now += 20.0
    assert world.task(task).lease_s == 40.0
    assert world.reader.leases_of(ALICE) == [LeaseRef(task, 1)]
    assert world.reader.leases_of(BOB) == []


def test_what_waits_is_exported_as_it_was_submitted(world: World) -> None:
    world.one(priority=8, requires=Requires(region="eu"), spec={"a": [1]})
    world.one(not_before_s=10.0)
    world.one()
    world.claim(ALICE)
    exported, more = world.reader.export_pending(0, now=world.now)
    assert more is None
    assert len(exported) == 2
    assert (exported[0]["priority"], exported[0]["spec"], exported[0]["owner"]) == (8, {"a": [1]}, "owner")
    assert exported[0]["requires"] == Requires(region="eu")
    assert (exported[1]["not_before_s"], exported[1]["expires_in_s"]) == (10.0, 604_800.0)
    assert world.reader.ready_by_host(5) == [("site.test", 1)]
    assert world.reader.existing([exported[0]["id"], "unknown"]) == {exported[0]["id"]}


def test_results_and_inline_manifests_are_found(world: World) -> None:
    world.one()
    (lease,) = world.claim(ALICE)
    world.complete(ALICE, lease, manifest=b"\0\xff")
    assert list(world.reader.result_cids()) == [CID]
    assert world.reader.manifest(CID) == b"\0\xff"
    assert world.reader.manifest("unknown") is None


# ── keys and workers ──────────────────────────────────────────────────────────────────────────────────────────────


def enrolment(**changes: object) -> Enrol:
    values = {
        "challenge": "challenge",
        "worker": ALICE,
        "payout": BOB.address,
        "peer_id": "12D3KooW",
        "key_digest": b"key",
        "invite_digest": None,
    }
    return Enrol(**{**values, **changes})  # type: ignore[arg-type]


def test_a_key_is_found_by_its_hash_and_a_new_one_replaces_it(world: World) -> None:
    assert world.do(PutKey(digest=b"old", role=Role.REQUESTER, owner="carol")) is False
    assert world.do(PutKey(digest=b"new", role=Role.REQUESTER, owner="carol")) is True
    assert world.do(PutKey(digest=b"other role", role=Role.OPERATOR, owner="carol")) is False
    rows = {digest: world.reader.key(digest) for digest in (b"old", b"new", b"other role")}
    assert {digest: row.revoked for digest, row in rows.items() if row} == {
        b"old": True,
        b"new": False,
        b"other role": False,
    }
    assert world.reader.key(b"unknown") is None
    assert world.do(Revoke(owner="carol", who="operator", why="left")) == Revoked(keys=2)
    assert world.do(Revoke(owner="carol", who="operator", why="left")) == Revoked(keys=0)


def test_an_enrolment_binds_the_payout_address(world: World) -> None:
    assert world.do(enrolment()) is None
    row = world.reader.key(b"key")
    assert row is not None
    assert (row.role, row.owner, row.instance, row.payout) == (Role.WORKER, ALICE.address, ALICE.instance, BOB.address)


def test_a_challenge_serves_once_an_address(world: World) -> None:
    world.do(enrolment())
    again = world.do(enrolment(key_digest=b"another"))
    assert isinstance(again, Refusal)
    assert again.code is RefusalCode.CHALLENGE_USED
    assert world.do(enrolment(worker=BOB, key_digest=b"bob's")) is None


def test_an_invite_is_used_up_and_runs_out(world: World) -> None:
    world.do(PutInvite(digest=b"invite", uses=1, expires_in_s=100.0))
    assert world.do(enrolment(invite_digest=b"invite")) is None
    second = world.do(enrolment(worker=BOB, key_digest=b"b", invite_digest=b"invite"))
    assert isinstance(second, Refusal)
    assert second.code is RefusalCode.INVITE_INVALID
    world.do(PutInvite(digest=b"late", uses=5, expires_in_s=100.0))
    world.now += 100.0
    assert isinstance(world.do(enrolment(challenge="2", key_digest=b"c", invite_digest=b"late")), Refusal)


def test_a_refused_invite_takes_no_key_away(world: World) -> None:
    world.do(enrolment())
    world.do(enrolment(challenge="2", key_digest=b"second", invite_digest=b"no invite"))
    row = world.reader.key(b"key")
    assert row is not None
    assert not row.revoked


def test_workers_are_remembered_until_they_are_removed(world: World) -> None:
    seen = SeenWorker(
        worker=ALICE, payout=BOB.address, peer_id=None, boot="boot-boot", hello="{}", stats="{}", at=world.now
    )
    world.do(SeeWorkers(seen=(seen,)))
    assert world.reader.workers() == [seen]
    world.do(RemoveWorker(worker=ALICE, who="operator"))
    assert world.reader.workers() == []


def test_what_is_remembered_for_a_while_is_forgotten(world: World) -> None:
    world.do(enrolment())
    world.do(PutInvite(digest=b"invite", uses=1, expires_in_s=100.0))
    world.submit(new_task(), idempotency_key="k", body_digest=b"d")
    world.now += 8 * 86_400.0
    world.do(Sweep())
    assert world.value("SELECT count(*) FROM challenges") == 0
    assert world.value("SELECT count(*) FROM invites") == 0
    assert world.value("SELECT count(*) FROM idempotency") == 0


def test_the_oldest_ready_task_is_told_whatever_was_finished_before_it(world: World) -> None:
    assert world.reader.oldest_ready_since() is None
    began = world.now
    world.one(host="one.test")
    world.later(10.0)
    world.one(host="two.test")
    assert world.reader.oldest_ready_since() == began
    assert len(world.claim(ALICE, 2)) == 2
    assert world.reader.oldest_ready_since() is None
    world.later(10.0)
    world.one(host="one.test")
    assert world.reader.oldest_ready_since() == world.now
