"""Does a task's history hold together? Every step is one that the transition table knows, and it ends once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swarm.model import MOVES, TERMINAL, Actor, Move, Status


def fold(history: Sequence[dict[str, Any]]) -> Status:
    """Walk a history from nothing to its last status.

    Args:
        history: ``EventView`` dicts of one task, oldest first.

    Returns:
        The status that it ends in.

    Raises:
        AssertionError: a step is missing, repeated, out of order, or not allowed.
    """
    status: Status | None = None
    fence = 0
    assert [event["seq"] for event in history] == list(range(1, len(history) + 1)), history
    for event in history:
        move = Move(event["move"])
        rule = MOVES[move]
        source = Status(event["source"]) if event.get("source") else None
        assert source == status, (status, event)
        assert source in rule.sources, event
        assert Actor(event["by"]) in rule.actors, event
        status = Status(event["to"])
        assert status in rule.targets, event
        if move is Move.GRANT:
            assert event["fence"] > fence, event
            fence = event["fence"]
    assert status is not None
    return status


def assert_ended_once(history: Sequence[dict[str, Any]], *, how: Status = Status.COMPLETED) -> None:
    """The task ended exactly once, and as said."""
    assert fold(history) is how, history
    assert sum(Status(event["to"]) in TERMINAL for event in history) == 1, history
