"""Scripts go on in the environment of scripts/setup, or say that it isn't there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    str(script.relative_to(ROOT))
    for script in (ROOT / "scripts").rglob("*")
    if script.is_file() and not script.suffix and "in_venv import need" in script.read_text(errors="replace")
)


def bare(script: str, venv: Path | str) -> subprocess.CompletedProcess[str]:
    """Ask for a script's help in a Python that has no packages."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / script), "--help"],
        env={**os.environ, "SWARM_VENV": str(venv)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_scripts_that_need_packages_are_all_here() -> None:
    assert {"scripts/simulate", "scripts/simulate_chain", "scripts/mutate", "scripts/bench/ledger"} < set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_an_environment_a_script_says_how_to_make_one(script: str, tmp_path: Path) -> None:
    done = bare(script, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "./scripts/setup dev makes an environment" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_environment_without_the_packages_is_entered_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho entered >>"{tmp_path}/told"\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    done = bare("scripts/simulate", f"{tmp_path}/../{tmp_path.name}")
    assert (done.returncode, (tmp_path / "told").read_text()) == (1, "entered\n")
    assert "./scripts/setup dev makes an environment" in done.stderr


def test_an_environment_whose_python_cant_be_run_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("no program")
    done = bare("scripts/simulate", tmp_path)
    assert done.returncode == 1
    assert "./scripts/setup dev makes an environment" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_with_one_that_isnt_active_it_goes_on_there(script: str) -> None:
    done = bare(script, Path(sys.prefix))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
