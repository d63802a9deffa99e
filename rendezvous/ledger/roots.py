"""Which roots share this ledger, and may this one? A ledger belongs to one swarm, and its roots keep one set of blocks.

A root registers when it starts and says every ``BEAT_S`` that it is there; one that is silent for ``SILENT_S`` is gone.
All times here are the database's own. This module knows no thread and no event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from rendezvous.ledger import tables as t
from rendezvous.ledger.faults import name_of, unavailable
from rendezvous.ledger.postgres import wait_for_turn
from swarm.errors import ConfigurationError

__all__ = ["BEAT_S", "SILENT_S", "RootCard", "beat", "live_roots", "register", "unregister"]

#: How often a root says that it is there, seconds.
BEAT_S: Final = 2.0
#: A root that was silent for so long is gone, seconds.
SILENT_S: Final = 10.0

_now: Final[sa.ColumnElement[float]] = sa.func.extract("epoch", sa.func.clock_timestamp()).cast(sa.Double)


@attrs.frozen(kw_only=True)
class RootCard:
    """What a root says of itself to the others.

    Args:
        id: of its data directory; stays the same over restarts.
        key_id: of the swarm's key, which all roots of a swarm share.
        network_id: of the swarm.
        door: the URL of its door.
        peer_id: whose gossip is to be believed; None where it runs without a peer.
        stores: the peer ids of the Kubos that keep its blocks; none where its own directory does.
    """

    id: str
    key_id: str
    network_id: str
    door: str
    peer_id: str | None = None
    stores: tuple[str, ...] = ()


def register(engine: Engine, card: RootCard) -> None:
    """Enter a root, if it may share this ledger.

    Raises:
        ConfigurationError: the ledger is another swarm's, or another root keeps its blocks elsewhere.
        LedgerUnavailable: the database can't be written.
    """
    try:
        with engine.begin() as connection:
            wait_for_turn(connection)
            _check_swarm(connection, card, name_of(engine.url))
            _check_neighbours(card, live_roots(connection))
            beat(connection, card)
    except SQLAlchemyError as fault:
        raise unavailable(engine, fault) from fault


def _check_swarm(connection: sa.Connection, card: RootCard, where: str) -> None:
    founded = connection.execute(sa.select(t.founding.c.key_id, t.founding.c.network_id)).one_or_none()
    if founded is None:
        connection.execute(sa.insert(t.founding).values(n=1, key_id=card.key_id, network_id=card.network_id))
    elif founded.key_id != card.key_id:
        raise ConfigurationError(
            f"the ledger at {where} belongs to the swarm with the key {founded.key_id}, this root's is {card.key_id}",
            hint="its roots share one key: swarm-root init --data NEW --swarm-of DATA_OF_THE_FIRST makes another",
        )
    elif founded.network_id != card.network_id:
        raise ConfigurationError(
            f"the ledger at {where} belongs to the network {founded.network_id}, this root's is {card.network_id}",
            hint="copy swarm.json as well as swarm.key from the first root's data directory",
        )


def _check_neighbours(card: RootCard, others: Sequence[RootCard]) -> None:
    for other in others:
        if other.id == card.id:
            if other.door != card.door:
                raise ConfigurationError(
                    f"a root with this one's peer.key runs at {other.door}",
                    hint="a data directory that was copied needs a peer.key of its own: delete it in the copy",
                )
        elif not card.stores:
            raise ConfigurationError(
                f"the root at {other.door} shares this ledger, and this root would keep its blocks to itself",
                hint="give both the same Kubo with --ipfs, so that each can read every result",
            )
        elif not set(other.stores) & set(card.stores):
            raise ConfigurationError(
                f"the root at {other.door} shares this ledger, but keeps its blocks "
                + (f"in the Kubo {', '.join(other.stores)}" if other.stores else "in its own directory"),
                hint="give both the same Kubo with --ipfs, so that each can read every result",
            )


def beat(connection: sa.Connection, card: RootCard) -> None:
    """Say that a root is there; forget those that are gone for good."""
    row = {"id": card.id, "door": card.door, "peer_id": card.peer_id, "stores": orjson.dumps(card.stores).decode()}
    entry = insert(t.roots).values(**row, seen_at=_now)
    said = {name: entry.excluded[name] for name in ("door", "peer_id", "stores", "seen_at")}
    connection.execute(entry.on_conflict_do_update(index_elements=["id"], set_=said))
    connection.execute(sa.delete(t.roots).where(t.roots.c.seen_at < _now - 100 * SILENT_S))


def live_roots(connection: sa.Connection) -> tuple[RootCard, ...]:
    """The roots that spoke lately, in the order of their doors."""
    founded = connection.execute(sa.select(t.founding.c.key_id, t.founding.c.network_id)).one_or_none()
    rows: Sequence[Any] = connection.execute(
        sa.select(t.roots).where(t.roots.c.seen_at > _now - SILENT_S).order_by(t.roots.c.door, t.roots.c.id)
    ).all()
    return tuple(
        RootCard(
            id=row.id,
            key_id=founded.key_id if founded is not None else "",
            network_id=founded.network_id if founded is not None else "",
            door=row.door,
            peer_id=row.peer_id,
            stores=tuple(orjson.loads(row.stores)),
        )
        for row in rows
    )


def unregister(connection: sa.Connection, root: str) -> None:
    """Take a root out at once: it stopped."""
    connection.execute(sa.delete(t.roots).where(t.roots.c.id == root))
