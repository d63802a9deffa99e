"""``POST /v1/enrolments``: a newcomer proves its two keys, and gets an API key.

The order is cheap first: admission, challenge, signatures (in a thread: elliptic curves), then the ledger, which sees
to it that a challenge serves once an address and an invite no oftener than it may. The key is shown once.
"""

from __future__ import annotations

import asyncio

import structlog

import swarm
from rendezvous.door.auth import digest_of, new_key
from rendezvous.door.call import Call, Shown
from rendezvous.door.resources import Door
from rendezvous.ledger.act_ops import Enrol
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.versions import check_release
from swarm.model import Refusal, RefusalCode, Role
from swarm.signing import enrolment_fault
from swarm.wire import Enrolled, Enrolment

__all__ = ["enrol"]

log = structlog.get_logger()


async def enrol(door: Door, call: Call) -> Shown | Refusal:
    """Bind a worker's keys and give it an API key."""
    enrolment: Enrolment = call.body
    charter = door.site.charter
    unfit = check_release(enrolment.hello.version, swarm.__version__) if enrolment.hello is not None else None
    if unfit is not None:
        return unfit
    if charter.admission == "invite" and enrolment.invite is None:
        return Refusal(
            RefusalCode.INVITE_INVALID,
            "this swarm admits by invite; ask its operator for a join link and use all of it",
        )
    if charter.admission == "allowlist" and enrolment.address not in charter.allowed:
        return Refusal(
            RefusalCode.FORBIDDEN,
            f"this swarm admits listed addresses only; ask its operator to list {enrolment.address}",
        )
    stale = door.site.check_challenge(enrolment.challenge)
    if stale is not None:
        return stale
    fault = await asyncio.to_thread(
        enrolment_fault, enrolment, network_id=charter.network_id, root_peer=door.site.key_id
    )
    if fault is not None:
        return Refusal(RefusalCode.SIGNATURE_INVALID, fault)
    if not int(enrolment.payout, 16):
        return Refusal(
            RefusalCode.BAD_REQUEST, "payout is the zero address, which nobody can be paid at: give one of your own"
        )
    ref = WorkerRef(enrolment.address, enrolment.instance)
    key = new_key(Role.WORKER)
    invite = enrolment.invite if charter.admission == "invite" else None
    refusal: Refusal | None = await door.ledger.call(
        Enrol(
            challenge=enrolment.challenge,
            worker=ref,
            payout=enrolment.payout,
            peer_id=enrolment.peer_id,
            key_digest=digest_of(key),
            invite_digest=digest_of(invite) if invite is not None else None,
        )
    )
    if refusal is not None:
        return refusal
    door.keys.forget()
    worker = await door.fleet.met(ref, enrolment.payout)
    worker.payout = enrolment.payout
    worker.peer_id = enrolment.peer_id
    if enrolment.hello is not None:
        door.fleet.introduce(worker, enrolment.hello)
    log.info("worker_enrolled", worker=ref.address, instance=ref.instance, payout=enrolment.payout)
    return Shown(
        value=Enrolled(api_key=key, address=ref.address, payout=enrolment.payout, instance=ref.instance),
        status=201,
        headers={"Cache-Control": "no-store"},
    )
