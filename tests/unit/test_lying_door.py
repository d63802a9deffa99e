"""A door that lies to a worker: it neither crashes nor hangs, does nothing unasked, and is well afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import trio
from trio.testing import MockClock

from swarm.errors import DoorUnreachable, MalformedInput
from swarm.model import RefusalCode, Status
from swarm.testing import MemoryDoor, MemoryIpfs
from swarm.turn_wire import Frame, Outcome, Turn, TurnAnswer, TurnRefused
from swarm.wire import MAX_SLOTS, ErrorBody, Hello, decode
from swarm.worker.turns import Turns
from tests.unit.test_worker_work import Played, alice_at, jumping_clock

__all__ = ["jumping_clock"]

#: However long a lie asks for, an honest door has its work done within this.
WELL_AGAIN_S: Final = 1_800.0
YEAR_S: Final = 31_536_000
TASK: Final = "01920000-0000-7000-8000-000000000001"

Lie = Callable[[Turn], bytes]


class LyingDoor(MemoryDoor):
    """Says these before it says the truth; what can't be read ends the session, as the real client has it."""

    def __init__(self, *lies: Lie) -> None:
        super().__init__(clock=trio.current_time, ipfs=MemoryIpfs())
        self.lies = list(lies)
        self.heard: list[Turn] = []

    async def turn(self, turn: Turn) -> TurnAnswer | TurnRefused:
        self.heard.append(turn)
        if not self.lies:
            return await self._honest(turn)
        await trio.lowlevel.checkpoint()
        try:
            frame = decode(self.lies.pop(0)(turn), Frame)  # type: ignore[arg-type,var-annotated]
        except MalformedInput as fault:
            raise DoorUnreachable(self.url, str(fault)) from fault
        if not isinstance(frame, (TurnAnswer, TurnRefused)):
            raise DoorUnreachable(self.url, "it pushed something")
        return frame

    async def _honest(self, turn: Turn) -> TurnAnswer | TurnRefused:
        """As a door answers that knows nothing of what the liar granted."""
        known = {
            name: tuple(entry for entry in getattr(turn, name) if entry.task in self.tasks)
            for name in ("held", "done", "failed", "released")
        }
        strange = [e for name in ("done", "failed", "released") for e in getattr(turn, name) if e not in known[name]]
        error = ErrorBody(code=RefusalCode.NOT_FOUND, message="no such task")
        told = await super().turn(msgspec.structs.replace(turn, **known))
        assert isinstance(told, TurnAnswer)
        return msgspec.structs.replace(
            told,
            outcomes=(*told.outcomes, *(Outcome(task=e.task, fence=e.fence, error=error) for e in strange)),
            lost=(*told.lost, *(held.fence for held in turn.held if held not in known["held"])),
        )


def answer(**said: Any) -> Lie:
    """An answer to the turn that says this."""
    return lambda turn: json.dumps({"frame": "turn", "n": turn.n, **said}).encode()


def grant(**said: Any) -> dict[str, Any]:
    """A grant of a task that runs nowhere, with changes; ``task`` changes the task."""
    task = {"id": TASK, "job": TASK, "kind": "noop", "urls": ["http://site.test/"], **said.pop("task", {})}
    return {"task": task, "fence": 7, "lease_s": 60.0, "via": "want", **said}


def refused(code: str, **said: Any) -> Lie:
    """The whole turn is refused."""
    error = {"code": code, "message": "no", **said}
    return lambda turn: json.dumps({"frame": "refused", "n": turn.n, "error": error}).encode()


NUMBERS: Final = (0, -1, 2**63, 2**64, 10**300)
LIES: Final[dict[str, Lie]] = {
    "nothing": lambda _: b"",
    "no JSON": lambda _: b"\xff\xfe",
    "another shape": lambda _: b"[]",
    "another frame": lambda _: b'{"frame":"nudge"}',
    "nested": lambda turn: b'{"frame":"turn","n":%d,"roots":' % turn.n + b"[" * 100_000,
    **{f"turn {n:g}": answer(n=n) for n in (*NUMBERS, 10**6)},
    **{f"fence {n:g}": answer(grants=[grant(fence=n)]) for n in NUMBERS},
    **{f"lost {n:g}": answer(lost=[n]) for n in NUMBERS},
    **{f"live_workers {n:g}": answer(live_workers=n) for n in NUMBERS},
    **{f"generation {n:g}": answer(grants=[grant(task={"generation": n})]) for n in NUMBERS},
    **{f"max_run_s {s:g}": answer(grants=[grant(task={"max_run_s": s})]) for s in (0, -1, 1e-9, 1e308)},
    **{f"lease_s {s:g}": answer(grants=[grant(lease_s=s)]) for s in (0, -1, 1e-9, YEAR_S, 1e308)},
    "no URL": answer(grants=[grant(task={"urls": []})]),
    "no kind of ours": answer(grants=[grant(task={"kind": "command", "spec": {"argv": ["true"]}})]),
    "a task with an odd name": answer(grants=[grant(task={"id": "../../etc/passwd\0"})]),
    "a task with a long name": answer(grants=[grant(task={"id": "x" * 100_000})]),
    "a task with much to remember": answer(grants=[grant(task={"meta": {"x": "y" * 2_000_000}})]),
    "a task that pays nonsense": answer(grants=[grant(task={"voucher_wei": "-5"})]),
    "a task of a nested spec": answer(grants=[grant(task={"spec": {"size": {"a": [[[[1]]]]}}})]),
    "one fence for two tasks": answer(grants=[grant(), grant(task={"id": TASK[:-1] + "2"})]),
    "one task by many fences": answer(grants=[grant(fence=n) for n in range(1, 100)]),
    "far more tasks than slots": answer(
        grants=[grant(fence=n, task={"id": f"{TASK[:-6]}{n:06}"}) for n in range(1, 20_000)]
    ),
    "what nobody said": answer(
        outcomes=[{"task": TASK, "fence": 9, "status": "completed"}],
        renewed=[{"task": TASK, "fence": 9, "lease_s": 60.0}],
        lost=[9],
        cancelled=[TASK],
    ),
    "a wait of a year": answer(retry_after_s=YEAR_S),
    "a spread of a year": answer(spread_s=YEAR_S),
    "many roots": answer(roots=["x" * 50] * 20_000),
    **{
        f"refused as {code} for a year": refused(code, retry_after_s=YEAR_S)
        for code in ("bad_request", "stale_turn", "rate_limited", "ledger_unavailable", "invalid_assignee", "paused")
    },
    "refused as nobody knows": refused("banana"),
    "stale by far": refused("stale_turn", details={"n": 2**62}),
    "stale by nonsense": refused("stale_turn", details={"n": "many"}),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_worker_that_was_lied_to_works_for_an_honest_door(
    tmp_path: Path, jumping_clock: MockClock, lie: str
) -> None:
    del jumping_clock
    door = LyingDoor(LIES[lie])
    async with alice_at(tmp_path, door, door._ipfs) as alice:
        task = door.submit()
        with trio.fail_after(WELL_AGAIN_S):
            done = await door.until_status(task, Status.COMPLETED)
        assert done.result is not None
        assert not alice.gone.is_set()
        assert not door.lies
        alice.stop.send_nowait(None)
        with trio.fail_after(WELL_AGAIN_S):
            await alice.gone.wait()


async def test_what_wasnt_asked_for_isnt_run(tmp_path: Path, jumping_clock: MockClock) -> None:
    del jumping_clock
    played = Played()
    played.cue.set()
    unasked = answer(grants=[grant(task={"kind": "played"})])
    door = LyingDoor()
    async with alice_at(tmp_path, door, door._ipfs, played=played) as alice:
        await door.until(lambda: bool(door.heard))
        alice.stop.send_nowait(None)  # it drains: the next turns say that nothing is free
        door.lies = [unasked]
        with trio.fail_after(WELL_AGAIN_S):
            await alice.gone.wait()
    assert played.runs == []


def test_grants_beyond_what_is_free_are_given_back_and_a_flood_of_them_isnt_even_remembered() -> None:
    turns = Turns(boot="b", hello=Hello(version="1", kinds={"noop": "1"}, slots=3), instance="i", now=0.0)
    turns.hold("there is no room for more results")
    turn = turns.take_turn(0.0)
    assert turn is not None
    assert turn.free == 0
    flood = [grant(fence=n, task={"id": f"{TASK[:-6]}{n:06}"}) for n in range(1, 5_000)]
    told = decode(answer(grants=flood)(turn), Frame)  # type: ignore[arg-type,var-annotated]
    assert isinstance(told, TurnAnswer)
    assert turns.answered(told, 0.1) == []
    assert turns.leases == ()
    said = 0
    while (turn := turns.take_turn(0.2)) is not None:
        said += len(turn.released)
        outcomes = tuple(Outcome(task=each.task, fence=each.fence, status="pending") for each in turn.released)
        turns.answered(TurnAnswer(n=turn.n, outcomes=outcomes), 0.2)
    assert said == 2 * MAX_SLOTS
