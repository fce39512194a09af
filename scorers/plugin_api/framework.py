"""Plug-in interface: a plug-in is called once per pod, for all nodes at the same time.

A plug-in returns all intermediate results as arrays over the nodes. Scoring uses the last array; an explanation shows
one row of each. Both come from the same computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from scorers.cluster.load import NodeLoadColumns
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import Arguments, read_arguments
from watcher.arrays import F64, I64, Bool

MAX_SCORE = 100.0
EQUAL_SCORES = "equal scores for all nodes"
"""Fallback of a plug-in that gives all nodes the same score when there is no load data."""

PluginT = TypeVar("PluginT", covariant=True)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores 0 to 100 of n nodes and their computation: `steps[name]` [n] in order of computation, and `inputs[name]`,
    equal for all nodes. NaN in a step means unknown. `reason(i)` returns the explanation of node i, and `more_steps(i)`
    its further steps, which are not computed for all nodes; both read only arrays that do not change, not the table,
    because they may be called after the response is sent."""

    values: F64
    steps: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    reason: Callable[[int], str] = lambda _: ""
    more_steps: Callable[[int], Mapping[str, Any]] = lambda _: {}


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Filter results of n nodes: `reasons[codes[i]]` is the reason for rejecting node i; code 0 means the node passes.
    Codes in `unresolvable` mean that preempting other pods would not help. `details(i)` adds to the reason of node i in
    explanations, "" for nothing; `more_steps` as in Scores."""

    codes: I64
    reasons: tuple[str, ...] = ("",)
    steps: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    unresolvable: frozenset[int] = frozenset()
    details: Callable[[int], str] = lambda i: ""
    more_steps: Callable[[int], Mapping[str, Any]] = lambda _: {}

    @property
    def passed(self) -> Bool:
        """Whether each node passes [n]."""
        return np.asarray(self.codes == 0, dtype=np.bool_)


def joined(first: Verdicts, second: Verdicts | None, count: int) -> Verdicts:
    """Return the verdicts of n nodes, followed by those of `count` others, which all pass if `second` is None. Without
    steps."""
    codes = np.zeros(count, dtype=np.int64) if second is None else second.codes
    size = len(first.codes)

    def details(i: int) -> str:
        return first.details(i) if i < size or second is None else second.details(i - size)

    return replace(
        first, codes=np.concatenate([first.codes, codes]), steps={}, details=details, more_steps=lambda i: {}
    )


def passing(count: int, why: str) -> Verdicts:
    """Return verdicts that let all nodes pass, and the reason."""
    return Verdicts(np.zeros(count, dtype=np.int64), inputs={"exempt": why}, details=lambda i: why)


@runtime_checkable
class ScorePlugin(Protocol):
    """Scores nodes: `rows` [n] are the table rows of the nodes in the request, all of them known nodes."""

    name: str

    def score(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Scores: ...


@runtime_checkable
class FilterPlugin(Protocol):
    """Rejects nodes; parameters as for ScorePlugin. It is not called for pods that are exempt (`exemptions`), unless
    it has the attribute `filters_every_pod` with the value True."""

    name: str

    def filter(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Verdicts: ...


@runtime_checkable
class LoadFilterPlugin(Protocol):
    """Filter plug-in that also judges nodes of which only the load is known: the API has not reported them yet, or
    the API is not read."""

    name: str

    def filter_by_load(self, pod: PodInfo, load: NodeLoadColumns, *, now: float) -> Verdicts: ...


@runtime_checkable
class PreparingPlugin(Protocol):
    """Computes results that do not depend on the pod ahead of requests: in short steps, after each new copy of the
    load."""

    def prepare(self, table: ClusterTable) -> Iterator[None]: ...


@runtime_checkable
class FallbackPlugin(Protocol):
    """Plug-in that uses another input when most nodes lack the load data that it scores by."""

    name: str

    def fallback(self, table: ClusterTable, *, now: float) -> str:
        """Return the name of the input used instead of load, "" if load is used."""
        ...


@runtime_checkable
class ForecastPlugin(Protocol):
    """Plug-in that can use forecasts of the load instead of windows."""

    name: str

    def missing_forecasts(self, table: ClusterTable) -> str:
        """Return why the plug-in uses windows for all nodes although its arguments ask for forecasts, otherwise ""."""
        ...


@runtime_checkable
class EstimatingPlugin(Protocol):
    """Plug-in that estimates the usage of pods."""

    name: str

    def estimates(self, row: int) -> Mapping[str, Any]:
        """Return the estimates for the pods on the node in this row, for display."""
        ...


class PluginFactory(Protocol[PluginT]):
    """Creates a plug-in from its arguments. `profile` is part of the names that the plug-in registers with the table:
    two profiles may have the same plug-in with different arguments."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> type[Arguments]: ...

    def __call__(self, arguments: Any, table: ClusterTable, *, profile: str) -> PluginT: ...


def create_plugin(
    factory: PluginFactory[PluginT], given: Mapping[str, Any], table: ClusterTable, *, profile: str = "default"
) -> tuple[PluginT, tuple[str, ...]]:
    """Create a plug-in from user-given arguments; return it with notices. Raises ArgumentsError."""
    arguments, notices = read_arguments(factory.name, factory.arguments, given, windows=table.windows)
    return factory(arguments, table, profile=profile), notices


def enough_known(known: Bool) -> bool:
    """Return whether load may rank n nodes: it is known [n] for at least half of them, or there is only one. If fewer
    nodes have load data, they would get all pods just because they have data."""
    return len(known) < 2 or 2 * int(np.count_nonzero(known)) >= len(known)


def load_decides(known: Bool, *, fallback: str) -> bool:
    """Return whether load ranks the nodes in the request. For a single node without load, the rule for the whole
    cluster applies: `fallback` is the plug-in's fallback there, "" for load."""
    return enough_known(known) if len(known) > 1 or known.any() else not fallback


def fill_unknown_scores(scores: F64) -> F64:
    """Fill unknown (NaN) scores [n] so that nodes can be compared: with the lowest known score if most scores are
    known, because missing data must not favor a node; otherwise all scores become NaN."""
    known = ~np.isnan(scores)
    if known.all() or len(known) < 2:
        return scores
    return np.where(known, scores, scores[known].min()) if enough_known(known) else np.full(len(scores), np.nan)


def round_half_away(values: F64) -> F64:
    """Round halves away from zero, as Go's math.Round does."""
    rounded: F64 = np.rint(values)  # halves to even
    halves = np.abs(values - rounded) == 0.5
    if halves.any():
        rounded = np.where(halves, np.trunc(values) + np.copysign(1.0, values), rounded)
    return rounded


def round_half_away_one(value: float) -> int:
    """Round one number, halves away from zero."""
    whole = int(value)
    return whole + (1 if value > 0 else -1) * (abs(value - whole) >= 0.5)
