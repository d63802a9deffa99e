"""May this result be recorded? The root must be able to read the manifest and all that it names (DESIGN §10).

A completion that passes here names this task and this worker, and every content in it is complete in the root's store.
Whether the lease still holds is the ledger's question, not this one's.
"""

from __future__ import annotations

from rendezvous.ledger.ops import DoneItem, WorkerRef
from rendezvous.store import RootStore
from swarm.content.cid import verify_block
from swarm.content.manifest import decode_manifest
from swarm.errors import ContentMismatch, MalformedInput
from swarm.model import Refusal, RefusalCode
from swarm.wire import MAX_MANIFEST_BYTES, Done

__all__ = ["verify_done"]

#: How many missing blocks a refusal names.
SHOWN_MISSING = 10


async def verify_done(done: Done, *, worker: WorkerRef, store: RootStore) -> DoneItem | Refusal:
    """Check one reported result.

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
            missing += await store.missing(ref.cid)
        except (ContentMismatch, MalformedInput) as fault:
            return Refusal(RefusalCode.RESULT_UNREADABLE, f"{ref.cid}, which the manifest names, is damaged: {fault}")
    if missing:
        return Refusal(
            RefusalCode.RESULT_UNREADABLE,
            f"{len(missing)} blocks that the manifest names aren't here; upload them, then complete",
            details={"missing": missing[:SHOWN_MISSING]},
        )
    return DoneItem(
        task=done.task,
        fence=done.fence,
        cid=done.cid,
        size_bytes=len(manifest_bytes) + sum(ref.size_bytes for ref in manifest.named()),
        manifest=done.manifest,
        ran_s=done.ran_s,
    )
