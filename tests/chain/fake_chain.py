"""A chain in memory with a pool of its own, for the simulation: blocks, reorgs, drops, fees, and the contract's rules.

It answers the JSON-RPC calls that the pay desk makes, as Hardhat's node was measured to answer (facts/chain.md), and is
moved by the test alone: nothing is mined, dropped or reorganised by itself. The contract is path A's state machine with
real ABI encoding, so that the bytes which the sender signs are the bytes that are run here.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson
from eth_abi.abi import decode, encode
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from rendezvous.chain import escrow
from rendezvous.chain.rpc import Call
from rendezvous.chain.sender import SignedTransaction
from swarm.errors import RpcSaid, RpcUnreachable

CONTRACT = to_checksum_address("0x" + "cc" * 20)
CHAIN_ID = 31337
BLOCK_S = 12
OPEN, PAID, FAILED, REFUNDED = 1, 2, 3, 4


class FakeSigner:
    """Signs without a key: what counts is that other bytes have another hash."""

    def __init__(self, address: str) -> None:
        self.address = address

    def sign_transaction(self, transaction: Mapping[str, Any]) -> SignedTransaction:
        raw = orjson.dumps({**transaction, "from": self.address}, option=orjson.OPT_SORT_KEYS)
        return SignedTransaction(raw=raw, hash="0x" + hashlib.sha256(raw).hexdigest())


class Reverted(Exception):
    """A call that the contract refuses."""

    def __init__(self, name: str, *args: Any) -> None:
        super().__init__(name)
        entry = escrow._entries("error")[name]
        self.data = escrow._hash_of("error", name)[:4] + encode(escrow._types(entry), args)


@attrs.define
class State:
    """The world after a block."""

    nonces: dict[str, int] = attrs.field(factory=dict)
    ether: dict[str, int] = attrs.field(factory=dict)
    balances: dict[str, int] = attrs.field(factory=dict)
    tasks: dict[tuple[str, bytes], tuple[int, int, int]] = attrs.field(factory=dict)

    def copy(self) -> State:
        return State(dict(self.nonces), dict(self.ether), dict(self.balances), dict(self.tasks))

    def check_solvent(self) -> None:
        """The contract's ether is exactly what it owes (I1)."""
        held = sum(reward for reward, _, state in self.tasks.values() if state == OPEN)
        assert self.ether.get(CONTRACT, 0) == sum(self.balances.values()) + held
        assert all(each >= 0 for each in (*self.ether.values(), *self.balances.values()))


@attrs.define
class Block:
    """One block."""

    number: int
    hash: str
    timestamp: int
    base_fee: int
    state: State
    transactions: list[str] = attrs.field(factory=list)
    receipts: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    logs: list[dict[str, Any]] = attrs.field(factory=list)


class FakeChain:
    """The chain and its node.

    Args:
        rng: for block hashes and the base fee.
        start: the first block's time, Unix seconds.
    """

    def __init__(self, rng: random.Random, *, start: int = 1_000_000, base_fee: int = 10**9) -> None:
        self.rng = rng
        self.base_fee = base_fee
        self.blocks = [Block(0, self._hash(), start, base_fee, State())]
        self.pool: dict[str, dict[str, Any]] = {}
        self.known: dict[str, dict[str, Any]] = {}
        #: Answers come from so many blocks ago: a node that lags.
        self.lag = 0
        self.down = False

    def _hash(self) -> str:
        return f"0x{self.rng.getrandbits(256):064x}"

    @property
    def head(self) -> Block:
        return self.blocks[-1]

    # ── what the test does ────────────────────────────────────────────────────────────────────────────────────────

    def give(self, address: str, wei: int) -> None:
        """Put ether into a wallet, in the newest block."""
        self.head.state.ether[address] = self.head.state.ether.get(address, 0) + wei

    def mine(self, *, skip: frozenset[str] = frozenset(), seconds: int = BLOCK_S) -> Block:
        """Add a block of what the pool has and can pay for it."""
        before = self.head
        block = Block(before.number + 1, self._hash(), before.timestamp + seconds, self.base_fee, before.state.copy())
        ready = True
        while ready:
            ready = False
            for hash_, tx in sorted(self.pool.items(), key=lambda item: item[1]["nonce"]):
                if tx["nonce"] < block.state.nonces.get(tx["from"], 0):
                    del self.pool[hash_]
                elif hash_ not in skip and self._include(block, hash_, tx):
                    del self.pool[hash_]
                    ready = True
                    break
        block.state.check_solvent()
        self.blocks.append(block)
        return block

    def mine_blindly(self) -> None:
        """Add an empty block, although the books of the contract were tampered with."""
        before = self.head
        self.blocks.append(
            Block(before.number + 1, self._hash(), before.timestamp + BLOCK_S, self.base_fee, before.state.copy())
        )

    def reorg(self, depth: int, *, forget: float = 0.0) -> None:
        """Throw the newest blocks away; their transactions go back to the pool, some are forgotten."""
        depth = min(depth, len(self.blocks) - 1)
        for block in self.blocks[len(self.blocks) - depth :]:
            for hash_ in block.transactions:
                if self.rng.random() >= forget:
                    self.pool[hash_] = self.known[hash_]
        del self.blocks[len(self.blocks) - depth :]

    def drop(self, hash_: str) -> None:
        """Forget a pooled transaction."""
        self.pool.pop(hash_, None)

    # ── blocks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _include(self, block: Block, hash_: str, tx: dict[str, Any]) -> bool:
        sender, state = tx["from"], block.state
        if tx["nonce"] != state.nonces.get(sender, 0) or tx["maxFeePerGas"] < block.base_fee:
            return False
        price = min(tx["maxFeePerGas"], block.base_fee + tx["maxPriorityFeePerGas"])
        if state.ether.get(sender, 0) < tx["value"] + tx["gas"] * price:
            return False
        state.nonces[sender] = tx["nonce"] + 1
        gas_used = tx["gas"] // 2
        state.ether[sender] -= gas_used * price
        after, logs = state.copy(), []
        try:
            self._run(after, tx, bytes.fromhex(tx["data"][2:]), block.timestamp, logs)
            ok = True
        except Reverted:
            after, logs, ok = state, [], False
        block.state = after
        block.transactions.append(hash_)
        block.receipts[hash_] = {
            "blockNumber": hex(block.number),
            "blockHash": block.hash,
            "status": hex(ok),
        }
        for name, args in logs:
            block.logs.append(_log(name, args, hash_, block))
        return True

    def _run(
        self, state: State, tx: Mapping[str, Any], data: bytes, now: int, logs: list[tuple[str, dict[str, Any]]]
    ) -> None:
        sender, value = tx["from"], tx["value"]
        if state.ether.get(sender, 0) < value:
            raise RpcSaid(-32000, "Sender doesn't have enough funds to send tx")
        state.ether[sender] = state.ether.get(sender, 0) - value
        if tx["to"] != CONTRACT:
            state.ether[tx["to"]] = state.ether.get(tx["to"], 0) + value
            return
        state.ether[CONTRACT] = state.ether.get(CONTRACT, 0) + value
        name, args = _decoded(data)
        if name == "createBatch":
            self._take(state, sender, value, len(args[0]) * args[1], logs)
            self._create(state, sender, args, now=now, logs=logs)
        elif name == "completeBatch":
            self._complete(state, sender, args[0], logs)
        elif name == "deposit":
            state.balances[sender] = state.balances.get(sender, 0) + value
            logs.append(("Deposited", {"account": sender, "amount": value}))
        elif name == "withdraw":
            to, amount = to_checksum_address(args[0]), args[1]
            self._debit(state, sender, amount)
            state.ether[CONTRACT] -= amount
            state.ether[to] = state.ether.get(to, 0) + amount
            logs.append(("Withdrawn", {"account": sender, "to": to, "amount": amount}))
        else:
            raise AssertionError(name)

    def _take(self, state: State, sender: str, value: int, total: int, logs: Any) -> None:
        if value > total:
            raise Reverted("ExcessValue", value, total)
        if value:
            logs.append(("Deposited", {"account": sender, "amount": value}))
        if total > value:
            self._debit(state, sender, total - value)

    def _create(self, state: State, sender: str, args: Sequence[Any], *, now: int, logs: Any) -> None:
        ids, reward, deadline = args
        for task in ids:
            if deadline <= now:
                raise Reverted("DeadlinePassed", deadline)
            if (sender, task) in state.tasks:
                raise Reverted("TaskExists", task)
            state.tasks[sender, task] = (reward, deadline, OPEN)
            said = {"requester": sender, "taskId": task, "reward": reward, "deadline": deadline}
            logs.append(("TaskCreated", said))

    def _complete(self, state: State, sender: str, items: Sequence[Any], logs: Any) -> None:
        for task, assignee, output, success in items:
            reward, deadline, at = state.tasks.get((sender, task), (0, 0, 0))
            if at != OPEN:
                raise Reverted("TaskNotOpen", task)
            state.tasks[sender, task] = (reward, deadline, PAID if success else FAILED)
            payee = to_checksum_address(assignee)
            common = {"requester": sender, "taskId": task, "assignee": payee, "output": output}
            if success:
                state.ether[CONTRACT] -= reward
                state.ether[payee] = state.ether.get(payee, 0) + reward
                logs.append(("TaskCompleted", {**common, "paid": reward}))
            else:
                state.balances[sender] = state.balances.get(sender, 0) + reward
                logs.append(("TaskFailed", {**common, "refunded": reward}))

    def _debit(self, state: State, account: str, amount: int) -> None:
        available = state.balances.get(account, 0)
        if available < amount:
            raise Reverted("InsufficientBalance", available, amount)
        state.balances[account] = available - amount

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
        number = int(block, 16)
        return seen[number] if number < len(seen) else None

    def _on_eth_chainId(self) -> str:
        return hex(CHAIN_ID)

    def _on_eth_blockNumber(self) -> str:
        return hex(self._seen[-1].number)

    def _on_eth_maxPriorityFeePerGas(self) -> str:
        return hex(10**8)

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
        return hex(self._state(at).nonces.get(address, 0))

    def _on_eth_getBalance(self, address: str, at: str) -> str:
        return hex(self._state(at).ether.get(address, 0))

    def _on_eth_getCode(self, address: str, _at: str) -> str:
        return "0x60" if address == CONTRACT else "0x"

    def _state(self, at: str) -> State:
        block = self._at(at)
        if block is None:
            raise RpcSaid(-32000, "block not found")
        return block.state

    def _on_eth_getTransactionReceipt(self, hash_: str) -> dict[str, Any] | None:
        return next((block.receipts[hash_] for block in self._seen if hash_ in block.receipts), None)

    def _on_eth_getTransactionByHash(self, hash_: str) -> dict[str, Any] | None:
        known = hash_ in self.pool or self._on_eth_getTransactionReceipt(hash_) is not None
        return {"hash": hash_} if known else None

    def _on_eth_call(self, request: Mapping[str, Any], at: str) -> str:
        state, data = self._state(at), bytes.fromhex(request["data"][2:])
        name, args = _decoded(data)
        if name == "balanceOf":
            return f"0x{state.balances.get(to_checksum_address(args[0]), 0):064x}"
        if name == "taskOf":
            return (
                "0x"
                + b"".join(
                    part.to_bytes(32) for part in state.tasks.get((to_checksum_address(args[0]), args[1]), (0, 0, 0))
                ).hex()
            )
        self._try(request, self._at(at) or self.head)
        return "0x"

    def _on_eth_estimateGas(self, request: Mapping[str, Any]) -> str:
        self._try(request, self._seen[-1])
        return hex(50_000 + 20 * len(request["data"]))

    def _try(self, request: Mapping[str, Any], block: Block) -> None:
        tx = {"from": request["from"], "to": request["to"], "value": int(request.get("value", "0x0"), 16)}
        try:
            self._run(block.state.copy(), tx, bytes.fromhex(request["data"][2:]), block.timestamp + BLOCK_S, [])
        except Reverted as fault:
            raise RpcSaid(3, f"execution reverted: {fault}", fault.data) from None

    def _on_eth_sendRawTransaction(self, raw: str) -> str:
        body = bytes.fromhex(raw[2:])
        tx, hash_ = orjson.loads(body), "0x" + hashlib.sha256(body).hexdigest()
        state = self.head.state
        if hash_ in self.pool:
            raise RpcSaid(-32000, f"Known transaction: {hash_}")
        if tx["nonce"] < state.nonces.get(tx["from"], 0):
            raise RpcSaid(-32000, "Transaction nonce too low")
        if state.ether.get(tx["from"], 0) < tx["value"] + tx["gas"] * tx["maxFeePerGas"]:
            raise RpcSaid(-32000, "Sender doesn't have enough funds to send tx")
        for other, pooled in list(self.pool.items()):
            if (pooled["from"], pooled["nonce"]) == (tx["from"], tx["nonce"]):
                for fee in ("maxFeePerGas", "maxPriorityFeePerGas"):
                    if tx[fee] * 100 < pooled[fee] * 110:
                        raise RpcSaid(-32000, "Replacement transaction underpriced")
                del self.pool[other]
        self.pool[hash_] = self.known[hash_] = copy.copy(tx)
        return hash_

    def _on_eth_getLogs(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        first, last = int(asked["fromBlock"], 16), int(asked["toBlock"], 16)
        topics = asked.get("topics", [])
        return [
            log
            for block in self._seen[first : last + 1]
            for log in block.logs
            if all(want in (None, have) for want, have in zip(topics, log["topics"], strict=False))
        ]


def _decoded(data: bytes) -> tuple[str, tuple[Any, ...]]:
    for name, entry in escrow._entries("function").items():
        if escrow._hash_of("function", name)[:4] == data[:4]:
            return name, tuple(decode(escrow._types(entry), data[4:]))
    raise AssertionError(f"no function {data[:4].hex()}")


def _log(name: str, args: Mapping[str, Any], hash_: str, block: Block) -> dict[str, Any]:
    entry = escrow._entries("event")[name]
    topics = [escrow.topic_of(name)]
    plain: list[Mapping[str, Any]] = []
    for each in entry["inputs"]:
        if each["indexed"]:
            topics.append("0x" + encode([each["type"]], [args[each["name"]]]).hex())
        else:
            plain.append(each)
    data = encode([each["type"] for each in plain], [args[each["name"]] for each in plain])
    return {
        "topics": topics,
        "data": "0x" + data.hex(),
        "transactionHash": hash_,
        "blockNumber": hex(block.number),
    }


def address_of(name: str) -> str:
    """An address for a name."""
    return to_checksum_address("0x" + keccak(text=name).hex()[-40:])
