"""Which heard offers a worker asks for, and when."""

from __future__ import annotations

import statistics
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.wire import Announcement, Hello, Offer, Requires
from swarm.worker.choose import MAX_OFFERS, OfferBook, can_do, spread_share

ROOT = "12D3KooWGRUacmEmsDhdzQQ4RKPBoJSvLAjFVXUQzjKs1YeXKp3a"
HELLO = Hello(version="0.1.0", kinds={"noop": "1", "fetch": "2"}, labels=("fast",), region="eu")


def task_id(number: int) -> str:
    return str(uuid.UUID(int=number))


def offer(number: int, *, kind: str = "noop", priority: int = 5, requires: Requires | None = None) -> Offer:
    return Offer(id=task_id(number), kind=kind, host="site", priority=priority, requires=requires or Requires())


def news(
    *numbers: int, seq: int = 1, epoch: int = 1, closed: tuple[int, ...] = (), spread_s: float = 0.0, root: str = ROOT
) -> Announcement:
    return Announcement(
        v=1,
        root=root,
        epoch=epoch,
        seq=seq,
        offers=tuple(offer(number) for number in numbers),
        closed=tuple(task_id(number) for number in closed),
        spread_s=spread_s,
    )


def book() -> OfferBook:
    return OfferBook(HELLO, instance="alice")


def test_an_offer_is_asked_for_once() -> None:
    offers = book()
    offers.hear(news(1), 0.0)

    assert offers.take(0.0, limit=8) == (task_id(1),)
    assert offers.take(9.0, limit=8) == ()


def test_no_more_are_asked_for_than_there_are_free_slots() -> None:
    offers = book()
    offers.hear(news(*range(10)), 0.0)

    assert len(offers.take(0.0, limit=3)) == 3
    assert offers.take(0.0, limit=0) == ()
    assert len(offers) == 7


def test_an_offer_waits_its_share_of_the_spread() -> None:
    offers = book()
    offers.hear(news(1, spread_s=10.0), 100.0)
    due_at = 100.0 + 10.0 * spread_share("alice", task_id(1))

    assert offers.take(due_at - 0.001, limit=8) == ()
    assert offers.due_in_s(100.0) == pytest.approx(due_at - 100.0)
    assert offers.take(due_at, limit=8) == (task_id(1),)


def test_the_most_urgent_is_asked_for_first() -> None:
    offers = book()
    urgent = Announcement(v=1, root=ROOT, epoch=1, seq=1, offers=(offer(1, priority=1), offer(2, priority=9)))
    offers.hear(urgent, 0.0)

    assert offers.take(0.0, limit=1) == (task_id(2),)


def test_what_is_closed_is_dropped_and_may_be_offered_again() -> None:
    offers = book()
    offers.hear(news(1, 2), 0.0)
    offers.hear(news(seq=2, closed=(1,)), 0.0)
    assert offers.take(0.0, limit=8) == (task_id(2),)

    offers.hear(news(1, seq=3), 0.0)
    assert offers.take(0.0, limit=8) == (task_id(1),)


@pytest.mark.parametrize(
    "unfit",
    [
        offer(1, kind="crawl"),
        offer(1, requires=Requires(labels=("gpu",))),
        offer(1, requires=Requires(region="us")),
        offer(1, requires=Requires(versions={"fetch": "3"})),
    ],
)
def test_what_the_root_would_certainly_refuse_is_not_asked_for(unfit: Offer) -> None:
    assert not can_do(HELLO, unfit)
    offers = book()
    offers.hear(Announcement(v=1, root=ROOT, epoch=1, seq=1, offers=(unfit,)), 0.0)
    assert len(offers) == 0


def test_what_fits_is_asked_for() -> None:
    fit = Requires(labels=("fast",), region="eu", versions={"fetch": "2"})
    assert can_do(HELLO, offer(1, kind="fetch", requires=fit))


def test_a_task_in_hand_is_not_asked_for() -> None:
    offers = book()
    offers.hear(news(1), 0.0, held={task_id(1)})
    assert len(offers) == 0


def test_a_gap_and_a_new_epoch_are_told() -> None:
    offers = book()
    assert not offers.hear(news(seq=5), 0.0)  # the first one heard is no gap
    assert not offers.hear(news(seq=6), 0.0)
    assert offers.hear(news(seq=8), 0.0)
    assert offers.hear(news(seq=1, epoch=2), 0.0)
    assert not offers.hear(news(seq=2, epoch=2), 0.0)


def test_each_root_counts_for_itself() -> None:
    other = "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X"
    offers = book()
    offers.hear(news(seq=5), 0.0)
    assert not offers.hear(news(seq=50, root=other), 0.0)
    assert not offers.hear(news(seq=6), 0.0)


def test_offers_heard_before_a_turn_that_got_less_are_forgotten() -> None:
    offers = book()
    offers.hear(news(1), 1.0)
    offers.hear(news(2, seq=2), 2.0)

    offers.forget_heard_until(1.0)

    assert offers.take(9.0, limit=8) == (task_id(2),)


def test_the_book_is_bounded_and_the_oldest_go_first() -> None:
    offers = book()
    for seq in range(MAX_OFFERS // 100 + 2):
        offers.hear(news(*range(seq * 100, seq * 100 + 100), seq=seq + 1), float(seq))

    assert len(offers) == MAX_OFFERS
    assert task_id(0) not in offers.take(1e9, limit=MAX_OFFERS)


def test_shares_are_even_and_differ_between_workers() -> None:
    shares = [spread_share(f"instance-{number}", task_id(1)) for number in range(2_000)]

    assert statistics.mean(shares) == pytest.approx(0.5, abs=0.03)
    assert statistics.quantiles(shares, n=4) == pytest.approx([0.25, 0.5, 0.75], abs=0.05)


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_share_is_a_number_from_0_to_1_and_always_the_same(instance: str, task: str) -> None:
    share = spread_share(instance, task)
    assert 0.0 <= share < 1.0
    assert share == spread_share(instance, task)
