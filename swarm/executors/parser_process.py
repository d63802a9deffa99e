"""The process that parses pages: ``python -m swarm.executors.parser_process``. Frames in, frames out.

A page and its selectors both come from strangers, and libxml2 can be kept busy, or made to eat memory, by either. So
they meet in a process of its own with limits of its own, which ``swarm.executors.parser`` can kill. It has no
environment, writes no file and ends when its stdin does. It imports little, to start fast.

A frame is two lengths (4 bytes each), a JSON head and a body. Asked: head ``{charset, selectors, base_url, each}``,
body the page. Answered: head ``{count, found}``, body the records as JSON lines; or head ``{error}``.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import struct
import sys
from typing import BinaryIO, Final

import orjson

from swarm.content.parse import extract
from swarm.errors import MalformedInput

LENGTHS: Final = struct.Struct(">II")
#: A tree takes up to 200 times its page (``swarm.content.parse``); a page that needs more than this is refused.
MAX_MEMORY_BYTES: Final = 2 * 1024 * 1024 * 1024
#: The kernel ends a page that takes longer, if whoever should have done so is gone. Seconds.
LAST_RESORT_S: Final = 120


def main() -> None:
    """Answer frames until stdin ends."""
    _limit()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while (frame := _read(source)) is not None:
        signal.alarm(LAST_RESORT_S)
        head, body = _parse(*frame)
        signal.alarm(0)
        sink.write(LENGTHS.pack(len(head), len(body)) + head + body)
        sink.flush()


def _parse(head: bytes, page: bytes) -> tuple[bytes, bytes]:
    asked = orjson.loads(head)
    try:
        records = extract(page, asked["charset"], asked["selectors"], base_url=asked["base_url"], each=asked["each"])
    except MalformedInput as fault:
        return orjson.dumps({"error": str(fault)}), b""
    except MemoryError:
        return orjson.dumps({"error": "the page needs more memory than one may have"}), b""
    found = sorted({name for record in records for name, value in record.items() if value})
    lines = b"".join(orjson.dumps(record) + b"\n" for record in records)
    return orjson.dumps({"count": len(records), "found": found}), lines


def _read(source: BinaryIO) -> tuple[bytes, bytes] | None:
    lengths = source.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head_bytes, body_bytes = LENGTHS.unpack(lengths)
    return source.read(head_bytes), source.read(body_bytes)


def _limit() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker drains, and closes our stdin when it is done
    for limit, value in (
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    main()
