"""Networks, and claim budgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.policy.budget import MOST, NEWCOMER_BUDGET, check_budget, grown, shrunk
from rendezvous.policy.egress import Flag, check_apart, check_egress, differs, prefix_of
from swarm.model import RefusalCode


@pytest.mark.parametrize(
    ("address", "prefix"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
        ("192.0.2.77%eth0", "192.0.2.0/24"),
        ("", None),
        (None, None),
        ("unix:", None),
        ("example.org", None),
    ],
)
def test_a_prefix_is_a_24_or_a_48(address: str | None, prefix: str | None) -> None:
    assert prefix_of(address) == prefix


@given(st.text())
def test_no_address_breaks_it(address: str) -> None:
    prefix_of(address)


def test_only_known_prefixes_differ() -> None:
    assert differs("192.0.2.0/24", "198.51.100.0/24")
    assert not differs("192.0.2.0/24", "192.0.2.0/24")
    assert not differs(None, "192.0.2.0/24")
    assert not differs(None, None)


def test_a_flagged_network_is_refused_until_then() -> None:
    flag = Flag(until=60.0, why="2 workers of it are in quarantine there")
    refusal = check_egress(flag, "site.test", "192.0.2.0/24", now=10.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RefusalCode.EGRESS_FLAGGED, 50.0)
    assert refusal.message == (
        "the network 192.0.2.0/24 is kept off site.test for 50 s more: 2 workers of it are in quarantine there"
    )
    assert refusal.details == {"host": "site.test", "prefix": "192.0.2.0/24"}
    assert check_egress(flag, "site.test", "192.0.2.0/24", now=60.0) is None
    assert check_egress(None, "site.test", "192.0.2.0/24", now=0.0) is None


def test_a_second_worker_of_a_network_is_refused_where_they_are_kept_apart() -> None:
    refusal = check_apart("site.test", "192.0.2.0/24", crowded=True)
    assert refusal is not None
    assert refusal.code is RefusalCode.PREFIX_TAKEN
    assert refusal.message == (
        "another worker of the network 192.0.2.0/24 has a task of site.test, where one at a time is wanted"
    )
    assert refusal.details == {"host": "site.test", "prefix": "192.0.2.0/24"}
    assert check_apart("site.test", "192.0.2.0/24", crowded=False) is None


def test_a_budget_doubles_when_as_much_was_accepted_and_is_halved_by_losses() -> None:
    assert grown(NEWCOMER_BUDGET, NEWCOMER_BUDGET - 1) == NEWCOMER_BUDGET
    assert grown(NEWCOMER_BUDGET, NEWCOMER_BUDGET) == 2 * NEWCOMER_BUDGET
    assert shrunk(NEWCOMER_BUDGET) == NEWCOMER_BUDGET // 2
    assert shrunk(5) == 2, "tasks are counted by whole ones"


@given(st.lists(st.booleans(), max_size=200))
def test_a_budget_stays_within_its_bounds_and_never_stops_growing(steps: list[bool]) -> None:
    budget = NEWCOMER_BUDGET
    for accepted in steps:
        budget = grown(budget, budget) if accepted else shrunk(budget)
        assert 1 <= budget <= MOST
    assert grown(budget, budget) > budget or budget == MOST


def test_who_holds_as_much_as_it_may_is_refused_with_the_numbers() -> None:
    refusal = check_budget(16, 16)
    assert refusal is not None
    assert (refusal.code, refusal.details) == (RefusalCode.CLAIM_BUDGET, {"held": 16, "budget": 16})
    assert refusal.message.startswith("this worker holds 16 tasks and may hold 16: ")
    assert check_budget(15, 16) is None
    assert check_budget(1_000, None) is None
