"""What a root owes a worker, signed: vouchers, and the ids and the hash chain that they rest on. Pure functions.

Invariant: Python, ethers and the contract compute the same bytes; ``tests/vectors/escrow.json`` holds all three to it.
A voucher is a promise of *all* wei ever owed by one requester to one worker, so that the last one is worth them all
and none can be paid twice (``contracts/ITaskEscrow.sol``).

Every value that is hashed here is one 32-byte word, so Solidity's ``abi.encode`` is concatenation. This module reads
no ledger and no chain: whether a voucher is *covered* is for its caller to ask. The Ethereum libraries are imported
only where they are used (half a second).
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import attrs

from swarm.errors import MalformedInput
from swarm.model import Address, TaskId, Wei
from swarm.words import WORD_BYTES, address_word, keccak, uint_word, word

__all__ = [
    "EMPTY_TASKS_ROOT",
    "MAX_WEI",
    "NO_CHANNEL",
    "SIGNATURE_BYTES",
    "Channel",
    "Escrow",
    "Voucher",
    "chain_task_id",
    "compact_signature",
    "next_tasks_root",
    "sign_voucher",
    "voucher_digest",
    "voucher_signer",
]

#: Rewards, collateral and cumulative amounts are ``uint96`` on the chain: 7.9e10 ether.
MAX_WEI: Final = 2**96 - 1
#: h_0: the root over no tasks.
EMPTY_TASKS_ROOT: Final = bytes(WORD_BYTES)
#: r and vs (EIP-2098).
SIGNATURE_BYTES: Final = 64

_DOMAIN_TYPE: Final = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
_DOMAIN_NAME: Final = b"TaskEscrow"
_DOMAIN_VERSION: Final = b"1"
_VOUCHER_TYPE: Final = b"Voucher(address requester,address worker,uint96 cumulative,bytes32 tasksRoot)"
#: EIP-2098: the top bit of vs is the parity of y.
_PARITY_SHIFT: Final = 255
#: Half the order of secp256k1. The contract refuses a greater s, the twin of a lesser one (EIP-2).
_MAX_S: Final = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0


@attrs.frozen(kw_only=True)
class Channel:
    """A channel of one payer and one payee, as the contract has it.

    Args:
        locked_wei: what is held now.
        settled_wei: what was ever paid from it.
        exit_at: when the payer may take the rest back (Unix seconds); 0 while it didn't ask.
    """

    locked_wei: Wei
    settled_wei: Wei
    exit_at: int

    @property
    def held_wei(self) -> Wei:
        """What vouchers are covered up to."""
        return self.locked_wei + self.settled_wei

    def due_wei(self, cumulative_wei: Wei) -> Wei:
        """What a voucher of so much is paid now."""
        return min(max(0, cumulative_wei - self.settled_wei), self.locked_wei)


#: A channel that nobody ever funded.
NO_CHANNEL: Final = Channel(locked_wei=0, settled_wei=0, exit_at=0)


@attrs.frozen(kw_only=True)
class Escrow:
    """One deployed ``TaskEscrow``: a voucher for it is good for no other.

    Args:
        chain_id: of the chain that it is on.
        address: the contract's.
    """

    chain_id: int
    address: Address


@attrs.frozen(kw_only=True)
class Voucher:
    """A requester's promise to a worker.

    Args:
        requester: who signs and pays.
        worker: who is paid.
        cumulative_wei: all wei ever owed; its own nonce.
        tasks_root: 32 bytes, the hash chain over the tasks paid for.
    """

    requester: Address
    worker: Address
    cumulative_wei: Wei
    tasks_root: bytes


def chain_task_id(task: TaskId, generation: int) -> bytes:
    """What the contract knows a task by: 32 bytes, ``keccak256(abi.encode(bytes16 task, uint256 generation))``.

    Args:
        task: the task's UUID.
        generation: counts its fundings; a replayed task has the next one, since ids on the chain are never reusable.

    Raises:
        MalformedInput: no UUID, or a generation that no ``uint256`` holds.
    """
    try:
        raw = UUID(task).bytes
    except ValueError as fault:
        raise MalformedInput(f"{task!r} isn't a task id") from fault
    return keccak(raw.ljust(WORD_BYTES, b"\0") + uint_word(generation, bits=256))


def next_tasks_root(root: bytes, *, chain_task: bytes, output: bytes, reward_wei: Wei) -> bytes:
    """Add one task to the hash chain: ``keccak256(abi.encode(root, chain_task, output, uint256(reward_wei)))``.

    Args:
        root: the chain so far, ``EMPTY_TASKS_ROOT`` at first.
        chain_task: the task's `chain_task_id`.
        output: the sha2-256 digest of the result, as in its CID.
        reward_wei: what the task pays.

    Raises:
        MalformedInput: a part has another length than 32 bytes, or the reward is out of range.
    """
    words = [word(root), word(chain_task), word(output), uint_word(reward_wei, bits=96)]
    return keccak(b"".join(words))


def voucher_digest(escrow: Escrow, voucher: Voucher) -> bytes:
    """The EIP-712 digest (32 bytes) that a requester signs: the contract's ``voucherDigest``.

    Raises:
        MalformedInput: an address, the amount or the root is none.
    """
    domain = keccak(
        keccak(_DOMAIN_TYPE)
        + keccak(_DOMAIN_NAME)
        + keccak(_DOMAIN_VERSION)
        + uint_word(escrow.chain_id, bits=256)
        + address_word(escrow.address)
    )
    struct = keccak(
        keccak(_VOUCHER_TYPE)
        + address_word(voucher.requester)
        + address_word(voucher.worker)
        + uint_word(voucher.cumulative_wei, bits=96)
        + word(voucher.tasks_root)
    )
    return keccak(b"\x19\x01" + domain + struct)


def sign_voucher(escrow: Escrow, voucher: Voucher, requester_key: bytes) -> bytes:
    """Sign a voucher: the same 64 bytes each time (RFC 6979), r and vs as the contract takes them.

    Args:
        escrow: where it is good.
        voucher: the promise.
        requester_key: the requester's private key, 32 bytes.
    """
    from eth_account import Account

    signed = Account.unsafe_sign_hash(voucher_digest(escrow, voucher), private_key=requester_key)
    parity = signed.v - 27
    return uint_word(signed.r, bits=256) + uint_word(signed.s | parity << _PARITY_SHIFT, bits=256)


def compact_signature(signature: str) -> bytes:
    """The r and vs, 64 bytes, of an Ethereum signature (0x, then r, s, v).

    Raises:
        MalformedInput: it is none.
    """
    try:
        raw = bytes.fromhex(signature.removeprefix("0x"))
    except ValueError as fault:
        raise MalformedInput("a signature is hexadecimal") from fault
    if len(raw) != SIGNATURE_BYTES + 1 or raw[-1] not in (27, 28):
        raise MalformedInput("a signature has r, s, and a v of 27 or 28")
    s = int.from_bytes(raw[WORD_BYTES:SIGNATURE_BYTES])
    return raw[:WORD_BYTES] + uint_word(s | (raw[-1] - 27) << _PARITY_SHIFT, bits=256)


def voucher_signer(escrow: Escrow, voucher: Voucher, signature: bytes) -> Address | None:
    """Who signed a voucher; None where the signature is none that the contract would take.

    It is the requester's only if this equals ``voucher.requester``.
    """
    from eth_keys.datatypes import Signature
    from eth_keys.exceptions import BadSignature
    from eth_utils.exceptions import ValidationError

    if len(signature) != SIGNATURE_BYTES:
        return None
    r, vs = int.from_bytes(signature[:WORD_BYTES]), int.from_bytes(signature[WORD_BYTES:])
    parity, s = vs >> _PARITY_SHIFT, vs & (1 << _PARITY_SHIFT) - 1
    if s > _MAX_S:
        return None
    try:
        key = Signature(vrs=(parity, r, s)).recover_public_key_from_msg_hash(voucher_digest(escrow, voucher))
    except (BadSignature, ValidationError):
        return None
    return key.to_checksum_address()
