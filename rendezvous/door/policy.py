"""What holds against whom, how versions and profiles fare (``/v1/admin/policy``); and keeping workers apart on a host.

What operators do otherwise is ``admin.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from rendezvous.door.admin import HostText, Why, host_named
from rendezvous.door.call import Call
from rendezvous.door.resources import Door
from rendezvous.door.workers import id_of
from rendezvous.ledger.ops import KeepApart
from swarm.wire import Answer, Request

if TYPE_CHECKING:
    from rendezvous.ledger.queries import LedgerReader

__all__ = ["ApartCall", "ApartView", "PolicyView", "apart", "policy"]


class ApartCall(Request, frozen=True):
    """Have no two workers of one network (/24, /48) hold tasks of a host at once; ``apart`` false lets them."""

    host: HostText
    why: Why
    apart: bool = True


class ApartView(Answer, frozen=True):
    """A host, and whether workers of one network are kept apart there."""

    host: str
    apart: bool


class KeptOff(Answer, frozen=True):
    """A worker in quarantine on a host; ``who`` is None where the count did it."""

    worker: str
    host: str
    left_s: float
    who: str | None
    why: str
    times: int


class ProfileRow(Answer, frozen=True):
    """A profile, whose it is, and whether it is maturing, ready or retired."""

    name: str
    worker: str
    state: str
    accepted: int
    challenges: int


class VersionRow(Answer, frozen=True):
    """How tasks of a kind came out by the release of the worker program and the version of the executor."""

    kind: str
    worker: str
    version: str
    done: int
    failed: int
    success_rate: Annotated[float, Meta(ge=0, le=1)]


class PolicyView(Answer, frozen=True):
    """What the policy holds against workers, and how versions and profiles fare.

    ``quarantines_second_order`` are those of workers that had taken over another quarantined worker's tasks.
    """

    quarantines: tuple[KeptOff, ...]
    quarantines_counted: int
    quarantines_second_order: int
    profiles: tuple[ProfileRow, ...]
    versions: tuple[VersionRow, ...]


async def apart(door: Door, call: Call) -> ApartView:
    """Keep workers of one network apart on a host, or let them together."""
    said: ApartCall = call.body
    host = host_named(said.host)
    await door.ledger.call(KeepApart(host=host, apart=said.apart, who=call.who.owner, why=said.why))
    return ApartView(host=host, apart=said.apart)


async def policy(door: Door, call: Call) -> PolicyView:
    """What holds now."""
    del call
    now = door.wall()
    return await door.ledger.read(lambda reader: _view(reader, now=now))


def _view(reader: LedgerReader, *, now: float) -> PolicyView:
    counts = reader.quarantine_counts()
    return PolicyView(
        quarantines=tuple(
            KeptOff(
                worker=id_of(one.worker),
                host=one.host,
                left_s=round(one.left_s, 1),
                who=one.who,
                why=one.why,
                times=one.times,
            )
            for one in reader.quarantines(now=now)
        ),
        quarantines_counted=counts.counted,
        quarantines_second_order=counts.second_order,
        profiles=tuple(
            ProfileRow(
                name=one.name,
                worker=id_of(one.worker),
                state=one.state.value,
                accepted=one.accepted,
                challenges=one.challenges,
            )
            for one in reader.profiles()
        ),
        versions=tuple(
            VersionRow(
                kind=one.kind,
                worker=one.worker,
                version=one.version,
                done=one.done,
                failed=one.failed,
                success_rate=round(one.success_rate, 4),
            )
            for one in reader.versions()
        ),
    )
