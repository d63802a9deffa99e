"""A few seeds of the simulation with every run of the tests; ``scripts/simulate_chain`` lives many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chain.planted import Bug
from tests.chain.simulation import Simulation

#: A planted bug that so many lives don't find isn't found.
LIVES_MOST = 100


#: Lives that once found something: a channel looked at too early, offers without a pause, an offer that was lost.
TELLING = (50, 98, 136)


@pytest.mark.parametrize("seed", [0, *TELLING])
def test_ledger_and_chain_are_equal_after_any_life(seed: int, tmp_path: Path) -> None:
    Simulation(seed, tmp_path).run()


def is_found(bug: Bug, seed: int, directory: Path) -> bool:
    directory.mkdir()
    try:
        Simulation(seed, directory, bug=bug).run()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("bug", Bug)
def test_a_bug_that_is_planted_into_the_outbox_is_found(bug: Bug, tmp_path: Path) -> None:
    found = next((seed for seed in range(LIVES_MOST) if is_found(bug, seed, tmp_path / str(seed))), None)
    assert found is not None
    sound = tmp_path / "sound"
    sound.mkdir()
    Simulation(found, sound).run()  # it is the bug that was found


def test_a_seed_lives_the_same_life_again(tmp_path: Path) -> None:
    lives: list[list[str]] = []
    for name in ("once", "again"):
        steps: list[str] = []
        (tmp_path / name).mkdir()
        Simulation(3, tmp_path / name, tell=steps.append).run()
        lives.append(steps)
    assert lives[0] == lives[1]
    assert len(lives[0]) > 100
