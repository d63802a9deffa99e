"""What the operator should know and do something about. An alert begins, lasts, and ends; only its two ends are told.

Whoever sees a trouble calls ``begin`` as often as it likes and ``end`` when it is over: ``rendezvous.watch`` does for
workers, queue, leases and sites, and follows the pay desk's own. Listeners hear of each state once; none may wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import attrs
import structlog

__all__ = ["Alert", "Alerts", "Told"]

log = structlog.get_logger()

#: More at once than this aren't kept, and the log says so once: a fleet that burns is one trouble, not a thousand.
MOST: Final = 200


@attrs.frozen(kw_only=True)
class Alert:
    """A trouble that lasts.

    Args:
        code: a stable word.
        subject: whom it is about (a worker, a host); empty is the swarm.
        message: what is wrong.
        hint: what to do.
        since: since when, ledger seconds.
    """

    code: str
    message: str
    hint: str
    since: float
    subject: str = ""


class Told(Protocol):
    """An alert of somebody else's, as the pay desk has it."""

    @property
    def code(self) -> str:
        """A stable word."""

    @property
    def message(self) -> str:
        """What is wrong."""

    @property
    def hint(self) -> str:
        """What to do."""

    @property
    def since(self) -> float:
        """Since when, ledger seconds."""


Listener = Callable[[Alert, bool], None]


class Alerts:
    """All alerts that last now, by code and subject.

    Args:
        wall: ledger time, Unix seconds.
    """

    def __init__(self, *, wall: Callable[[], float]) -> None:
        self._wall: Final = wall
        self._lasting: Final[dict[tuple[str, str], Alert]] = {}
        self._followed: Final[set[tuple[str, str]]] = set()
        self._listeners: Final[list[Listener]] = []
        self._is_full = False

    @property
    def active(self) -> tuple[Alert, ...]:
        """Those that last, the oldest first."""
        return tuple(sorted(self._lasting.values(), key=lambda alert: alert.since))

    def lasts(self, code: str, subject: str = "") -> bool:
        """Whether there is such an alert now."""
        return (code, subject) in self._lasting

    def subjects(self, code: str) -> frozenset[str]:
        """Whom the alerts of a code are about."""
        return frozenset(subject for known, subject in self._lasting if known == code)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener with each alert that begins (True) or ends (False).

        Returns:
            A function that ends the subscription.
        """
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def begin(self, code: str, message: str, *, hint: str, subject: str = "", since: float | None = None) -> None:
        """Say that there is a trouble; one that lasts already keeps its beginning and gets the new sentence.

        Args:
            code: a stable word.
            message: what is wrong.
            hint: what to do.
            subject: whom it is about.
            since: since when, ledger seconds; now where it isn't given.
        """
        known = self._lasting.get((code, subject))
        began = self._wall() if since is None else since
        alert = Alert(
            code=code, message=message, hint=hint, since=began if known is None else known.since, subject=subject
        )
        if known is None and len(self._lasting) >= MOST:
            if not self._is_full:  # whoever sees a trouble says so again every few seconds
                log.warning("alerts_not_listed", active=len(self._lasting), code=code, subject=subject, message=message)
            self._is_full = True
            return
        self._lasting[code, subject] = alert
        if known is None:
            log.warning("alert_began", code=code, subject=subject, message=message, hint=hint)
            self._tell(alert, True)

    def end(self, code: str, subject: str = "") -> None:
        """Say that a trouble is over; nothing happens where there was none."""
        alert = self._lasting.pop((code, subject), None)
        if alert is not None:
            self._is_full = False
            log.info("alert_ended", code=code, subject=subject, lasted_s=round(self._wall() - alert.since, 1))
            self._tell(alert, False)

    def keep(self, code: str, subjects: Iterable[str]) -> None:
        """End all alerts of a code whose subject isn't one of these."""
        kept = set(subjects)
        for known, subject in list(self._lasting):
            if known == code and subject not in kept:
                self.end(code, subject)

    def follow(self, theirs: Iterable[Told]) -> None:
        """Take over the alerts that somebody else keeps: those that are new begin, those that are gone end."""
        present = {(str(alert.code), ""): alert for alert in theirs}
        for (code, subject), alert in present.items():
            self.begin(code, alert.message, hint=alert.hint, subject=subject, since=alert.since)
        for code, subject in self._followed - present.keys():
            self.end(code, subject)
        self._followed.clear()
        self._followed.update(present)

    def _tell(self, alert: Alert, begins: bool) -> None:
        for listener in tuple(self._listeners):
            listener(alert, begins)
