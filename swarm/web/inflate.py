"""Undo Content-Encoding as the bytes come, and stop at a cap: a bomb is never held in memory.

Only what we ask for (gzip, deflate) is known. What comes out of one step is bounded too, so that a small chunk can't
become a large one before the cap is looked at.
"""

from __future__ import annotations

import zlib
from typing import Final

from swarm.model import Reason
from swarm.web.capture import TaskFailed

ACCEPT_ENCODING: Final = "gzip, deflate"
#: Our own word for a body that isn't what its Content-Encoding says; the same bytes would come again.
BAD_ENCODING: Final = "bad_encoding"

_STEP_BYTES: Final = 256 * 1024
_GZIP_WBITS: Final = zlib.MAX_WBITS | 16
#: RFC 9110 names nested encodings; more than this many is nobody's honest answer.
_MAX_LAYERS: Final = 2
_HEAD_BYTES: Final = 2


class _Layer:
    """One gzip or deflate stream; gzip may be several members on end."""

    def __init__(self, encoding: str) -> None:
        self._gzip = encoding == "gzip"
        self._inflater = zlib.decompressobj(_GZIP_WBITS)
        self._head = b""
        self._begun = False

    @property
    def complete(self) -> bool:
        """Whether the stream came to its end; no byte at all is an empty body."""
        return self._inflater.eof if self._begun else not self._head

    def feed(self, data: bytes, room: int) -> bytes:
        """Inflate, at most ``room`` + 1 bytes (one more shows that it didn't fit)."""
        if not self._begun:
            self._head += data
            if len(self._head) < _HEAD_BYTES:
                return b""
            data = self._begin()
        out = bytearray()
        while len(out) <= room:
            if self._inflater.eof:
                if not self._gzip or not data.strip(b"\0"):
                    break  # padding after the end, as curl and browsers allow
                self._inflater = zlib.decompressobj(_GZIP_WBITS)
            limit = min(_STEP_BYTES, room + 1 - len(out))
            piece = self._inflater.decompress(data, limit)
            out += piece
            data = self._inflater.unconsumed_tail or self._inflater.unused_data
            if not data and len(piece) < limit:
                break
        return bytes(out)

    def _begin(self) -> bytes:
        """Settle what the first two bytes tell: "deflate" is zlib by the standard and raw deflate by old habit."""
        self._begun = True
        if not self._gzip:
            wrapped = self._head[0] & 0x0F == zlib.DEFLATED and int.from_bytes(self._head[:2], "big") % 31 == 0
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
        return self._head


class Inflater:
    """Collects a body, decoded and capped.

    Args:
        content_encoding: the header's value.
        max_bytes: the most that may come out.

    Raises:
        TaskFailed: ``bad_encoding`` for an encoding that we didn't ask for.
    """

    def __init__(self, content_encoding: str, *, max_bytes: int) -> None:
        names = [name.strip().lower() for name in content_encoding.split(",")]
        names = [name.removeprefix("x-") for name in names if name not in ("", "identity")]
        if len(names) > _MAX_LAYERS or not set(names) <= {"gzip", "deflate"}:
            raise TaskFailed(BAD_ENCODING, f"Content-Encoding {content_encoding[:80]!r} wasn't asked for")
        self._layers = [_Layer(name) for name in reversed(names)]
        self._max_bytes = max_bytes
        self._body = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body.

        Raises:
            TaskFailed: ``too_large`` as soon as the cap is passed, ``bad_encoding`` where they don't inflate.
        """
        try:
            for layer in self._layers:
                chunk = layer.feed(chunk, self._max_bytes - len(self._body))
        except zlib.error as fault:
            raise TaskFailed(BAD_ENCODING, str(fault)) from fault
        room = self._max_bytes - len(self._body)
        self._body += chunk[:room]
        if len(chunk) > room:
            raise TaskFailed(Reason.TOO_LARGE, f"the body is over {self._max_bytes} bytes when decompressed")

    def so_far(self) -> bytes:
        """What came out until now, cut at the cap."""
        return bytes(self._body)

    def finish(self) -> bytes:
        """The whole body.

        Raises:
            TaskFailed: ``connect`` where the compressed stream stops short: it was cut on the way.
        """
        if not all(layer.complete for layer in self._layers):
            raise TaskFailed(Reason.CONNECT, "the compressed body ended early")
        return bytes(self._body)
