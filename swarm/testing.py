"""In-memory implementations of swarm's ports, for tests: of swarm itself, and of whoever builds on it.

``MemoryDoor`` is a door with a ledger of its own for one worker: it keeps the rules of DESIGN §3 and §4 that a worker
can see (fences, leases, repeated turns, the boot rule), and can be taken down, frozen and made to lose answers. It
knows no HTTP, no policy and no disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from swarm.content.cid import raw_cid
from swarm.content.manifest import Manifest, decode_manifest
from swarm.errors import DoorUnreachable, IpfsUnreachable
from swarm.model import Cid, RefusalCode, Status, is_retryable
from swarm.turn_wire import (
    CancelPush,
    Done,
    Failed,
    Grant,
    GrantPush,
    Nudge,
    Outcome,
    PausePush,
    Released,
    Renewed,
    Turn,
    TurnAnswer,
    TurnRefused,
)
from swarm.wire import ErrorBody, Settings, SwarmSettings, TaskBody

__all__ = ["MemoryDoor", "MemoryIpfs", "MemoryTask"]


@attrs.define(kw_only=True)
class MemoryTask:
    """A task of ``MemoryDoor``."""

    body: TaskBody
    status: Status = Status.PENDING
    fence: int = 0
    boot: str = ""
    lease_until: float = 0.0
    reason: str | None = None
    result: Manifest | None = None
    completions: int = 0
    failures: int = 0


class MemoryIpfs:
    """An IPFS address in memory; ``PutBlocks`` of the upload step."""

    def __init__(self) -> None:
        self.blocks: dict[Cid, bytes] = {}
        self.down = False

    def put_blocks(self, blocks: Any) -> None:
        """Keep blocks, unless it is down."""
        if self.down:
            raise IpfsUnreachable("memory", "it is down")
        for cid, data in blocks:
            self.blocks[cid] = data

    def close(self) -> None:
        """Nothing is held."""


class MemoryDoor:
    """A door for one worker.

    Args:
        clock: the ledger's, seconds.
        lease_s: how long leases run.
        ipfs: where results have to be readable before they are taken.

    Attributes:
        down: turns aren't answered at all.
        lose_answers: so many turns are taken, and their answers lost.
        refuse: what turns are refused with, None where they aren't.
        turns: all turns that were taken, in order, repeated ones too.
        unheard: the turns that were said while it was down.
    """

    def __init__(self, *, clock: Callable[[], float], lease_s: float = 60.0, ipfs: MemoryIpfs | None = None) -> None:
        self.url = "http://memory"
        self.sessions = 1
        self.down = False
        self.lose_answers = 0
        self.refuse: ErrorBody | None = None
        self.paused: str | None = None
        self.tasks: dict[str, MemoryTask] = {}
        self.turns: list[Turn] = []
        self.unheard: list[Turn] = []
        self.settings = Settings(
            peer=None,
            ethereum=None,
            swarm=SwarmSettings(
                name="memory",
                network_id="memory",
                rendezvous_tag="memory",
                admission="open",
                roots=(),
                doors=(self.url,),
            ),
            challenge="",
        )
        self._clock = clock
        self._lease_s = lease_s
        self._ipfs = ipfs or MemoryIpfs()
        self._fence = 0
        self._answers: dict[tuple[str, int], TurnAnswer] = {}
        self._push, self.pushes = trio.open_memory_channel[Nudge | CancelPush | PausePush | GrantPush](64)
        self._changed = trio.Event()

    @property
    def connected(self) -> bool:
        """Whether turns are answered."""
        return not self.down

    # ── what a test does ──────────────────────────────────────────────────────────────────────────────────────────

    def submit(
        self, kind: str = "noop", *, spec: Mapping[str, Any] | None = None, url: str = "http://site/", **more: Any
    ) -> str:
        """Add a pending task and nudge."""
        task = str(uuid.UUID(int=len(self.tasks) + 1))
        body = TaskBody(id=task, job=task, kind=kind, urls=(url,), spec=dict(spec or {}), **more)
        self.tasks[task] = MemoryTask(body=body)
        self._tell(Nudge())
        return task

    def cancel(self, task: str) -> None:
        """Call a task off, and tell its holder at once."""
        self.tasks[task].status = Status.CANCELLED
        self._tell(CancelPush(tasks=(task,)))

    def take_away(self, task: str) -> None:
        """Give a task to nobody: its lease is over, and it stays out of reach."""
        self.tasks[task].status = Status.WAITING
        self.tasks[task].fence = self._next_fence()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a turn, or one that was said in vain, has made a condition true."""
        while not condition():
            await self._changed.wait()

    async def until_status(self, task: str, status: Status) -> MemoryTask:
        """Wait until a task has a status."""
        await self.until(lambda: self.tasks[task].status is status)
        return self.tasks[task]

    def _tell(self, push: Nudge | CancelPush | PausePush) -> None:
        if not self.down:
            self._push.send_nowait(push)

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _next_fence(self) -> int:
        self._fence += 1
        return self._fence

    # ── what a worker does ────────────────────────────────────────────────────────────────────────────────────────

    async def turn(self, turn: Turn) -> TurnAnswer | TurnRefused:
        """Take one turn."""
        await trio.lowlevel.checkpoint()
        if self.down:
            self.unheard.append(turn)
            self._change()
            raise DoorUnreachable(self.url, "it is down")
        if self.refuse is not None:
            return TurnRefused(n=turn.n, error=self.refuse)
        self.turns.append(turn)
        answer = self._answers.get((turn.boot, turn.n))
        if answer is None:
            answer = self._answers[turn.boot, turn.n] = self._take(turn)
        self._change()
        if self.lose_answers:
            self.lose_answers -= 1
            raise DoorUnreachable(self.url, "the answer was lost")
        return answer

    def _take(self, turn: Turn) -> TurnAnswer:
        now = self._clock()
        entries: tuple[Done | Failed | Released, ...] = (*turn.done, *turn.failed, *turn.released)
        outcomes = tuple(self._end(entry, now) for entry in entries)
        held = {one.fence for one in turn.held}
        renewed: list[Renewed] = []
        lost: list[int] = []
        cancelled: list[str] = []
        for one in turn.held:
            row = self.tasks[one.task]
            if self._holds(row, one.fence, now):
                if one.renew:
                    row.lease_until = now + self._lease_s
                    renewed.append(Renewed(task=one.task, fence=one.fence, lease_s=self._lease_s))
            elif row.status is Status.CANCELLED:
                cancelled.append(one.task)
            else:
                lost.append(one.fence)
        grants = []
        for row in self.tasks.values():
            if row.status is Status.ACTIVE and now >= row.lease_until:
                row.status = Status.PENDING
            if row.status is Status.ACTIVE and row.boot != turn.boot:
                row.status = Status.PENDING
            if row.status is Status.ACTIVE and row.fence not in held:
                grants.append(self._grant(row))
        wanted = [self.tasks[task] for task in turn.offers if task in self.tasks]
        wanted += [row for row in self.tasks.values() if row.body.id not in turn.offers]
        room = min(turn.free, len(turn.offers) + turn.want) if self.paused is None else 0
        for row in wanted:
            if room and row.status is Status.PENDING:
                room -= 1
                row.status, row.fence, row.boot = Status.ACTIVE, self._next_fence(), turn.boot
                row.lease_until = now + self._lease_s
                grants.append(self._grant(row))
        return TurnAnswer(
            n=turn.n,
            outcomes=outcomes,
            grants=tuple(grants),
            renewed=tuple(renewed),
            lost=tuple(lost),
            cancelled=tuple(cancelled),
            paused=self.paused,
            live_workers=1,
        )

    def _grant(self, row: MemoryTask) -> Grant:
        return Grant(task=row.body, fence=row.fence, lease_s=self._lease_s, via="want")

    def _holds(self, row: MemoryTask, fence: int, now: float) -> bool:
        return row.status is Status.ACTIVE and row.fence == fence and now < row.lease_until

    def _end(self, entry: Done | Failed | Released, now: float) -> Outcome:
        row = self.tasks[entry.task]
        if not self._holds(row, entry.fence, now):
            again = isinstance(entry, Done) and row.status is Status.COMPLETED and row.fence == entry.fence
            code = RefusalCode.LEASE_EXPIRED if row.fence == entry.fence else RefusalCode.INVALID_ASSIGNEE
            error = None if again else ErrorBody(code=code, message="not yours any more")
            return Outcome(task=entry.task, fence=entry.fence, status=row.status if again else None, error=error)
        if isinstance(entry, Done):
            return self._complete(row, entry)
        if isinstance(entry, Failed):
            row.reason = entry.reason
            row.failures += 1
            row.status = Status.WAITING if is_retryable(entry.reason, entry.retryable) else Status.FAILED
        else:
            row.status = Status.PENDING
        return Outcome(task=entry.task, fence=entry.fence, status=row.status)

    def _complete(self, row: MemoryTask, done: Done) -> Outcome:
        body = done.manifest if done.manifest is not None else self._ipfs.blocks.get(done.cid)
        if body is None or raw_cid(body) != done.cid:
            return self._unreadable(done)
        manifest = decode_manifest(body)
        if any(ref.cid not in self._ipfs.blocks for ref in manifest.named()):
            return self._unreadable(done)
        row.status, row.result = Status.COMPLETED, manifest
        row.completions += 1
        return Outcome(task=done.task, fence=done.fence, status=row.status)

    def _unreadable(self, done: Done) -> Outcome:
        error = ErrorBody(code=RefusalCode.RESULT_UNREADABLE, message="a block of the result isn't there")
        return Outcome(task=done.task, fence=done.fence, error=error)
