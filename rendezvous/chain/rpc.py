"""JSON-RPC to the chain's node: one call or a batch of calls, a deadline, typed faults, and no retries.

Our own, over aiohttp, since web3's provider repeats ``eth_sendRawTransaction`` by itself and costs five to ten times as
much (facts/chain.md §3): what is repeated is decided by the outbox alone. A batch is one exchange, so that what it
reads belongs together as far as the node can say so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import aiohttp
import orjson

from swarm.errors import RpcSaid, RpcUnreachable
from swarm.reasons import reason_of

__all__ = ["Call", "Rpc", "RpcClient", "open_rpc", "shown_url"]

#: A node that takes longer is asked again at the next sweep, seconds.
TIMEOUT_S: Final = 10.0
#: An answer: a thousand logs of a large block range.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
#: Calls of one exchange; public nodes refuse more than a hundred or a thousand.
BATCH_CALLS: Final = 100

Call = tuple[str, Sequence[Any]]


class Rpc(Protocol):
    """A node, as the pay desk uses it; tests have one of their own."""

    async def call(self, method: str, *params: Any) -> Any:
        """One call's result.

        Raises:
            RpcUnreachable: no answer in time; it may have been done nevertheless.
            RpcSaid: the node's error.
        """

    async def batch(self, calls: Sequence[Call]) -> list[Any]:
        """The results in the order of the calls; an ``RpcSaid`` where one failed.

        Raises:
            RpcUnreachable: no answer in time.
        """


def shown_url(url: str) -> str:
    """An RPC's URL without what may be a secret in it: user, path, query."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


class RpcClient:
    """One node over HTTP."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url: Final = url
        self._shown: Final = shown_url(url)
        self._session: Final = session
        self._id = 0

    def __repr__(self) -> str:
        return f"<RpcClient {self._shown}>"

    async def call(self, method: str, *params: Any) -> Any:
        """See ``Rpc.call``."""
        answer = await self._post(self._request(method, params))
        result = self._result(answer)
        if isinstance(result, RpcSaid):
            raise result
        return result

    async def batch(self, calls: Sequence[Call]) -> list[Any]:
        """See ``Rpc.batch``; long ones are several exchanges."""
        results: list[Any] = []
        for start in range(0, len(calls), BATCH_CALLS):
            requests = [self._request(method, params) for method, params in calls[start : start + BATCH_CALLS]]
            answers = await self._post(requests)
            if isinstance(answers, dict):  # the batch as a whole was refused
                refusal = self._result(answers)
                raise refusal if isinstance(refusal, RpcSaid) else self._nonsense("no list of answers")
            if not isinstance(answers, list):
                raise self._nonsense("no list of answers")
            by_id = {answer.get("id"): answer for answer in answers if isinstance(answer, dict)}
            for request in requests:
                if request["id"] not in by_id:
                    raise self._nonsense("an answer is missing")
                results.append(self._result(by_id[request["id"]]))
        return results

    def _request(self, method: str, params: Sequence[Any]) -> dict[str, Any]:
        self._id += 1
        return {"jsonrpc": "2.0", "id": self._id, "method": method, "params": list(params)}

    async def _post(self, body: Any) -> Any:
        try:
            async with self._session.post(
                self._url, data=orjson.dumps(body), headers={"Content-Type": "application/json"}
            ) as response:
                raw = await response.content.read(MAX_ANSWER_BYTES + 1)
                while len(raw) <= MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
                    raw += more
                status = response.status
        except TimeoutError as fault:
            raise RpcUnreachable(self._shown, f"no answer within {TIMEOUT_S:.0f} s") from fault
        except (aiohttp.ClientError, OSError) as fault:
            raise RpcUnreachable(self._shown, reason_of(fault)) from fault
        if len(raw) > MAX_ANSWER_BYTES:
            raise self._nonsense(f"more than {MAX_ANSWER_BYTES} bytes")
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as fault:
            raise self._nonsense(f"HTTP {status}, no JSON") from fault

    def _result(self, answer: Any) -> Any:
        if not isinstance(answer, dict):
            raise self._nonsense("no answer object")
        error = answer.get("error")
        if error is None:
            return answer.get("result")
        if not isinstance(error, dict):
            return RpcSaid(0, str(error))
        return RpcSaid(int(error.get("code") or 0), str(error.get("message") or "an error"), _revert_data(error))

    def _nonsense(self, what: str) -> RpcUnreachable:
        return RpcUnreachable(self._shown, f"it answered with {what}")


def _revert_data(error: dict[str, Any]) -> bytes:
    """What a reverting call returned; Hardhat wraps it once more."""
    data = error.get("data")
    while isinstance(data, dict):
        data = data.get("data")
    if isinstance(data, str) and data.startswith("0x"):
        try:
            return bytes.fromhex(data[2:])
        except ValueError:
            return b""
    return b""


@asynccontextmanager
async def open_rpc(url: str, *, timeout_s: float = TIMEOUT_S) -> AsyncIterator[RpcClient]:
    """A client of the node at ``url``.

    *Resource handling*: its connections are the block's.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
        yield RpcClient(url, session)
