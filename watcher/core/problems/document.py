"""The body of GET /api/v1/problems, and texts that all problems share.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from watcher.core.publishing.wire import UnixSeconds


class Severity(StrEnum):
    """Severity of a problem, the most severe first. `critical` and `warning` need an action; `info` does not."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


SEVERITIES = tuple(Severity)


class FleetProblem(msgspec.Struct, frozen=True):
    """One problem as a sentence. `kind` is hot, silent, stale, lost, quarantined, unheard, source, service, profile (of
    the scheduling plug-ins), or the kind of the findings it summarizes; `cause` is the kind in words. `nodes` are the
    affected nodes in order of `text`, empty if the problem concerns the service or unnamed nodes. `command` is the next
    command for a terminal, "" if there is none. `since` and `last_seen` are unix seconds, null if unknown. `findings`
    counts the findings of the sample review in this problem and `metrics` are their metrics."""

    severity: Severity
    kind: str
    cause: str
    text: str
    cure: str
    command: str = ""
    nodes: tuple[str, ...] = ()
    since: UnixSeconds | None = None
    last_seen: UnixSeconds | None = None
    findings: int = 0
    metrics: tuple[str, ...] = ()


class ProblemsDocument(msgspec.Struct, frozen=True):
    """Body of GET /api/v1/problems, the most severe first. `counts` has the number of problems of each
    severity; `worst` is the severity of the first problem, null without problems."""

    timestamp: UnixSeconds
    worst: Severity | None
    counts: dict[str, int]
    problems: list[FleetProblem]


def duration_text(seconds: float) -> str:
    """Format a duration: "40 s", "12 min", "3 h" or "2 d"."""
    if seconds < 100:
        return f"{max(0, round(seconds))} s"
    if seconds < 6000:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h" if seconds < 172_800 else f"{round(seconds / 86_400)} d"


def node_command(node: str) -> str:
    """The command that shows the state of a node and the events about it."""
    return f"kubectl describe node {node}"
