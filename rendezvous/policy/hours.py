"""Is this the time of day at which workers of a region are to work?

The operator says it region by region, in that region's own time; a region that isn't named works at any time, and so
does a worker that says no region.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import attrs

from swarm.model import Refusal, RefusalCode

__all__ = ["Hours", "check_hours", "parse_hours"]

_MINUTES_A_DAY: Final = 24 * 60
_GIVEN: Final = re.compile(r"(\S{1,64}?)=(\S{1,64}),(\d\d):(\d\d)-(\d\d):(\d\d)")
_OFFSET: Final = re.compile(r"([+-])(\d\d):(\d\d)")


@attrs.frozen(kw_only=True)
class Hours:
    """When a region works.

    Args:
        zone: its time.
        opens_min: the minute of the day from which on, inclusive.
        closes_min: the minute of the day until which, exclusive; before ``opens_min`` it is the next day's.
    """

    zone: tzinfo
    opens_min: int
    closes_min: int


def parse_hours(given: str) -> tuple[str, Hours]:
    """Read what the operator wrote: ``REGION=ZONE,HH:MM-HH:MM``; the zone is a name or an offset such as +02:00.

    Raises:
        ValueError: it isn't of that form, or the zone isn't known here.
    """
    found = _GIVEN.fullmatch(given.strip())
    if found is None:
        raise ValueError("a region, its time zone and its hours, such as eu=Europe/Berlin,08:00-22:00")
    opens_min, closes_min = int(found[3]) * 60 + int(found[4]), int(found[5]) * 60 + int(found[6])
    if max(opens_min, closes_min) > _MINUTES_A_DAY or max(int(found[4]), int(found[6])) > 59 or opens_min == closes_min:
        raise ValueError("hours of a day, such as 08:00-22:00")
    return found[1], Hours(zone=_zone(found[2]), opens_min=opens_min, closes_min=closes_min)


def _zone(name: str) -> tzinfo:
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        apart = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        if apart >= timedelta(days=1):
            raise ValueError("an offset of less than a day, such as +02:00")
        return timezone(-apart if offset[1] == "-" else apart)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as fault:
        raise ValueError(f"a time zone that is known here, such as Europe/Berlin or +02:00; {name} isn't") from fault


def check_hours(region: str | None, hours: Mapping[str, Hours], *, now: float) -> Refusal | None:
    """Refuse a worker whose region doesn't work at this time of day.

    Args:
        region: the worker's.
        hours: when each region works.
        now: ledger time, Unix seconds.
    """
    when = None if region is None else hours.get(region)
    if when is None:
        return None
    local = datetime.fromtimestamp(now, when.zone)
    minute = local.hour * 60 + local.minute
    if when.opens_min < when.closes_min:
        is_open = when.opens_min <= minute < when.closes_min
    else:
        is_open = minute >= when.opens_min or minute < when.closes_min
    if is_open:
        return None
    left_s = ((when.opens_min - minute) % _MINUTES_A_DAY) * 60.0 - local.second
    return Refusal(
        RefusalCode.OUTSIDE_HOURS,
        f"it is {local:%H:%M} in {region}, which works from {_clock(when.opens_min)} to {_clock(when.closes_min)}",
        retry_after_s=max(left_s, 1.0),
        details={"region": region},
    )


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
