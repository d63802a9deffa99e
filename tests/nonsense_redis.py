"""What listens like a Redis and isn't one: it says the same bytes to whatever it is asked."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator

#: Bytes that no parser and no reader of an answer should choke on.
NONSENSE = (
    b":abc\r\n",
    b"$abc\r\n",
    b"*abc\r\n",
    b"*-1\r\n",
    b"$-1\r\n",
    b":7\r\n",
    b"$5\r\nhello\r\n",
    b"*1\r\n" * 20_000,
    b"\x00\xff\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"-\xff\xfe\r\n",
    b"*0\r\n",
    b"*1\r\n*2\r\n:1\r\n:2\r\n",
    b"*1\r\n*3\r\n:7\r\n$1\r\n1\r\n$1\r\n1\r\n",
    b"*1\r\n*3\r\n:-7\r\n$1\r\n1\r\n$1\r\n1\r\n",
    b"*1\r\n*3\r\n:1\r\n$3\r\nnan\r\n$1\r\n1\r\n",
    b"*1\r\n*3\r\n:1\r\n$3\r\ninf\r\n$1\r\n1\r\n",
    b"*2\r\n*3\r\n:1\r\n$1\r\n1\r\n$1\r\n1\r\n*3\r\n:1\r\n$1\r\n1\r\n$1\r\n1\r\n",
    b"*1\r\n*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n",
)


@contextlib.contextmanager
def saying(answer: bytes, *, drip_s: float | None = None) -> Iterator[str]:
    """A server that answers everything with these bytes; its URL.

    Args:
        answer: what it says.
        drip_s: it says a byte in so many seconds, and begins again at the end.
    """
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def talk(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                while connection.recv(65_536):
                    if drip_s is None:
                        connection.sendall(answer)
                    for byte in itertools.cycle(answer) if drip_s is not None else ():
                        connection.sendall(bytes([byte]))
                        if ended.wait(drip_s):
                            return

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=talk, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        finally:
            ended.set()
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            thread.join()
