"""Differences between the responses of two services about the same nodes, as the Trimaran plug-ins interpret them.

Both responses are parsed as leniently as by the Go client, so that a response of the Go load-watcher is compared and
not rejected. CPU and memory are compared node by node. Other metrics are not compared, because the Go service
multiplies them by 100, regardless of their unit.

Two services never measure at the same time: their windows end up to one tick apart. Several comparisons are therefore
accumulated, and only a difference in more than half of them is reported.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from watcher.arrays import F64
from watcher.core.messages import shorten_names
from watcher.decoding.json_text import decode_json
from watcher.model import MetricType, Operator

TYPES = (MetricType.CPU, MetricType.MEMORY)
OPERATORS = (Operator.AVG, Operator.STD)
TOLERANCE = 5.0  # percentage points

Scores = Callable[[F64], F64]


class _WatcherMetric(msgspec.Struct):
    type: str | None = None
    operator: str | None = None
    value: float | None = None


class _WatcherNode(msgspec.Struct):
    metrics: list[_WatcherMetric] | None = None


class _WatcherWindow(msgspec.Struct):
    duration: str | None = None
    end: float | None = None


class _WatcherData(msgspec.Struct):
    NodeMetricsMap: dict[str, _WatcherNode | None] | None = None


class _WatcherDocument(msgspec.Struct):
    timestamp: float | None = None
    window: _WatcherWindow | None = None
    source: str | None = None
    data: _WatcherData | None = None


@dataclass(frozen=True, slots=True)
class ServiceLoads:
    """Parsed response of a service. `values[(type, operator)]` maps node names to percent; AVG falls back to Latest
    for a node without AVG, as in the plug-ins. `packing` is the CPU utilisation (percent) that TargetLoadPacking
    uses for each node: the last CPU metric with AVG or Latest."""

    source: str
    window: str
    window_end: float
    values: Mapping[tuple[str, str], Mapping[str, float]]
    packing: Mapping[str, float]

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes with CPU load. The plug-ins ignore a node without it."""
        return frozenset(self.packing)


def read_answer(body: bytes) -> ServiceLoads:
    """Parse the body of GET /watcher. Raises ValueError if the plug-ins would reject it or it contains no node."""
    try:
        document = decode_json(body, type=_WatcherDocument)
    except msgspec.DecodeError as error:
        raise ValueError(f"the response is not a list of nodes, the plug-ins would reject it: {error}") from None
    nodes = (document.data.NodeMetricsMap if document.data else None) or {}
    values: dict[tuple[str, str], dict[str, float]] = {}
    packing: dict[str, float] = {}
    for name, node in nodes.items():
        for metric in (node.metrics if node else None) or []:
            kind, operator, value = metric.type or "", metric.operator or "", metric.value or 0.0
            values.setdefault((kind, operator), {})[name] = value  # the last of several counts, as in the plug-ins
            if kind == MetricType.CPU and operator in (Operator.AVG, Operator.LATEST):
                packing[name] = value
    if not packing:
        raise ValueError("the response has no CPU load of any node: every node would have the score 0")
    for kind in TYPES:
        averages = values.setdefault((kind, Operator.AVG), {})
        values[kind, Operator.AVG] = {**values.get((kind, Operator.LATEST), {}), **averages}
    window = document.window or _WatcherWindow()
    return ServiceLoads(document.source or "", window.duration or "", window.end or 0.0, values, packing)


@dataclass(slots=True)
class Difference:
    """Differences of one metric over all comparisons, for nodes known to both services, in percentage points."""

    type: str
    operator: str
    compared: dict[str, int] = field(default_factory=dict)  # node -> number of comparisons
    apart: dict[str, int] = field(
        default_factory=dict
    )  # node -> number of comparisons with a difference above the tolerance
    only_here: dict[str, int] = field(
        default_factory=dict
    )  # node known to both -> number of comparisons with a value only from this service
    only_there: dict[str, int] = field(default_factory=dict)
    total: float = 0.0
    largest: float = 0.0
    largest_of: str = ""

    @property
    def mean(self) -> float:
        """Mean absolute difference of all pairs, in percentage points."""
        pairs = sum(self.compared.values())
        return self.total / pairs if pairs else 0.0

    @property
    def nodes_apart(self) -> tuple[str, ...]:
        """Nodes that differed by more than the tolerance in more than half of their comparisons, sorted."""
        return tuple(sorted(name for name, count in self.apart.items() if 2 * count > self.compared[name]))

    def add(self, our_answer: ServiceLoads, their_answer: ServiceLoads, *, tolerance: float) -> None:
        """Add a pair of responses. `tolerance` is in percentage points."""
        key = (self.type, self.operator)
        both = our_answer.nodes & their_answer.nodes
        ours, theirs = our_answer.values.get(key, {}), their_answer.values.get(key, {})
        _count_each(self.only_here, both & (ours.keys() - theirs.keys()))
        _count_each(self.only_there, both & (theirs.keys() - ours.keys()))
        for name in sorted(ours.keys() & theirs.keys()):
            distance = abs(ours[name] - theirs[name])
            self.compared[name] = self.compared.get(name, 0) + 1
            self.apart[name] = self.apart.get(name, 0) + (distance > tolerance)
            self.total += distance
            if distance > self.largest:
                self.largest, self.largest_of = distance, name


@dataclass(slots=True)
class Comparison:
    """Accumulated comparisons of two services. `scores` returns the TargetLoadPacking scores for predicted
    utilisations (percent, shape (nodes,)). `tolerance` is in percentage points."""

    scores: Scores
    tolerance: float = TOLERANCE
    rounds: int = 0
    differences: dict[tuple[str, str], Difference] = field(default_factory=dict)
    only_here: dict[str, int] = field(default_factory=dict)
    only_there: dict[str, int] = field(default_factory=dict)
    same_winner: int = 0
    winners: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def add(self, ours: ServiceLoads, theirs: ServiceLoads) -> None:
        """Add a pair of responses from about the same time."""
        self.rounds += 1
        for key in ((kind.value, operator.value) for kind in TYPES for operator in OPERATORS):
            self.differences.setdefault(key, Difference(*key)).add(ours, theirs, tolerance=self.tolerance)
        _count_each(self.only_here, ours.nodes - theirs.nodes)
        _count_each(self.only_there, theirs.nodes - ours.nodes)
        self.winners = (winners(ours, self.scores), winners(theirs, self.scores))
        self.same_winner += bool(set(self.winners[0]) & set(self.winners[1]))

    def mostly(self, counts: Mapping[str, int]) -> tuple[str, ...]:
        """Nodes that were counted in more than half of the comparisons, sorted."""
        return tuple(sorted(name for name, count in counts.items() if 2 * count > self.rounds))

    def differences_in_words(self) -> tuple[str, ...]:
        """Descriptions of the differences; empty if the services agree."""
        said = [
            f"{_nodes(names)} known only to {where}: {shorten_names(names)}"
            for names, where in (
                (self.mostly(self.only_here), "this service"),
                (self.mostly(self.only_there), "the other service"),
            )
            if names
        ]
        for difference in self.differences.values():
            what = f"{difference.type} {difference.operator}"
            for counts, where in (
                (difference.only_here, "this service"),
                (difference.only_there, "the other service"),
            ):
                if names := self.mostly(counts):
                    said.append(f"{what} of {_nodes(names)} only from {where}: {shorten_names(names)}")
            if names := difference.nodes_apart:
                said.append(
                    f"{what} of {_nodes(names)} differs by more than {self.tolerance:g} points: {shorten_names(names)}"
                )
        if 2 * self.same_winner <= self.rounds:
            said.append("TargetLoadPacking would choose other nodes")
        return tuple(said)


def winners(answer: ServiceLoads, scores: Scores) -> tuple[str, ...]:
    """Nodes with the highest score for a pod with negligible requests, sorted. kube-scheduler may choose any of
    them."""
    names = sorted(answer.packing)
    of_nodes = scores(np.array([answer.packing[name] for name in names], dtype=np.float64))
    best = of_nodes.max()
    return tuple(name for name, score in zip(names, of_nodes.tolist(), strict=True) if score == best)


def _count_each(counts: dict[str, int], names: Iterable[str]) -> None:
    for name in names:
        counts[name] = counts.get(name, 0) + 1


def _nodes(names: Sequence[str]) -> str:
    return f"{len(names):,} node" + ("" if len(names) == 1 else "s")
