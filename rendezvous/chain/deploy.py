"""Deploying the contract, and looking at a deployed one: is it ours, whole, and who has what in it?

The one importer of web3, whose contract object this is done by; it takes most of a second to import, so the commands
that need it do so alone. The outbox stays with our own JSON-RPC: web3's provider repeats what it sends.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from rendezvous.chain import escrow
from rendezvous.chain.rpc import shown_url
from rendezvous.chain.sender import GAS_MARGIN_PERCENT, GAS_RESERVE, Signer
from swarm.amounts import show_wei
from swarm.errors import ConfigurationError, RpcSaid, RpcUnreachable
from swarm.model import Address, Wei
from swarm.reasons import reason_of

if TYPE_CHECKING:
    from web3 import Web3

__all__ = ["DeployPlan", "Deployment", "Look", "deploy", "look_at", "open_chain", "plan_deployment"]

T = TypeVar("T")

#: A node that takes longer doesn't answer, seconds.
TIMEOUT_S: Final = 10.0
#: How long a deployment may take to be mined, and how often that is looked at, seconds.
MINED_S: Final = 300.0
LOOK_EVERY_S: Final = 0.5
#: The contract's own bounds of the delay, seconds.
EXIT_DELAY_S: Final = range(60, 30 * 86_400 + 1)
#: The base fee may double before the transaction is too cheap.
HEADROOM: Final = 2


@attrs.frozen(kw_only=True)
class DeployPlan:
    """What deploying would do.

    Args:
        exit_delay_s: how long a worker has to redeem once the payer wants its collateral back.
        gas: the limit of it.
        max_fee_wei: the most that a unit of gas costs.
        balance_wei: what the payer has.
    """

    chain_id: int
    payer: Address
    exit_delay_s: int
    nonce: int
    gas: int
    max_fee_wei: Wei
    tip_wei: Wei
    balance_wei: Wei

    @property
    def cost_wei(self) -> Wei:
        """The most that it costs."""
        return self.gas * self.max_fee_wei


@attrs.frozen(kw_only=True)
class Deployment:
    """A contract that was deployed."""

    chain_id: int
    contract: Address
    block: int
    payer: Address
    exit_delay_s: int
    transaction: str
    gas_used: int
    cost_wei: Wei


@attrs.frozen(kw_only=True)
class Look:
    """What stands at an address.

    Args:
        code_sha256: of the code, with zeros where the constructor's choices stand.
        is_ours: whether that is the code that this program was built with.
        version: of the contract's own signatures (EIP-712).
        contract_wei: all the ether that the contract holds.
        balance_wei: the payer's free balance in it.
        ether_wei: the payer's own ether.
    """

    chain_id: int
    contract: Address
    code_sha256: str
    is_ours: bool
    version: str | None
    exit_delay_s: int | None
    contract_wei: Wei
    payer: Address
    balance_wei: Wei | None
    ether_wei: Wei
    block: int


def open_chain(url: str, *, chain_id: int | None) -> Web3:
    """A node by web3, checked to be of the chain that is meant.

    Raises:
        RpcUnreachable: it doesn't answer.
        ConfigurationError: it is of another chain.
    """
    from web3 import HTTPProvider, Web3

    # No repeats: what was sent may have been taken, though the answer was lost.
    provider = HTTPProvider(url, request_kwargs={"timeout": TIMEOUT_S}, exception_retry_configuration=None)
    chain = Web3(provider)
    found = asking(url, lambda: chain.eth.chain_id)
    if chain_id is not None and found != chain_id:
        raise ConfigurationError(
            f"the node at {shown_url(url)} is of chain {found}, not {chain_id}",
            hint="give the --rpc of the chain that you mean; nothing was sent",
        )
    return chain


def asking(url: str, ask: Callable[[], T]) -> T:
    """Ask a node, with its faults as ours.

    Raises:
        RpcUnreachable: no answer, or none that makes sense.
        RpcSaid: the node's error.
    """
    from requests import RequestException
    from web3.exceptions import Web3Exception, Web3RPCError

    try:
        return ask()
    except Web3RPCError as fault:
        error = (fault.rpc_response or {}).get("error", {})
        raise RpcSaid(int(error.get("code") or 0), str(error.get("message") or fault)) from fault
    except (RequestException, OSError, ValueError) as fault:
        raise RpcUnreachable(shown_url(url), reason_of(fault)) from fault
    except Web3Exception as fault:
        raise RpcSaid(0, str(fault)) from fault


def plan_deployment(chain: Web3, url: str, payer: Address, *, exit_delay_s: int, max_fee_wei: Wei) -> DeployPlan:
    """What deploying would do and cost; it sends nothing.

    Args:
        chain: from ``open_chain``.
        url: of its node, for what is said of it.
        payer: whose key deploys.
        exit_delay_s: the constructor's argument.
        max_fee_wei: the operator's cap for a unit of gas.

    Raises:
        ConfigurationError: the delay is out of bounds, the chain too dear, the payer too poor or busy.
        RpcUnreachable: the node doesn't answer.
    """
    if exit_delay_s not in EXIT_DELAY_S:
        raise ConfigurationError("--exit-delay is at least a minute and at most 30 days")

    def ask() -> tuple[DeployPlan, Wei, int]:
        account = chain.to_checksum_address(payer)
        block = chain.eth.get_block("latest")
        tip_wei = int(chain.eth.max_priority_fee)
        estimate = _constructor(chain, exit_delay_s).estimate_gas({"from": payer})
        base_fee_wei = int(block["baseFeePerGas"])
        plan = DeployPlan(
            chain_id=chain.eth.chain_id,
            payer=payer,
            exit_delay_s=exit_delay_s,
            nonce=chain.eth.get_transaction_count(account, "latest"),
            gas=estimate * GAS_MARGIN_PERCENT // 100 + GAS_RESERVE,
            max_fee_wei=min(max_fee_wei, HEADROOM * base_fee_wei + tip_wei),
            tip_wei=min(tip_wei, max_fee_wei),
            balance_wei=chain.eth.get_balance(account),
        )
        return plan, base_fee_wei, chain.eth.get_transaction_count(account, "pending")

    plan, base_fee_wei, pending = asking(url, ask)
    if base_fee_wei + plan.tip_wei > plan.max_fee_wei:
        raise ConfigurationError(
            f"a unit of gas costs {base_fee_wei + plan.tip_wei} wei, more than --max-fee",
            hint="wait for a cheaper hour, or raise --max-fee; nothing was sent",
        )
    if pending != plan.nonce:
        raise ConfigurationError(
            f"{payer} has a transaction that isn't mined yet", hint="try again once it is; nothing was sent"
        )
    if plan.cost_wei > plan.balance_wei:
        raise ConfigurationError(
            f"{payer} has {show_wei(plan.balance_wei)}, and deploying may cost {show_wei(plan.cost_wei)}",
            hint=f"send ether to {payer}; nothing was sent",
        )
    return plan


def deploy(chain: Web3, url: str, signer: Signer, plan: DeployPlan) -> Deployment:
    """Deploy the contract and wait until it is mined.

    Raises:
        ConfigurationError: it failed on the chain.
        RpcUnreachable: the node didn't answer; the hint says how to find out whether the contract is there.
        RpcSaid: the node refused the transaction.
    """
    from web3.exceptions import TransactionNotFound

    transaction = _constructor(chain, plan.exit_delay_s).build_transaction(
        {
            "from": plan.payer,
            "chainId": plan.chain_id,
            "nonce": plan.nonce,
            "gas": plan.gas,
            "maxFeePerGas": plan.max_fee_wei,
            "maxPriorityFeePerGas": plan.tip_wei,
            "value": 0,
        }
    )
    signed = signer.sign_transaction({"type": 2, **{k: v for k, v in transaction.items() if k != "from"}})

    def look() -> Any:
        try:
            return chain.eth.get_transaction_receipt(signed.hash)  # type: ignore[arg-type]
        except TransactionNotFound:
            return None

    asking(url, lambda: chain.eth.send_raw_transaction(signed.raw))
    deadline = time.monotonic() + MINED_S
    while (receipt := asking(url, look)) is None:
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"the deployment {signed.hash} wasn't mined within {MINED_S:.0f} s",
                hint="it may still be: look at it before you deploy again",
            )
        time.sleep(LOOK_EVERY_S)
    if receipt["status"] != 1 or receipt["contractAddress"] is None:
        raise ConfigurationError(f"the deployment {signed.hash} failed on the chain", hint="no contract was made")
    return Deployment(
        chain_id=plan.chain_id,
        contract=receipt["contractAddress"],
        block=receipt["blockNumber"],
        payer=plan.payer,
        exit_delay_s=plan.exit_delay_s,
        transaction=signed.hash,
        gas_used=receipt["gasUsed"],
        cost_wei=receipt["gasUsed"] * receipt["effectiveGasPrice"],
    )


def _constructor(chain: Web3, exit_delay_s: int) -> Any:
    contract = chain.eth.contract(abi=escrow.abi(), bytecode=escrow.bytecode())
    return contract.constructor(exit_delay_s)


def look_at(chain: Web3, url: str, contract: Address, payer: Address) -> Look:
    """What stands at an address, and what a payer has in it; all of one block.

    Raises:
        ConfigurationError: there is no code.
        RpcUnreachable: the node doesn't answer.
    """

    def ask() -> Look:
        block = chain.eth.block_number
        address = chain.to_checksum_address(contract)
        code = bytes(chain.eth.get_code(address, block))
        if not code:
            raise ConfigurationError(
                f"there is no contract at {contract} on chain {chain.eth.chain_id} ({shown_url(url)})",
                hint="give the right --contract and --rpc",
            )
        digest = hashlib.sha256(escrow.without_choices(code)).hexdigest()
        is_ours = digest == escrow.runtime_sha256()
        version = exit_delay_s = balance_wei = None
        if is_ours:
            calls = chain.eth.contract(address=address, abi=escrow.abi()).functions
            version = calls.eip712Domain().call(block_identifier=block)[2]
            exit_delay_s = calls.EXIT_DELAY().call(block_identifier=block)
            balance_wei = calls.balanceOf(payer).call(block_identifier=block)
        return Look(
            chain_id=chain.eth.chain_id,
            contract=contract,
            code_sha256=digest,
            is_ours=is_ours,
            version=version,
            exit_delay_s=exit_delay_s,
            contract_wei=chain.eth.get_balance(address, block),
            payer=payer,
            balance_wei=balance_wei,
            ether_wei=chain.eth.get_balance(chain.to_checksum_address(payer), block),
            block=block,
        )

    return asking(url, ask)
