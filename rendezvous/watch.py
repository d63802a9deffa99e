"""Watches what the ledger commits, and raises alerts: workers whose success dips, an old queue, expiries, blocks.

The intakes tell it of dead letters, and of what keeps them from working.

Counting costs a dictionary's addition for each end of an attempt; the rules (``rendezvous.policy.alarms``) are asked
every few seconds, beside the door. Counts are of what was committed, by whichever root, since this one's start.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from rendezvous.alerts import Alerts, Told
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.ops import LedgerEvent
from rendezvous.policy.alarms import WINDOW_S, AlarmRules, Counts, check_count, check_queue_age, check_success
from swarm.errors import SwarmError
from swarm.model import Move, Reason

__all__ = [
    "BLOCKED",
    "EXPIRED",
    "INTAKE_DEAD",
    "INTAKE_WAITS",
    "LEASES_EXPIRED",
    "QUEUE_OLD",
    "SEEN_BY_ALL",
    "SUCCESS_LOW",
    "Tally",
    "Watch",
]

log = structlog.get_logger()

#: How often the rules are asked, seconds.
LOOK_S: Final = 5.0
#: The window moves on in steps of this, seconds.
STEP_S: Final = 60.0
#: Workers or hosts that are counted at once; what comes on top isn't, until others are forgotten.
MOST_COUNTED: Final = 10_000

SUCCESS_LOW: Final = "worker_success_low"
QUEUE_OLD: Final = "queue_old"
LEASES_EXPIRED: Final = "leases_expired"
EXPIRED: Final = "tasks_expired"
BLOCKED: Final = "host_blocks"
INTAKE_DEAD: Final = "intake_dead"
INTAKE_WAITS: Final = "intake_waits"

#: What every root of a ledger sees, since each hears of all events; one of them tells it to the world.
SEEN_BY_ALL: Final = frozenset({SUCCESS_LOW, QUEUE_OLD, LEASES_EXPIRED, EXPIRED, BLOCKED})
#: How an attempt ended badly.
_FAILED: Final = frozenset({Move.RETRY, Move.FAIL, Move.EXPIRE_LEASE})


class Tally:
    """Counts by key over a sliding window."""

    def __init__(self) -> None:
        self._steps: Final[dict[str, dict[int, int]]] = {}

    def add(self, key: str, *, at: float, by: int = 1) -> None:
        """Count one, or so many."""
        steps = self._steps.get(key)
        if steps is None:
            if len(self._steps) >= MOST_COUNTED:
                return
            steps = self._steps[key] = defaultdict(int)
        steps[int(at // STEP_S)] += by

    def counts(self, *, now: float) -> dict[str, int]:
        """What happened in the window, by key; what is older is forgotten."""
        first = int((now - WINDOW_S) // STEP_S) + 1
        found = {}
        for key, steps in list(self._steps.items()):
            for step in [step for step in steps if step < first]:
                del steps[step]
            if steps:
                found[key] = sum(steps.values())
            else:
                del self._steps[key]
        return found


class Watch:
    """Raises and ends alerts.

    Args:
        alerts: where they are kept.
        ledger: says how long the oldest ready task has waited.
        rules: the thresholds.
        theirs: the alerts that the pay desk keeps.
    """

    def __init__(self, alerts: Alerts, ledger: Ledger, rules: AlarmRules, *, theirs: Callable[[], Sequence[Told]]):
        self._alerts: Final = alerts
        self._ledger: Final = ledger
        self._rules: Final = rules
        self._theirs: Final = theirs
        self._done: Final = Tally()
        self._failed: Final = Tally()
        self._expiries: Final = Tally()
        self._blocks: Final = Tally()
        self._dead: Final = Tally()
        #: Queues that an intake can't drain now, and why.
        self._waiting: Final[dict[str, str]] = {}

    def take(self, events: Sequence[LedgerEvent]) -> None:
        """Count what was just committed."""
        for event in events:
            if event.move is Move.COMPLETE:
                if event.worker is not None:
                    self._done.add(event.worker.address, at=event.at)
            elif event.move in _FAILED:
                if event.worker is not None:
                    self._failed.add(event.worker.address, at=event.at)
                if event.move is Move.EXPIRE_LEASE:
                    self._expiries.add(LEASES_EXPIRED, at=event.at)
                elif event.reason == Reason.BLOCKED:
                    self._blocks.add(event.host, at=event.at)
            elif event.move is Move.EXPIRE:
                self._expiries.add(EXPIRED, at=event.at)

    def count_dead(self, subject: str, messages: int) -> None:
        """Count messages of an intake that became dead letters; the subject is its queue, and where that is."""
        self._dead.add(subject, at=self._ledger.now(), by=messages)

    def note_intake(self, subject: str, trouble: str | None) -> None:
        """Note what keeps an intake from its queue; None is nothing."""
        if trouble is None:
            self._waiting.pop(subject, None)
        else:
            self._waiting[subject] = trouble

    def follow(self) -> None:
        """Take over what the pay desk keeps."""
        self._alerts.follow(self._theirs())

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                ready_since = await self._ledger.read(lambda reader: reader.oldest_ready_since())
            except SwarmError as fault:  # the ledger says so itself; what is counted here is known without it
                log.debug("queue_age_unknown", error=str(fault))
            else:
                self.look_at_queue(ready_since)
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Ask the rules about what was counted."""
        self.follow()
        now = self._ledger.now()
        self._look_at_workers(now)
        self._look_at_intakes(now)
        counts = self._expiries.counts(now=now)
        self._look_at_count(
            LEASES_EXPIRED,
            "",
            counts.get(LEASES_EXPIRED, 0),
            self._rules.expiries,
            what="leases ran out",
            hint="workers die or lose their way to the door: swarm workers shows who is offline",
        )
        self._look_at_count(
            EXPIRED,
            "",
            counts.get(EXPIRED, 0),
            self._rules.expiries,
            what="tasks expired before they were done",
            hint="add workers, or let tasks expire later; swarm why TASK says what keeps one",
        )
        blocks = self._blocks.counts(now=now)
        self._alerts.keep(BLOCKED, blocks)
        for host, count in blocks.items():
            hint = f"the site asks to be left alone: lower its rate, or swarm-root pause --host {host}"
            self._look_at_count(BLOCKED, host, count, self._rules.blocks, what=f"blocks by {host}", hint=hint)

    def _look_at_workers(self, now: float) -> None:
        done, failed = self._done.counts(now=now), self._failed.counts(now=now)
        lasting = self._alerts.subjects(SUCCESS_LOW)
        for worker in done.keys() | failed.keys() | lasting:
            counts = Counts(done=done.get(worker, 0), failed=failed.get(worker, 0))
            if check_success(counts, self._rules, lasts=worker in lasting):
                self._alerts.begin(
                    SUCCESS_LOW,
                    f"{counts.done} of the last {counts.total} attempts of {worker} succeeded",
                    hint="swarm why and swarm show name the reasons; swarm-root revoke ends a worker",
                    subject=worker,
                )
            else:
                self._alerts.end(SUCCESS_LOW, worker)

    def _look_at_intakes(self, now: float) -> None:
        dead = self._dead.counts(now=now)
        self._alerts.keep(INTAKE_DEAD, dead)
        for queue, count in dead.items():
            hint = "the log (message_buried, messages_damaged) and the queue's dead letters have the reasons"
            self._look_at_count(INTAKE_DEAD, queue, count, 1, what=f"dead letters of {queue}", hint=hint)
        self._alerts.keep(INTAKE_WAITS, self._waiting)
        for queue, trouble in self._waiting.items():
            hint = "it goes on by itself once that is mended; nothing is lost"
            self._alerts.begin(INTAKE_WAITS, f"nothing is taken of {queue}: {trouble}", hint=hint, subject=queue)

    def _look_at_count(self, code: str, subject: str, count: int, threshold: int, *, what: str, hint: str) -> None:
        if check_count(count, threshold, lasts=self._alerts.lasts(code, subject)):
            self._alerts.begin(code, f"{count} {what} in {WINDOW_S / 60:.0f} min", hint=hint, subject=subject)
        else:
            self._alerts.end(code, subject)

    def look_at_queue(self, ready_since: float | None) -> None:
        """Ask the rule about the oldest ready task (ledger seconds); None where none is ready."""
        age_s = None if ready_since is None else self._ledger.now() - ready_since
        if check_queue_age(age_s, self._rules, lasts=self._alerts.lasts(QUEUE_OLD)):
            self._alerts.begin(
                QUEUE_OLD,
                f"the oldest ready task has waited for {(age_s or 0.0) / 60:.0f} min",
                hint="add workers, or raise --host-rate where a site allows it; swarm why TASK says what keeps one",
                since=ready_since,
            )
        else:
            self._alerts.end(QUEUE_OLD)
