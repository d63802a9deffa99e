"""What the root says over gossip: little, in time, and never more than can soon be taken."""

from __future__ import annotations

import asyncio

import attrs
import pytest
from uuid6 import uuid7

from rendezvous.announce import GATHER_S, HEARTBEAT_S, OFFER_LIFE_S, WELCOME_S, Announcer, announce
from rendezvous.ledger.ops import LedgerEvent
from swarm.model import Actor, Move, Status
from swarm.wire import MAX_GOSSIP_BYTES, MAX_OFFERS_PER_MESSAGE, Announcement, Requires, decode

ROOT = "12D3KooW" + "r" * 44


@attrs.define
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@attrs.define
class Crowd:
    """Workers that all may have everything but what asks for ``region``."""

    slots: int = 8
    live: int = 1
    spread: float = 0.0
    newcomer: bool = False

    def free_slots(self, kind: str, requires: Requires) -> int:
        return 0 if requires.region else self.slots

    def live_count(self) -> int:
        return self.live

    def has_newcomer(self) -> bool:
        return self.newcomer

    def spread_s(self) -> float:
        return self.spread


def event(
    task: str | None = None,
    *,
    source: Status | None = None,
    to: Status = Status.PENDING,
    requires: Requires = Requires(),  # noqa: B008 -- frozen
    kind: str = "noop",
) -> LedgerEvent:
    return LedgerEvent(
        id=1, task=task or str(uuid7()), seq=1, move=Move.SUBMIT, source=source, to=to, by=Actor.REQUESTER, who="alice",
        worker=None, fence=None, reason=None, detail=None, at=0.0, job=str(uuid7()), owner="alice", kind=kind,
        host="h.example", priority=5, tier="bulk", reward_wei=0, requires=requires,
    )  # fmt: skip


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


@pytest.fixture
def announcer(clock: Clock, crowd: Crowd) -> Announcer:
    return Announcer(crowd, root=ROOT, epoch=7, clock=clock)


def said(announcer: Announcer) -> Announcement:
    return decode(announcer.message(), Announcement, max_bytes=MAX_GOSSIP_BYTES)


def test_a_new_task_is_announced_at_once_when_idle(announcer: Announcer) -> None:
    announcer.message()
    announcer._clock.now += 1  # type: ignore[attr-defined]
    announcer.take([event("0" * 36)])

    assert announcer.due_in_s() == 0
    assert [offer.id for offer in said(announcer).offers] == ["0" * 36]


def test_what_follows_within_the_gathering_time_waits_for_its_end(announcer: Announcer, clock: Clock) -> None:
    announcer.message()
    announcer.take([event()])
    clock.now += GATHER_S / 2

    assert announcer.due_in_s() == pytest.approx(GATHER_S / 2)


def test_no_more_is_announced_than_twice_the_free_slots(announcer: Announcer) -> None:
    announcer.take([event() for _ in range(1000)])
    assert len(said(announcer).offers) == 16

    announcer.take([event() for _ in range(10)])
    assert said(announcer).offers == ()


def test_closing_makes_room_for_more(announcer: Announcer) -> None:
    first = event()
    announcer.take([first, *(event() for _ in range(15))])
    said(announcer)
    announcer.take([event(first.task, source=Status.PENDING, to=Status.ACTIVE)])
    announcer.take([event(), event()])

    message = said(announcer)
    assert message.closed == (first.task,)
    assert len(message.offers) == 1


def test_only_what_was_announced_is_closed(announcer: Announcer) -> None:
    events = [event() for _ in range(20)]
    announcer.take(events)
    said(announcer)
    announcer.take([event(one.task, source=Status.PENDING, to=Status.ACTIVE) for one in events])

    assert len(said(announcer).closed) == 16


def test_a_task_granted_before_its_offer_left_is_never_mentioned(announcer: Announcer) -> None:
    one = event()
    announcer.take([one])
    announcer.take([event(one.task, source=Status.PENDING, to=Status.ACTIVE)])

    message = said(announcer)
    assert message.offers == ()
    assert message.closed == ()


def test_a_task_that_comes_back_is_offered_again_and_not_closed(announcer: Announcer) -> None:
    one = event()
    announcer.take([one])
    said(announcer)
    announcer.take([event(one.task, source=Status.PENDING, to=Status.ACTIVE)])
    announcer.take([event(one.task, source=Status.ACTIVE, to=Status.PENDING)])

    message = said(announcer)
    assert [offer.id for offer in message.offers] == [one.task]
    assert message.closed == ()


def test_tasks_that_nobody_here_may_have_are_not_announced(announcer: Announcer) -> None:
    announcer.take([event(requires=Requires(region="mars"))])
    assert said(announcer).offers == ()


def test_offers_that_nobody_takes_do_not_silence_the_next_ones(announcer: Announcer, clock: Clock) -> None:
    announcer.take([event() for _ in range(16)])
    said(announcer)
    clock.now += OFFER_LIFE_S
    announcer.take([event()])

    assert len(said(announcer).offers) == 1


def test_a_message_never_holds_more_than_a_hundred_offers_or_60_kb(announcer: Announcer, crowd: Crowd) -> None:
    crowd.slots = 1000
    fat = Requires(labels=tuple(f"{number:02}" + "x" * 60 for number in range(16)))
    announcer.take([event() for _ in range(150)])
    announcer.take([event(requires=fat) for _ in range(150)])

    sizes = []
    while announcer._offers:
        body = announcer.message()
        assert len(body) <= MAX_GOSSIP_BYTES
        sizes.append(len(decode(body, Announcement).offers))
    assert sum(sizes) == 300
    assert max(sizes) == MAX_OFFERS_PER_MESSAGE


def test_numbers_rise_strictly_and_the_fleet_is_told_its_size(announcer: Announcer, crowd: Crowd) -> None:
    crowd.live, crowd.spread = 9, 0.3
    first, second = said(announcer), said(announcer)

    assert (first.epoch, first.seq) < (second.epoch, second.seq)
    assert (second.live_workers, second.spread_s, second.root) == (9, 0.3, ROOT)


def test_an_idle_root_speaks_every_ten_seconds(announcer: Announcer, clock: Clock) -> None:
    announcer.message()
    clock.now += HEARTBEAT_S - 1
    assert announcer.due_in_s() == pytest.approx(1)
    clock.now += 1
    assert announcer.due_in_s() == 0


async def test_the_loop_sends_when_it_is_woken(crowd: Crowd) -> None:
    loop = asyncio.get_running_loop()
    announcer = Announcer(crowd, root=ROOT, epoch=7, clock=loop.time)
    woken = asyncio.Event()
    sent: asyncio.Queue[bytes] = asyncio.Queue()
    sending = asyncio.create_task(announce(announcer, woken, sent.put_nowait))
    async with asyncio.timeout(HEARTBEAT_S / 2):
        assert decode(await sent.get(), Announcement).offers == ()
        announcer.take([event()])
        woken.set()
        assert len(decode(await sent.get(), Announcement).offers) == 1
    sending.cancel()
    await asyncio.wait([sending])


def test_a_newcomer_hears_its_first_word_within_a_second(clock: Clock) -> None:
    crowd = Crowd()
    announcer = Announcer(crowd, root=ROOT, epoch=7, clock=clock)
    announcer.message()
    assert announcer.due_in_s() == HEARTBEAT_S

    crowd.newcomer = True
    assert announcer.due_in_s() == WELCOME_S
    clock.now += WELCOME_S
    assert announcer.due_in_s() == 0
