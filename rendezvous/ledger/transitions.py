"""The ledger's core: groups of operations in, answers and events out. Synchronous, and without a clock of its own.

A group is one transaction: each kind of operation is done for the whole group at once, in a fixed order of kinds, and
in arrival order within a kind. Callers wait for their answers, so operations of one group are concurrent, and any order
of them is a right one. Where a group fails it is rolled back whole and tried again one by one, so that poison hurts its
sender alone; where the database itself can't be had, all get ``LedgerUnavailable`` and nothing is half-written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import sqlalchemy as sa
import structlog
from sqlalchemy.engine import Engine

from rendezvous.ledger import acts, allowances, clock, money, people, requests
from rendezvous.ledger.act_ops import (
    Admit,
    ApproveVersion,
    Enrol,
    FailByHand,
    KeepApart,
    LiftQuarantine,
    Pause,
    PutInvite,
    PutKey,
    Quarantine,
    Resume,
    Revoke,
    SetAllowance,
    TakeBack,
)
from rendezvous.ledger.channels import adopt_voucher, see_channels
from rendezvous.ledger.grants import assign, grant, result
from rendezvous.ledger.lines import Lines
from rendezvous.ledger.memory import Fleet, Memory
from rendezvous.ledger.money_ops import (
    AddIntent,
    AdoptVoucher,
    ClaimSender,
    Record,
    ResumeSender,
    RetryParked,
    SeeChannels,
)
from rendezvous.ledger.ops import (
    Assign,
    Cancel,
    Forget,
    HearOf,
    HoldHost,
    KeepAcceptance,
    LedgerEvent,
    Op,
    Probe,
    Rearm,
    RemoveWorker,
    Replay,
    SeeWorkers,
    SetHostPace,
    Submit,
    Sweep,
    TakeTurn,
)
from rendezvous.ledger.records import take_reports
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.shared_pace import SharedPace
from rendezvous.ledger.statements import Statements
from rendezvous.ledger.submit import submit
from rendezvous.ledger.turns import begin_turns, settle
from rendezvous.ledger.unit import Unit
from rendezvous.ledger.writer import open_writer
from swarm.errors import LedgerUnavailable, SwarmError

__all__ = ["Group", "LedgerCore"]

log = structlog.get_logger()

#: Statements that were compiled, by dialect: it takes 0.1 s, which whoever opens ledgers one after another pays once.
_COMPILED: Final[dict[tuple[Any, ...], Statements]] = {}

O = TypeVar("O")  # noqa: E741 -- an operation


@attrs.frozen(kw_only=True)
class Group:
    """What became of a group.

    Args:
        answers: in the order of the operations; an exception where one failed.
        events: the history that the group wrote, in order.
    """

    answers: list[Any]
    events: list[LedgerEvent]


@attrs.frozen
class Later:
    """An answer that is put together at the end.

    Args:
        made: puts it together.
    """

    made: Callable[[], Any]


class LedgerCore:
    """The one writer of a ledger. Not for several threads.

    *Resource handling*: keeps one connection of the engine; ``close`` gives it back.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        rng: random.Random | None = None,
        settings: LedgerSettings | None = None,
        pace: SharedPace | None = None,
    ) -> None:
        self._connection: Final = open_writer(engine)
        self._statements: Final = _statements(engine.dialect)
        self._settings: Final = settings or LedgerSettings()
        self._rng: Final = rng or random.Random()  # noqa: S311 -- jitter, no secret
        self._pace: Final = pace
        self._fleet: Final = Fleet(self._settings.tier_shares)
        self._memory = Memory()
        #: Whether what is remembered may be believed in the transaction that ``take_turn`` opened; None without one.
        self._turn: bool | None = None

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()

    @property
    def session_id(self) -> int | None:
        """What the database's server calls the writing session; None without a server."""
        return self._connection.session_id

    def take_turn(self) -> None:
        """Wait until the database is ours, before a group is closed: what comes meanwhile joins it.

        The group must follow. Where the database can't be had, the group is told.
        """
        try:
            self._turn = self._connection.begin()
        except SwarmError:
            self._abandon()

    def apply(self, ops: Sequence[Op], *, now: float) -> Group:
        """Do a group of operations in one transaction.

        Args:
            ops: in order of arrival.
            now: ledger time, Unix seconds.

        Returns:
            One answer for each operation, and the events of those that were done.
        """
        try:
            return self._transact(ops, now=now)
        except LedgerUnavailable as fault:
            self._abandon()
            return Group(answers=[fault] * len(ops), events=[])
        except Exception as fault:
            # The supervision boundary of a group: poison hurts its sender alone, the others are tried one by one.
            self._abandon()
            if len(ops) == 1:
                log.warning("operation_failed", operation=type(ops[0]).__name__, exc_info=fault)
                return Group(answers=[fault], events=[])
        alone = [self.apply([op], now=now) for op in ops]
        return Group(
            answers=[answer for group in alone for answer in group.answers],
            events=[event for group in alone for event in group.events],
        )

    def _abandon(self) -> None:
        """Roll back, and believe nothing that was read or written in it."""
        self._connection.rollback()
        self._memory = Memory()
        self._turn = None

    def _transact(self, ops: Sequence[Op], *, now: float) -> Group:
        believed = self._connection.begin() if self._turn is None else self._turn
        self._turn = None
        if self._memory.too_big:
            self._memory = Memory()
        elif not believed:
            self._memory = self._memory.doubted()
            self._memory.counters = self._connection.counters
        unit = Unit(
            self._connection,
            self._statements,
            self._memory,
            self._fleet,
            settings=self._settings,
            rng=self._rng,
            now=now,
            pace=self._pace,
        )
        answers = _do(unit, ops)
        unit.finish()
        events: list[LedgerEvent] = []

        def put_together() -> None:  # other roots wait for the commit, and it needs none of this
            answers[:] = [answer.made() if isinstance(answer, Later) else answer for answer in answers]
            events.extend(unit.events())

        self._connection.commit(unit.last_event, meanwhile=put_together)
        self._fleet.count(unit.outcomes)
        return Group(answers=answers, events=events)


def _statements(dialect: sa.Dialect) -> Statements:
    """The statements of this dialect; they are the same for every ledger on it."""
    of = (dialect.name, dialect.driver, getattr(dialect, "server_version_info", None))
    known = _COMPILED.get(of)
    if known is None:
        known = _COMPILED[of] = Statements(dialect)
    return known


def _do(unit: Unit, ops: Sequence[Op]) -> list[Any]:
    """Answer the operations, kind by kind."""
    lines = Lines(unit)
    answers: list[Any] = [None] * len(ops)
    by_kind: dict[type, list[int]] = {}
    for index, op in enumerate(ops):
        by_kind.setdefault(type(op), []).append(index)

    def each(kind: type[O], do: Callable[[O], Any]) -> None:
        for index in by_kind.get(kind, ()):
            answers[index] = do(ops[index])  # type: ignore[arg-type]

    def together(kind: type[O], do: Callable[[list[O]], Sequence[Any]]) -> None:
        indices = by_kind.get(kind)
        if indices:
            for index, answer in zip(indices, do([ops[index] for index in indices]), strict=True):  # type: ignore[misc]
                answers[index] = answer

    each(PutKey, lambda op: people.put_key(unit, op))
    each(SetAllowance, lambda op: allowances.set_allowance(unit, op))
    each(KeepAcceptance, lambda op: people.keep_acceptance(unit, op))
    each(PutInvite, lambda op: people.put_invite(unit, op))
    each(Enrol, lambda op: people.enrol(unit, op))
    each(SeeWorkers, lambda op: people.see_workers(unit, op))
    each(SetHostPace, lambda op: _set_pace(lines, op))
    each(HoldHost, lambda op: lines.hold(op.host, for_s=op.for_s, why=op.why))
    each(ClaimSender, lambda op: money.claim_sender(unit, op))
    each(AddIntent, lambda op: money.add_intent(unit, op))
    each(RetryParked, lambda op: money.retry_parked(unit, op))
    each(ResumeSender, lambda op: money.resume_sender(unit, op))
    each(Record, lambda op: money.record(unit, op))
    each(Pause, lambda op: acts.pause(unit, lines, op))
    each(Resume, lambda op: acts.resume(unit, lines, op))
    each(ApproveVersion, lambda op: acts.approve(unit, op))
    each(HearOf, lambda op: unit.fleet.hear_of(op.workers))
    each(Probe, lambda _: _probe(unit))
    each(AdoptVoucher, lambda op: adopt_voucher(unit, op, money.new_intent(unit)))
    each(SeeChannels, lambda op: see_channels(unit, op, money.new_intent(unit)))
    each(Rearm, lambda _: clock.rearm(unit))
    each(Sweep, lambda _: clock.sweep(unit, lines))
    together(Submit, lambda batch: submit(unit, lines, batch))
    each(Cancel, lambda op: requests.cancel(unit, op))
    each(Replay, lambda op: requests.replay(unit, lines, op))
    each(FailByHand, lambda op: acts.fail_by_hand(unit, op))
    each(TakeBack, lambda op: acts.take_back(unit, op))
    each(Quarantine, lambda op: acts.quarantine(unit, lines, op))
    each(LiftQuarantine, lambda op: acts.lift(unit, lines, op))
    each(KeepApart, lambda op: acts.keep_apart(unit, lines, op))
    each(RemoveWorker, lambda op: people.remove_worker(unit, op))
    each(Revoke, lambda op: people.revoke(unit, op))
    each(Admit, lambda op: people.admit(unit, op))
    together(TakeTurn, lambda batch: _take_turns(unit, lines, batch))
    each(Assign, lambda op: assign(unit, lines, op))
    each(Forget, lambda op: clock.forget(unit, op))
    lines.finish()
    return answers


def _probe(unit: Unit) -> None:
    unit.next("probe")


def _set_pace(lines: Lines, op: SetHostPace) -> None:
    lines.set_pace(op.host, rate_per_s=op.rate_per_s, burst=op.burst, one_at_a_time=op.one_at_a_time)


def _take_turns(unit: Unit, lines: Lines, ops: Sequence[TakeTurn]) -> list[Any]:
    unit.flush()
    turns = begin_turns(unit, ops)
    settle(unit, lines, turns)
    unit.flush()
    take_reports(unit, lines)
    unit.flush()
    grant(unit, lines, turns)
    earners = unit.purse.earners
    return [Later(partial(result, unit, turn, earned=turn.worker.n in earners)) for turn in turns]
