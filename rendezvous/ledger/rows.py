"""The rows that the writer works on, as Python values.

``TaskRow`` mirrors the table ``tasks`` column by column and is mutable: a group's operations change it, and the unit of
work writes each changed row once. The other values never change once they are in the database.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import msgspec
import orjson

from rendezvous.ledger.ops import PreparedTask
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from rendezvous.policy.eligibility import Demand
from swarm.model import JobId, Settle, Status, TaskId
from swarm.wire import Requires, TaskBody

__all__ = ["Job", "Lane", "Loss", "TaskRow", "WorkerRow", "demand_key", "demand_of", "encode_body", "task_body"]


_STATUSES: Final = {status.value: status for status in Status}


def _status(text: str) -> Status:
    return _STATUSES[text]


@attrs.frozen
class Loss:
    """A worker was lost with the task in hand.

    Args:
        worker: its number.
        at: when, ledger seconds.
        restarted: it started anew; else its lease ran out.
        boot: which start of it had the lease; None where that wasn't noted.
    """

    worker: int
    at: float
    restarted: bool = False
    boot: str | None = None


@attrs.define(eq=False, on_setattr=attrs.setters.NO_OP)
class TaskRow:
    """One row of ``tasks``, in the order of its columns; its status is the enum."""

    seq: int
    id: TaskId
    job: int
    priority: int
    reward_wei: str
    max_attempts: int
    max_run_s: float
    created_at: float
    expires_at: float
    status: Status = attrs.field(converter=_status)
    lane: int
    worker: int | None = None
    boot: str | None = None
    fence: int = 0
    via: str | None = None
    lease_until: float | None = None
    granted_at: float | None = None
    wake_at: float | None = None
    attempts: int = 0
    lost: str | None = None
    passed_until: float | None = None
    reason: str | None = None
    detail: str | None = None
    result: str | None = None
    result_bytes: int | None = None
    finished_at: float | None = None
    funding_generation: int = 1
    events: int = 0
    last_event: int = 0
    accepted: float | None = None
    on_chain: float | None = None
    paid: float | None = None
    refunded: float | None = None
    rank: float = 0.0

    def mutable(self) -> tuple[Any, ...]:
        """The columns beside the status that a transition may change, in the order of ``batch_statements.MUTABLE``."""
        return (
            self.lane,
            self.worker,
            self.boot,
            self.fence,
            self.via,
            self.lease_until,
            self.granted_at,
            self.wake_at,
            self.attempts,
            self.lost,
            self.passed_until,
            self.reason,
            self.detail,
            self.result,
            self.result_bytes,
            self.finished_at,
            self.funding_generation,
            self.events,
            self.last_event,
            self.accepted,
            self.expires_at,
        )

    def first_columns(self) -> tuple[Any, ...]:
        """What a new task's row is made of, in the order of ``batch_statements.NEW_TASK``."""
        return (
            self.seq,
            self.id,
            self.job,
            self.priority,
            self.reward_wei,
            self.max_attempts,
            self.max_run_s,
            self.created_at,
            self.expires_at,
            self.lane,
            self.wake_at,
            self.last_event,
            self.rank,
        )

    def losses(self) -> list[Loss]:
        """The workers that were lost with it, the first one first."""
        return [] if self.lost is None else [Loss(*said) for said in orjson.loads(self.lost)]

    def add_loss(self, loss: Loss) -> None:
        """Note another one."""
        said = [loss.worker, loss.at, loss.restarted, loss.boot]
        self.lost = orjson.dumps([*orjson.loads(self.lost or "[]"), said]).decode()


@attrs.frozen
class Job:
    """One row of ``jobs``."""

    n: int
    id: JobId
    owner: str
    name: str | None
    created_at: float
    settle: str | None = None

    @property
    def on_channels(self) -> bool:
        """Whether its tasks are paid for by vouchers."""
        return self.settle == Settle.CHANNEL


@attrs.frozen
class Lane:
    """Which demand and host a lane is; its head and its opening are read where they are needed."""

    n: int
    demand: int
    host: int


class WorkerRow:
    """A worker as the ledger's writer knows it.

    What it said it is, and when, isn't stored: it is known again one heartbeat after a restart.
    """

    __slots__ = ("accepted", "boots", "budget", "facts", "n", "prefix", "ref", "turn_at")

    def __init__(
        self,
        n: int,
        ref: WorkerRef,
        boots: list[str],
        *,
        budget: int | None = None,
        accepted: int | None = None,
        prefix: str | None = None,
    ) -> None:
        self.n = n
        self.ref = ref
        self.boots = boots
        #: How much it may hold at once; None is a newcomer's budget.
        self.budget = budget
        #: Not 0 or None once some of its work was accepted.
        self.accepted = accepted
        #: The network that it came from last.
        self.prefix = prefix
        self.facts = WorkerFacts()
        self.turn_at: float | None = None


# ── demands as text ───────────────────────────────────────────────────────────────────────────────────────────────


def demand_key(demand: Demand) -> str:
    """The canonical JSON of a demand: equal demands have equal keys."""
    requires = msgspec.to_builtins(demand.requires)
    requires.pop("labels", None)
    if demand.requires.labels:
        requires["labels"] = sorted(set(demand.requires.labels))
    key: dict[str, Any] = {"kind": demand.kind, "tier": demand.tier}
    if requires:
        key["requires"] = requires
    if demand.passed_over:
        key["passed_over"] = sorted(demand.passed_over)
    if demand.suspect:
        key["suspect"] = True
    if demand.careful:
        key["careful"] = True
    if demand.parked:
        key["parked"] = True
    return orjson.dumps(key, option=orjson.OPT_SORT_KEYS).decode()


def demand_of(key: str) -> Demand:
    """The demand of a key."""
    values = orjson.loads(key)
    return Demand(
        tier=values["tier"],
        kind=values["kind"],
        requires=msgspec.convert(values.get("requires", {}), Requires),
        passed_over=frozenset(values.get("passed_over", ())),
        suspect=values.get("suspect", False),
        careful=values.get("careful", False),
        parked=values.get("parked", False),
    )


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    urls: tuple[str, ...]
    spec: dict[str, Any] = {}
    meta: dict[str, Any] = {}


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Body)


def encode_body(task: PreparedTask) -> str:
    """What ``task_bodies`` keeps of a task."""
    return _encoder.encode(_Body(urls=task.urls, spec=task.spec, meta=task.meta)).decode()


def task_body(row: TaskRow, body: str, *, job: Job, kind: str, signed: bool) -> TaskBody:
    """What a worker must know to run a task; with its generation where the completion is to be ``signed``."""
    kept = _decoder.decode(body)
    return TaskBody(
        id=row.id,
        job=job.id,
        kind=kind,
        urls=kept.urls,
        spec=kept.spec,
        meta=kept.meta,
        max_run_s=row.max_run_s,
        attempt=row.attempts + 1,
        generation=row.funding_generation if signed else None,
        voucher_wei=row.reward_wei if row.reward_wei != "0" and job.on_channels else None,
    )
