"""An outcome as the journal holds it: plain values, between ``upload`` and ``journal``."""

from __future__ import annotations

import enum

import attrs

from swarm.model import TaskId
from swarm.turn_wire import Done, Failed


class State(enum.StrEnum):
    """How far an outcome is."""

    #: Its blocks wait to be uploaded.
    STORED = "stored"
    #: It may be said, or was said and isn't answered.
    READY = "ready"
    #: Its lease is over; only a new grant of the task makes it welcome.
    KEPT = "kept"


@attrs.frozen(kw_only=True)
class Record:
    """One outcome.

    Args:
        manifest: its canonical bytes; None for a failure.
        report: what is said to the door; None while it is ``stored``.
        ran_s: how long the execution took.
        size_bytes: the manifest and all contents that it names.
        written_at: Unix seconds.
    """

    task: TaskId
    fence: int
    state: State
    manifest: bytes | None = None
    report: Done | Failed | None = None
    ran_s: float = 0.0
    size_bytes: int = 0
    written_at: float = 0.0
