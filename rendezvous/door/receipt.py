"""``GET /v1/tasks/{id}/receipt``: what the worker signed at completion, and that the root accepts it.

The root signs when a receipt is first asked for, from the ledger's row alone, and keeps its signature.
"""

from __future__ import annotations

from rendezvous.door.call import Call
from rendezvous.door.resources import Door
from rendezvous.ledger.ops import KeepAcceptance
from swarm.model import Refusal, RefusalCode, Role
from swarm.wire import Acceptance, Completion, Receipt, decode, encode

__all__ = ["receipt"]


async def receipt(door: Door, call: Call) -> Receipt | Refusal:
    """The receipt of a task's latest completion; for its owner, its worker and the operator."""
    task, who = call.path("id"), call.who
    worker = who.worker.address if who.worker is not None else None
    owner = who.owner if who.role is Role.REQUESTER else None
    signed = await door.ledger.read(lambda reader: reader.receipt(task, owner=owner, worker=worker))
    if signed is None:
        return Refusal(
            RefusalCode.NOT_FOUND,
            f"there is no receipt of a task {task[:40]} of yours: it isn't completed, or its worker signed nothing",
        )
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
