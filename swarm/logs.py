"""How the project logs: structlog, JSON unless on a terminal, to standard error. Secrets never.

Event names are past tense (``task_completed``), facts are keys. Libraries' own lines come to the same stream by
``logging``, from the level that ``LIBRARY_LEVELS`` gives them. Nothing is set up at import: an entry point calls
``configure`` once, or ``configure_unless_done`` in a program of others. What such a program merely calls is no entry
point: it takes ``write_unless_done``, which leaves ``logging`` alone.
"""

from __future__ import annotations

import contextlib
import functools
import json as json_module
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final, NoReturn, TextIO

import orjson
import structlog

__all__ = [
    "configure",
    "configure_unless_done",
    "is_secret_name",
    "quieten_libraries",
    "working_on",
    "write_unless_done",
]

#: facts/skeleton.md §7: what these say below this level is noise. libp2p warns at each served DHT request and each
#: dead peer; its host and its dialers log each peer that hung up as an error; httpx tells each request.
LIBRARY_LEVELS: Final[Mapping[str, int]] = {
    "alembic": logging.WARNING,
    "libp2p": logging.ERROR,
    "libp2p.host.basic_host": logging.CRITICAL,
    "libp2p.network.auto_connector": logging.CRITICAL,
    "libp2p.transport.tcp.tcp": logging.CRITICAL,
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "trio-websocket": logging.WARNING,
    "urllib3": logging.WARNING,
    "zeroconf": logging.WARNING,
    "asyncio": logging.WARNING,
}

#: Libraries whose lines strangers cause: each of their loggers gets so many lines in so many seconds, or a peer that
#: sends nonsense all day fills the disk.
STRANGERS_LIBRARIES: Final = ("libp2p", "zeroconf")
STRANGERS_LINES: Final = 10
STRANGERS_PER_S: Final = 60.0

#: A key is a secret if a part of its name is one of these words; ``key_id`` and the like are not.
_SECRET_WORDS: Final = frozenset(
    {"authorization", "cookie", "cookies", "invite", "password", "passwd", "psk", "secret", "seed", "token"}
)
_SECRET_NAMES: Final = frozenset({"api_key", "eth_key", "private_key", "key"})
_HIDDEN: Final = "…"


_work: ContextVar[tuple[str, int] | None] = ContextVar("work", default=None)


class working_on:
    """Name a task and its fence in every line that is logged in this block (structlog's own way costs ten times)."""

    __slots__ = ("_token", "_work")

    def __init__(self, task: str, fence: int) -> None:
        self._work = (task, fence)

    def __enter__(self) -> None:
        self._token = _work.set(self._work)

    def __exit__(self, *_: object) -> None:
        _work.reset(self._token)


def _name_work(_: Any, __: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    work = _work.get()
    if work is not None:
        facts.setdefault("task_id", work[0])
        facts.setdefault("fence", work[1])
    return facts


class LineBudget:
    """Bounds how often a line is written that strangers can cause.

    Args:
        lines: how many are written in any ``per_s``, seconds, at most.
        clock: monotonic seconds.
    """

    def __init__(self, lines: int, *, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._per_s = per_s
        self._clock = clock
        self._written: deque[float] = deque(maxlen=lines)
        self._held_back = 0

    def take(self) -> int | None:
        """How many lines were held back since the last one, where one more may be written now; else None."""
        now = self._clock()
        if len(self._written) == self._lines and now - self._written[0] < self._per_s:
            self._held_back += 1
            return None
        self._written.append(now)
        held_back, self._held_back = self._held_back, 0
        return held_back


class _Sparingly(logging.Filter):
    """Holds back what ``STRANGERS_LIBRARIES`` say beyond their budgets."""

    def __init__(self) -> None:
        super().__init__()
        self._budgets: dict[str, LineBudget] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; one that follows on others that weren't says how many."""
        if record.name.partition(".")[0] not in STRANGERS_LIBRARIES:
            return True
        budget = self._budgets.setdefault(record.name, LineBudget(STRANGERS_LINES, per_s=STRANGERS_PER_S))
        held_back = budget.take()
        if held_back:
            record.held_back = held_back
        return held_back is not None


@functools.lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Whether a value of this name must not be shown."""
    words = name.lower().replace("-", "_")
    return words in _SECRET_NAMES or not _SECRET_WORDS.isdisjoint(words.split("_"))


def configure(
    *, level: str = "info", json: bool | None = None, stream: TextIO | None = None, libraries: bool = True
) -> None:
    """Set up logging for this process. May be called again.

    Args:
        level: the lowest level that is shown: debug, info, warning or error.
        json: one JSON object a line; None: unless ``stream`` is a terminal.
        stream: where lines go; standard error unless told.
        libraries: take in what comes by ``logging`` as well.
    """
    stream = sys.stderr if stream is None else stream
    shared, renderer = _processors(stream, json=json)
    # Our own lines don't go through ``logging``: there is one a task, and that way costs a fifth of a small one.
    structlog.configure(
        processors=[*shared, *renderer],
        logger_factory=lambda *_: _Lines(stream),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        cache_logger_on_first_use=True,
    )
    if libraries:
        _take_libraries(stream, level, shared, renderer)
    quieten_libraries()


def configure_unless_done(level: str) -> None:
    """Set up logging in a program that isn't ours, as far as it hasn't done so by itself.

    Left alone, structlog writes every line to standard output, from debug on. What the program logs by ``logging`` is
    its own: where it has a handler, libraries' lines go there and nowhere else.
    """
    for_now = any(isinstance(one, _WriteForNow) for one in structlog.get_config()["processors"])
    if for_now or not structlog.is_configured():
        configure(level=level, libraries=not logging.getLogger().handlers)


def write_unless_done(level: str) -> None:
    """Have our own lines go to standard error in a program that isn't ours, and only calls us.

    Nothing of ``logging`` is touched, and whoever sets up structlog afterwards, as ``configure_unless_done`` does, is
    heeded.
    """
    if not structlog.is_configured():
        shared, renderer = _processors(sys.stderr, json=None)
        # all of it in the processors: a program that configures these alone is rid of ours
        structlog.configure(processors=[_OnlyFrom(level), *shared, *renderer, _WriteForNow(sys.stderr)])


def _processors(
    stream: TextIO, *, json: bool | None
) -> tuple[list[structlog.typing.Processor], list[structlog.typing.Processor]]:
    """What is done to every line, and what makes text of it."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _name_work,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
    ]
    if not stream.isatty() if json is None else json:
        return shared, [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_as_json)]
    return shared, [_console(stream)]


def _take_libraries(
    stream: TextIO,
    level: str,
    shared: list[structlog.typing.Processor],
    renderer: list[structlog.typing.Processor],
) -> None:
    """Have what comes by ``logging`` written as our own lines are."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_foreign],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    handler.set_name("swarm")
    handler.addFilter(_Sparingly())
    root = logging.getLogger()
    for old in [one for one in root.handlers if one.get_name() == "swarm"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def quieten_libraries() -> None:
    """Apply ``LIBRARY_LEVELS``; again after libp2p's import, which takes its logger off ours (facts/skeleton.md §7)."""
    for name, level in LIBRARY_LEVELS.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.propagate = True


def _console(stream: TextIO) -> structlog.typing.Processor:
    """For a terminal. Tracebacks without the frames' variables: keys are among them."""
    return structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)


class _Lines:
    """Writes our own lines; a reader that went away doesn't stop the work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        """Write one line, in one piece."""
        with contextlib.suppress(OSError, ValueError):  # closed, or its disk is full
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


class _OnlyFrom:
    """Drops what is logged below a level."""

    def __init__(self, level: str) -> None:
        self._levels = logging.getLevelNamesMapping()
        self._level = self._levels[level.upper()]

    def __call__(self, _: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if self._levels.get(method.upper(), self._level) < self._level:
            raise structlog.DropEvent
        return event


class _WriteForNow:
    """The last processor, until somebody sets up structlog: it writes by itself."""

    def __init__(self, stream: TextIO) -> None:
        self._lines = _Lines(stream)

    def __call__(self, _: Any, __: str, line: Any) -> NoReturn:
        self._lines.msg(line)
        raise structlog.DropEvent


def _as_json(event: Any, **options: Any) -> str:
    try:
        return orjson.dumps(event, default=options.get("default")).decode()
    except TypeError:  # an integer of more than 64 bits, or a key that isn't text
        return json_module.dumps(event, ensure_ascii=False, **options)


def _hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name in event:
        if name != "event" and is_secret_name(name):
            event[name] = _HIDDEN
    return event


def _name_foreign(logger: Any, _: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A library's line keeps its text as ``said`` under one event name, so that ours stay a closed set."""
    event["said"] = event.pop("event")
    record = event.get("_record")
    event["library"] = record.name if record is not None else getattr(logger, "name", "?")
    if held_back := getattr(record, "held_back", 0):
        event["held_back"] = held_back
    event["event"] = "library_logged"
    return event
