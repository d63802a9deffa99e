"""``swarm-worker wallet``, ``redeem``, ``release``: what a worker earned, and having it paid out without the root.

All read the data directory, also beside a worker that runs, and ask one node of the chain: the owner's own (``--rpc``)
or the one that the swarm's settings name. Which one it was is always said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from swarm.amounts import parse_wei, show_wei
from swarm.errors import ConfigurationError
from swarm.settings import declared, load
from swarm.worker.settings import ROOT_PREFIX, WorkerSettings

if TYPE_CHECKING:
    from swarm.chain_reader import ChainReader
    from swarm.model import Address, Wei
    from swarm.vouchers import Channel
    from swarm.worker.voucher_book import NotedAccount, NotedVoucher

__all__ = ["redeem", "release", "wallet"]

#: A redemption that brings less than this many times its gas is better waited with (`escrow.md` §4).
WORTH_TIMES: Final = 20
OWN: Final = "your --rpc"
TOLD: Final = "the node that the swarm's settings name"

WALLET_EXAMPLES: Final = """\b
Examples:
  swarm-worker wallet
  swarm-worker wallet --rpc http://127.0.0.1:8545 --json
  swarm-worker wallet --data ~/second-worker
"""
REDEEM_EXAMPLES: Final = """\b
Examples:
  swarm-worker redeem                              asks before it sends; this worker's key pays the gas
  swarm-worker redeem --rpc https://node.example   by a node that you trust
  swarm-worker redeem --key-file gas.key --yes     another key pays the gas; the worker is paid all the same
  swarm-worker redeem --yes --max-gas-cost 0.001eth
                                                   in a script, also where that is more than the voucher brings
  swarm-worker redeem --show                       the vouchers, for anyone to send; nothing is sent
"""
RELEASE_EXAMPLES: Final = """\b
Examples:
  swarm-worker redeem && swarm-worker release
"""


class Agree(Protocol):
    """Raises where it isn't agreed that a call is sent."""

    def __call__(self, question: str, *, cost_wei: Wei, worth_wei: Wei) -> None:
        """Ask, by the most that the call costs and what it moves."""


def _options(*fields: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for one in declared(WorkerSettings):
            if one.field in fields:
                shown = f"{one.help}  [{one.variable}]"
                command = click.option(f"--{one.option}", one.field, metavar=one.option.upper(), help=shown)(command)
        return command

    return decorate


def _agreeing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of what costs gas."""
    yes = click.option("--yes", "-y", is_flag=True, help="don't ask")
    most = click.option(
        "--max-gas-cost",
        metavar="AMOUNT",
        help="send nothing whose gas may cost more; up to this --yes also pays more for gas than is moved",
    )
    return yes(most(command))


# ── wallet ────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(epilog=WALLET_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@_options("data", "rpc")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def wallet(as_json: bool, **given: Any) -> None:
    """Show what this worker has and is owed: its ether, its channels, earned by vouchers, redeemed.

    The worker may be running. Amounts on the chain are those of the newest block.
    """
    from swarm.chain_reader import open_chain_reader
    from swarm.identity import read_address

    settings = _settings(given)
    directory = settings.data.expanduser()
    address = read_address(directory)
    accounts = _accounts(directory)
    shown: dict[str, Any] = {"address": address, "channels": []}
    for payee in dict.fromkeys(account.payee for account, _ in accounts if account.payee != address):
        shown["payout"] = payee
    url, whose = _node(settings, accounts)
    if url is None:
        shown["channels"] = [_told(account, noted, None, None) for account, noted in accounts]
    else:
        with open_chain_reader(url) as node:
            shown |= {"node": node.shown, "node_is": whose, "ether_wei": node.ether(shown.get("payout", address))}
            for account, noted in accounts:
                node.check_chain(account.escrow.chain_id)
                where = (account.escrow.address, account.payer, account.payee)
                credit_wei = node.credit(account.escrow.address, account.payee)
                shown["channels"].append(_told(account, noted, node.channel(*where), credit_wei))
    _print(shown, as_json=as_json)
    if url is None:
        click.echo("what is on the chain isn't known: give --rpc with a node of it", err=True)


def _told(
    account: NotedAccount, noted: NotedVoucher | None, channel: Channel | None, credit_wei: int | None
) -> dict[str, Any]:
    """A channel for people and programs."""
    earned_wei = 0 if noted is None else noted.kept.cumulative_wei
    told: dict[str, Any] = {
        "contract": account.escrow.address,
        "chain_id": account.escrow.chain_id,
        "payer": account.payer,
        "earned_wei": earned_wei,
        "tasks": 0 if noted is None else noted.kept.tasks,
    }
    if channel is not None:
        told |= {
            "redeemed_wei": channel.settled_wei,
            "due_wei": channel.due_wei(earned_wei),
            "locked_wei": channel.locked_wei,
            "credit_wei": credit_wei or 0,
            "exit_at": channel.exit_at or None,
        }
    return told


def _print(shown: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        import orjson

        click.echo(orjson.dumps(_texts(shown), option=orjson.OPT_INDENT_2).decode())
        return
    lines = [("address", shown["address"])]
    if "payout" in shown:
        lines.append(("payout", shown["payout"]))
    if "node" in shown:
        lines += [("asked", f"{shown['node']} ({shown['node_is']})"), ("ether", show_wei(shown["ether_wei"]))]
    for channel in shown["channels"]:
        lines += [("channel", f"{channel['contract']} on chain {channel['chain_id']}, paid by {channel['payer']}")]
        lines += [("  earned", f"{show_wei(channel['earned_wei'])} by vouchers, for {channel['tasks']} tasks")]
        if "locked_wei" in channel:
            lines += [("  redeemed", show_wei(channel["redeemed_wei"])), ("  due now", show_wei(channel["due_wei"]))]
            lines += [("  locked", show_wei(channel["locked_wei"]))]
        if channel.get("credit_wei"):
            lines.append(("  credited", f"{show_wei(channel['credit_wei'])}, held by the contract for you"))
        if channel.get("exit_at"):
            lines.append(("  exit", f"the payer may take what is locked back at {channel['exit_at']}: redeem now"))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"{name:<{width}}  {value}")


def _texts(value: Any) -> Any:
    """Wei as decimal strings: no JSON number holds them."""
    if isinstance(value, Mapping):
        return {
            name: str(each) if name.endswith("_wei") and each is not None else _texts(each)
            for name, each in value.items()
        }
    return [_texts(each) for each in value] if isinstance(value, list) else value


# ── redeem ────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(epilog=REDEEM_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@_options("data", "rpc")
@click.option(
    "--key-file", type=click.Path(path_type=Path), help="the private key that pays the gas, 64 hex digits in a file"
)
@click.option("--show", is_flag=True, help="print the vouchers as JSON, for anyone to send; send nothing")
@_agreeing
def redeem(key_file: Path | None, show: bool, yes: bool, max_gas_cost: str | None, **given: Any) -> None:
    """Have what was earned by vouchers paid out by the contract. It needs no root.

    The worker may be running. A voucher pays once, whoever sends it, and the worker's payout address alone.
    """
    from swarm.chain_reader import open_chain_reader
    from swarm.identity import read_eth_key

    agree = _agreement(yes, max_gas_cost)
    settings = _settings(given)
    directory = settings.data.expanduser()
    accounts = [(account, noted) for account, noted in _accounts(directory) if noted is not None]
    if show:
        _show([noted for _, noted in accounts])
        return
    if not accounts:
        raise ConfigurationError(
            f"there is no voucher in {directory}", hint="vouchers come with work for jobs that are settled by channels"
        )
    url, whose = _node(settings, accounts)
    if url is None:
        raise ConfigurationError(
            "no node of the chain is known: the swarm's settings named none",
            hint="give --rpc, such as http://127.0.0.1:8545; any node of the chain does",
        )
    key = read_eth_key(directory) if key_file is None else _gas_key(key_file)
    with open_chain_reader(url) as node:
        click.echo(f"asking {node.shown} ({whose})", err=True)
        for _, noted in accounts:
            node.check_chain(noted.kept.escrow.chain_id)
            _redeem_one(node, noted, key, agree)


def _redeem_one(node: ChainReader, noted: NotedVoucher, key: bytes, agree: Agree) -> None:
    from eth_account import Account as EthAccount

    from swarm.chain_reader import redeem_data

    kept = noted.kept
    contract, payer, payee = kept.escrow.address, kept.voucher.requester, kept.voucher.worker
    channel = node.channel(contract, payer, payee)
    due_wei = channel.due_wei(kept.cumulative_wei)
    if not due_wei:
        rest_wei = kept.cumulative_wei - channel.settled_wei
        why = f"nothing of it is locked, {show_wei(rest_wei)} are owed" if rest_wei > 0 else "all of it was paid"
        click.echo(f"nothing to redeem from {payer}: {why}")
        return
    data = redeem_data(kept.voucher, kept.signature)
    sender: Address = EthAccount.from_key(key).address
    plan = node.prepare(contract, data, sender=sender, due_wei=due_wei)
    click.echo(
        f"{show_wei(due_wei)} for {payee}, from the channel of {payer}; gas costs {sender} at most "
        f"{show_wei(plan.cost_wei)}",
        err=True,
    )
    if plan.balance_wei < plan.cost_wei:
        raise ConfigurationError(
            f"{sender} has {show_wei(plan.balance_wei)}, and gas may cost {show_wei(plan.cost_wei)}",
            hint="send it ether, or name another key with --key-file, or give the voucher to anyone: --show",
        )
    if due_wei < WORTH_TIMES * plan.cost_wei:
        click.echo("that is little for its gas: later it is more, for the same gas", err=True)
    agree("redeem it?", cost_wei=plan.cost_wei, worth_wei=due_wei)
    name = node.send(plan, chain_id=kept.escrow.chain_id, contract=contract, data=data, key=key)
    paid_wei = node.channel(contract, payer, payee).settled_wei - channel.settled_wei
    click.echo(f"redeemed {show_wei(paid_wei)} for {payee}: {name}")


# ── release ───────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(epilog=RELEASE_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@_options("data", "rpc")
@_agreeing
def release(yes: bool, max_gas_cost: str | None, **given: Any) -> None:
    """Give what is still locked for this worker back to its payer at once, such as before it leaves for good.

    What was earned has to be redeemed before. Without this the payer waits for the contract's exit delay.
    """
    from swarm.chain_reader import open_chain_reader, release_data
    from swarm.identity import read_address, read_eth_key

    agree = _agreement(yes, max_gas_cost)
    settings = _settings(given)
    directory = settings.data.expanduser()
    address, key = read_address(directory), read_eth_key(directory)
    accounts = _accounts(directory)
    url, whose = _node(settings, accounts)
    if url is None:
        raise ConfigurationError("no node of the chain is known", hint="give --rpc, such as http://127.0.0.1:8545")
    with open_chain_reader(url) as node:
        click.echo(f"asking {node.shown} ({whose})", err=True)
        for account, noted in accounts:
            node.check_chain(account.escrow.chain_id)
            contract = account.escrow.address
            channel = node.channel(contract, account.payer, account.payee)
            if not channel.locked_wei:
                click.echo(f"nothing is locked on the channel of {account.payer}")
                continue
            if account.payee != address:
                raise ConfigurationError(
                    f"the channel is that of the payout address {account.payee}",
                    hint=f"release it by that address's own wallet: {contract}, release({account.payer})",
                )
            due_wei = 0 if noted is None else channel.due_wei(noted.kept.cumulative_wei)
            if due_wei:
                raise ConfigurationError(
                    f"{show_wei(due_wei)} of it are earned and not redeemed", hint="swarm-worker redeem first"
                )
            data = release_data(account.payer)
            plan = node.prepare(contract, data, sender=address, due_wei=0)
            cost = f"gas costs {address} at most {show_wei(plan.cost_wei)}"
            click.echo(f"{show_wei(channel.locked_wei)} go back to {account.payer}; {cost}", err=True)
            agree("give it back?", cost_wei=plan.cost_wei, worth_wei=channel.locked_wei)
            name = node.send(plan, chain_id=account.escrow.chain_id, contract=contract, data=data, key=key)
            click.echo(f"released {show_wei(channel.locked_wei)} to {account.payer}: {name}")


def _agreement(yes: bool, max_gas_cost: str | None) -> Agree:
    """How it is agreed to that a call is sent, by its question, the most that it costs and what it moves, wei.

    Asked on a terminal; without one nothing is sent unless it was agreed to before, and at a senseless price only if
    that price was named: what gas costs is the node's word, and it may lie.
    """
    max_gas_wei = None if max_gas_cost is None else parse_wei(max_gas_cost)

    def agree(question: str, *, cost_wei: Wei, worth_wei: Wei) -> None:
        cost = show_wei(cost_wei)
        if max_gas_wei is not None and cost_wei > max_gas_wei:
            raise ConfigurationError(
                f"the gas may cost {cost}, more than --max-gas-cost {show_wei(max_gas_wei)}",
                hint="wait until gas is cheaper, or ask another node with --rpc; nothing was sent",
            )
        is_dear = max_gas_wei is None and cost_wei > worth_wei
        limit = show_wei(_with_room(cost_wei))
        all_the_same = f"--yes --max-gas-cost {limit} pays it all the same, up to that; nothing was sent"
        if yes and is_dear:
            raise ConfigurationError(
                f"the gas may cost {cost} where {show_wei(worth_wei)} are moved",
                hint=f"wait until it is more, or ask another node with --rpc; {all_the_same}",
            )
        if yes:
            return
        if not sys.stdin.isatty():
            raise ConfigurationError(
                "nobody can be asked whether that is right",
                hint=all_the_same if is_dear else "give --yes; nothing was sent",
            )
        click.confirm(question, abort=True, err=True)

    return agree


def _show(vouchers: list[NotedVoucher]) -> None:
    import orjson

    from swarm.chain_reader import redeem_data

    told = [
        {
            "chain_id": noted.kept.escrow.chain_id,
            "contract": noted.kept.escrow.address,
            "requester": noted.kept.voucher.requester,
            "worker": noted.kept.voucher.worker,
            "cumulative_wei": str(noted.kept.cumulative_wei),
            "tasks_root": "0x" + noted.kept.voucher.tasks_root.hex(),
            "r": "0x" + noted.kept.signature[:32].hex(),
            "vs": "0x" + noted.kept.signature[32:].hex(),
            "call": "0x" + redeem_data(noted.kept.voucher, noted.kept.signature).hex(),
        }
        for noted in vouchers
    ]
    click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())


def _gas_key(file: Path) -> bytes:
    """A private key from a file that its owner alone may read."""
    from swarm.identity import parse_private_key, read_private

    body = read_private(file)
    if body is None:
        raise ConfigurationError(f"there is no file {file}", hint="--key-file names a file of 64 hex digits")
    return parse_private_key(body.decode(errors="replace"), place=file)


# ── both ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _settings(given: Mapping[str, Any]) -> WorkerSettings:
    return load(WorkerSettings, given, os.environ, other_prefixes=(ROOT_PREFIX,))


def _accounts(directory: Path) -> list[tuple[NotedAccount, NotedVoucher | None]]:
    """Whom this worker works for, with the last voucher of each."""
    from swarm.worker.voucher_book import VOUCHERS_FILE, read_book

    return read_book(directory / VOUCHERS_FILE)


def _node(
    settings: WorkerSettings, accounts: Sequence[tuple[NotedAccount, NotedVoucher | None]]
) -> tuple[str | None, str]:
    """Which node is asked, and whose word that is."""
    if settings.rpc is not None:
        return settings.rpc, OWN
    told = [account.rpc for account, _ in accounts if account.rpc is not None]
    return (told[-1], TOLD) if told else (None, "")


def _with_room(cost_wei: Wei) -> Wei:
    """A limit that the gas won't pass while it is typed: twice as much, to one digit."""
    twice = 2 * cost_wei
    digit: int = 10 ** (len(str(twice)) - 1)
    return -(-twice // digit) * digit
