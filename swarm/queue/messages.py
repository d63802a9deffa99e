"""What may stand in a queue that other programs write to: bytes → a task, or why not.

Accepted are (docs/migrating.md shows each):

- a bare ``http://`` or ``https://`` URL;
- JSON with ``url``: scrapy-redis' form, ``{"url": …, "meta": {…}}``, also with ``priority`` 0 to 9;
- JSON with ``urls``: a task as ``POST /v1/tasks`` takes it; ``kind`` may be left out.

JSON may have an ``id`` (or ``task_id``), which makes a repeated message the same message. ``job``, ``owner`` and
``kept_key`` of a door's export are read over. Nothing is ever unpickled, and a request that isn't a GET is refused:
tasks here are fetches. Everything else is refused with a sentence, so that a producer's mistake is seen and not guessed
at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import attrs
import msgspec
from msgspec import Meta

from swarm.errors import MalformedInput
from swarm.wire import MAX_TASK_BYTES, KindText, NewTask, Request, Url, check_storable, decode

__all__ = ["DEFAULT_KIND", "MAX_MESSAGE_BYTES", "Message", "parse_lines", "parse_message"]

DEFAULT_KIND: Final = "fetch"
#: Room for ``id``, ``job`` and ``owner`` around the largest task.
MAX_MESSAGE_BYTES: Final = MAX_TASK_BYTES + 1024
#: How pickle's protocols 2 to 5 begin: what scrapy-redis keeps its own requests in.
PICKLED: Final = b"\x80"

MessageId = Annotated[str, Meta(min_length=1, max_length=128)]


class _UrlMessage(Request, frozen=True, kw_only=True):
    """scrapy-redis' JSON form."""

    url: Url
    meta: dict[str, Any] = msgspec.field(default_factory=dict)
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    kind: KindText | None = None
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    method: str = "GET"


@attrs.frozen(kw_only=True)
class Message:
    """A message that was read.

    Args:
        task: what it asks for.
        id: what its producer calls it; None where it says nothing.
    """

    task: NewTask
    id: str | None = None


def parse_message(raw: bytes, *, kind: str = DEFAULT_KIND) -> Message:
    """Read one message.

    Args:
        raw: as it was pushed.
        kind: of a message that names none.

    Raises:
        MalformedInput: it is none of the accepted forms; the message says why.
    """
    if len(raw) > MAX_MESSAGE_BYTES:
        raise MalformedInput(f"{len(raw)} bytes where a message has at most {MAX_MESSAGE_BYTES}")
    if raw.startswith(PICKLED):
        raise MalformedInput("it is pickled: push a URL or JSON; nothing is unpickled here")
    text = raw.strip()
    if text.startswith((b"http://", b"https://")):
        return Message(task=_checked(decode(json.dumps({"kind": kind, "urls": [_text(text)]}), NewTask)))
    if not text.startswith(b"{"):
        raise MalformedInput(f"neither a URL nor a JSON object: {_text(text)[:60]!r}")
    fields = decode(text, dict[str, msgspec.Raw])
    known_as = fields.pop("id", None) or fields.pop("task_id", None)
    message_id = decode(bytes(known_as), MessageId) if known_as is not None else None
    if "url" in fields:
        return Message(task=_checked(_of_url(fields, kind)), id=message_id)
    if "urls" not in fields:
        looks = "; it looks like Celery's: its body names code, not a page" if "headers" in fields else ""
        raise MalformedInput(f"JSON without `url` or `urls`{looks}")
    for ours in ("job", "owner", "kept_key"):
        fields.pop(ours, None)
    fields.setdefault("kind", msgspec.Raw(msgspec.json.encode(kind)))
    return Message(task=_checked(decode(msgspec.json.encode(fields), NewTask)), id=message_id)


def _of_url(fields: dict[str, msgspec.Raw], kind: str) -> NewTask:
    said = decode(msgspec.json.encode(fields), _UrlMessage)
    if said.method.upper() != "GET":
        raise MalformedInput(f"a {said.method[:20]} request: tasks here fetch with GET")
    return NewTask(kind=said.kind or kind, urls=(said.url,), meta=said.meta, priority=said.priority, spec=said.spec)


def _checked(task: NewTask) -> NewTask:
    fault = check_storable(task)
    if fault is not None:
        raise MalformedInput(fault)
    return task


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as fault:
        raise MalformedInput("it isn't UTF-8") from fault


def parse_lines(lines: Iterable[bytes | str]) -> Iterator[Message]:
    """Read an export, line by line; empty lines are skipped.

    Raises:
        MalformedInput: a line isn't a task; the message has its number.
    """
    for number, line in enumerate(lines, 1):
        raw = line.encode() if isinstance(line, str) else line
        if raw.strip():
            try:
                yield parse_message(raw)
            except MalformedInput as fault:
                raise MalformedInput(f"line {number}: {fault}") from fault
