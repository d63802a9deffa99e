"""A node that fails as nodes do: it takes a transaction and never answers, lags, or is gone; and a root that dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rendezvous.chain.rpc import Call, Rpc
from swarm.errors import RpcSaid, RpcUnreachable

SEND = "eth_sendRawTransaction"


class Killed(BaseException):
    """The process ended here; nothing catches it."""


class Between:
    """Stands between a sender and a node. Each fault is a switch.

    Attributes:
        die_before_send: the process ends when it is about to send.
        die_after_send: … when the node has taken it, before the answer comes.
        silent_after_send: the node takes it, and the answer never comes.
        down: nothing answers.
        tamper: changes the answer to a call.
        watch: is shown what is about to be sent.
    """

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self.die_before_send = self.die_after_send = self.silent_after_send = self.down = False
        self.tamper: Callable[[str, Sequence[Any], Any], Any] | None = None
        self.sent: list[str] = []
        self.watch: Callable[[str], None] | None = None

    async def call(self, method: str, *params: Any) -> Any:
        if self.down:
            raise RpcUnreachable("node", "gone")
        if method != SEND:
            return self._changed(method, params, await self._rpc.call(method, *params))
        if self.die_before_send:
            raise Killed
        self.sent.append(params[0])
        if self.watch is not None:
            self.watch(params[0])
        try:
            answer = await self._rpc.call(method, *params)
        finally:
            if self.die_after_send:
                raise Killed
        if self.silent_after_send:
            raise RpcUnreachable("node", "no answer within 10 s")
        return answer

    async def batch(self, calls: Sequence[Call]) -> list[Any]:
        if self.down:
            raise RpcUnreachable("node", "gone")
        answers = await self._rpc.batch(calls)
        return [self._changed(method, params, answer) for (method, params), answer in zip(calls, answers, strict=True)]

    def _changed(self, method: str, params: Sequence[Any], answer: Any) -> Any:
        if self.tamper is None or isinstance(answer, RpcSaid):
            return answer
        return self.tamper(method, params, answer)
