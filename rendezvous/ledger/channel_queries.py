"""What is read of channels: what may be signed for a payee since what it has, and how each channel stands."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import sqlalchemy as sa

from rendezvous.ledger import money_tables as m
from rendezvous.ledger.channels import ADOPTED, ChannelRow, padded
from rendezvous.ledger.money_queries import Select
from swarm.model import Address, Cid, TaskId, Wei
from swarm.wire import MAX_VOUCHER_TASKS

__all__ = ["VoucherPage", "VoucherTask", "read_channel", "read_channels", "vouchers_since"]

#: The most rows of one page.
PAGE_MOST = 1_000


@attrs.frozen(kw_only=True)
class VoucherTask:
    """A task that a voucher pays for."""

    task: TaskId
    generation: int
    result: Cid
    reward_wei: Wei


@attrs.frozen(kw_only=True)
class VoucherPage:
    """What is to be signed for a payee, and every task since the voucher that it has.

    Args:
        since_wei: what that voucher was of; 0 where it has none, or one that this ledger doesn't know.
        cumulative_wei: what this one is of.
        tasks_root: the hash chain over all tasks up to it.
    """

    since_wei: Wei
    cumulative_wei: Wei
    tasks_root: bytes
    tasks: tuple[VoucherTask, ...]


def read_channel(select: Select, payer: Address, payee: Address) -> ChannelRow | None:
    """How a channel stands; None where nothing was ever earned on it."""
    found = select(sa.select(m.channels).where(m.channels.c.payer == payer, m.channels.c.payee == payee))
    return ChannelRow.of(found[0]) if found else None


def read_channels(select: Select, payer: Address, *, after: Address = "", unseen: bool = False) -> list[ChannelRow]:
    """A page of a payer's channels, by payee.

    Args:
        select: runs a query.
        payer: whose.
        after: the last payee of the page before.
        unseen: only those that were never looked up on the chain.
    """
    wanted = sa.select(m.channels).where(m.channels.c.payer == payer, m.channels.c.payee > after)
    if unseen:
        wanted = wanted.where(m.channels.c.seen_number.is_(None))
    return [ChannelRow.of(row) for row in select(wanted.order_by(m.channels.c.payee).limit(PAGE_MOST))]


def vouchers_since(select: Select, payer: Address, payee: Address, *, since_wei: Wei) -> VoucherPage | None:
    """What a payee is to get that has a voucher of ``since_wei``; None where it has all that is covered.

    It is never above what the chain's money covers.
    """
    channel = read_channel(select, payer, payee)
    if channel is None or not channel.covered or since_wei >= channel.owed_wei:
        return None
    vouchers = m.vouchers
    of_channel = (vouchers.c.payer == payer, vouchers.c.payee == payee)
    found = select(sa.select(vouchers.c.n).where(*of_channel, vouchers.c.cumulative_wei == padded(since_wei)))
    since = found[0].n if found else 0
    if since >= channel.covered:
        return None
    rows: Sequence[sa.Row[tuple[object, ...]]] = select(
        sa.select(vouchers)
        .where(*of_channel, vouchers.c.n > since, vouchers.c.n <= min(channel.covered, since + MAX_VOUCHER_TASKS))
        .order_by(vouchers.c.n)
    )
    if any(row.generation == ADOPTED for row in rows):
        return None  # the tasks between are lost with the ledger that knew them: only who has that voucher goes on
    last = rows[-1]
    return VoucherPage(
        since_wei=since_wei if found else 0,
        cumulative_wei=int(last.cumulative_wei),
        tasks_root=bytes(last.tasks_root),
        tasks=tuple(
            VoucherTask(task=row.task, generation=row.generation, result=row.result, reward_wei=int(row.reward_wei))
            for row in rows
        ),
    )
