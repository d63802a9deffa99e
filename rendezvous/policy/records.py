"""What is held against a worker on a host? Reports make it wait there; several within a window put it in quarantine.

A record is of one worker and one host: a worker that a site turns away works on for every other site, and what it
reports slows nobody else. Only when workers of different networks report the same does the host itself rest. What is
under way when a report comes tells nothing new, so a burst counts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from rendezvous.policy.egress import differs
from rendezvous.policy.retry import COOL_OFF_S, RETRY_AFTER_CAP_S
from swarm.model import Refusal, RefusalCode

__all__ = [
    "CLEAN",
    "QUARANTINE_AFTER",
    "QUARANTINE_S",
    "TROUBLED_HOSTS",
    "WINDOW_S",
    "Record",
    "agreed_until",
    "check_careful",
    "check_record",
    "check_troubled",
    "is_due",
    "lifted",
    "quarantine_s",
    "quarantined",
    "reported",
    "share_left",
]

#: So many reports within the window put a worker in quarantine …
QUARANTINE_AFTER: Final = 3
WINDOW_S: Final = 1_800.0
#: … for so long, twice as long each further time, a day at most.
QUARANTINE_S: Final = 1_800.0
LONGEST_QUARANTINE_S: Final = 86_400.0
#: A worker that so many sites turn away at once has a trouble of its own.
TROUBLED_HOSTS: Final = 100
#: Work from a quarantine is handled with care for so long at most: a fleet of newcomers must not be stuck for good.
CAREFUL_S: Final = 3_600.0


@attrs.frozen(kw_only=True)
class Record:
    """What is held against one worker on one host.

    Args:
        held_until: it asks nothing of the host before this ledger time, since it was turned away; None: it may.
        held_why: for people.
        prefix: the network that it reported from.
        reports: when it was turned away within the window, ledger seconds.
        careful: it was turned away with work in hand that came from another's quarantine.
        quarantined_until: ledger time, seconds; None where it isn't quarantined.
        quarantined_by: the operator; None where the count did it.
        quarantined_why: for people.
        quarantines: how many there were in all.
    """

    held_until: float | None = None
    held_why: str | None = None
    prefix: str | None = None
    reports: tuple[float, ...] = ()
    careful: bool = False
    quarantined_until: float | None = None
    quarantined_by: str | None = None
    quarantined_why: str | None = None
    quarantines: int = 0

    def is_held(self, now: float) -> bool:
        """Whether a report of its keeps it off the host."""
        return self.held_until is not None and self.held_until > now

    def is_quarantined(self, now: float) -> bool:
        """Whether it is in quarantine on the host."""
        return self.quarantined_until is not None and self.quarantined_until > now

    def is_clean(self, now: float) -> bool:
        """Whether nothing was reported within the window, and it isn't in quarantine."""
        return not self.is_quarantined(now) and not any(now - at < WINDOW_S for at in self.reports)


#: Of a worker and a host without any trouble.
CLEAN: Final = Record()


def reported(
    record: Record,
    *,
    why: str,
    retry_after_s: float | None,
    prefix: str | None,
    granted_at: float,
    careful: bool,
    now: float,
) -> Record:
    """The record after a report that the host turned the worker away.

    Args:
        record: as it was.
        why: for people.
        retry_after_s: what the site asked for, seconds; it is heeded up to a cap.
        prefix: the network that the worker came from.
        granted_at: when the task was granted: what was under way at an earlier report isn't counted again.
        careful: the task came from another's quarantine.
        now: ledger time, seconds.
    """
    wait_s = min(max(retry_after_s or 0.0, COOL_OFF_S), RETRY_AFTER_CAP_S)
    recent = tuple(at for at in record.reports if now - at < WINDOW_S)
    news = not recent or granted_at > recent[-1]
    return attrs.evolve(
        record,
        held_until=max(record.held_until or 0.0, now + wait_s),
        held_why=why,
        prefix=prefix,
        reports=(*recent, now) if news else recent,
        careful=record.careful or careful,
    )


def is_due(record: Record, *, now: float) -> bool:
    """Whether the reports are enough for a quarantine."""
    return not record.is_quarantined(now) and len(record.reports) >= QUARANTINE_AFTER


def quarantine_s(quarantines: int) -> float:
    """How long a quarantine lasts that the count brings, seconds.

    Args:
        quarantines: how many there were before.
    """
    return float(min(QUARANTINE_S * 2.0 ** min(quarantines, 10), LONGEST_QUARANTINE_S))


def agreed_until(mine: Record, others: Iterable[Record], *, now: float) -> float | None:
    """Until when a host rests for all: workers of different networks were turned away, and the first is back then.

    Args:
        mine: the record of who reports.
        others: the other records of the host.
        now: ledger time, seconds.

    Returns:
        A ledger time; None where nobody of another network agrees.
    """
    agreeing = [
        other.held_until
        for other in others
        if other.held_until is not None and other.held_until > now and differs(other.prefix, mine.prefix)
    ]
    if not agreeing or mine.held_until is None:
        return None
    return min(mine.held_until, max(agreeing))


def share_left(workers: int) -> float:
    """What is left of a host's pace when one of so many workers on it is quarantined: none of the others gets faster.

    Only where another network agrees that the host turns workers away: a worker that lies slows nobody but itself.

    Args:
        workers: how many have work of the host in hand, the quarantined one included.
    """
    return (workers - 1) / workers if workers > 1 else 1.0


def check_record(record: Record, host: str, *, now: float) -> Refusal | None:
    """Refuse a worker that is in quarantine on this host, or that was turned away there a moment ago.

    Args:
        record: of the worker on the host.
        host: its name.
        now: ledger time, seconds.
    """
    if record.is_quarantined(now):
        left_s = (record.quarantined_until or now) - now
        by = f" by {record.quarantined_by}" if record.quarantined_by else ""
        return Refusal(
            RefusalCode.QUARANTINED,
            f"this worker is in quarantine on {host}{by} for {left_s:.0f} s more: {record.quarantined_why}",
            retry_after_s=left_s,
            details={"host": host, "who": record.quarantined_by, "why": record.quarantined_why},
        )
    if record.is_held(now):
        left_s = (record.held_until or now) - now
        return Refusal(
            RefusalCode.COOLING_OFF,
            f"this worker reported that {host} turned it away ({record.held_why}); it asks again in {left_s:.0f} s",
            retry_after_s=left_s,
            details={"host": host},
        )
    return None


def check_troubled(hosts: int) -> Refusal | None:
    """Refuse a worker that very many sites turn away at once.

    Args:
        hosts: on how many it is held or quarantined now.
    """
    if hosts < TROUBLED_HOSTS:
        return None
    return Refusal(
        RefusalCode.QUARANTINED,
        f"{hosts} sites turn this worker away at once: it gets nothing before some of that has passed",
        retry_after_s=COOL_OFF_S,
        details={"hosts": hosts},
    )


def check_careful(record: Record, *, proven: bool, cleaner: bool, now: float) -> Refusal | None:
    """Refuse work that was taken from a quarantined worker to a brand-new one, and to one with trouble of its own.

    Args:
        record: of the worker on the host.
        proven: whether some of its work was ever accepted.
        cleaner: whether another live worker that may have the task has a clean record there.
        now: ledger time, seconds.
    """
    if not proven:
        return Refusal(
            RefusalCode.NEWCOMER,
            "the task was taken from a worker in quarantine, and none of this worker's work has been accepted yet",
        )
    if cleaner and not record.is_clean(now):
        return Refusal(
            RefusalCode.PASSED_OVER,
            "the task was taken from a worker in quarantine: those with a clean record on its host are asked first",
        )
    return None


def quarantined(record: Record, *, for_s: float, by: str | None, why: str, now: float) -> Record:
    """The record with a quarantine that begins now; what led to it begins anew.

    Args:
        record: as it was.
        for_s: how long the worker cools off, seconds.
        by: the operator; None is the count.
        why: for people.
        now: ledger time, seconds.
    """
    return attrs.evolve(
        record,
        reports=(),
        careful=False,
        quarantined_until=now + for_s,
        quarantined_by=by,
        quarantined_why=why,
        quarantines=record.quarantines + 1,
    )


def lifted(record: Record) -> Record:
    """The record without its quarantine and waits; that there was one stays."""
    return attrs.evolve(
        record, held_until=None, held_why=None, quarantined_until=None, quarantined_by=None, quarantined_why=None
    )
