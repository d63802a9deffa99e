"""The ledger as a simulated sender sees it: others write in between, and the process may die at each write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rendezvous.ledger.money_ops import Book, Finalized, Record, Reorged, SenderHeld, Signed
from tests.chain.faults import Killed

if TYPE_CHECKING:
    from tests.chain.simulation import Simulation


class DyingBooks:
    """The ledger as the sender sees it, with others at work in between, and a process that dies."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self.die: str | None = None

    async def call(self, op: Record) -> tuple[bool, ...] | SenderHeld:
        sim = self._sim
        answer: tuple[bool, ...] | SenderHeld
        signed: Signed | None = None
        if op.entries and self.die == "before":
            raise Killed
        if op.entries and self.die == "paused":  # and another process took the key over meanwhile
            self.die = None
            sim.restart()
            sim.sender = sim.new_sender()
            answer = sim.world.do(op)
            assert isinstance(answer, SenderHeld), "a sender of an earlier epoch wrote"
            return answer
        if sim.rng.random() < 0.2:  # between reading the book and writing to it
            await sim.rng.choice((sim.do_cancel, sim.do_finish, sim.do_claim))()
        for entry in op.entries:
            sim.counts[f"→ {type(entry).__name__.lower()}"] += 1
            if isinstance(entry, Reorged) and sim.is_final(entry.nonce):
                sim.counts["→ reorged though final"] += 1
            if isinstance(entry, Signed):
                signed = entry
            elif isinstance(entry, Finalized):
                sim.check_finalized(entry)
        answer = sim.world.do(op)
        if signed is not None and answer == (True,):
            sim.check_signed(signed)
        if op.entries and self.die == "after":
            raise Killed
        return answer

    async def book(self, sender: str) -> Book | None:
        return self._sim.world.reader.book(sender, now=self._sim.world.now)

    def now(self) -> float:
        return self._sim.world.now
