"""The seed's single calls: claim, complete, fail, release. Each is a turn of one, behind the same guard.

They say nothing of a worker's other leases, so nothing is given back or sent again by them. A second worker gets 400
``invalid_assignee`` here as in a turn: there is no other way to a task.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from rendezvous.door.call import Call
from rendezvous.door.envelope import outcome_of
from rendezvous.door.limits import client_address
from rendezvous.door.resources import Door
from rendezvous.door.turns import grant_of
from rendezvous.door.verify import verify_all
from rendezvous.ledger.ops import FailedItem, LeaseRef, TakeTurn, TurnResult
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from swarm.model import Refusal, RefusalCode
from swarm.turn_wire import CompletionProof, Done, Grant, Outcome
from swarm.wire import MAX_INLINE_MANIFEST_BYTES, CidText, Fence, Hello, ReasonText, Request, Seconds, Sentence

__all__ = ["Claim", "Complete", "Fail", "Release", "claim", "complete", "fail", "release"]

#: The boot of leases that were claimed without naming one.
SINGLE_CALLS: Final = "single-calls"

BootText = Annotated[str, Meta(min_length=8, max_length=64)]


class Claim(Request, frozen=True):
    """Ask for one task. ``hello`` says what the worker runs, where no turn or enrolment has."""

    boot: BootText = SINGLE_CALLS
    hello: Hello | None = None


class Complete(Request, frozen=True):
    """Report the result of a task."""

    fence: Fence
    cid: CidText
    manifest: Annotated[bytes, Meta(max_length=MAX_INLINE_MANIFEST_BYTES)] | None = None
    ran_s: Seconds = 0.0
    proof: CompletionProof | None = None


class Fail(Request, frozen=True):
    """Report that a task failed."""

    fence: Fence
    reason: ReasonText
    detail: Sentence = ""
    retryable: bool | None = None
    retry_after_s: Seconds | None = None
    ran_s: Seconds = 0.0


class Release(Request, frozen=True):
    """Give a lease back, uncounted."""

    fence: Fence


async def claim(door: Door, call: Call) -> Grant | Refusal:
    """Claim one task."""
    ref = call.who.worker
    if ref is None or call.who.payout is None:
        return _unbound()
    asked: Claim = call.body
    worker = await door.fleet.met(ref, call.who.payout)
    door.fleet.comes_from(worker, client_address(call.request, door.trusted_proxies))
    if asked.hello is not None:
        door.fleet.introduce(worker, asked.hello)
    task_id = call.path("id")
    result = await _turn(door, ref, TakeTurn(
        worker=ref, boot=asked.boot, facts=worker.facts, offers=(task_id,), explain=True, partial=True
    ))  # fmt: skip
    if result.granted:
        return grant_of(result.granted[0])
    return result.refused.get(task_id) or _no_task(task_id)


async def complete(door: Door, call: Call) -> Outcome | Refusal:
    """Complete one task."""
    ref = call.who.worker
    if ref is None:
        return _unbound()
    said: Complete = call.body
    task_id = call.path("id")
    if len(task_id) != 36:
        return _no_task(task_id)
    done = Done(
        task=task_id, fence=said.fence, cid=said.cid, manifest=said.manifest, ran_s=said.ran_s, proof=said.proof
    )
    (item,) = await verify_all(
        (done,),
        worker=ref,
        payout=call.who.payout or ref.address,
        network_id=door.site.charter.network_id,
        store=door.store,
        ledger=door.ledger,
    )
    if isinstance(item, Refusal):
        return item
    return await _end(door, ref, TakeTurn(worker=ref, boot="", facts=WorkerFacts(), done=(item,), partial=True))


async def fail(door: Door, call: Call) -> Outcome | Refusal:
    """Report one task as failed."""
    ref = call.who.worker
    if ref is None:
        return _unbound()
    said: Fail = call.body
    item = FailedItem(
        task=call.path("id"),
        fence=said.fence,
        reason=said.reason,
        detail=said.detail,
        retryable=said.retryable,
        retry_after_s=said.retry_after_s,
        ran_s=said.ran_s,
    )
    return await _end(door, ref, TakeTurn(worker=ref, boot="", facts=WorkerFacts(), failed=(item,), partial=True))


async def release(door: Door, call: Call) -> Outcome | Refusal:
    """Give one lease back."""
    ref = call.who.worker
    if ref is None:
        return _unbound()
    lease = LeaseRef(call.path("id"), call.body.fence)
    return await _end(door, ref, TakeTurn(worker=ref, boot="", facts=WorkerFacts(), released=(lease,), partial=True))


async def _end(door: Door, ref: WorkerRef, op: TakeTurn) -> Outcome | Refusal:
    result = await _turn(door, ref, op)
    ended = result.ended[0]
    return ended.outcome if isinstance(ended.outcome, Refusal) else outcome_of(ended)


async def _turn(door: Door, ref: WorkerRef, op: TakeTurn) -> TurnResult:
    result: TurnResult = await door.ledger.call(op)
    door.metrics.count("swarm_turns_total", way="call")
    for grant in result.granted:
        door.metrics.count("swarm_grants_total", via=grant.via.value)
    return result


def _unbound() -> Refusal:
    return Refusal(RefusalCode.FORBIDDEN, "this key isn't bound to a worker; enrol first")


def _no_task(task_id: str) -> Refusal:
    return Refusal(RefusalCode.NOT_FOUND, f"there is no task {task_id[:40]}")
