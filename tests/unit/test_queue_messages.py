"""Which messages of other programs are tasks, and what is said of those that aren't."""

from __future__ import annotations

import contextlib
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import MalformedInput
from swarm.queue.messages import parse_message
from swarm.wire import NewTask


def test_a_bare_url_is_a_page_to_fetch() -> None:
    assert parse_message(b" https://example.com/a?b=1\n").task == NewTask(
        kind="fetch", urls=("https://example.com/a?b=1",)
    )
    assert parse_message(b"http://example.com/", kind="scrape").task.kind == "scrape"


def test_scrapy_redis_json_is_a_task_with_its_meta() -> None:
    message = parse_message(b'{"url": "https://example.com/", "meta": {"depth": 2}, "priority": 7, "id": "m-1"}')
    assert message.id == "m-1"
    assert message.task == NewTask(kind="fetch", urls=("https://example.com/",), meta={"depth": 2}, priority=7)


def test_a_whole_task_is_taken_as_the_door_takes_it_and_an_exported_one_too() -> None:
    said = {"kind": "scrape", "urls": ["https://example.com/"], "spec": {"extract": {"title": "h1::text"}}}
    assert parse_message(json.dumps(said).encode()).task.spec == said["spec"]
    exported = parse_message(json.dumps({**said, "id": "0192", "job": "j", "owner": "alice"}).encode())
    assert (exported.id, exported.task.kind) == ("0192", "scrape")
    assert parse_message(b'{"urls": ["https://example.com/"]}').task.kind == "fetch"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "neither a URL"),
        (b"ftp://example.com/", "neither a URL"),
        (b"[1]", "neither a URL"),
        (pickle.dumps({"url": "https://example.com/"}), "nothing is unpickled"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"url": "https://example.com/", "method": "POST"}', "fetch with GET"),
        (b'{"url": "https://example.com/", "form": {"a": 1}}', "form"),
        (b'{"urls": []}', "urls"),
        (b'{"url": "https://example.com/", "priority": 12}', "priority"),
        (b'{"body": "W10=", "headers": {"task": "app.fetch"}}', "Celery"),
        (b'{"urls": ["https://example.com/"], "id": ""}', "length"),
        (b'{"url": "https://example.com/", "meta": {"a": "\\u0000"}}', "NUL"),
        (b"https://example.com/" + b"a" * 70_000, "bytes where a message"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(raw: bytes, said: str) -> None:
    with pytest.raises(MalformedInput, match=said):
        parse_message(raw)


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=80).map(lambda rest: b'{"url":"https://a.test/"' + rest)))
def test_no_bytes_have_another_way_out(raw: bytes) -> None:
    with contextlib.suppress(MalformedInput):
        assert parse_message(raw).task.urls
