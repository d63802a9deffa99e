"""The little of Protocol Buffers that dag-pb and UnixFS need: varints and length-delimited fields.

Reading is strict and bounded, since blocks come from peers: a varint is minimal and fits 63 bits, a length never
reaches beyond the message, fixed-width and group wire types are refused. It knows nothing of what a field means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from swarm.errors import MalformedInput

VARINT: Final = 0
BYTES: Final = 2
#: 9 groups of 7 bits: 63 bits, which is what sizes may have.
MAX_VARINT_BYTES: Final = 9


def encode_varint(number: int) -> bytes:
    """Encode a number ≥ 0."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_field(number: int, value: int | bytes) -> bytes:
    """Encode one field: an int as a varint, bytes length-delimited."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    return encode_varint(number << 3 | BYTES) + encode_varint(len(value)) + value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read the varint that begins at ``at``.

    Returns:
        The number, and where the next byte after it is.

    Raises:
        MalformedInput: it is cut off, longer than 63 bits, or not minimal.
    """
    number = 0
    for count in range(MAX_VARINT_BYTES):
        if at + count >= len(data):
            raise MalformedInput("a number is cut off")
        byte = data[at + count]
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if byte == 0 and count:
                raise MalformedInput("a number isn't in its shortest form")
            return number, at + count + 1
    raise MalformedInput("a number has more than 63 bits")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Read a message field by field, in the order of the bytes.

    Yields:
        The field's number, and its value: int for a varint, bytes for a length-delimited one.

    Raises:
        MalformedInput: the message breaks the encoding.
    """
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, at = read_varint(data, at)
            yield number, value
        elif wire_type == BYTES:
            length, at = read_varint(data, at)
            if length > len(data) - at:
                raise MalformedInput(f"field {number} reaches {length - (len(data) - at)} bytes beyond its message")
            yield number, data[at : at + length]
            at += length
        else:
            raise MalformedInput(f"field {number} has wire type {wire_type}, which isn't taken")
