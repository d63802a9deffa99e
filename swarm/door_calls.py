"""One call to a door: the request, its deadline, and an answer that is data, a typed refusal, or silence.

It keeps nothing and knows no session; ``door_member`` and ``door_client`` decide which door is asked, and what follows.
"""

from __future__ import annotations

import ssl
from typing import Final, TypeVar

import httpx
import msgspec
import trio

from swarm.certificates import plain_hint, speaks_plain_http
from swarm.door_session import refused_by
from swarm.errors import DoorUnreachable
from swarm.reasons import is_untrusted, reason_of
from swarm.wire import MAX_TURN_BYTES, Answer, decode

__all__ = ["CALL_S", "call", "data_of"]

CALL_S: Final = 10.0
MAX_ANSWER_BYTES: Final = MAX_TURN_BYTES

T = TypeVar("T")


class _Envelope(Answer, frozen=True):
    data: msgspec.Raw


def data_of(body: bytes, shape: type[T]) -> T:
    """The data of an answer that is a yes.

    Raises:
        MalformedInput: it isn't of that shape.
    """
    return decode(bytes(decode(body, _Envelope, max_bytes=MAX_ANSWER_BYTES).data), shape)


async def call(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    api_key: str | None,
    params: dict[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = CALL_S,
) -> bytes:
    """One request. Returns the whole body of an answer that is a yes.

    Args:
        http: without a time-out of its own.
        method: of HTTP.
        url: the whole of it.
        api_key: None for what needs none.
        params: of the query.
        body: JSON.
        timeout_s: for all of it.

    Raises:
        DoorRefused: the door says no.
        DoorUnreachable: it doesn't answer in time, or not as a door does.
    """
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        with trio.fail_after(timeout_s):
            async with http.stream(method, url, params=params, content=body, headers=headers) as response:
                answer = await _read(response, url)
    except (httpx.HTTPError, httpx.InvalidURL, trio.TooSlowError, ssl.SSLError) as fault:
        raise _unreachable(url, fault) from fault
    if response.is_success:
        return answer
    refused = refused_by(response.status_code, answer)
    if refused is not None:
        raise refused
    raise DoorUnreachable(url, f"it answered {response.status_code}, and not as a door does")


async def _read(response: httpx.Response, url: str) -> bytes:
    parts = []
    length = 0
    async for part in response.aiter_bytes():
        length += len(part)
        if length > MAX_ANSWER_BYTES:
            raise DoorUnreachable(url, f"it answered with more than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _unreachable(url: str, fault: BaseException) -> DoorUnreachable:
    hint = None
    if speaks_plain_http(fault):
        hint = plain_hint(url)
    elif is_untrusted(fault):
        hint = "name its certificate with --ca-file, if it is yours"
    return DoorUnreachable(url, reason_of(fault), hint=hint)
