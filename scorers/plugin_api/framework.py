"""What a plug-in is, and how it is asked: once a pod, about all nodes at the same time.

A plug-in gives back all that it computed on the way, as arrays over the nodes. Scoring takes the last of them,
explaining shows one row of each: there is no second computation that could tell another story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from scorers.cluster.pods import PodInfo
from scorers.cluster.table import Table
from scorers.plugin_api.arguments import Arguments, read_arguments

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

MAX_SCORE = 100.0
NO_ORDER = "no order of its own"
"""What a plug-in goes by that scores all nodes alike."""

PluginT = TypeVar("PluginT", covariant=True)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores 0 to 100 of n nodes, and how they came about: `steps[name]` [n], in the order of the computation, and
    `inputs[name]`, what is the same for all nodes. NaN in a step is "not known". `reason(i)` says it in words, from
    these arrays and not from the table: it may be asked for once the answer is given."""

    values: F64
    steps: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    reason: Callable[[int], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Whether each of n nodes may have the pod: `reasons[code[i]]` says why not, code 0 is "it may". With a code that
    is `unresolvable` it would not have it if all other pods went."""

    codes: I64
    reasons: tuple[str, ...] = ("",)
    steps: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    unresolvable: frozenset[int] = frozenset()

    @property
    def passed(self) -> Bool:
        """[n]"""
        return np.asarray(self.codes == 0, dtype=np.bool_)


@runtime_checkable
class ScorePlugin(Protocol):
    """Scores nodes: `rows` [n] are those of the table that are asked about, all of them known nodes."""

    name: str

    def score(self, pod: PodInfo, table: Table, rows: I64, *, now: float) -> Scores: ...


@runtime_checkable
class FilterPlugin(Protocol):
    """Rejects nodes."""

    name: str

    def filter(self, pod: PodInfo, table: Table, rows: I64, *, now: float) -> Verdicts: ...


@runtime_checkable
class PreparingPlugin(Protocol):
    """Computes what does not depend on the pod before one asks: in short steps, after each new copy of the load."""

    def prepare(self, table: Table) -> Iterator[None]: ...


@runtime_checkable
class FallingBack(Protocol):
    """Goes by something else where most nodes lack the load that it scores by."""

    name: str

    def fallback(self, table: Table, *, now: float) -> str:
        """By what, "" while there is load."""
        ...


@runtime_checkable
class Estimating(Protocol):
    """Counts pods by what they are taken to use."""

    name: str

    def estimates(self, row: int) -> Mapping[str, Any]:
        """What it counts of the pods on the node in this row, for people to look at."""
        ...


class Factory(Protocol[PluginT]):
    """How a plug-in is made: its name and arguments, and from these the plug-in. `profile` makes what it registers with
    the table its own: two profiles may have the same plug-in with other arguments."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> type[Arguments]: ...

    def __call__(self, arguments: Any, table: Table, *, profile: str) -> PluginT: ...


def make(
    factory: Factory[PluginT], given: Mapping[str, Any], table: Table, *, profile: str = "default"
) -> tuple[PluginT, tuple[str, ...]]:
    """A plug-in from the arguments that a user wrote, and notices. Raises ArgumentsError."""
    arguments, notices = read_arguments(factory.name, factory.arguments, given, windows=table.windows)
    return factory(arguments, table, profile=profile), notices


def mostly(known: Bool) -> bool:
    """Whether load may decide between n nodes, of which `known` [n] have it: at least half of them do. If fewer have,
    they would get all pods for no better reason than that. One node alone is not ranked against any."""
    return len(known) < 2 or 2 * int(np.count_nonzero(known)) >= len(known)


def decides(known: Bool, *, fallback: str) -> bool:
    """The same for the nodes asked about; of one alone of which nothing is known, what is so in the whole cluster:
    `fallback` is what a plug-in goes by there, "" for load."""
    return mostly(known) if len(known) > 1 or known.any() else not fallback


def comparable(scores: F64) -> F64:
    """Scores [n] by something that is not known (NaN) of some nodes, so that nodes can be compared: where it is known
    of most, the others have the lowest of those, since what is not known must not speak for a node; else none has any.
    """
    known = ~np.isnan(scores)
    if known.all() or len(known) < 2:
        return scores
    return np.where(known, scores, scores[known].min()) if mostly(known) else np.full(len(scores), np.nan)


def round_half_away(values: F64) -> F64:
    """As Go's math.Round: halves away from zero."""
    rounded: F64 = np.rint(values)  # halves to even
    halves = np.abs(values - rounded) == 0.5
    if halves.any():
        rounded = np.where(halves, np.trunc(values) + np.copysign(1.0, values), rounded)
    return rounded


def round_half_away_one(value: float) -> int:
    """The same of one number."""
    whole = int(value)
    return whole + (1 if value > 0 else -1) * (abs(value - whole) >= 0.5)
