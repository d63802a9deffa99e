"""The worker, one file a step: hear, choose, turns, execute, upload, journal; joined in ``run``.

``Worker`` runs one in a program of your own; it is imported when it is first asked for, so that ``--help`` isn't slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarm.worker.embed import Worker

__all__ = ["Worker"]


def __getattr__(name: str) -> Any:
    if name == "Worker":
        from swarm.worker.embed import Worker

        return Worker
    raise AttributeError(name)
