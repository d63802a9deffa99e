"""Lives of a swarm in virtual time: a few seeds, planted bugs, and a forecast. ``scripts/simulate`` lives more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rendezvous.ledger.engine import open_engine
from rendezvous.ledger.migrate import migrate
from tests.simulation.forecast import Forecast, Job
from tests.simulation.life import Simulation, Size
from tests.simulation.planted import Bug, plant
from tests.simulation.watch import Broken


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty ledger: making its tables takes longer than a life."""
    path = tmp_path_factory.mktemp("template") / "ledger.sqlite"
    engine = open_engine(str(path))
    migrate(engine)
    engine.dispose()
    return path


def live(seed: int, template: Path, directory: Path, bug: Bug | None = None, size: Size | None = None) -> Simulation:
    database = directory / f"{seed}.sqlite"
    shutil.copy(template, database)
    life = Simulation(seed, database, bug=bug, size=size)
    life.run()
    return life


@pytest.mark.parametrize("seed", range(6))
def test_every_task_ends_once_whatever_happens(seed: int, template: Path, tmp_path: Path) -> None:
    life = live(seed, template, tmp_path)
    assert not life.watch.unfinished
    assert life.counts["commits"]


@pytest.mark.parametrize(("seed", "roots", "assigns"), [(13, 2, False), (19, 1, True)])
def test_every_task_ends_once_with_two_roots_or_where_tasks_are_pushed(
    seed: int, roots: int, assigns: bool, template: Path, tmp_path: Path
) -> None:
    life = live(seed, template, tmp_path)
    assert (life.plan.roots, life.plan.assigns) == (roots, assigns)
    assert all(root.counts["commits"] for root in life.roots)
    assert not life.watch.unfinished


def test_a_life_is_as_big_as_is_asked_for(template: Path, tmp_path: Path) -> None:
    life = live(0, template, tmp_path, size=Size(workers=30, tasks=200))
    assert len(life.workers) == 30
    assert 150 < len(life.watch.tasks) < 250  # some more where a submission that wasn't answered is said again
    assert not life.watch.unfinished


@pytest.mark.parametrize("bug", list(Bug))
def test_a_planted_bug_is_found_within_100_seeds(bug: Bug, template: Path, tmp_path: Path) -> None:
    def hunt() -> None:
        for seed in range(100):
            live(seed, template, tmp_path, bug)

    try:
        with pytest.raises(Broken):
            hunt()
    finally:
        plant(None)


def test_a_forecast_keeps_to_what_the_hosts_allow(template: Path, tmp_path: Path) -> None:
    database = tmp_path / "ledger.sqlite"
    shutil.copy(template, database)
    job = Job(pages=400, hosts=4, every_s=0.5, latency_s=0.2, workers=2, slots=4)
    found = Forecast(job, database).run()
    assert found.paced_rate_per_s == 8.0
    assert found.rate_per_s == pytest.approx(8.0, rel=0.1)
    assert found.done_s == pytest.approx(400 / 8, rel=0.2)
