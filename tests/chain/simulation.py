"""One seed, one life of a paid swarm: workers, requesters, a moody chain, a dying root; and what must hold of it.

Everything runs on virtual time and one random generator, so that a seed replays its run step by step. Ledger, sender
and contract are the real ones; the chain's pool and node are ``FakeChain``'s. Chaos first, then everything heals, and
the books are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import structlog
from sqlalchemy import text

from rendezvous.chain import escrow
from rendezvous.chain.audit import Auditor
from rendezvous.chain.channels import ChannelFollower
from rendezvous.chain.escrow import TaskState
from rendezvous.chain.finality import Finality
from rendezvous.chain.outbox import Rules
from rendezvous.chain.sender import SenderLost, TransactionSender
from rendezvous.ledger.money_ops import (
    AddIntent,
    ClaimSender,
    Finalized,
    Intent,
    IntentKind,
    IntentState,
    ResumeSender,
    RetryParked,
    Sender,
    Signed,
)
from rendezvous.ledger.ops import LeaseRef
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.values import WorkerRef
from swarm.content.cid import raw_cid
from swarm.errors import RpcSaid, RpcUnreachable
from swarm.model import TERMINAL, Settle, Status, TaskId
from swarm.vouchers import chain_task_id
from tests.chain.dying_books import DyingBooks
from tests.chain.fake_chain import CHAIN_ID, CONTRACT, FakeChain, address_of, signer_of
from tests.chain.faults import Between, Killed
from tests.chain.holders import Holders
from tests.chain.pay_world import WorldLedger
from tests.chain.planted import Bug, plant
from tests.rendezvous.ledger_world import World, new_task

ROOT = address_of("root")
ETHER = 10**18
REWARDS = (10**15, 2 * 10**15, 7)
#: The code of an account that takes no ether: what it is paid is credited to it in the contract.
REJECTS = bytes.fromhex("60006000fd")
#: Rounds and blocks that healing may take: a parked item waits for minutes, which are many blocks.
HEALING_MOST = 80
#: The transaction of these bytes, and the nonces of others that do the same and may still do it.
SENT = text(
    "SELECT t.nonce, t.state, (SELECT group_concat(other.nonce) FROM transactions other "
    "WHERE other.data = t.data AND length(t.data) > 4 AND other.nonce <> t.nonce "
    "AND other.state NOT IN ('reverted', 'abandoned') "
    # a channel may be given the same again, once the first is there
    "AND (substr(t.data, 1, 4) <> :fund OR other.state NOT IN ('final', 'buried'))) AS others "
    "FROM attempts a JOIN transactions t ON t.sender = a.sender AND t.nonce = a.nonce WHERE a.raw = :raw"
)
#: How many tasks show a flag without what it rests on, or don't show it although that is there.
WRONG_FLAGS = text(
    """
    WITH done AS (SELECT kind, key FROM intents WHERE task IS NOT NULL AND state = 'done'),
    shown AS (
        SELECT t.on_chain, t.paid, t.refunded, t.id || ':' || t.funding_generation AS key
        FROM tasks t JOIN jobs j ON j.n = t.job WHERE j.settle IS NOT 'channel'
    )
    SELECT
        sum((on_chain IS NOT NULL) <> (key IN (SELECT key FROM done WHERE kind = 'create'))),
        sum((paid IS NOT NULL) <> (key IN (SELECT key FROM done WHERE kind = 'complete'))),
        sum((refunded IS NOT NULL) <> (key IN (SELECT key FROM done WHERE kind = 'fail')))
    FROM shown
    """
)
#: Rounds in which a sender may find something to do, while the chain stands still.
ROUNDS_MOST = 50


class Simulation:
    """One run.

    Args:
        seed: all of its chance.
        directory: where its ledger is.
        tell: gets a line for each step, when a seed is replayed.
        bug: what is wrong with the outbox in this life.
    """

    def __init__(
        self, seed: int, directory: Path, *, tell: Callable[[str], None] | None = None, bug: Bug | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.tell = tell or (lambda _line: None)
        self.counts: Counter[str] = Counter()
        rng = self.rng
        self.world = World(directory / "ledger.sqlite", LedgerSettings(host_rate_per_s=0, payer=ROOT))
        self.sender_kind = plant(bug, self.world.core)
        self.chain = FakeChain(random.Random(rng.random()))
        self.chain.give(ROOT, (1000 if rng.random() < 0.9 else 1) * ETHER)
        self.between = Between(self.chain)
        self.between.watch = self.check_sent
        self.rules = Rules(
            finality_blocks=rng.randint(1, 4),
            watch_blocks=rng.randint(4, 12),
            stuck_blocks=rng.randint(1, 4),
            max_fee_wei=rng.choice((20, 100)) * 10**9,
            in_flight_most=rng.randint(1, 6),
            linger_s=rng.choice((0.0, 1.0, 20.0)),
            doubt_s=rng.choice((0.0, 30.0)),
            finalized_tag=rng.random() < 0.3,
        )
        if self.rules.finalized_tag and rng.random() < 0.7:  # else a node that knows no finalized block
            self.chain.finality_blocks = rng.randint(2, 12)
        #: Whether some jobs are settled by vouchers; workers, or others for them, redeem these without the root.
        self.by_voucher = rng.random() < 0.4
        self.holders = Holders(self.chain, self.world, signer_of("root"))
        self.workers = [WorkerRef(address_of(f"worker-{n}"), f"instance-{n}") for n in range(rng.randint(1, 20))]
        for worker in self.workers:
            if rng.random() < 0.15:
                self.chain.put_code(worker.address, REJECTS)
        self.tasks: list[TaskId] = []
        self.tasks_most = rng.randint(5, 300) if rng.random() < 0.2 else rng.randint(5, 60)
        self.leases: list[tuple[WorkerRef, LeaseRef]] = []
        self.sender: TransactionSender | None = None
        self.follower: ChannelFollower | None = None
        self.paused: list[TransactionSender] = []
        self.books = DyingBooks(self)
        self.foreign = rng.random() < 0.3
        self.auditor = Auditor(
            WorldLedger(self.world),
            self.chain,
            ROOT,
            contract=CONTRACT,
            finality=Finality(self.rules),
            window_blocks=rng.randint(3, 40),
            windows_most=rng.randint(1, 4),
        )
        self.deposits = 0

    def run(self) -> None:
        """Chaos, healing, comparison."""
        with structlog.testing.capture_logs():
            try:
                asyncio.run(self._run())
            finally:
                self.world.close()

    async def _run(self) -> None:
        for _ in range(3):
            self.chain.mine()
        actions: list[tuple[float, str]] = [
            (8, "submit"),
            (10, "claim"),
            (12, "finish"),
            (3, "cancel"),
            (2, "replay"),
            (8, "wait"),
            (40, "round"),
            (24, "mine"),
            (9, "reorg"),
            (4, "drop"),
            (4, "fees"),
            (2, "restart"),
            (1, "wake_paused"),
            (2, "outage"),
            (2, "lag"),
            (1, "money"),
            (1, "audit"),
            (3 if self.foreign else 0, "foreign"),
            (12 if self.by_voucher else 0, "follow"),
            (8 if self.by_voucher else 0, "redeem"),
        ]
        weights, names = zip(*actions, strict=True)
        for _ in range(self.rng.randint(100, 350)):
            name = self.rng.choices(names, weights)[0]
            self.counts[name] += 1
            self.tell(f"{self.world.now:.0f} block {self.chain.head.number}: {name}")
            await getattr(self, f"do_{name}")()
            self.check_flags_now()
        await self.heal()
        await self.check()

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────────────────

    async def do_submit(self) -> None:
        amount = min(self.rng.randint(1, 12), self.tasks_most - len(self.tasks))
        if amount > 0:
            ids = [str(UUID(int=self.rng.getrandbits(128))) for _ in range(amount + 1)]
            self.tasks += self.world.submit(
                *(
                    new_task(
                        id=task,
                        dedupe_key=task,
                        reward_wei=self.rng.choice(REWARDS),
                        expires_in_s=self.rng.choice((600.0, 604_800.0)),
                        max_attempts=2,
                    )
                    for task in ids[1:]
                ),
                job=ids[0],
                settle=Settle.CHANNEL if self.by_voucher and self.rng.random() < 0.6 else Settle.TASK,
            )

    async def do_claim(self) -> None:
        worker = self.rng.choice(self.workers)
        self.leases += [(worker, lease) for lease in self.world.claim(worker, want=self.rng.randint(1, 8))]

    async def do_finish(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            if self.leases:
                self.finish_one()

    def finish_one(self) -> None:
        worker, lease = self.leases.pop(self.rng.randrange(len(self.leases)))
        luck = self.rng.random()
        if luck < 0.75:
            self.world.complete(worker, lease, cid=raw_cid(lease.task.encode()))
        elif luck < 0.9:
            self.world.fail(worker, lease, reason=self.rng.choice(("http_4xx", "timeout")))

    async def do_cancel(self) -> None:
        if self.tasks:
            self.world.cancel(*self.rng.sample(self.tasks, min(3, len(self.tasks))))

    async def do_replay(self) -> None:
        if self.tasks:
            self.world.replay(*self.rng.sample(self.tasks, min(6, len(self.tasks))))

    async def do_wait(self) -> None:
        self.world.later(self.rng.choice((1.0, 5.0, 30.0, 100.0)))

    async def do_mine(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            skip = frozenset(each for each in self.chain.pool if self.rng.random() < 0.2)
            self.chain.mine(skip=skip)

    async def do_reorg(self) -> None:
        depth = self.rng.randint(1, self.rules.finality_blocks)
        if self.rng.random() < 0.3:  # deeper than what was thought to be final
            depth += self.rng.randint(1, self.rules.watch_blocks)
        row = self.world.reader.sender(ROOT)
        if row is not None:  # what is buried stands: else it is another chain, and paying stops for good
            depth = min(depth, self.chain.head.number - row.anchor_number)
        self.chain.reorg(depth, forget=self.rng.choice((0.0, 0.5)))
        for _ in range(self.rng.randint(0, depth + 1)):
            self.chain.mine(skip=frozenset(each for each in self.chain.pool if self.rng.random() < 0.5))

    async def do_drop(self) -> None:
        if self.chain.pool:
            self.chain.drop(self.rng.choice(sorted(self.chain.pool)))

    async def do_fees(self) -> None:
        self.chain.base_fee = self.rng.choice((1, 10**9, 5 * 10**9, 30 * 10**9, 200 * 10**9))

    async def do_outage(self) -> None:
        self.chain.down = not self.chain.down and self.rng.random() < 0.3

    async def do_lag(self) -> None:
        self.chain.lag = self.rng.choice((0, 0, 1, 3)) if self.rules.doubt_s else 0

    async def do_restart(self) -> None:
        self.restart()

    def restart(self) -> None:
        """The root starts anew; the old sender may be a process that only paused."""
        if self.sender is not None and len(self.paused) < 3:
            self.paused.append(self.sender)
        self.sender = self.follower = None
        self.world.core._abandon()  # as a new process: no transaction, nothing believed; compiling anew takes 0.3 s

    async def do_wake_paused(self) -> None:
        """A paused holder wakes: it must not get anything signed or written."""
        if not self.paused or self.sender is None:
            return
        sent = len(self.between.sent)
        with contextlib.suppress(SenderLost, RpcUnreachable):
            await self.paused.pop().round()
            raise AssertionError("a sender of an earlier epoch did a round")
        assert len(self.between.sent) == sent, "a sender of an earlier epoch sent something"

    async def do_money(self) -> None:
        self.deposits += 1
        kind = self.rng.choice((IntentKind.DEPOSIT, IntentKind.WITHDRAW))
        self.world.do(
            AddIntent(
                kind=kind,
                key=f"money-{self.deposits}",
                sender=ROOT,
                amount_wei=self.rng.choice(REWARDS) + self.deposits,  # no two are the same transaction
                payee=address_of("bank"),
            )
        )

    async def do_follow(self) -> None:
        with contextlib.suppress(RpcSaid, RpcUnreachable):
            await self.follow()

    async def follow(self) -> None:
        """Take in what the chain has of channels, as the pay desk does at each sweep."""
        if self.follower is None or self.rng.random() < 0.1:  # what was missed by a reorganisation is seen hourly
            self.follower = ChannelFollower(
                WorldLedger(self.world), self.between, ROOT, contract=CONTRACT, finality=Finality(self.rules)
            )
        await self.follower.follow()

    async def do_redeem(self) -> None:
        """Somebody redeems what a worker has, be it old."""
        self.holders.redeem_any(self.rng.choice(self.workers).address, self.rng)

    async def do_audit(self) -> None:
        """Between reorganisations it may find what isn't so; in the end it must not."""
        with contextlib.suppress(RpcSaid, RpcUnreachable):
            await self.auditor.audit()

    async def do_foreign(self) -> None:
        """Another program uses our key."""
        signed = signer_of("root").sign_transaction(
            {
                "type": 2,
                "chainId": CHAIN_ID,
                "nonce": self.chain.nonce(ROOT),
                "to": address_of("stranger"),
                "data": "0x",
                "value": self.rng.randrange(100),
                "gas": 21_000,
                "maxFeePerGas": 10**12,
                "maxPriorityFeePerGas": 10**12,
            }
        )
        with contextlib.suppress(RpcSaid, RpcUnreachable):  # the pool has a better one, or an outage
            await self.chain.call("eth_sendRawTransaction", "0x" + signed.raw.hex())

    async def do_round(self) -> None:
        """A round of the sender, which may be cut anywhere."""
        self.books.die = self.rng.choice((None,) * 12 + ("before", "after", "paused"))
        luck = self.rng.random()
        self.between.die_before_send = luck < 0.04
        self.between.die_after_send = 0.04 <= luck < 0.08
        self.between.silent_after_send = 0.08 <= luck < 0.12
        try:
            await self.one_round()
        except Killed:
            self.restart()
        except (RpcUnreachable, SenderLost):
            pass
        finally:
            self.books.die = None
            self.between.die_before_send = self.between.die_after_send = self.between.silent_after_send = False

    async def one_round(self) -> bool:
        """A round; the key is claimed first where it must be."""
        if self.sender is None:
            if self.chain.down:
                raise RpcUnreachable("fake", "gone")
            self.sender = self.new_sender()
        return (await self.sender.round()).moved

    def new_sender(self) -> TransactionSender:
        """Another process with the key."""
        return self.sender_kind(
            self.books,
            self.between,
            signer_of("root"),
            contract=CONTRACT,
            chain_id=CHAIN_ID,
            epoch=self.claim().epoch,
            rules=self.rules,
        )

    def claim(self) -> Sender:
        """As a starting root does."""
        anchor = self.chain.blocks[0]
        row = self.world.do(
            ClaimSender(
                address=ROOT,
                holder="root",
                chain_id=CHAIN_ID,
                contract=CONTRACT,
                nonce=self.chain.nonce(ROOT),
                anchor_number=anchor.number,
                anchor_hash=anchor.hash,
                balance_wei=0,
            )
        )
        assert isinstance(row, Sender)
        return row

    # ── healing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def heal(self) -> None:
        """Everything works again, and nobody wants anything new: what was begun must come to its end."""
        self.tell("healing")
        self.chain.down, self.chain.lag, self.chain.base_fee = False, 0, 10**9
        self.chain.give(ROOT, 1000 * ETHER)
        self.leases.clear()
        left = [task for task in self.tasks if self.world.task(task).status not in TERMINAL]
        if left:
            self.world.cancel(*left)
        for _ in range(HEALING_MOST):
            self.world.later(60.0)
            await self.rounds()
            self.follower = None
            await self.follow()
            final = await Finality(self.rules).look(self.chain)
            seen = all((each.seen_number or 0) <= final for each in self.world.reader.channels(ROOT))
            row = self.world.reader.sender(ROOT)
            if row is not None and row.stopped is not None:
                assert self.foreign or self.rules.doubt_s == 0, row.stopped
                nonce = self.chain.nonce(ROOT)
                self.world.do(ResumeSender(address=ROOT, next_nonce=nonce))
            self.world.do(RetryParked(address=ROOT))
            self.chain.mine()
            if seen and self.is_quiet():  # the chain is as long again as what was seen of it
                return
        raise AssertionError(f"it didn't come to an end: {[each for each in self.intents() if not ended(each)][:3]}")

    async def rounds(self) -> None:
        """Let the sender work until nothing moves."""
        for _ in range(ROUNDS_MOST):
            if not await self.one_round():
                return
        raise AssertionError("the sender never rests")

    def is_quiet(self) -> bool:
        """Whether nothing is left to do, also for those who only watch."""
        return all(ended(intent) for intent in self.intents()) and not self.world.value(
            "SELECT count(*) FROM transactions WHERE state IN ('signed', 'sent', 'mined', 'foreign')"
        )

    def intents(self) -> list[Intent]:
        """All of them."""
        return self.world.reader.intents(ROOT)

    # ── what must hold ────────────────────────────────────────────────────────────────────────────────────────────

    def check_sent(self, raw: str) -> None:
        """Whatever is sent was stored before, and one intent has one nonce, until that brought nothing for good."""
        with self.world.reading.connect() as connection:
            found = connection.execute(SENT, {"raw": bytes.fromhex(raw[2:]), "fund": escrow.fund(())[:4]}).all()
        assert len(found) == 1, "bytes were sent that aren't in the ledger"
        nonce, state, others = found[0]
        assert others is None, f"what nonce {nonce} ({state}) does is under way with nonce {others} too"

    def check_signed(self, entry: Signed) -> None:
        """A payment is signed only when its funding is final."""
        state = {(each.kind.slot, each.key): each.state for each in self.intents()}
        by_number = {each.n: each for each in self.intents()}
        for item in entry.items:
            if item.kind in (IntentKind.COMPLETE, IntentKind.FAIL):
                assert state["create", by_number[item.n].key] is IntentState.DONE

    def is_final(self, nonce: int) -> bool:
        """Whether the ledger says so of a transaction."""
        return self.world.value(f"SELECT state FROM transactions WHERE nonce = {int(nonce)}") == "final"  # noqa: S608

    def check_flags_now(self) -> None:
        """At every moment a flag stands exactly as long as what it rests on."""
        with self.world.reading.connect() as connection:
            wrong = connection.execute(WRONG_FLAGS).one()
        assert not any(wrong), f"tasks show on_chain, paid or refunded wrongly: {wrong}"

    def check_finalized(self, entry: Finalized) -> None:
        """A verdict rests on a block that is deep enough."""
        deep = self.chain.blocks[: max(0, len(self.chain.blocks) - self.rules.finality_blocks)]
        if self.rules.finalized_tag and self.chain.finality_blocks is not None:
            deep = self.chain.blocks[: self.chain.finalized + 1]
        found = [
            block.receipts[hash_]["status"] == "0x1"
            for block in deep
            for hash_ in block.transactions
            if (self.chain.known[hash_].sender, self.chain.known[hash_].nonce) == (ROOT, entry.nonce)
        ]
        assert found == [entry.ok], "a verdict was given before it was final"

    async def check_audit(self) -> None:
        """The audit that has seen all of this life finds that ledger and chain are equal to the wei."""
        for _ in range(2):  # a walk that began in the chaos ends, and then a whole one
            report = await self.auditor.audit()
            while report.counted_block < report.block:
                report = await self.auditor.audit()
        assert report.differences == (), report.differences
        assert report.open_wei == 0
        assert report.balance_wei == self.chain.balance(ROOT)

    async def check(self) -> None:
        """Ledger and chain are equal to the wei; each (task, generation) was settled exactly once."""
        chain, intents = self.chain, self.intents()
        chain.check_solvent()
        events = [event for event in chain.events() if ROOT in (event.args.get("requester"), event.args.get("account"))]
        await self.check_audit()
        owed: Counter[str] = Counter()
        settled: Counter[str] = Counter()
        for intent in intents:
            if intent.kind is IntentKind.COMPLETE and intent.state is IntentState.DONE:
                owed[intent.payee or ""] += intent.amount_wei
            if intent.kind.slot == "settle" and intent.state is IntentState.DONE:
                settled[intent.key] += 1
        withdrawn = [event.args["amount"] for event in events if event.name == "Withdrawn"]
        assert sorted(withdrawn) == sorted(
            each.amount_wei for each in intents if each.kind is IntentKind.WITHDRAW and each.state is IntentState.DONE
        )
        for worker in self.workers:
            had = chain.ether(worker.address) + chain.balance(worker.address)
            assert had == owed[worker.address] + chain.channel(ROOT, worker.address).settled_wei
        fundings = [intent for intent in intents if intent.kind is IntentKind.CREATE]
        for funding in fundings:
            on_chain = chain.task(ROOT, chain_task_id(funding.task or "", funding.generation or 0)).state
            if funding.state is IntentState.DONE:
                assert settled[funding.key] == 1
            else:
                assert (funding.state, on_chain, settled[funding.key]) == (IntentState.VOID, TaskState.NONE, 0)
        assert sum(settled.values()) == sum(event.name == "TaskCreated" for event in events)
        self.check_flags({funding.key: funding for funding in fundings})
        if self.by_voucher:
            await self.check_vouchers()

    async def check_vouchers(self) -> None:
        """Whoever redeems what was earned on channels gets all of it, and the ledger sees that."""
        for worker in self.workers:
            self.holders.check(worker.address)
        self.chain.check_solvent()
        for _ in range(self.rules.finality_blocks + (self.chain.finality_blocks or 0)):
            self.chain.mine()
        await self.follow()
        for task in self.by_channel():
            view = self.world.task(task)
            done = view.status == Status.COMPLETED
            assert (view.on_chain is not None, view.paid is not None, view.refunded) == (done, done, None), view
        await self.check_audit()

    def by_channel(self) -> list[TaskId]:
        """The tasks that are settled by vouchers."""
        with self.world.reading.connect() as connection:
            found = connection.execute(
                text("SELECT t.id FROM tasks t JOIN jobs j ON j.n = t.job WHERE j.settle = 'channel'")
            )
            return list(found.scalars())

    def check_flags(self, fundings: dict[str, Intent]) -> None:
        """What owners are shown is what the chain has."""
        channel = set(self.by_channel())
        for task in [each for each in self.tasks if each not in channel]:
            view, generation = self.world.task(task), self.world.row(task).funding_generation
            funded = fundings[f"{task}:{generation}"].state is IntentState.DONE
            paid, refunded = view.paid is not None, view.refunded is not None
            if view.status == Status.COMPLETED:
                assert (funded, paid, refunded) == (True, True, False), view
            else:
                assert (paid, refunded) == (False, funded), view
            assert (view.on_chain is not None) == funded, view
        paid_tasks = sum(self.world.task(task).paid is not None for task in self.tasks)
        self.counts["paid"] = paid_tasks


def ended(intent: Intent) -> bool:
    """Whether nothing more becomes of it. A withdrawal of more than there is waits for ever, by right."""
    return intent.state in (IntentState.DONE, IntentState.VOID) or intent.kind is IntentKind.WITHDRAW
