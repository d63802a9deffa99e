"""A few seeds of the simulation with every run of the tests; ``scripts/simulate_chain`` lives many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chain.simulation import Simulation


@pytest.mark.parametrize("seed", range(6))
def test_ledger_and_chain_are_equal_after_any_life(seed: int, tmp_path: Path) -> None:
    Simulation(seed, tmp_path).run()
