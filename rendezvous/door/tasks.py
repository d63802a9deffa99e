"""Tasks and jobs as their owner and the operator see them: views, history, ``why``, cancel, replay, results.

What isn't the caller's is ``not_found``, as if it weren't there. Lists are keyset pages: a cursor, no offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rendezvous.door.call import Call, Query
from rendezvous.door.envelope import error_body, outcome_of
from rendezvous.door.numbers import whole_number
from rendezvous.door.resources import Door
from rendezvous.ledger.ops import Cancel, Ended, Replay
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.pauses import check_paused, pauses_of
from swarm.model import TERMINAL, Refusal, RefusalCode, Status
from swarm.turn_wire import Outcome
from swarm.wire import MAX_INT, Answer, ErrorBody, JobView, Page, ResultView, TaskView

if TYPE_CHECKING:
    from rendezvous.ledger.queries import LedgerReader

__all__ = [
    "CURSOR",
    "LIMIT",
    "JobChanged",
    "WhyView",
    "WorkerWhy",
    "cancel_job",
    "cancel_task",
    "job",
    "jobs",
    "replay_job",
    "replay_task",
    "results",
    "task",
    "task_events",
    "tasks",
    "why",
]

MAX_PAGE: Final = 500
LIMIT: Final = Query(name="limit", help="Items of a page.", default=100, at_least=1, at_most=MAX_PAGE)
CURSOR: Final = Query(name="cursor", help="`next` of the page before.")
#: Faults of a job's cancel or replay that an answer names.
SHOWN_FAULTS: Final = 20


class WorkerWhy(Answer, frozen=True):
    """Whether one live worker may have the task now; ``refusal`` is None where it may."""

    worker: str
    instance: str
    refusal: ErrorBody | None = None


class WhyView(Answer, frozen=True):
    """Why a task isn't running: a sentence, and each live worker's refusal."""

    task: str
    status: str
    message: str
    live_workers: int
    workers: tuple[WorkerWhy, ...] = ()


class JobChanged(Answer, frozen=True):
    """What a cancel or replay of a job did; ``faults`` names the first tasks that it left alone."""

    job: str
    changed: int
    faults: tuple[Outcome, ...] = ()


def _no_task(task_id: str) -> Refusal:
    return Refusal(RefusalCode.NOT_FOUND, f"there is no task {task_id[:40]} of yours")


def _no_job(job_id: str) -> Refusal:
    return Refusal(RefusalCode.NOT_FOUND, f"there is no job {job_id[:40]} of yours")


async def task(door: Door, call: Call) -> TaskView | Refusal:
    """One task."""
    task_id, owner, now = call.path("id"), call.who.sees, door.wall()
    view = await door.ledger.read(lambda reader: reader.task(task_id, owner, now=now))
    return view or _no_task(task_id)


async def tasks(door: Door, call: Call) -> Page | Refusal:
    """A page of tasks, the oldest first."""
    asked, now = call.queries, door.wall()
    status = Status(asked["status"]) if asked["status"] else None
    return await door.ledger.read(
        lambda reader: reader.tasks(call.who.sees, asked["job"], status, asked["cursor"], asked["limit"], now=now)
    )


async def task_events(door: Door, call: Call) -> Page | Refusal:
    """A page of a task's history, the oldest first."""
    task_id, owner = call.path("id"), call.who.sees
    after = whole_number(call.queries["cursor"] or "0", at_most=MAX_INT)
    if after is None:
        return Refusal(RefusalCode.BAD_REQUEST, "cursor isn't one of ours; use `next` of the page before")

    def look(reader: LedgerReader) -> list[Any] | None:
        return None if reader.task(task_id, owner) is None else list(reader.history(task_id))

    history = await door.ledger.read(look)
    if history is None:
        return _no_task(task_id)
    limit = call.queries["limit"]
    rest = [event for event in history if event.seq > after]
    return Page(items=tuple(rest[:limit]), next=str(rest[limit - 1].seq) if len(rest) > limit else None)


async def why(door: Door, call: Call) -> WhyView | Refusal:
    """Why a task isn't running, by the very code that grants."""
    task_id, owner = call.path("id"), call.who.sees
    live = [(worker.ref, worker.facts) for worker in door.fleet.live()]
    now = door.wall()

    def look(
        reader: LedgerReader,
    ) -> tuple[TaskView, list[tuple[WorkerRef, Refusal | None]], Refusal | None] | None:
        view = reader.task(task_id, owner)
        if view is None:
            return None
        paused = check_paused(pauses_of(reader.pauses()), host=view.host, job=view.job)
        return view, reader.refusals(task_id, live, now=now) if view.status == Status.PENDING else [], paused

    found = await door.ledger.read(look)
    if found is None:
        return _no_task(task_id)
    view, refusals, paused = found
    return WhyView(
        task=task_id,
        status=view.status,
        message=_because(view, [refusal for _, refusal in refusals], now, paused),
        live_workers=len(live),
        workers=tuple(
            WorkerWhy(
                worker=ref.address,
                instance=ref.instance,
                refusal=error_body(refusal) if refusal is not None else None,
            )
            for ref, refusal in refusals
        ),
    )


def _because(view: TaskView, refusals: list[Refusal | None], now: float, paused: Refusal | None) -> str:
    status = Status(view.status)
    if status is Status.ACTIVE:
        return f"it is running: {view.assignee} holds it"
    if status is Status.WAITING:
        rest_s = max(0.0, (view.not_before or now) - now)
        told = ": ".join(part for part in (view.reason, view.detail) if part)
        failed = f" after {told}" if told else ""
        return f"it waits{failed}; it is ready again in {rest_s:.0f} s"
    if status in TERMINAL:
        told = ": ".join(part for part in (view.reason, view.detail) if part)
        return f"it has ended: {view.status}" + (f", {told}" if told else "")
    if paused is not None:
        return paused.message
    if not refusals:
        return "no worker is live; start one with the join link"
    if any(refusal is None for refusal in refusals):
        return "a live worker may have it: it is granted at that worker's next turn with a free slot"
    codes = sorted({refusal.code.value for refusal in refusals if refusal is not None})
    return f"no live worker may have it now: {', '.join(codes)}"


async def cancel_task(door: Door, call: Call) -> Outcome | Refusal:
    """Call one task off; its holder is told at once."""
    ended = await door.ledger.call(Cancel(owner=call.who.sees, who=call.who.owner, tasks=(call.path("id"),)))
    return _single(ended, call.path("id"))


async def replay_task(door: Door, call: Call) -> Outcome | Refusal:
    """Give a failed task a new life."""
    ended = await door.ledger.call(Replay(owner=call.who.sees, who=call.who.owner, tasks=(call.path("id"),)))
    return _single(ended, call.path("id"))


def _single(ended: tuple[Ended, ...], task_id: str) -> Outcome | Refusal:
    if not ended:
        return _no_task(task_id)
    return ended[0].outcome if isinstance(ended[0].outcome, Refusal) else outcome_of(ended[0])


async def job(door: Door, call: Call) -> JobView | Refusal:
    """How far a job is."""
    job_id, owner = call.path("id"), call.who.sees
    view = await door.ledger.read(lambda reader: reader.job(job_id, owner))
    return view or _no_job(job_id)


async def jobs(door: Door, call: Call) -> Page | Refusal:
    """A page of jobs, the newest first."""
    asked = call.queries
    return await door.ledger.read(lambda reader: reader.jobs(call.who.sees, asked["cursor"], asked["limit"]))


async def results(door: Door, call: Call) -> Page | Refusal:
    """A page of a job's ended tasks: the CIDs of results, and why others have none."""
    job_id, owner, asked = call.path("id"), call.who.sees, call.queries

    def look(reader: LedgerReader) -> Page | None:
        if reader.job(job_id, owner) is None:
            return None
        return reader.tasks(owner, job_id, None, asked["cursor"], asked["limit"])

    page = await door.ledger.read(look)
    if page is None:
        return _no_job(job_id)
    ended = [view for view in page.items if Status(view.status) in TERMINAL]
    return Page(
        items=tuple(
            ResultView(
                task=view.id,
                urls=view.urls,
                status=view.status,
                result=view.result,
                meta=view.meta,
                reason=view.reason,
                detail=view.detail,
            )
            for view in ended
        ),
        next=page.next,
    )


async def cancel_job(door: Door, call: Call) -> JobChanged | Refusal:
    """Call off all tasks of a job that haven't ended."""
    return await _change_job(door, call, Cancel(owner=call.who.sees, who=call.who.owner, job=call.path("id")))


async def replay_job(door: Door, call: Call) -> JobChanged | Refusal:
    """Replay all failed tasks of a job."""
    return await _change_job(door, call, Replay(owner=call.who.sees, who=call.who.owner, job=call.path("id")))


async def _change_job(door: Door, call: Call, op: Cancel | Replay) -> JobChanged | Refusal:
    job_id, owner = call.path("id"), call.who.sees
    if await door.ledger.read(lambda reader: reader.job(job_id, owner)) is None:
        return _no_job(job_id)
    ended: tuple[Ended, ...] = await door.ledger.call(op)
    faults = [outcome_of(one) for one in ended if isinstance(one.outcome, Refusal)]
    return JobChanged(job=job_id, changed=len(ended) - len(faults), faults=tuple(faults[:SHOWN_FAULTS]))
