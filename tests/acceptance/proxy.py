"""A TCP proxy that reads along: it can hold an upload, or lose one message of a WebSocket.

It stands between a worker and the door. What the client sends is looked at as plain bytes; what the server sends is
forwarded as it is until the connection becomes a WebSocket, and message by message from then on.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
from collections.abc import Callable, Iterator

_CHUNK_BYTES = 65_536
#: Enough of what was seen before, so that a pattern over two reads is found.
_OVERLAP_BYTES = 256


class Verdict(enum.Enum):
    """What becomes of what passes."""

    FORWARD = enum.auto()
    #: It is lost, and so is the connection, as when a cable is pulled.
    CUT = enum.auto()
    #: It is kept back until the proxy closes.
    HOLD = enum.auto()


def forward_all(_: bytes) -> Verdict:
    """Let everything pass."""
    return Verdict.FORWARD


class Proxy:
    """Forwards connections to one door.

    Args:
        target: host and port of the door.
        on_upstream: asked for each piece that the client sends (with some of the piece before it).
        on_message: asked for each whole WebSocket message that the server sends.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        on_upstream: Callable[[bytes], Verdict] = forward_all,
        on_message: Callable[[bytes], Verdict] = forward_all,
    ) -> None:
        self._target = target
        self._on_upstream = on_upstream
        self._on_message = on_message
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = {self._listener}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def link(self, link: str) -> str:
        """The same join link, by way of this proxy."""
        return link.replace(f"{self._target[0]}:{self._target[1]}", f"127.0.0.1:{self.port}")

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            self._spawn(self._pump, client, server, self._upstream(server))
            self._spawn(self._pump, server, client, self._downstream(client))

    def _pump(self, source: socket.socket, sink: socket.socket, take: Callable[[bytes], Verdict]) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_CHUNK_BYTES):
                verdict = take(piece)
                if verdict is Verdict.HOLD:
                    self._closing.wait()
                if verdict is not Verdict.FORWARD:
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _upstream(self, server: socket.socket) -> Callable[[bytes], Verdict]:
        before = b""

        def take(piece: bytes) -> Verdict:
            nonlocal before
            verdict = self._on_upstream(before + piece)
            before = piece[-_OVERLAP_BYTES:]
            if verdict is Verdict.FORWARD:
                server.sendall(piece)
            return verdict

        return take

    def _downstream(self, client: socket.socket) -> Callable[[bytes], Verdict]:
        seen = bytearray()
        framed = False

        def take(piece: bytes) -> Verdict:
            nonlocal framed
            if not framed:
                seen.extend(piece)
                if not seen.startswith(b"HTTP/1.1 101"[: len(seen)]):
                    seen.clear()
                    client.sendall(piece)
                    return Verdict.FORWARD
                head, mark, rest = bytes(seen).partition(b"\r\n\r\n")
                if not mark:
                    return Verdict.FORWARD
                framed = True
                client.sendall(head + mark)
                seen[:] = rest
            else:
                seen.extend(piece)
            for frame, payload in _frames(seen):
                verdict = self._on_message(payload)
                if verdict is not Verdict.FORWARD:
                    return verdict
                client.sendall(frame)
            return Verdict.FORWARD

        return take

    def __enter__(self) -> Proxy:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        for thread in self._threads:
            thread.join(5)


def _frames(seen: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take whole server frames (unmasked) off the front: the frame's bytes, and its payload."""
    while len(seen) >= 2:
        length, start = seen[1] & 0x7F, 2
        if length == 126:
            length, start = int.from_bytes(seen[2:4], "big"), 4
        elif length == 127:
            length, start = int.from_bytes(seen[2:10], "big"), 10
        if len(seen) < start + length:
            return
        frame = bytes(seen[: start + length])
        del seen[: start + length]
        yield frame, frame[start:]
