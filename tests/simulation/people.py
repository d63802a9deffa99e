"""What people do to a simulated swarm: requesters submit, cancel and replay; operators pause, pin, revoke and mend.

What an act forbids is watched from its answer on. Where the answer is lost it may hold or not, so nothing is watched,
and what has to be undone is undone until the root says that it was.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any, Final, Protocol

from rendezvous.ledger.act_ops import (
    Admit,
    ApproveVersion,
    FailByHand,
    KeepApart,
    LiftQuarantine,
    Pause,
    Quarantine,
    Resume,
    Revoke,
    Revoked,
    TakeBack,
)
from rendezvous.ledger.ops import Cancel, HoldHost, Op, PreparedTask, RemoveWorker, Replay, SetHostPace, Submit
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.pauses import Scope
from swarm.model import JobId, Status, TaskId
from swarm.wire import Requires
from tests.rendezvous.ledger_world import START, new_task
from tests.simulation.root import Root
from tests.simulation.sites import Sites
from tests.simulation.time import Timeline
from tests.simulation.watch import Watch
from tests.simulation.worker import DEADLY, Worker

__all__ = ["PEOPLE", "People"]

OPERATOR: Final = "operator"
WHY: Final = "a test"
#: Until whoever wants something again asks again, seconds.
AGAIN_S: Final = 1.0
#: A task that asks for what nobody may have ends by then.
RARE_EXPIRES_S: Final = (60.0, 120.0)
PROFILES: Final = ("profile-0", "profile-1")
SESSIONS: Final = 3
DEADLY_SHARE: Final = 0.01

#: What people do in chaos, and how often beside the other things that happen.
PEOPLE: Final = (
    ("submit", 30),
    ("cancel", 6),
    ("replay", 6),
    ("pause", 3),
    ("quarantine", 3),
    ("lift_quarantine", 1),
    ("fail_by_hand", 2),
    ("take_back", 2),
    ("remove_worker", 1),
    ("revoke", 1),
    ("pin_version", 1),
    ("keep_apart", 1),
    ("hold_host", 1),
    ("repace_host", 2),
)


class Life(Protocol):
    """What people see of a life."""

    rng: random.Random
    timeline: Timeline
    roots: list[Root]
    sites: Sites
    watch: Watch
    workers: dict[WorkerRef, Worker]


class People:
    """Requesters and operators.

    Args:
        most_tasks: that are submitted, in all.
    """

    def __init__(self, life: Life, *, most_tasks: int) -> None:
        self._life: Final = life
        self._rng: Final = life.rng
        self._watch: Final = life.watch
        self._most_tasks: Final = most_tasks
        self.jobs: Final[list[JobId]] = []
        self.tasks: Final[list[TaskId]] = []
        #: What holds, or may hold, and how it is ended.
        self._undo: Final[dict[tuple[str, ...], Callable[[], bool]]] = {}

    def do(self, *ops: Op) -> list[Any]:
        """Ask a root: its answers; none where it is down, stands still, fails, or dies of it."""
        return self._ask(self._rng.choice(self._life.roots), *ops)

    @staticmethod
    def _ask(root: Root, *ops: Op) -> list[Any]:
        answers: list[Any] = []

        def do() -> None:
            answers.extend(answer for answer in root.do(*ops) if not isinstance(answer, Exception))

        if root.is_up and not root.stands_still:
            root.in_life(do)()
        return answers

    def _for_a_while(self, name: tuple[str, ...], undo: Callable[[], bool], seconds: float) -> None:
        self._undo[name] = undo
        self._life.timeline.after(seconds, lambda: self._end(name))

    def _end(self, name: tuple[str, ...]) -> None:
        """End what holds; again until a root says that it did."""
        if name in self._undo:
            if self._undo[name]():
                del self._undo[name]
            else:
                self._life.timeline.after(AGAIN_S, lambda: self._end(name))

    def relent(self) -> None:
        """End all that holds."""
        for name in sorted(self._undo):
            self._end(name)

    # ── requesters ────────────────────────────────────────────────────────────────────────────────────────────────

    def _id(self) -> str:
        """A UUIDv7 of this life's own chance and time."""
        stamp = int((START + self._life.timeline.now) * 1000)
        rng = self._rng
        bits = (stamp << 80) | (0x7 << 76) | (rng.getrandbits(12) << 64) | (0b10 << 62) | rng.getrandbits(62)
        return str(uuid.UUID(int=bits))

    def _new_task(self) -> PreparedTask:
        rng, task = self._rng, self._id()
        host = rng.choice(list(self._life.sites.all))
        key = f"key-{rng.randrange(20)}" if rng.random() < 0.1 else task
        way = DEADLY if rng.random() < DEADLY_SHARE else "/"
        requires, expires_in_s = Requires(), rng.choice((300.0, 86_400.0, 86_400.0))
        match rng.randrange(20):
            case 0 | 1:
                requires = Requires(labels=("big",))
            case 2:
                requires, expires_in_s = Requires(session=f"session-{rng.randrange(SESSIONS)}"), RARE_EXPIRES_S[1]
            case 3:
                requires, expires_in_s = Requires(profile=rng.choice(PROFILES)), rng.choice(RARE_EXPIRES_S)
            case 4:
                requires, expires_in_s = Requires(versions={"scrape": "2"}), rng.choice(RARE_EXPIRES_S)
        return new_task(
            id=task,
            kind=rng.choice(("noop", "scrape", "scrape")),
            host=host,
            urls=tuple(f"https://{host}{way}{task}/{page}" for page in range(rng.choice((1, 1, 3)))),
            priority=rng.randrange(10),
            tier=rng.choice(("interactive", "bulk")),
            requires=requires,
            max_run_s=rng.choice((30.0, 300.0)),
            not_before_s=rng.choice((0.0, 0.0, 0.0, 20.0)),
            expires_in_s=expires_in_s,
            dedupe_key=key,
        )

    def submit(self, number: int | None = None) -> None:
        """Submit some tasks; half of the time with a key, and then again until they are taken."""
        if len(self.tasks) >= self._most_tasks:
            return
        number = min(number or self._rng.randint(1, 10), self._most_tasks - len(self.tasks))
        named = bool(self.jobs) and self._rng.random() < 0.3
        job = self._rng.choice(self.jobs) if named else self._id()
        key = self._id() if self._rng.random() < 0.5 else None
        tasks = tuple(self._new_task() for _ in range(number))
        self._send(
            Submit(owner="owner", job=job, job_named=named, name=None, tasks=tasks, idempotency_key=key),
            again=key is not None,
        )

    def _send(self, submission: Submit, *, again: bool) -> None:
        answers = self.do(submission)
        for answer in answers:
            self.tasks.extend(task for task, created in answer.tasks if created)
            self._watch.check_submission(submission, answer)
            if submission.job not in self.jobs:
                self.jobs.append(submission.job)
        if again and (not answers or self._rng.random() < 0.1):  # or the answer is lost on its way
            self._life.timeline.after(AGAIN_S, lambda: self._send(submission, again=not answers))

    def cancel(self) -> None:
        """Call a task off, or a whole job."""
        if self.jobs and self._rng.random() < 0.1:
            self.do(Cancel(owner="owner", who="owner", job=self._rng.choice(self.jobs)))
        elif self.tasks:
            self.do(Cancel(owner="owner", who="owner", tasks=(self._rng.choice(self.tasks),)))

    def replay(self) -> None:
        """Give a dead letter another life, or all of a job."""
        if self.jobs and self._rng.random() < 0.1:
            self.do(Replay(owner="owner", who="owner", job=self._rng.choice(self.jobs)))
            return
        failed = self._in(Status.FAILED)
        if failed:
            self.do(Replay(owner="owner", who="owner", tasks=(self._rng.choice(failed),)))

    def _in(self, *statuses: Status) -> list[TaskId]:
        return [task for task, seen in self._watch.tasks.items() if seen.status in statuses]

    # ── operators ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _host(self) -> str:
        return self._rng.choice(list(self._life.sites.all))

    def pause(self) -> None:
        """Pause the swarm, a host or a job for a while."""
        scope, name = self._rng.choice(
            [("swarm", ""), ("host", self._host()), *(("job", job) for job in self.jobs[:1])]
        )
        if ("pause", scope, name) in self._undo:
            return

        def undo() -> bool:
            self._watch.paused.discard((scope, name))
            return bool(self.do(Resume(scope=Scope(scope), name=name, who=OPERATOR)))

        if self.do(Pause(scope=Scope(scope), name=name, who=OPERATOR, why=WHY)):
            self._watch.paused.add((scope, name))
        self._for_a_while(("pause", scope, name), undo, self._rng.uniform(1, 30))

    def quarantine(self) -> None:
        """Keep a worker off a host."""
        worker, host = self._rng.choice(list(self._life.workers)), self._host()
        for_s, root = self._rng.uniform(5, 60), self._rng.choice(self._life.roots)
        self._watch.quarantined.pop((worker, host), None)  # this one replaces it, maybe
        if root.is_up and self._ask(root, Quarantine(worker=worker, host=host, for_s=for_s, who=OPERATOR, why=WHY)):
            self._watch.quarantined[worker, host] = root.world.now + for_s

    def lift_quarantine(self) -> None:
        """Let a worker on a host again."""
        if self._watch.quarantined:
            worker, host = self._rng.choice(list(self._watch.quarantined))
            del self._watch.quarantined[worker, host]
            self.do(LiftQuarantine(worker=worker, host=host, who=OPERATOR))

    def fail_by_hand(self) -> None:
        """Count an attempt of a task as failed, whoever has it."""
        open_tasks = self._in(Status.PENDING, Status.WAITING, Status.ACTIVE)
        if open_tasks:
            retry = self._rng.random() < 0.5
            self.do(FailByHand(tasks=(self._rng.choice(open_tasks),), who=OPERATOR, retry=retry))

    def take_back(self) -> None:
        """Take a task from its holder."""
        held = self._in(Status.ACTIVE)
        if held:
            self.do(TakeBack(tasks=(self._rng.choice(held),), who=OPERATOR, why=WHY))

    def remove_worker(self) -> None:
        """Take a worker off the list; it comes back when it speaks."""
        worker, root = self._rng.choice(list(self._life.workers)), self._rng.choice(self._life.roots)
        if self._ask(root, RemoveWorker(worker=worker, who=OPERATOR, why=WHY)):
            root.fleet.remove(worker)

    def revoke(self) -> None:
        """Turn an address away, and let it come again after a while."""
        worker, root = self._rng.choice(list(self._life.workers.values())), self._rng.choice(self._life.roots)
        owner = worker.ref.address
        if ("revoke", owner) in self._undo:
            return

        def undo() -> bool:
            if not self.do(Admit(owner=owner, who=OPERATOR, why=WHY)):
                return False
            worker.revoked = False
            if not worker.is_up:
                worker.start()
            return True

        worker.revoked = True
        for answer in self._ask(root, Revoke(owner=owner, who=OPERATOR, why=WHY)):
            assert isinstance(answer, Revoked)
            for ref in answer.workers:
                root.fleet.remove(ref)
            if worker.session is not None and worker.session.root is root:
                worker.session.close(4003, WHY)
        self._for_a_while(("revoke", owner), undo, self._rng.uniform(1, 60))

    def pin_version(self) -> None:
        """Approve one version of an executor only, for a while."""
        version = self._rng.choice(("1", "2"))
        if ("pin", "scrape") in self._undo:
            return

        def undo() -> bool:
            self._watch.pinned.pop("scrape", None)
            return bool(self.do(ApproveVersion(name="scrape", version=version, approved=False, who=OPERATOR)))

        if self.do(ApproveVersion(name="scrape", version=version, who=OPERATOR)):
            self._watch.pinned["scrape"] = version
        self._for_a_while(("pin", "scrape"), undo, self._rng.uniform(1, 60))

    def keep_apart(self) -> None:
        """Have no two workers of one network on a host, for a while."""
        host = self._host()
        if ("apart", host) in self._undo:
            return

        def undo() -> bool:
            self._watch.apart.discard(host)
            return bool(self.do(KeepApart(host=host, apart=False, who=OPERATOR)))

        if self.do(KeepApart(host=host, who=OPERATOR)):
            self._watch.apart.add(host)
        self._for_a_while(("apart", host), undo, self._rng.uniform(1, 60))

    def hold_host(self) -> None:
        """As when its robots.txt can't be read."""
        self.do(HoldHost(host=self._host(), for_s=self._rng.uniform(1, 30), why=WHY))

    def repace_host(self) -> None:
        """Give a host another pace; one that asks for a delay keeps it."""
        host = self._host()
        pace = self._watch.paces[host]
        if pace.delay_s is not None or pace.rate_per_s <= 0 or ("pace", host) in self._undo:
            return
        rate, burst = self._rng.choice((0.5, 2.0, 20.0)), self._rng.choice((1.0, 5.0))
        pace.loosen(rate_per_s=rate, burst=burst)

        def settle() -> bool:
            root = self._rng.choice(self._life.roots)
            if not self._ask(root, SetHostPace(host=host, rate_per_s=rate, burst=burst)):
                return False
            pace.repace(rate_per_s=rate, burst=burst, at=root.world.now)
            return True

        self._undo["pace", host] = settle
        self._end(("pace", host))
