"""What holds against whom, how versions and profiles fare (``/v1/admin/policy``); and keeping workers apart on a host.

What operators do otherwise is ``admin.py``.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from rendezvous.door.admin import HostText, Why, host_named
from rendezvous.door.call import Call
from rendezvous.door.resources import Door
from rendezvous.door.workers import id_of
from rendezvous.ledger.act_ops import KeepApart, ProfileView, QuarantineView, VersionRate
from swarm.errors import MalformedInput
from swarm.wire import Answer, Request, check_storable, decode, encode

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
    """A page of what the policy holds against workers, and of how versions and profiles fare.

    The lists follow each other: a page ends in one of them, and ``next`` (absent where this was the last one) goes on
    there. ``quarantines_second_order`` are those of workers that had taken over another quarantined worker's tasks.
    """

    quarantines: tuple[KeptOff, ...]
    quarantines_counted: int
    quarantines_second_order: int
    profiles: tuple[ProfileRow, ...]
    versions: tuple[VersionRow, ...]
    next: str | None = None


class _Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Behind which row of which list a page begins; None is the list's beginning."""

    quarantine: tuple[float, str, str, str] | None = None
    profile: str | None = None
    version: tuple[str, str, str] | None = None
    #: The first list of the page: 0, 1, 2.
    section: Annotated[int, Meta(ge=0, le=2)] = 0


async def apart(door: Door, call: Call) -> ApartView:
    """Keep workers of one network apart on a host, or let them together."""
    said: ApartCall = call.body
    host = host_named(said.host)
    await door.ledger.call(KeepApart(host=host, apart=said.apart, who=call.who.owner, why=said.why))
    return ApartView(host=host, apart=said.apart)


async def policy(door: Door, call: Call) -> PolicyView:
    """A page of what holds now."""
    place, limit, now = _place_of(call.queries["cursor"]), call.queries["limit"], door.wall()
    return await door.ledger.read(lambda reader: _view(reader, place, limit, now=now))


def _place_of(cursor: str | None) -> _Place:
    if cursor is None:
        return _Place()
    try:
        place = decode(base64.urlsafe_b64decode(cursor.encode()), _Place)
    except (ValueError, MalformedInput) as fault:
        raise MalformedInput("cursor isn't one of ours; use `next` of the page before") from fault
    fault_said = check_storable(place)
    if fault_said is not None:
        raise MalformedInput(f"cursor isn't one of ours: {fault_said}")
    return place


def _cursor_of(place: _Place) -> str:
    return base64.urlsafe_b64encode(encode(place)).decode()


def _view(reader: LedgerReader, place: _Place, limit: int, *, now: float) -> PolicyView:
    """A page: each list is asked for one more row than the page has room for, which says whether there is another."""
    counts = reader.quarantine_counts()
    quarantines, profiles, versions = [], [], []
    onward: _Place | None = None
    if place.section == 0:
        found = reader.quarantines(now=now, after=place.quarantine, limit=limit + 1)
        quarantines = found[:limit]
        if len(found) > limit:
            last = quarantines[-1]
            onward = _Place(quarantine=(last.until, last.worker.address, last.worker.instance, last.host))
    room = limit - len(quarantines)
    if onward is None and place.section <= 1:
        begun = place.profile or ""
        known = reader.profiles(after=begun, limit=room + 1)
        profiles = known[:room]
        if len(known) > room:
            onward = _Place(section=1, profile=profiles[-1].name if profiles else begun)
    room -= len(profiles)
    if onward is None:
        start = place.version or ("", "", "")
        rates = reader.versions(after=start, limit=room + 1)
        versions = rates[:room]
        if len(rates) > room:
            end = versions[-1] if versions else None
            onward = _Place(section=2, version=start if end is None else (end.kind, end.worker, end.version))
    return PolicyView(
        quarantines=tuple(map(_kept_off, quarantines)),
        quarantines_counted=counts.counted,
        quarantines_second_order=counts.second_order,
        profiles=tuple(map(_profile_row, profiles)),
        versions=tuple(map(_version_row, versions)),
        next=None if onward is None else _cursor_of(onward),
    )


def _kept_off(one: QuarantineView) -> KeptOff:
    return KeptOff(
        worker=id_of(one.worker),
        host=one.host,
        left_s=round(one.left_s, 1),
        who=one.who,
        why=one.why,
        times=one.times,
    )


def _profile_row(one: ProfileView) -> ProfileRow:
    return ProfileRow(
        name=one.name,
        worker=id_of(one.worker),
        state=one.state.value,
        accepted=one.accepted,
        challenges=one.challenges,
    )


def _version_row(one: VersionRate) -> VersionRow:
    return VersionRow(
        kind=one.kind,
        worker=one.worker,
        version=one.version,
        done=one.done,
        failed=one.failed,
        success_rate=round(one.success_rate, 4),
    )
