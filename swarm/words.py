"""Values as Solidity's ``abi.encode`` lays them out: words of 32 bytes, so that encoding is concatenation.

For hashing what a contract, a wallet or another program hashes too. The Ethereum libraries are imported only where
they are used (half a second).
"""

from __future__ import annotations

import functools
from typing import Final

from swarm.errors import MalformedInput
from swarm.model import Address

__all__ = ["WORD_BYTES", "address_word", "keccak", "uint_word", "word"]

WORD_BYTES: Final = 32


def keccak(data: bytes) -> bytes:
    """The Keccak-256 digest, 32 bytes."""
    from eth_hash.auto import keccak as digest

    return digest(data)


def word(value: bytes) -> bytes:
    """A ``bytes32``.

    Raises:
        MalformedInput: it has another length.
    """
    if len(value) != WORD_BYTES:
        raise MalformedInput(f"expected {WORD_BYTES} bytes, not {len(value)}")
    return value


def uint_word(value: int, *, bits: int) -> bytes:
    """An unsigned integer.

    Raises:
        MalformedInput: it is negative, or has more bits.
    """
    if not 0 <= value < 1 << bits:
        raise MalformedInput(f"{value} isn't a number of {bits} bits")
    return value.to_bytes(WORD_BYTES)


@functools.lru_cache(maxsize=4096)  # a swarm has few addresses, and the checksum costs more than a signature
def address_word(address: Address) -> bytes:
    """An ``address``.

    Raises:
        MalformedInput: it isn't one with its EIP-55 checksum.
    """
    from eth_utils.address import is_checksum_address

    if not is_checksum_address(address):
        raise MalformedInput(f"{address!r} isn't an Ethereum address with its EIP-55 checksum")
    return bytes.fromhex(address[2:]).rjust(WORD_BYTES, b"\0")
