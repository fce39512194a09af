"""Findings: limits of the review, how findings are summarized, and the bounded log of findings.

A problem may affect one node or fifty thousand, and is found again at every tick until it is fixed. A finding about
more than 50 nodes is therefore one finding with their number and the first three names; equal findings are one entry
with a count; and the number of entries is bounded. The counters never decrease: /metrics shows them.

Pure: no I/O, no clock. docs/reference/review.md explains each kind for operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from watcher.arrays import I64, Bool
from watcher.core.publishing.wire import FindingEntry
from watcher.model import Cells, Finding, FindingKind, Metric, Remedy, Unit

Scalar = TypeVar("Scalar", bound=np.generic)

NAMED_AT_MOST = 50  # more nodes than this with the same problem are one finding


@dataclass(frozen=True, slots=True)
class FleetFinding(Finding):
    """The same observation about many nodes: `node` is "", `nodes` is their number."""

    nodes: int


def report(
    kind: FindingKind,
    remedy: Remedy,
    *,
    metric: str,
    nodes: Sequence[str],
    times: Sequence[float],
    reason: Callable[[int], str],
    summary: str,
) -> tuple[Finding, ...]:
    """Return one finding per node, or a single finding with their number if there are more than 50 nodes.

    `reason(i)` describes the problem of `nodes[i]`; it is not called for a single finding. `summary` describes the
    problem of all nodes and follows "312 nodes (a, b, c, …): ". `times[i]` is the time of observation in unix seconds.
    """
    if len(nodes) > NAMED_AT_MOST:
        text = f"{len(nodes)} nodes ({some_of(nodes)}): {summary}"
        return (FleetFinding(kind, "", metric, max(times), text, remedy, len(nodes)),)
    return tuple(
        Finding(kind, node, metric, time, reason(i), remedy)
        for i, (node, time) in enumerate(zip(nodes, times, strict=True))
    )


def some_of(nodes: Iterable[str]) -> str:
    """Return the first three names in alphabetical order, followed by ", …" if there are more."""
    first = nsmallest(4, nodes)
    return ", ".join(first[:3]) + (", …" if len(first) > 3 else "")


# --- log of findings -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    finding: Finding
    first_seen: float
    last_seen: float
    count: int


class FindingLog:
    """Bounded log of recent findings with counts; findings with equal kind, node and metric are one entry.

    `counts` never decrease (they are counters on /metrics). If there are more than `capacity` entries, the entries with
    the oldest `last_seen` are removed. A finding whose time is within the range of its entry is the same sample fetched
    again (fetches overlap) and is not counted again. Call `add` from one thread; read from any thread.
    """

    def __init__(self, *, capacity: int = 2000) -> None:
        self.capacity = capacity
        self._entries: dict[tuple[FindingKind, str, str], _Entry] = {}
        self._counts: dict[FindingKind, int] = dict.fromkeys(FindingKind, 0)

    def add(self, findings: Iterable[Finding]) -> None:
        """Add the findings of one tick. More than 50 nodes with the same problem become one entry."""
        for finding in _summed_up(findings):
            if finding.kind is FindingKind.CLOCK_STEP:
                self._not_after(finding.time)
            self._add(finding)
        if len(self._entries) > self.capacity:
            newest = sorted(self._entries.items(), key=lambda item: item[1].last_seen, reverse=True)
            self._entries = dict(newest[: self.capacity])

    def entries(self) -> list[FindingEntry]:
        """Return all entries, ordered by `last_seen`, newest first."""
        newest = sorted(self._entries.values(), key=lambda entry: entry.last_seen, reverse=True)
        return [_wire(entry) for entry in newest]

    def counts(self) -> Mapping[str, int]:
        """Return the number of findings of each kind, counting every node; all kinds are present from the start."""
        return {kind.value: count for kind, count in self._counts.items()}

    def _add(self, finding: Finding) -> None:
        key = (finding.kind, finding.node, finding.metric)
        weight = finding.nodes if isinstance(finding, FleetFinding) else 1
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(finding, finding.time, finding.time, 1)
            self._counts[finding.kind] += weight
            return
        if finding.time >= entry.last_seen:
            entry.finding = finding
        if not entry.first_seen <= finding.time <= entry.last_seen:
            entry.first_seen = min(entry.first_seen, finding.time)
            entry.last_seen = max(entry.last_seen, finding.time)
            entry.count += 1
            self._counts[finding.kind] += weight

    def _not_after(self, time: float) -> None:
        """Limit the times of all entries to `time` (unix seconds), after the wall clock stepped back."""
        for entry in self._entries.values():
            entry.first_seen = min(entry.first_seen, time)
            entry.last_seen = min(entry.last_seen, time)


def _summed_up(findings: Iterable[Finding]) -> Iterable[Finding]:
    """Yield findings in order of time; findings about more than 50 nodes with equal kind, metric and remedy as one."""
    groups: dict[tuple[FindingKind, str, Remedy], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.metric, finding.remedy), []).append(finding)
    for (kind, metric, remedy), group in groups.items():
        nodes = {finding.node for finding in group if finding.node}
        if len(nodes) <= NAMED_AT_MOST:
            yield from sorted(group, key=lambda finding: finding.time)
            continue
        yield from (finding for finding in group if not finding.node)
        example = max((finding for finding in group if finding.node), key=lambda f: (f.time, f.node))
        text = f"{len(nodes)} nodes ({some_of(nodes)}); for example {example.node}: {example.reason}"
        yield FleetFinding(kind, "", metric, example.time, text, remedy, len(nodes))


def _wire(entry: _Entry) -> FindingEntry:
    finding = entry.finding
    return FindingEntry(
        kind=finding.kind.value,
        node=finding.node,
        metric=finding.metric,
        reason=finding.reason,
        remedy=finding.remedy.value,
        first_seen=int(entry.first_seen),
        last_seen=int(entry.last_seen),
        count=entry.count,
    )


def _of_cells(
    kind: FindingKind,
    remedy: Remedy,
    cells: Cells,
    affected: Bool,
    *,
    metric: Metric,
    text: Callable[[float, float], str],
    summary: str,
    now: float | None = None,
) -> tuple[Finding, ...]:
    """Return findings about samples, one per node, with its newest affected sample and the number of the others.

    A finding has the time of its sample, so that a sample fetched twice is not counted twice; `now` (unix seconds)
    replaces it if that time is itself wrong.
    """
    rows = np.flatnonzero(affected)
    if not len(rows):
        return ()
    rows = rows[np.lexsort((cells.value[rows], cells.time[rows], cells.node[rows]))]
    starts = _starts(cells.node[rows])
    ends = np.append(starts[1:], len(rows))
    newest, counts = rows[ends - 1], ends - starts
    times = [now] * len(newest) if now is not None else cells.time[newest].tolist()

    def reason(i: int) -> str:
        others = f" ({counts[i]} samples; this is the newest)" if counts[i] > 1 else ""
        return text(float(cells.value[newest[i]]), float(cells.time[newest[i]])) + others

    names = [cells.names[node] for node in cells.node[newest]]
    return report(kind, remedy, metric=metric.name, nodes=names, times=times, reason=reason, summary=summary)


def _starts(key: I64) -> I64:
    """Return the indexes at which a run of equal keys begins."""
    return np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if len(key) else np.zeros(0, dtype=np.int64)


def _per_cell(values: npt.NDArray[Scalar], starts: I64, size: int) -> npt.NDArray[Scalar]:
    """Repeat the value of each key for its cells: of `size` cells, those of key i begin at starts[i]."""
    return np.repeat(values, np.diff(np.append(starts, size)))


JUMP_MIN_SAMPLES = 8
JUMP_FACTOR = 4.0  # absolute units: a smaller ratio between two values is not a jump
JUMP_FLOOR: Mapping[Unit, float] = {
    Unit.BYTES_PER_SECOND: 1e6,
    Unit.PACKETS_PER_SECOND: 100.0,
    Unit.WATTS: 50.0,
}
SILENT_CADENCES = 3.0
SILENT_AT_LEAST_S = 90.0
NEWEST_AHEAD_S = 5.0


def _is(metric: Metric, words: str) -> Callable[[float, float], str]:
    return lambda value, _time: f"{metric.unit.text(value)} is {words}"
