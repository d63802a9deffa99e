"""``GET /v1/tasks/{id}/receipt``: what the worker signed at completion, and that the root accepts it.

The root signs when a receipt is first asked for, from the ledger's row alone, and keeps its signature.
"""

from __future__ import annotations

from rendezvous.door.call import Call
from rendezvous.door.resources import Door
from rendezvous.ledger.ops import KeepAcceptance
from swarm.model import Refusal, RefusalCode, Role, Status
from swarm.wire import Acceptance, Completion, Receipt, TaskView, decode, encode

__all__ = ["receipt"]


async def receipt(door: Door, call: Call) -> Receipt | Refusal:
    """The receipt of a task's latest completion; for its owner, its worker and the operator."""
    task, who = call.path("id"), call.who
    worker = who.worker.address if who.worker is not None else None
    owner = who.owner if who.role is Role.REQUESTER else None
    signed = await door.ledger.read(lambda reader: reader.receipt(task, owner=owner, worker=worker))
    if signed is None:
        view = await door.ledger.read(lambda reader: reader.task(task, owner))
        theirs = view if view is not None and worker in {None, view.assignee} else None
        return Refusal(RefusalCode.NOT_FOUND, _why_there_is_none(task, theirs))
    completion = Completion(
        network=door.site.charter.network_id,
        task=signed.task,
        generation=signed.generation,
        result=signed.result,
        fence=signed.fence,
        worker=signed.worker,
        payout=signed.payout,
        signature=signed.signature,
    )
    if signed.acceptance is not None:
        return Receipt(v=1, completion=completion, acceptance=decode(signed.acceptance, Acceptance))
    acceptance = door.accept(completion, signed.reward_wei, signed.accepted_at)
    await door.ledger.call(
        KeepAcceptance(
            task=signed.task,
            generation=signed.generation,
            signature=signed.signature,
            acceptance=encode(acceptance).decode(),
        )
    )
    return Receipt(v=1, completion=completion, acceptance=acceptance)


def _why_there_is_none(task: str, view: TaskView | None) -> str:
    """Why there is no receipt, for whoever may see the task."""
    if view is None:
        return f"there is no task {task[:40]} of yours"
    if view.status != Status.COMPLETED:
        return f"the task {task} is {view.status}: it has a receipt once it is completed"
    if not int(view.reward_wei):
        return (
            f"the task {task} has no receipt: it has no reward, and tasks without one have a receipt only where the "
            "root ran with --receipts all when they were done, and the worker signed"
        )
    return f"the task {task} has no receipt: its worker signed nothing"
