"""The manifest: what a task's result *is*. Canonical JSON; its CID is the result.

A manifest names the task, the worker, the requester's ``meta``, and for each URL its outcome with the CIDs of what
was stored. Two implementations that build the same manifest get the same bytes, so the same CID. Cookies and secrets
never enter it: ``UrlOutcome.headers`` holds only what ``KEPT_HEADERS`` names.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import orjson
from msgspec import Meta

from swarm.errors import MalformedInput
from swarm.wire import (
    MAX_MANIFEST_BYTES,
    AddressText,
    Answer,
    CidText,
    Count,
    Label,
    ReasonText,
    Seconds,
    Sentence,
    TaskIdText,
    Url,
    decode,
)

#: Response headers that are kept. Set-Cookie and its kin never are.
KEPT_HEADERS: Final = frozenset(
    {"content-type", "content-language", "last-modified", "etag", "date", "location", "retry-after", "server"}
)


class ContentRef(Answer, frozen=True):
    """A stored content: the CID of its root block, and its length before chunking, bytes."""

    cid: CidText
    size_bytes: Count


class UrlOutcome(Answer, frozen=True):
    """What became of one URL: ``reason`` is None where it gave data."""

    url: Url
    final_url: Url | None = None
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    headers: Annotated[dict[str, str], Meta(max_length=16)] = {}
    body: ContentRef | None = None
    records: ContentRef | None = None
    record_count: Count | None = None
    reason: ReasonText | None = None
    detail: Sentence = ""
    took_s: Seconds = 0.0


class Manifest(Answer, frozen=True, kw_only=True):
    """The result of one task."""

    v: Annotated[int, Meta(ge=1, le=1_000)] = 1
    task: TaskIdText
    worker: AddressText
    kind: str
    meta: dict[str, Any] = {}
    outcomes: Annotated[tuple[UrlOutcome, ...], Meta(max_length=100)] = ()
    versions: Annotated[dict[Label, Label], Meta(max_length=16)] = {}

    def named(self) -> tuple[ContentRef, ...]:
        """All contents that the manifest names, in order, without repeats."""
        refs = [ref for outcome in self.outcomes for ref in (outcome.body, outcome.records) if ref is not None]
        return tuple(dict.fromkeys(refs))


def encode_manifest(manifest: Manifest) -> bytes:
    """The canonical bytes: sorted keys, no spaces, defaults left out.

    Raises:
        MalformedInput: it is longer than ``MAX_MANIFEST_BYTES``, or holds what JSON can't (nested too deeply, say).
    """
    try:
        body = orjson.dumps(msgspec.to_builtins(manifest), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONEncodeError, RecursionError) as fault:
        raise MalformedInput(f"a manifest that can't be written: {fault}") from fault
    if len(body) > MAX_MANIFEST_BYTES:
        raise MalformedInput(f"a manifest of {len(body)} bytes where at most {MAX_MANIFEST_BYTES} are taken")
    return body


def decode_manifest(body: bytes) -> Manifest:
    """Parse a manifest that a worker made.

    Raises:
        MalformedInput: it isn't one, or is too long.
    """
    return decode(body, Manifest, max_bytes=MAX_MANIFEST_BYTES)
