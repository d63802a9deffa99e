"""How much is locked for a worker: its claim budget's worth, no more than its job has, topped up by halves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rendezvous.policy.collateral import collateral_target_wei

REWARD = 10**15


def test_a_newcomer_gets_its_claim_budget_on_top_of_what_it_earned() -> None:
    target = collateral_target_wei(owed_wei=REWARD, held_wei=0, budget=16, reward_wei=REWARD, live=100)
    assert target == 17 * REWARD


def test_a_job_that_is_nearly_done_locks_no_more_than_it_has_left() -> None:
    assert collateral_target_wei(owed_wei=REWARD, held_wei=0, budget=16, reward_wei=REWARD, live=2) == 3 * REWARD
    assert collateral_target_wei(owed_wei=REWARD, held_wei=0, budget=16, reward_wei=REWARD, live=0) == REWARD


def test_it_is_topped_up_once_half_is_used() -> None:
    def ask(held: int) -> int | None:
        return collateral_target_wei(
            owed_wei=10 * REWARD, held_wei=held * REWARD, budget=16, reward_wei=REWARD, live=100
        )

    assert collateral_target_wei(owed_wei=0, held_wei=1, budget=1, reward_wei=3, live=1) is None, "in whole wei"
    assert ask(18) is None
    assert ask(17) == 26 * REWARD


@given(
    st.integers(0, 10**24), st.integers(0, 10**24), st.integers(1, 1_000), st.integers(1, 10**20), st.integers(0, 10**6)
)
def test_what_is_owed_is_always_covered_and_the_root_never_risks_more_than_the_budget(
    owed: int, held: int, budget: int, reward: int, live: int
) -> None:
    target = collateral_target_wei(owed_wei=owed, held_wei=held, budget=budget, reward_wei=reward, live=live)
    if target is None:
        assert held >= owed
    else:
        assert held < target
        assert owed <= target <= owed + budget * reward
