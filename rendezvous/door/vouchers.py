"""What a worker's turn brings of vouchers: what it earned on its channel since the one that it says it has.

Signed from the ledger's rows alone, and never above what is locked on the chain; each lists every task since the
worker's last one, so that a lost answer is no gap. Whoever has no channel costs a look into a set, and an unpaid swarm
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import structlog

from rendezvous.ledger.money_ops import AdoptVoucher
from swarm.errors import LedgerUnavailable, MalformedInput
from swarm.model import Address, Wei
from swarm.turn_wire import SignedVoucher, VoucherTask
from swarm.vouchers import Escrow, Voucher, compact_signature, voucher_digest, voucher_signer
from swarm.wire import EthereumSettings

if TYPE_CHECKING:
    from rendezvous.acceptance import DigestSigner
    from rendezvous.ledger.channel_queries import VoucherPage
    from rendezvous.ledger.ledger import Ledger

__all__ = ["Vouchers"]

log = structlog.get_logger()


class Vouchers:
    """Signs vouchers.

    Args:
        ledger: what is owed to whom.
        signer: the key that pays.
        ethereum: where it pays from.
        payees: who has earned anything so far.
    """

    def __init__(
        self, ledger: Ledger, signer: DigestSigner, ethereum: EthereumSettings, *, payees: Iterable[Address] = ()
    ) -> None:
        self._ledger: Final = ledger
        self._signer: Final = signer
        self._escrow: Final = Escrow(chain_id=ethereum.chain_id, address=ethereum.contract)
        self._payees: Final = set(payees)

    async def since(
        self, payee: Address, seen: Mapping[Address, str], *, earned: bool, news: bool
    ) -> tuple[SignedVoucher, ...]:
        """What a worker is to get now.

        Args:
            payee: who is paid for its work.
            seen: the amount of the last voucher that it has, by payer.
            earned: whether this turn brought something that is paid for by a voucher.
            news: whether it has just come: another root may have been where it earned.
        """
        if earned:
            self._payees.add(payee)
        elif payee not in self._payees and not news:
            return ()
        since_wei = int(seen.get(self._signer.address, "0"))
        payer = self._signer.address
        try:
            page = await self._ledger.read(lambda reader: reader.vouchers_since(payer, payee, since_wei=since_wei))
            known = page is not None or await self._is_known(payee)
        except LedgerUnavailable as fault:
            log.warning("vouchers_wait", payee=payee, reason=str(fault))
            return ()  # the turn is done; they come with a later one
        if known:
            self._payees.add(payee)
        return () if page is None else (self._sign(payee, page),)

    async def adopt(self, payee: Address, told: SignedVoucher) -> None:
        """Take in a voucher that a worker shows: where it is above what the ledger knows, that was restored.

        Raises:
            LedgerUnavailable: the worker says its turn again.
        """
        place = Escrow(chain_id=told.chain_id, address=told.contract)
        if (place, told.payer, told.payee) != (self._escrow, self._signer.address, payee):
            return
        channel = await self._ledger.read(lambda reader: reader.channel(self._signer.address, payee))
        cumulative_wei = int(told.cumulative_wei)
        if channel is not None and channel.owed_wei >= cumulative_wei:
            return
        tasks_root = bytes.fromhex(told.tasks_root[2:])
        voucher = Voucher(requester=told.payer, worker=payee, cumulative_wei=cumulative_wei, tasks_root=tasks_root)
        try:
            signed_by = voucher_signer(self._escrow, voucher, bytes.fromhex(told.signature[2:]))
        except MalformedInput:
            return
        if signed_by != self._signer.address:
            log.warning("voucher_forged", payee=payee, cumulative_wei=told.cumulative_wei)
            return
        op = AdoptVoucher(payer=self._signer.address, payee=payee, cumulative_wei=cumulative_wei, tasks_root=tasks_root)
        if await self._ledger.call(op):
            known_wei = 0 if channel is None else channel.owed_wei
            log.warning("voucher_adopted", payee=payee, cumulative_wei=cumulative_wei, known_wei=known_wei)
            self._payees.add(payee)

    async def _is_known(self, payee: Address) -> bool:
        if payee in self._payees:
            return True
        return await self._ledger.read(lambda reader: reader.channel(self._signer.address, payee)) is not None

    def _sign(self, payee: Address, page: VoucherPage) -> SignedVoucher:
        amount_wei: Wei = page.cumulative_wei
        voucher = Voucher(
            requester=self._signer.address, worker=payee, cumulative_wei=amount_wei, tasks_root=page.tasks_root
        )
        signature = compact_signature(self._signer.sign_digest(voucher_digest(self._escrow, voucher)))
        return SignedVoucher(
            chain_id=self._escrow.chain_id,
            contract=self._escrow.address,
            payer=voucher.requester,
            payee=payee,
            cumulative_wei=str(amount_wei),
            tasks_root="0x" + page.tasks_root.hex(),
            signature="0x" + signature.hex(),
            since_wei=str(page.since_wei),
            tasks=tuple(
                VoucherTask(
                    task=each.task, generation=each.generation, result=each.result, reward_wei=str(each.reward_wei)
                )
                for each in page.tasks
            ),
        )
