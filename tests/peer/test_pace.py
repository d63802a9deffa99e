"""How often a peer is served, and that it is its own fault alone."""

from __future__ import annotations

import pytest
from libp2p.peer.id import ID

from swarm.peer import pace
from swarm.peer.pace import Pace

MALLORY, BOB = ID(b"\x00\x01m"), ID(b"\x00\x01b")


def test_a_peers_requests_are_paced_and_another_peers_are_not() -> None:
    paced = Pace(20.0, burst=100)
    waits = [paced.take(MALLORY, now=0.0) for _ in range(105)]

    assert waits[:100] == [0.0] * 100
    assert waits[-1] == pytest.approx(5 / 20)
    assert paced.take(BOB, now=0.0) == 0.0
    assert paced.take(MALLORY, now=10.0) == 0.0


def test_a_pause_gives_no_more_than_the_burst() -> None:
    paced = Pace(1.0, burst=2)
    paced.take(MALLORY, now=0.0)

    assert [paced.take(MALLORY, now=1e6) for _ in range(3)] == [0.0, 0.0, 1.0]


def test_who_asked_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MAX_COUNTED", 3)
    paced = Pace(1.0, burst=1)
    for n in range(10):
        paced.take(ID(b"\x00\x01%d" % n), now=0.0)

    assert len(paced) == 3
