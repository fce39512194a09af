"""What was found, how it is said, and what is remembered of it.

A trouble may concern one node or fifty thousand, and comes again at every tick until somebody mends it. So a finding of
more than 50 nodes is one that counts them and names the first three, equal findings are one entry with a count, and
what is kept is bounded. The counters only grow: they are what /metrics shows.

Pure: no I/O, no clock. What each kind means for the operator: docs/review.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np

from watcher.arrays import I64, Bool
from watcher.core.publishing.wire import FindingEntry
from watcher.model import Cells, Finding, FindingKind, Metric, Remedy

NAMED_AT_MOST = 50  # more nodes than this with the same trouble are one finding


@dataclass(frozen=True, slots=True)
class FleetFinding(Finding):
    """The same observation about many nodes at once: `node` is "", `nodes` how many they are."""

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
    """One finding per node, or a single one that counts them where they are more than 50.

    `reason(i)` says what is wrong with `nodes[i]`; it is asked only for those that are named. `summary` says what is
    wrong with all of them and continues "312 nodes (a, b, c, …): …". `times[i]` is when it was seen, unix seconds.
    """
    if len(nodes) > NAMED_AT_MOST:
        text = f"{len(nodes)} nodes ({some_of(nodes)}): {summary}"
        return (FleetFinding(kind, "", metric, max(times), text, remedy, len(nodes)),)
    return tuple(
        Finding(kind, node, metric, time, reason(i), remedy)
        for i, (node, time) in enumerate(zip(nodes, times, strict=True))
    )


def some_of(nodes: Iterable[str]) -> str:
    """The first three names in alphabetical order, and a sign that there are more."""
    first = nsmallest(4, nodes)
    return ", ".join(first[:3]) + (", …" if len(first) > 3 else "")


# --- what was found so far -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    finding: Finding
    first_seen: float
    last_seen: float
    count: int


class FindingLog:
    """What was found lately, and how often: bounded, equal kind, node and metric are one entry.

    `counts` only ever grow (they are counters on /metrics); entries go when newer ones need their place, those last
    seen longest ago first. A finding whose time lies within what its entry has already seen is the same sample fetched
    again (fetches overlap) and is not counted again. Add from one thread; read from any.
    """

    def __init__(self, *, capacity: int = 2000) -> None:
        self.capacity = capacity
        self._entries: dict[tuple[FindingKind, str, str], _Entry] = {}
        self._counts: dict[FindingKind, int] = dict.fromkeys(FindingKind, 0)

    def add(self, findings: Iterable[Finding]) -> None:
        """Take in the findings of one tick. More than 50 nodes with the same trouble become one entry."""
        for finding in _summed_up(findings):
            if finding.kind is FindingKind.CLOCK_STEP:
                self._not_after(finding.time)
            self._add(finding)
        if len(self._entries) > self.capacity:
            newest = sorted(self._entries.items(), key=lambda item: item[1].last_seen, reverse=True)
            self._entries = dict(newest[: self.capacity])

    def entries(self) -> list[FindingEntry]:
        """All entries, newest first."""
        newest = sorted(self._entries.values(), key=lambda entry: entry.last_seen, reverse=True)
        return [_wire(entry) for entry in newest]

    def counts(self) -> Mapping[str, int]:
        """How many findings there have been of each kind, nodes counted singly; every kind is there from the start."""
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
        """The clock went back: what was seen "later" than now was seen by now, and the future is unseen again."""
        for entry in self._entries.values():
            entry.first_seen = min(entry.first_seen, time)
            entry.last_seen = min(entry.last_seen, time)


def _summed_up(findings: Iterable[Finding]) -> Iterable[Finding]:
    """Findings in order of time, those of more than 50 nodes with equal kind, metric and remedy as one."""
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
        text = f"{len(nodes)} nodes ({some_of(nodes)}); of {example.node}: {example.reason}"
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
    """Findings about samples, one per node: its newest affected sample speaks for the others, which are counted.

    A finding has its sample's true time, so that a sample fetched twice is not counted twice; `now` stands in for it
    where that time is the very thing that is wrong.
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
        others = f" ({counts[i]} samples, this the newest)" if counts[i] > 1 else ""
        return text(float(cells.value[newest[i]]), float(cells.time[newest[i]])) + others

    names = [cells.names[node] for node in cells.node[newest]]
    return report(kind, remedy, metric=metric.name, nodes=names, times=times, reason=reason, summary=summary)


def _starts(key: I64) -> I64:
    """Where each run of equal keys begins."""
    return np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if len(key) else np.zeros(0, dtype=np.int64)
