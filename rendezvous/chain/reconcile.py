"""The pay desk: from what the ledger wants to what the chain has, again and again, for as long as the root runs.

It is woken by what the ledger commits, looks every second while something is under way and every ten otherwise, and
gives up nothing: whatever fails is tried again, and told when it lasts. Flags of tasks are set by ``Finalized`` and
taken back by ``Reorged`` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import structlog

from rendezvous.chain import escrow
from rendezvous.chain.alerts import ALERT_AFTER_S, Alerts
from rendezvous.chain.audit import AUDIT_EVERY_S, Auditor, AuditReport
from rendezvous.chain.channels import ChannelFollower
from rendezvous.chain.finality import Finality
from rendezvous.chain.outbox import Rules, Worry, WorryCode
from rendezvous.chain.rpc import Rpc, open_rpc, shown_url
from rendezvous.chain.sender import SenderLost, Signer, TransactionSender
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.money_ops import Book, ClaimSender, Record, Sender, SenderHeld
from rendezvous.ledger.neighbours import Office
from rendezvous.ledger.ops import LedgerEvent
from swarm.errors import ConfigurationError, LedgerUnavailable, RpcSaid, RpcUnreachable
from swarm.model import TERMINAL, Address, Move, Wei
from swarm.wire import EthereumSettings

__all__ = ["ChainSettings", "PayDesk", "open_pay_desk"]

log = structlog.get_logger()

#: How often the chain is looked at, whatever happens, seconds …
SWEEP_S: Final = 10.0
#: … and while something is under way.
POLL_S: Final = 1.0
#: The names that wallets know.
_NETWORKS: Final = {1: "mainnet", 11155111: "sepolia", 17000: "holesky", 31337: "hardhat"}


@attrs.frozen(kw_only=True)
class ChainSettings:
    """The chain's section.

    Args:
        url: of the node's JSON-RPC; may hold a secret.
        contract: the escrow's address.
        holder: who claims the sender: one data directory, one holder.
        rules: of the outbox.
        poll_s: how often the chain is looked at while something is under way.
        sweep_s: how often otherwise.
        alert_after_s: how long a worry lasts before it is told.
        audit_every_s: how often ledger and chain are compared.
    """

    url: str = attrs.field(repr=shown_url)
    contract: Address
    holder: str
    rules: Rules = attrs.field(factory=Rules)
    poll_s: float = POLL_S
    sweep_s: float = SWEEP_S
    alert_after_s: float = ALERT_AFTER_S
    audit_every_s: float = AUDIT_EVERY_S


class _LedgerBooks:
    """The ledger as the sender uses it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger: Final = ledger

    async def call(self, op: Record) -> tuple[bool, ...] | SenderHeld:
        return await self._ledger.call(op)

    async def book(self, sender: Address) -> Book | None:
        now = self._ledger.now()
        return await self._ledger.read(lambda reader: reader.book(sender, now=now))

    def now(self) -> float:
        return self._ledger.now()


class PayDesk:
    """Pays what the ledger owes.

    Args:
        ledger: the books.
        rpc: the node.
        signer: the key that pays.
        settings: the chain's section.
        chain_id: what signatures are for.
    """

    def __init__(self, ledger: Ledger, rpc: Rpc, signer: Signer, settings: ChainSettings, *, chain_id: int) -> None:
        self._ledger: Final = ledger
        self._books: Final = _LedgerBooks(ledger)
        self._rpc: Final = rpc
        self._signer: Final = signer
        self._settings: Final = settings
        self._chain_id: Final = chain_id
        self._finality: Final = Finality(settings.rules)
        self._woken: Final = asyncio.Event()
        self._sender: TransactionSender | None = None
        self._stands_by_for: str | None = None
        self._auditor: Final = Auditor(ledger, rpc, signer.address, contract=settings.contract, finality=self._finality)
        self._audited_at: float | None = None
        self._audit_worries: tuple[Worry, ...] = ()
        self._channels: Final = ChannelFollower(
            ledger,
            rpc,
            signer.address,
            contract=settings.contract,
            finality=self._finality,
        )
        self.alerts: Final = Alerts(after_s=settings.alert_after_s)

    @property
    def ethereum(self) -> EthereumSettings:
        """What ``/settings`` says of it."""
        network = _NETWORKS.get(self._chain_id, f"chain-{self._chain_id}")
        return EthereumSettings(
            network=network,
            chain_id=self._chain_id,
            contract=self._settings.contract,
            payer=self._signer.address,
        )

    async def base_fee_wei(self) -> Wei | None:
        """What a unit of gas costs in the newest block; None where the node doesn't answer."""
        try:
            block = await self._rpc.call("eth_getBlockByNumber", "latest", False)
        except (RpcUnreachable, RpcSaid):
            return None
        return int(block["baseFeePerGas"], 16) if block and "baseFeePerGas" in block else None

    def wake(self) -> None:
        """Look now: something is to be signed."""
        self._woken.set()

    def hear(self, events: Sequence[LedgerEvent]) -> None:
        """Wake for what moves money; a listener of the ledger."""
        if any(
            event.reward_wei and (event.move in (Move.SUBMIT, Move.REPLAY) or event.to in TERMINAL) for event in events
        ):
            self.wake()

    async def run(self) -> None:
        """Pay until cancelled."""
        unsubscribe = self._ledger.subscribe(self.hear)
        try:
            while True:
                self._woken.clear()
                pause_s = await self.sweep()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._woken.wait()
        finally:
            unsubscribe()

    async def sweep(self) -> float:
        """Do rounds until nothing moves any more.

        Returns:
            How long to wait for news, seconds.
        """
        if not self._ledger.neighbours.holds(Office.PAYER):
            self._sender = None
            return self._settings.poll_s
        worries: tuple[Worry, ...] = ()
        pause_s = self._settings.sweep_s
        try:
            sender = self._sender or await self._claim()
            while True:
                done = await sender.round()
                worries = done.worries
                if not done.moved:
                    break
            pause_s = min(pause_s, self._settings.poll_s) if done.pending else pause_s
            if not any(worry.code is WorryCode.CHAIN_LOST for worry in worries) and await self._channels.follow():
                self.wake()  # a channel that was seen to hold too little may have asked for more
            await self._audit_if_due()
        except RpcUnreachable as fault:
            worries = (_unreachable(fault),)
            pause_s = min(pause_s, 2 * self._settings.poll_s)
        except SenderLost as fault:
            self._stand_by(fault.held)
        except LedgerUnavailable as fault:
            log.warning("pay_desk_waits", reason=str(fault))
            return pause_s  # what was in the way of money before still is
        except RpcSaid as fault:
            worries = (_refuses(fault),)
        except Exception as fault:
            # The supervision boundary of the pay desk: a defect of ours or of a node must not end paying for good.
            log.exception("pay_desk_failed")
            worries = (_refuses(fault),)
        self.alerts.update((*worries, *self._audit_worries), now=self._ledger.now())
        return pause_s

    def _stand_by(self, held: SenderHeld) -> None:
        """Another root on this ledger signs: take over once it is silent. Said once."""
        self._sender = None
        if self._stands_by_for != held.holder:
            self._stands_by_for = held.holder
            log.info("pay_desk_stands_by", for_holder=held.holder, silent_in_s=round(held.for_s, 1))

    async def _claim(self) -> TransactionSender:
        """Take the key over, or say who has it."""
        self._channels.forget()
        row = await claim(self._ledger, self._rpc, self._signer.address, self._settings, chain_id=self._chain_id)
        self._stands_by_for = None
        self._sender = TransactionSender(
            self._books,
            self._rpc,
            self._signer,
            contract=self._settings.contract,
            chain_id=self._chain_id,
            epoch=row.epoch,
            rules=self._settings.rules,
            finality=self._finality,
        )
        return self._sender

    # ── audit ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _audit_if_due(self) -> None:
        now = self._ledger.now()
        if self._audited_at is None:
            self._audited_at = now
        elif now - self._audited_at >= self._settings.audit_every_s:
            self._audited_at = now
            self._channels.forget()  # whatever was missed is seen at the next sweep
            await self.audit()

    async def audit(self) -> AuditReport:
        """Compare ledger and chain now; what differs is told until an audit finds it gone."""
        report = await self._auditor.audit()
        self._audit_worries = ()
        if report.differences:
            self._audit_worries = (
                Worry(
                    code=WorryCode.AUDIT_DIFFERS,
                    message=f"ledger and chain differ: {'; '.join(report.differences[:5])}",
                    hint="see the log for all of it; nothing is paid twice by it, but find out who else uses this key",
                    at_once=True,
                ),
            )
        log.info("chain_audited", block=report.block, tasks=report.tasks, differences=report.differences)
        return report


async def claim(ledger: Ledger, rpc: Rpc, address: Address, settings: ChainSettings, *, chain_id: int) -> Sender:
    """Become the one that signs with a key.

    Raises:
        SenderLost: another does.
        ConfigurationError: the ledger's money is on another chain, or in another contract.
        RpcUnreachable: the node doesn't answer.
    """
    first = await ledger.read(lambda reader: reader.sender(address))
    number, block_hash, balance_wei, nonce = 0, "", 0, 0
    if first is None:
        number = await Finality(settings.rules).look(rpc)
        reading = {"to": settings.contract, "data": "0x" + escrow.balance_call(address).hex()}
        block, balance, latest, pending = await rpc.batch(
            [
                ("eth_getBlockByNumber", [hex(number), False]),
                ("eth_call", [reading, hex(number)]),
                ("eth_getTransactionCount", [address, "latest"]),
                ("eth_getTransactionCount", [address, "pending"]),
            ]
        )
        for answer in (block, balance, latest):
            if isinstance(answer, RpcSaid):
                raise answer
        block_hash = block["hash"]
        balance_wei = escrow.decode_balance(balance)
        nonce = max(int(latest, 16), 0 if isinstance(pending, RpcSaid) else int(pending, 16))
    else:
        check_same(first, settings.contract, chain_id)
    answer = await ledger.call(
        ClaimSender(
            address=address,
            holder=settings.holder,
            chain_id=chain_id,
            contract=settings.contract,
            nonce=nonce,
            anchor_number=number,
            anchor_hash=block_hash,
            balance_wei=balance_wei,
            takes_over=ledger.neighbours.exclusive,
        )
    )
    if isinstance(answer, SenderHeld):
        raise SenderLost(answer)
    check_same(answer, settings.contract, chain_id)
    log.info("sender_claimed", address=address, epoch=answer.epoch, next_nonce=answer.next_nonce)
    return answer


def check_same(sender: Sender, contract: Address, chain_id: int) -> None:
    """Refuse to go on with money that is somewhere else.

    Raises:
        ConfigurationError: with what to do.
    """
    if (sender.contract, sender.chain_id) != (contract, chain_id):
        raise ConfigurationError(
            f"this ledger's money is in {sender.contract} on chain {sender.chain_id}, not in {contract} on {chain_id}",
            hint="use the --rpc and --contract that it was begun with, another --chain-key, or a new data directory",
        )


def _unreachable(fault: RpcUnreachable) -> Worry:
    return Worry(
        code=WorryCode.CHAIN_UNREACHABLE,
        message=f"the chain's node doesn't answer: {fault}",
        hint="tasks go on, funding and paying wait: start the node, or use another --rpc",
    )


def _refuses(fault: Exception) -> Worry:
    return Worry(
        code=WorryCode.CHAIN_REFUSES,
        message=f"looking at the chain failed: {fault}",
        hint="it is tried again; if this lasts, use another --rpc",
    )


@asynccontextmanager
async def open_pay_desk(ledger: Ledger, signer: Signer, settings: ChainSettings) -> AsyncIterator[PayDesk]:
    """The pay desk of a root; it pays while its ``run`` runs.

    *Resource handling*: the node's connections are the block's.

    Raises:
        ConfigurationError: there is no contract at the address, or the ledger's money is somewhere else.
        RpcUnreachable: the node doesn't answer, and this ledger never used the key: which chain it is isn't known.
    """
    async with open_rpc(settings.url) as rpc:
        sender = await ledger.read(lambda reader: reader.sender(signer.address))
        try:
            chain_id = int(await rpc.call("eth_chainId"), 16)
            code = await rpc.call("eth_getCode", settings.contract, "latest")
        except RpcUnreachable:
            if sender is None:
                raise
            chain_id, code = sender.chain_id, "unknown"  # it was there before: tasks go on, paying waits
        if sender is not None:
            check_same(sender, settings.contract, chain_id)
        elif code == "0x":
            raise ConfigurationError(
                f"there is no contract at {settings.contract} on chain {chain_id} ({shown_url(settings.url)})",
                hint="deploy one, or give the right --contract and --rpc",
            )
        yield PayDesk(ledger, rpc, signer, settings, chain_id=chain_id)
