"""A chain in memory with a pool of its own: blocks, reorgs, drops, fees, lag; what runs in its blocks, py-evm runs.

It answers the JSON-RPC calls that the pay desk makes, as Hardhat's node was measured to answer (facts/chain.md), and is
moved by the test alone: nothing is mined, dropped or reorganised by itself. The contract is the compiled one, deployed
in the first block; the bytes which the sender signs are the bytes that are run here.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from eth_utils.crypto import keccak

from rendezvous.chain import escrow
from rendezvous.chain.escrow import NO_ADDRESS, ChainTask, ContractEvent, TaskState
from rendezvous.chain.keys import LocalSigner
from rendezvous.chain.rpc import Call
from swarm.errors import RpcSaid, RpcUnreachable
from swarm.vouchers import Channel
from tests.chain.evm import (
    CHAIN_ID,
    GAS_MOST,
    Done,
    Evm,
    InsufficientFunds,
    Log,
    Moment,
    State,
    Transaction,
    contract_address,
)

__all__ = ["BLOCK_S", "CHAIN_ID", "CONTRACT", "Block", "FakeChain", "address_of", "signer_of"]

BLOCK_S = 12
EXIT_DELAY_S = 3600
#: What depends on the state alone: a balance, a task, a channel. How many answers are remembered.
VIEWS = frozenset(
    data[:4]
    for data in (
        escrow.balance_call(NO_ADDRESS),
        escrow.task_call(NO_ADDRESS, bytes(32)),
        escrow.channel_call(NO_ADDRESS, NO_ADDRESS),
    )
)
VIEWS_MOST = 10_000
#: States of which what was read is remembered.
STATES_MOST = 16
TIP = 10**8


@functools.cache
def signer_of(name: str) -> LocalSigner:
    """The key of a name."""
    return LocalSigner(keccak(text=name))


def address_of(name: str) -> str:
    """The address of a name's key."""
    return signer_of(name).address


CONTRACT = contract_address(address_of("deployer"))


@attrs.define
class Block:
    """One block.

    Attributes:
        root: of the state after it.
        held_wei: what the contract holds after it, as its events say.
    """

    number: int
    hash: str
    timestamp: int
    base_fee: int
    root: bytes
    held_wei: int
    transactions: list[str] = attrs.field(factory=list)
    receipts: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    logs: list[dict[str, Any]] = attrs.field(factory=list)


class FakeChain:
    """The chain and its node.

    Args:
        rng: for block hashes.
        start: the first block's time, Unix seconds.
        base_fee: of the next blocks, until the test sets another; wei.
    """

    def __init__(self, rng: random.Random, *, start: int = 1_000_000, base_fee: int = 10**9) -> None:
        self.rng = rng
        self.base_fee = base_fee
        self.evm = Evm()
        self.blocks = [Block(0, self._hash(), start, base_fee, self._deployed(start), 0)]
        #: So far behind the newest block is the one that the chain calls finalized; None where it knows none.
        self.finality_blocks: int | None = None
        self.finalized = 0
        self._read: dict[bytes, State] = {}
        self._views: dict[tuple[bytes, bytes], bytes] = {}
        self.pool: dict[str, Transaction] = {}
        self.known: dict[str, Transaction] = {}
        #: Answers come from so many blocks ago: a node that lags.
        self.lag = 0
        self.down = False

    def _hash(self) -> str:
        return f"0x{self.rng.getrandbits(256):064x}"

    def _deployed(self, start: int) -> bytes:
        deployer = signer_of("deployer")
        signed = deployer.sign_transaction(
            {
                "type": 2,
                "chainId": CHAIN_ID,
                "nonce": 0,
                "data": "0x" + escrow.deploy_data(exit_delay_s=EXIT_DELAY_S).hex(),
                "value": 0,
                "gas": 5_000_000,
                "maxFeePerGas": 1,
                "maxPriorityFeePerGas": 1,
            }
        )
        state = self.evm.at(self.evm.empty, Moment(0, start, 0))
        state.give(deployer.address, 5_000_000)
        assert state.run(Transaction.read(signed.raw)).ok
        return state.root()

    @property
    def head(self) -> Block:
        return self.blocks[-1]

    # ── what the test does ────────────────────────────────────────────────────────────────────────────────────────

    def give(self, address: str, wei: int) -> None:
        """Put ether into a wallet, in the newest block."""
        state = self._after(self.head)
        state.give(address, wei)
        self.head.root = state.root()

    def put_code(self, address: str, code: bytes) -> None:
        """Make an account a contract, in the newest block."""
        state = self._after(self.head)
        state.put_code(address, code)
        self.head.root = state.root()

    def mine(self, *, skip: frozenset[str] = frozenset(), seconds: int = BLOCK_S) -> Block:
        """Add a block of what the pool has and can pay for it."""
        before = self.head
        block = Block(
            before.number + 1, self._hash(), before.timestamp + seconds, self.base_fee, before.root, before.held_wei
        )
        state = self._after(block)
        ready = True
        while ready:
            ready = False
            for hash_, tx in sorted(self.pool.items(), key=lambda item: item[1].nonce):
                if tx.nonce < state.nonce(tx.sender):
                    del self.pool[hash_]
                elif hash_ not in skip and state.takes(tx):
                    self._include(block, tx, state.run(tx))
                    del self.pool[hash_]
                    ready = True
                    break
        if block.transactions:
            block.root = state.root()
            assert state.ether(CONTRACT) == block.held_wei, "the contract's ether isn't what its events say"
        self.blocks.append(block)
        if self.finality_blocks is not None:
            self.finalized = max(self.finalized, block.number - self.finality_blocks)
        return block

    def reorg(self, depth: int, *, forget: float = 0.0) -> None:
        """Throw the newest blocks away, never finalized ones; their transactions go back to the pool, or are lost."""
        depth = min(depth, self.head.number - self.finalized)
        for block in self.blocks[len(self.blocks) - depth :]:
            for hash_ in block.transactions:
                if self.rng.random() >= forget:
                    self.pool[hash_] = self.known[hash_]
        del self.blocks[len(self.blocks) - depth :]

    def send(self, raw: str) -> str:
        """Send by another node: whatever this one suffers from.

        Raises:
            RpcSaid: the pool doesn't take it.
        """
        return self._on_eth_sendRawTransaction(raw)

    def drop(self, hash_: str) -> None:
        """Forget a pooled transaction."""
        self.pool.pop(hash_, None)

    # ── what the test sees, in the newest block ───────────────────────────────────────────────────────────────────

    def nonce(self, address: str) -> int:
        """How many transactions an account has sent."""
        return self._reading(self.head).nonce(address)

    def ether(self, address: str) -> int:
        """An account's wei."""
        return self._reading(self.head).ether(address)

    def balance(self, account: str) -> int:
        """An account's free credit in the contract, wei."""
        return escrow.decode_balance("0x" + self._view(escrow.balance_call(account)).hex())

    def task(self, requester: str, task: bytes) -> ChainTask:
        """A task as the contract has it."""
        return escrow.decode_task("0x" + self._view(escrow.task_call(requester, task)).hex())

    def channel(self, requester: str, worker: str) -> Channel:
        """A channel as the contract has it."""
        return escrow.decode_channel("0x" + self._view(escrow.channel_call(requester, worker)).hex())

    def events(self) -> list[ContractEvent]:
        """All that the contract ever said."""
        decoded = (escrow.decode_event(log) for block in self.blocks for log in block.logs)
        return [event for event in decoded if event is not None]

    def check_solvent(self) -> None:
        """The contract's ether is exactly what it owes, by its own views (`escrow.md` §5, I1)."""
        accounts, tasks, locked_wei = set(), set(), 0
        for event in self.events():
            args = event.args
            accounts |= {args[name] for name in ("account", "requester") if name in args}
            if event.name == "TaskCreated":
                tasks.add((args["requester"], args["taskId"]))
            locked_wei += args["amount"] if event.name == "ChannelFunded" else 0
            locked_wei -= args["paid"] if event.name == "ChannelSettled" else 0
            locked_wei -= args["returned"] if event.name == "ChannelClosed" else 0
        held = [self.task(*each) for each in sorted(tasks)]
        open_wei = sum(each.reward_wei for each in held if each.state is TaskState.OPEN)
        assert self.ether(CONTRACT) == sum(map(self.balance, accounts)) + open_wei + locked_wei

    def _view(self, data: bytes) -> bytes:
        return self._viewed(self.head, data)

    def _viewed(self, block: Block, data: bytes) -> bytes:
        """The answer of one of the contract's views: the state's alone, so it is asked for once."""
        key = block.root, data
        if key not in self._views:
            if len(self._views) >= VIEWS_MOST:
                self._views.clear()
            done = self._after(block).call(sender=CONTRACT, to=CONTRACT, data=data)
            assert done.ok
            self._views[key] = done.output
        return self._views[key]

    # ── blocks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _after(self, block: Block, *, seconds: int = 0) -> State:
        """The state that a block leaves, as something sees it that runs so long after it."""
        return self.evm.at(block.root, Moment(block.number, block.timestamp + seconds, block.base_fee))

    def _reading(self, block: Block) -> State:
        """The state that a block leaves, to look at: its accounts are read once."""
        if block.root not in self._read:
            if len(self._read) >= STATES_MOST:
                self._read.clear()
            self._read[block.root] = self._after(block)
        return self._read[block.root]

    def _include(self, block: Block, tx: Transaction, done: Done) -> None:
        block.transactions.append(tx.hash)
        block.receipts[tx.hash] = {
            "blockNumber": hex(block.number),
            "blockHash": block.hash,
            "status": hex(done.ok),
        }
        for said in done.logs:
            if said.address == CONTRACT:
                log = _log(said, tx, block)
                block.logs.append(log)
                block.held_wei += _flow_wei(escrow.decode_event(log))

    # ── the node ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def call(self, method: str, *params: Any) -> Any:
        """See ``Rpc``."""
        if self.down:
            raise RpcUnreachable("fake", "gone")
        return getattr(self, f"_on_{method}")(*params)

    async def batch(self, calls: Sequence[Call]) -> list[Any]:
        """See ``Rpc``."""
        answers = []
        for method, params in calls:
            try:
                answers.append(await self.call(method, *params))
            except RpcSaid as fault:
                answers.append(fault)
        return answers

    @property
    def _seen(self) -> list[Block]:
        """The blocks that the node has heard of."""
        return self.blocks[: max(1, len(self.blocks) - self.lag)]

    def _at(self, block: str) -> Block | None:
        seen = self._seen
        if block in ("latest", "pending"):
            return seen[-1]
        if block == "finalized":
            return None if self.finality_blocks is None else seen[min(self.finalized, len(seen) - 1)]
        number = int(block, 16)
        return seen[number] if number < len(seen) else None

    def _on_eth_chainId(self) -> str:
        return hex(CHAIN_ID)

    def _on_eth_blockNumber(self) -> str:
        return hex(self._seen[-1].number)

    def _on_eth_maxPriorityFeePerGas(self) -> str:
        return hex(TIP)

    def _on_eth_getBlockByNumber(self, at: str, _full: bool) -> dict[str, Any] | None:
        block = self._at(at)
        if block is None:
            return None
        return {
            "number": hex(block.number),
            "hash": block.hash,
            "timestamp": hex(block.timestamp),
            "baseFeePerGas": hex(self.base_fee if block is self.head else block.base_fee),
        }

    def _on_eth_getTransactionCount(self, address: str, at: str) -> str:
        return hex(self._reading(self._block(at)).nonce(address))

    def _on_eth_getBalance(self, address: str, at: str) -> str:
        return hex(self._reading(self._block(at)).ether(address))

    def _on_eth_getCode(self, address: str, at: str) -> str:
        return "0x" + self._reading(self._block(at)).code(address).hex()

    def _block(self, at: str) -> Block:
        block = self._at(at)
        if block is None:
            raise RpcSaid(-32000, "block not found")
        return block

    def _on_eth_getTransactionReceipt(self, hash_: str) -> dict[str, Any] | None:
        return next((block.receipts[hash_] for block in self._seen if hash_ in block.receipts), None)

    def _on_eth_getTransactionByHash(self, hash_: str) -> dict[str, Any] | None:
        known = hash_ in self.pool or self._on_eth_getTransactionReceipt(hash_) is not None
        return {"hash": hash_} if known else None

    def _on_eth_call(self, request: Mapping[str, Any], at: str) -> str:
        data = bytes.fromhex(request["data"][2:])
        if request["to"] == CONTRACT and data[:4] in VIEWS:
            return "0x" + self._viewed(self._block(at), data).hex()
        return "0x" + self._try(request, at).output.hex()

    def _on_eth_estimateGas(self, request: Mapping[str, Any]) -> str:
        return hex(self._try(request, "latest").gas_used)

    def _try(self, request: Mapping[str, Any], at: str) -> Done:
        state, value = self._after(self._block(at), seconds=BLOCK_S), int(request.get("value", "0x0"), 16)
        data = bytes.fromhex(request["data"][2:])
        try:
            done = state.call(sender=request.get("from", NO_ADDRESS), to=request["to"], data=data, value=value)
        except InsufficientFunds:
            raise RpcSaid(-32000, "Sender doesn't have enough funds to send tx") from None
        if not done.ok:
            raise RpcSaid(3, "execution reverted", done.output)
        return done

    def _on_eth_sendRawTransaction(self, raw: str) -> str:
        tx, state = Transaction.read(bytes.fromhex(raw[2:])), self._reading(self.head)
        if tx.hash in self.pool:
            raise RpcSaid(-32000, f"Known transaction: {tx.hash}")
        if tx.gas > GAS_MOST:
            raise RpcSaid(-32000, "Transaction gas limit exceeds transaction gas cap")
        if tx.nonce < state.nonce(tx.sender):
            raise RpcSaid(-32000, "Transaction nonce too low")
        if state.ether(tx.sender) < tx.value + tx.gas * tx.max_fee:
            raise RpcSaid(-32000, "Sender doesn't have enough funds to send tx")
        for other in [each for each in self.pool.values() if (each.sender, each.nonce) == (tx.sender, tx.nonce)]:
            if tx.max_fee * 100 < other.max_fee * 110 or tx.tip * 100 < other.tip * 110:
                raise RpcSaid(-32000, "Replacement transaction underpriced")
            del self.pool[other.hash]
        self.pool[tx.hash] = self.known[tx.hash] = tx
        return tx.hash

    def _on_eth_getLogs(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        first, last = int(asked["fromBlock"], 16), int(asked["toBlock"], 16)
        topics = asked.get("topics", [])
        return [
            log
            for block in self._seen[first : last + 1]
            for log in block.logs
            if len(log["topics"]) >= len(topics)
            and all(
                want is None or have in (want if isinstance(want, list) else [want])
                for want, have in zip(topics, log["topics"], strict=False)
            )
        ]


def _log(said: Log, tx: Transaction, block: Block) -> dict[str, Any]:
    return {
        "address": said.address,
        "topics": list(said.topics),
        "data": said.data,
        "transactionHash": tx.hash,
        "blockNumber": hex(block.number),
        "blockHash": block.hash,
    }


def _flow_wei(event: ContractEvent | None) -> int:
    """What an event says of the contract's own ether: what came, less what went."""
    assert event is not None
    match event.name:
        case "Deposited" | "PushFailed":
            return int(event.args["amount"])
        case "Withdrawn":
            return -int(event.args["amount"])
        case "TaskCompleted" | "ChannelSettled":
            return -int(event.args["paid"])
        case _:
            return 0
