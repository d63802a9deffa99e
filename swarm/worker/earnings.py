"""What this worker is owed by vouchers: expected from its grants, checked when it comes, kept in a book of its own.

A voucher that isn't taken changes nothing, and is said in the log: the work goes on, and the next one lists its tasks
again. What is kept survives the root: ``swarm-worker redeem`` needs the data directory alone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import structlog
import trio

from swarm.errors import StoreFull
from swarm.model import Address, Cid, TaskId
from swarm.turn_wire import Grant, SignedVoucher
from swarm.vouchers import Escrow
from swarm.wire import EthereumSettings
from swarm.worker.promises import Account, Expected, KeptVoucher, Objection, check_voucher
from swarm.worker.voucher_book import open_voucher_book

__all__ = ["Earnings", "KeepsVouchers", "account_of", "open_earnings"]

log = structlog.get_logger()


class KeepsVouchers(Protocol):
    """``VoucherBook``, as far as earnings go."""

    def last_voucher(self, escrow: Escrow, payer: Address, payee: Address) -> KeptVoucher | None:
        """The one of the greatest amount."""
        ...

    def expected(self, task: TaskId, generation: int) -> Expected | None:
        """What a task that this worker did was to be paid."""
        ...

    async def expect(self, task: TaskId, generation: int, expected: Expected) -> None:
        """Keep that; raises ``StoreFull``."""
        ...

    async def keep_voucher(self, kept: KeptVoucher, *, tasks: Iterable[tuple[TaskId, int]]) -> None:
        """Keep a voucher for these tasks, durably; raises ``StoreFull``."""
        ...


def account_of(ethereum: EthereumSettings | None, *, address: Address, payout: Address | None) -> Account | None:
    """Whose vouchers are taken; None in a swarm that doesn't say who pays.

    Args:
        ethereum: of the signed settings.
        address: this worker's own.
        payout: who is paid for its work instead; others may work for it too.
    """
    if ethereum is None or ethereum.payer is None:
        return None
    return Account(
        escrow=Escrow(chain_id=ethereum.chain_id, address=ethereum.contract),
        payer=ethereum.payer,
        payee=payout or address,
        shared=payout is not None and payout != address,
    )


class Earnings:
    """Takes vouchers.

    Args:
        book: keeps them.
        account: whose are taken.
        seen: told the last one that was taken.
        told_rpc: the node that the settings name.
        max_unpaid: how many accepted tasks may be unpaid before no more are asked for.
        trust: told whether more may be asked for.
    """

    def __init__(
        self,
        book: KeepsVouchers,
        account: Account,
        *,
        seen: Callable[[SignedVoucher], None],
        told_rpc: str | None = None,
        max_unpaid: int,
        trust: Callable[[bool], None] = lambda _: None,
    ) -> None:
        #: The node that the settings name, where it may be asked.
        self.told_rpc: Final = told_rpc
        self._max_unpaid: Final = max_unpaid
        self._trust: Final = trust
        self._unpaid: Final[set[TaskId]] = set()
        self._expecting: Final[set[TaskId]] = set()
        self._book: Final = book
        self.account: Final = account
        self._seen: Final = seen
        self._one_at_a_time: Final = trio.Lock()
        self.last = book.last_voucher(account.escrow, account.payer, account.payee)
        if self.last is not None:
            seen(_as_said(self.last))

    async def expect(self, grant: Grant, result: Cid) -> None:
        """Note what a task that was just done is to be paid by a voucher, if it is."""
        if grant.task.voucher_wei is None or grant.task.generation is None:
            return
        expected = Expected(result=result, reward_wei=int(grant.task.voucher_wei))
        self._expecting.add(grant.task.id)
        try:
            await self._book.expect(grant.task.id, grant.task.generation, expected)
        except StoreFull as full:
            log.warning("earning_not_kept", task_id=grant.task.id, reason=str(full))  # it is known until we end

    def settled(self, task: TaskId, *, accepted: bool) -> None:
        """A result was answered: it is owed from now on, or never will be."""
        if task not in self._expecting:
            return
        self._expecting.discard(task)
        if accepted:
            self._unpaid.add(task)
            if len(self._unpaid) == self._max_unpaid:
                log.warning("work_unpaid", tasks=len(self._unpaid), payer=self.account.payer)
                self._trust(False)

    async def take(self, vouchers: Iterable[SignedVoucher]) -> None:
        """Check vouchers and keep those that are right."""
        async with self._one_at_a_time:
            for told in vouchers:
                await self._take(told)

    async def _take(self, told: SignedVoucher) -> None:
        check = partial(check_voucher, told, self.account, last=self.last, expected=self._book.expected)
        checked = await trio.to_thread.run_sync(check)  # the first imports the elliptic curves, half a second
        facts = {"payer": told.payer, "cumulative_wei": told.cumulative_wei, "tasks": len(told.tasks)}
        if checked is None:
            return
        if isinstance(checked, Objection):
            log.warning("voucher_refused", **facts, why=checked.why)
            return
        try:
            paid = [(each.task, each.generation) for each in told.tasks]
            await self._book.keep_voucher(checked, tasks=paid)
        except StoreFull as full:
            log.warning("voucher_not_kept", **facts, reason=str(full))  # the next one lists its tasks again
            return
        self.last = checked
        self._expecting.difference_update(each.task for each in told.tasks)
        self._unpaid.difference_update(each.task for each in told.tasks)
        if len(self._unpaid) < self._max_unpaid:
            self._trust(True)
        self._seen(_as_said(checked))
        log.info("voucher_taken", **facts)


@contextlib.asynccontextmanager
async def open_earnings(
    ethereum: EthereumSettings | None,
    path: Path,
    *,
    address: Address,
    payout: Address | None,
    door_url: str,
    seen: Callable[[SignedVoucher], None],
    max_unpaid: int,
    trust: Callable[[bool], None] = lambda _: None,
) -> AsyncIterator[Earnings | None]:
    """What a worker of this swarm earns; None where nobody is named who pays.

    Args:
        ethereum: of the signed settings.
        path: the book of vouchers; made where there is none.
        address: this worker's own.
        payout: who is paid for its work instead.
        door_url: where the settings come from.
        seen: told the last voucher that was taken.
        max_unpaid: how many accepted tasks may be unpaid before no more are asked for.
        trust: told whether more may be asked for.

    *Resource handling*: the book is open while the block is.
    """
    account = account_of(ethereum, address=address, payout=payout)
    if account is None or ethereum is None:
        yield None
        return
    async with open_voucher_book(path, clock=time.time) as book:
        rpc = _believable(ethereum.rpc, door_url)
        try:
            await book.note_account(account, rpc=rpc)
        except StoreFull as full:
            log.warning("account_not_kept", reason=str(full))  # vouchers that come are kept once there is room
        yield Earnings(book, account, seen=seen, told_rpc=rpc, max_unpaid=max_unpaid, trust=trust)


def _as_said(kept: KeptVoucher) -> SignedVoucher:
    """A voucher as it is shown to the root: without the tasks."""
    voucher = kept.voucher
    return SignedVoucher(
        chain_id=kept.escrow.chain_id,
        contract=kept.escrow.address,
        payer=voucher.requester,
        payee=voucher.worker,
        cumulative_wei=str(voucher.cumulative_wei),
        tasks_root="0x" + voucher.tasks_root.hex(),
        signature="0x" + kept.signature.hex(),
    )


def _believable(rpc: str | None, door_url: str) -> str | None:
    """The node that the settings name, unless it is in this machine's network and the door isn't.

    Nobody else's settings make this machine speak to its own services.
    """
    try:
        if rpc is None or (_is_private(rpc) and not _is_private(door_url)):
            return None
        parts = urlsplit(rpc)
        return rpc if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:  # no URL at all: the worker goes on without a node
        return None


def _is_private(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return host == "localhost" or host.endswith((".localhost", ".local", ".internal")) or "." not in host
