"""Who signs that a completion counts: the key that pays, or in an unpaid swarm the swarm's own key.

In a paid swarm a receipt is about money, so the key signs that the money comes from: its address is on the chain. In an
unpaid one that key doesn't exist; the swarm's key is what every join link names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from swarm.model import Address, Wei
from swarm.receipts import accept_by_chain_key, accept_by_swarm_key
from swarm.signing import peer_id_from_seed
from swarm.wire import Acceptance, Completion, EthereumSettings, PaidBy

__all__ = ["Accept", "DigestSigner", "acceptor"]

#: completion, reward, when it was accepted (Unix seconds) → the signed acceptance.
Accept = Callable[[Completion, Wei, float], Acceptance]


class DigestSigner(Protocol):
    """Has the key that pays; it never leaves it."""

    @property
    def address(self) -> Address:
        """Whose signature it is."""

    def sign_digest(self, digest: bytes) -> str:
        """The Ethereum signature of 32 bytes."""


def acceptor(seed: bytes, signer: DigestSigner | None, ethereum: EthereumSettings | None) -> Accept:
    """How this root accepts completions.

    Args:
        seed: of the swarm's key, 32 bytes.
        signer: the key that pays, in a paid swarm.
        ethereum: where it pays from.
    """
    if signer is None or ethereum is None:
        peer_id = peer_id_from_seed(seed)

        def accept_unpaid(completion: Completion, reward_wei: Wei, at: float) -> Acceptance:
            blank = Acceptance(reward_wei=str(reward_wei), accepted_at=int(at), signer=peer_id)
            return accept_by_swarm_key(seed, completion, blank)

        return accept_unpaid

    paid_by = PaidBy(chain_id=ethereum.chain_id, contract=ethereum.contract)

    def accept_paid(completion: Completion, reward_wei: Wei, at: float) -> Acceptance:
        blank = Acceptance(reward_wei=str(reward_wei), accepted_at=int(at), signer=signer.address, ethereum=paid_by)
        return accept_by_chain_key(signer.sign_digest, completion, blank)

    return accept_paid
