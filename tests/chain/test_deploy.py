"""``swarm-root contract``: deployed by the key that pays on a real node, kept, and looked at."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from eth_account import Account

from rendezvous.chain.deploy import open_chain
from rendezvous.chain.escrow import deploy_data
from rendezvous.cli import run
from rendezvous.directory import find_directory
from rendezvous.ledger.money_ops import ClaimSender
from rendezvous.settings import Bind, RootSettings
from tests.chain.hardhat import ETHER, Hardhat
from tests.rendezvous.ledger_world import World

Run = Callable[..., int]


@attrs.frozen
class Operator:
    """A data directory with a wallet that has ether on the node."""

    url: str
    data: Path
    address: str
    passphrase_file: Path

    def deploy(self, *more: str) -> int:
        options = ("--rpc", self.url, "--data", str(self.data), "--passphrase-file", str(self.passphrase_file))
        return run(["contract", "deploy", *options, *more])

    def show(self, *more: str) -> int:
        return run(["contract", "show", "--rpc", self.url, "--data", str(self.data), *more])


def ask(url: str, method: str, *params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx.post(url, json=body, timeout=10).json()["result"]


@pytest.fixture
def operator(hardhat: Hardhat, tmp_path: Path) -> Operator:
    data, key = tmp_path / "root", secrets.token_bytes(32)
    assert run(["init", "--data", str(data)]) == 0
    wallet, passphrase = data / "wallet.json", tmp_path / "passphrase"
    wallet.write_text(json.dumps(Account.encrypt(key, "correct horse", iterations=2)))
    passphrase.write_text("correct horse\n")
    for file in (wallet, passphrase):
        file.chmod(0o600)
    address = Account.from_key(key).address
    ask(hardhat.url, "evm_setAutomine", True)
    ask(hardhat.url, "hardhat_setBalance", address, hex(ETHER))
    return Operator(hardhat.url, data, address, passphrase)


def test_a_deployed_contract_is_printed_kept_and_found_to_be_ours(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert operator.deploy("--yes", "--json", "--exit-delay", "1h", "--chain-id", "31337") == 0
    told = capsys.readouterr()
    made = json.loads(told.out)
    kept = find_directory(operator.data).contract()
    assert kept is not None
    assert (made["contract"], made["block"], made["payer"]) == (kept.contract, kept.block, operator.address)
    assert int(ask(operator.url, "eth_getTransactionReceipt", kept.transaction)["blockNumber"], 16) == kept.block
    assert int(made["cost_wei"]) == ETHER - int(ask(operator.url, "eth_getBalance", operator.address, "latest"), 16)
    assert "gas at" in told.err

    assert operator.show("--json") == 0
    look = json.loads(capsys.readouterr().out)
    assert (look["contract"], look["is_ours"], look["version"]) == (kept.contract, True, "1")
    assert (look["exit_delay_s"], look["balance_wei"], look["contract_wei"]) == (3600, "0", "0")
    assert look["payer"] == look["deployed_by"] == operator.address
    assert operator.show() == 0
    shown = capsys.readouterr().out
    assert "exit delay         3,600 s" in shown
    lines = [tuple(line.split("  ", 1)) for line in shown.splitlines()]
    told = {label: value.strip() for label, value in lines}
    assert len(told) == len(lines) == len(look)
    assert (told["contract"], told["held"], told["balance"]) == (kept.contract, "0wei", "0wei")


def test_a_second_deployment_from_one_directory_is_refused(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert operator.deploy("--yes") == 0
    nonce = ask(operator.url, "eth_getTransactionCount", operator.address, "latest")
    assert operator.deploy("--yes") == 2
    assert "was deployed from here already" in capsys.readouterr().err
    assert ask(operator.url, "eth_getTransactionCount", operator.address, "latest") == nonce


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--yes", "--chain-id", "1"), "is of chain 31337, not 1"),
        ((), "nobody can be asked"),
        (("--yes", "--exit-delay", "30s"), "at least a minute"),
        (("--yes", "--max-fee", "0.000000001"), "more than --max-fee"),
    ],
)
def test_nothing_is_sent_where_something_is_wrong(
    operator: Operator, options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert operator.deploy(*options) == 2
    assert words in capsys.readouterr().err
    assert ask(operator.url, "eth_getTransactionCount", operator.address, "pending") == "0x0"
    assert find_directory(operator.data).contract() is None


def test_a_payer_without_ether_is_told_what_deploying_costs(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(operator.url, "hardhat_setBalance", operator.address, hex(10**12))
    assert operator.deploy("--yes") == 2
    assert f"send ether to {operator.address}" in capsys.readouterr().err


def test_a_key_that_a_root_signs_with_deploys_nothing(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(operator.data / "ledger.sqlite")
    world.do(
        ClaimSender(
            address=operator.address,
            holder="root",
            chain_id=31337,
            contract=operator.address,
            nonce=0,
            anchor_number=0,
            anchor_hash="0x00",
            balance_wei=0,
        )
    )
    world.close()
    assert operator.deploy("--yes") == 2
    assert "would make the root stop" in capsys.readouterr().err


def test_foreign_code_is_told_from_ours(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    chain = open_chain(operator.url, chain_id=None)
    changed = bytearray(deploy_data(exit_delay_s=3600))
    changed[-60] ^= 1  # in the metadata: it runs, and is another
    sender = chain.eth.accounts[0]
    sent = chain.eth.send_transaction({"from": sender, "data": bytes(changed)})
    address = chain.eth.wait_for_transaction_receipt(sent)["contractAddress"]
    assert operator.show("--contract", str(address)) == 2
    assert "isn't that of this program's contract" in capsys.readouterr().err


def test_an_unreachable_node_is_named(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "show", "--rpc", "http://127.0.0.1:9", "--data", str(operator.data),
                "--contract", operator.address]) == 3  # fmt: skip
    assert "127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rpc", "host", "public", "told"),
    [
        ("http://127.0.0.1:8545", "127.0.0.1", None, "http://127.0.0.1:8545"),
        ("http://127.0.0.1:8545/v3/secret", "127.0.0.1", None, None),
        ("http://127.0.0.1:8545", "10.0.0.1", None, None),
        ("https://node.example", "127.0.0.1", None, None),
        ("https://node.example/v3/secret", "10.0.0.1", "https://open.example", "https://open.example"),
    ],
)
def test_workers_are_told_a_node_only_where_that_tells_no_secret(
    rpc: str, host: str, public: str | None, told: str | None
) -> None:
    assert RootSettings(rpc=rpc, bind=Bind(host=host, port=1), public_rpc=public).told_rpc == told
