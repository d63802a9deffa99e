"""The operator's pace of hosts, when it has changed since the ledger was last open."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from rendezvous.ledger.faults import unavailable
from rendezvous.ledger.lines import EVERYWHERE
from rendezvous.ledger.postgres import wait_for_turn
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.tables import hosts, lanes

__all__ = ["repace"]

#: The burst of a host that its own robots.txt slowed down: no other has so small a one.
SLOWED_BURST: Final = 1.0


def repace(engine: Engine, settings: LedgerSettings) -> None:
    """Give known hosts the pace of these settings, but for those that a crawl-delay slowed down.

    Raises:
        LedgerUnavailable: the database can't be written.
    """
    rate_per_s, burst = settings.host_rate_per_s, settings.host_burst
    stale = sa.and_(
        hosts.c.host != EVERYWHERE,
        hosts.c.unfinished.is_(None),
        hosts.c.burst != SLOWED_BURST,
        sa.or_(hosts.c.rate_per_s != rate_per_s, hosts.c.burst != burst),
    )
    # When a lane opens was reckoned at the old pace; an open one asks its host's bucket.
    reopen = (
        sa.update(lanes)
        .where(
            lanes.c.host.in_(sa.select(hosts.c.n).where(stale, hosts.c.held_until.is_(None), hosts.c.paused.is_(None)))
        )
        .values(opens_at=None)
    )
    fewer = sa.case((hosts.c.tokens < burst, hosts.c.tokens), else_=burst)
    change = sa.update(hosts).where(stale).values(rate_per_s=rate_per_s, burst=burst, tokens=fewer)
    try:
        with engine.begin() as connection:
            wait_for_turn(connection)
            connection.execute(reopen)
            connection.execute(change)
    except SQLAlchemyError as fault:
        raise unavailable(engine, fault) from fault
