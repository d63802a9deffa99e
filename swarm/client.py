"""Submit, watch, results: a requester's and operator's side of the door, for the CLI, scripts and notebooks (sync).

    with Client("https://root.example", key) as client:
        job = client.submit([NewTask(kind="fetch", urls=("https://example.com/",))]).job
        for view in client.watch(job):
            print(view.counts)
        for result in client.results(job):
            print(result.urls, result.records)

Invariants: what is submitted is submitted once, however often a request is repeated; nothing is handed out that
doesn't hash to its CID. A door that has answered once is waited for when it goes away. This module reads no
environment and no files, and knows nothing of workers, gossip or the ledger.
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.pool import AsyncResult, ThreadPool
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import attrs
import httpx
import msgspec
import orjson

from swarm.certificates import PLAIN, plain_hint, speaks_plain_http, trust_certificates
from swarm.content.manifest import Manifest, decode_manifest
from swarm.content.walk import FileWalk
from swarm.errors import ContentMismatch, DoorRefused, DoorUnreachable, MalformedInput, PeerError
from swarm.model import Cid, JobId, Settle, Status, TaskId
from swarm.reasons import reason_of
from swarm.wire import (
    MAX_MANIFEST_BYTES,
    MAX_SUBMISSION_BYTES,
    MAX_TASK_BYTES,
    MAX_TASKS_PER_SUBMISSION,
    AccountView,
    ErrorBody,
    EventView,
    JobView,
    NewTask,
    ResultView,
    Submitted,
    TaskView,
    decode,
    encode,
)
from swarm.wire import Receipt as SignedReceipt

__all__ = ["MAX_CONTENT_BYTES", "Client", "Receipt", "Result"]

#: No single content is read into memory beyond this; a worker's own cap on a page is far below.
MAX_CONTENT_BYTES: Final = 256 * 1024 * 1024
#: How long a door that has answered before is waited for, seconds: a restart with recovery takes a few.
PATIENCE_S: Final = 60.0
#: Seconds between two looks at a job: the first ones quick, for small jobs; then a load that a root doesn't notice.
FIRST_LOOK_S: Final = 0.1
LATER_LOOK_S: Final = 1.0
#: How many results are fetched at once; the door answers each in milliseconds, so the way there is what costs.
FETCHES_AT_ONCE: Final = 8
PAGE_ITEMS: Final = 200
#: Room for what surrounds the tasks in a submission: job, name, brackets.
ENVELOPE_BYTES: Final = 1024

T = TypeVar("T")


class _Envelope(msgspec.Struct, frozen=True):
    """Either ``data`` or ``error``; ``data`` stays raw (empty where it is absent) until its shape is known."""

    data: msgspec.Raw = msgspec.Raw(b"")
    error: ErrorBody | None = None


class _PageOf(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw]
    next: str | None = None


@attrs.frozen(kw_only=True)
class Receipt:
    """What became of a submission.

    Args:
        job: the job that the tasks belong to.
        created: how many tasks are new.
        duplicates: how many the swarm knew already.
        warnings: what the door wants to be known, such as a kind that no live worker has.
        tasks: the ids in the order of submission; that of the known task for a duplicate.
    """

    job: JobId
    created: int
    duplicates: int
    warnings: tuple[str, ...] = ()
    tasks: tuple[TaskId, ...] = ()


@attrs.frozen(kw_only=True)
class Result:
    """One task that has ended; verified, where it has a result.

    Args:
        cid: the CID of the manifest; None where the task has no result.
        records: what the selectors found, over all URLs; empty for kinds that find none.
        problem: why the result can't be handed out: it can't be read, or isn't what its CID promises.
    """

    task: TaskId
    urls: tuple[str, ...]
    status: Status
    meta: dict[str, Any] = attrs.field(factory=dict)
    reason: str | None = None
    detail: str | None = None
    cid: Cid | None = None
    manifest: Manifest | None = None
    records: tuple[dict[str, Any], ...] = ()
    problem: str | None = None


class Client:
    """A door, seen by somebody with a key.

    Args:
        url: where the door is, such as ``https://root.example``.
        key: the API key of a requester or operator.
        timeout_s: how long one answer may take.
        patience_s: how long a door that has answered before is waited for.
        transport: how requests travel; None is the network.
        sleep: how to wait; tests bring their own.
        clock: monotonic seconds; tests bring their own.
        rng: the jitter of retries.

    Resource handling: holds connections; use it as a context manager, or ``close`` it. Safe to share among threads.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_s: float = 30.0,
        patience_s: float = PATIENCE_S,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._sleep = sleep
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, no secret
        self._has_answered = False
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=timeout_s,
            transport=transport,
            verify=trust_certificates(),
            # A proxy of the environment can't reach our own loopback.
            trust_env=httpx.URL(self.url).host not in {"127.0.0.1", "::1", "localhost"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    # ── submit, watch ───────────────────────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        tasks: Iterable[NewTask],
        *,
        name: str | None = None,
        job: JobId | None = None,
        token: str | None = None,
        budget_wei: int | None = None,
        settle: Settle | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Receipt:
        """Submit any number of tasks as one job, in chunks that the door takes.

        Args:
            tasks: consumed as they are sent.
            name: what the job is called in lists.
            job: an existing job of yours to add to; a new one begins without it.
            token: makes a later call with the same token and tasks go on where this one was cut off, instead of
                submitting twice. Choose it anew for each submission that you mean.
            budget_wei: the most that the rewards of a new job may come to, wei; later submissions to it included.
            settle: how the tasks of a new job are paid for, for good; None is each by itself.
            on_progress: called with the number of tasks submitted so far.

        Raises:
            MalformedInput: a task is longer than the door takes.
            DoorRefused: the door said no; tasks of earlier chunks are submitted.
            DoorUnreachable: the door went away for longer than ``patience_s``.
        """
        token = token or uuid.uuid4().hex
        ids: list[TaskId] = []
        warnings: dict[str, None] = {}
        created = 0
        for number, chunk in enumerate(_chunks(tasks)):
            body = encode(
                {"tasks": chunk, "job": job, **(_of_new_job(name, budget_wei, settle) if job is None else {})}
            )
            key = hashlib.sha256(b"%s/%d/%s" % (token.encode(), number, body)).hexdigest()
            answer = self._call("POST", "/v1/tasks", Submitted, body=body, headers={"Idempotency-Key": key})
            job = answer.job
            ids += [task.id for task in answer.tasks]
            created += sum(task.status == "created" for task in answer.tasks)
            warnings.update(dict.fromkeys(answer.warnings))
            if on_progress:
                on_progress(len(ids))
        if job is None:
            raise MalformedInput("a submission without tasks")
        return Receipt(
            job=job, created=created, duplicates=len(ids) - created, warnings=tuple(warnings), tasks=tuple(ids)
        )

    def watch(self, job: JobId) -> Iterator[JobView]:
        """Look at a job until all its tasks have ended; the last view says ``done``."""
        pause_s = FIRST_LOOK_S
        while True:
            view = self.job(job)
            yield view
            if view.done:
                return
            self._sleep(pause_s)
            pause_s = min(LATER_LOOK_S, pause_s * 1.5)

    # ── look ────────────────────────────────────────────────────────────────────────────────────────────────────

    def job(self, job: JobId) -> JobView:
        """How far a job is."""
        return self._call("GET", f"/v1/jobs/{job}", JobView)

    def jobs(self) -> Iterator[JobView]:
        """The jobs of one's own (an operator: all), the newest first."""
        return self._pages("/v1/jobs", JobView, {})

    def task(self, task: TaskId) -> TaskView:
        """One task."""
        return self._call("GET", f"/v1/tasks/{task}", TaskView)

    def tasks(self, *, job: JobId | None = None, status: Status | None = None) -> Iterator[TaskView]:
        """Tasks of one's own (an operator: all), page by page as they are consumed."""
        wanted = {"job": job, "status": status}
        return self._pages("/v1/tasks", TaskView, {name: value for name, value in wanted.items() if value})

    def history(self, task: TaskId) -> Iterator[EventView]:
        """What happened to a task, the oldest first."""
        return self._pages(f"/v1/tasks/{task}/events", EventView, {})

    def why(self, task: TaskId) -> dict[str, Any]:
        """Why a task isn't running: its own state, and each live worker's refusal."""
        return self._call("GET", f"/v1/tasks/{task}/why", dict[str, Any])

    def account(self) -> AccountView:
        """What one may spend on rewards, and what the chain asks for now."""
        return self._call("GET", "/v1/account", AccountView)

    def status(self) -> dict[str, Any]:
        """Totals of the swarm."""
        return self._call("GET", "/v1/status", dict[str, Any])

    def workers(self) -> Iterator[dict[str, Any]]:
        """The workers that the door knows (for operators)."""
        return self._pages("/v1/workers", dict[str, Any], {})

    # ── change ──────────────────────────────────────────────────────────────────────────────────────────────────

    def receipt(self, task: TaskId) -> SignedReceipt:
        """A completed task's receipt; its signatures are the caller's to check (``swarm.receipts``)."""
        return self._call("GET", f"/v1/tasks/{task}/receipt", SignedReceipt)

    def cancel(self, task: TaskId) -> dict[str, Any]:
        """Call one task off."""
        return self._call("POST", f"/v1/tasks/{task}/cancel", dict[str, Any])

    def cancel_job(self, job: JobId) -> dict[str, Any]:
        """Call off all tasks of a job that haven't ended."""
        return self._call("POST", f"/v1/jobs/{job}/cancel", dict[str, Any])

    def replay(self, task: TaskId) -> dict[str, Any]:
        """Give a failed task a new life; its attempts start anew."""
        return self._call("POST", f"/v1/tasks/{task}/replay", dict[str, Any])

    def replay_job(self, job: JobId) -> dict[str, Any]:
        """Replay all failed tasks of a job."""
        return self._call("POST", f"/v1/jobs/{job}/replay", dict[str, Any])

    # ── results ─────────────────────────────────────────────────────────────────────────────────────────────────

    def results(self, job: JobId) -> Iterator[Result]:
        """The tasks of a job that have ended, with results that were checked against their CIDs.

        Whatever can't be read, or isn't what its CID promises, comes with a ``problem`` instead of content, so that one
        bad result doesn't hide the others.

        Raises:
            DoorUnreachable: the door went away for longer than ``patience_s``.

        Resource handling: who stops early, by Ctrl-C too, waits for no fetch: those not begun are dropped, the few
        that are under way end by themselves, and hold up no program's end.
        """
        rows = self._pages(f"/v1/jobs/{job}/results", ResultView, {})
        # Not an executor of concurrent.futures: the end of a program waits for the threads of those, at 60 s a fetch.
        with ThreadPool(FETCHES_AT_ONCE) as pool:
            ahead: deque[AsyncResult[Result]] = deque()
            for row in rows:
                ahead.append(pool.apply_async(self._result, (row,)))
                if len(ahead) > 2 * FETCHES_AT_ONCE:
                    yield ahead.popleft().get()
            while ahead:
                yield ahead.popleft().get()

    def content(self, cid: Cid, *, max_bytes: int = MAX_CONTENT_BYTES) -> bytes:
        """A content by the CID of its root block; every block is checked.

        Raises:
            ContentMismatch: the door gave other bytes.
            MalformedInput: it has more than ``max_bytes``, or isn't a file.
            DoorRefused: ``not_found``: it isn't there, or isn't yours.
        """
        walk = FileWalk(cid, max_bytes=max_bytes)
        pieces: list[bytes] = []
        while (wanted := walk.wanted) is not None:
            pieces.append(walk.feed(self._send("GET", f"/v1/content/{wanted}").content))
        return b"".join(pieces)

    def _result(self, row: ResultView) -> Result:
        result = Result(
            task=row.task,
            urls=row.urls,
            status=Status(row.status),
            meta=row.meta,
            reason=row.reason,
            detail=row.detail,
            cid=row.result,
        )
        if row.result is None:
            return result
        try:
            manifest = decode_manifest(self.content(row.result, max_bytes=MAX_MANIFEST_BYTES))
            if manifest.task != row.task:
                raise ContentMismatch(row.result, f"the manifest names task {manifest.task}, not {row.task}")
            contents = [self.content(outcome.records.cid) for outcome in manifest.outcomes if outcome.records]
            records = [orjson.loads(line) for content in contents for line in content.splitlines() if line]
        except (PeerError, DoorRefused, ValueError) as fault:
            return attrs.evolve(result, problem=str(fault))
        return attrs.evolve(result, manifest=manifest, records=tuple(records))

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _pages(self, path: str, shape: type[T], params: dict[str, str]) -> Iterator[T]:
        cursor: str | None = None
        while True:
            asked = {**params, "limit": str(PAGE_ITEMS), **({"cursor": cursor} if cursor else {})}
            page = self._call("GET", path, _PageOf, params=asked)
            for item in page.items:
                yield decode(bytes(item), shape)
            cursor = page.next
            if cursor is None:
                return

    def _call(
        self,
        method: str,
        path: str,
        shape: type[T],
        *,
        params: dict[str, str] | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> T:
        response = self._send(method, path, params=params, body=body, headers=headers)
        data = bytes(decode(response.content, _Envelope).data)
        if not data:
            raise MalformedInput(f"{self.url}{path} answered without data; is it a swarm's door?")
        return decode(data, shape)

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send until it is answered; every call of ours may be repeated without harm."""
        headers = {**({"Content-Type": "application/json"} if body is not None else {}), **(headers or {})}
        give_up_at = self._clock() + self._patience_s
        pause_s = 0.25
        while True:
            refused: DoorRefused | DoorUnreachable
            try:
                response = self._http.request(method, path, params=params, content=body, headers=headers)
            except httpx.TransportError as fault:
                if not self._has_answered:
                    raise self._unreachable(fault) from fault
                refused = self._unreachable(fault)
                wait_s = pause_s
            else:
                self._has_answered = True
                if response.is_success:
                    return response
                refused = _refusal(response)
                if response.status_code not in {429, 503}:
                    raise refused
                wait_s = max(pause_s, refused.retry_after_s or 0)
            wait_s *= 1 + self._rng.random() / 4
            if self._clock() + wait_s > give_up_at:
                raise refused
            self._sleep(wait_s)
            pause_s = min(5.0, pause_s * 2)

    def _unreachable(self, fault: httpx.TransportError) -> DoorUnreachable:
        if speaks_plain_http(fault):
            return DoorUnreachable(self.url, PLAIN, hint=plain_hint(self.url))
        return DoorUnreachable(self.url, reason_of(fault), hint="is a root running there, and is the address right?")


def _refusal(response: httpx.Response) -> DoorRefused:
    """The door's "no"; one that doesn't come from a door is told as such."""
    status = response.status_code
    try:
        error = decode(response.content, _Envelope).error
    except MalformedInput:
        error = None
    if error is None:
        return DoorRefused("not_a_door", f"{response.url} answered {status} and isn't a swarm's door", status=status)
    return DoorRefused(
        error.code, error.message, status=status, retry_after_s=error.retry_after_s, details=error.details
    )


def _of_new_job(name: str | None, budget_wei: int | None, settle: Settle | None) -> dict[str, str]:
    """What the submission that makes a job says of it."""
    told = {"name": name, "budget_wei": None if budget_wei is None else str(budget_wei), "settle": settle}
    return {key: value for key, value in told.items() if value}


def _chunks(tasks: Iterable[NewTask]) -> Iterator[list[msgspec.Raw]]:
    """Cut tasks into submissions by number and length."""
    chunk: list[msgspec.Raw] = []
    chunk_bytes = ENVELOPE_BYTES
    for task in tasks:
        encoded = encode(task)
        if len(encoded) > MAX_TASK_BYTES:
            raise MalformedInput(f"the task of {task.urls[0]} has {len(encoded)} bytes; at most {MAX_TASK_BYTES} pass")
        if len(chunk) == MAX_TASKS_PER_SUBMISSION or chunk_bytes + len(encoded) + 1 > MAX_SUBMISSION_BYTES:
            yield chunk
            chunk, chunk_bytes = [], ENVELOPE_BYTES
        chunk.append(msgspec.Raw(encoded))
        chunk_bytes += len(encoded) + 1
    if chunk:
        yield chunk
