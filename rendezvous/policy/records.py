"""What is held against a worker on a host? Quarantine: nothing of that host is granted to it until it has cooled off.

A record is of one worker and one host: a worker that a site turns away works on for every other site.
"""

from __future__ import annotations

import attrs

from swarm.model import Refusal, RefusalCode

__all__ = ["CLEAN", "COOL_OFF_S", "Record", "check_record", "lifted", "quarantined"]

#: How long a quarantine lasts unless the operator says otherwise, seconds.
COOL_OFF_S = 1800.0


@attrs.frozen(kw_only=True)
class Record:
    """What is held against one worker on one host.

    Args:
        quarantined_until: ledger time, seconds; None where it isn't quarantined.
        quarantined_by: the operator; None where the count did it.
        quarantined_why: for people.
        quarantines: how many there were in all.
    """

    quarantined_until: float | None = None
    quarantined_by: str | None = None
    quarantined_why: str | None = None
    quarantines: int = 0


#: Of a worker and a host without any trouble.
CLEAN = Record()


def check_record(record: Record, host: str, *, now: float) -> Refusal | None:
    """Refuse a worker that is in quarantine on this host.

    Args:
        record: of the worker on the host.
        host: its name.
        now: ledger time, seconds.
    """
    until = record.quarantined_until
    if until is None or until <= now:
        return None
    by = f" by {record.quarantined_by}" if record.quarantined_by else ""
    return Refusal(
        RefusalCode.QUARANTINED,
        f"this worker is in quarantine on {host}{by} for {until - now:.0f} s more: {record.quarantined_why}",
        retry_after_s=until - now,
        details={"host": host, "who": record.quarantined_by, "why": record.quarantined_why},
    )


def quarantined(record: Record, *, for_s: float, by: str | None, why: str, now: float) -> Record:
    """The record with a quarantine that begins now.

    Args:
        record: as it was.
        for_s: how long the worker cools off, seconds.
        by: the operator; None is the count.
        why: for people.
        now: ledger time, seconds.
    """
    return attrs.evolve(
        record,
        quarantined_until=now + for_s,
        quarantined_by=by,
        quarantined_why=why,
        quarantines=record.quarantines + 1,
    )


def lifted(record: Record) -> Record:
    """The record without its quarantine; that there was one stays."""
    return attrs.evolve(record, quarantined_until=None, quarantined_by=None, quarantined_why=None)
