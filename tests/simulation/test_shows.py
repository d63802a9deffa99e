"""Small runs of what ``scripts/bench`` shows at full size: nobody starves, and trouble stays where it is."""

from __future__ import annotations

from pathlib import Path

from rendezvous.ledger.settings import LedgerSettings
from rendezvous.policy.order import AGEING_S
from tests.simulation.fleet import open_fleet
from tests.simulation.shows import count_questions, honest_work, live_storm, new_database, wait_in_tiers
from tests.simulation.sites import Site


def test_a_full_bulk_tier_leaves_the_interactive_tier_its_waits(tmp_path: Path) -> None:
    how = {"interactive": 60, "workers": 4}
    empty = wait_in_tiers(new_database(tmp_path / "empty.sqlite"), bulk=0, **how)
    full = wait_in_tiers(new_database(tmp_path / "full.sqlite"), bulk=2_000, **how)
    assert (empty.granted, full.granted) == (60, 60)
    assert full.bulk > 300
    assert full.p95_s <= 2 * empty.p95_s


def test_a_task_of_the_lowest_priority_is_done_in_the_end_however_much_of_the_highest_comes(tmp_path: Path) -> None:
    site = Site(name="site.test", latency_s=20.0)
    settings = LedgerSettings(host_rate_per_s=0.0)
    with open_fleet(new_database(tmp_path / "ledger.sqlite"), [site], settings, workers=1, slots=1) as fleet:
        fleet.submit([site.name] * 5, priority=9)
        (lowest,) = fleet.submit([site.name], priority=0)
        ages_s = 9 * AGEING_S
        while lowest not in fleet.diary.granted_at and fleet.now < 2 * ages_s:
            fleet.submit([site.name] * 4, priority=9)  # four where three can be done
            fleet.run(60.0)
        (wait_s,) = fleet.waits_s([lowest])
    assert ages_s < wait_s < 1.1 * ages_s * 4 / 3  # what came before it had aged is done first


def test_a_liar_slows_nobody_but_itself_whatever_it_says(tmp_path: Path) -> None:
    how = {"seconds": 400.0, "hosts": 2, "workers": 4}
    alone = honest_work(new_database(tmp_path / "alone.sqlite"), liars=0, **how)
    for eternal in (True, False):
        beside = honest_work(new_database(tmp_path / f"{eternal}.sqlite"), liars=1, eternal=eternal, **how)
        assert beside >= 0.95 * alone


def test_a_host_that_fails_at_everything_keeps_its_pace_and_costs_the_others_nothing(tmp_path: Path) -> None:
    calm = live_storm(new_database(tmp_path / "calm.sqlite"), broken=False, seconds=60.0)
    storm = live_storm(new_database(tmp_path / "storm.sqlite"), broken=True, seconds=60.0)
    hanging = live_storm(new_database(tmp_path / "hanging.sqlite"), broken=True, hangs_s=30.0, seconds=60.0)
    assert storm.retries > 60
    assert hanging.retries > 6
    for stormy in (storm, hanging):
        assert stormy.most <= stormy.allowed
        assert stormy.others >= 0.9 * calm.others


def test_few_of_many_idle_workers_ask_for_a_task(tmp_path: Path) -> None:
    found = count_questions(new_database(tmp_path / "ledger.sqlite"), tasks=10)
    assert 0.0 < found.asks <= 2.5
