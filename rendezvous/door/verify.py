"""May this result be recorded? The root must be able to read the manifest and all that it names (DESIGN §10).

A completion that passes here names this task and this worker, and every content in it is complete in the root's store.
Whether the lease still holds is the ledger's question, not this one's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from rendezvous.door.envelope import refusal_of
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.ops import DoneItem, LeaseRef, SignedCompletion
from rendezvous.ledger.values import WorkerRef
from rendezvous.store import RootStore
from swarm.content.cid import verify_block
from swarm.content.manifest import Manifest, decode_manifest
from swarm.errors import ContentMismatch, MalformedInput, SwarmError
from swarm.model import Address, Cid, Refusal, RefusalCode
from swarm.receipts import completion_fault
from swarm.turn_wire import Done
from swarm.wire import MAX_MANIFEST_BYTES, Completion

__all__ = ["verify_all"]

#: How many missing blocks a refusal names.
SHOWN_MISSING = 10

#: A manifest, and how long its bytes are.
_Read = tuple[Manifest, int]


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
    inline = [None if done.manifest is None else _read(done.cid, done.manifest) for done in reported]
    costly = [lease for lease, read in zip(leases, inline, strict=True) if read is None or _names_contents(read)]
    held = await ledger.read(lambda reader: reader.may_end(worker, costly)) if costly else frozenset()
    allowed = {*held, *(set(leases) - set(costly))}

    async def look(done: Done, read: _Read | Refusal | None) -> DoneItem | Refusal:
        """Read what has to be read; the results of one turn side by side."""
        try:
            manifest = read if read is not None else await _read_stored(done.cid, store)
            if isinstance(manifest, Refusal):
                return manifest
            fit = item(done, manifest)
            return fit if isinstance(fit, Refusal) else await _missing(manifest[0], store) or fit
        except SwarmError as fault:
            refusal = refusal_of(fault)
            if refusal is None:
                raise
            return refusal

    def item(done: Done, read: _Read | Refusal) -> DoneItem | Refusal:
        return read if isinstance(read, Refusal) else _item(done, *read, ref=worker, payout=payout, network=network_id)

    checked: list[DoneItem | Refusal | None] = []
    looks: list[Awaitable[DoneItem | Refusal]] = []
    for done, lease, read in zip(reported, leases, inline, strict=True):
        if lease not in allowed:
            unverified = DoneItem(task=done.task, fence=done.fence, cid=done.cid, size_bytes=0, verified=False)
            checked.append(unverified)
            continue
        allowed.remove(lease)
        if read is not None and not _names_contents(read):
            checked.append(item(done, read))
        else:
            checked.append(None)
            looks.append(look(done, read))
    seen = iter(await asyncio.gather(*looks)) if looks else iter(())
    return [one if one is not None else next(seen) for one in checked]


def _read(cid: Cid, body: bytes) -> _Read | Refusal:
    """Check a manifest against its CID, and parse it."""
    try:
        verify_block(cid, body)
        return decode_manifest(body), len(body)
    except ContentMismatch as fault:
        return _not_as_promised(fault)
    except MalformedInput as fault:
        return Refusal(RefusalCode.RESULT_UNREADABLE, f"{cid} isn't a manifest: {fault}")


async def _read_stored(cid: Cid, store: RootStore) -> _Read | Refusal:
    try:
        body = await store.read(cid, MAX_MANIFEST_BYTES)
    except (ContentMismatch, MalformedInput) as fault:
        return _not_as_promised(fault)
    if body is None:
        return Refusal(
            RefusalCode.RESULT_UNREADABLE,
            f"the root can't read the manifest {cid}; upload it, then complete",
            details={"missing": [cid]},
        )
    try:
        return decode_manifest(body), len(body)
    except MalformedInput as fault:
        return Refusal(RefusalCode.RESULT_UNREADABLE, f"{cid} isn't a manifest: {fault}")


def _not_as_promised(fault: SwarmError) -> Refusal:
    return Refusal(RefusalCode.RESULT_UNREADABLE, f"the manifest isn't what its CID promises: {fault}")


def _names_contents(read: _Read | Refusal) -> bool:
    return not isinstance(read, Refusal) and bool(read[0].named())


async def _missing(manifest: Manifest, store: RootStore) -> Refusal | None:
    """Refuse a manifest while blocks that it names aren't in the store.

    Raises:
        IpfsUnreachable: the store can't be asked now.
    """
    missing: list[str] = []
    for ref in manifest.named():
        try:
            missing += await store.missing(ref.cid, size_bytes=ref.size_bytes)
        except (ContentMismatch, MalformedInput) as fault:
            return Refusal(RefusalCode.RESULT_UNREADABLE, f"{ref.cid}, which the manifest names, is damaged: {fault}")
    if not missing:
        return None
    return Refusal(
        RefusalCode.RESULT_UNREADABLE,
        f"{len(missing)} blocks that the manifest names aren't here; upload them, then complete",
        details={"missing": missing[:SHOWN_MISSING]},
    )


def _item(
    done: Done, manifest: Manifest, length_bytes: int, *, ref: WorkerRef, payout: Address, network: str
) -> DoneItem | Refusal:
    """What the ledger is told of a result that can be read, if it is this task's and this worker's."""
    if manifest.task != done.task or manifest.worker != ref.address:
        return Refusal(
            RefusalCode.RESULT_MISMATCH,
            f"the manifest is of task {manifest.task} by {manifest.worker}, not of {done.task} by {ref.address}",
        )
    signed = _signed(done, ref.address, payout, network)
    if isinstance(signed, Refusal):
        return signed
    return DoneItem(
        task=done.task,
        fence=done.fence,
        cid=done.cid,
        size_bytes=length_bytes + sum(content.size_bytes for content in manifest.named()),
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
