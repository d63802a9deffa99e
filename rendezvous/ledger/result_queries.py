"""What can be read of results: the manifests that came inline, and which results there are. ``queries`` offers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from rendezvous.ledger import tables as t
from swarm.model import Cid, Move

__all__ = ["read_inline_manifests", "read_manifest", "read_result_cids"]

Rows = Callable[[sa.Executable], Sequence[Any]]

#: Results that are read at a time.
PAGE_ROWS: Final = 1_000


def read_manifest(rows: Rows, cid: Cid) -> bytes | None:
    """A manifest that came inline with its completion."""
    found = rows(sa.select(t.manifests.c.body).where(t.manifests.c.cid == cid))
    return bytes(found[0][0]) if found else None


def read_inline_manifests(rows: Rows, after: int, up_to: int) -> list[tuple[Cid, bytes]]:
    """The manifests that came inline with the completions after one event, up to another; each once."""
    results = (
        sa.select(t.tasks.c.result)
        .join(t.events, t.events.c.seq == t.tasks.c.seq)
        .where(t.events.c.id > after, t.events.c.id <= up_to, t.events.c.move == Move.COMPLETE.value)
    )
    statement = sa.select(t.manifests.c.cid, t.manifests.c.body).where(t.manifests.c.cid.in_(results))
    return [(row.cid, bytes(row.body)) for row in rows(statement)]


def read_result_cids(rows: Rows) -> Iterator[Cid]:
    """The results of all tasks that the ledger has, oldest task first."""
    after = 0
    while True:
        statement = (
            sa.select(t.tasks.c.seq, t.tasks.c.result)
            .where(t.tasks.c.seq > after, t.tasks.c.result.is_not(None))
            .order_by(t.tasks.c.seq)
            .limit(PAGE_ROWS)
        )
        found = rows(statement)
        yield from (row.result for row in found)
        if len(found) < PAGE_ROWS:
            return
        after = found[-1].seq
