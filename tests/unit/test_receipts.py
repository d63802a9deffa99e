"""Receipts: what both sides sign, that the vectors hold, and that whatever is changed is found.

Solidity's and ethers' side of the vectors is `tests/contracts/vectors.test.js`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from swarm.content.cid import parse_cid, raw_cid
from swarm.errors import MalformedInput
from swarm.receipts import (
    accept_by_chain_key,
    accept_by_swarm_key,
    acceptance_digest,
    completion_digest,
    completion_fault,
    read_receipt,
    receipt_fault,
    sign_completion,
)
from swarm.signing import peer_id_from_seed, sign_digest
from swarm.wire import UNSIGNED, PaidBy, Receipt, encode

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "vectors" / "receipts.json").read_text())
WORKER_KEY, ROOT_KEY, SEED = (bytes.fromhex(VECTORS[name][2:]) for name in ("worker_key", "root_key", "swarm_seed"))
PAID, REPLAYED, UNPAID = (read_receipt(json.dumps(vector["receipt"]).encode()) for vector in VECTORS["receipts"])
OTHER = REPLAYED.completion.payout


def typed(domain: dict[str, Any], name: str, fields: dict[str, tuple[str, Any]]) -> bytes:
    """A digest by another implementation than ours."""
    types = {name: [{"name": field, "type": kind} for field, (kind, _) in fields.items()]}
    signable = encode_typed_data(domain, types, {field: value for field, (_, value) in fields.items()})
    return bytes(keccak(b"\x19" + signable.version + signable.header + signable.body))


@pytest.mark.parametrize("vector", VECTORS["receipts"], ids=lambda vector: vector["about"])
def test_digests_and_signatures_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    receipt = read_receipt(json.dumps(vector["receipt"]).encode())
    completion, acceptance = receipt.completion, receipt.acceptance

    assert completion_digest(completion).hex() == vector["completion_digest"][2:]
    assert acceptance_digest(completion, acceptance).hex() == vector["acceptance_digest"][2:]
    assert parse_cid(completion.result).digest.hex() == vector["result_digest"][2:]
    unsigned = msgspec.structs.replace(completion, signature=UNSIGNED)
    assert sign_completion(WORKER_KEY, unsigned) == completion
    blank = msgspec.structs.replace(acceptance, signature=UNSIGNED)
    if acceptance.ethereum is None:
        assert accept_by_swarm_key(SEED, completion, blank) == acceptance
    else:
        assert accept_by_chain_key(lambda digest: sign_digest(ROOT_KEY, digest), completion, blank) == acceptance
    assert receipt_fault(receipt) is None
    assert json.loads(encode(receipt)) == vector["receipt"]


@given(
    network=st.text(min_size=1, max_size=64),
    task=st.uuids(),
    generation=st.integers(1, 2**63 - 1),
    body=st.binary(max_size=64),
    fence=st.integers(1, 2**63 - 1),
    reward=st.integers(0, 2**96 - 1),
    at=st.integers(0, 2**63 - 1),
)  # fmt: skip
def test_another_implementation_of_eip_712_computes_the_same(  # noqa: PLR0917 -- each is drawn by its name
    network: str, task: UUID, generation: int, body: bytes, fence: int, reward: int, at: int
) -> None:
    completion = msgspec.structs.replace(
        PAID.completion, network=network, task=str(task), generation=generation, result=raw_cid(body), fence=fence
    )
    acceptance = msgspec.structs.replace(PAID.acceptance, reward_wei=str(reward), accepted_at=at)
    domain = {"name": "task-swarm", "version": "1"}

    signed = typed(
        domain,
        "Completion",
        {
            "network": ("string", network),
            "task": ("bytes16", task.bytes),
            "generation": ("uint256", generation),
            "result": ("bytes32", hashlib.sha256(body).digest()),
            "fence": ("uint64", fence),
            "worker": ("address", completion.worker),
            "payout": ("address", completion.payout),
        },
    )
    assert completion_digest(completion) == signed
    assert acceptance.ethereum is not None
    paid = {"chainId": acceptance.ethereum.chain_id, "verifyingContract": acceptance.ethereum.contract}
    fields = {"completion": ("bytes32", signed), "reward": ("uint256", reward), "acceptedAt": ("uint64", at)}
    assert acceptance_digest(completion, acceptance) == typed({**domain, **paid}, "Acceptance", fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("network", "another"),
        ("task", UNPAID.completion.task),
        ("generation", 2),
        ("result", REPLAYED.completion.result),
        ("fence", 4712),
        ("worker", OTHER),
        ("payout", OTHER),
        ("signature", REPLAYED.completion.signature),
        ("signature", UNSIGNED),
    ],
)
def test_a_completion_that_was_changed_is_found(field: str, value: Any) -> None:
    changed = msgspec.structs.replace(PAID.completion, **{field: value})
    fault = receipt_fault(Receipt(v=1, completion=changed, acceptance=PAID.acceptance))
    assert fault is not None
    assert "completion isn't signed by its worker" in fault


@pytest.mark.parametrize("receipt", [PAID, UNPAID], ids=["paid", "unpaid"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward_wei", "1000000000000001"),
        ("accepted_at", 1),
        ("signer", OTHER),
        ("signer", peer_id_from_seed(bytes(32))),
        ("signature", UNSIGNED),
        ("signature", "0x" + "11" * 64),
        ("ethereum", PaidBy(chain_id=1, contract=OTHER)),
    ],
)
def test_an_acceptance_that_was_changed_is_found(receipt: Receipt, field: str, value: Any) -> None:
    if getattr(receipt.acceptance, field) == value:
        return  # the payer is who it says already
    changed = msgspec.structs.replace(receipt.acceptance, **{field: value})
    fault = receipt_fault(Receipt(v=1, completion=receipt.completion, acceptance=changed))
    assert fault is not None
    assert "acceptance isn't signed by" in fault


def test_an_acceptance_of_another_completion_is_found() -> None:
    fault = receipt_fault(Receipt(v=1, completion=PAID.completion, acceptance=REPLAYED.acceptance))
    assert fault is not None
    assert "acceptance isn't signed by" in fault


def test_a_receipt_by_somebody_else_than_expected_says_by_whom() -> None:
    assert receipt_fault(PAID, signer=PAID.acceptance.signer) is None
    fault = receipt_fault(PAID, signer=UNPAID.acceptance.signer)
    assert fault == f"it was accepted by {PAID.acceptance.signer}, not by {UNPAID.acceptance.signer}"


def test_a_malformed_part_is_told_and_raises_nothing() -> None:
    for changes in ({"result": "b" + "a" * 58}, {"worker": "0x" + "z" * 40}, {"task": "x" * 36}):
        fault = completion_fault(msgspec.structs.replace(PAID.completion, **changes))
        assert fault is not None
        assert "malformed" in fault
    newer = msgspec.structs.replace(PAID, v=2)
    assert "version 2" in (receipt_fault(newer) or "")


@given(st.binary(max_size=200))
def test_bytes_that_are_no_receipt_are_malformed_and_nothing_else(body: bytes) -> None:
    with pytest.raises(MalformedInput):
        read_receipt(body)
