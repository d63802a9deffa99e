"""The swarm as a whole: totals, alerts, probes, metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs
import structlog
from aiohttp import web

from rendezvous.door.admin import ActView, Approved, PauseView, QuarantineView, act_view, pause_view
from rendezvous.door.call import Call, Shown
from rendezvous.door.metrics import CONTENT_TYPE, render
from rendezvous.door.resources import Door
from rendezvous.door.workers import id_of
from swarm import __version__
from swarm.model import Refusal, RefusalCode, Status
from swarm.turn_wire import Stats
from swarm.wire import Answer, Page

if TYPE_CHECKING:
    from rendezvous.ledger.queries import LedgerReader

__all__ = ["AlertView", "Health", "StatusView", "alerts", "healthz", "metrics", "readyz", "status"]

log = structlog.get_logger()

#: Acts of operators that the status shows.
LATEST_ACTS: Final = 5
#: Quarantines that the status shows, those that last longest first.
SHOWN_QUARANTINES: Final = 20


class StatusView(Answer, frozen=True):
    """Totals: tasks by status, workers by state, slots."""

    name: str
    version: str
    admission: str
    #: ask or assign.
    mode: str
    tasks: dict[str, int]
    workers: dict[str, int]
    slots: int
    free_slots: int
    sessions: int
    uptime_s: float
    #: What the known workers counted together, each since its own start.
    counted: Stats
    peer: str | None = None
    peer_addrs: tuple[str, ...] = ()
    alerts: tuple[AlertView, ...] = ()
    paused: tuple[PauseView, ...] = ()
    quarantines: tuple[QuarantineView, ...] = ()
    #: The pinned versions, by name.
    approved: tuple[Approved, ...] = ()
    #: The latest of what operators did; ``GET /v1/admin/acts`` has all.
    acts: tuple[ActView, ...] = ()


class AlertView(Answer, frozen=True):
    """What the operator should know, whom it is about (empty: the swarm), and what to do; ``since`` is Unix seconds."""

    code: str
    message: str
    hint: str
    since: float
    lasts_s: float
    subject: str = ""


class Health(Answer, frozen=True):
    """That the process answers, or that it can take work."""

    status: str


async def status(door: Door, call: Call) -> StatusView:
    """Totals of the swarm."""
    del call
    counts = await door.ledger.read(lambda reader: reader.counts())
    by_hand = await door.ledger.read(lambda reader: _by_hand(reader, now=door.wall()))
    live = list(door.fleet.live())
    peer = door.site.peer()
    return StatusView(
        name=door.site.charter.name,
        version=__version__,
        admission=door.site.charter.admission,
        mode="ask" if door.assigner is None else "assign",
        tasks={one.value: counts.get(one, 0) for one in Status},
        workers=_states(door),
        slots=sum(worker.slots for worker in live),
        free_slots=sum(worker.free for worker in live),
        sessions=len(door.sessions),
        uptime_s=round(door.clock() - door.started_at, 1),
        counted=_together([worker.stats for worker in door.fleet.all()]),
        peer=peer.id if peer else None,
        peer_addrs=peer.addrs if peer else (),
        alerts=_alerts(door),
        paused=by_hand.paused,
        quarantines=by_hand.quarantines,
        approved=by_hand.approved,
        acts=by_hand.acts,
    )


def _alerts(door: Door) -> tuple[AlertView, ...]:
    door.watch.follow()
    return tuple(
        AlertView(
            code=alert.code,
            message=alert.message,
            hint=alert.hint,
            since=alert.since,
            lasts_s=round(door.wall() - alert.since, 1),
            subject=alert.subject,
        )
        for alert in door.alerts.active
    )


def _alert_codes(door: Door) -> Counter[str]:
    return Counter(alert.code for alert in _alerts(door))


async def alerts(door: Door, call: Call) -> Page:
    """What the operator should know now, the oldest first; at most some hundreds, so one page."""
    del call
    return Page(items=_alerts(door))


@attrs.frozen(kw_only=True)
class _ByHand:
    paused: tuple[PauseView, ...]
    quarantines: tuple[QuarantineView, ...]
    approved: tuple[Approved, ...]
    acts: tuple[ActView, ...]


def _by_hand(reader: LedgerReader, *, now: float) -> _ByHand:
    versions: dict[str, list[str]] = {}
    for pinned in reader.approvals():
        versions.setdefault(pinned.name, []).append(pinned.version)
    return _ByHand(
        paused=tuple(map(pause_view, reader.pauses())),
        quarantines=tuple(
            QuarantineView(
                worker=id_of(one.worker), host=one.host, left_s=round(one.left_s, 1), who=one.who, why=one.why
            )
            for one in reader.quarantines(now=now, limit=SHOWN_QUARANTINES)
        ),
        approved=tuple(Approved(name=name, versions=tuple(pinned)) for name, pinned in versions.items()),
        acts=tuple(map(act_view, reader.acts(limit=LATEST_ACTS))),
    )


def _together(stats: Sequence[Stats]) -> Stats:
    return Stats(**{name: sum(getattr(one, name) for one in stats) for name in Stats.__struct_fields__})


def _states(door: Door) -> dict[str, int]:
    found = Counter(door.fleet.state(worker) for worker in door.fleet.all())
    return {state: found.get(state, 0) for state in ("ready", "busy", "offline")}


async def healthz(door: Door, call: Call) -> Health:
    """The process answers."""
    del door, call
    return Health(status="ok")


async def readyz(door: Door, call: Call) -> Shown | Refusal:
    """The root can take work: it isn't stopping, and its ledger can be written."""
    del call
    if door.is_stopping():
        return Refusal(RefusalCode.SHUTTING_DOWN, "the root is stopping")
    return await door.readiness.check() or Shown(value=Health(status="ready"))


async def metrics(door: Door, call: Call) -> web.Response:
    """Counters and gauges for Prometheus."""
    del call
    counts = await door.ledger.read(lambda reader: reader.counts())
    samples = [
        *door.metrics.samples(),
        *(("swarm_tasks", (("status", one.value),), float(counts.get(one, 0))) for one in Status),
        *(("swarm_workers", (("state", state),), float(number)) for state, number in _states(door).items()),
        ("swarm_sessions", (), float(len(door.sessions))),
        ("swarm_event_streams", (), float(door.stream.readers)),
        *(("swarm_alerts", (("code", code),), float(number)) for code, number in _alert_codes(door).items()),
    ]
    return web.Response(body=render(samples).encode(), headers={"Content-Type": CONTENT_TYPE})
