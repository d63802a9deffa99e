"""Carry out what the state machine decides, and tell it what the slots did. Decisions ↔ slots, journal, log.

The one place that knows both the machine and the steps. It waits for nothing: what needs a disk is done in a nursery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
import trio

from swarm.model import Status
from swarm.turn_wire import Done, Failed, Grant, Stats
from swarm.worker.earnings import Earnings
from swarm.worker.effects import Effect, Promised, Settled, Shelved, Start, Stop, StopReason, Verdict
from swarm.worker.journal import Journal
from swarm.worker.leases import Executions
from swarm.worker.results import Broken, Deferred, Executed
from swarm.worker.selfcheck import REACHED_REASONS, SelfCheck
from swarm.worker.turns import Turns
from swarm.worker.upload import Hooks, Uploads
from swarm.worker.wake import Wake

log = structlog.get_logger()

#: After a task that can't be run now: how long it asks for nothing, doubling while that goes on.
DEFERRED_WAIT_S: Final = 0.5
DEFERRED_WAIT_MAX_S: Final = 10.0
#: Deferrals further apart than this aren't a row.
DEFERRED_ROW_S: Final = 60.0

HOLD_ROOM: Final = "there is no room for more results"
HOLD_DEFERRED: Final = "a task couldn't be run just now"
HOLD_SELF_CHECK: Final = "unrelated hosts failed in a row, so this machine's own network is suspected"


class Counters:
    """What this worker counted since its start, for its stats."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self.requests_sent = 0
        self.requests_failed = 0
        self.items = 0
        self.bytes_downloaded = 0
        self.tasks_done = 0
        self.tasks_failed = 0

    def stats(self, *, peers: int, blocks_bytes: int) -> Stats:
        """As they travel with a turn."""
        return Stats(
            uptime_s=self._clock() - self._began,
            requests_sent=self.requests_sent,
            requests_failed=self.requests_failed,
            items=self.items,
            bytes_downloaded=self.bytes_downloaded,
            tasks_done=self.tasks_done,
            tasks_failed=self.tasks_failed,
            peers=peers,
            blocks_bytes=blocks_bytes,
        )


class Dispatch:
    """Carries out what the state machine decides, and tells it what the slots did.

    Args:
        wake: poked when there may be something to say.
        leased: poked when leases may have changed.
        nursery: where what has to wait for a disk is done.
    """

    def __init__(
        self,
        turns: Turns,
        executions: Executions,
        journal: Journal,
        grants: trio.MemorySendChannel[Grant],
        counters: Counters,
        *,
        wake: Wake,
        leased: Wake,
        clock: Callable[[], float],
        nursery: trio.Nursery,
    ) -> None:
        self.uploads: Uploads
        #: Takes vouchers; None in a swarm that pays by none.
        self.earnings: Earnings | None = None
        self._turns = turns
        self.executions = executions
        self._journal = journal
        self._grants = grants
        self._counters = counters
        self._wake = wake
        self._leased = leased
        self._clock = clock
        self._nursery = nursery
        self._check = SelfCheck()
        self._deferred_wait_s = DEFERRED_WAIT_S
        self._deferred_at = -DEFERRED_ROW_S

    # ── what the machine decided ──────────────────────────────────────────────────────────────────────────────────

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry out effects, in order."""
        for effect in effects:
            if isinstance(effect, Start):
                self._start(effect.grant)
            elif isinstance(effect, Stop):
                log.info("lease_ended", task_id=effect.task, fence=effect.fence, why=effect.why)
                self.executions.stop(effect.fence, effect.why)
            elif isinstance(effect, Settled):
                self._settle(effect)
            elif isinstance(effect, Promised):
                if self.earnings is not None:
                    self._nursery.start_soon(self.earnings.take, effect.vouchers)
            else:
                self._shelve(effect)
        self._wake.poke()
        self._leased.poke()

    def _start(self, grant: Grant) -> None:
        log.debug("task_granted", task_id=grant.task.id, fence=grant.fence, via=grant.via)
        kept = self._journal.result_of(grant.task.id)
        if kept is not None and self._turns.stored(grant.fence):
            self._nursery.start_soon(self.uploads.reuse, grant, kept)
            return
        try:
            self._grants.send_nowait(grant)
        except trio.WouldBlock:  # slots are stuck behind grants that were stopped before they began
            self.apply(self._turns.give_back(grant.fence, self._clock(), StopReason.NOT_STARTED))

    def _settle(self, settled: Settled) -> None:
        entry = settled.entry
        told: dict[str, Any] = {"task_id": entry.task, "fence": entry.fence}
        if settled.error is not None:
            told |= {"code": settled.error.code, "reason": settled.error.message}
        if not isinstance(entry, (Done, Failed)):
            log.debug("lease_given_back", **told)
            return
        if self.earnings is not None:
            taken = settled.verdict is Verdict.TAKEN and settled.status == Status.COMPLETED
            if settled.verdict is not Verdict.UNREADABLE:  # said again once it is uploaded
                self.earnings.settled(entry.task, accepted=taken and isinstance(entry, Done))
        if settled.verdict is Verdict.TAKEN:
            if isinstance(entry, Done):
                self._counters.tasks_done += 1
                log.info("task_completed", **told, result=entry.cid, ran_s=round(entry.ran_s, 3))
            else:
                self._counters.tasks_failed += 1
                log.info("task_failed", **told, why=entry.reason, detail=entry.detail, now=settled.status)
            self.uploads.settled(entry)
        elif settled.verdict is Verdict.UNREADABLE and isinstance(entry, Done):
            self._nursery.start_soon(self.uploads.unreadable, entry)
        elif settled.verdict is Verdict.STALE and isinstance(entry, Done):
            log.info("result_kept", **told)
            self._nursery.start_soon(self.uploads.shelve, entry)
        else:
            log.warning("outcome_refused", **told)
            self.uploads.settled(entry)

    def _shelve(self, shelved: Shelved) -> None:
        log.info("result_kept", task_id=shelved.entry.task, fence=shelved.entry.fence, why="its lease is over")
        self._nursery.start_soon(self.uploads.shelve, shelved.entry)

    # ── what the slots did ────────────────────────────────────────────────────────────────────────────────────────

    def hooks(self) -> Hooks:
        """What the upload step is told."""
        return Hooks(
            executed=self._turns.executed,
            report=self._report,
            adopt=self._adopt,
            give_back=self._give_back,
            abandon=self._abandon,
            hold=self._turns.hold,
            resume=self._resume,
            judge=self._judge,
            succeeded=self._succeeded,
        )

    def _report(self, report: Done | Failed) -> bool:
        said = self._turns.report(report, self._clock())
        self._wake.poke()
        return said

    def _adopt(self, report: Done | Failed) -> None:
        self._turns.adopt(report, self._clock())
        self._wake.poke()

    def _resume(self, why: str) -> None:
        if self._turns.resume(why):
            self._wake.poke()

    def _give_back(self, deferred: Deferred) -> None:
        """Give a lease back, and ask for nothing for a moment: the same task would come again at once."""
        now = self._clock()
        if now - self._deferred_at > DEFERRED_ROW_S:
            self._deferred_wait_s = DEFERRED_WAIT_S
        wait_s = deferred.retry_after_s if deferred.disk_full else min(deferred.retry_after_s, self._deferred_wait_s)
        self._deferred_wait_s = min(self._deferred_wait_s * 2, DEFERRED_WAIT_MAX_S)
        self._deferred_at = now
        self._turns.hold(HOLD_ROOM if deferred.disk_full else HOLD_DEFERRED, until=now + wait_s)
        log.info("task_deferred", why=deferred.detail, wait_s=round(wait_s, 3))
        self.apply(self._turns.give_back(deferred.grant.fence, now))

    def _abandon(self, fence: int) -> None:
        self.apply(self._turns.give_back(fence, self._clock()))

    def _succeeded(self, executed: Executed) -> None:
        self._counters.items += sum(outcome.record_count or 0 for outcome in executed.manifest.outcomes)
        if any(outcome.status is not None for outcome in executed.manifest.outcomes):
            self._reached()

    def _reached(self) -> None:
        """A site answered, be it with a refusal: our own network works."""
        if self._check.succeeded():
            log.info("self_check_passed")
            self._turns.ask_limit = None
            self._turns.nudge()

    def _judge(self, broken: Broken) -> bool:
        """Whether a failure is our own: then everything is given back, this task too."""
        if broken.reason in REACHED_REASONS:
            self._reached()
            return False
        host = urlsplit(next(iter(broken.grant.task.urls), "")).hostname or ""
        wait_s = self._check.failed_at(host, broken.reason)
        if wait_s is None:
            return False
        log.warning("own_network_suspected", hosts=self._check.failed, reason=broken.reason, wait_s=wait_s)
        now = self._clock()
        self._turns.ask_limit = 1
        self._turns.hold(HOLD_SELF_CHECK, until=now + wait_s)
        self.apply(self._turns.give_back(broken.grant.fence, now))
        self.apply(self._turns.release_unfinished(now))
        return True
