"""Say turns, act on their answers, and watch the leases between them. Joins the state machine to the door.

Two loops share one machine: ``talk`` has at most one exchange under way, ``watch`` stops what its lease doesn't cover
any more even while an exchange hangs. What is decided is decided in ``turns``; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import structlog
import trio

from swarm.errors import DoorRefused, DoorUnreachable
from swarm.model import TURNS_AWAY
from swarm.turn_wire import CancelPush, GrantPush, Nudge, PausePush, Stats, Turn, TurnAnswer, TurnRefused
from swarm.worker.effects import Effect
from swarm.worker.turns import Turns
from swarm.worker.wake import Wake

log = structlog.get_logger()

#: trio's clock stands still while the machine sleeps, the leases' doesn't: while there are leases they are looked at
#: so often.
LOOK_EVERY_S: Final = 1.0
#: A turn that can't be said is tried again no sooner than this.
UNANSWERED_WAIT_S: Final = 0.5

Apply = Callable[[Iterable[Effect]], None]


class SaysTurns(Protocol):
    """The door, as far as turns go; ``swarm.door_client.DoorClient`` is one."""

    sessions: int

    async def turn(self, turn: Turn) -> TurnAnswer | TurnRefused:
        """Say one turn; raises ``DoorUnreachable`` or ``DoorRefused``."""
        ...


async def talk(
    turns: Turns, door: SaysTurns, apply: Apply, *, wake: Wake, clock: Callable[[], float], stats: Callable[[], Stats]
) -> None:
    """Say a turn whenever there is something to say; runs until it is cancelled.

    Raises:
        DoorRefused: the door turned this worker away for good.
    """
    sessions = door.sessions
    while True:
        if door.sessions != sessions:
            sessions = door.sessions
            turns.reconnected()
        turn = turns.take_turn(clock(), stats=stats)
        if turn is None:
            await wake.wait(turns.wait_s(clock()))
            await wake.calm()  # whatever is ready at the same moment is said in the same turn
            continue
        try:
            answer = await door.turn(turn)
        except DoorUnreachable as fault:
            log.debug("turn_unanswered", n=turn.n, reason=fault.reason)
            turns.unanswered(clock(), wait_s=UNANSWERED_WAIT_S)
            continue
        if isinstance(answer, TurnRefused):
            error = answer.error
            if error.code in TURNS_AWAY:
                raise DoorRefused(error.code, error.message, retry_after_s=error.retry_after_s, details=error.details)
            log.warning("turn_refused", n=turn.n, code=error.code, reason=error.message)
            apply(turns.refused(error, clock()))
        else:
            boot = turns.boot
            apply(turns.answered(answer, clock()))
            if turns.boot != boot:
                log.warning(
                    "boot_begun_again", boot=turns.boot, reason="the door heard another boot of this worker since"
                )


async def watch(turns: Turns, apply: Apply, *, leased: Wake, clock: Callable[[], float]) -> None:
    """Stop what its lease doesn't cover any more; runs until it is cancelled."""
    while True:
        overdue = turns.overdue(clock())
        if overdue:
            apply(overdue)
        await leased.wait(min(turns.overdue_in_s(clock()), LOOK_EVERY_S) if turns.leases else float("inf"))


async def take_pushes(
    pushes: trio.MemoryReceiveChannel[Nudge | CancelPush | PausePush | GrantPush],
    turns: Turns,
    apply: Apply,
    *,
    wake: Wake,
    clock: Callable[[], float],
) -> None:
    """Take in what the door says first."""
    async for push in pushes:
        if isinstance(push, Nudge):
            turns.nudge()
        elif isinstance(push, CancelPush):
            apply(turns.cancel(push.tasks))
        elif isinstance(push, GrantPush):
            apply(turns.assigned(push, clock()))
        else:
            turns.pause(push.reason)
        wake.poke()
