"""Which block is final: one of enough depth, or the one that the node says is (`finalized`, where the chain has it).

Depth is a bet; a chain with finality makes a promise. A node that never told a finalized block has none to tell, and
depth is counted instead, which is said once. One that told one and then doesn't answer is believed what it said last:
a fault of the node makes nothing final.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from rendezvous.chain.outbox import Rules
from rendezvous.chain.rpc import Call, Rpc
from swarm.errors import RpcSaid

__all__ = ["Finality"]

log = structlog.get_logger()


class Finality:
    """What is final on one node's chain.

    Args:
        rules: the operator's.
    """

    def __init__(self, rules: Rules) -> None:
        self._blocks: Final = rules.finality_blocks
        self._asks: Final = rules.finalized_tag
        self._told: int | None = None
        self._lacks = False

    @property
    def calls(self) -> list[Call]:
        """What is to be asked of the node beside its newest block."""
        return [("eth_getBlockByNumber", ["finalized", False])] if self._asks else []

    def number(self, head: int, answers: list[Any]) -> int:
        """The newest final block's number; below zero where the chain is too young.

        Args:
            head: the newest block's number.
            answers: to ``calls``, each the node's result or an ``RpcSaid``.
        """
        if not self._asks:
            return head - self._blocks
        (answer,) = answers
        if isinstance(answer, Mapping) and "number" in answer:
            if self._lacks:
                self._lacks = False
                log.info("finalized_told", block=int(answer["number"], 16))
            self._told = max(int(answer["number"], 16), self._told or 0)
        if self._told is not None:
            return min(head, self._told)
        if not self._lacks:
            self._lacks = True
            reason = str(answer) if isinstance(answer, RpcSaid) else "it has no such block"
            log.warning("finalized_unknown", counted_instead_blocks=self._blocks, reason=reason)
        return head - self._blocks

    async def look(self, rpc: Rpc) -> int:
        """The newest final block's number, at least 0.

        Raises:
            RpcUnreachable: the node doesn't answer.
            RpcSaid: it can't say how long its chain is.
        """
        head, *answers = await rpc.batch([("eth_blockNumber", []), *self.calls])
        if isinstance(head, RpcSaid):
            raise head
        return max(0, self.number(int(head, 16), answers))
