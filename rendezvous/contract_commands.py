"""``swarm-root contract``: deploy the escrow contract with the key that pays, and look at a deployed one.

The one command that signs beside the running root: with a key that a root uses already it is refused, since each
disturbs the other's nonces.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from rendezvous.command import duration_of, find, open_ledger_engine, options, settings_of
from rendezvous.settings import RootSettings
from swarm.amounts import show_wei
from swarm.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from rendezvous.chain.deploy import DeployPlan

__all__ = ["contract"]

#: Wei of a gwei, the unit of fees.
GWEI: Final = 10**9
#: What facts are called for people, where their names without the unit would say something else.
LABELS: Final = {"contract_wei": "held"}

EXAMPLES: Final = """\b
Examples:
  swarm-root contract deploy --rpc http://127.0.0.1:8545
  swarm-root contract deploy --rpc https://node.example --chain-id 11155111 --max-fee 20 --yes --json
  swarm-root contract show --rpc http://127.0.0.1:8545
"""
DEPLOY_EXAMPLES: Final = """\b
Examples:
  swarm-root wallet new                                              the key that pays, once
  swarm-root contract deploy --rpc http://127.0.0.1:8545             asks before it sends
  swarm-root contract deploy --rpc https://node.example \\
      --chain-id 11155111 --exit-delay 1d --max-fee 20 --yes --json  for scripts
  swarm-root run --rpc http://127.0.0.1:8545                         the contract is known from then on
"""
SHOW_EXAMPLES: Final = """\b
Examples:
  swarm-root contract show --rpc http://127.0.0.1:8545
  swarm-root contract show --rpc https://node.example --contract 0x5FbDB2315678afecb367f032d93F642f64180aa3 --json
"""


@click.group(epilog=EXAMPLES)
def contract() -> None:
    """Deploy the contract that holds the money, and look at it."""


@contract.command(epilog=DEPLOY_EXAMPLES)
@click.option(
    "--exit-delay",
    default="1d",
    show_default=True,
    help="how long workers may redeem once collateral is to go back; fixed for good",
)
@click.option("--chain-id", type=click.IntRange(1), help="refuse a node of any other chain")
@click.option("--yes", "-y", is_flag=True, help="don't ask")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
@options("data", "chain_key", "passphrase_file", "rpc", "max_fee", "ledger")
def deploy(exit_delay: str, chain_id: int | None, yes: bool, as_json: bool, **given: Any) -> None:
    """Deploy the contract with the key that pays; print and keep its address.

    Shows chain, gas and cost, and asks before it sends anything. `swarm-root run` uses the contract from then on.
    """
    settings = settings_of(given)
    exit_delay_s = duration_of(exit_delay, "--exit-delay")
    url, keystore = _rpc(settings), _keystore(settings)
    directory = find(settings)
    kept = directory.contract()
    if kept is not None:
        raise ConfigurationError(
            f"{kept.contract} on chain {kept.chain_id} was deployed from here already",
            hint=f"it may hold money: move {directory.contract_file} away, and a new one can be deployed",
        )

    from rendezvous.chain import deploy as chains
    from rendezvous.chain.keys import open_signer
    from rendezvous.chain.keystore import keystore_address
    from rendezvous.directory import ContractFile

    payer = keystore_address(keystore)
    _refuse_busy_key(settings, payer)
    chain = chains.open_chain(url, chain_id=chain_id)
    max_fee_wei = int(settings.max_fee * GWEI)
    plan = chains.plan_deployment(chain, url, payer, exit_delay_s=int(exit_delay_s), max_fee_wei=max_fee_wei)
    _confirm(plan, yes=yes)
    made = chains.deploy(chain, url, open_signer(keystore, settings.passphrase_file), plan)
    noted = ContractFile(
        chain_id=made.chain_id,
        contract=made.contract,
        block=made.block,
        payer=made.payer,
        exit_delay_s=made.exit_delay_s,
        transaction=made.transaction,
    )
    try:
        directory.keep_contract(noted)
    finally:  # whatever the disk says, its address must not be lost
        _print(attrs.asdict(made), as_json=as_json)
    click.echo(f"noted in {directory.contract_file}; swarm-root run --rpc … pays by it", err=True)


def _confirm(plan: DeployPlan, *, yes: bool) -> None:
    """Show what it costs, and ask; without a terminal nothing is sent unless it was agreed to."""
    click.echo(
        f"deploying from {plan.payer} on chain {plan.chain_id}: at most {plan.gas:,} gas at "
        f"{plan.max_fee_wei / GWEI:g} gwei, {show_wei(plan.cost_wei)}; exit delay {plan.exit_delay_s:,} s",
        err=True,
    )
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("nobody can be asked whether that is right", hint="give --yes; nothing was sent")
    click.confirm("deploy it?", abort=True, err=True)


def _refuse_busy_key(settings: RootSettings, payer: str) -> None:
    from rendezvous.ledger.money_queries import read_sender

    with open_ledger_engine(settings) as engine, engine.connect() as connection:
        sender = read_sender(lambda statement: connection.execute(statement).fetchall(), payer)
    if sender is not None:
        raise ConfigurationError(
            f"the root signs with the key of {payer} already, for {sender.contract} on chain {sender.chain_id}",
            hint="deploying by it would make the root stop; name another keystore with --chain-key",
        )


@contract.command(epilog=SHOW_EXAMPLES)
@click.option("--chain-id", type=click.IntRange(1), help="refuse a node of any other chain")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
@options("data", "chain_key", "rpc", "contract")
def show(chain_id: int | None, as_json: bool, **given: Any) -> None:
    """Check a deployed contract: its code, its version, who pays from it, and what it holds.

    Ends with 2 where the code isn't the one that this program was built with.
    """
    from rendezvous.chain import deploy as chains
    from rendezvous.chain.keystore import keystore_address

    settings = settings_of(given)
    url = _rpc(settings)
    kept = None if settings.contract is not None else find(settings).contract()
    address = settings.with_contract(kept).contract
    if address is None:
        raise ConfigurationError(
            "which contract isn't known: none was deployed from here",
            hint="give --contract; or swarm-root contract deploy makes one",
        )
    if kept is not None and chain_id is None:
        chain_id = kept.chain_id
    keystore = _keystore(settings)
    payer = kept.payer if kept is not None and not keystore.exists() else keystore_address(keystore)
    look = chains.look_at(chains.open_chain(url, chain_id=chain_id), url, address, payer)
    shown = attrs.asdict(look)
    if kept is not None:
        shown |= {"deployed_by": kept.payer, "deployed_in_block": kept.block}
    _print(shown, as_json=as_json)
    if not look.is_ours:
        raise ConfigurationError(
            f"the code at {address} isn't that of this program's contract", hint="send it no ether; deploy another"
        )


def _rpc(settings: RootSettings) -> str:
    if settings.rpc is None:
        raise ConfigurationError("which chain isn't known", hint="give --rpc, such as http://127.0.0.1:8545")
    return settings.rpc


def _keystore(settings: RootSettings) -> Path:
    return settings.chain_key or find(settings).wallet


def _print(facts: dict[str, Any], *, as_json: bool) -> None:
    """A line a fact; or JSON, in which wei are decimal strings."""
    if as_json:
        import orjson

        told = {name: str(value) if _is_wei(name, value) else value for name, value in facts.items()}
        click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
        return
    lines = [(_label(name), _shown(name, value)) for name, value in facts.items()]
    width = max(len(label) for label, _ in lines)
    for label, value in lines:
        click.echo(f"{label:<{width}}  {value}")


def _label(name: str) -> str:
    return LABELS.get(name, name.removesuffix("_wei").removesuffix("_s").replace("_", " "))


def _is_wei(name: str, value: Any) -> bool:
    return name.endswith("_wei") and value is not None


def _shown(name: str, value: Any) -> str:
    if _is_wei(name, value):
        return show_wei(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "unknown"
    return f"{value:,} s" if name.endswith("_s") else str(value)
