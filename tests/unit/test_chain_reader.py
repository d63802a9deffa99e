"""A node that lies or talks nonsense: one clear error, and never more ether spent than there is to win."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from swarm import chain_reader
from swarm.chain_reader import ChainReader, open_chain_reader, shown_node
from swarm.errors import ConfigurationError, RpcSaid, RpcUnreachable
from swarm.wire import EthereumSettings
from swarm.worker import channel_watch
from swarm.worker.channel_watch import look
from swarm.worker.earnings import account_of, open_earnings
from tests.unit.test_worker_promises import ACCOUNT, ESCROW, PAYEE, PAYER, key_of, taken, told

URL = "http://user:secret@node.example:8545/path"
WORD = "00" * 32


def reader(answer: Callable[[dict[str, Any]], Any]) -> ChainReader:
    def said(request: httpx.Request) -> httpx.Response:
        found = answer(json.loads(request.content))
        raw = found if isinstance(found, bytes) else json.dumps(found).encode()
        return httpx.Response(200, stream=httpx.ByteStream(raw))

    return ChainReader(URL, httpx.Client(transport=httpx.MockTransport(said)), sleep=lambda _: None)


NONSENSE = (
    None,
    True,
    7,
    1e300,
    "",
    "0x",
    "0xzz",
    "-0x5",
    "0x" + "f" * 65,
    "0x" + "f" * 100_000,
    [],
    ["0x1"],
    {},
    {"a": {"b": 1}},
    "\x1b[2J",
)


@pytest.mark.parametrize("result", NONSENSE, ids=lambda result: repr(result)[:20])
def test_whatever_a_node_answers_is_a_number_or_an_error_that_names_it(result: Any) -> None:
    node = reader(lambda _: {"result": result})
    for ask in (
        lambda: node.ether(PAYEE),
        lambda: node.check_chain(1),
        lambda: node.channel(ESCROW.address, PAYER, PAYEE),
        lambda: node.credit(ESCROW.address, PAYEE),
        lambda: node.exit_delay_s(ESCROW.address),
        lambda: node.prepare(ESCROW.address, b"", sender=PAYEE, due_wei=1),
    ):
        with pytest.raises((RpcUnreachable, ConfigurationError)) as said:
            ask()
        assert "secret" not in str(said.value)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"[]", b"7", b"null", b"[" * 5_000, b"x" * 2_000_000], ids=lambda raw: repr(raw[:8])
)
def test_a_body_that_is_no_answer_is_an_unreachable_node(raw: bytes) -> None:
    with pytest.raises(RpcUnreachable):
        reader(lambda _: raw).ether(PAYEE)


def test_a_channel_that_no_contract_can_have_is_refused() -> None:
    for words in (f"{2**96:064x}{WORD}{WORD}", f"{WORD}{2**255:064x}{WORD}", f"{WORD}{WORD}{2**255:064x}"):
        with pytest.raises(RpcUnreachable):
            reader(lambda _, words=words: {"result": "0x" + words}).channel(ESCROW.address, PAYER, PAYEE)
    with pytest.raises(RpcUnreachable):
        reader(lambda _: {"result": f"0x{2**255:064x}"}).exit_delay_s(ESCROW.address)


def test_a_nodes_own_words_are_cut_and_hold_no_control_characters() -> None:
    error = {"code": 10**30, "message": "\x1b[2J\nno" + "x" * 5_000, "data": {"data": {"data": "0xzz"}}}
    with pytest.raises(RpcSaid) as said:
        reader(lambda _: {"error": error}).ether(PAYEE)
    assert said.value.message.isprintable()
    assert len(said.value.message) <= chain_reader.MAX_WORDS
    assert (said.value.code, said.value.data) == (0, b"")


@pytest.mark.parametrize("receipt", ["0x1", 7, [], True, {}, {"status": None}], ids=repr)
def test_a_receipt_that_is_none_is_an_error(receipt: Any) -> None:
    plan = chain_reader.Redemption(
        due_wei=1, gas=21_000, max_fee_wei=2, tip_wei=1, nonce=0, cost_wei=42_000, balance_wei=10**18
    )
    node = reader(lambda asked: {"result": receipt if asked["method"].endswith("Receipt") else "0x00"})
    with pytest.raises(RpcUnreachable):
        node.send(plan, chain_id=31337, contract=ESCROW.address, data=b"", key=key_of("alice"))


def test_a_node_that_trickles_its_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_reader, "WHOLE_ANSWER_S", -1.0)
    with pytest.raises(RpcUnreachable, match="took more than"):
        reader(lambda _: {"result": "0x1"}).ether(PAYEE)


@pytest.mark.parametrize("url", ["http://[::1", "http://node.example:99999999", "http://node.example:port/"])
def test_a_url_that_is_none_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError):
        shown_node(url)
    with pytest.raises(ConfigurationError), open_chain_reader(url):
        pass


@pytest.mark.parametrize("rpc", ["http://[::1", "http://node.example:99999999", "http://", "http://node.example:0"])
async def test_settings_with_a_node_that_is_no_url_leave_the_worker_without_one(rpc: str, tmp_path: Any) -> None:
    ethereum = EthereumSettings(network="test", chain_id=ESCROW.chain_id, contract=ESCROW.address, payer=PAYER, rpc=rpc)
    assert account_of(ethereum, address=PAYEE, payout=None) == ACCOUNT
    async with open_earnings(
        ethereum,
        tmp_path / "vouchers.db",
        address=PAYEE,
        payout=None,
        door_url="https://door.example",
        seen=lambda _: None,
        max_unpaid=9,
    ) as earnings:
        assert earnings is not None
        assert earnings.told_rpc is None


def test_a_lying_node_cant_make_the_worker_burn_more_gas_than_its_voucher_is_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, sent = taken(told(0, 2)), []

    def answer(asked: dict[str, Any]) -> Any:
        method, params = asked["method"], asked["params"]
        if method == "eth_sendRawTransaction":
            sent.append(params)
        if method == "eth_call" and len(params[0]["data"]) == 10:
            return {"result": f"0x{60:064x}"}
        if method == "eth_call":
            return {"result": f"0x{10**20:064x}{0:064x}{1:064x}"}
        if method == "eth_getBlockByNumber":
            return {"result": {"baseFeePerGas": "0x1"}}
        return {"result": {"eth_chainId": hex(ESCROW.chain_id), "eth_getBalance": hex(10**30)}.get(method, hex(10**12))}

    node = reader(answer)
    monkeypatch.setattr(channel_watch, "open_chain_reader", lambda _: _Opened(node))
    with pytest.raises(ConfigurationError, match="for the gas"):
        look(URL, ACCOUNT, kept, key_of("alice"))
    assert sent == []


class _Opened:
    """A node as a block would open it."""

    def __init__(self, node: ChainReader) -> None:
        self._node = node

    def __enter__(self) -> ChainReader:
        return self._node

    def __exit__(self, *_: object) -> None:
        return None
