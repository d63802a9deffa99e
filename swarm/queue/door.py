"""A swarm's door as a queue: push submits, pop claims, ack completes, nack releases.

Two keys make the two halves. A requester's (or operator's) key pushes, counts and exports one job; a worker's key pops,
acknowledges and gives back. Pop is a turn that wants one task, since only the ledger knows which task this worker may
have; it is granted as to any other worker: by pace, tier and priority. What a consumer made of the task it keeps
itself: an acknowledgement completes it with a manifest that names no content.

The ledger's rules are the queue's: leases follow what the kind takes, a released task keeps its place in line, one that
failed backs off, and the same task pushed twice to one job is one.
"""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import httpx
import msgspec
import trio

import swarm
from swarm.certificates import trust_certificates
from swarm.client import Client
from swarm.content.cid import raw_cid
from swarm.content.manifest import Manifest, encode_manifest
from swarm.door_member import DoorMember
from swarm.door_session import refused_by
from swarm.errors import ConfigurationError, DoorUnreachable
from swarm.identity import Identity, open_identity
from swarm.logs import write_unless_done
from swarm.model import Address, Refusal, RefusalCode, Status, TaskId
from swarm.queue.messages import parse_lines
from swarm.queue.port import ClosedByBlock, Delivery, Gate, QueueStats, as_task, export_line, lost
from swarm.reasons import reason_of
from swarm.signing import JoinLink, parse_join_link
from swarm.turn_wire import Grant, Held, Turn, TurnAnswer
from swarm.wire import MAX_INLINE_MANIFEST_BYTES, MAX_SLOTS, Hello, JobView, NewTask, TaskView, decode, encode

__all__ = ["DoorQueue", "open_door_queue"]

TIMEOUT_S: Final = 30.0
#: A turn names at most so many leases: a consumer that holds as many pops nothing before some of them have ended.
MAX_HELD: Final = 2 * MAX_SLOTS
#: What a consumer is told that lost its delivery; anything else that the door refuses is a fault.
_LOST: Final = frozenset(
    {RefusalCode.INVALID_ASSIGNEE, RefusalCode.LEASE_EXPIRED, RefusalCode.WRONG_STATUS, RefusalCode.NOT_FOUND}
)

T = TypeVar("T")


class _Envelope(msgspec.Struct, frozen=True):
    data: msgspec.Raw


@attrs.frozen(kw_only=True)
class _Lease:
    """A task that this consumer holds."""

    fence: int
    kind: str
    meta: dict[str, Any]


class _Consumer:
    """The worker's half: turns and single calls, one at a time."""

    def __init__(self, url: str, api_key: str, address: Address, hello: Hello, http: httpx.Client) -> None:
        self._url: Final = url
        self._headers: Final = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        self._address: Final = address
        self._hello: Final = hello
        self._http: Final = http
        self._lock: Final = threading.Lock()
        self._boot: Final = uuid.uuid4().hex
        self._n = 0
        self._leases: Final[dict[TaskId, _Lease]] = {}
        #: Grants that were sent again after a lost answer, beyond the one that was asked for.
        self._ready: Final[list[Grant]] = []

    def close(self) -> None:
        """Hang up; what is held runs out."""
        self._http.close()

    def take(self) -> Delivery | None:
        """Ask for one task."""
        with self._lock:
            if not self._ready and len(self._leases) >= MAX_HELD:
                self._turn()  # it tells which of them ran out
            if not self._ready and len(self._leases) < MAX_HELD:
                self._ready.extend(self._turn(want=1).grants)
            if not self._ready:
                return None
            grant = self._ready.pop(0)
            task = grant.task
            self._leases[task.id] = _Lease(fence=grant.fence, kind=task.kind, meta=task.meta)
        return Delivery(
            id=task.id,
            task=NewTask(kind=task.kind, urls=task.urls, spec=task.spec, meta=task.meta, max_run_s=task.max_run_s),
            deliveries=task.attempt,
            visible_s=grant.lease_s,
            token=str(grant.fence),
        )

    def renew(self, delivery: Delivery) -> Refusal | None:
        """Ask for more time."""
        with self._lock:
            if self._fence_of(delivery) is None:
                return lost(delivery.id)
            answer = self._turn(renew=delivery.id)
        return None if any(one.task == delivery.id for one in answer.renewed) else lost(delivery.id)

    def complete(self, delivery: Delivery) -> Refusal | None:
        """Report it as done."""
        with self._lock:
            lease = self._leases.get(delivery.id)
        kind, meta = (lease.kind, lease.meta) if lease is not None else (delivery.task.kind, delivery.task.meta)
        manifest = Manifest(task=delivery.id, worker=self._address, kind=kind, meta=meta)
        body = encode_manifest(manifest)
        if len(body) > MAX_INLINE_MANIFEST_BYTES:  # the ledger gives a task's meta back by itself
            body = encode_manifest(msgspec.structs.replace(manifest, meta={}))
        return self._end(delivery, "complete", {"cid": raw_cid(body), "manifest": body})

    def give_back(self, delivery: Delivery, reason: str | None) -> Refusal | None:
        """Release it, or report that it failed."""
        if reason is None:
            return self._end(delivery, "release", {})
        return self._end(delivery, "fail", {"reason": reason})

    def _fence_of(self, delivery: Delivery) -> int | None:
        lease = self._leases.get(delivery.id)
        return lease.fence if lease is not None and str(lease.fence) == delivery.token else None

    def _end(self, delivery: Delivery, call: str, said: dict[str, Any]) -> Refusal | None:
        body = encode({"fence": int(delivery.token), **said})
        answer = self._post(f"/v1/tasks/{delivery.id}/{call}", body)
        with self._lock:
            if self._fence_of(delivery) is not None:
                del self._leases[delivery.id]
        return answer if isinstance(answer, Refusal) else None

    def _turn(self, *, want: int = 0, renew: TaskId | None = None) -> TurnAnswer:
        """One turn; it says what is held, so that nothing of it is given back."""
        self._n += 1
        held = tuple(Held(task=task, fence=lease.fence, renew=task == renew) for task, lease in self._leases.items())
        turn = Turn(boot=self._boot, n=self._n, free=want, want=want, held=held, hello=self._hello)
        answer = self._post("/v1/turns", encode(turn))
        if isinstance(answer, Refusal):
            return TurnAnswer(n=self._n)
        told = decode(answer, TurnAnswer)
        for task, lease in list(self._leases.items()):
            if lease.fence in told.lost or task in told.cancelled:
                del self._leases[task]
        return told

    def _post(self, path: str, body: bytes) -> bytes | Refusal:
        """One call: the data of its answer, or the refusal of a lost delivery.

        Raises:
            DoorUnreachable: no answer.
            DoorRefused: the door said no for another reason.
        """
        try:
            response = self._http.post(self._url + path, content=body, headers=self._headers)
        except httpx.HTTPError as fault:
            raise DoorUnreachable(self._url, reason_of(fault)) from fault
        if response.is_success:
            return bytes(decode(response.content, _Envelope).data)
        refused = refused_by(response.status_code, response.content)
        if refused is None:
            raise DoorUnreachable(self._url, f"it answered {response.status_code}, and not as a door does")
        if refused.code in _LOST:
            return Refusal(RefusalCode(refused.code), str(refused))
        raise refused


class DoorQueue(ClosedByBlock):
    """The queue; made by ``open_door_queue``.

    *Resource handling*: holds connections and, with a worker, the lock of its directory, until ``close``.
    """

    def __init__(self, client: Client | None, consumer: _Consumer | None, *, url: str, name: str | None = None) -> None:
        self._client: Final = client
        self._consumer: Final = consumer
        self._name: Final = name
        self._gate: Final = Gate(f"at {url}", release=self._hang_up)
        self._pushing: Final = threading.Lock()
        #: What is pushed is one job; the first push makes it.
        self.job: str | None = None
        self._held_open: Final = contextlib.ExitStack()

    def close(self) -> None:
        """End it; see the port."""
        self._gate.close()

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._consumer is not None:
            self._consumer.close()
        self._held_open.close()

    def keep(self, resources: contextlib.ExitStack) -> None:
        """Hold these until ``close``."""
        self._held_open.push(resources.pop_all())

    # ── the requester's half ──────────────────────────────────────────────────────────────────────────────────────

    def _requester(self) -> Client:
        if self._client is None:
            raise ConfigurationError("this queue has no requester's key", hint="open_queue(link, key=…) pushes")
        return self._client

    def push(self, task: NewTask | str, *, task_id: TaskId | None = None) -> TaskId:
        """Submit a task; see the port. The door chooses its id; ``task_id`` makes a repeated push the same one."""
        return self._submit([as_task(task)], token=task_id)[0]

    def batch_submit(self, tasks: Iterable[NewTask | str]) -> list[TaskId]:
        """Submit many tasks; see the port."""
        return self._submit((as_task(task) for task in tasks), token=None)

    def _submit(self, tasks: Iterable[NewTask], *, token: str | None) -> list[TaskId]:
        waiting = iter(tasks)
        first = next(waiting, None)
        if first is None:
            self._gate.check()
            return []
        with self._gate.call(), self._pushing:  # two first pushes would make two jobs
            client = self._requester()
            receipt = client.submit(_chain(first, waiting), job=self.job, name=self._name, token=token)
            self.job = receipt.job
        return list(receipt.tasks)

    def _view(self) -> JobView | None:
        with self._gate.call():
            client = self._requester()
            return None if self.job is None else client.job(self.job)

    def __len__(self) -> int:
        return self.stats().pending

    def in_flight(self) -> int:
        """How many tasks are in consumers' hands."""
        return self.stats().in_flight

    def stats(self) -> QueueStats:
        """Totals of this queue's job; what backs off is pending."""
        view = self._view()
        counts = {} if view is None else view.counts
        return QueueStats(
            pending=counts.get(Status.PENDING, 0) + counts.get(Status.WAITING, 0),
            in_flight=counts.get(Status.ACTIVE, 0),
            done=counts.get(Status.COMPLETED, 0),
            dead=counts.get(Status.FAILED, 0),
        )

    def export(self) -> Iterator[bytes]:
        """The pending tasks; see the port."""
        found: list[TaskView] = []
        with self._gate.call():
            client = self._requester()
            for status in (Status.PENDING, Status.WAITING) if self.job is not None else ():
                found += client.tasks(job=self.job, status=status)
        found.sort(key=lambda view: -view.priority)
        return (export_line(view.id, _task_of(view)) for view in found)

    def import_(self, lines: Iterable[bytes | str]) -> int:
        """Submit an export; see the port."""
        count = 0
        for message in parse_lines(lines):
            self.push(message.task, task_id=message.id)
            count += 1
        return count

    # ── the worker's half ─────────────────────────────────────────────────────────────────────────────────────────

    def _worker(self) -> _Consumer:
        if self._consumer is None:
            raise ConfigurationError("this queue has no worker's keys", hint="open_queue(link, worker=DIRECTORY) pops")
        return self._consumer

    def pop(self, wait_s: float = 0.0) -> Delivery | None:
        """Claim a task; see the port."""
        return self._gate.until(self._take, wait_s)

    def _take(self) -> Delivery | None:
        with self._gate.call():
            return self._worker().take()

    def ack(self, delivery: Delivery) -> Refusal | None:
        """Complete it; see the port."""
        with self._gate.call():
            return self._worker().complete(delivery)

    def nack(self, delivery: Delivery, *, reason: str | None = None) -> Refusal | None:
        """Release it, or report that it failed; see the port."""
        with self._gate.call():
            return self._worker().give_back(delivery, reason)

    def extend(self, delivery: Delivery) -> Refusal | None:
        """Renew its lease; see the port."""
        with self._gate.call():
            return self._worker().renew(delivery)


def _chain(first: NewTask, rest: Iterator[NewTask]) -> Iterator[NewTask]:
    yield first
    yield from rest


def _task_of(view: TaskView) -> NewTask:
    return NewTask(
        kind=view.kind,
        urls=view.urls,
        spec=view.spec,
        meta=view.meta,
        priority=view.priority,
        tier=view.tier,
        requires=view.requires,
        reward_wei=view.reward_wei,
        max_attempts=view.max_attempts,
    )


def open_door_queue(
    location: str, *, key: str | None, worker: Path | None, kinds: Sequence[str], name: str | None = None
) -> DoorQueue:
    """Open a door as a queue. Not within a running trio loop's own thread: a new worker enrols by one.

    Args:
        location: the door's URL or a join link.
        key: a requester's or operator's key: pushes.
        worker: the directory of a worker's keys, made where there is none: pops.
        kinds: the kinds of tasks that are popped.
        name: of the job that is pushed.

    Raises:
        ConfigurationError: neither key nor worker; another process uses the directory.
        DoorUnreachable: the door doesn't answer, and the worker is no member yet; or it takes no key of its now.
        DoorRefused: the swarm doesn't admit this worker.
        MalformedInput: the location isn't a door's.
    """
    write_unless_done("warning")
    link = parse_join_link(location)
    if key is None and worker is None:
        raise ConfigurationError(
            "a door is a queue for somebody with a key", hint="key=… pushes, worker=DIRECTORY pops, both do both"
        )
    with contextlib.ExitStack() as resources:
        consumer = None
        if worker is not None:
            identity = resources.enter_context(open_identity(worker))
            hello = Hello(version=swarm.__version__, kinds=dict.fromkeys(kinds, "1"))
            url, api_key = trio.run(partial(_join, link, identity, hello, worker))
            http = httpx.Client(verify=trust_certificates(), trust_env=False, timeout=TIMEOUT_S)
            consumer = _Consumer(url, api_key, identity.address, hello, http)
        client = Client(link.url, key) if key is not None else None
        queue = DoorQueue(client, consumer, url=link.url, name=name)
        queue.keep(resources)
    return queue


async def _join(link: JoinLink, identity: Identity, hello: Hello, directory: Path) -> tuple[str, str]:
    """Become a member: the door that answers, and this worker's key."""
    tls = trust_certificates()
    async with httpx.AsyncClient(verify=tls, trust_env=False, timeout=None) as http:  # noqa: S113 -- it has deadlines
        door = DoorMember(
            link,
            identity,
            hello,
            directory=directory,
            payout=identity.address,
            http=http,
            rng=random.Random(),  # noqa: S311 -- spreads waits, no secrets
        )
        await door.join()
        await door.settle_key()
        return door.url, door.api_key
