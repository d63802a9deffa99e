"""Watch the channel on the chain: when the payer wants its collateral back, the last voucher is redeemed at once.

What makes vouchers safe without trusting the root (`escrow.md` §4): a voucher stays good for the contract's exit delay,
so who looks at its channel more often than that loses nothing. This needs a node, and some ether for the gas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import structlog
import trio

from swarm.chain_reader import open_chain_reader, redeem_data, shown_node
from swarm.errors import ConfigurationError, RpcSaid, RpcUnreachable
from swarm.vouchers import Channel
from swarm.worker.promises import Account, KeptVoucher

__all__ = ["Look", "look", "pause_s", "watch_channel"]

log = structlog.get_logger()

#: The channel is looked at so many times within an exit delay, …
LOOKS_A_DELAY: Final = 4
#: … but no more often than this, and at least so often, seconds.
LEAST_PAUSE_S: Final = 15.0
MOST_PAUSE_S: Final = 6 * 3600.0
#: A node that doesn't answer is asked again after this, seconds.
RETRY_S: Final = 60.0


@attrs.frozen(kw_only=True)
class Look:
    """What was seen, and done.

    Args:
        exit_delay_s: the contract's.
        redeemed: the hash of the transaction that redeemed the last voucher.
    """

    channel: Channel
    exit_delay_s: int
    redeemed: str | None = None

    def covers(self, last: KeptVoucher | None) -> bool:
        """Whether a voucher is worth what it says: all of it is locked or paid, and no exit is under way."""
        return last is None or (last.cumulative_wei <= self.channel.held_wei and not self.channel.exit_at)


def look(url: str, account: Account, last: KeptVoucher | None, key: bytes) -> Look:
    """Look at a channel, and redeem its last voucher where an exit is under way. Sync: for a thread.

    Args:
        url: of the node's JSON-RPC.
        account: whose channel.
        last: the last voucher that was taken.
        key: the worker's own, which pays the gas; 32 bytes, secret.

    Raises:
        RpcUnreachable: the node doesn't answer.
        RpcSaid: it refuses.
        ConfigurationError: it is of another chain, there is no contract, no ether for the gas, or the gas would cost
            more than it brings.
    """
    from eth_account import Account as EthAccount

    contract = account.escrow.address
    with open_chain_reader(url) as node:
        node.check_chain(account.escrow.chain_id)
        channel = node.channel(contract, account.payer, account.payee)
        seen = Look(channel=channel, exit_delay_s=node.exit_delay_s(contract))
        due_wei = 0 if last is None else channel.due_wei(last.cumulative_wei)
        if not channel.exit_at or last is None or not due_wei:
            return seen
        data = redeem_data(last.voucher, last.signature)
        sender = EthAccount.from_key(key).address
        plan = node.prepare(contract, data, sender=sender, due_wei=due_wei)
        if plan.cost_wei >= due_wei:  # a node that lies about fees can't make this worker burn its ether
            raise ConfigurationError(
                f"the payer takes its collateral back, {due_wei} wei of it are this worker's, "
                f"and {node.shown} asks {plan.cost_wei} wei for the gas",
                hint="if that is too much, ask another node: swarm-worker redeem --rpc URL",
            )
        if plan.balance_wei < plan.cost_wei:
            raise ConfigurationError(
                f"the payer takes its collateral back, {due_wei} wei of it are this worker's, "
                f"and {sender} has no ether for the gas",
                hint=f"send ether to {sender}, or run: swarm-worker redeem --key-file FILE",
            )
        sent = node.send(plan, chain_id=account.escrow.chain_id, contract=contract, data=data, key=key)
        return attrs.evolve(seen, redeemed=sent, channel=node.channel(contract, account.payer, account.payee))


def pause_s(seen: Look) -> float:
    """How long until the next look."""
    return min(max(LEAST_PAUSE_S, seen.exit_delay_s / LOOKS_A_DELAY), MOST_PAUSE_S)


async def watch_channel(
    url: str,
    account: Account,
    last: Callable[[], KeptVoucher | None],
    *,
    key: bytes,
    trust: Callable[[bool], None],
) -> None:
    """Look again and again; runs until it is cancelled.

    Args:
        url: of the node's JSON-RPC.
        account: whose channel.
        last: the last voucher that was taken, now.
        key: the worker's own, 32 bytes, secret.
        trust: told whether the payer's money on the chain covers what it signed.
    """
    told_exit = 0
    while True:
        if last() is None:  # there is nothing to lose yet
            await trio.sleep(RETRY_S)
            continue
        try:
            # Left behind when cancelled: its calls have deadlines, and a voucher is never paid twice.
            seen = await trio.to_thread.run_sync(
                look,
                url,
                account,
                last(),
                key,
                abandon_on_cancel=True,  # type: ignore[call-arg]  # stubs of an older trio stand in front
            )
        except (RpcUnreachable, RpcSaid, ConfigurationError) as fault:
            log.warning("channel_unwatched", node=shown_node(url), reason=str(fault), hint=fault.hint)
            await trio.sleep(RETRY_S)
            continue
        if seen.channel.exit_at != told_exit:
            told_exit = seen.channel.exit_at
            log.warning("channel_exit", payer=account.payer, exit_at=told_exit or None)
        trust(seen.covers(last()))
        if seen.redeemed is not None:
            log.info("voucher_redeemed", transaction=seen.redeemed, settled_wei=seen.channel.settled_wei)
        await trio.sleep(pause_s(seen))
