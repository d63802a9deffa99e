"""Sign a completion for its receipt.  Grant, CID → proof.

A grant that names no generation comes from a root that knows no receipts: nothing is signed for it.
"""

from __future__ import annotations

import sys
from typing import Final

import trio

from swarm.identity import Identity
from swarm.model import Address, Cid
from swarm.receipts import sign_completion
from swarm.turn_wire import CompletionProof, Grant
from swarm.wire import Completion

__all__ = ["prove"]

#: Imported at the first signature, with the elliptic curves.
SLOW_IMPORT: Final = "eth_utils.address"


async def prove(
    grant: Grant, cid: Cid, *, identity: Identity, payout: Address, network_id: str
) -> CompletionProof | None:
    """Sign that a granted task is done.

    Args:
        grant: what was granted.
        cid: of the manifest.
        identity: who did it.
        payout: who is paid, as bound at enrolment.
        network_id: of the swarm.
    """
    generation = grant.task.generation
    if generation is None:
        return None
    blank = Completion(
        network=network_id,
        task=grant.task.id,
        generation=generation,
        result=cid,
        fence=grant.fence,
        worker=identity.address,
        payout=payout,
    )
    if SLOW_IMPORT not in sys.modules:  # half a second: in a thread. A signature itself takes less than going there
        await trio.to_thread.run_sync(sign_completion, identity.eth_key, blank)
    signed = sign_completion(identity.eth_key, blank)
    return CompletionProof(generation=generation, signature=signed.signature)
