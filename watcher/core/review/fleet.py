"""Detection of values that a failed source returns for many nodes at once: exact zeros, equal jumps, frozen values.

A node can be idle, its load can jump, and a value can repeat, but not on more than `outage_fraction` of the nodes in
one response: then the source failed (a broken query, a renamed metric, a cache), and its values are not the load.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.review.findings import some_of
from watcher.core.review.settings import ReviewSettings
from watcher.model import METRIC_BY_KEY, Cells, Finding, FindingKind, Metric, Remedy

JUDGED = frozenset({METRIC_BY_KEY["CPU"].name, METRIC_BY_KEY["Memory"].name})
NODES_AT_LEAST = 2  # one node is never a fleet
SATURATED = 100.0  # percent: many nodes may reach it at once, so it is not an equal jump
COARSE_DIGITS = 2  # a value with at most these decimal places may repeat
COARSE_NODES = 3  # nodes whose equal jumps are an outage if all their values are coarse: two integers may be equal
REPEATS_AT_MOST = 0.02  # share of repeated samples up to which a source is known to return a new value each time
DIGITS = 6  # decimal places of a percentage to which two jumps are equal

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class FleetVerdict:
    """`kept` cells may enter the history. `zeros` names the nodes whose newest samples are implausible zeros, which the
    history may have already. `reason` says why cells were dropped, "" if the response is plausible."""

    kept: Cells
    zeros: tuple[str, ...] = ()
    reason: str = ""
    findings: tuple[Finding, ...] = ()


class FleetReview:
    """Reviews the samples of one metric of all nodes together. It remembers which times it dropped, because responses
    overlap: the last dropped samples return when most nodes are plausible again."""

    def __init__(self) -> None:
        self._dropped: dict[str, dict[str, Span]] = {}  # metric -> node -> times of the dropped samples

    def review(
        self,
        metric: Metric,
        cells: Cells,
        *,
        newest: tuple[F64, F64] | None,
        repeats: Callable[[], float],
        now: float,
        limits: ReviewSettings,
    ) -> FleetVerdict:
        """Judge the combined cells of a metric, before values are clamped. `newest` has time and value of each node's
        newest sample in the history, NaN without a sample; each [len(cells.names)]. None for samples of the past: they
        follow no newer sample, so they have no jumps. Cells that are older than the newest ones were judged before.
        `repeats` returns the share of samples in the history that equal their predecessor, 1 if there are too few."""
        if metric.name not in JUDGED or not len(cells.slot):
            return FleetVerdict(cells)
        known, value = newest if newest is not None else (np.full(len(cells.names), np.nan),) * 2
        timely = cells.time <= now + limits.max_ahead_s
        fresh = timely & ~(cells.time < known[cells.node])
        nodes = len(np.unique(cells.node))
        zero = timely & (cells.value == 0.0)
        zeros = np.unique(cells.node[zero & fresh])
        bad, reasons = np.zeros(len(cells.slot), dtype=bool), []
        if _is_fleet(len(zeros), nodes, limits):
            bad |= zero
            reasons.append(f"{_of(cells, zeros, nodes)} have exactly 0 %")
        else:
            zeros = zeros[:0]
        jumped, words = _equal_jumps(cells, fresh & ~zero & (cells.time > known[cells.node]), value, nodes, limits)
        if words:
            bad |= jumped
            reasons.append(words)
        frozen, rows = _frozen(cells, timely & (cells.time > known[cells.node]), value)
        if _is_fleet(len(rows), nodes, limits) and repeats() <= REPEATS_AT_MOST:
            bad |= frozen
            reasons.append(f"{_of(cells, rows, nodes)} repeat their previous value to the last digit")
        again = self._returned(metric, cells)
        reason = ""
        findings: tuple[Finding, ...] = ()
        if reasons:
            remedy = Remedy.DROPPED if limits.enforced else Remedy.REPORTED
            end = "; the samples are not used" if limits.enforced else ""
            reason = f"{metric.key}: {'; '.join(reasons)} in one response: the source failed, not the nodes{end}"
            findings = (Finding(FindingKind.PARTIAL_OUTAGE, "", metric.name, now, reason, remedy),)
        if not limits.enforced:
            return FleetVerdict(cells, findings=findings)
        self._remember(metric, cells, bad, since=now - limits.forget_after)
        drop = bad | again
        names = tuple(cells.names[node] for node in zeros.tolist())
        return FleetVerdict(cells.where(~drop) if drop.any() else cells, names, reason, findings)

    def forget(self) -> None:
        """Reset the state: the history was emptied."""
        self._dropped = {}

    def _remember(self, metric: Metric, cells: Cells, bad: Bool, *, since: float) -> None:
        spans = self._dropped.get(metric.name, {})
        if not spans and not bad.any():
            return
        spans = {node: span for node, span in spans.items() if span[1] >= since}
        for node, time in zip(cells.node[bad].tolist(), cells.time[bad].tolist(), strict=True):
            name = cells.names[node]
            first, last = spans.get(name, (time, time))
            spans[name] = (min(first, time), max(last, time))
        self._dropped[metric.name] = spans

    def _returned(self, metric: Metric, cells: Cells) -> Bool:
        """Mark the cells that were dropped from an earlier response."""
        spans = self._dropped.get(metric.name)
        if not spans:
            return np.zeros(len(cells.slot), dtype=bool)
        never = (np.inf, -np.inf)
        limits = np.array([spans.get(name, never) for name in cells.names], dtype=np.float64).reshape(-1, 2)
        first, last = limits[cells.node].T
        return np.asarray((cells.time >= first) & (cells.time <= last), dtype=np.bool_)


def _is_fleet(count: int, nodes: int, limits: ReviewSettings) -> bool:
    return count >= NODES_AT_LEAST and count > limits.outage_fraction * nodes


def _of(cells: Cells, rows: I64, nodes: int) -> str:
    return f"{len(rows)} of {nodes} nodes ({some_of(cells.names[row] for row in rows.tolist())})"


def _frozen(cells: Cells, fresh: Bool, before: F64) -> tuple[Bool, I64]:
    """Mark the fresh cells of the nodes whose fresh cells all repeat the value `before` [len(cells.names)] with more
    than `COARSE_DIGITS` decimal places; and return these nodes."""
    node, value = cells.node[fresh], cells.value[fresh]
    repeats = (value == before[node]) & ~_coarse(value)
    moving = np.unique(node[~repeats])
    frozen = fresh & np.isin(cells.node, np.setdiff1d(node, moving))
    return frozen, np.unique(cells.node[frozen])


def _coarse(values: F64) -> Bool:
    return np.asarray(np.round(values, COARSE_DIGITS) == values, dtype=np.bool_)


def _equal_jumps(cells: Cells, fresh: Bool, before: F64, nodes: int, limits: ReviewSettings) -> tuple[Bool, str]:
    """Mark the fresh cells of the nodes that jumped from `before` [len(cells.names)] to one value, or by one
    difference, and describe them; "" if there are too few."""
    step = cells.value - before[cells.node]
    coarse = _coarse(cells.value) & _coarse(before[cells.node])
    rows = np.flatnonzero(fresh & (np.abs(step) > limits.jump_points) & (cells.value < SATURATED))
    bad = np.zeros(len(cells.slot), dtype=bool)
    words = ""
    tests: Iterable[tuple[F64, Callable[[float], str]]] = (
        (cells.value, lambda value: f"jumped to {value:g} %"),
        (step, lambda value: f"jumped by {value:+g} points"),
    )
    for values, text in tests:
        value, affected = _most_common(np.round(values[rows], DIGITS), cells.node[rows])
        equal = rows[np.round(values[rows], DIGITS) == value]
        chance = len(affected) < COARSE_NODES and bool(coarse[equal].all())
        if _is_fleet(len(affected), nodes, limits) and not chance:
            bad[equal] = True
            words = words or f"{_of(cells, affected, nodes)} {text(value)}"
    return bad, words


def _most_common(values: F64, node: Sequence[int] | I64) -> tuple[float, I64]:
    """Return the value that most nodes have (of equally common ones the smallest), and these nodes."""
    if not len(values):
        return np.nan, np.zeros(0, dtype=np.int64)
    pairs = np.unique(np.stack([values, np.asarray(node, dtype=np.float64)]), axis=1)
    distinct, counts = np.unique(pairs[0], return_counts=True)
    value = float(distinct[np.argmax(counts)])
    return value, pairs[1][pairs[0] == value].astype(np.int64)
