"""A test run that is killed leaves nothing running behind it, and the next one removes the files it left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.harness import PROJECT
from tests.patience import PATIENCE_S
from tests.tied import directory_of_this_run, tied

#: What a run has started when it is killed; it says the pids, each a line, and nothing more.
RUNS = {
    "postgresql": """
        from tests.postgres import postgres_cluster
        with postgres_cluster(durable=False) as cluster:
            say(cluster.process.pid)
    """,
    "kubo": """
        from tests.kubo import running_kubo
        with running_kubo(directory / "kubo") as daemon:
            say(daemon.process.pid)
    """,
    "redis": """
        from tests.redis_server import running_redis
        with running_redis(directory) as server:
            say(server.client.info()["process_id"])
    """,
    "hardhat": """
        from tests.chain.hardhat import running_hardhat
        with running_hardhat() as node:
            say(node.process.pid)
    """,
    "root and worker": """
        from tests.acceptance.harness import Scene
        with Scene(directory) as scene:
            root = scene.root("--p2p", "off")
            worker = scene.worker(root, "--p2p", "off", name="alice")
            say(root.process.pid, worker.process.pid)
    """,
    "demo": """
        from tests.acceptance.harness import until
        from tests.acceptance.test_demo import start
        demo = start(directory, directory / "out", "--unpaid")
        until(lambda: "the root's door is open" in (directory / "out").read_text(), "the demo's root")
        started = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        assert started
        say(demo.pid, *started)
    """,
}
PREAMBLE = """
import sys, time
from pathlib import Path
directory = Path(sys.argv[1])
def say(*pids):
    print(*pids, flush=True)
    sys.stdin.read()
"""


def _has_ended(process: int) -> bool:
    """Wait until the process behind a pidfd has ended, or the deadline passed."""
    return bool(select.select([process], [], [], PATIENCE_S)[0])


@pytest.mark.parametrize("services", RUNS)
def test_a_run_that_is_killed_leaves_no_service_behind(services: str, tmp_path: Path) -> None:
    program = PREAMBLE + "if True:" + RUNS[services]
    command = tied([sys.executable, "-c", program, tmp_path])
    environment = {**os.environ, "TMPDIR": str(tmp_path)} if services == "demo" else None
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=PROJECT, env=environment) as run:
        assert run.stdout is not None
        pids = [int(pid) for pid in run.stdout.readline().split()]
        assert pids, f"{services} didn't start"
        services_of_it = [os.pidfd_open(pid) for pid in pids]
        run.kill()
    try:
        assert [pid for pid, service in zip(pids, services_of_it, strict=True) if not _has_ended(service)] == []
    finally:
        for service in services_of_it:
            if not select.select([service], [], [], 0)[0]:
                signal.pidfd_send_signal(service, signal.SIGKILL)
            os.close(service)


def test_files_of_a_run_that_was_killed_are_removed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait(PATIENCE_S)
    killed = tmp_path / f"cluster-{ended.pid}-abc"
    others = tmp_path / f"cluster-{os.getppid()}-abc", tmp_path / "cluster-of-mine", tmp_path / "cluster-1x-abc"
    for directory in (killed, *others):
        (directory / "data").mkdir(parents=True)

    fresh = directory_of_this_run("cluster")

    assert set(tmp_path.iterdir()) == {fresh, *others}
