"""Leave the swarm: first let what runs finish, with a countdown; then give back the rest; then go.

The first request to stop drains, the second gives everything back now (DESIGN §7). Nothing here closes anything: who
opened a resource closes it after this returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import structlog
import trio

from swarm.worker.effects import Effect
from swarm.worker.turns import Turns
from swarm.worker.wake import Wake

log = structlog.get_logger()

#: How long the door may take to hear of what is given back. What it doesn't hear, the next boot or the end of the
#: lease says.
LAST_WORD_S: Final = 3.0
COUNT_EVERY_S: Final = 1.0


async def leave(
    stops: trio.MemoryReceiveChannel[None],
    turns: Turns,
    apply: Callable[[Iterable[Effect]], None],
    *,
    wake: Wake,
    clock: Callable[[], float],
    grace_s: float,
    say: Callable[[str], None],
) -> None:
    """Wait until asked to stop, then wind up; returns when the worker may go.

    Args:
        stops: one item for each request to stop.
        turns: the state machine.
        apply: carries out its decisions.
        wake: woken at each change.
        clock: seconds.
        grace_s: how long running tasks may go on.
        say: told the countdown.
    """
    await stops.receive()
    log.info("drain_began", working=turns.working, grace_s=grace_s)
    apply(turns.drain(clock()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hurry, stops, nursery.cancel_scope, say)
        nursery.start_soon(_count_down, turns, grace_s, say)
        with trio.move_on_after(grace_s):
            await _settled(turns, wake)
        nursery.cancel_scope.cancel()
    if not turns.settled:
        apply(turns.release_all(clock()))
        with trio.move_on_after(LAST_WORD_S):
            await _settled(turns, wake)
    log.info("drained", settled=turns.settled)


async def _settled(turns: Turns, wake: Wake) -> None:
    while not turns.settled:
        await wake.wait()


async def _hurry(
    stops: trio.MemoryReceiveChannel[None], draining: trio.CancelScope, say: Callable[[str], None]
) -> None:
    await stops.receive()
    say("Giving everything back now.")
    draining.cancel()


async def _count_down(turns: Turns, grace_s: float, say: Callable[[str], None]) -> None:
    for left_s in range(math.ceil(grace_s), 0, -1):
        if turns.working:
            tasks = "1 task" if turns.working == 1 else f"{turns.working} tasks"
            say(f"Finishing {tasks}, {left_s} s left; once more Ctrl-C gives them back now.")
        await trio.sleep(COUNT_EVERY_S)
