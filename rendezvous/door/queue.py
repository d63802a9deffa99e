"""``/v1/queue``: how much waits and where, and the waiting tasks as JSON lines, out and in.

A line is a task of a submission with its ``id``, ``job`` and ``owner``, as ``swarm.queue`` has it too, and its dedupe
key as the ledger keeps it (a digest; nobody can tell the key from it). What is imported keeps its owner, its job and
its key, so that neither taking the same lines in again nor submitting the same task makes anything twice; it gets new
ids and no charge.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Final
from uuid import UUID

import attrs
import msgspec
from aiohttp import web
from msgspec import Meta
from uuid6 import uuid7

from rendezvous.door.call import Call
from rendezvous.door.resources import Door
from rendezvous.door.submit import check_kept_for, check_reward, prepare
from rendezvous.ledger.ops import PreparedTask, Submit, SubmitResult
from rendezvous.ledger.queries import LedgerReader
from swarm.errors import MalformedInput
from swarm.model import JobId, Refusal, RefusalCode, Status, TaskId
from swarm.queue.messages import parse_message
from swarm.wire import MAX_TASKS_PER_SUBMISSION, Answer, Seconds, TaskIdText, check_storable, decode, encode

__all__ = ["HostQueue", "ImportFault", "Imported", "QueueView", "export_queue", "import_queue", "queue"]

#: A chunk of the export, bytes.
CHUNK_BYTES: Final = 64 * 1024
CHUNK_TIMEOUT_S: Final = 20.0
#: Hosts that the view names, the fullest first.
SHOWN_HOSTS: Final = 20
#: Lines of one import; its client sends a file in pieces.
MAX_LINES: Final = 10_000
#: Faults that an import's answer names.
SHOWN_FAULTS: Final = 20
#: After so many lines others are let in.
LINES_A_SLICE: Final = 100


class HostQueue(Answer, frozen=True):
    """How many ready tasks a host has."""

    host: str
    ready: int


class QueueView(Answer, frozen=True):
    """What waits: ready, delayed or backing off, being worked on; how long the oldest ready task has, seconds."""

    pending: int
    waiting: int
    active: int
    oldest_ready_s: float | None = None
    hosts: tuple[HostQueue, ...] = ()


class ImportFault(Answer, frozen=True):
    """A line that was not taken."""

    line: int
    code: str
    message: str


class Imported(Answer, frozen=True):
    """What became of the lines; ``faults`` names the first that were not taken."""

    created: int
    duplicates: int
    refused: int
    faults: tuple[ImportFault, ...] = ()


class _KeptKey(msgspec.Struct, frozen=True):
    """A dedupe key as a ledger keeps it, and for how long after the task is done."""

    digest: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{22}\Z")]
    ttl_s: Seconds


class _Known(msgspec.Struct, frozen=True):
    """Where a line comes from."""

    id: str | None = None
    job: TaskIdText | None = None
    owner: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    kept_key: _KeptKey | None = None


@attrs.frozen(kw_only=True)
class _Line:
    number: int
    task: PreparedTask
    owner: str
    job: JobId


async def queue(door: Door, call: Call) -> QueueView:
    """What waits, and where."""
    del call
    counts = await door.ledger.read(lambda reader: reader.counts())
    since = await door.ledger.read(lambda reader: reader.oldest_ready_since())
    hosts = await door.ledger.read(lambda reader: reader.ready_by_host(SHOWN_HOSTS))
    return QueueView(
        pending=counts[Status.PENDING],
        waiting=counts[Status.WAITING],
        active=counts[Status.ACTIVE],
        oldest_ready_s=None if since is None else round(max(0.0, door.wall() - since), 1),
        hosts=tuple(HostQueue(host=host, ready=ready) for host, ready in hosts),
    )


async def export_queue(door: Door, call: Call) -> web.StreamResponse:
    """All tasks that wait, as JSON lines: each a task of a submission, with its ``id``, ``job`` and ``owner``."""
    response = web.StreamResponse(
        headers={"Content-Type": "application/jsonl", "Content-Disposition": 'attachment; filename="queue.jsonl"'}
    )
    if "gzip" in call.request.headers.get("Accept-Encoding", ""):
        response.enable_compression(web.ContentCoding.gzip)
    await response.prepare(call.request)
    after: int | None = 0
    while after is not None:
        rows, after = await door.ledger.read(partial(LedgerReader.export_pending, after=after, now=door.wall()))
        for chunk in _chunks(encode(row) + b"\n" for row in rows):
            async with asyncio.timeout(CHUNK_TIMEOUT_S):  # who doesn't read it is cut
                await response.write(chunk)
    await response.write_eof()
    return response


def _chunks(lines: Iterable[bytes]) -> Iterable[bytes]:
    chunk = bytearray()
    for line in lines:
        chunk += line
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)


async def import_queue(door: Door, call: Call) -> Imported | Refusal:
    """Submit an export, line by line; a line that can't be taken doesn't keep the others out."""
    lines = [(number, line) for number, line in enumerate(call.raw.split(b"\n"), 1) if line.strip()]
    if len(lines) > MAX_LINES:
        return Refusal(RefusalCode.BODY_TOO_LARGE, f"{len(lines)} lines where at most {MAX_LINES} are taken at once")
    fallback, paid = str(uuid7()), door.site.charter.ethereum is not None
    read: list[_Line] = []
    faults: list[ImportFault] = []
    known: dict[int, TaskId] = {}
    for count, (number, raw) in enumerate(lines, 1):
        line = _read(number, raw, owner=call.who.owner, fallback=fallback, paid=paid)
        if isinstance(line, Refusal):
            faults.append(ImportFault(line=number, code=line.code.value, message=line.message))
        else:
            read.append(line[0])
            if line[1] is not None:
                known[number] = line[1]
        if count % LINES_A_SLICE == 0:
            await asyncio.sleep(0)
    here = await door.ledger.read(lambda reader: reader.existing(known.values()))
    fresh = [line for line in read if known.get(line.number) not in here]
    created, duplicates = 0, len(read) - len(fresh)
    for batch in _batches(fresh):
        answer = await door.ledger.call(_submission(batch))
        if isinstance(answer, SubmitResult):
            new = sum(was_created for _, was_created in answer.tasks)
            created, duplicates = created + new, duplicates + len(batch) - new
        else:
            faults += [ImportFault(line=line.number, code=answer.code.value, message=answer.message) for line in batch]
    return Imported(created=created, duplicates=duplicates, refused=len(faults), faults=tuple(faults[:SHOWN_FAULTS]))


def _read(number: int, raw: bytes, *, owner: str, fallback: JobId, paid: bool) -> tuple[_Line, TaskId | None] | Refusal:
    """A line that can be submitted, and the id that its task had; or why it can't."""
    try:
        message = parse_message(raw)
        where = decode(raw, _Known) if raw.lstrip().startswith(b"{") else _Known()
    except MalformedInput as fault:
        return Refusal(RefusalCode.BAD_REQUEST, str(fault))
    unstorable = check_storable(where)
    if unstorable is not None:
        return Refusal(RefusalCode.UNSTORABLE_TEXT, unstorable)
    odd = _odd(where)
    if odd is not None:
        return Refusal(RefusalCode.BAD_REQUEST, odd)
    job = where.job or fallback
    task = prepare(message.task, job=job)
    if isinstance(task, Refusal):
        return task
    if where.kept_key is not None:
        kept = where.kept_key
        too_short = check_kept_for(kept.ttl_s, message.task)
        if too_short is not None:
            return too_short
        task = msgspec.structs.replace(task, kept_digest=kept.digest, dedupe_ttl_s=kept.ttl_s)
    unpayable = check_reward(task, paid=paid)
    if unpayable is not None:
        return unpayable
    return _Line(number=number, task=task, owner=where.owner or owner, job=job), where.id


def _odd(where: _Known) -> str | None:
    """What no export says: a job that is no UUID, an owner that no key can have."""
    if where.owner is not None and not where.owner.isprintable():
        return "the owner's name has characters that can't be printed"
    try:
        if where.job is not None and str(UUID(where.job)) != where.job:
            raise ValueError
    except ValueError:
        return f"the job {where.job!r} isn't the id of one"
    return None


def _batches(lines: list[_Line]) -> Iterable[list[_Line]]:
    """Lines of one owner and job together, in their order, as many as a submission may have."""
    groups: dict[tuple[str, JobId], list[_Line]] = {}
    for line in lines:
        groups.setdefault((line.owner, line.job), []).append(line)
    for group in groups.values():
        for first in range(0, len(group), MAX_TASKS_PER_SUBMISSION):
            yield group[first : first + MAX_TASKS_PER_SUBMISSION]


def _submission(lines: list[_Line]) -> Submit:
    first = lines[0]
    return Submit(
        owner=first.owner,
        job=first.job,
        job_named=False,
        name="imported",
        tasks=tuple(line.task for line in lines),
        body_digest=hashlib.sha256(first.job.encode()).digest(),
    )
