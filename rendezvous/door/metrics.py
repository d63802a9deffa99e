"""What the door counts of itself, in Prometheus' text format. Gauges of the ledger and fleet are read when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["CONTENT_TYPE", "Metrics", "render"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: Every metric: its type and what it says. The docs are checked against this.
METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "swarm_http_requests_total": ("counter", "Requests answered, by route and status."),
    "swarm_turns_total": ("counter", "Turns taken by workers, by way (session, http, call)."),
    "swarm_turns_repeated_total": ("counter", "Turns answered from memory since they were repeated."),
    "swarm_grants_total": ("counter", "Grants given, by how they came about (offer, want, assign)."),
    "swarm_asks_total": ("counter", "Offers that workers asked for."),
    "swarm_nudges_total": ("counter", "Nudges sent over sessions."),
    "swarm_ledger_events_total": ("counter", "Rows of the history written since start, by move."),
    "swarm_announcements_total": ("counter", "Gossip messages sent."),
    "swarm_intake_total": ("counter", "Messages of --intake, by outcome (created, duplicate, dead)."),
    "swarm_tasks": ("gauge", "Tasks in the ledger, by status."),
    "swarm_workers": ("gauge", "Known workers, by state (ready, busy, offline)."),
    "swarm_sessions": ("gauge", "Open sessions of workers."),
    "swarm_event_streams": ("gauge", "Open event streams."),
    "swarm_alerts": ("gauge", "What the operator should know now, by code."),
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters of this process. Names are those of ``METRICS``."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Labels]] = Counter()

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        if name not in METRICS:
            raise KeyError(name)
        self._counts[name, tuple(sorted(labels.items()))] += by  # type: ignore[assignment]

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        """All counters that were ever counted."""
        return ((name, labels, value) for (name, labels), value in self._counts.items())


def render(samples: Iterable[tuple[str, Labels, float]]) -> str:
    """The text that Prometheus reads."""
    by_name: dict[str, list[str]] = {name: [] for name in METRICS}
    for name, labels, value in samples:
        shown = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
        by_name[name].append(f"{name}{{{shown}}} {value:g}" if shown else f"{name} {value:g}")
    lines: list[str] = []
    for name, (kind, text) in METRICS.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *sorted(by_name[name])]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
