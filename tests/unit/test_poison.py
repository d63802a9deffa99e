"""One task, or one wrong answer of a door, doesn't end a worker."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rendezvous.door.submit import prepare
from rendezvous.ledger.ops import PreparedTask
from swarm.content.manifest import Manifest, UrlOutcome, decode_manifest, encode_manifest
from swarm.errors import MalformedInput
from swarm.model import Refusal
from swarm.turn_wire import Grant, Renewed, TurnAnswer
from swarm.wire import ErrorBody, NewTask, RobotsAnswer, decode

TASK = "01a22951-e272-7215-a82d-0f11a41d9893"
WORKER = "0x5f8a62F049d5ff6ccADf21B143F6c5A4A118DeA3"


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth - 1):
        found = {"x": found}
    return found


def manifest(**changes: Any) -> Manifest:
    return Manifest(**{"task": TASK, "worker": WORKER, "kind": "noop", **changes})


@pytest.mark.parametrize("depth", [1, 250, 251, 252, 253, 254, 255, 256, 900])
def test_a_meta_that_is_taken_fits_a_manifest(depth: int) -> None:
    taken = prepare(NewTask(kind="noop", urls=("http://h.example/",), meta=nested(depth)), job=TASK)
    if isinstance(taken, PreparedTask):
        assert decode_manifest(encode_manifest(manifest(meta=taken.meta))).meta == taken.meta
    else:
        assert isinstance(taken, Refusal)
        assert depth > 250


def test_a_manifest_that_cannot_be_written_is_malformed_not_a_fault_of_ours() -> None:
    for bad in (
        manifest(meta=nested(255)),
        manifest(meta={"x": "\ud800"}),
        manifest(meta={"x": 2**70}),
        manifest(outcomes=(UrlOutcome(url="http://h.example/", detail="\ud800"),)),
    ):
        with pytest.raises(MalformedInput):
            encode_manifest(bad)


@pytest.mark.parametrize("seconds", [-1, -1e300, 1e300])
@pytest.mark.parametrize(
    ("shape", "field", "answer"),
    [
        (ErrorBody, "retry_after_s", {"code": "paused", "message": "."}),
        (TurnAnswer, "retry_after_s", {"frame": "turn", "n": 1}),
        (TurnAnswer, "spread_s", {"frame": "turn", "n": 1}),
        (Renewed, "lease_s", {"task": TASK, "fence": 1}),
        (
            Grant,
            "lease_s",
            {"task": {"id": TASK, "job": TASK, "kind": "noop", "urls": []}, "fence": 1, "via": "want"},
        ),
        (RobotsAnswer, "fresh_s", {"origin": "http://h.example", "rules": ""}),
        (RobotsAnswer, "crawl_delay_s", {"origin": "http://h.example", "rules": "", "fresh_s": 1}),
    ],
)
def test_a_time_that_nobody_can_wait_is_malformed(
    shape: type[Any], field: str, answer: dict[str, Any], seconds: float
) -> None:
    assert decode(orjson.dumps({**answer, field: 5}), shape)
    with pytest.raises(MalformedInput):
        decode(orjson.dumps({**answer, field: seconds}), shape)
