"""What all tests share: a clean environment, and which loop an async test runs on.

Async tests below ``tests/rendezvous`` and ``tests/chain`` run on asyncio, all others on trio; a test, class or module
that is marked itself keeps its mark. pytest-trio's own trio mode would mark *every* test below a folder, sync ones too.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.postgres import Postgres, postgres_cluster

ASYNCIO_ROOMS = ("rendezvous", "chain")

# A run tries the same values as the one before, so that what fails was broken by a change; nor does a slow machine fail
# what is right. With ``--hypothesis-profile=search`` it looks for others.
settings.register_profile(
    "fixed", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")

# An installed program finds its modules compiled; without that each start takes five seconds instead of one.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

#: What a test may read of the machine's own settings: where the Kubo binary is.
ALLOWED_SETTINGS = frozenset({"SWARM_KUBO"})


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the SWARM_* settings of whoever runs it."""
    for name in list(os.environ):
        if name.startswith("SWARM_") and name not in ALLOWED_SETTINGS:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _clean_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that a test runs in this process sets up logging for this test alone, and to what pytest captures."""
    configure = structlog.configure
    monkeypatch.setattr(structlog, "configure", lambda **how: configure(**{**how, "cache_logger_on_first_use": False}))
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [one for one in root.handlers if one.get_name() == "swarm"]:
        root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's cluster, started by the first test that needs it."""
    with postgres_cluster(durable=False) as cluster:
        yield cluster


@pytest.fixture
def postgres_database(postgres: Postgres) -> Iterator[str]:
    """The URL of a fresh ledger on PostgreSQL."""
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> Generator[None, object, object]:
    """Mark async tests before they are collected: pytest-asyncio looks at no later moment."""
    if name.startswith("test") and inspect.isroutine(obj) and _is_async(obj):
        marks = {mark.name for mark in getattr(obj, "pytestmark", ())}
        marks |= {mark.name for mark in collector.iter_markers()}
        if not marks & {"trio", "asyncio"}:
            getattr(pytest.mark, loop_of(collector.path))(obj)  # a mark is kept on the function itself
    return (yield)


def _is_async(test: object) -> bool:
    """Whether it is a coroutine function, also below hypothesis' ``given``."""
    given = getattr(test, "hypothesis", None)
    return inspect.iscoroutinefunction(given.inner_test if given else test)


def loop_of(path: Path) -> str:
    """``asyncio`` or ``trio``, by the room that the test file is in."""
    room = path.relative_to(Path(__file__).parent).parts[0]
    return "asyncio" if room in ASYNCIO_ROOMS else "trio"
