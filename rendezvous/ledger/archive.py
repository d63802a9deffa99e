"""Retention: finished tasks leave the ledger as JSON lines, each with its history and its inline manifest.

The lines are on the disk before the tasks are deleted. A crash between the two writes them again next time, so whoever
reads an archive keeps the last line of a task.
"""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from rendezvous.ledger.queries import LedgerReader
from swarm.model import TaskId
from swarm.wire import TaskView

__all__ = ["archive_batch"]

#: Tasks of one batch: the writer deletes them in one transaction, some ten milliseconds.
BATCH: Final = 200


def archive_batch(
    reader: LedgerReader, *, directory: Path, before: float, now: float, after: int
) -> tuple[tuple[TaskId, ...], int]:
    """Append a batch of finished tasks to the archive.

    Args:
        reader: of the ledger.
        directory: where the files are, one a month in which tasks ended; made if it isn't there.
        before: only tasks that ended before this ledger time.
        now: ledger time, seconds.
        after: the place where the batch before this one ended; 0 begins anew.

    Returns:
        The tasks that are on the disk now, which the ledger may forget; and the place where the batch ended.

    Raises:
        OSError: the disk is full, or the directory can't be written.
    """
    found = reader.finished_before(before, now=now, after=after, limit=BATCH)
    tasks = [task for _, task in found]
    lines: dict[str, list[bytes]] = {}
    for task in tasks:
        month = time.strftime("%Y-%m", time.gmtime(task.finished_at or 0.0))
        lines.setdefault(month, []).append(orjson.dumps(_record(reader, task), option=orjson.OPT_APPEND_NEWLINE))
    if lines:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for month, batch in lines.items():
        _append(directory / f"tasks-{month}.jsonl", b"".join(batch))
    return tuple(task.id for task in tasks), found[-1][0] if found else 0


def _record(reader: LedgerReader, task: TaskView) -> dict[str, Any]:
    manifest = None if task.result is None else reader.manifest(task.result)
    record: dict[str, Any] = {
        "task": msgspec.to_builtins(task),
        "events": [msgspec.to_builtins(event) for event in reader.history(task.id)],
    }
    if manifest is not None:
        record["manifest"] = base64.b64encode(manifest).decode()
    return record


def _append(path: Path, body: bytes) -> None:
    """Append and wait for the disk; a torn line of an earlier crash is closed first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                body = b"\n" + body
        written = 0
        while written < len(body):
            written += file.write(body[written:]) or 0
        os.fsync(descriptor)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
