"""Store, upload and say what came of executions. Result → journal → IPFS → report.

An outcome is in the journal before anything is said of it. Where the IPFS address is down results wait there, wanting
stops, and uploads are tried again with growing waits; nothing is lost. Where the disk is full they wait in memory,
and wanting stops as well. This step knows the door only by the hooks it is given.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, Protocol

import attrs
import structlog
import trio

from swarm.content.cid import build
from swarm.content.manifest import Manifest, decode_manifest, encode_manifest
from swarm.errors import ConfigurationError, ContentMismatch, IpfsUnreachable, MalformedInput, StoreFull
from swarm.logs import working_on
from swarm.model import Cid, Reason, TaskId
from swarm.turn_wire import CompletionProof, Done, Failed, Grant
from swarm.wire import MAX_INLINE_MANIFEST_BYTES
from swarm.worker.records import Record, State
from swarm.worker.results import Broken, Deferred, Executed, Result
from swarm.worker.storage import ContentLostError, Storage

log = structlog.get_logger()

#: Waits between attempts to upload, and to write to a full disk: half to whole of these, doubling.
FIRST_WAIT_S: Final = 1.0
LAST_WAIT_S: Final = 60.0
#: Uploads at a time; they wait for the network and the disk, not for the CPU.
UPLOADS_AT_ONCE: Final = 4
#: The root says that it can't read what we uploaded; after so many tries the task is reported as failed.
UNREADABLE_TRIES: Final = 3

HOLD_IPFS: Final = "the IPFS address doesn't answer"
HOLD_DISK: Final = "the disk is full"
HOLD_OWED: Final = "too many results wait to be taken"


class PutBlocks(Protocol):
    """An uploader; ``swarm.ipfs.IpfsUploader`` is one. Sync, used by one thread at a time."""

    def put_blocks(self, blocks: Iterable[tuple[Cid, bytes]]) -> None:
        """Put blocks at the IPFS address; raises ``IpfsUnreachable``."""

    def close(self) -> None:
        """Close the connection."""


class Holds(Protocol):
    """Holds records across a kill; ``swarm.worker.journal.Journal`` does. Its methods say what they mean."""

    @property
    def owed_bytes(self) -> int: ...  # noqa: D102

    def __len__(self) -> int: ...

    def records(self, state: State) -> list[Record]: ...  # noqa: D102

    def get(self, task: TaskId, fence: int) -> Record | None: ...  # noqa: D102

    async def put(self, record: Record) -> None: ...  # noqa: D102

    async def keep(self, record: Record) -> None: ...  # noqa: D102

    def forget(self, task: TaskId, fence: int) -> None: ...  # noqa: D102


#: A grant and the CID of its result → the worker's signature.
Prove = Callable[[Grant, Cid], Awaitable[CompletionProof | None]]


@attrs.frozen(kw_only=True)
class Hooks:
    """What this step tells the rest of the worker.

    Args:
        executed: a slot's result is being stored; False where its lease is gone.
        report: say an outcome; False where its lease is gone, so that it isn't said.
        adopt: say an outcome of an earlier boot.
        give_back: release a lease; the seconds say how long to ask for less.
        abandon: release a lease whose result is lost here.
        hold: stop asking, for a reason.
        resume: end that.
        judge: whether a failure is our own fault, so that it is given back instead.
        succeeded: a site was reached.
    """

    executed: Callable[[int], bool]
    report: Callable[[Done | Failed], bool]
    adopt: Callable[[Done | Failed], None]
    give_back: Callable[[Deferred], None]
    abandon: Callable[[int], None]
    hold: Callable[[str], None]
    resume: Callable[[str], None]
    judge: Callable[[Broken], bool]
    succeeded: Callable[[Executed], None]


class Uploads:
    """The outcomes on their way to the door.

    Args:
        journal: holds them.
        storage: has their blocks.
        open_uploader: makes an uploader; one is made for each task that uploads.
        max_owed_bytes: above this wanting stops.
        rng: spreads the waits.
        prove: signs that a granted task is done; None signs nothing.
        provide: told the roots of what was stored and uploaded, so that others find it here.
    """

    def __init__(
        self,
        journal: Holds,
        storage: Storage,
        hooks: Hooks,
        *,
        open_uploader: Callable[[], PutBlocks],
        max_owed_bytes: int,
        rng: random.Random,
        prove: Prove | None = None,
        provide: Callable[[Iterable[Cid]], None] = lambda _: None,
    ) -> None:
        self._prove = prove
        self._provide = provide
        self._journal = journal
        self._storage = storage
        self._hooks = hooks
        self._open_uploader = open_uploader
        self._max_owed_bytes = max_owed_bytes
        self._rng = rng
        #: Records that wait for the IPFS address, the oldest first.
        self._backlog: dict[tuple[str, int], None] = {}
        self._backlogged = trio.Event()
        self._earlier: set[tuple[str, int]] = set()
        self._unreadable: dict[tuple[str, int], int] = {}
        self._idle_uploaders: list[PutBlocks] = []
        self._uploading = trio.CapacityLimiter(UPLOADS_AT_ONCE)

    def __len__(self) -> int:
        return len(self._backlog)

    # ── from a slot ───────────────────────────────────────────────────────────────────────────────────────────────

    async def take(self, result: Result) -> None:
        """Bring one result as far as it can be brought now."""
        grant = result.grant
        with working_on(grant.task.id, grant.fence):
            try:
                if isinstance(result, Executed):
                    await self._take_executed(result)
                elif isinstance(result, Broken):
                    await self._take_broken(result)
                else:
                    self._hooks.give_back(result)
            finally:
                self._storage.release(grant.fence)

    async def _take_broken(self, result: Broken) -> None:
        if self._hooks.judge(result):
            return
        failed = Failed(
            task=result.grant.task.id,
            fence=result.grant.fence,
            reason=result.reason,
            detail=result.detail,
            retryable=result.retryable,
            retry_after_s=result.retry_after_s,
            ran_s=result.ran_s,
        )
        await self._hold(Record(task=failed.task, fence=failed.fence, state=State.READY, report=failed))
        if not self._hooks.report(failed):
            self._journal.forget(failed.task, failed.fence)

    async def _take_executed(self, result: Executed) -> None:
        self._hooks.succeeded(result)
        self._hooks.executed(result.grant.fence)
        try:
            body = encode_manifest(result.manifest)
        except MalformedInput as fault:
            await self._take_broken(
                Broken(grant=result.grant, reason=Reason.TOO_LARGE, detail=str(fault), ran_s=result.ran_s)
            )
            return
        await self._take_manifest(result.grant, result.manifest, body, ran_s=result.ran_s)

    async def reuse(self, grant: Grant, kept: Record) -> None:
        """Use a kept result for a new grant of its task."""
        with working_on(grant.task.id, grant.fence):
            log.info("kept_result_used", kept_fence=kept.fence)
            body = kept.manifest or b""
            await self._take_manifest(grant, decode_manifest(body), body, ran_s=kept.ran_s)
            self._journal.forget(kept.task, kept.fence)

    async def _take_manifest(self, grant: Grant, manifest: Manifest, body: bytes, *, ran_s: float) -> None:
        cid = build(body).root
        done = Done(
            task=grant.task.id,
            fence=grant.fence,
            cid=cid,
            manifest=body if len(body) <= MAX_INLINE_MANIFEST_BYTES else None,
            ran_s=ran_s,
            proof=await self._prove(grant, cid) if self._prove is not None else None,
        )
        record = Record(
            task=grant.task.id,
            fence=grant.fence,
            state=State.STORED,
            manifest=body,
            report=done,
            ran_s=ran_s,
            size_bytes=len(body) + sum(ref.size_bytes for ref in manifest.named()),
        )
        if not manifest.named() and len(body) <= MAX_INLINE_MANIFEST_BYTES:
            await self._say(record)
        else:
            await self._hold(record)
            await self._upload(record)

    # ── uploading ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _upload(self, record: Record) -> bool:
        """Upload what a record needs, then say it. False: it has to wait."""
        try:
            # Left behind when cancelled: the upload has its own deadline, and putting a block twice is harmless.
            await trio.to_thread.run_sync(
                self._put_blocks,
                record.manifest or b"",
                limiter=self._uploading,
                abandon_on_cancel=True,  # type: ignore[call-arg]  # stubs of an older trio stand in front
            )
        except (IpfsUnreachable, ContentMismatch, ConfigurationError) as fault:
            key = (record.task, record.fence)
            if key not in self._backlog:
                log.warning("upload_waits", reason=str(fault))
                self._backlog[key] = None
            self._hooks.hold(HOLD_IPFS)
            self._backlogged.set()
            return False
        except ContentLostError as fault:
            log.error("result_lost", reason=str(fault))
            await self._say_failed(record, str(fault))
            return True
        self._provide(_roots_of(record.manifest or b""))
        await self._say(record)
        return True

    def _put_blocks(self, body: bytes) -> None:
        """Put what a manifest needs; sync, in a thread. An uploader that failed isn't used again."""
        # The door gets it in the turn where it is small, but others fetch it from here by its CID, as they do the rest.
        self._storage.keep(build(body).blocks.items())
        uploader = self._idle_uploaders.pop() if self._idle_uploaders else self._open_uploader()
        try:
            uploader.put_blocks(self._blocks_of(body))
        except BaseException:
            uploader.close()
            raise
        self._idle_uploaders.append(uploader)

    def close(self) -> None:
        """Close the uploaders' connections."""
        while self._idle_uploaders:
            self._idle_uploaders.pop().close()

    def _blocks_of(self, body: bytes) -> Iterator[tuple[Cid, bytes]]:
        for ref in decode_manifest(body).named():
            yield from self._storage.blocks_of(ref.cid)
        if len(body) > MAX_INLINE_MANIFEST_BYTES:
            yield from build(body).blocks.items()

    async def _say(self, record: Record) -> None:
        done = record.report
        if not isinstance(done, Done):  # written by a version that made it only now
            body = record.manifest or b""
            done = Done(
                task=record.task,
                fence=record.fence,
                cid=build(body).root,
                manifest=body if len(body) <= MAX_INLINE_MANIFEST_BYTES else None,
                ran_s=record.ran_s,
            )
        await self._say_report(attrs.evolve(record, state=State.READY, report=done), done)

    async def _say_failed(self, record: Record, detail: str) -> None:
        failed = Failed(
            task=record.task,
            fence=record.fence,
            reason=Reason.EXECUTOR_ERROR,
            detail=detail[:500],
            ran_s=record.ran_s,
        )
        ready = Record(task=record.task, fence=record.fence, state=State.READY, report=failed, ran_s=record.ran_s)
        await self._say_report(ready, failed)

    async def _say_report(self, record: Record, report: Done | Failed) -> None:
        await self._hold(record)
        key = (record.task, record.fence)
        if key in self._earlier:
            self._hooks.adopt(report)
        elif not self._hooks.report(report):
            await self.shelve(record)

    async def _hold(self, record: Record) -> None:
        """Write a record to the journal; a full disk is waited for."""
        waits = self._waits()
        while True:
            try:
                await self._journal.put(record)
            except StoreFull as full:
                log.warning("journal_waits", reason=str(full))
                self._hooks.hold(HOLD_DISK)
                await self._storage.evict()
                await trio.sleep(next(waits))
            else:
                self._hooks.resume(HOLD_DISK)
                self._check_owed()
                return

    def _check_owed(self) -> None:
        if self._journal.owed_bytes > self._max_owed_bytes:
            self._hooks.hold(HOLD_OWED)
        else:
            self._hooks.resume(HOLD_OWED)

    # ── what the door answered ────────────────────────────────────────────────────────────────────────────────────

    def settled(self, report: Done | Failed) -> None:
        """The door took an outcome, or refused it for good: it is owed no more."""
        key = (report.task, report.fence)
        self._earlier.discard(key)
        self._unreadable.pop(key, None)
        self._journal.forget(*key)
        self._check_owed()

    async def shelve(self, record: Record | Done) -> None:
        """A lease is over: keep its result for a new grant of the task."""
        kept = self._journal.get(record.task, record.fence)
        self._earlier.discard((record.task, record.fence))
        if kept is None or kept.manifest is None:
            self._journal.forget(record.task, record.fence)
            return
        try:
            await self._journal.keep(kept)
        except StoreFull:
            self._journal.forget(record.task, record.fence)

    async def unreadable(self, report: Done) -> None:
        """The root can't read what the manifest names: upload it again, and say it again."""
        key = (report.task, report.fence)
        record = self._journal.get(*key)
        if record is None or record.manifest is None:
            log.error("result_lost", task_id=report.task, fence=report.fence, reason="the journal doesn't have it")
            self._unreadable.pop(key, None)
            self._earlier.discard(key)
            self._hooks.abandon(report.fence)
            return
        tries = self._unreadable[key] = self._unreadable.get(key, 0) + 1
        log.warning("result_unreadable", task_id=report.task, fence=report.fence, tries=tries)
        if tries >= UNREADABLE_TRIES:
            await self._say_failed(record, "the root can't read the result at the IPFS address")
            return
        await trio.sleep(FIRST_WAIT_S * tries)
        await self._upload(attrs.evolve(record, state=State.STORED))

    # ── beside the slots ──────────────────────────────────────────────────────────────────────────────────────────

    def recover(self) -> None:
        """Take up what an earlier boot left: what is ready is said first, what isn't uploaded is uploaded."""
        for record in self._journal.records(State.READY):
            if record.report is not None:
                self._earlier.add((record.task, record.fence))
                self._hooks.adopt(record.report)
        for record in self._journal.records(State.STORED):
            self._earlier.add((record.task, record.fence))
            self._backlog[record.task, record.fence] = None
            self._backlogged.set()
        if len(self._journal):
            states = {state.value: len(self._journal.records(state)) for state in State}
            log.info("journal_recovered", **states)

    async def retry(self) -> None:
        """Upload what waits, with growing waits while the address is down; runs until it is cancelled."""
        waits = self._waits()
        first = True
        while True:
            await self._backlogged.wait()
            if not first:
                await trio.sleep(next(waits))
            first = False
            while self._backlog:
                key = next(iter(self._backlog))
                record = self._journal.get(*key)
                if record is None or record.manifest is None:
                    del self._backlog[key]
                    self._hooks.abandon(key[1])
                elif await self._upload(record):
                    self._backlog.pop(key, None)
                else:
                    break
            else:
                self._backlogged = trio.Event()
                self._hooks.resume(HOLD_IPFS)
                waits = self._waits()

    def _waits(self) -> Iterator[float]:
        wait_s = FIRST_WAIT_S
        while True:
            yield wait_s * self._rng.uniform(0.5, 1.0)
            wait_s = min(wait_s * 2, LAST_WAIT_S)


def _roots_of(body: bytes) -> list[Cid]:
    """The roots of a result: what its manifest names, then the manifest, which is looked for first."""
    return [*(ref.cid for ref in decode_manifest(body).named()), build(body).root]


def owed_roots(journal: Holds) -> set[Cid]:
    """The roots of all contents that the journal still needs."""
    roots: set[Cid] = set()
    for state in State:
        for record in journal.records(state):
            if record.manifest is not None:
                roots |= {ref.cid for ref in decode_manifest(record.manifest).named()}
    return roots


async def upload(results: trio.MemoryReceiveChannel[Result], uploads: Uploads) -> None:
    """Take results one after another until the channel closes; start one such task a slot."""
    async with results:
        async for result in results:
            await uploads.take(result)
