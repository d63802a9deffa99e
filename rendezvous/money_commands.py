"""``swarm-root wallet``, ``deposit``, ``withdraw``: the key that pays, and what the contract holds for it.

None of these signs: there is one signer of a key, the running root. A deposit or withdrawal is written to the ledger
as an intent, and the root sends it within its next sweep.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from rendezvous.command import apply, find, open_ledger_engine, options, settings_of
from rendezvous.help import Command
from rendezvous.settings import RootSettings
from swarm.amounts import parse_wei, show_wei
from swarm.errors import ConfigurationError

if TYPE_CHECKING:
    from rendezvous.ledger.money_ops import Sender
    from swarm.model import Address, Wei

__all__ = ["deposit", "wallet", "withdraw"]


@click.group()
def wallet() -> None:
    """Make, import and show the key that pays: an encrypted file in the data directory."""


@wallet.command(
    name="new", cls=Command, examples=[("asks for a passphrase; send ether to what it prints", "swarm-root wallet new")]
)
@options("data", "chain_key", "passphrase_file")
def new_wallet(**given: Any) -> None:
    """Make a new key, encrypted by a passphrase, and print its address."""
    _make(settings_of(given), key=None)


@wallet.command(
    name="import",
    cls=Command,
    examples=[("a key of 64 hex digits in a file", "swarm-root wallet import --key-file payer.key")],
)
@click.option("--key-file", type=click.Path(path_type=Path), help="a file of its 64 hex digits; else it is asked for")
@options("data", "chain_key", "passphrase_file")
def import_wallet(key_file: Path | None, **given: Any) -> None:
    """Encrypt a key that exists already by a passphrase, and print its address.

    A keystore of another program needs no import: name it with --chain-key.
    """
    from rendezvous.chain.keystore import parse_key, read_secret

    text = read_secret(key_file) if key_file else click.prompt("private key (hex)", hide_input=True, err=True)
    _make(settings_of(given), key=parse_key(text))


def _make(settings: RootSettings, *, key: bytes | None) -> None:
    from rendezvous.chain.keystore import make_keystore, read_passphrase

    path = _keystore(settings)
    if path.exists():
        make_keystore(path, "")  # refuses, before anybody thinks up a passphrase
    click.echo(make_keystore(path, read_passphrase(settings.passphrase_file, confirm=True), key=key))
    click.echo(f"its key is in {path}, encrypted; keep a copy of that and of the passphrase", err=True)


def _settings_of(given: dict[str, Any]) -> RootSettings:
    """With the contract that was deployed from here, where none is given."""
    settings = settings_of(given)
    return settings if settings.contract else settings.with_contract(find(settings).contract())


def _keystore(settings: RootSettings) -> Path:
    return settings.chain_key or find(settings).wallet


@wallet.command(
    name="show",
    cls=Command,
    examples=[
        ("the address", "swarm-root wallet show"),
        ("… and what it has", "swarm-root wallet show --rpc http://127.0.0.1:8545"),
    ],
)
@options("data", "chain_key", "rpc", "contract", "ledger")
def show_wallet(**given: Any) -> None:
    """Print the address that pays; with --rpc what it has, with --contract what the contract holds for it.

    The amounts are those of the newest block.
    """
    from rendezvous.chain.keystore import keystore_address

    settings = _settings_of(given)
    address = keystore_address(_keystore(settings))
    shown = {"address": address, "keystore": str(_keystore(settings))}
    if settings.rpc is not None:
        holdings = asyncio.run(_holdings(settings, address))
        shown |= {"chain": str(holdings.chain_id), "on chain": show_wei(holdings.ether_wei)}
        if settings.contract is not None:
            shown |= {"in the contract": show_wei(holdings.escrow_wei)}
    width = max(map(len, shown))
    for name, value in shown.items():
        click.echo(f"{name:<{width}}  {value}")


@wallet.command(
    cls=Command,
    examples=[("once the other program has ended", "swarm-root wallet resume --rpc http://127.0.0.1:8545")],
)
@options("data", "chain_key", "rpc", "contract", "ledger")
def resume(**given: Any) -> None:
    """Let the root sign again after it stopped because another program had used its key.

    Make sure first that no other does: two roots with one key disturb each other for ever.
    """
    from rendezvous.ledger.money_ops import ResumeSender

    settings = _settings_of(given)
    address, holdings = _look(settings)
    sender = _sender(settings, address)
    if sender is None or sender.stopped is None:
        raise ConfigurationError(f"the root with the key of {address} didn't stop", hint="nothing was changed")
    apply(settings, ResumeSender(address=address, next_nonce=holdings.nonce))
    click.echo(f"the root signs again, from nonce {max(holdings.nonce, sender.next_nonce)} on")


@wallet.command(cls=Command, examples=[("once what the log told of is mended", "swarm-root wallet retry")])
@options("data", "chain_key", "ledger")
def retry(**given: Any) -> None:
    """Try again what failed too often and was parked. The running root sends it."""
    from rendezvous.chain.keystore import keystore_address
    from rendezvous.ledger.money_ops import RetryParked

    settings = settings_of(given)
    retried = apply(settings, RetryParked(address=keystore_address(_keystore(settings))))
    click.echo(f"asked for: {retried} parked intents are tried again")


@click.command(
    cls=Command,
    examples=[("half an ether for rewards to come", "swarm-root deposit 0.5eth --rpc http://127.0.0.1:8545")],
)
@click.argument("amount")
@options("data", "chain_key", "rpc", "contract", "ledger")
def deposit(amount: str, **given: Any) -> None:
    """Raise what the contract holds for rewards by AMOUNT, such as 0.5eth. The running root sends it.

    Without deposits each funding brings its own ether along; a deposit makes it no dearer.
    """
    from rendezvous.ledger.money_ops import AddIntent, IntentKind

    settings, amount_wei = _settings_of(given), _positive(amount)
    address, holdings = _look(settings)
    if amount_wei > holdings.ether_wei:
        raise ConfigurationError(
            f"{address} has {show_wei(holdings.ether_wei)}, less than {amount}", hint="send it ether first"
        )
    target_wei = holdings.escrow_wei + amount_wei
    op = AddIntent(kind=IntentKind.DEPOSIT, key=uuid.uuid4().hex, sender=address, amount_wei=target_wei)
    apply(settings, op)
    click.echo(f"asked for: the running root brings the contract's balance to {show_wei(target_wei)}")


@click.command(
    cls=Command,
    examples=[
        (
            "to an address of yours",
            "swarm-root withdraw 1eth --to 0x71C7656EC7ab88b098defB751B7401B5f6d8976F --rpc http://127.0.0.1:8545",
        )
    ],
)
@click.argument("amount")
@click.option("--to", required=True, metavar="ADDRESS", help="who gets it")
@options("data", "chain_key", "rpc", "contract", "ledger")
def withdraw(amount: str, to: str, **given: Any) -> None:
    """Pay AMOUNT of what the contract holds free to an address. The running root sends it.

    Rewards of tasks under way aren't free.
    """
    from rendezvous.ledger.money_ops import AddIntent, IntentKind
    from swarm.signing import is_address

    settings, amount_wei = _settings_of(given), _positive(amount)
    if not is_address(to):
        raise ConfigurationError("--to isn't an Ethereum address with its EIP-55 checksum", hint="copy it again, whole")
    address, holdings = _look(settings)
    if amount_wei > holdings.escrow_wei:
        raise ConfigurationError(
            f"the contract holds {show_wei(holdings.escrow_wei)} free for {address}, less than {amount}",
            hint="swarm-root wallet show tells how much there is; nothing was asked for",
        )
    op = AddIntent(kind=IntentKind.WITHDRAW, key=uuid.uuid4().hex, sender=address, amount_wei=amount_wei, payee=to)
    apply(settings, op)
    click.echo(f"asked for: the running root pays {show_wei(amount_wei)} to {to}")


# ── what the chain says ───────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class _Holdings:
    """What an account has on the newest block."""

    chain_id: int
    ether_wei: Wei
    escrow_wei: Wei
    nonce: int


def _positive(amount: str) -> Wei:
    amount_wei = parse_wei(amount)
    if amount_wei <= 0:
        raise ConfigurationError(f"{amount} is nothing")
    return amount_wei


def _look(settings: RootSettings) -> tuple[Address, _Holdings]:
    """Whose key pays, and what it has; refused where the ledger's money is somewhere else."""
    from rendezvous.chain.keystore import keystore_address
    from rendezvous.chain.reconcile import check_same

    address = keystore_address(_keystore(settings))
    if settings.rpc is None or settings.contract is None:
        raise ConfigurationError(
            "which chain and contract isn't known", hint="give --rpc and --contract, those that the root runs with"
        )
    holdings = asyncio.run(_holdings(settings, address))
    sender = _sender(settings, address)
    if sender is not None:
        check_same(sender, settings.contract, holdings.chain_id)
    return address, holdings


def _sender(settings: RootSettings, address: Address) -> Sender | None:
    from rendezvous.ledger.money_queries import read_sender

    with open_ledger_engine(settings) as engine, engine.connect() as connection:
        return read_sender(lambda statement: connection.execute(statement).fetchall(), address)


async def _holdings(settings: RootSettings, address: Address) -> _Holdings:
    from rendezvous.chain import escrow
    from rendezvous.chain.rpc import open_rpc, shown_url
    from swarm.errors import RpcSaid

    calls: list[tuple[str, list[Any]]] = [
        ("eth_chainId", []),
        ("eth_getBalance", [address, "latest"]),
        ("eth_getTransactionCount", [address, "latest"]),
    ]
    if settings.contract is not None:
        reading = {"to": settings.contract, "data": "0x" + escrow.balance_call(address).hex()}
        calls.append(("eth_call", [reading, "latest"]))
    async with open_rpc(settings.rpc or "") as rpc:
        answers = await rpc.batch(calls)
    for answer in answers:
        if isinstance(answer, RpcSaid):
            raise answer
    chain_id, ether_wei, nonce = (int(answer, 16) for answer in answers[:3])
    escrow_wei = 0
    if settings.contract is not None:
        if answers[3] == "0x":
            raise ConfigurationError(
                f"there is no contract at {settings.contract} on chain {chain_id} ({shown_url(settings.rpc or '')})",
                hint="give the right --contract and --rpc",
            )
        escrow_wei = escrow.decode_balance(answers[3])
    return _Holdings(chain_id=chain_id, ether_wei=ether_wei, escrow_wei=escrow_wei, nonce=nonce)
