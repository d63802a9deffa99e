"""What a task's moves mean in money, and what the pay desk writes. The chain itself isn't known here.

Two rules make the ledger one of the two locks against paying twice. An intent is written in the *same transaction* as
the move that causes it, and there is one settling intent for each generation of a task, be it a payment or a refund.
Whoever signs holds the sender's epoch, and takes a nonce for a batch of queued intents in one transaction.

``Purse`` is fed by ``Unit.record`` and writes at ``Unit.flush``; the functions below answer the operations of
``money_ops``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec
import orjson

from rendezvous.ledger.allowances import give_back
from rendezvous.ledger.channels import Earned, NewIntent, accept
from rendezvous.ledger.faults import StatementFailed
from rendezvous.ledger.money_ops import (
    AddIntent,
    Attempt,
    Buried,
    ClaimSender,
    Deferred,
    Entry,
    Filled,
    Finalized,
    Foreign,
    IntentKind,
    IntentState,
    ItemOutcome,
    Mined,
    Record,
    Reorged,
    Replaced,
    ResumeSender,
    RetryParked,
    Sender,
    SenderHeld,
    Sent,
    Signed,
    Stopped,
    TxState,
    Verdict,
)
from swarm.model import TERMINAL, Actor, Address, Move, Reason, Status, TaskId, Wei

if TYPE_CHECKING:
    from rendezvous.ledger.rows import Job, TaskRow
    from rendezvous.ledger.unit import Unit

__all__ = [
    "CLAIM_S",
    "TRIES_MOST",
    "Purse",
    "add_intent",
    "claim_sender",
    "honours",
    "new_intent",
    "record",
    "resume_sender",
    "retry_parked",
    "task_key",
]

#: A claim on a sender outlives its holder by this much, seconds: six missed sweeps.
CLAIM_S: Final = 60.0
#: An intent that was named so often as impossible is parked.
TRIES_MOST: Final = 3


def task_key(task: TaskId, generation: int) -> str:
    """The key of a task's intents."""
    return f"{task}:{generation}"


class Purse:
    """What the moves of one transaction mean in money.

    Args:
        payer: whose key funds new tasks; None where nobody pays.
    """

    def __init__(self, *, payer: Address | None) -> None:
        self._payer: Final = payer
        self._fundings: list[tuple[TaskId, int, str]] = []
        self._settlements: list[tuple[TaskId, int, IntentKind, float | None]] = []
        self._replayed: list[TaskId] = []
        self._earned: list[Earned] = []
        self._ended: list[tuple[TaskId, int]] = []
        #: The workers (their numbers) that earned something by this transaction that is paid for by a voucher.
        self.earners: Final[set[int]] = set()

    def __bool__(self) -> bool:
        return bool(self._fundings or self._settlements or self._earned or self._ended)

    def note(self, row: TaskRow, move: Move, job: Job) -> None:
        """Note a move of a task that has a reward."""
        if job.on_channels:
            self._note_on_channel(row)
        elif move in (Move.SUBMIT, Move.REPLAY):
            self._fundings.append((row.id, row.funding_generation, row.reward_wei))
            if move is Move.REPLAY:
                self._replayed.append(row.id)
        elif row.status in TERMINAL:
            paying = row.status is Status.COMPLETED
            if not paying or row.accepted is not None:
                kind = IntentKind.COMPLETE if paying else IntentKind.FAIL
                # A refund waits for a result that may still be on its way to a task that was just cancelled.
                not_before = row.lease_until if move is Move.CANCEL else None
                self._settlements.append((row.id, row.funding_generation, kind, not_before))

    def _note_on_channel(self, row: TaskRow) -> None:
        """Accepted work is owed at once; for other tasks nothing was ever locked."""
        if row.status is not Status.COMPLETED:
            if row.status in TERMINAL:
                self._ended.append((row.id, row.funding_generation))
        elif row.accepted is not None and row.worker is not None and row.result is not None:
            self.earners.add(row.worker)
            self._earned.append(
                Earned(
                    task=row.id,
                    generation=row.funding_generation,
                    job=row.job,
                    worker=row.worker,
                    reward_wei=int(row.reward_wei),
                    result=row.result,
                )
            )

    def write(self, unit: Unit) -> None:
        """Write the intents and vouchers; the tasks' rows are written already.

        Raises:
            StatementFailed: a funding or a voucher was there already.
        """
        connection, statements, now = unit.connection, unit.statements.money, unit.now

        def number() -> int:
            return unit.next("intent")

        def give_back_charge(task: TaskId, generation: int) -> None:
            give_back(connection, unit.statements.allowances, task, generation, at=now)

        earned, self._earned = self._earned, []
        ended, self._ended = self._ended, []
        if earned and self._payer is not None:
            accept(unit, self._payer, earned, new_intent(unit))
        for task, generation in ended:
            give_back_charge(task, generation)
        fundings, self._fundings = self._fundings, []
        settlements, self._settlements = self._settlements, []
        replayed, self._replayed = self._replayed, []
        connection.many(statements.clear_flags, [(task,) for task in replayed])
        if self._payer is not None:
            rows = [
                _intent(
                    number(),
                    IntentKind.CREATE,
                    task_key(task, generation),
                    self._payer,
                    amount_wei=reward_wei,
                    task=task,
                    generation=generation,
                    now=now,
                )
                for task, generation, reward_wei in fundings
            ]
            if connection.many(statements.insert_intent, rows) != len(rows):
                raise StatementFailed("a task was to be funded twice in one generation")
        for task, generation, kind, not_before in settlements:
            key = task_key(task, generation)
            if kind is IntentKind.FAIL and connection.run(statements.void_funding, now, key):
                give_back_charge(task, generation)
                continue
            if kind is IntentKind.COMPLETE and connection.run(statements.pay_instead, key):
                continue
            settled = connection.run(statements.insert_settlement, number(), kind.value, not_before, now, key)
            if kind is IntentKind.FAIL and not settled:  # its funding was given up, or never asked for
                give_back_charge(task, generation)


def honours(unit: Unit, row: TaskRow, worker: int, fence: int) -> bool:
    """Whether a result for a cancelled task counts nevertheless.

    It does if the worker's lease would still run, the task was funded, and nobody has signed its refund yet.
    """
    late = row.lease_until is None or row.lease_until <= unit.now
    if row.status is not Status.CANCELLED or (row.worker, row.fence) != (worker, fence) or late:
        return False
    if row.reward_wei != "0" and unit.memory.jobs[row.job].on_channels:
        return True  # nothing was taken back from anybody, and the worker was promised its reward
    key = task_key(row.id, row.funding_generation)
    return bool(unit.connection.rows(unit.statements.money.open_refund, key))


def new_intent(unit: Unit) -> NewIntent:
    """How an intent is made that isn't a task's."""

    def make(
        kind: IntentKind,
        key: str,
        sender: Address,
        amount_wei: Wei,
        payee: Address,
        *,
        not_before: float | None = None,
    ) -> None:
        row = _intent(
            unit.next("intent"),
            kind,
            key,
            sender,
            amount_wei=str(amount_wei),
            payee=payee,
            not_before=not_before,
            now=unit.now,
        )
        if unit.connection.run(unit.statements.money.insert_intent, *row) != 1:
            raise StatementFailed(f"{kind} {key} was asked for already")

    return make


def _intent(
    n: int,
    kind: IntentKind,
    key: str,
    sender: Address,
    *,
    amount_wei: str,
    now: float,
    task: TaskId | None = None,
    generation: int | None = None,
    payee: Address | None = None,
    not_before: float | None = None,
) -> tuple[Any, ...]:
    """A new row of ``intents``, in the order of its columns."""
    state = IntentState.QUEUED.value
    head = (n, kind.slot, key, kind.value, sender, task, generation, amount_wei, payee, None, state)
    return (*head, None, 0, 0, not_before, None, now, None)


# ── who signs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def claim_sender(unit: Unit, op: ClaimSender) -> Sender | SenderHeld:
    """Give the key to this holder, unless another's claim still runs."""
    connection, statements = unit.connection, unit.statements.money
    found = connection.rows(statements.sender, op.address)
    until = unit.now + CLAIM_S
    if not found:
        connection.run(
            statements.insert_sender,
            op.address,
            op.chain_id,
            op.contract,
            1,
            op.holder,
            until,
            op.nonce,
            op.anchor_number,
            op.anchor_hash,
            op.anchor_number,
            str(op.balance_wei),
            None,
            None,
        )
    else:
        held = _held(found[0], now=unit.now)
        if held.holder not in (None, op.holder) and held.for_s > 0 and not op.takes_over:
            return held
        connection.run(statements.claim_sender, op.holder, until, op.address)
    return _sender(connection.rows(statements.sender, op.address)[0])


def _sender(row: Any) -> Sender:
    return Sender(
        address=row[0],
        chain_id=row[1],
        contract=row[2],
        epoch=row[3],
        next_nonce=row[6],
        anchor_number=row[7],
        anchor_hash=row[8],
        since_number=row[9],
        since_balance_wei=int(row[10]),
        stopped=row[11],
    )


def _held(row: Any, *, now: float) -> SenderHeld:
    return SenderHeld(holder=row[4], for_s=max(0.0, row[5] - now))


def resume_sender(unit: Unit, op: ResumeSender) -> bool:
    """Let a stopped sender sign again."""
    found = unit.connection.rows(unit.statements.money.sender, op.address)
    if not found:
        return False
    nonce = max(op.next_nonce, _sender(found[0]).next_nonce)
    return unit.connection.run(unit.statements.money.resume_sender, nonce, op.address) == 1


# ── what is asked for ─────────────────────────────────────────────────────────────────────────────────────────────


def add_intent(unit: Unit, op: AddIntent) -> bool:
    """Ask for a deposit or a withdrawal."""
    row = _intent(
        unit.next("intent"),
        op.kind,
        op.key,
        op.sender,
        amount_wei=str(op.amount_wei),
        payee=op.payee,
        now=unit.now,
    )
    return unit.connection.run(unit.statements.money.insert_intent, *row) == 1


def retry_parked(unit: Unit, op: RetryParked) -> int:
    """Put parked intents back into the queue."""
    return unit.connection.run(unit.statements.money.retry_parked, op.address)


# ── what the sender writes ────────────────────────────────────────────────────────────────────────────────────────


def record(unit: Unit, op: Record) -> tuple[bool, ...] | SenderHeld:
    """Write what the sender of this epoch does and sees, unless it isn't the sender any more."""
    statements = unit.statements.money
    if not unit.connection.run(statements.hold_sender, unit.now + CLAIM_S, op.address, op.epoch):
        found = unit.connection.rows(statements.sender, op.address)
        return _held(found[0], now=unit.now) if found else SenderHeld(holder=None, for_s=0.0)
    books = _Books(unit, op.address, op.epoch)
    return tuple(books.write(entry) for entry in op.entries)


class _Books:
    """The entries of one record, one after another."""

    def __init__(self, unit: Unit, address: Address, epoch: int) -> None:
        self._unit: Final = unit
        self._connection: Final = unit.connection
        self._statements: Final = unit.statements.money
        self._address: Final = address
        self._epoch: Final = epoch
        self._now: Final = unit.now

    def write(self, entry: Entry) -> bool:
        """Write one entry; False where the state isn't what it was made for."""
        match entry:
            case Signed():
                return self._sign(entry)
            case Replaced():
                return self._replace(entry)
            case Filled():
                return self._fill(entry)
            case Sent():
                return self._mark(self._statements.mark_sent, entry.nonce, self._now)
            case Mined():
                where = (entry.number, entry.block_hash, entry.hash)
                return self._mark(self._statements.mark_mined, entry.nonce, *where)
            case Reorged():
                return self._reorg(entry)
            case Finalized():
                return self._finalize(entry)
            case Deferred():
                self._judge(entry.outcomes)
                return True
            case Foreign():
                return self._foreign(entry)
            case Stopped():
                return self._stop(entry.reason)
            case Buried():
                return self._bury(entry)
            case _:
                assert_never(entry)

    def _mark(self, statement: Any, nonce: int, *values: Any) -> bool:
        return self._connection.run(statement, *values, self._address, nonce, self._epoch) == 1

    def _sign(self, entry: Signed) -> bool:
        connection, statements = self._connection, self._statements
        wanted = {item.n: item.kind.value for item in entry.items}
        ready = connection.rows(statements.signable, orjson.dumps(list(wanted)).decode(), self._address)
        if dict(map(tuple, ready)) != wanted:
            return False  # since the book was read one was called off, or its funding was taken back
        if not connection.run(statements.take_nonce, self._address, self._epoch, entry.nonce):
            return False
        inserted = connection.run(
            statements.insert_transaction,
            self._address,
            entry.nonce,
            self._epoch,
            TxState.SIGNED.value,
            entry.data,
            str(entry.value_wei),
            str(entry.draw_wei),
            entry.gas,
            self._now,
            entry.block,
            None,
            None,
            None,
            None,
            None,
        )
        signed = connection.many(
            statements.sign_intent, [(entry.nonce, n, kind, self._address) for n, kind in wanted.items()]
        )
        if inserted != 1 or signed != len(wanted):
            raise StatementFailed(f"nonce {entry.nonce} has a transaction already, or an intent was signed meanwhile")
        self._keep(entry.nonce, entry.attempt)
        return True

    def _keep(self, nonce: int, attempt: Attempt) -> None:
        values = (attempt.number, attempt.hash, attempt.raw, str(attempt.max_fee_wei), str(attempt.tip_wei), self._now)
        if self._connection.run(self._statements.insert_attempt, self._address, nonce, *values) != 1:
            raise StatementFailed(f"attempt {attempt.number} of nonce {nonce} is there already")

    def _replace(self, entry: Replaced) -> bool:
        if not self._mark(self._statements.mark_signed_again, entry.nonce, entry.block):
            return False
        self._keep(entry.nonce, entry.attempt)
        return True

    def _fill(self, entry: Filled) -> bool:
        statements = self._statements
        values = (b"", "0", entry.gas, self._now, entry.block)
        if not self._mark(statements.empty, entry.nonce, *values):
            head = (self._address, entry.nonce, self._epoch, TxState.SIGNED.value, b"", "0", "0", entry.gas)
            row = (*head, self._now, entry.block, None, None, None, None, None)
            if not self._connection.run(statements.insert_transaction, *row):
                return False
        found = self._connection.rows(statements.last_attempt, self._address, entry.nonce)
        number = 0 if found[0][0] is None else found[0][0] + 1
        self._keep(entry.nonce, msgspec.structs.replace(entry.attempt, number=number))
        return True

    def _finalize(self, entry: Finalized) -> bool:
        if not entry.ok:
            if not self._mark(self._statements.mark_reverted, entry.nonce, self._now):
                return False
            self._judge(entry.outcomes)
            return True
        if not self._mark(self._statements.mark_final, entry.nonce, self._now):
            return False
        rows = self._connection.rows(self._statements.intents_of, self._address, entry.nonce)
        self._connection.run(self._statements.finish_intents, self._now, self._address, entry.nonce)
        for _n, kind, _state, task, generation, payee in rows:
            self._flag(IntentKind(kind), task, generation, self._now)
            self._look_again(kind, payee)
        return True

    def _look_again(self, kind: str, payee: Address | None) -> None:
        """What was earned while a funding was under way may want another one, once the channel is seen to hold it."""
        if kind == IntentKind.FUND:
            self._connection.run(self._unit.statements.channels.unsee, self._address, payee)

    def _flag(self, kind: IntentKind, task: TaskId | None, generation: int | None, at: float | None) -> None:
        flag = self._statements.flags.get(kind)
        if flag is not None:
            self._connection.run(flag, at, task, generation)
        if kind is IntentKind.FAIL:
            self._give_back(task, generation, at)

    def _give_back(self, task: TaskId | None, generation: int | None, at: float | None) -> None:
        charged = self._unit.statements.allowances
        give_back(self._connection, charged, task or "", generation or 0, at=at)

    def _reorg(self, entry: Reorged) -> bool:
        if not self._mark(self._statements.mark_reorged, entry.nonce):
            return False
        rows = self._connection.rows(self._statements.intents_of, self._address, entry.nonce)
        self._connection.run(self._statements.unfinish_intents, self._address, entry.nonce)
        for _n, kind, state, task, generation, _payee in rows:
            if state == IntentState.DONE:
                self._flag(IntentKind(kind), task, generation, None)
        return True

    def _foreign(self, entry: Foreign) -> bool:
        if not self._mark(self._statements.mark_foreign, entry.nonce):
            return False
        self._stop(entry.reason)
        if entry.outcomes is not None:
            self._mark(self._statements.mark_abandoned, entry.nonce, self._now)
            self._judge(entry.outcomes)
        return True

    def _bury(self, entry: Buried) -> bool:
        if not self._mark(self._statements.mark_buried, entry.nonce):
            return False
        where = (entry.number, entry.block_hash)
        self._connection.run(self._statements.move_anchor, *where, self._address, self._epoch)
        return True

    def _stop(self, reason: str) -> bool:
        values = (reason, self._now, self._address, self._epoch)
        return self._connection.run(self._statements.stop_sender, *values) == 1

    def _judge(self, outcomes: tuple[ItemOutcome, ...]) -> None:
        for outcome in outcomes:
            self._judge_one(outcome)

    def _judge_one(self, outcome: ItemOutcome) -> None:
        found = self._connection.rows(self._statements.intent_of, outcome.n, self._address)
        if not found or found[0][1] not in (IntentState.QUEUED, IntentState.SIGNED):
            return
        kind, _state, key, task, generation, tries, payee = found[0]
        state = IntentState.QUEUED
        if outcome.verdict is Verdict.DONE:
            state = IntentState.DONE
        elif kind == IntentKind.CREATE and self._connection.run(self._statements.void_refund, self._now, key):
            state = IntentState.VOID  # its task ended without a result: it needs no funding any more
        elif outcome.verdict is Verdict.NAMED and tries + 1 >= TRIES_MOST:
            state = IntentState.PARKED
        ended = state in (IntentState.DONE, IntentState.VOID)
        self._connection.run(
            self._statements.judge_intent,
            state.value,
            int(outcome.verdict is Verdict.NAMED),
            int(outcome.verdict is Verdict.DELAYED),
            self._now + outcome.retry_after_s if outcome.retry_after_s and not ended else None,
            outcome.note,
            self._now if ended else None,
            outcome.n,
            self._address,
        )
        if state is IntentState.DONE:
            self._flag(IntentKind(kind), task, generation, self._now)
            self._look_again(kind, payee)
        elif state is IntentState.VOID:
            self._give_back(task, generation, self._now)
        elif state is IntentState.PARKED and kind == IntentKind.CREATE:
            self._funding_failed(task, generation, outcome.note)

    def _funding_failed(self, task: TaskId, generation: int, detail: str | None) -> None:
        """Grant it to nobody any more; one that was completed already stays, and is owed."""
        row = self._unit.tasks_by_id([task]).get(task)
        if row is None or row.status in TERMINAL or row.funding_generation != generation:
            return
        self._unit.touch(row)
        row.reason, row.detail = Reason.FUNDING_FAILED.value, detail
        row.lease_until = row.wake_at = None
        self._unit.move(row, Move.UNFUND, Status.FAILED, Actor.LEDGER, reason=Reason.FUNDING_FAILED, detail=detail)
