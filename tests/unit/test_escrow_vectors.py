"""The shared vectors, by Python; the contract's side is `tests/contracts/vectors.test.js`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import pytest
from eth_abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import MalformedInput
from swarm.vouchers import (
    EMPTY_TASKS_ROOT,
    MAX_WEI,
    Escrow,
    Voucher,
    chain_task_id,
    next_tasks_root,
    sign_voucher,
    voucher_digest,
    voucher_signer,
)

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "vectors" / "escrow.json").read_text())
ESCROW = Escrow(chain_id=VECTORS["chain_id"], address=VECTORS["escrow"])
KEY = bytes.fromhex(VECTORS["requester_key"][2:])
REQUESTER = VECTORS["vouchers"][0]["requester"]
WORKER = VECTORS["vouchers"][0]["worker"]

words = st.binary(min_size=32, max_size=32)
amounts = st.integers(0, MAX_WEI)


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def voucher_of(vector: dict[str, str]) -> Voucher:
    return Voucher(
        requester=vector["requester"],
        worker=vector["worker"],
        cumulative_wei=int(vector["cumulative_wei"]),
        tasks_root=unhex(vector["tasks_root"]),
    )


@pytest.mark.parametrize("vector", VECTORS["chain_task_ids"], ids=lambda vector: vector["task"])
def test_a_task_has_the_same_id_here_as_on_the_chain(vector: dict[str, str]) -> None:
    assert chain_task_id(vector["task"], int(vector["generation"])) == unhex(vector["id"])


def test_tasks_chain_to_the_same_roots_here_as_on_the_chain() -> None:
    root = EMPTY_TASKS_ROOT
    for vector in VECTORS["tasks_root"]:
        root = next_tasks_root(
            root,
            chain_task=unhex(vector["chain_task"]),
            output=unhex(vector["output"]),
            reward_wei=int(vector["reward_wei"]),
        )
        assert root == unhex(vector["root"])


@pytest.mark.parametrize("vector", VECTORS["vouchers"], ids=lambda vector: vector["cumulative_wei"])
def test_a_voucher_is_digested_and_signed_as_the_contract_takes_it(vector: dict[str, str]) -> None:
    voucher = voucher_of(vector)
    assert voucher_digest(ESCROW, voucher) == unhex(vector["digest"])
    signature = sign_voucher(ESCROW, voucher, KEY)
    assert signature == unhex(vector["signature"])
    assert voucher_signer(ESCROW, voucher, signature) == REQUESTER


@given(st.uuids(), st.integers(0, 2**256 - 1))
def test_an_id_is_encoded_as_eth_abi_encodes_it(task: UUID, generation: int) -> None:
    assert chain_task_id(str(task), generation) == keccak(encode(["bytes16", "uint256"], [task.bytes, generation]))


@given(words, words, words, amounts)
def test_a_root_is_encoded_as_eth_abi_encodes_it(root: bytes, task: bytes, output: bytes, reward_wei: int) -> None:
    expected = keccak(encode(["bytes32", "bytes32", "bytes32", "uint256"], [root, task, output, reward_wei]))
    assert next_tasks_root(root, chain_task=task, output=output, reward_wei=reward_wei) == expected


@given(st.integers(1, 2**64), amounts, words)
def test_a_voucher_is_signed_as_eth_account_signs_typed_data(chain_id: int, cumulative_wei: int, root: bytes) -> None:
    escrow = Escrow(chain_id=chain_id, address=ESCROW.address)
    voucher = Voucher(requester=REQUESTER, worker=WORKER, cumulative_wei=cumulative_wei, tasks_root=root)
    types = {
        "Voucher": [
            {"name": "requester", "type": "address"},
            {"name": "worker", "type": "address"},
            {"name": "cumulative", "type": "uint96"},
            {"name": "tasksRoot", "type": "bytes32"},
        ]
    }
    domain = {"name": "TaskEscrow", "version": "1", "chainId": chain_id, "verifyingContract": escrow.address}
    message = {"requester": REQUESTER, "worker": WORKER, "cumulative": cumulative_wei, "tasksRoot": root}
    signed = Account.sign_message(encode_typed_data(domain, types, message), KEY)
    assert voucher_digest(escrow, voucher) == bytes(signed.message_hash)
    signature = sign_voucher(escrow, voucher, KEY)
    assert signature[:32] == signed.r.to_bytes(32)
    assert int.from_bytes(signature[32:]) == signed.s | (signed.v - 27) << 255


CHANGES: list[dict[str, Any]] = [
    {"worker": VECTORS["vouchers"][2]["worker"]},
    {"cumulative_wei": 2},
    {"tasks_root": b"\x01" * 32},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_signature_is_nobodys_whom_we_know_once_a_voucher_is_changed(change: dict[str, Any]) -> None:
    voucher = voucher_of(VECTORS["vouchers"][0])
    signature = sign_voucher(ESCROW, voucher, KEY)
    assert voucher_signer(ESCROW, attrs.evolve(voucher, **change), signature) != REQUESTER


@pytest.mark.parametrize(
    "elsewhere",
    [Escrow(chain_id=1, address=ESCROW.address), Escrow(chain_id=ESCROW.chain_id, address=WORKER)],
    ids=["another chain", "another contract"],
)
def test_a_voucher_is_good_for_one_contract_on_one_chain(elsewhere: Escrow) -> None:
    voucher = voucher_of(VECTORS["vouchers"][0])
    assert voucher_signer(elsewhere, voucher, sign_voucher(ESCROW, voucher, KEY)) != REQUESTER


@given(st.one_of(st.binary(max_size=80), st.binary(min_size=64, max_size=64)))
def test_bytes_that_are_no_signature_are_nobodys(signature: bytes) -> None:
    assert voucher_signer(ESCROW, voucher_of(VECTORS["vouchers"][0]), signature) != REQUESTER


def test_a_signature_whose_s_has_a_lesser_twin_is_nobodys_as_for_the_contract() -> None:
    voucher = voucher_of(VECTORS["vouchers"][0])
    signature = sign_voucher(ESCROW, voucher, KEY)
    assert voucher_signer(ESCROW, voucher, signature[:32] + b"\x7f" + b"\xff" * 31) is None
    assert voucher_signer(ESCROW, voucher, bytes(64)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"worker": WORKER.lower()},
        {"worker": "0x12"},
        {"cumulative_wei": -1},
        {"cumulative_wei": MAX_WEI + 1},
        {"tasks_root": b"short"},
    ],
    ids=str,
)
def test_what_the_contract_could_not_hold_is_refused_before_it_is_signed(change: dict[str, Any]) -> None:
    voucher = attrs.evolve(voucher_of(VECTORS["vouchers"][0]), **change)
    with pytest.raises(MalformedInput):
        sign_voucher(ESCROW, voucher, KEY)


@pytest.mark.parametrize(("task", "generation"), [("", 1), ("not a task", 1), (str(UUID(int=7)), -1)])
def test_what_is_no_task_has_no_id_on_the_chain(task: str, generation: int) -> None:
    with pytest.raises(MalformedInput):
        chain_task_id(task, generation)
