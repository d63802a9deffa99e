"""``scripts/demo`` as somebody meets it on the first day: it ends with its own verdict, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.harness import PROJECT, until
from tests.patience import PATIENCE_S
from tests.tied import tied

pytestmark = pytest.mark.acceptance

#: Half a minute on an idle machine of two cores.
DEMO_S = 2 * PATIENCE_S
COUNTED = r"demo ok: 24 tasks, 23 completed, 1 failed, (\d+) by offer, 23 results verified, "
LAST_LINES = {(): COUNTED + r"23 paid, 1 refunded, [\d.]+ s", ("--unpaid",): COUNTED + r"[\d.]+ s"}


@pytest.fixture(autouse=True)
def _installed() -> None:
    """The demo runs the programs as they are installed."""
    if not Path(sys.executable).with_name("swarm-root").exists():
        pytest.fail("swarm-root isn't installed beside this Python; ./scripts/setup dev does it")


def start(directory: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return subprocess.Popen(
            tied([sys.executable, "scripts/demo.py", *options], sent=signal.SIGTERM),
            cwd=PROJECT,
            env={**os.environ, "TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def left_behind(directory: Path) -> list[str]:
    """The command lines of living processes that name the demo's directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if str(directory) in line:
            found.append(line)
    return found


@pytest.mark.parametrize("options", LAST_LINES, ids=["paid", "unpaid"])
def test_the_demo_ends_with_its_verdict_and_leaves_nothing_behind(tmp_path: Path, options: tuple[str, ...]) -> None:
    directory, out = tmp_path / "demo", tmp_path / "out"
    directory.mkdir()
    code = start(directory, out, *options).wait(DEMO_S)

    text = out.read_text()
    verdict = re.fullmatch(LAST_LINES[options], text.splitlines()[-1])
    assert code == 0, text
    assert verdict, text
    assert int(verdict[1]) >= 6
    assert list(directory.iterdir()) == []
    assert left_behind(directory) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_ends_its_own_processes(tmp_path: Path, number: signal.Signals) -> None:
    directory, out = tmp_path / "demo", tmp_path / "out"
    directory.mkdir()
    demo = start(directory, out)
    until(lambda: "the root's door is open" in out.read_text(), "the demo's root")
    assert left_behind(directory)

    demo.send_signal(number)

    assert demo.wait(PATIENCE_S) == 128 + number
    assert "all processes of the demo have ended" in out.read_text()
    assert left_behind(directory) == []
    assert list(directory.iterdir()) == []


def test_a_demo_that_stays_says_so_when_it_stops(tmp_path: Path) -> None:
    directory, out = tmp_path / "demo", tmp_path / "out"
    directory.mkdir()
    demo = start(directory, out, "--unpaid", "--keep")
    until(lambda: "Ctrl-C here ends it all" in out.read_text(), "the demo to be done", within_s=DEMO_S)
    assert any(re.fullmatch(LAST_LINES["--unpaid",], line) for line in out.read_text().splitlines())
    assert left_behind(directory)

    demo.send_signal(signal.SIGINT)
    until(lambda: "stopping all processes" in out.read_text(), "a word of the demo")

    assert demo.wait(PATIENCE_S) == 0
    assert left_behind(directory) == []
