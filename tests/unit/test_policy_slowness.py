"""May a site that answers slowly take another of a worker's slots?"""

from __future__ import annotations

import pytest

from rendezvous.policy.slowness import check_slow, is_slow, next_share, slots_for_slow
from swarm.model import RefusalCode


def share_after(*tasks: bool, share: float = 0.0) -> float:
    """The share of slow ones after these tasks; True is slow."""
    for slow in tasks:
        share = next_share(share, slow=slow)
    return share


def test_a_site_is_slow_after_a_burst_of_slow_tasks_and_fast_again_after_as_many_fast_ones() -> None:
    assert not is_slow(share_after(*[True] * 4))
    slow = share_after(*[True] * 5)
    assert is_slow(slow)
    assert not is_slow(share_after(False, share=slow))
    hung = share_after(*[True] * 100)
    assert is_slow(share_after(*[False] * 4, share=hung))
    assert not is_slow(share_after(*[False] * 5, share=hung))


def test_a_site_of_which_half_of_the_tasks_are_slow_isnt_mostly_slow() -> None:
    assert [is_slow(share) for share in (0.5, 0.501)] == [False, True]


def test_a_site_that_hangs_now_and_then_is_never_slow() -> None:
    share = 0.0
    for number in range(1_000):
        share = next_share(share, slow=number % 4 == 0)
        assert not is_slow(share)


def test_what_was_slow_once_is_forgotten_in_the_end() -> None:
    assert share_after(True, *[False] * 30) == 0.0


@pytest.mark.parametrize(("slots", "most"), [(8, 4), (4, 2), (2, 1), (512, 256)])
def test_slow_sites_take_half_of_the_slots(slots: int, most: int) -> None:
    assert {slots_for_slow(slots, worker, now=now) for worker in (1, 2) for now in (0.0, 61.0)} == {most}


def test_an_odd_slot_serves_slow_sites_at_every_other_worker_and_the_others_a_minute_later() -> None:
    assert [slots_for_slow(1, worker, now=59.9) for worker in (1, 2, 3, 4)] == [1, 0, 1, 0]
    assert [slots_for_slow(1, worker, now=60.0) for worker in (1, 2, 3, 4)] == [0, 1, 0, 1]
    assert [slots_for_slow(7, worker, now=0.0) for worker in (1, 2)] == [4, 3]


def test_the_refusal_says_which_site_and_how_many_slots() -> None:
    refusal = check_slow("site.test", worker=1, slots=8, held=4, others=True, now=0.0)
    assert refusal is not None
    assert refusal.code is RefusalCode.HOST_SLOW
    assert refusal.message == (
        "site.test keeps tasks for more than 3 s; of its 8 slots this worker gives such sites 4 now, and keeps the "
        "others for sites that answer"
    )
    assert refusal.details == {"host": "site.test", "held": 4, "most": 4}


@pytest.mark.parametrize(
    "changes",
    [{"held": 3}, {"others": False}, {"slots": 0}],
    ids=["holds less", "no other work", "never said how many slots"],
)
def test_a_slow_site_isnt_refused_where_nobody_gains(changes: dict[str, int]) -> None:
    how = {"worker": 1, "slots": 8, "held": 4, "others": True, "now": 0.0, **changes}
    assert check_slow("site.test", **how) is None  # type: ignore[arg-type]
