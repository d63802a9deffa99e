"""Executors that a test brings along, as a plugin brings them: a module and its entry point."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

POISON = """
import os, signal

class Poison:
    version = "1"

    async def run(self, task, tools):
        os.kill(os.getpid(), signal.SIGKILL)
"""
HELD = """
import os, trio
from swarm.content.manifest import UrlOutcome
from swarm.executors.base import Execution

class Held:
    version = "1"

    async def run(self, task, tools):
        while not os.path.exists(task.spec["until"]):
            await trio.sleep(0.02)
        return Execution(outcomes=tuple(UrlOutcome(url=url) for url in task.urls))
"""

_numbers = itertools.count(1)


def install(directory: Path, source: str) -> dict[str, str]:
    """Install an executor of the kind that its class is called.

    Returns:
        The environment of workers that have it.
    """
    kind, _, _ = source.partition("class ")[2].partition(":")
    name = kind.lower()
    described = directory / f"{name}-1.dist-info"
    described.mkdir(parents=True)
    (directory / f"{name}.py").write_text(source)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (described / "entry_points.txt").write_text(f"[swarm.executors]\n{name} = {name}:{kind}\n")
    return {"PYTHONPATH": str(directory)}


class Hold:
    """Tasks of the kind ``held`` that run until the test lets them go, however slow the machine is."""

    def __init__(self, directory: Path) -> None:
        self._go = directory / f"go-{next(_numbers)}"

    def task(self, host: str = "held.invalid") -> dict[str, Any]:
        return {"kind": "held", "urls": [f"http://{host}/{next(_numbers)}"], "spec": {"until": str(self._go)}}

    def let_go(self) -> None:
        self._go.touch()
