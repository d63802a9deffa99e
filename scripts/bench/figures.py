"""What one measurement gave, and how measurements are put beside each other."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class Figures:
    """One run of one system.

    Args:
        tasks: how many were run.
        took_s: from the first submission's start to the last result, seconds.
        latencies_s: of each task, from just before its submission was sent to its result, seconds.
        cpu_us: processor time a task of each part, microseconds.
    """

    tasks: int
    took_s: float
    latencies_s: Sequence[float]
    cpu_us: Mapping[str, float]

    @property
    def per_s(self) -> float:
        return self.tasks / self.took_s

    def line(self) -> str:
        cpu = ", ".join(f"{part} {spent:.0f}" for part, spent in self.cpu_us.items())
        return (
            f"{self.per_s:8.0f}/s   p50 {quantile(self.latencies_s, 50) * 1e3:7.1f} ms"
            f"   p99 {quantile(self.latencies_s, 99) * 1e3:7.1f} ms   µs a task: {cpu}"
        )


def quantile(values: Sequence[float], percent: int) -> float:
    """The value below which ``percent`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def ratio(ours: Sequence[Figures], theirs: Sequence[Figures]) -> str:
    """Our runs over the runs beside them, in pairs: the median and the range."""
    pairs = [a.per_s / b.per_s for a, b in zip(ours, theirs, strict=True)]
    return f"x {statistics.median(pairs):.2f} ({min(pairs):.2f}–{max(pairs):.2f})"


def cpu_s(pid: int) -> float:
    """Processor time of a process and of all that it started, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_s(int(child)) for child in children)
