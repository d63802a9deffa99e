"""Workers with vouchers in a simulated life: they, or somebody for them, redeem these without the root."""

from __future__ import annotations

import contextlib
import random

from rendezvous.chain.keys import LocalSigner
from swarm.chain_reader import redeem_data
from swarm.errors import RpcSaid
from swarm.vouchers import Escrow, Voucher, compact_signature, voucher_digest
from tests.chain.fake_chain import CHAIN_ID, CONTRACT, FakeChain, address_of, signer_of
from tests.rendezvous.ledger_world import World

RELAYER = address_of("relayer")
#: A worker tries one of its last vouchers: an older one brings less, and never anything twice.
RECENT = 4


class Holders:
    """All workers of one root.

    Args:
        chain: where they redeem; their node is another than the root's, and sees everything.
        world: the root's ledger.
        root: who signs.
    """

    def __init__(self, chain: FakeChain, world: World, root: LocalSigner) -> None:
        self._chain = chain
        self._world = world
        self._root = root
        self._vouchers: dict[str, list[tuple[Voucher, bytes]]] = {}
        chain.give(RELAYER, 10**18)

    def redeem_any(self, worker: str, rng: random.Random) -> None:
        """One of the vouchers that a worker has, the root's newest included."""
        self._ask(worker)
        if worker in self._vouchers:
            self._redeem(rng.choice(self._vouchers[worker][-RECENT:]))

    def check(self, worker: str) -> None:
        """What a worker earned is covered, and it gets all of it, once."""
        row, channel = self._world.reader.channel(self._root.address, worker), self._channel_of(worker)
        if row is None:
            assert channel == (0, 0)
            return
        locked_wei, settled_wei = channel
        assert locked_wei + settled_wei >= row.owed_wei
        self._ask(worker)
        last = self._vouchers[worker][-1]
        assert last[0].cumulative_wei == row.owed_wei
        before = self._has(worker)
        for _ in range(2):
            self._redeem(last)
            self._chain.mine()
        assert self._has(worker) - before == row.owed_wei - settled_wei
        assert self._channel_of(worker)[1] == row.owed_wei

    def _has(self, worker: str) -> int:
        return self._chain.ether(worker) + self._chain.balance(worker)

    def _channel_of(self, worker: str) -> tuple[int, int]:
        found = self._chain.channel(self._root.address, worker)
        return found.locked_wei, found.settled_wei

    def _ask(self, worker: str) -> None:
        """What the root says in its answer to the worker's turn."""
        page = self._world.reader.vouchers_since(self._root.address, worker, since_wei=0)
        signed = self._vouchers.get(worker, [])
        if page is None or (signed and signed[-1][0].cumulative_wei >= page.cumulative_wei):
            return
        voucher = Voucher(
            requester=self._root.address,
            worker=worker,
            cumulative_wei=page.cumulative_wei,
            tasks_root=page.tasks_root,
        )
        digest = voucher_digest(Escrow(chain_id=CHAIN_ID, address=CONTRACT), voucher)
        self._vouchers[worker] = [*signed, (voucher, compact_signature(self._root.sign_digest(digest)))]

    def _redeem(self, signed: tuple[Voucher, bytes]) -> None:
        transaction = signer_of("relayer").sign_transaction(
            {
                "type": 2,
                "chainId": CHAIN_ID,
                "nonce": self._chain.nonce(RELAYER),
                "to": CONTRACT,
                "data": "0x" + redeem_data(*signed).hex(),
                "value": 0,
                "gas": 300_000,
                "maxFeePerGas": 10**12,
                "maxPriorityFeePerGas": 1,
            }
        )
        with contextlib.suppress(RpcSaid):  # another is on its way
            self._chain.send("0x" + transaction.raw.hex())
