"""What becomes of the intents of a batch that failed: true already, to blame, or to be tried again. It only reads.

A dry run of the batch (``eth_call``) names the bad item by the contract's custom error; without it the rest is run
again. An item that is alone in its batch needs no name. What is the wallet's fault is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rendezvous.chain import escrow
from rendezvous.chain.compose import CHANNEL_KINDS, Purse, chain_task, compose, is_met
from rendezvous.chain.escrow import ChainTask, ContractError, TaskState
from rendezvous.chain.outbox import ChainView
from rendezvous.chain.rpc import Rpc
from rendezvous.ledger.money_ops import Intent, IntentKind, ItemOutcome, Transaction, Verdict
from swarm.errors import RpcSaid
from swarm.model import Address
from swarm.vouchers import NO_CHANNEL, Channel

__all__ = ["Judge", "is_empty_wallet", "true_already"]

#: An intent that was named waits before it is tried again, seconds; four times as long at each further try.
RETRY_S: Final = 15.0
RETRY_FACTOR: Final = 4
#: Node's words for an empty wallet.
_EMPTY: Final = ("insufficient funds", "doesn't have enough funds")


class Judge:
    """Judges batches of one sender.

    Args:
        rpc: the node.
        sender: whose batches.
        contract: the escrow's address.
    """

    def __init__(self, rpc: Rpc, *, sender: Address, contract: Address) -> None:
        self._rpc: Final = rpc
        self._sender: Final = sender
        self._contract: Final = contract

    async def took_effect(self, transaction: Transaction, view: ChainView) -> bool:
        """Whether an event of the contract comes from an attempt of this transaction."""
        logs = await self._rpc.call(
            "eth_getLogs",
            {"address": self._contract, "fromBlock": hex(max(0, transaction.signed_block)), "toBlock": hex(view.head)},
        )
        ours = {attempt.hash for attempt in transaction.attempts}
        return any(each["transactionHash"] in ours for each in logs)

    async def cure(self, intents: Sequence[Intent], view: ChainView) -> list[ItemOutcome]:
        """What becomes of each intent of a batch that failed."""
        height = max(0, view.final)
        tasks = await self._tasks(intents, hex(height))
        channels = await self.channels(intents, view)
        outcomes = [true_already(intent) for intent in intents if _is_true(intent, tasks.get(intent.n), view, channels)]
        done = {outcome.n for outcome in outcomes}
        left = [intent for intent in intents if intent.n not in done]
        while left:
            error = await self._dry_run(left, view, channels)
            if error is None:
                outcomes += [ItemOutcome(n=intent.n, verdict=Verdict.AGAIN) for intent in left]
                break
            named = error.task if isinstance(error, ContractError) else None
            bad = [intent for intent in left if intent.task is not None and chain_task(intent) == named]
            payee = error.payee if isinstance(error, ContractError) else None
            bad += [intent for intent in left if payee is not None and intent.payee == payee]
            if len(left) == 1 and not _is_about_money(error):
                bad = left
            if not bad:
                outcomes += [_later(intent, error) for intent in left]
                break
            outcomes += [_named(intent, error) for intent in bad]
            blamed = {intent.n for intent in bad}
            left = [intent for intent in left if intent.n not in blamed]
        return outcomes

    async def _tasks(self, intents: Sequence[Intent], block: str) -> dict[int, ChainTask]:
        asked = [intent for intent in intents if intent.task is not None]
        answers = await self._rpc.batch(
            [
                ("eth_call", [self._reading(escrow.task_call(self._sender, chain_task(intent))), block])
                for intent in asked
            ]
        )
        return {
            intent.n: escrow.decode_task(answer)
            for intent, answer in zip(asked, answers, strict=True)
            if isinstance(answer, str) and len(answer) > 2
        }

    async def channels(self, intents: Sequence[Intent], view: ChainView) -> dict[Address, Channel]:
        """The channels that these intents are about, on a final block.

        Of a channel there is one open funding at most, so nothing of ours that isn't final adds to it.

        Raises:
            RpcSaid: the node can't say.
        """
        payees = list(dict.fromkeys(intent.payee for intent in intents if intent.kind in CHANNEL_KINDS))
        if not payees:
            return {}
        block = hex(max(0, view.final))
        calls = [
            ("eth_call", [self._reading(escrow.channel_call(self._sender, payee or escrow.NO_ADDRESS)), block])
            for payee in payees
        ]
        found: dict[Address, Channel] = {}
        for payee, answer in zip(payees, await self._rpc.batch(calls), strict=True):
            if isinstance(answer, RpcSaid):
                raise answer
            nothing = answer == "0x"  # the contract is younger than that block
            found[payee or escrow.NO_ADDRESS] = NO_CHANNEL if nothing else escrow.decode_channel(answer)
        return found

    async def _dry_run(
        self, intents: Sequence[Intent], view: ChainView, channels: Mapping[Address, Channel]
    ) -> ContractError | str | None:
        """What the chain would say to this batch now; None where it would take it."""
        purse = Purse(wallet_wei=view.wallet_wei, escrow_wei=view.escrow_wei)
        call = compose(intents, purse, sender=self._sender, timestamp=view.timestamp, channels=channels)
        if call is None:
            return None
        if len(call.intents) < len(intents):
            return "insufficient funds"
        try:
            await self._rpc.call("eth_call", {**self._reading(call.data), "value": hex(call.value_wei)}, "latest")
        except RpcSaid as fault:
            return escrow.decode_error(fault.data) or fault.message
        return None

    def _reading(self, data: bytes) -> dict[str, str]:
        return {"from": self._sender, "to": self._contract, "data": "0x" + data.hex()}


def is_empty_wallet(words: str) -> bool:
    """Whether a node says that the wallet can't pay."""
    return any(each in words.lower() for each in _EMPTY)


def _is_true(intent: Intent, task: ChainTask | None, view: ChainView, channels: Mapping[Address, Channel]) -> bool:
    """Whether the chain has what the intent wants already."""
    if intent.kind in CHANNEL_KINDS:
        return is_met(intent, channels[intent.payee or escrow.NO_ADDRESS])
    if intent.kind is IntentKind.DEPOSIT:
        return view.escrow_wei >= intent.amount_wei
    if task is None:
        return False
    if intent.kind is IntentKind.CREATE:
        return task.state is TaskState.OPEN and task.reward_wei == intent.amount_wei
    if intent.kind is IntentKind.COMPLETE:
        return task.state is TaskState.PAID
    return intent.kind is IntentKind.FAIL and task.state in (TaskState.FAILED, TaskState.REFUNDED)


def _is_about_money(error: ContractError | str) -> bool:
    """Whether it is the wallet's fault, not the item's."""
    if isinstance(error, ContractError):
        return error.name == "InsufficientBalance"
    return is_empty_wallet(error)


def true_already(intent: Intent) -> ItemOutcome:
    """The verdict on what is true already."""
    return ItemOutcome(n=intent.n, verdict=Verdict.DONE)


def _named(intent: Intent, error: ContractError | str) -> ItemOutcome:
    retry_after_s = RETRY_S * RETRY_FACTOR**intent.tries
    return ItemOutcome(n=intent.n, verdict=Verdict.NAMED, note=str(error), retry_after_s=retry_after_s)


def _later(intent: Intent, error: ContractError | str) -> ItemOutcome:
    verdict = Verdict.AGAIN if _is_about_money(error) else Verdict.DELAYED
    return ItemOutcome(n=intent.n, verdict=verdict, note=str(error), retry_after_s=RETRY_S)
