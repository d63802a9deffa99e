"""``/v1/admin/…``: what the operator does by hand. Each call says why, and is kept with who made it.

The ledger does it in one transaction; what has to happen at once beside it (a session that ends, a key that opens
nothing any more) happens here, after the commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from rendezvous.door.call import Call
from rendezvous.door.envelope import outcome_of
from rendezvous.door.numbers import whole_number
from rendezvous.door.resources import Door
from rendezvous.door.session import CLOSE_REVOKED
from rendezvous.door.workers import find_worker, hear_of_elsewhere, id_of, unknown_worker
from rendezvous.ledger.act_ops import ActView as Act
from rendezvous.ledger.act_ops import (
    Admit,
    ApproveVersion,
    FailByHand,
    LiftQuarantine,
    Pause,
    Quarantine,
    Resume,
    Revoke,
)
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.pauses import Pause as Paused
from rendezvous.policy.pauses import Scope, check_paused, pauses_of
from rendezvous.policy.records import QUARANTINE_S
from swarm.content.urls import host_of
from swarm.model import Refusal, RefusalCode
from swarm.turn_wire import Outcome
from swarm.wire import MAX_INT, Answer, KindText, Page, Request, Sentence, TaskIdText

__all__ = [
    "ActView",
    "AdmitCall",
    "Admitted",
    "ApproveCall",
    "Approved",
    "FailCall",
    "FailedTasks",
    "PauseCall",
    "PauseView",
    "QuarantineCall",
    "QuarantineView",
    "ResumeCall",
    "Resumed",
    "RevokeCall",
    "RevokedView",
    "UnquarantineCall",
    "Unquarantined",
    "act_view",
    "acts",
    "admit",
    "approve",
    "fail_tasks",
    "host_named",
    "pause",
    "pause_view",
    "quarantine",
    "resume",
    "revoke",
    "unquarantine",
]

#: A task takes about 0.1 ms of the writer.
MAX_TASKS: Final = 1_000
#: What the worker program is pinned by; any other name is a kind.
PROGRAM: Final = "worker"
#: A quarantine of a year is one for good, seconds.
MAX_QUARANTINE_S: Final = 31_536_000.0

Why = Annotated[Sentence, Meta(min_length=1)]
HostText = Annotated[str, Meta(min_length=1, max_length=300)]
OwnerText = Annotated[str, Meta(min_length=1, max_length=64)]


class FailCall(Request, frozen=True):
    """Fail tasks by hand. With ``retry`` they wait for their next attempt, where they have one left."""

    tasks: Annotated[tuple[TaskIdText, ...], Meta(min_length=1, max_length=MAX_TASKS)]
    why: Why
    retry: bool = False


class FailedTasks(Answer, frozen=True):
    """What became of each task."""

    tasks: tuple[Outcome, ...]


class RevokeCall(Request, frozen=True):
    """Revoke all keys of an owner: a requester's or operator's name, or a worker's address."""

    owner: OwnerText
    why: Why


class RevokedView(Answer, frozen=True):
    """How many keys were revoked, how many sessions ended, and how many tasks went back."""

    owner: str
    keys: int
    sessions: int
    requeued: int


class AdmitCall(Request, frozen=True):
    """Let a revoked worker's address enrol again."""

    owner: OwnerText
    why: Why


class Admitted(Answer, frozen=True):
    """An address that may enrol again."""

    owner: str


class PauseCall(Request, frozen=True):
    """Grant nothing any more: of a host, of a job, or of the whole swarm where neither is named."""

    why: Why
    host: HostText | None = None
    job: Annotated[str, Meta(max_length=36)] | None = None


class ResumeCall(Request, frozen=True):
    """End a pause of a host, of a job, or of the swarm."""

    host: HostText | None = None
    job: Annotated[str, Meta(max_length=36)] | None = None
    why: Sentence = ""


class PauseView(Answer, frozen=True):
    """What is paused: ``scope`` is swarm, host or job. ``since`` is Unix seconds."""

    scope: str
    name: str
    who: str
    why: str
    since: float


class Resumed(Answer, frozen=True):
    """What isn't paused any more."""

    scope: str
    name: str


class QuarantineCall(Request, frozen=True):
    """Keep a worker (ADDRESS, or ADDRESS:INSTANCE where it has several) off a host for so many seconds."""

    worker: Annotated[str, Meta(max_length=120)]
    host: HostText
    why: Why
    for_s: Annotated[float, Meta(gt=0, le=MAX_QUARANTINE_S)] = QUARANTINE_S


class UnquarantineCall(Request, frozen=True):
    """Let a worker have tasks of a host again."""

    worker: Annotated[str, Meta(max_length=120)]
    host: HostText
    why: Sentence = ""


class QuarantineView(Answer, frozen=True):
    """A worker that is kept off a host, by whom, why and for how long yet; ``requeued`` went back by this call."""

    worker: str
    host: str
    left_s: float
    who: str | None
    why: str
    requeued: int = 0


class Unquarantined(Answer, frozen=True):
    """A worker that may have tasks of a host again."""

    worker: str
    host: str


class ApproveCall(Request, frozen=True):
    """Pin a version of the worker program or of a kind's executor; with ``approved`` false take it off the pinned."""

    #: ``worker``, or a kind of task.
    name: KindText
    version: Annotated[str, Meta(min_length=1, max_length=64)]
    why: Why
    approved: bool = True


class Approved(Answer, frozen=True):
    """The pinned versions of a name; none means that every version is granted tasks."""

    name: str
    versions: tuple[str, ...]
    #: Such as that nobody runs it.
    warnings: tuple[str, ...] = ()


class ActView(Answer, frozen=True):
    """What an operator did; ``at`` is Unix seconds."""

    id: int
    at: float
    who: str
    act: str
    subject: str
    why: str


def act_view(act: Act) -> ActView:
    """An act as it travels."""
    return ActView(id=act.n, at=act.at, who=act.who, act=act.act, subject=act.subject, why=act.why)


def pause_view(one: Paused) -> PauseView:
    """A pause as it travels."""
    return PauseView(scope=one.scope.value, name=one.name, who=one.who, why=one.why, since=one.since)


async def fail_tasks(door: Door, call: Call) -> FailedTasks:
    """Fail tasks by hand; who holds one is told at once."""
    said: FailCall = call.body
    ended = await door.ledger.call(
        FailByHand(who=call.who.owner, detail=said.why, tasks=tuple(dict.fromkeys(said.tasks)), retry=said.retry)
    )
    return FailedTasks(tasks=tuple(outcome_of(one) for one in ended))


async def revoke(door: Door, call: Call) -> RevokedView | Refusal:
    """Revoke all keys of an owner; sessions of its workers end, and what they hold goes back."""
    said: RevokeCall = call.body
    if said.owner == call.who.owner:
        return Refusal(RefusalCode.BAD_REQUEST, "this would revoke the key that asks; ask with another operator's key")
    revoked = await door.ledger.call(Revoke(owner=said.owner, who=call.who.owner, why=said.why))
    if not revoked.keys and not revoked.workers:
        return Refusal(
            RefusalCode.NOT_FOUND, f"nobody called {said.owner} has a key; swarm-root keys list shows who has"
        )
    door.keys.forget()
    ended = 0
    for ref in revoked.workers:
        worker = door.fleet.get(ref)
        if worker is not None and worker.session is not None:
            worker.session.close(CLOSE_REVOKED, f"{RefusalCode.KEY_REVOKED.value}: {said.why}")
            ended += 1
        door.fleet.remove(ref)
    return RevokedView(owner=said.owner, keys=revoked.keys, sessions=ended, requeued=revoked.requeued)


async def admit(door: Door, call: Call) -> Admitted | Refusal:
    """Let a revoked worker enrol again."""
    said: AdmitCall = call.body
    if not await door.ledger.call(Admit(owner=said.owner, who=call.who.owner, why=said.why)):
        return Refusal(RefusalCode.NOT_FOUND, f"{said.owner} isn't revoked")
    return Admitted(owner=said.owner)


def _scope(host: str | None, job: str | None) -> tuple[Scope, str] | Refusal:
    if host is not None and job is not None:
        return Refusal(RefusalCode.BAD_REQUEST, "name a host or a job, or neither for the whole swarm")
    if job is not None:
        return Scope.JOB, job
    return (Scope.SWARM, "") if host is None else (Scope.HOST, host_named(host))


def host_named(text: str) -> str:
    """A host as pacing knows it, from a host or a URL.

    Raises:
        MalformedInput: it is neither.
    """
    return host_of(text if "://" in text else f"http://{text}/")


async def pause(door: Door, call: Call) -> PauseView | Refusal:
    """Grant nothing any more; what is held goes on, and sessions are told at once."""
    said: PauseCall = call.body
    scope = _scope(said.host, said.job)
    if isinstance(scope, Refusal):
        return scope
    refusal = await door.ledger.call(Pause(scope=scope[0], name=scope[1], who=call.who.owner, why=said.why))
    if refusal is not None:
        return refusal
    paused = await door.ledger.read(lambda reader: reader.pauses())
    if scope[0] is Scope.SWARM:
        told = check_paused(pauses_of(paused))
        door.fleet.pause(told.message if told is not None else said.why)
    for one in paused:
        if (one.scope, one.name) == scope:
            return pause_view(one)
    return Refusal(RefusalCode.WRONG_STATUS, "somebody else ended this pause at the same moment")


async def resume(door: Door, call: Call) -> Resumed | Refusal:
    """End a pause; idle workers are told at once."""
    said: ResumeCall = call.body
    scope = _scope(said.host, said.job)
    if isinstance(scope, Refusal):
        return scope
    refusal = await door.ledger.call(Resume(scope=scope[0], name=scope[1], who=call.who.owner, why=said.why))
    if refusal is not None:
        return refusal
    if scope[0] is Scope.SWARM:
        door.fleet.pause(None)
    else:
        door.fleet.wake_idle()
    return Resumed(scope=scope[0].value, name=scope[1])


async def _worker(door: Door, wanted: str) -> WorkerRef | Refusal:
    """A worker by its id, also one that the fleet has forgotten."""
    found = find_worker(door, wanted)
    if found is not None:
        return found.ref
    address, _, instance = wanted.partition(":")
    ref = WorkerRef(address, instance)
    known = await door.ledger.read(lambda reader: reader.worker(ref))
    return ref if known is not None else unknown_worker(wanted)


async def quarantine(door: Door, call: Call) -> QuarantineView | Refusal:
    """Keep a worker off a host; what it holds of it goes back, and it is told at once."""
    said: QuarantineCall = call.body
    ref, host = await _worker(door, said.worker), host_named(said.host)
    if isinstance(ref, Refusal):
        return ref
    requeued = await door.ledger.call(
        Quarantine(worker=ref, host=host, for_s=said.for_s, who=call.who.owner, why=said.why)
    )
    return QuarantineView(
        worker=id_of(ref),
        host=host,
        left_s=said.for_s,
        who=call.who.owner,
        why=said.why,
        requeued=len(requeued),
    )


async def _kept_off(door: Door, wanted: str, host: str) -> WorkerRef | Refusal:
    """A worker that is kept off a host, by its id; it may be one that was taken off the list since."""
    address, _, instance = wanted.partition(":")
    now = door.ledger.now()
    kept = await door.ledger.read(lambda reader: reader.quarantines(now=now, of=(address, host)))
    found = [one.worker for one in kept if instance in ("", one.worker.instance)]
    if not found:
        return Refusal(
            RefusalCode.NOT_FOUND, f"{wanted[:120]} isn't in quarantine on {host}: swarm-root policy lists who is"
        )
    if len(found) > 1:
        ids = ", ".join(sorted(map(id_of, found)))
        return Refusal(RefusalCode.BAD_REQUEST, f"several workers of {address} are kept off {host}, name one: {ids}")
    return found[0]


async def unquarantine(door: Door, call: Call) -> Unquarantined | Refusal:
    """Let a worker have tasks of a host again."""
    said: UnquarantineCall = call.body
    host = host_named(said.host)
    ref = await _kept_off(door, said.worker, host)
    if isinstance(ref, Refusal):
        return ref
    refusal = await door.ledger.call(LiftQuarantine(worker=ref, host=host, who=call.who.owner, why=said.why))
    if refusal is not None:
        return refusal
    door.fleet.wake_idle()
    return Unquarantined(worker=id_of(ref), host=host)


async def approve(door: Door, call: Call) -> Approved:
    """Pin a version, or take it off the pinned ones."""
    said: ApproveCall = call.body
    versions = await door.ledger.call(
        ApproveVersion(name=said.name, version=said.version, approved=said.approved, who=call.who.owner, why=said.why)
    )
    door.fleet.wake_idle()
    warnings = tuple(_nobody_runs(door, said.name, versions))
    if warnings and await hear_of_elsewhere(door):
        warnings = tuple(_nobody_runs(door, said.name, versions))
    return Approved(name=said.name, versions=versions, warnings=warnings)


def _nobody_runs(door: Door, name: str, versions: tuple[str, ...]) -> Iterator[str]:
    """What is odd about pinned versions: a name that is mistyped pins nothing, a version that nobody has stops all."""
    running = door.fleet.versions(name)
    if not versions or not running.isdisjoint(versions):
        return
    if running:
        yield f"no live worker has such a version of {name}, so none gets tasks; there are {', '.join(sorted(running))}"
    elif name != PROGRAM:
        kinds = ", ".join([PROGRAM, *sorted(door.fleet.kinds())])
        yield f"no live worker runs {name}: what can be pinned now is {kinds}"


async def acts(door: Door, call: Call) -> Page | Refusal:
    """A page of what operators did, the newest first."""
    cursor, limit = call.queries["cursor"], call.queries["limit"]
    before = None if cursor is None else whole_number(cursor, at_most=MAX_INT)
    if cursor is not None and before is None:
        return Refusal(RefusalCode.BAD_REQUEST, "cursor isn't one of ours; use `next` of the page before")
    found = await door.ledger.read(lambda reader: reader.acts(before=before, limit=limit + 1))
    return Page(
        items=tuple(act_view(act) for act in found[:limit]),
        next=str(found[limit - 1].n) if len(found) > limit else None,
    )
