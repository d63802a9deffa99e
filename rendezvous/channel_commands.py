"""``swarm-root channel``: what workers earned by vouchers, what is locked for them, and getting the rest back.

Like the other money commands these sign nothing: closing is asked for in the ledger, and the running root does it.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from rendezvous.command import apply, find, open_ledger_engine, options, settings_of
from rendezvous.help import Command
from rendezvous.settings import RootSettings
from swarm.amounts import show_wei
from swarm.errors import ConfigurationError

if TYPE_CHECKING:
    from rendezvous.ledger.channels import ChannelRow
    from swarm.model import Address

__all__ = ["channel"]

EXAMPLES: Final = """\b
Examples:
  swarm-root channel list
  swarm-root channel close 0x71C7656EC7ab88b098defB751B7401B5f6d8976F
  swarm-root channel close --all
"""


@click.group(epilog=EXAMPLES)
def channel() -> None:
    """Show the channels of workers that are paid by vouchers, and take unused collateral back."""


@channel.command(
    name="list",
    cls=Command,
    examples=[
        ("each worker's", "swarm-root channel list"),
        ("for a script", "swarm-root channel list --json | jq length"),
    ],
)
@click.option("--json", "as_json", is_flag=True, help="a JSON array on stdout")
@options("data", "chain_key", "ledger")
def list_channels(as_json: bool, **given: Any) -> None:
    """List each channel: the worker, its tasks, earned, redeemed and locked, as the ledger knows them."""
    settings = settings_of(given)
    rows: Sequence[ChannelRow] = _channels(settings, _payer(settings))
    if as_json:
        import orjson

        told = [
            {
                "worker": row.payee,
                "tasks": row.accepted,
                "earned_wei": str(row.owed_wei),
                "redeemed_wei": str(row.settled_wei),
                "locked_wei": str(row.locked_wei),
                "exit_at": row.exit_at,
            }
            for row in rows
        ]
        click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
        return
    if not rows:
        click.echo("there are no channels: no job was paid by vouchers yet", err=True)
    for row in rows:
        amounts = f"earned {show_wei(row.owed_wei)}\tredeemed {show_wei(row.settled_wei)}"
        exiting = "" if row.exit_at is None else f"\tback from {_moment(row.exit_at)}"
        click.echo(f"{row.payee}\ttasks {row.accepted}\t{amounts}\tlocked {show_wei(row.locked_wei)}{exiting}")


@channel.command(
    cls=Command,
    examples=[
        ("one worker's", "swarm-root channel close 0x71C7656EC7ab88b098defB751B7401B5f6d8976F"),
        ("all of them", "swarm-root channel close --all"),
    ],
)
@click.argument("workers", nargs=-1, metavar="ADDRESS...")
@click.option("--all", "every", is_flag=True, help="every channel that holds anything")
@options("data", "chain_key", "ledger")
def close(workers: tuple[str, ...], every: bool, **given: Any) -> None:
    """Take back what is locked on channels, after the contract's exit delay. The running root does it.

    Until then workers redeem what they earned; what they don't is owed all the same, and is locked again. A worker that
    is funded for new work meanwhile keeps its channel.
    """
    from rendezvous.ledger.money_ops import AddIntent, IntentKind

    settings = settings_of(given)
    payer = _payer(settings)
    if bool(workers) == every:
        raise ConfigurationError("which channels?", hint="name workers by their addresses, or give --all")
    rows = {row.payee: row for row in _channels(settings, payer)}
    unknown = [worker for worker in workers if worker not in rows]
    if unknown:
        raise ConfigurationError(f"{unknown[0]} has no channel", hint="swarm-root channel list shows who has")
    chosen = [row for row in rows.values() if row.locked_wei and (every or row.payee in workers)]
    ops = [
        AddIntent(
            kind=IntentKind.EXIT,
            # asking again before the chain moved asks once
            key=f"{payer}:{row.payee}:{row.fundings}:{row.settled_wei}:{row.locked_wei}",
            sender=payer,
            amount_wei=0,
            payee=row.payee,
        )
        for row in chosen
        if row.exit_at is None
    ]
    if ops:
        apply(settings, *ops)
    total_wei = sum(row.locked_wei for row in chosen)
    click.echo(f"asked for: {len(ops)} channels are closed after the exit delay; they hold {show_wei(total_wei)} now")


def _payer(settings: RootSettings) -> Address:
    from rendezvous.chain.keystore import keystore_address

    return keystore_address(settings.chain_key or find(settings).wallet)


def _channels(settings: RootSettings, payer: Address) -> list[ChannelRow]:
    from rendezvous.ledger.channel_queries import read_channels

    found: list[ChannelRow] = []
    with open_ledger_engine(settings) as engine, engine.connect() as connection:
        while True:
            after = found[-1].payee if found else ""
            page = read_channels(lambda statement: connection.execute(statement).fetchall(), payer, after=after)
            found.extend(page)
            if not page:
                return found


def _moment(at: int) -> str:
    return datetime.datetime.fromtimestamp(at, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
