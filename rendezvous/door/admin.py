"""``/v1/admin/…``: what the operator does by hand. Each call says why, and is kept with who made it.

The ledger does it in one transaction; what has to happen at once beside it (a session that ends, a key that opens
nothing any more) happens here, after the commit.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from rendezvous.door.call import Call
from rendezvous.door.envelope import outcome_of
from rendezvous.door.numbers import whole_number
from rendezvous.door.resources import Door
from rendezvous.door.session import CLOSE_REVOKED
from rendezvous.ledger.ops import ActView as Act
from rendezvous.ledger.ops import Admit, FailByHand, Revoke
from swarm.model import Refusal, RefusalCode
from swarm.wire import MAX_INT, Answer, Outcome, Page, Request, Sentence, TaskIdText

__all__ = [
    "ActView",
    "AdmitCall",
    "Admitted",
    "FailCall",
    "FailedTasks",
    "RevokeCall",
    "RevokedView",
    "act_view",
    "acts",
    "admit",
    "fail_tasks",
    "revoke",
]

#: A task takes about 0.1 ms of the writer.
MAX_TASKS: Final = 1_000

Why = Annotated[Sentence, Meta(min_length=1)]
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
