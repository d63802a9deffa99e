"""The pre-shared key of a closed network, as go-libp2p speaks it: XSalsa20 with a 24-byte nonce.

py-libp2p 0.8.1 uses Salsa20 with 8 bytes, so it hangs against Kubo's ``swarm.key`` (facts/ipfs.md §4). XSalsa20 is
Salsa20 under a key derived by HSalsa20; pycryptodome has the former, the latter is the core below.
Source: Bernstein, "Extending the Salsa20 nonce"; go-libp2p ``p2p/net/pnet``.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Final

from Crypto.Cipher import Salsa20
from libp2p.security.pnet.psk_conn import PskConn

from swarm.errors import ConfigurationError, MalformedInput

__all__ = ["NONCE_BYTES", "hsalsa20", "patch_psk", "read_swarm_key", "xsalsa20"]

NONCE_BYTES: Final = 24
_CONSTANTS: Final = struct.unpack("<4I", b"expand 32-byte k")
_MASK: Final = 0xFFFFFFFF
#: One double round: the columns, then the rows (Salsa20 specification, §4-5).
_QUARTERS: Final = (
    (0, 4, 8, 12),
    (5, 9, 13, 1),
    (10, 14, 2, 6),
    (15, 3, 7, 11),
    (0, 1, 2, 3),
    (5, 6, 7, 4),
    (10, 11, 8, 9),
    (15, 12, 13, 14),
)


def hsalsa20(key: bytes, nonce: bytes) -> bytes:
    """Derive the Salsa20 key of a long nonce's first 16 bytes."""
    k = struct.unpack("<8I", key)
    n = struct.unpack("<4I", nonce)
    c = _CONSTANTS
    state = [c[0], k[0], k[1], k[2], k[3], c[1], n[0], n[1], n[2], n[3], c[2], k[4], k[5], k[6], k[7], c[3]]

    def mix(target: int, left: int, right: int, shift: int) -> None:
        total = (state[left] + state[right]) & _MASK
        state[target] ^= ((total << shift) | (total >> (32 - shift))) & _MASK

    for _ in range(10):
        for a, b, c_, d in _QUARTERS:
            mix(b, a, d, 7)
            mix(c_, b, a, 9)
            mix(d, c_, b, 13)
            mix(a, d, c_, 18)
    return struct.pack("<8I", *(state[i] for i in (0, 5, 10, 15, 6, 7, 8, 9)))


def xsalsa20(key: bytes, nonce: bytes) -> Salsa20.Salsa20Cipher:
    """A stream cipher for one direction of one connection."""
    return Salsa20.new(key=hsalsa20(key, nonce[:16]), nonce=nonce[16:])


async def _write(self: PskConn, data: bytes) -> None:
    if self.write_cipher is None:
        nonce = os.urandom(NONCE_BYTES)
        await self._conn.write(nonce)
        self.write_cipher = xsalsa20(self._psk, nonce)
    await self._conn.write(self.write_cipher.encrypt(data))


async def _read(self: PskConn, n: int | None = None) -> bytes:
    if self.read_cipher is None:
        nonce = b""
        while len(nonce) < NONCE_BYTES:
            more = await self._conn.read(NONCE_BYTES - len(nonce))
            if not more:
                return b""
            nonce += more
        self.read_cipher = xsalsa20(self._psk, nonce)
    data = await self._conn.read(n)
    return self.read_cipher.decrypt(data) if data else b""


def patch_psk() -> None:
    """Make every protected connection of this process speak XSalsa20. Doing it twice changes nothing."""
    PskConn.write = _write  # type: ignore[method-assign]
    PskConn.read = _read  # type: ignore[method-assign]


def read_swarm_key(path: Path) -> bytes:
    """Read a ``swarm.key`` file as Kubo writes it.

    Raises:
        ConfigurationError: it can't be read, or isn't ``/key/swarm/psk/1.0.0/``, ``/base16/`` and 64 hex digits.
    """
    try:
        return parse_swarm_key(path.read_text())
    except (OSError, UnicodeDecodeError, MalformedInput) as fault:
        raise ConfigurationError(
            f"can't use the pre-shared key in {path}: {fault}",
            hint="it has three lines: /key/swarm/psk/1.0.0/, /base16/ and 64 hex digits",
        ) from fault


def parse_swarm_key(text: str) -> bytes:
    """Read the text of a ``swarm.key`` file.

    Raises:
        MalformedInput: it has another shape.
    """
    found = re.fullmatch(r"/key/swarm/psk/1\.0\.0/\s+/base16/\s+([0-9a-fA-F]{64})\s*", text)
    if found is None:
        raise MalformedInput("not a swarm.key")
    return bytes.fromhex(found[1])
