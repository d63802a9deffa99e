"""``scripts/setup`` says what it does. Python and pip are played: what they install takes minutes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAYED = """#!/bin/sh
echo "$@" >>"{told}"
case " $* " in *"{broken}"*) echo "no such package" >&2; exit 1;; esac
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that is there, with a Python that only notes what it is told."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "swarm").touch(mode=0o755)
    play(tmp_path)
    return tmp_path


def play(venv: Path, *, broken: str = "nothing at all") -> None:
    python = venv / "bin" / "python"
    python.write_text(PLAYED.format(told=venv / "told", broken=broken))
    python.chmod(0o755)


def setup(venv: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "setup", "worker"],
        env={**os.environ, "SWARM_VENV": str(venv)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_set_up_says_a_line_for_each_step_and_nothing_the_second_time(venv: Path) -> None:
    done = setup(venv)
    assert done.returncode == 0, done.stderr
    steps = [line.split()[0] for line in done.stderr.splitlines()]
    assert steps == ["installing", "installing", "installing", "compiling", "ready:"]

    again = setup(venv)
    assert (again.returncode, again.stdout + again.stderr) == (0, "")


def test_set_up_compiles_the_project(venv: Path) -> None:
    setup(venv)
    assert "-m compileall -q swarm rendezvous" in (venv / "told").read_text().splitlines()


def test_a_checkout_that_cant_be_written_is_set_up_all_the_same(venv: Path) -> None:
    play(venv, broken="compileall")
    done = setup(venv)
    assert done.returncode == 0
    assert "each start compiles it anew" in done.stderr


def test_a_set_up_that_fails_says_at_what_and_is_tried_again(venv: Path) -> None:
    play(venv, broken="locks/worker.txt")
    failed = setup(venv)
    assert failed.returncode == 1
    assert "no such package" in failed.stderr
    assert f"the whole log is {venv}/pip.log" in failed.stderr

    play(venv)
    assert setup(venv).returncode == 0


def test_help_says_how_it_is_called_and_does_nothing() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "setup", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Usage: scripts/setup [worker|root|demo|dev]" in done.stdout
    assert "set -euo" not in done.stdout
