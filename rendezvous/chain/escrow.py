"""The contract as Python sees it: calls to bytes, bytes to tasks, errors and events. Pure.

Everything is driven by the exported ABI (``task_escrow.json``), which a check holds to ``contracts/``. ``eth_abi`` does
the encoding: web3's layer over it costs forty times as much for the same bytes (facts/chain.md §3).
"""

from __future__ import annotations

import base64
import enum
import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

import attrs

from swarm.errors import MalformedInput
from swarm.model import Address, Cid, Wei
from swarm.vouchers import Channel

__all__ = [
    "NO_ADDRESS",
    "ChainTask",
    "Completion",
    "ContractError",
    "ContractEvent",
    "TaskState",
    "abi",
    "balance_call",
    "bytecode",
    "channel_call",
    "complete_batch",
    "create_batch",
    "decode_balance",
    "decode_channel",
    "decode_error",
    "decode_event",
    "decode_task",
    "deploy_data",
    "deposit",
    "finish_exit",
    "fund",
    "output_digest",
    "runtime_sha256",
    "start_exit",
    "task_call",
    "topic_of",
    "withdraw",
    "without_choices",
]

NO_ADDRESS: Final = "0x" + "00" * 20
_SELECTOR_BYTES: Final = 4
_WORD_BYTES: Final = 32


class TaskState(enum.IntEnum):
    """``ITaskEscrow.TaskState``."""

    NONE = 0
    OPEN = 1
    PAID = 2
    FAILED = 3
    REFUNDED = 4


@attrs.frozen(kw_only=True)
class ChainTask:
    """A task as the contract has it."""

    reward_wei: Wei
    deadline: int
    state: TaskState


@attrs.frozen(kw_only=True)
class Completion:
    """The verdict on one task."""

    task: bytes
    assignee: Address
    output: bytes
    success: bool


@attrs.frozen(kw_only=True)
class ContractError:
    """A custom error of the contract."""

    name: str
    args: tuple[Any, ...]

    @property
    def payee(self) -> Address | None:
        """The worker whose channel it names."""
        from eth_utils.address import to_checksum_address

        return to_checksum_address(self.args[0]) if self.name == "ExitNotReady" else None

    @property
    def task(self) -> bytes | None:
        """The task that it names."""
        first = self.args[0] if self.args else None
        return first if isinstance(first, bytes) and len(first) == _WORD_BYTES else None

    def __str__(self) -> str:
        shown = ", ".join(f"0x{arg.hex()}" if isinstance(arg, bytes) else str(arg) for arg in self.args)
        return f"{self.name}({shown})"


@attrs.frozen(kw_only=True)
class ContractEvent:
    """A decoded log."""

    name: str
    args: Mapping[str, Any]
    transaction: str
    block: int


# ── the ABI ───────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def _exported() -> dict[str, Any]:
    body = resources.files("rendezvous.chain").joinpath("task_escrow.json").read_text()
    exported: dict[str, Any] = json.loads(body)
    return exported


@functools.cache
def _entries(kind: str) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in _exported()["abi"] if entry["type"] == kind}


def _type_of(parameter: Mapping[str, Any]) -> str:
    if parameter["type"].startswith("tuple"):
        inner = ",".join(_type_of(part) for part in parameter["components"])
        return f"({inner}){parameter['type'][len('tuple') :]}"
    return str(parameter["type"])


def _types(entry: Mapping[str, Any]) -> list[str]:
    return [_type_of(parameter) for parameter in entry["inputs"]]


@functools.cache
def _hash_of(kind: str, name: str) -> bytes:
    from eth_utils.crypto import keccak

    return bytes(keccak(text=f"{name}({','.join(_types(_entries(kind)[name]))})"))


def _call(name: str, *values: Any) -> bytes:
    from eth_abi.abi import encode

    return _hash_of("function", name)[:_SELECTOR_BYTES] + encode(_types(_entries("function")[name]), values)


def abi() -> list[dict[str, Any]]:
    """The contract's interface, as programs exchange it."""
    found: list[dict[str, Any]] = _exported()["abi"]
    return found


def without_choices(code: bytes) -> bytes:
    """A deployed contract's code with zeros where its constructor's choices stand: the same for all of one build."""
    same = bytearray(code)
    for start, length in _exported()["runtime"]["immutables"]:
        same[start : start + length] = bytes(length)
    return bytes(same)


def runtime_sha256() -> str:
    """The SHA-256 of that, for the contract that this program was built with."""
    return str(_exported()["runtime"]["sha256"])


def bytecode() -> bytes:
    """What deploying runs, without the constructor's argument."""
    return bytes.fromhex(_exported()["bytecode"].removeprefix("0x"))


def deploy_data(*, exit_delay_s: int) -> bytes:
    """The data of the transaction that deploys the contract."""
    return bytecode() + exit_delay_s.to_bytes(_WORD_BYTES)


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def create_batch(tasks: Sequence[bytes], reward_wei: Wei, deadline: int) -> bytes:
    """Fund tasks of one reward."""
    return _call("createBatch", list(tasks), reward_wei, deadline)


def complete_batch(completions: Sequence[Completion]) -> bytes:
    """Pay and refund; the caller has sorted them by assignee, so that each gets one push."""
    return _call("completeBatch", [(each.task, each.assignee, each.output, each.success) for each in completions])


def deposit() -> bytes:
    """Credit the value sent to the sender's balance."""
    return _call("deposit")


def fund(amounts: Sequence[tuple[Address, Wei]]) -> bytes:
    """Lock more on channels; an exit under way ends by it."""
    return _call("fund", list(amounts))


def start_exit(workers: Sequence[Address]) -> bytes:
    """Ask for what is locked on channels; those that are empty, or being closed already, are left as they are."""
    return _call("startExit", list(workers))


def finish_exit(workers: Sequence[Address]) -> bytes:
    """Take what is locked on channels back, once the delay is over."""
    return _call("finishExit", list(workers))


def withdraw(to: Address, amount_wei: Wei) -> bytes:
    """Take from the sender's balance."""
    return _call("withdraw", to, amount_wei)


def task_call(requester: Address, task: bytes) -> bytes:
    """Ask for a task."""
    return _call("taskOf", requester, task)


def channel_call(requester: Address, worker: Address) -> bytes:
    """Ask for a channel."""
    return _call("channelOf", requester, worker)


def balance_call(account: Address) -> bytes:
    """Ask for a free balance."""
    return _call("balanceOf", account)


def output_digest(result: Cid) -> bytes:
    """The sha2-256 digest in a result's CID (v1, base32, raw): what the contract is told of a result."""
    try:
        raw = base64.b32decode(result[1:].upper() + "=" * (-len(result[1:]) % 8))
    except ValueError as fault:
        raise MalformedInput(f"{result!r} isn't a CID") from fault
    if len(raw) != 4 + _WORD_BYTES or raw[2:4] != b"\x12\x20":
        raise MalformedInput(f"{result!r} isn't a CID by sha2-256")
    return raw[4:]


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def decode_task(answer: str) -> ChainTask:
    """The answer to ``task_call``."""
    from eth_abi.abi import decode

    ((reward, deadline, state),) = decode(["(uint96,uint40,uint8)"], bytes.fromhex(answer[2:]))
    return ChainTask(reward_wei=reward, deadline=deadline, state=TaskState(state))


def decode_channel(answer: str) -> Channel:
    """The answer to ``channel_call``."""
    from eth_abi.abi import decode

    ((locked, settled, exit_at),) = decode(["(uint96,uint96,uint40)"], bytes.fromhex(answer[2:]))
    return Channel(locked_wei=locked, settled_wei=settled, exit_at=exit_at)


def decode_balance(answer: str) -> Wei:
    """The answer to ``balance_call``; nothing where there is no contract."""
    return int(answer, 16) if answer != "0x" else 0


def decode_error(data: bytes) -> ContractError | None:
    """The custom error in what a reverting call returned; None where it is none of the contract's."""
    from eth_abi.abi import decode
    from eth_abi.exceptions import DecodingError

    for name, entry in _entries("error").items():
        if _hash_of("error", name)[:_SELECTOR_BYTES] == data[:_SELECTOR_BYTES]:
            try:
                return ContractError(name=name, args=tuple(decode(_types(entry), data[_SELECTOR_BYTES:])))
            except DecodingError:
                return None
    return None


def topic_of(event: str) -> str:
    """The first topic of an event's logs."""
    return "0x" + _hash_of("event", event).hex()


def decode_event(log: Mapping[str, Any]) -> ContractEvent | None:
    """A log of ``eth_getLogs``; None where it is no event of the contract's."""
    from eth_abi.abi import decode
    from eth_utils.address import to_checksum_address

    topics = log["topics"]
    for name, entry in _entries("event").items():
        if not topics or topic_of(name) != topics[0]:
            continue
        indexed = [each for each in entry["inputs"] if each["indexed"]]
        plain = [each for each in entry["inputs"] if not each["indexed"]]
        args: dict[str, Any] = {}
        for each, topic in zip(indexed, topics[1:], strict=True):
            (args[each["name"]],) = decode([each["type"]], bytes.fromhex(topic[2:]))
        values = decode([each["type"] for each in plain], bytes.fromhex(log["data"][2:]))
        args.update({each["name"]: value for each, value in zip(plain, values, strict=True)})
        for each in entry["inputs"]:
            if each["type"] == "address":
                args[each["name"]] = to_checksum_address(args[each["name"]])
        return ContractEvent(
            name=name, args=args, transaction=log["transactionHash"], block=int(log["blockNumber"], 16)
        )
    return None
