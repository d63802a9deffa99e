"""Why somebody can't be reached: the same words, whichever client met it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import pytest
import requests
import trio

from swarm.reasons import reason_of
from tests.free_port import free_port

#: What a silent server is waited for, seconds.
SHORT_S = 0.2


def ask_httpx(url: str) -> None:
    httpx.get(url, timeout=SHORT_S)


def ask_httpx_in_trio(url: str) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient(timeout=SHORT_S) as client:
            await client.get(url)

    trio.run(ask)


def ask_requests(url: str) -> None:
    requests.get(url, timeout=SHORT_S)


def ask_aiohttp(url: str) -> None:
    async def ask() -> None:
        limit = aiohttp.ClientTimeout(total=SHORT_S)
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(url):
            pass

    asyncio.run(ask())


def ask_trio(url: str) -> None:
    where = httpx.URL(url)

    async def ask() -> None:
        with trio.fail_after(SHORT_S):
            async with await trio.open_tcp_stream(where.host, where.port or 80) as stream:
                await stream.receive_some()

    trio.run(ask)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"


def fault_of(ask: Callable[[str], Any], url: str) -> BaseException:
    with pytest.raises(Exception) as failed:  # noqa: PT011 -- each client has its own
        ask(url)
    return failed.value


ASKING = pytest.mark.parametrize("ask", [ask_httpx, ask_httpx_in_trio, ask_requests, ask_aiohttp, ask_trio])


@ASKING
def test_a_port_where_nobody_listens_is_a_refused_connection(ask: Callable[[str], Any]) -> None:
    assert reason_of(fault_of(ask, f"http://127.0.0.1:{free_port()}/")) == "Connection refused"


@ASKING
def test_silence_is_no_answer_in_time(ask: Callable[[str], Any], silent: str) -> None:
    assert reason_of(fault_of(ask, silent)) == "no answer in time"


def test_what_no_system_gave_is_said_as_it_is() -> None:
    assert reason_of(ValueError("not a number")) == "not a number"
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(ExceptionGroup("several", [OSError("odd"), ValueError("more")])) == "several (2 sub-exceptions)"
