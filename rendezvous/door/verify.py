"""May this result be recorded? The root must be able to read the manifest and all that it names (DESIGN §10).

A completion that passes here names this task and this worker, and every content in it is complete in the root's store.
Whether the lease still holds is the ledger's question, not this one's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rendezvous.door.envelope import refusal_of
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.ops import DoneItem, LeaseRef, SignedCompletion, WorkerRef
from rendezvous.store import RootStore
from swarm.content.cid import verify_block
from swarm.content.manifest import decode_manifest
from swarm.errors import ContentMismatch, MalformedInput, SwarmError
from swarm.model import Address, Refusal, RefusalCode
from swarm.receipts import completion_fault
from swarm.wire import MAX_MANIFEST_BYTES, Completion, Done

__all__ = ["verify_all", "verify_done"]

#: How many missing blocks a refusal names.
SHOWN_MISSING = 10


async def verify_all(
    reported: Sequence[Done], *, worker: WorkerRef, payout: Address, network_id: str, store: RootStore, ledger: Ledger
) -> list[DoneItem | Refusal]:
    """Check reported results, in their order, each lease once; those that name contents only if they may end it.

    To look at such a result can cost the root a walk over many blocks; nobody makes it walk for a lease it doesn't
    have. The others go to the ledger unverified, which refuses them, or answers a repeated one as before.

    Raises:
        SwarmError: ledger or store can't be asked now.
    """
    if not reported:
        return []
    leases = [LeaseRef(done.task, done.fence) for done in reported]
    costly = [lease for done, lease in zip(reported, leases, strict=True) if not _is_cheap(done)]
    held = await ledger.read(lambda reader: reader.may_end(worker, costly)) if costly else frozenset()
    allowed = {*held, *(set(leases) - set(costly))}

    async def verify(done: Done, lease: LeaseRef) -> DoneItem | Refusal:
        if lease not in allowed:
            return DoneItem(task=done.task, fence=done.fence, cid=done.cid, size_bytes=0, verified=False)
        allowed.remove(lease)
        try:
            return await verify_done(done, worker=worker, payout=payout, network_id=network_id, store=store)
        except SwarmError as fault:
            refusal = refusal_of(fault)
            if refusal is None:
                raise
            return refusal

    return await asyncio.gather(*(verify(done, lease) for done, lease in zip(reported, leases, strict=True)))


def _is_cheap(done: Done) -> bool:
    """Whether nothing but the turn itself has to be read to verify a result: it is inline, and names no content."""
    if done.manifest is None:
        return False
    try:
        return not decode_manifest(done.manifest).named()
    except MalformedInput:
        return True  # refused as soon as it is looked at


async def verify_done(
    done: Done, *, worker: WorkerRef, payout: Address, network_id: str, store: RootStore
) -> DoneItem | Refusal:
    """Check one reported result, and the worker's signature where there is one.

    Args:
        done: what the worker says.
        worker: who it is.
        payout: who is paid for its work.
        network_id: of this swarm: a completion is signed for it.
        store: where results are.

    Raises:
        IpfsUnreachable: the store can't be asked now.
    """
    manifest_bytes = done.manifest
    try:
        if manifest_bytes is not None:
            verify_block(done.cid, manifest_bytes)
        else:
            manifest_bytes = await store.read(done.cid, MAX_MANIFEST_BYTES)
    except (ContentMismatch, MalformedInput) as fault:
        return Refusal(RefusalCode.RESULT_UNREADABLE, f"the manifest isn't what its CID promises: {fault}")
    if manifest_bytes is None:
        return Refusal(
            RefusalCode.RESULT_UNREADABLE,
            f"the root can't read the manifest {done.cid}; upload it, then complete",
            details={"missing": [done.cid]},
        )
    try:
        manifest = decode_manifest(manifest_bytes)
    except MalformedInput as fault:
        return Refusal(RefusalCode.RESULT_UNREADABLE, f"{done.cid} isn't a manifest: {fault}")
    if manifest.task != done.task or manifest.worker != worker.address:
        return Refusal(
            RefusalCode.RESULT_MISMATCH,
            f"the manifest is of task {manifest.task} by {manifest.worker}, not of {done.task} by {worker.address}",
        )
    missing: list[str] = []
    for ref in manifest.named():
        try:
            missing += await store.missing(ref.cid, size_bytes=ref.size_bytes)
        except (ContentMismatch, MalformedInput) as fault:
            return Refusal(RefusalCode.RESULT_UNREADABLE, f"{ref.cid}, which the manifest names, is damaged: {fault}")
    if missing:
        return Refusal(
            RefusalCode.RESULT_UNREADABLE,
            f"{len(missing)} blocks that the manifest names aren't here; upload them, then complete",
            details={"missing": missing[:SHOWN_MISSING]},
        )
    signed = _signed(done, worker.address, payout, network_id)
    if isinstance(signed, Refusal):
        return signed
    return DoneItem(
        task=done.task,
        fence=done.fence,
        cid=done.cid,
        size_bytes=len(manifest_bytes) + sum(ref.size_bytes for ref in manifest.named()),
        manifest=done.manifest,
        ran_s=done.ran_s,
        signed=signed,
    )


def _signed(done: Done, worker: Address, payout: Address, network_id: str) -> SignedCompletion | Refusal | None:
    if done.proof is None:
        return None
    generation, signature = done.proof.generation, done.proof.signature
    fault = completion_fault(
        Completion(
            network=network_id,
            task=done.task,
            generation=generation,
            result=done.cid,
            fence=done.fence,
            worker=worker,
            payout=payout,
            signature=signature,
        )
    )
    if fault is not None:
        return Refusal(RefusalCode.SIGNATURE_INVALID, f"{fault}; or report it without a signature")
    return SignedCompletion(generation=generation, payout=payout, signature=signature)
