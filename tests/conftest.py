"""What all tests share: a clean environment, and which loop an async test runs on.

Async tests below ``tests/rendezvous`` and ``tests/chain`` run on asyncio, all others on trio; one that is marked
itself keeps its mark. pytest-trio's own trio mode would mark *every* test below a folder, sync ones too.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest

ASYNCIO_ROOMS = ("rendezvous", "chain")

#: What a test may read of the machine's own settings: where the Kubo binary is.
ALLOWED_SETTINGS = frozenset({"SWARM_KUBO"})


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the SWARM_* settings of whoever runs it."""
    for name in os.environ:
        if name.startswith("SWARM_") and name not in ALLOWED_SETTINGS:
            monkeypatch.delenv(name)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> object:
    """Mark async tests while they are collected: pytest-asyncio looks no later than that."""
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(inspect.unwrap(item.function)):
            continue
        if item.get_closest_marker("trio") or item.get_closest_marker("asyncio"):
            continue
        item.add_marker(loop_of(item.path))
    return made


def loop_of(path: Path) -> str:
    """``asyncio`` or ``trio``, by the room that the test file is in."""
    rooms = path.relative_to(Path(__file__).parent).parts
    return "asyncio" if rooms[0] in ASYNCIO_ROOMS else "trio"
