"""The benchmark runs from end to end and says what it is for: our figures beside dramatiq's, as ratios."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.acceptance.harness import PROJECT
from tests.tied import tied

RUN_S = 120.0


def test_bench_puts_the_swarm_beside_dramatiq_in_one_run() -> None:
    few = ("--rounds", "1", "--tasks", "100", "--batched-tasks", "500", "--workers", "1", "--skip", "idle")
    done = subprocess.run(
        tied([sys.executable, PROJECT / "scripts" / "bench" / "e2e", *few]),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        cwd=PROJECT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("swarm, batched", "swarm, unbatched", "dramatiq, not persisted", "dramatiq, AOF always"):
        assert re.search(rf"^1 {name} .*/s .*p50.*p99.*µs a task", done.stdout, re.MULTILINE), done.stdout
    assert len(re.findall(r"^swarm, (?:un)?batched: x [0-9.]+ ", done.stdout, re.MULTILINE)) == 4, done.stdout
