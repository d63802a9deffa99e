"""What to say to the door, and what to do about its answer: a state machine without I/O.

Values and a clock come in, turns and effects go out, so that the simulation drives the very code that runs. The clock
is the worker's own (seconds since boot, sleep included); it only decides when to ask. A lease is a duration that runs
from when the asking turn was first *sent*: the door began to count later, so we always stop earlier than it does.

Rules (DESIGN §4, §7): one turn is under way at a time; it is repeated by number, with the same content, until it is
answered. It leaves when there is something to say, and at least every ``BEAT_S``. A slot is taken from the grant until
the result is ready to be reported. This module knows no sockets, no files and no executors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs
import msgspec

from swarm.model import RefusalCode, TaskId
from swarm.turn_wire import (
    Done,
    Failed,
    Grant,
    GrantPush,
    Held,
    Outcome,
    Released,
    SignedVoucher,
    Stats,
    Turn,
    TurnAnswer,
)
from swarm.wire import MAX_INT, MAX_SLOTS, Announcement, ErrorBody, Hello
from swarm.worker.choose import OfferBook
from swarm.worker.effects import Effect, Entry, Promised, Settled, Shelved, Start, Stop, StopReason, Verdict
from swarm.worker.held import Lease, Stage
from swarm.worker.reports import MALFORMED, STALE, TRANSIENT, Report

__all__ = ["BEAT_S", "Lease", "Stage", "Turns"]

#: The heartbeat (DESIGN §4).
BEAT_S: Final = 10.0
#: A renewal that an answer passed over is asked for again after this share of the lease, not in a tight loop.
RENEW_AGAIN_SHARE: Final = 1 / 12
#: Roots say something every 10 s; after three of those gossip doesn't reach us (DESIGN §5).
GOSSIP_SILENT_S: Final = 30.0
#: The door pushes by a turn that it has heard: the one under way or the one before; more would be dated for nothing.
TURNS_DATED: Final = 4
#: Outcomes in one turn: half of what the door takes, so that inline manifests of 4 KiB stay below its body cap.
MAX_REPORTS: Final = MAX_SLOTS
#: Whoever hears that another boot of its has spoken since, and lives, begins a new one: a turn of an earlier boot was
#: held up, and came as news. No more often than this, since two machines with one identity would take each other's
#: leases in turn, seconds.
BEGIN_AGAIN_S: Final = 60.0
#: First and last wait before an outcome is reported again that the door couldn't take just now.
REPORT_AGAIN_S: Final = 1.0
REPORT_AGAIN_MAX_S: Final = 60.0
#: A door that asks for a longer wait is asked again after this: a mistake or a lie must not silence a worker for good.
LONGEST_WAIT_S: Final = 300.0
#: With so much waiting to be said (twice what a worker can hold) a grant that it has no slot for isn't even given back:
#: its lease runs out.
MAX_UNSAID: Final = 2 * MAX_SLOTS


@attrs.frozen(kw_only=True)
class _Open:
    """The turn that is under way."""

    turn: Turn
    sent_at: float
    reports: tuple[Report, ...]


class Turns:
    """The worker's side of the turn.

    Args:
        boot: a fresh id a start.
        hello: what this worker is; said in the first turn and after each reconnection.
        instance: the id of the data directory.
        now: the clock, seconds.
        want_limit: how many others it takes where the offers it asks for are gone; None: as many as fit.
    """

    def __init__(self, *, boot: str, hello: Hello, instance: str, now: float, want_limit: int | None = None) -> None:
        self.boot = boot
        self._first_boot: Final = boot
        self._boots = 1
        self._began_again_at = -math.inf
        self.hello = hello
        self.slots = hello.slots
        self.offers = OfferBook(hello, instance=instance)
        self.want_limit = want_limit
        #: Never hold more than this many tasks at once, below ``slots`` while this worker is on probation.
        self.ask_limit: int | None = None
        self.paused: str | None = None
        self.live_workers = 0
        self.spread_s = 0.0
        self.roots: tuple[str, ...] = ()
        #: The amount of the last voucher that was taken, by payer; replaced whole.
        self.vouchers_seen: dict[str, str] = {}
        self._voucher: SignedVoucher | None = None
        self.draining = False
        self.answered_at: float | None = None
        self._leases: dict[int, Lease] = {}
        self._reports: dict[tuple[TaskId, int], Report] = {}
        self._open: _Open | None = None
        self._n = 0
        self._sent_at = now - BEAT_S
        #: When the latest turns were first sent, by number: pushed leases are counted from there.
        self._sent: dict[int, float] = {}
        self._repeat_at = -math.inf
        self._say_hello = True
        self._hastened = False
        self._heard_at = -math.inf
        #: Our own reasons not to ask, and until when.
        self._holds: dict[str, float] = {}
        #: Until when the door asked us to wait; None where it didn't.
        self._asked_until: float | None = None
        self._stats_at = -math.inf

    # ── what others tell it ───────────────────────────────────────────────────────────────────────────────────────

    def hear(self, announcement: Announcement, now: float) -> None:
        """Take in gossip; a gap or a new epoch hastens the next turn."""
        self._heard_at = now
        if self.offers.hear(announcement, now, held={lease.task for lease in self._leases.values()}):
            self._hastened = True

    def took_voucher(self, voucher: SignedVoucher) -> None:
        """A voucher was checked and kept: the next turn says so."""
        self.vouchers_seen = {**self.vouchers_seen, voucher.payer: voucher.cumulative_wei}
        self._voucher = voucher

    def nudge(self) -> None:
        """There may be work: take a turn soon."""
        self._hastened = True

    def reconnected(self) -> None:
        """The door may not know us any more: say hello again."""
        self._say_hello = True

    def pause(self, reason: str | None) -> None:
        """The swarm was paused, or resumed (None)."""
        if self.paused is not None and reason is None:
            self._hastened = True
        self.paused = reason

    def hold(self, why: str, *, until: float = math.inf) -> None:
        """Stop asking for tasks, for a reason, until a moment or ``resume``."""
        self._holds[why] = until

    def resume(self, why: str) -> bool:
        """End a hold; asks soon if it was the last one. False where there was none."""
        if self._holds.pop(why, None) is None:
            return False
        self._hastened = True
        return True

    def cancel(self, tasks: Iterable[TaskId]) -> list[Effect]:
        """Tasks were called off: stop them. A result that is already there is still reported."""
        gone = set(tasks)
        self.offers.close(gone)
        return [
            self._stop(lease, StopReason.CANCELLED)
            for lease in list(self._leases.values())
            if lease.task in gone and lease.stage is not Stage.REPORTING
        ]

    # ── what the slots tell it ────────────────────────────────────────────────────────────────────────────────────

    def started(self, fence: int, task: TaskId | None = None) -> bool:
        """A slot begins a grant. False: the lease is gone (or another ledger's, of the same fence), leave it."""
        lease = self._leases.get(fence)
        if task is not None and lease is not None and lease.task != task:
            return False
        return self._advance(fence, Stage.WAITING, Stage.RUNNING)

    def executed(self, fence: int) -> bool:
        """A slot has a result, which is now stored. False: the lease is gone."""
        return self._advance(fence, Stage.RUNNING, Stage.STORING)

    def _advance(self, fence: int, source: Stage, target: Stage) -> bool:
        lease = self._leases.get(fence)
        if lease is None or lease.stage is not source:
            return False
        lease.stage = target
        return True

    def stored(self, fence: int) -> bool:
        """A kept result is used for a new grant: it needs no execution. False: the lease is gone."""
        return self._advance(fence, Stage.WAITING, Stage.STORING)

    def report(self, entry: Entry, now: float) -> bool:
        """Say an outcome in the next turn. False: its lease is gone, so it isn't said."""
        lease = self._leases.get(entry.fence)
        if lease is None or lease.task != entry.task:
            return False
        lease.stage = Stage.REPORTING
        self._say(entry, now)
        return True

    def adopt(self, entry: Done | Failed, now: float) -> None:
        """Say an outcome that an earlier boot kept, with its old fence."""
        self._say(entry, now)

    def _say(self, entry: Entry, now: float) -> None:
        self._reports[entry.task, entry.fence] = Report(entry=entry, not_before=now)

    def give_back(self, fence: int, now: float, why: StopReason = StopReason.RELEASED) -> list[Effect]:
        """Release a lease; the attempt isn't counted."""
        lease = self._leases.get(fence)
        if lease is None or lease.stage is Stage.REPORTING:
            return []
        return [self._release(lease, now, why)]

    def drain(self, now: float) -> list[Effect]:
        """Ask for no more, and give back what hasn't begun."""
        self.draining = True
        self._hastened = True
        return [
            self._release(lease, now, StopReason.RELEASED)
            for lease in list(self._leases.values())
            if lease.stage is Stage.WAITING
        ]

    def release_unfinished(self, now: float) -> list[Effect]:
        """Give back what has no result yet."""
        return [
            self._release(lease, now, StopReason.RELEASED)
            for lease in list(self._leases.values())
            if lease.stage in (Stage.WAITING, Stage.RUNNING)
        ]

    def release_all(self, now: float) -> list[Effect]:
        """Give back everything that has no outcome yet."""
        return [
            self._release(lease, now, StopReason.RELEASED)
            for lease in list(self._leases.values())
            if lease.stage is not Stage.REPORTING
        ]

    def _release(self, lease: Lease, now: float, why: StopReason) -> Stop:
        self._say(Released(task=lease.task, fence=lease.fence), now)
        return self._stop(lease, why)

    def _stop(self, lease: Lease, why: StopReason) -> Stop:
        self._leases.pop(lease.fence, None)
        return Stop(task=lease.task, fence=lease.fence, why=why)

    # ── what it knows ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All leases that are held."""
        return tuple(self._leases.values())

    @property
    def working(self) -> int:
        """How many slots are taken."""
        return sum(lease.stage is not Stage.REPORTING for lease in self._leases.values())

    @property
    def free(self) -> int:
        """How many slots are free."""
        return max(0, self.slots - self.working)

    @property
    def settled(self) -> bool:
        """Whether nothing is held, nothing is to be said and no answer is awaited."""
        return not self._leases and not self._reports and self._open is None

    def gossips(self, now: float) -> bool:
        """Whether gossip reaches this worker."""
        return now - self._heard_at < GOSSIP_SILENT_S

    def holding(self, now: float) -> str | None:
        """Why it isn't asking, None where it is."""
        if self.paused is not None and not self.draining:
            return f"paused: {self.paused}"
        if self._asked_until is not None and now < self._asked_until and not self.draining:
            return "asked to wait"
        return self._own_hold(now)

    def _own_hold(self, now: float) -> str | None:
        if self.draining:
            return "draining"
        return next((why for why, until in self._holds.items() if now < until), None)

    def _takeable(self, now: float) -> int:
        """How many more tasks this worker would take, whatever the door wants.

        Outcomes that the door can't take just now count as work in hand: whatever can't be put down isn't picked up.
        """
        unsaid = sum(report.tries > 0 for report in self._reports.values())
        return max(0, self._room(now) - unsaid)

    def _room(self, now: float) -> int:
        """How many more tasks there are slots for, and no reason of our own against them."""
        if self._own_hold(now) is not None:
            return 0
        limit = self.slots if self.ask_limit is None else min(self.slots, self.ask_limit)
        return max(0, limit - self.working)

    def _askable(self, now: float) -> int:
        """How many tasks it may ask for now."""
        return self._takeable(now) if self.holding(now) is None else 0

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def take_turn(self, now: float, *, stats: Callable[[], Stats] | None = None) -> Turn | None:
        """The turn to send now, None where there is nothing to say.

        While a turn is unanswered this is that very turn; the caller has one exchange under way at a time.
        """
        if self._open is not None:
            return self._open.turn if now >= self._repeat_at else None
        if not self._has_something_to_say(now):
            return None
        reports = self._due_reports(now)
        said = {report.entry.fence for report in reports}
        say_hello = self._say_hello and not any(report.alone for report in reports)
        askable = self._askable(now)
        offers = self.offers.take(now, limit=askable)
        want = askable if self.want_limit is None else min(askable, self.want_limit)
        self._n += 1
        turn = Turn(
            boot=self.boot,
            n=self._n,
            free=self._takeable(now),
            want=want,
            offers=offers,
            held=tuple(self._hold_entries(now, said)),
            done=tuple(report.entry for report in reports if isinstance(report.entry, Done)),
            failed=tuple(report.entry for report in reports if isinstance(report.entry, Failed)),
            released=tuple(report.entry for report in reports if isinstance(report.entry, Released)),
            gossip=self.gossips(now),
            hello=self.hello if say_hello else None,
            vouchers_seen=self.vouchers_seen,
            voucher=self._voucher if say_hello else None,
            stats=stats() if stats is not None and (self.draining or now - self._stats_at >= BEAT_S) else None,
        )
        if turn.stats is not None:
            self._stats_at = now
        self._say_hello = self._say_hello and not say_hello
        self._hastened = False
        self._holds = {why: until for why, until in self._holds.items() if now < until}
        if self._asked_until is not None and self._asked_until <= now:
            self._asked_until = None
        self._sent_at = self._sent[self._n] = now
        self._sent.pop(self._n - TURNS_DATED, None)
        self._repeat_at = -math.inf
        self._open = _Open(turn=turn, sent_at=now, reports=reports)
        return turn

    def _hold_entries(self, now: float, said: set[int]) -> Iterator[Held]:
        for lease in self._leases.values():
            if lease.fence in said:
                continue
            renew = now >= lease.renew_at
            if renew:
                lease.renew_at = now + lease.lease_s * RENEW_AGAIN_SHARE
            yield Held(task=lease.task, fence=lease.fence, renew=renew)

    def _due_reports(self, now: float) -> tuple[Report, ...]:
        due = [report for report in self._reports.values() if report.not_before <= now]
        alone = next((report for report in due if report.alone), None)
        return (alone,) if alone is not None else tuple(due[:MAX_REPORTS])

    def _has_something_to_say(self, now: float) -> bool:
        return self._wait_s(now) <= 0.0

    def wait_s(self, now: float) -> float:
        """Seconds until there may be something to say, where nothing is told to it before."""
        if self._open is not None:
            return max(0.0, self._repeat_at - now)
        return max(0.0, self._wait_s(now))

    def _wait_s(self, now: float) -> float:
        moments = [self._sent_at + BEAT_S]
        moments += [lease.renew_at for lease in self._leases.values()]
        moments += [report.not_before for report in self._reports.values()]
        if self._askable(now):
            due_in_s = self.offers.due_in_s(now)
            if due_in_s is not None:
                moments.append(now + due_in_s)
            if self._hastened or self._asked_until is not None or any(until <= now for until in self._holds.values()):
                moments.append(now)
        elif self.draining:
            moments += [now] if self._hastened else []
        elif self.paused is None and self.free:
            ahead = [until for until in (*self._holds.values(), self._asked_until or now) if until > now]
            moments += [max(ahead)] if ahead else []
        return min(moments) - now

    def unanswered(self, now: float, *, wait_s: float = 0.0) -> None:
        """The exchange broke off: the same turn is said again, after a wait."""
        self._repeat_at = now + wait_s

    def refused(self, error: ErrorBody, now: float) -> list[Effect]:
        """The door refused the whole turn.

        One that it can't parse is taken apart: its outcomes are said one by one, and one that is refused alone is
        dropped, so that a single bad entry never blocks the others. One whose number is stale is said again by a
        newer number, whole. Any other refusal is waited out.
        """
        opened = self._open
        if opened is None:
            return []
        if error.code == RefusalCode.STALE_TURN and self._count_on(error, opened):
            return []
        if error.code not in MALFORMED:
            wait_s = error.retry_after_s if error.retry_after_s is not None else REPORT_AGAIN_S
            self.unanswered(now, wait_s=min(wait_s, LONGEST_WAIT_S))
            return []
        self._open = None
        self._say_hello = self._say_hello or opened.turn.hello is not None
        if not opened.reports:
            self.hold("malformed", until=now + REPORT_AGAIN_MAX_S)
        effects: list[Effect] = []
        for report in opened.reports:
            if report.alone:
                effects.append(self._settle(report, Verdict.REFUSED, error=error))
            report.alone = True
        return effects

    def _count_on(self, error: ErrorBody, opened: _Open) -> bool:
        """Number on from the turn that the door knows, as after a machine was set back to an earlier image.

        What its answer granted is sent again, since the next turn doesn't hold it.
        """
        known = (error.details or {}).get("n")
        if not isinstance(known, int) or not opened.turn.n < known < MAX_INT:
            return False
        self._n = known
        self._open = None
        self._hastened = True
        self._sent_at = -math.inf
        self._say_hello = self._say_hello or opened.turn.hello is not None
        return True

    def answered(self, answer: TurnAnswer, now: float) -> list[Effect]:
        """Take in the door's answer.

        Args:
            answer: one for another number than that of the turn under way is ignored.
            now: the clock, seconds.

        Returns:
            What to do, in this order.
        """
        opened = self._open
        if opened is None or answer.n != opened.turn.n:
            return []
        self._open = None
        self.answered_at = now
        self.live_workers, self.spread_s, self.roots = answer.live_workers, answer.spread_s, answer.roots
        self.pause(answer.paused)
        effects: list[Effect] = []
        effects += self._take_outcomes(opened, answer.outcomes, now)
        for renewed in answer.renewed:
            lease = self._leases.get(renewed.fence)
            if lease is not None:
                lease.renew(sent_at=opened.sent_at, lease_s=renewed.lease_s)
        for fence in answer.lost:
            effects += self._lose(fence)
        effects += self.cancel(answer.cancelled)
        for grant in answer.grants:
            effects += self._take_grant(grant, opened.sent_at, now)
        if len(answer.grants) < min(opened.turn.free, len(opened.turn.offers) + opened.turn.want):
            self.offers.forget_heard_until(opened.sent_at)
        if answer.vouchers:
            effects.append(Promised(vouchers=answer.vouchers))
        if answer.retry_after_s is not None:
            self._asked_until = now + min(answer.retry_after_s, LONGEST_WAIT_S)
        if answer.outdated and now - self._began_again_at >= BEGIN_AGAIN_S:
            self._begin_again(now)
        return effects

    def _begin_again(self, now: float) -> None:
        self._began_again_at = now
        self._boots += 1
        self.boot = f"{self._first_boot}-{self._boots}"
        self._say_hello = self._hastened = True

    def _take_outcomes(self, opened: _Open, outcomes: Iterable[Outcome], now: float) -> Iterator[Effect]:
        answers = {(outcome.task, outcome.fence): outcome for outcome in outcomes}
        for report in opened.reports:
            outcome = answers.get((report.entry.task, report.entry.fence))
            error = outcome.error if outcome is not None else None
            if outcome is not None and error is None:
                yield self._settle(report, Verdict.TAKEN, status=outcome.status)
            elif error is None or error.code in TRANSIENT:
                report.tries += 1
                wait_s = min(REPORT_AGAIN_S * 2 ** min(report.tries - 1, 10), REPORT_AGAIN_MAX_S)
                asked_s = (error.retry_after_s if error else None) or 0.0
                report.not_before = now + max(wait_s, min(asked_s, LONGEST_WAIT_S))
            elif error.code == RefusalCode.RESULT_UNREADABLE and isinstance(report.entry, Done):
                lease = self._leases.get(report.entry.fence)
                if lease is not None:
                    lease.stage = Stage.STORING
                del self._reports[report.entry.task, report.entry.fence]
                yield Settled(entry=report.entry, verdict=Verdict.UNREADABLE, error=error)
            elif error.code == RefusalCode.SIGNATURE_INVALID and isinstance(report.entry, Done) and report.entry.proof:
                # Such as after a change of the payout address: the work counts, its receipt is lost.
                report.entry = msgspec.structs.replace(report.entry, proof=None)
                report.not_before = now
            else:
                stale = error.code in STALE and isinstance(report.entry, Done)
                yield self._settle(report, Verdict.STALE if stale else Verdict.REFUSED, error=error)

    def _settle(
        self, report: Report, verdict: Verdict, *, status: str | None = None, error: ErrorBody | None = None
    ) -> Settled:
        self._reports.pop((report.entry.task, report.entry.fence), None)
        self._leases.pop(report.entry.fence, None)
        return Settled(entry=report.entry, verdict=verdict, status=status, error=error)

    def _lose(self, fence: int) -> Iterator[Effect]:
        lease = self._leases.get(fence)
        if lease is None:
            return
        report = self._reports.pop((lease.task, fence), None)
        yield self._stop(lease, StopReason.LOST)
        if report is not None and isinstance(report.entry, Done):
            yield Shelved(entry=report.entry)

    def assigned(self, push: GrantPush, now: float) -> list[Effect]:
        """Take in tasks that the door pushed.

        Those of an earlier boot go back with its other leases, at our first turn; one that we can't date any more is
        given back.
        """
        if push.boot != self.boot:
            return []
        sent_at = self._sent.get(push.n, -math.inf)
        return [effect for grant in push.grants for effect in self._take_grant(grant, sent_at + push.after_s, now)]

    def _take_grant(self, grant: Grant, since: float, now: float) -> Iterator[Effect]:
        known = self._leases.get(grant.fence)
        task = grant.task.id
        if known is not None or (task, grant.fence) in self._reports:
            return  # sent again, since an answer was late: it is in hand
        for older in [lease for lease in self._leases.values() if lease.task == task]:
            report = self._reports.pop((task, older.fence), None)
            yield self._stop(older, StopReason.SUPERSEDED)
            if report is not None and isinstance(report.entry, Done):
                yield Shelved(entry=report.entry)
        self.offers.close((task,))
        lease = Lease(task=task, fence=grant.fence, acknowledged_at=since, lease_s=grant.lease_s, granted_at=now)
        if not self._room(now) or now >= lease.ends_at:
            if len(self._reports) < MAX_UNSAID:
                self._say(Released(task=task, fence=grant.fence), now)
            return
        self._leases[grant.fence] = lease
        yield Start(grant=grant)

    # ── the clock ─────────────────────────────────────────────────────────────────────────────────────────────────

    def overdue(self, now: float) -> list[Effect]:
        """Stop what its lease doesn't cover any more, and give back what no slot has begun in time."""
        effects: list[Effect] = []
        for lease in list(self._leases.values()):
            if now >= lease.ends_at:
                effects += self._run_out(lease, now)
            elif lease.stage is Stage.WAITING and now >= lease.start_by:
                effects.append(self._release(lease, now, StopReason.NOT_STARTED))
        return effects

    def _run_out(self, lease: Lease, now: float) -> Iterator[Effect]:
        if lease.stage is not Stage.REPORTING:
            # Said although the lease is over: where the root stalled and re-armed its leases, this ends it at once.
            yield self._release(lease, now, StopReason.UNANSWERED)
        elif lease.fence not in self._said():
            report = self._reports.pop((lease.task, lease.fence), None)
            yield self._stop(lease, StopReason.UNANSWERED)
            if report is not None and isinstance(report.entry, Done):
                yield Shelved(entry=report.entry)

    def _said(self) -> frozenset[int]:
        """The leases whose outcome is in the turn under way, so that its answer decides."""
        return frozenset(report.entry.fence for report in self._open.reports) if self._open is not None else frozenset()

    def overdue_in_s(self, now: float) -> float:
        """Seconds until ``overdue`` may have something to do."""
        said = self._said()
        moments = [
            min(lease.start_by, lease.ends_at) if lease.stage is Stage.WAITING else lease.ends_at
            for lease in self._leases.values()
            if lease.stage is not Stage.REPORTING or lease.fence not in said
        ]
        return max(0.0, min(moments, default=math.inf) - now)
