"""Who is told what keeps money from moving. A worry becomes an alert when it lasts; it ends by itself with its cause.

An alert always has a way out in it. Nothing gives up because of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import structlog

from rendezvous.chain.outbox import Worry, WorryCode

__all__ = ["ALERT_AFTER_S", "Alert", "Alerts"]

log = structlog.get_logger()

#: A worry that lasts so long is told, seconds (DESIGN §13).
ALERT_AFTER_S: Final = 120.0


@attrs.frozen(kw_only=True)
class Alert:
    """A worry that lasted."""

    code: WorryCode
    message: str
    hint: str
    #: Since when, ledger seconds.
    since: float


class Alerts:
    """What worries the pay desk now, and what of it has been told.

    Args:
        after_s: how long a worry lasts before it is told.
    """

    def __init__(self, *, after_s: float = ALERT_AFTER_S) -> None:
        self._after_s: Final = after_s
        self._since: dict[WorryCode, float] = {}
        self._told: dict[WorryCode, Alert] = {}

    @property
    def active(self) -> tuple[Alert, ...]:
        """What was told and isn't over."""
        return tuple(self._told.values())

    def update(self, worries: Iterable[Worry], *, now: float) -> None:
        """Take what is in the way now; what isn't in it any more is over."""
        present = {worry.code: worry for worry in worries}
        self._since = {code: self._since.get(code, now) for code in present}
        for code, worry in present.items():
            since = self._since[code]
            if not worry.at_once and now - since < self._after_s:
                continue
            if code not in self._told:
                log.error("chain_alert", code=code.value, message=worry.message, hint=worry.hint)
            self._told[code] = Alert(code=code, message=worry.message, hint=worry.hint, since=since)
        for code in self._told.keys() - present.keys():
            log.info("chain_alert_ended", code=code.value, lasted_s=round(now - self._told.pop(code).since, 1))
