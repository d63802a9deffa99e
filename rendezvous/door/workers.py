"""``/v1/workers``: the nodes with their state and what they counted; deleting one requeues its work.

The nodes of other roots' doors are known from the ledger, a while later: ``hear_of_elsewhere`` asks it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from rendezvous.door.call import Call
from rendezvous.door.resources import Door
from rendezvous.fleet import Worker
from rendezvous.ledger.memory import LIVE_S
from rendezvous.ledger.ops import HearOf, RemoveWorker
from rendezvous.ledger.values import WorkerRef
from swarm.errors import SwarmError
from swarm.model import Refusal, RefusalCode
from swarm.turn_wire import Stats
from swarm.wire import Answer, Page

__all__ = [
    "Removed",
    "WorkerDetail",
    "WorkerView",
    "find_worker",
    "hear_of_elsewhere",
    "id_of",
    "remove_worker",
    "unknown_worker",
    "worker",
    "workers",
]

log = structlog.get_logger()

_APART: Final = ":"


class WorkerView(Answer, frozen=True):
    """A node. ``status`` is ready, busy or offline; ``last_seen_s`` is how long ago it spoke, seconds."""

    id: str
    address: str
    instance: str
    payout: str
    status: str
    slots: int
    free: int
    active: int
    last_seen_s: float | None = None
    peer_id: str | None = None
    version: str | None = None
    kinds: dict[str, str] = msgspec.field(default_factory=dict)
    labels: tuple[str, ...] = ()
    region: str | None = None
    gossip: bool = False
    session: bool = False
    stats: Stats = Stats()


class WorkerDetail(WorkerView, frozen=True):
    """A node with the tasks that it holds."""

    tasks: tuple[str, ...] = ()


class Removed(Answer, frozen=True):
    """A worker that was taken off the list, and how many leases it gave back."""

    id: str
    requeued: int


def view(door: Door, one: Worker, active: int) -> WorkerView:
    """A worker as the operator sees it; ``active`` is how many tasks the ledger says it holds."""
    hello = one.hello
    live = door.fleet.is_live(one)
    return WorkerView(
        id=id_of(one.ref),
        address=one.ref.address,
        instance=one.ref.instance,
        payout=one.payout,
        status=door.fleet.state(one),
        slots=one.slots,
        free=one.free if live else 0,
        active=active,
        last_seen_s=round(max(0.0, door.wall() - one.seen_at), 1) if one.seen_at else None,
        peer_id=one.peer_id,
        version=hello.version if hello else None,
        kinds=dict(hello.kinds) if hello else {},
        labels=hello.labels if hello else (),
        region=hello.region if hello else None,
        gossip=one.gossip and live,
        session=one.session is not None,
        stats=one.stats,
    )


async def workers(door: Door, call: Call) -> Page | Refusal:
    """A page of all nodes."""
    after = call.queries["cursor"] or ""
    active = await door.ledger.read(lambda reader: reader.active_by_worker())
    rest = [found for one in door.fleet.all() if (found := view(door, one, active.get(one.ref, 0))).id > after]
    limit = call.queries["limit"]
    return Page(items=tuple(rest[:limit]), next=rest[limit - 1].id if len(rest) > limit else None)


def id_of(ref: WorkerRef) -> str:
    """How a worker is named in the operator's calls."""
    return f"{ref.address}{_APART}{ref.instance}"


def find_worker(door: Door, wanted: str) -> Worker | None:
    """By ``address:instance``, or by the address alone where it has one instance."""
    address, _, instance = wanted.partition(_APART)
    found = [
        one for one in door.fleet.all() if one.ref.address == address and (not instance or one.ref.instance == instance)
    ]
    return found[0] if len(found) == 1 else None


def unknown_worker(wanted: str) -> Refusal:
    """There is none of this id, or several of this address."""
    return Refusal(
        RefusalCode.NOT_FOUND,
        f"there is no one worker {wanted[:120]}: swarm workers lists the addresses; where one has several workers, "
        "ADDRESS:INSTANCE names it, as swarm workers --json shows",
    )


async def hear_of_elsewhere(door: Door) -> bool:
    """Note which workers are live at other roots' doors; whether there was anything new."""
    if len(door.ledger.neighbours.roots()) < 2:
        return False
    now = door.ledger.now()
    try:
        seen = await door.ledger.read(lambda reader: reader.workers(seen_since=now - LIVE_S))
        elsewhere = door.fleet.hear_of(seen, now=now)
        if elsewhere:
            await door.ledger.call(HearOf(workers=elsewhere))
    except SwarmError as fault:
        log.warning("workers_elsewhere_unknown", error=str(fault))
        return False
    return bool(elsewhere)


async def worker(door: Door, call: Call) -> WorkerDetail | Refusal:
    """One node, and what it holds."""
    found = find_worker(door, call.path("id"))
    if found is None:
        return unknown_worker(call.path("id"))
    ref = found.ref
    leases = await door.ledger.read(lambda reader: reader.leases_of(ref))
    seen = msgspec.structs.asdict(view(door, found, len(leases)))
    return WorkerDetail(**seen, tasks=tuple(lease.task for lease in leases))


async def remove_worker(door: Door, call: Call) -> Removed | Refusal:
    """Take a node off the list; what it held goes back uncounted. One that still runs comes back at its next turn."""
    found = find_worker(door, call.path("id"))
    if found is None:
        return unknown_worker(call.path("id"))
    why = call.queries["why"] or ""
    requeued: int = await door.ledger.call(RemoveWorker(worker=found.ref, who=call.who.owner, why=why))
    door.fleet.remove(found.ref)
    return Removed(id=call.path("id"), requeued=requeued)
