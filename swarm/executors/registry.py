"""Which kinds of task this worker can run: the built-in ones, and those of plugins.

A plugin registers a class under the entry point group ``swarm.executors``, named by its kind. A kind's module is
imported when its version or its executor is first asked for. A plugin that can't be loaded is left out, with a log
line: its owner's other kinds still work. It can't take the name of a built-in kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import structlog

from swarm.executors.base import Executor

GROUP: Final = "swarm.executors"

#: Works from a bare source tree too, where no distribution is installed.
BUILT_IN: Final[Mapping[str, str]] = {
    "fetch": "swarm.executors.fetch:Fetch",
    "noop": "swarm.executors.noop:Noop",
    "scrape": "swarm.executors.scrape:Scrape",
}
#: The shape of ``swarm.wire.KindText``; a name that breaks it would break the worker's hello.
_KIND: Final = re.compile(r"[a-z][a-z0-9_.-]{0,39}")
_MAX_VERSION_CHARS: Final = 64

log = structlog.get_logger()


class Executors(Mapping[str, Executor]):
    """Executors by kind, made when first asked for.

    Args:
        found: where the class of each kind is.
        extra: ready-made ones, which win over both.
    """

    def __init__(self, found: Mapping[str, EntryPoint], extra: Mapping[str, Executor]) -> None:
        self._found = dict(found)
        self._made: dict[str, Executor] = dict(extra)

    def __getitem__(self, kind: str) -> Executor:
        if kind not in self._made:
            executor = _make(self._found[kind])
            if executor is None:
                del self._found[kind]
                raise KeyError(kind)
            self._made[kind] = executor
        return self._made[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._found.keys() | self._made.keys()))

    def __len__(self) -> int:
        return len(self._found.keys() | self._made.keys())

    def __contains__(self, kind: object) -> bool:
        return kind in self._found or kind in self._made

    def kinds(self) -> dict[str, str]:
        """The version of each kind, for the worker's hello. Kinds that can't be loaded are left out from here on."""
        return {kind: executor.version for kind in tuple(self) if (executor := self.get(kind)) is not None}


def load_executors(
    extra: Mapping[str, Executor] | None = None, *, plugins: Iterable[EntryPoint] | None = None
) -> Executors:
    """Find the executors of this worker.

    Args:
        extra: ready-made executors by kind; they win over plugins and built-in ones.
        plugins: entry points; by default all installed ones of the group.
    """
    found = {kind: EntryPoint(kind, where, GROUP) for kind, where in BUILT_IN.items()}
    for plugin in entry_points(group=GROUP) if plugins is None else plugins:
        if plugin.name in BUILT_IN:
            if plugin.value != BUILT_IN[plugin.name]:
                log.warning("executor_left_out", kind=plugin.name, plugin=plugin.value, why="the kind is built in")
        elif not _KIND.fullmatch(plugin.name):
            log.warning("executor_left_out", kind=plugin.name, plugin=plugin.value, why="not a name for a kind")
        else:
            found[plugin.name] = plugin
    return Executors(found, extra or {})


def kinds() -> dict[str, str]:
    """The version of each kind that this worker can run."""
    return load_executors().kinds()


def check_spec(kind: str, spec: Mapping[str, Any]) -> None:
    """Find out whether tasks of a built-in kind would fail by their spec; what plugins take is their own business.

    Raises:
        TaskFailed: ``bad_spec``; the detail says why.
    """
    if kind in BUILT_IN:
        EntryPoint(kind, BUILT_IN[kind], GROUP).load().read(spec)


def _make(plugin: EntryPoint) -> Executor | None:
    try:
        executor: Executor = plugin.load()()
        version = executor.version
    except Exception:  # a plugin is a stranger's code: whatever it does at import, the worker starts
        log.warning("executor_left_out", kind=plugin.name, plugin=plugin.value, why="can't be loaded", exc_info=True)
        return None
    if not isinstance(version, str) or not 0 < len(version) <= _MAX_VERSION_CHARS:
        log.warning("executor_left_out", kind=plugin.name, plugin=plugin.value, why="has no version")
        return None
    return executor
