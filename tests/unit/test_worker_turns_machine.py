"""Any order of events, lost turns and lost answers: the worker's state machine against a door that keeps its rules."""

from __future__ import annotations

import uuid

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swarm.turn_wire import Done, Grant, Outcome, Renewed, Turn, TurnAnswer
from swarm.wire import Announcement, ErrorBody, Hello, Offer, TaskBody
from swarm.worker.effects import Effect, Start, Stop
from swarm.worker.turns import Stage, Turns

ROOT = "12D3KooWGRUacmEmsDhdzQQ4RKPBoJSvLAjFVXUQzjKs1YeXKp3a"
CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
SLOTS = 3
LEASE_S = 15.0


@attrs.define
class Row:
    """A task of the door: pending, active or completed."""

    fence: int = 0
    lease_until: float = 0.0
    completions: int = 0
    active: bool = False


class Door:
    """The rules of the ledger, for one worker; its clock is the worker's."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.fence = 0
        self.answers: dict[int, TurnAnswer] = {}
        self.asked: dict[int, Turn] = {}
        self.seq = 0

    def submit(self) -> str:
        task = str(uuid.UUID(int=len(self.rows) + 1))
        self.rows[task] = Row()
        return task

    def news(self, task: str) -> Announcement:
        self.seq += 1
        offer = Offer(id=task, kind="noop", host="site")
        return Announcement(v=1, root=ROOT, epoch=1, seq=self.seq, offers=(offer,), spread_s=1.0)

    def holder(self, task: str, fence: int, now: float) -> bool:
        row = self.rows[task]
        return row.active and row.fence == fence and now < row.lease_until

    def turn(self, turn: Turn, now: float) -> TurnAnswer:
        if turn.n in self.answers:
            assert self.asked[turn.n] == turn, "a number was used for two contents"
            return self.answers[turn.n]
        assert turn.n == len(self.answers) + 1
        assert len(turn.offers) <= turn.free
        assert max(len(turn.offers), turn.want) <= turn.free
        for row in self.rows.values():
            if row.active and now >= row.lease_until:
                row.active = False
        outcomes = []
        for entry in (*turn.done, *turn.failed, *turn.released):
            if not self.holder(entry.task, entry.fence, now):
                error = ErrorBody(code="lease_expired", message="no")
                outcomes.append(Outcome(task=entry.task, fence=entry.fence, error=error))
                continue
            row = self.rows[entry.task]
            row.active = False
            row.completions += isinstance(entry, Done)
            outcomes.append(Outcome(task=entry.task, fence=entry.fence, status="completed"))
        ended = {entry.fence for entry in (*turn.done, *turn.failed, *turn.released)}
        renewed, lost = [], []
        for held in turn.held:
            assert held.fence not in ended, "held and ended in one turn"
            if not self.holder(held.task, held.fence, now):
                lost.append(held.fence)
            elif held.renew:
                self.rows[held.task].lease_until = now + LEASE_S
                renewed.append(Renewed(task=held.task, fence=held.fence, lease_s=LEASE_S))
        grants = [
            self.grant(task, row)  # sent again: this turn neither holds nor ends it
            for task, row in self.rows.items()
            if row.active and row.fence not in {held.fence for held in turn.held}
        ]
        room = min(turn.free, len(turn.offers) + turn.want)
        for task, row in self.rows.items():
            if room and not row.active and not row.completions:
                room -= 1
                self.fence += 1
                row.active, row.fence, row.lease_until = True, self.fence, now + LEASE_S
                grants.append(self.grant(task, row))
        answer = TurnAnswer(
            n=turn.n, outcomes=tuple(outcomes), grants=tuple(grants), renewed=tuple(renewed), lost=tuple(lost)
        )
        self.answers[turn.n], self.asked[turn.n] = answer, turn
        return answer

    def grant(self, task: str, row: Row) -> Grant:
        body = TaskBody(id=task, job=task, kind="noop", urls=("http://site/",))
        return Grant(task=body, fence=row.fence, lease_s=LEASE_S, via="want")


class WorkerAgainstDoor(RuleBasedStateMachine):
    """Slots are played by hand; the network loses turns and answers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.door = Door()
        hello = Hello(version="0.1.0", kinds={"noop": "1"}, slots=SLOTS)
        self.turns = Turns(boot="boot-one", hello=hello, instance="alice", now=self.now)
        self.waiting: dict[int, str] = {}
        self.running: dict[int, str] = {}

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Start):
                assert effect.grant.fence not in self.running
                self.waiting[effect.grant.fence] = effect.grant.task.id
            elif isinstance(effect, Stop):
                self.waiting.pop(effect.fence, None)
                self.running.pop(effect.fence, None)

    @rule(gossip=st.booleans())
    def submit(self, gossip: bool) -> None:
        task = self.door.submit()
        if gossip:
            self.turns.hear(self.door.news(task), self.now)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 4.0, 5.0, 10.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.turns.overdue(self.now))

    @rule(fate=st.sampled_from(["answered", "answered", "answered", "turn lost", "answer lost"]))
    def exchange(self, fate: str) -> None:
        turn = self.turns.take_turn(self.now)
        if turn is None:
            return
        answer = self.door.turn(turn, self.now) if fate != "turn lost" else None
        if answer is None or fate == "answer lost":
            self.turns.unanswered(self.now)
        else:
            self.do(self.turns.answered(answer, self.now))

    @precondition(lambda self: self.waiting)
    @rule()
    def start(self) -> None:
        fence, task = self.waiting.popitem()
        if self.turns.started(fence):
            self.running[fence] = task

    @precondition(lambda self: self.running)
    @rule()
    def finish(self) -> None:
        fence, task = self.running.popitem()
        if self.turns.executed(fence):
            self.turns.report(Done(task=task, fence=fence, cid=CID), self.now)

    @rule()
    def nudge(self) -> None:
        self.turns.nudge()

    @invariant()
    def slots_are_never_exceeded(self) -> None:
        assert self.turns.working <= SLOTS
        assert len(self.running) <= SLOTS

    @invariant()
    def what_runs_is_covered_by_a_lease_that_the_door_still_honours(self) -> None:
        for fence, task in self.running.items():
            assert self.door.holder(task, fence, self.now)

    @invariant()
    def no_task_is_completed_twice(self) -> None:
        assert all(row.completions <= 1 for row in self.door.rows.values())

    @invariant()
    def it_never_spins_while_waiting(self) -> None:
        if self.turns.wait_s(self.now) == 0.0:
            opened = self.turns.take_turn(self.now)
            assert opened is not None, "it says that there is something to say, and has nothing"

    def teardown(self) -> None:
        """With a network that works again, every task is completed once, and nothing is left in hand."""
        for _ in range(400):
            turn = self.turns.take_turn(self.now)
            if turn is not None:
                self.do(self.turns.answered(self.door.turn(turn, self.now), self.now))
            while self.waiting:
                self.start()
            while self.running:
                self.finish()
            if self.turns.settled and all(row.completions for row in self.door.rows.values()):
                break
            self.now += min(self.turns.wait_s(self.now), self.turns.overdue_in_s(self.now))
            self.do(self.turns.overdue(self.now))
        assert all(row.completions == 1 for row in self.door.rows.values())
        assert all(lease.stage is not Stage.RUNNING for lease in self.turns.leases)
        assert self.turns.settled


WorkerAgainstDoor.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestWorkerAgainstDoor = WorkerAgainstDoor.TestCase
