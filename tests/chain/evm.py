"""The world's state as py-evm keeps it: accounts, code and storage under a root hash; transactions and calls on them.

A root names one state for ever, so that a reorganisation is to go on from an older root. There are no blocks here and
no pool: when what is included, and what is forgotten, is ``fake_chain``'s.
"""

from __future__ import annotations

import attrs
from eth.abc import ComputationAPI
from eth.constants import BLANK_ROOT_HASH
from eth.db.atomic import AtomicDB
from eth.exceptions import InsufficientFunds
from eth.vm.execution_context import ExecutionContext
from eth.vm.forks.prague.state import PragueState
from eth.vm.forks.prague.transactions import PragueTransactionBuilder
from eth.vm.message import Message
from eth_utils.address import to_canonical_address, to_checksum_address
from eth_utils.crypto import keccak

CHAIN_ID = 31337
#: EIP-7825, which this EVM doesn't know: no transaction has more.
GAS_MOST = 16_777_216
COINBASE = b"\xcb" * 20
#: What any transaction costs, and a byte of its data at most.
_BASE_GAS, _BYTE_GAS = 21_000, 40


__all__ = [
    "CHAIN_ID",
    "GAS_MOST",
    "Done",
    "Evm",
    "InsufficientFunds",
    "Log",
    "Moment",
    "State",
    "Transaction",
    "contract_address",
]


@attrs.frozen
class Moment:
    """The block that something runs in."""

    number: int
    timestamp: int
    base_fee: int


@attrs.frozen
class Transaction:
    """A signed transaction of EIP-1559, read from its bytes."""

    hash: str
    sender: str
    nonce: int
    value: int
    gas: int
    max_fee: int
    tip: int
    raw: bytes = attrs.field(repr=False)

    @classmethod
    def read(cls, raw: bytes) -> Transaction:
        """From what is sent; its sender is who signed it."""
        found = PragueTransactionBuilder.decode(raw)
        found.validate()
        return cls(
            hash="0x" + found.hash.hex(),
            sender=to_checksum_address(found.sender),
            nonce=found.nonce,
            value=found.value,
            gas=found.gas,
            max_fee=found.max_fee_per_gas,
            tip=found.max_priority_fee_per_gas,
            raw=raw,
        )


@attrs.frozen
class Log:
    """What a contract said."""

    address: str
    topics: tuple[str, ...]
    data: str


@attrs.frozen
class Done:
    """What a call or transaction brought."""

    ok: bool
    output: bytes
    gas_used: int
    logs: tuple[Log, ...]


class State:
    """The state after some transactions; written under a root by ``root``."""

    def __init__(self, inner: PragueState, moment: Moment) -> None:
        self._inner = inner
        self._moment = moment

    def nonce(self, address: str) -> int:
        """How many transactions an account has sent."""
        return int(self._inner.get_nonce(to_canonical_address(address)))

    def ether(self, address: str) -> int:
        """An account's wei."""
        return int(self._inner.get_balance(to_canonical_address(address)))

    def code(self, address: str) -> bytes:
        """An account's code."""
        return bytes(self._inner.get_code(to_canonical_address(address)))

    def give(self, address: str, wei: int) -> None:
        """Put ether into an account, out of nothing."""
        self._inner.delta_balance(to_canonical_address(address), wei)

    def put_code(self, address: str, code: bytes) -> None:
        """Make an account a contract."""
        self._inner.set_code(to_canonical_address(address), code)

    def put_storage(self, address: str, slot: int, value: int) -> None:
        """Change what a contract keeps, behind its back."""
        self._inner.set_storage(to_canonical_address(address), slot, value)

    def takes(self, tx: Transaction) -> bool:
        """Whether a block of this moment may include it."""
        return (
            tx.nonce == self.nonce(tx.sender)
            and tx.max_fee >= self._moment.base_fee
            and self.ether(tx.sender) >= tx.value + tx.gas * tx.max_fee
        )

    def run(self, tx: Transaction) -> Done:
        """Include it; a revert takes its nonce and its gas, and nothing else."""
        self._inner.lock_changes()
        found = self._inner.apply_transaction(PragueTransactionBuilder.decode(tx.raw))
        return _done(found, tx.gas - found.get_gas_remaining())

    def call(self, *, sender: str, to: str, data: bytes, value: int = 0) -> Done:
        """Run a call that changes this state; no fee is taken.

        Raises:
            InsufficientFunds: the sender hasn't got the value.
        """
        target = to_canonical_address(to)
        origin = to_canonical_address(sender)
        message = Message(
            gas=GAS_MOST, to=target, sender=origin, value=value, data=data, code=self._inner.get_code(target)
        )
        context = self._inner.get_transaction_context_class()(gas_price=self._moment.base_fee, origin=origin)
        found = self._inner.computation_class.apply_message(self._inner, message, context)
        return _done(found, _BASE_GAS + _BYTE_GAS * len(data) + GAS_MOST - found.get_gas_remaining())

    def root(self) -> bytes:
        """Keep it."""
        self._inner.lock_changes()
        self._inner.persist()
        return bytes(self._inner.state_root)


class Evm:
    """All states of one chain, on every branch of it."""

    def __init__(self) -> None:
        self._db = AtomicDB()
        self.empty = bytes(BLANK_ROOT_HASH)

    def at(self, root: bytes, moment: Moment) -> State:
        """A state, to go on from."""
        context = ExecutionContext(
            coinbase=COINBASE,
            timestamp=moment.timestamp,
            block_number=moment.number,
            difficulty=0,
            mix_hash=b"\0" * 32,
            gas_limit=60_000_000,
            prev_hashes=(),
            chain_id=CHAIN_ID,
            base_fee_per_gas=moment.base_fee,
            excess_blob_gas=0,
        )
        return State(PragueState(self._db, context, root), moment)


def contract_address(deployer: str) -> str:
    """Where the contract is that an account's first transaction deploys: of the hash of [account, 0] in RLP."""
    return to_checksum_address(keccak(b"\xd6\x94" + to_canonical_address(deployer) + b"\x80")[-20:])


def _done(found: ComputationAPI, gas_used: int) -> Done:
    return Done(
        ok=not found.is_error,
        output=bytes(found.output),
        gas_used=gas_used,
        logs=tuple(
            Log(to_checksum_address(address), tuple(f"0x{topic:064x}" for topic in topics), "0x" + data.hex())
            for address, topics, data in found.get_log_entries()
        ),
    )
