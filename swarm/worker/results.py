"""What comes out of an execution, between ``execute`` and ``upload``: plain values."""

from __future__ import annotations

import attrs

from swarm.content.manifest import Manifest
from swarm.turn_wire import Grant


@attrs.frozen(kw_only=True)
class Executed:
    """It gave data."""

    grant: Grant
    manifest: Manifest
    ran_s: float


@attrs.frozen(kw_only=True)
class Broken:
    """It failed; ``reason`` and the rest as in ``swarm.wire.Failed``."""

    grant: Grant
    reason: str
    detail: str
    retryable: bool | None = None
    retry_after_s: float | None = None
    ran_s: float = 0.0


@attrs.frozen(kw_only=True)
class Deferred:
    """It can't be run here and now through no fault of the task: the lease is given back."""

    grant: Grant
    detail: str
    retry_after_s: float
    #: The disk of this worker is full.
    disk_full: bool = False


Result = Executed | Broken | Deferred
