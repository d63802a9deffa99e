"""Receipts: a worker signs that it did a task, a root that it counts; anyone checks both offline. Pure functions.

Two EIP-712 messages, so that a wallet or a contract can make and check them too:

    Completion(string network,bytes16 task,uint256 generation,bytes32 result,uint64 fence,address worker,address payout)
        in the domain {name "task-swarm", version "1"}, by the worker's Ethereum key;
    Acceptance(bytes32 completion,uint256 reward,uint64 acceptedAt)
        over the completion's digest. In a paid swarm its domain has chain id and contract too, and the key that pays
        signs; in an unpaid one the swarm's Ed25519 key signs the digest, behind a context of its own.

``result`` is the sha2-256 digest in the result's CID: with the manifest at hand its bytes can be checked against it.
``tests/vectors/receipts.json`` holds Python, ethers and Solidity to the same bytes. Whether the signer is one to trust
is the reader's to say; this module reads no chain and no settings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec

from swarm.content.cid import parse_cid
from swarm.errors import MalformedInput
from swarm.signing import recover, sign, sign_digest, verify
from swarm.wire import Acceptance, Completion, PaidBy, Receipt, decode
from swarm.words import WORD_BYTES, address_word, keccak, uint_word, word

__all__ = [
    "MAX_RECEIPT_BYTES",
    "accept_by_chain_key",
    "accept_by_swarm_key",
    "acceptance_digest",
    "completion_digest",
    "completion_fault",
    "read_receipt",
    "receipt_fault",
    "sign_completion",
]

#: A receipt has about 1 KB.
MAX_RECEIPT_BYTES: Final = 16 * 1024
_NAME, _VERSION = b"task-swarm", b"1"
_DOMAIN_TYPE: Final = b"EIP712Domain(string name,string version)"
_PAID_DOMAIN_TYPE: Final = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
_COMPLETION_TYPE: Final = (
    b"Completion(string network,bytes16 task,uint256 generation,bytes32 result,uint64 fence,"
    b"address worker,address payout)"
)
_ACCEPTANCE_TYPE: Final = b"Acceptance(bytes32 completion,uint256 reward,uint64 acceptedAt)"
#: What the swarm's key signs begins with this, so that the signature is good for nothing else.
_ACCEPTANCE_CONTEXT: Final = b"task-swarm acceptance\0"


# ── what is signed ────────────────────────────────────────────────────────────────────────────────────────────────


def completion_digest(completion: Completion) -> bytes:
    """The 32 bytes that a worker signs: of all but the signature.

    Raises:
        MalformedInput: a part isn't what it should be.
    """
    try:
        task = UUID(completion.task).bytes
    except ValueError as fault:
        raise MalformedInput(f"{completion.task!r} isn't a task id") from fault
    struct = keccak(
        _kept_keccak(_COMPLETION_TYPE)
        + _kept_keccak(completion.network.encode())
        + task.ljust(WORD_BYTES, b"\0")
        + uint_word(completion.generation, bits=256)
        + word(parse_cid(completion.result).digest)
        + uint_word(completion.fence, bits=64)
        + address_word(completion.worker)
        + address_word(completion.payout)
    )
    return keccak(b"\x19\x01" + _domain(None) + struct)


def acceptance_digest(completion: Completion, acceptance: Acceptance) -> bytes:
    """The 32 bytes that a root signs: of all but signer and signature.

    Raises:
        MalformedInput: a part isn't what it should be.
    """
    struct = keccak(
        _kept_keccak(_ACCEPTANCE_TYPE)
        + completion_digest(completion)
        + uint_word(int(acceptance.reward_wei), bits=256)
        + uint_word(acceptance.accepted_at, bits=64)
    )
    return keccak(b"\x19\x01" + _domain(acceptance.ethereum) + struct)


#: Of types, names and the network: always the same few.
_kept_keccak: Final = functools.lru_cache(maxsize=64)(keccak)


@functools.lru_cache(maxsize=16)
def _domain(paid_by: PaidBy | None) -> bytes:
    named = keccak(_NAME) + keccak(_VERSION)
    if paid_by is None:
        return keccak(keccak(_DOMAIN_TYPE) + named)
    paid = uint_word(paid_by.chain_id, bits=256) + address_word(paid_by.contract)
    return keccak(keccak(_PAID_DOMAIN_TYPE) + named + paid)


# ── signing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def sign_completion(eth_key: bytes, completion: Completion) -> Completion:
    """Sign by the worker's Ethereum key (32 bytes).

    Raises:
        MalformedInput: a part isn't what it should be.
    """
    return msgspec.structs.replace(completion, signature=sign_digest(eth_key, completion_digest(completion)))


def accept_by_chain_key(sign_by: Callable[[bytes], str], completion: Completion, acceptance: Acceptance) -> Acceptance:
    """Sign in a paid swarm.

    Args:
        sign_by: the Ethereum signature of a digest, by the key that pays.
        completion: what is accepted; its signature was checked.
        acceptance: with the key's address as its signer.
    """
    return msgspec.structs.replace(acceptance, signature=sign_by(acceptance_digest(completion, acceptance)))


def accept_by_swarm_key(seed: bytes, completion: Completion, acceptance: Acceptance) -> Acceptance:
    """Sign in an unpaid swarm.

    Args:
        seed: of the swarm's Ed25519 key, 32 bytes.
        completion: what is accepted; its signature was checked.
        acceptance: with the key's peer id as its signer.
    """
    signature = sign(seed, _ACCEPTANCE_CONTEXT + acceptance_digest(completion, acceptance))
    return msgspec.structs.replace(acceptance, signature="0x" + signature.hex())


# ── checking ──────────────────────────────────────────────────────────────────────────────────────────────────────


def read_receipt(body: bytes) -> Receipt:
    """Parse a receipt.

    Raises:
        MalformedInput: it isn't one; the message names the field.
    """
    return decode(body, Receipt, max_bytes=MAX_RECEIPT_BYTES)


def completion_fault(completion: Completion) -> str | None:
    """Why a completion's signature isn't its worker's; None where it is."""
    try:
        digest = completion_digest(completion)
    except MalformedInput as fault:
        return f"the completion is malformed: {fault}"
    if recover(digest, completion.signature) != completion.worker:
        return (
            f"the completion isn't signed by its worker {completion.worker}: "
            "something in it was changed, or somebody else signed"
        )
    return None


def receipt_fault(receipt: Receipt, *, signer: str | None = None) -> str | None:
    """Check a receipt.

    Args:
        receipt: what was read.
        signer: who must have accepted it, an Ethereum address or a peer id; None takes whoever did.

    Returns:
        A sentence naming the first fault, or None where both signatures fit.
    """
    completion, acceptance = receipt.completion, receipt.acceptance
    if receipt.v != 1:
        return f"it is a receipt of version {receipt.v}; this program knows version 1"
    fault = completion_fault(completion)
    if fault is not None:
        return fault
    if signer is not None and acceptance.signer != signer:
        return f"it was accepted by {acceptance.signer}, not by {signer}"
    try:
        digest = acceptance_digest(completion, acceptance)
    except MalformedInput as malformed:
        return f"the acceptance is malformed: {malformed}"
    if acceptance.ethereum is not None:
        is_good = recover(digest, acceptance.signature) == acceptance.signer
    else:
        is_good = verify(acceptance.signer, _ACCEPTANCE_CONTEXT + digest, bytes.fromhex(acceptance.signature[2:]))
    if is_good:
        return None
    return (
        f"the acceptance isn't signed by {acceptance.signer} over this completion, reward and time: "
        "one of them was changed, or somebody else signed"
    )
