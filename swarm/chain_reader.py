"""What a worker sees and does on the chain by itself, through any node: its channel, its money, redeeming a voucher.

JSON-RPC over httpx and a few words of the contract's ABI; no web3, and no root. A node can lie about what it shows, so
which one was asked is always said; it can't forge a voucher, nor keep one from being paid out through another node.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import httpx
import orjson

from swarm.errors import ConfigurationError, RpcSaid, RpcUnreachable
from swarm.model import Address, Wei
from swarm.reasons import reason_of
from swarm.vouchers import MAX_WEI, SIGNATURE_BYTES, Channel, Voucher
from swarm.words import WORD_BYTES, address_word, keccak, uint_word

__all__ = ["ChainReader", "Channel", "Redemption", "open_chain_reader", "redeem_data", "release_data", "shown_node"]

#: A node that takes longer doesn't answer, seconds.
TIMEOUT_S: Final = 10.0
#: An answer that trickles in is given up after so long, seconds.
WHOLE_ANSWER_S: Final = 20.0
MAX_ANSWER_BYTES: Final = 1024 * 1024
#: How long a transaction may take to be mined, and how often that is looked at, seconds.
MINED_S: Final = 300.0
LOOK_EVERY_S: Final = 1.0
#: Gas limit: the estimate and a fifth; what isn't used isn't paid.
GAS_MARGIN_PERCENT: Final = 120
#: The base fee may double before the transaction is too cheap.
HEADROOM: Final = 2
#: What is shown of a node's own words, characters.
MAX_WORDS: Final = 300
#: A time on the chain beyond this (Unix seconds, or a delay) is nonsense.
MAX_TIME_S: Final = 2**40

_REDEEM: Final = "redeem((address,address,uint96,bytes32,bytes32,bytes32))"
_RELEASE: Final = "release(address)"
_CHANNEL: Final = "channelOf(address,address)"
_BALANCE: Final = "balanceOf(address)"
_EXIT_DELAY: Final = "EXIT_DELAY()"
_QUANTITY: Final = re.compile(r"0x[0-9a-fA-F]{1,64}")
#: What the contract may answer to a redemption, and what that means.
_FAULTS: Final = {
    "NothingDue(address,address)": "nothing is due: what the voucher is of was paid already, or nothing is locked",
    "WrongSigner(address,address)": "the voucher isn't signed by its payer",
    "NothingLocked(address,address)": "nothing is locked on this channel",
    "PushGasTooLow()": "the gas limit is too low",
}


@attrs.frozen(kw_only=True)
class Redemption:
    """A transaction that is ready to be sent, and what it brings.

    Args:
        due_wei: what the payee gets.
        gas: the limit.
        cost_wei: the most that it costs its sender.
        balance_wei: what the sender has.
    """

    due_wei: Wei
    gas: int
    max_fee_wei: Wei
    tip_wei: Wei
    nonce: int
    cost_wei: Wei
    balance_wei: Wei


def shown_node(url: str) -> str:
    """A node's URL without what may be a secret in it: user, path, query.

    Raises:
        ConfigurationError: it is no URL.
    """
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as fault:
        raise ConfigurationError(
            f"the node's URL makes no sense: {fault}", hint="give --rpc, such as http://127.0.0.1:8545"
        ) from fault
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


def selector(signature: str) -> bytes:
    """The four bytes that a function or an error of the contract is known by."""
    return keccak(signature.encode())[:4]


def redeem_data(voucher: Voucher, signature: bytes) -> bytes:
    """The call that has a voucher paid out; anyone may send it, the payee alone is paid.

    Args:
        voucher: the promise.
        signature: r and vs, 64 bytes.
    """
    words = address_word(voucher.requester) + address_word(voucher.worker)
    words += uint_word(voucher.cumulative_wei, bits=96) + voucher.tasks_root
    if len(signature) != SIGNATURE_BYTES or len(words) != 4 * WORD_BYTES:
        raise ValueError("a voucher has a root of 32 bytes and a signature of 64")
    return selector(_REDEEM) + words + signature


def release_data(payer: Address) -> bytes:
    """The call by which a payee gives a payer's collateral back."""
    return selector(_RELEASE) + address_word(payer)


class ChainReader:
    """One node.

    Args:
        url: of its JSON-RPC; may hold a secret.
        http: from ``open_chain_reader``.
        sleep: how to wait.
    """

    def __init__(self, url: str, http: httpx.Client, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._url: Final = url
        self._http: Final = http
        self._sleep: Final = sleep
        self.shown: Final = shown_node(url)

    def __repr__(self) -> str:
        return f"<ChainReader {self.shown}>"

    def call(self, method: str, *params: Any) -> Any:
        """One call's result; nothing is repeated.

        Raises:
            RpcUnreachable: no answer in time, or none that makes sense.
            RpcSaid: the node's error.
        """
        body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        until = time.monotonic() + WHOLE_ANSWER_S
        try:
            with self._http.stream("POST", self._url, content=body, headers=headers) as response:
                raw = b""
                for part in response.iter_raw():
                    raw += part
                    if time.monotonic() > until:
                        raise RpcUnreachable(self.shown, f"its answer took more than {WHOLE_ANSWER_S:.0f} s")
                    if len(raw) > MAX_ANSWER_BYTES:
                        raise RpcUnreachable(self.shown, f"it answered with more than {MAX_ANSWER_BYTES} bytes")
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            raise RpcUnreachable(self.shown, reason_of(fault)) from fault
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError as fault:
            raise RpcUnreachable(self.shown, "it answered with no JSON") from fault
        if not isinstance(answer, dict):
            raise RpcUnreachable(self.shown, "it answered with no object")
        error = answer.get("error")
        if error is None:
            return answer.get("result")
        error = error if isinstance(error, dict) else {"message": str(error)}
        code = error.get("code")
        raise RpcSaid(
            code if isinstance(code, int) and abs(code) <= MAX_TIME_S else 0,
            _words_of(error.get("message")),
            _revert_data(error),
        )

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def check_chain(self, chain_id: int) -> None:
        """Refuse a node of another chain.

        Raises:
            ConfigurationError: it is of one.
        """
        found = self._number(self.call("eth_chainId"))
        if found != chain_id:
            raise ConfigurationError(
                f"the node at {self.shown} is of chain {found}, the vouchers are for chain {chain_id}",
                hint="give --rpc with a node of that chain",
            )

    def ether(self, address: Address) -> Wei:
        """An account's own ether."""
        return self._number(self.call("eth_getBalance", address, "latest"))

    def channel(self, contract: Address, payer: Address, payee: Address) -> Channel:
        """A channel, on the newest block.

        Raises:
            ConfigurationError: there is no contract.
        """
        data = selector(_CHANNEL) + address_word(payer) + address_word(payee)
        words = self._words(contract, data, count=3)
        if max(words[:2]) > MAX_WEI or words[2] > MAX_TIME_S:
            raise RpcUnreachable(self.shown, "it tells of a channel that the contract can't have")
        return Channel(locked_wei=words[0], settled_wei=words[1], exit_at=words[2])

    def credit(self, contract: Address, account: Address) -> Wei:
        """What the contract holds free for an account: payments that it couldn't take."""
        return self._words(contract, selector(_BALANCE) + address_word(account), count=1)[0]

    def exit_delay_s(self, contract: Address) -> int:
        """How long vouchers stay good once a payer wants its collateral back, seconds."""
        (delay_s,) = self._words(contract, selector(_EXIT_DELAY), count=1)
        if delay_s > MAX_TIME_S:
            raise RpcUnreachable(self.shown, "it tells of an exit delay that no contract has")
        return delay_s

    def _words(self, contract: Address, data: bytes, *, count: int) -> list[int]:
        answer = self.call("eth_call", {"to": contract, "data": "0x" + data.hex()}, "latest")
        if answer == "0x":
            raise ConfigurationError(
                f"there is no contract at {contract} (asked {self.shown})", hint="give --rpc with a node of its chain"
            )
        try:
            raw = bytes.fromhex(answer[2:]) if isinstance(answer, str) else b""
        except ValueError as fault:
            raise RpcUnreachable(self.shown, "it answered with no hexadecimal") from fault
        if len(raw) != count * WORD_BYTES:
            raise RpcUnreachable(self.shown, "it answered with something else than was asked for")
        return [int.from_bytes(raw[place : place + WORD_BYTES]) for place in range(0, len(raw), WORD_BYTES)]

    def _number(self, answer: Any) -> int:
        if not isinstance(answer, str) or _QUANTITY.fullmatch(answer) is None:
            raise RpcUnreachable(self.shown, "it answered with no number of 256 bits")
        return int(answer, 16)

    # ── paying out ────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, contract: Address, data: bytes, *, sender: Address, due_wei: Wei) -> Redemption:
        """What a call costs, after a dry run of it.

        Raises:
            ConfigurationError: the contract would refuse it; says why.
        """
        request = {"from": sender, "to": contract, "data": "0x" + data.hex()}
        try:
            self.call("eth_call", request, "latest")
            estimate = self._number(self.call("eth_estimateGas", request))
        except RpcSaid as fault:
            raise ConfigurationError(
                f"the contract refuses it: {_meaning(fault)}", hint="nothing was sent and nothing was spent"
            ) from fault
        block = self.call("eth_getBlockByNumber", "latest", False)
        base_fee_wei = self._number(block.get("baseFeePerGas")) if isinstance(block, dict) else 0
        tip_wei = self._number(self.call("eth_maxPriorityFeePerGas"))
        gas = estimate * GAS_MARGIN_PERCENT // 100
        max_fee_wei = HEADROOM * base_fee_wei + tip_wei
        return Redemption(
            due_wei=due_wei,
            gas=gas,
            max_fee_wei=max_fee_wei,
            tip_wei=tip_wei,
            nonce=self._number(self.call("eth_getTransactionCount", sender, "pending")),
            cost_wei=gas * max_fee_wei,
            balance_wei=self.ether(sender),
        )

    def send(self, plan: Redemption, *, chain_id: int, contract: Address, data: bytes, key: bytes) -> str:
        """Sign a prepared call and wait until it is mined.

        Args:
            plan: from ``prepare``.
            chain_id: what the signature is for.
            contract: whom it calls.
            data: what it calls.
            key: the sender's, 32 bytes, secret.

        Returns:
            The transaction's hash.

        Raises:
            ConfigurationError: it failed on the chain, or isn't mined yet.
            RpcUnreachable: no answer; it may have been taken nevertheless, and a voucher is never paid twice.
        """
        from eth_account import Account

        signed = Account.from_key(key).sign_transaction(
            {
                "type": 2,
                "chainId": chain_id,
                "nonce": plan.nonce,
                "to": contract,
                "data": "0x" + data.hex(),
                "value": 0,
                "gas": plan.gas,
                "maxFeePerGas": plan.max_fee_wei,
                "maxPriorityFeePerGas": plan.tip_wei,
            }
        )
        name = "0x" + bytes(signed.hash).hex()
        self.call("eth_sendRawTransaction", "0x" + bytes(signed.raw_transaction).hex())
        deadline = time.monotonic() + MINED_S
        while (receipt := self.call("eth_getTransactionReceipt", name)) is None:
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"the transaction {name} wasn't mined within {MINED_S:.0f} s",
                    hint="it may still be; asking again later is harmless: a voucher is never paid twice",
                )
            self._sleep(LOOK_EVERY_S)
        if not isinstance(receipt, dict):
            raise RpcUnreachable(self.shown, f"it answered with no receipt of {name}")
        if self._number(receipt.get("status")) != 1:
            raise ConfigurationError(
                f"the transaction {name} failed on the chain", hint="somebody may have been faster"
            )
        return name


def _words_of(message: Any) -> str:
    """A node's own words, fit for a terminal."""
    text = str(message or "an error")[:MAX_WORDS]
    return "".join(each if each.isprintable() else " " for each in text)


def _revert_data(error: dict[str, Any]) -> bytes:
    """What a reverting call returned; Hardhat wraps it once more."""
    data = error.get("data")
    while isinstance(data, dict):
        data = data.get("data")
    try:
        return bytes.fromhex(data[2:]) if isinstance(data, str) else b""
    except ValueError:
        return b""


def _meaning(fault: RpcSaid) -> str:
    """What a refusal of the contract means."""
    named = (text for signature, text in _FAULTS.items() if fault.data[:4] == selector(signature))
    return next(named, fault.message)


@contextmanager
def open_chain_reader(url: str, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[ChainReader]:
    """A node to look at the chain by.

    Raises:
        ConfigurationError: the URL makes no sense.

    *Resource handling*: its connections are the block's.
    """
    with httpx.Client(timeout=TIMEOUT_S, trust_env=False, follow_redirects=False) as http:
        yield ChainReader(url, http, sleep=sleep)
