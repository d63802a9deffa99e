"""A ledger, a chain and the one that signs, with time owned by the test: short words for what happens to money."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eth_account import Account

from rendezvous.chain import escrow
from rendezvous.chain.audit import Auditor
from rendezvous.chain.channels import ChannelFollower
from rendezvous.chain.escrow import ChainTask, TaskState
from rendezvous.chain.finality import Finality
from rendezvous.chain.outbox import Rules, Worry, WorryCode
from rendezvous.chain.rpc import Rpc
from rendezvous.chain.sender import Round, Signer, TransactionSender
from rendezvous.ledger.money_ops import Book, ClaimSender, Intent, IntentState, Record, Sender, SenderHeld
from rendezvous.ledger.ops import LeaseRef
from rendezvous.ledger.queries import LedgerReader
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerRef
from swarm.content.cid import raw_cid
from swarm.model import Status, TaskId
from swarm.vouchers import Channel, chain_task_id
from swarm.wire import TaskView
from tests.rendezvous.ledger_world import World

#: Final with two blocks on top; nothing waits for others, and a doubt is believed at once.
FAST_RULES = Rules(finality_blocks=2, watch_blocks=8, stuck_blocks=3, linger_s=0.0, doubt_s=0.0)
REWARD = 10**15


def worker(name: str) -> WorkerRef:
    """A worker with an address of its own."""
    key = hashlib.sha256(name.encode()).digest()
    return WorkerRef(Account.from_key(key).address, f"{name}-instance")


ALICE, BOB = worker("alice"), worker("bob")


class WorldBooks:
    """The ledger of a ``World`` as the sender uses it."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def call(self, op: Record) -> tuple[bool, ...] | SenderHeld:
        answer: tuple[bool, ...] | SenderHeld = self._world.do(op)
        return answer

    async def book(self, sender: str) -> Book | None:
        return self._world.reader.book(sender, now=self._world.now)

    def now(self) -> float:
        return self._world.now


class WorldLedger:
    """The ledger of a ``World`` as coroutines, as far as channels go."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def call(self, op: Any) -> Any:
        return self._world.do(op)

    async def read(self, query: Callable[[LedgerReader], Any]) -> Any:
        return query(self._world.reader)


class PayWorld(World):
    """One root's ledger, and its sender."""

    def __init__(
        self, path: Path, rpc: Rpc, signer: Signer, contract: str, *, chain_id: int, rules: Rules = FAST_RULES
    ) -> None:
        super().__init__(path, LedgerSettings(host_rate_per_s=0, payer=signer.address))
        self.rpc = rpc
        self.signer = signer
        self.contract = contract
        self.chain_id = chain_id
        self.rules = rules
        self.worries: tuple[Worry, ...] = ()
        self.sender: TransactionSender | None = None
        self.follower: ChannelFollower | None = None

    async def claim_key(self, holder: str = "root") -> Sender:
        """Become the signer, as a starting root does."""
        head = int(await self.rpc.call("eth_blockNumber"), 16)
        block = await self.rpc.call("eth_getBlockByNumber", hex(head), False)
        nonce = int(await self.rpc.call("eth_getTransactionCount", self.signer.address, "latest"), 16)
        row = self.do(
            ClaimSender(
                address=self.signer.address,
                holder=holder,
                chain_id=self.chain_id,
                contract=self.contract,
                nonce=nonce,
                anchor_number=head,
                anchor_hash=block["hash"],
                balance_wei=await self.balance(),
            )
        )
        assert isinstance(row, Sender), row
        self.sender = TransactionSender(
            WorldBooks(self),
            self.rpc,
            self.signer,
            contract=self.contract,
            chain_id=self.chain_id,
            epoch=row.epoch,
            rules=self.rules,
        )
        return row

    async def rounds(self, most: int = 20) -> None:
        """Let the sender work until nothing moves."""
        if self.sender is None:
            await self.claim_key()
        assert self.sender is not None
        for _ in range(most):
            done = await self.sender.round()
            self.worries = done.worries
            if not done.moved:
                return

    async def one_round(self) -> Round:
        """A single round."""
        if self.sender is None:
            await self.claim_key()
        assert self.sender is not None
        done = await self.sender.round()
        self.worries = done.worries
        return done

    async def settle_down(self, blocks: int = 3, times: int = 3) -> None:
        """Rounds and blocks by turns, until everything that can be final is."""
        for _ in range(times):
            await self.rounds()
            for _ in range(blocks):
                await self.rpc.call("evm_mine")
        await self.rounds()

    # ── what is to be seen ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def worry_codes(self) -> set[WorryCode]:
        """What is in the way."""
        return {worry.code for worry in self.worries}

    def view(self, task: TaskId) -> TaskView:
        """A task as its owner sees it."""
        found = self.reader.task(task)
        assert found is not None
        return found

    def intents(self) -> list[Intent]:
        """All of them."""
        return self.reader.intents(self.signer.address)

    async def chain_task(self, task: TaskId, generation: int = 1) -> ChainTask:
        """A task as the contract has it."""
        data = escrow.task_call(self.signer.address, chain_task_id(task, generation))
        return escrow.decode_task(
            await self.rpc.call("eth_call", {"to": self.contract, "data": "0x" + data.hex()}, "latest")
        )

    async def balance(self) -> int:
        """The requester's free balance in the contract."""
        data = "0x" + escrow.balance_call(self.signer.address).hex()
        answer = await self.rpc.call("eth_call", {"to": self.contract, "data": data}, "latest")
        return escrow.decode_balance(answer)

    async def channel(self, payee: str) -> Channel:
        """A worker's channel on the newest block."""
        data = "0x" + escrow.channel_call(self.signer.address, payee).hex()
        return escrow.decode_channel(await self.rpc.call("eth_call", {"to": self.contract, "data": data}, "latest"))

    async def follow(self) -> int:
        """Take in what the chain has of channels, as the pay desk does at each sweep."""
        if self.follower is None:
            self.follower = ChannelFollower(
                WorldLedger(self),  # type: ignore[arg-type]
                self.rpc,
                self.signer.address,
                contract=self.contract,
                finality=Finality(self.rules),
            )
        return await self.follower.follow()

    async def ether(self, address: str) -> int:
        """An account's wei."""
        return int(await self.rpc.call("eth_getBalance", address, "latest"), 16)

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────────────────

    def claim_one(self, who: WorkerRef = ALICE) -> LeaseRef:
        """A worker takes the next task."""
        (lease,) = self.claim(who)
        return lease

    def complete_one(self, lease: LeaseRef, who: WorkerRef = ALICE) -> None:
        """A worker completes what it took."""
        assert self.complete(who, lease, cid=raw_cid(b"result")) is Status.COMPLETED

    def run_task(self, who: WorkerRef = ALICE, content: bytes = b"result") -> TaskId:
        """A worker takes the next task and completes it."""
        lease = self.claim_one(who)
        assert self.complete(who, lease, cid=raw_cid(content)) is Status.COMPLETED
        return lease.task

    def fail_task(self, who: WorkerRef = ALICE) -> TaskId:
        """A worker takes the next task and fails it for good."""
        (lease,) = self.claim(who)
        assert self.fail(who, lease, reason="http_4xx") is Status.FAILED
        return lease.task


async def check_books(world: PayWorld, *, all_settled: bool = True) -> None:
    """Ledger and chain agree to the wei, and every (task, generation) was settled exactly once, or never funded.

    Every event of the contract for this key is compared with every intent; the contract's ether is what it owes.
    """
    auditor = Auditor(
        WorldLedger(world),
        world.rpc,
        world.signer.address,
        contract=world.contract,
        finality=Finality(Rules(finality_blocks=0)),
    )
    report = await auditor.audit()
    assert report.differences == ()
    assert report.counted_block == report.block
    intents = world.intents()
    channels = world.reader.channels(world.signer.address)
    locked = [await world.channel(each.payee) for each in channels]
    held = await world.ether(world.contract)
    assert held == report.open_wei + report.balance_wei + sum(each.locked_wei for each in locked)
    by_key: dict[str, list[Intent]] = {}
    for intent in intents:
        if intent.task is not None:
            by_key.setdefault(intent.key, []).append(intent)
    for key, pair in by_key.items():
        funding = [intent for intent in pair if intent.kind.slot == "create"]
        settling = [intent for intent in pair if intent.kind.slot == "settle"]
        assert len(funding) == 1, key
        assert len(settling) <= 1, key
        if not all_settled:
            continue
        if funding[0].state is IntentState.DONE:
            assert [each.state for each in settling] == [IntentState.DONE], (key, settling)
        else:
            assert funding[0].state in (IntentState.VOID, IntentState.PARKED), (key, funding)
        for each in pair:
            if each.task is None or each.generation is None:
                continue
            state = (await world.chain_task(each.task, each.generation)).state
            wanted: dict[Any, TaskState] = {"complete": TaskState.PAID, "fail": TaskState.FAILED}
            if settling and settling[0].state is IntentState.DONE:
                assert state is wanted[settling[0].kind.value], key
