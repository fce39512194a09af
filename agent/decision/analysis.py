"""Values that the analyzer returns and the state that it carries from one cycle to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from agent.decision.plan import RuleFinding
from agent.model import CpuThrottle

Watermarks = Mapping[str, tuple[float, ...]]
"""Watermarks of one action by metric, in the metric's unit, in ascending order. Several rules may name the same metric
for the same action; all values are stored, and the smallest one counts."""


def gathered(values: Iterable[tuple[str, float]]) -> dict[str, tuple[float, ...]]:
    """Group (metric, value) pairs of one action by metric, with the values in ascending order."""
    found: dict[str, list[float]] = {}
    for metric, value in values:
        found.setdefault(metric, []).append(value)
    return {metric: tuple(sorted(found[metric])) for metric in sorted(found)}


@dataclass(frozen=True, slots=True)
class RuleState:
    """Counts and flags of one rule.

    triggered       the rule was triggered at `since` (unix seconds) and has not been restored in full
    last_triggered  the last time (unix seconds) with the verdict TRIGGERED; the cool-down starts then
    restored        the rule has had the verdict RESTORED since it was last triggered
    seen            the metric was available at least once; only then does onMissing: all treat its absence as above
    """

    above: int = 0
    below: int = 0
    triggered: bool = False
    since: float | None = None
    restored: bool = False
    seen: bool = False
    last_triggered: float | None = None

    def shifted(self, seconds: float) -> RuleState:
        """Return a copy with all times shifted by `seconds`."""
        return replace(self, since=_plus(self.since, seconds), last_triggered=_plus(self.last_triggered, seconds))


def _plus(time: float | None, seconds: float) -> float | None:
    return None if time is None else time + seconds


@dataclass(frozen=True, slots=True)
class AnalyzerState:
    """State that one cycle passes to the next. `keeps_away` is the last decision about new pods; None before the first
    decision, when a taint from an earlier run may still exist."""

    rules: Mapping[str, RuleState] = field(default_factory=dict)
    keeps_away: bool | None = None

    def cooling_since(self, time: float) -> AnalyzerState:
        """Return a copy in which the cool-down of each rule starts at `time` (unix seconds)."""
        return replace(self, rules={key: replace(each, last_triggered=time) for key, each in self.rules.items()})

    def shifted(self, seconds: float) -> AnalyzerState:
        """Return a copy with all times shifted by `seconds` (negative: earlier), for a wall clock that jumped."""
        return replace(self, rules={key: each.shifted(seconds) for key, each in self.rules.items()})


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A Kubernetes Event about the node, with the reasons and wording of Crane."""

    type: Literal["Normal", "Warning"]
    reason: Literal["AvoidanceTriggered", "RestoreTriggered"]
    note: str
    rule: str


@dataclass(frozen=True, slots=True)
class PodDemand:
    """Parameters for acting on one pod, merged over all rules that select it for `metrics`. `weight_first`: lower
    cpu.weight before the CPU quota."""

    metrics: frozenset[str]
    throttle: CpuThrottle = field(default_factory=CpuThrottle)
    grace_seconds: float | None = None
    weight_first: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """Actions that a set of rules demands together: for each action the watermarks by metric, and the pods (by uid).

    hold, loosen  lower memory.high, and restore it
    ceilings      by metric, the watermark that restoring must not reach
    missed        missing metrics whose rules have onMissing: all
    since         by metric, when the first evicting rule was triggered (unix seconds)
    """

    down: Watermarks = field(default_factory=dict)
    up: Watermarks = field(default_factory=dict)
    evict: Watermarks = field(default_factory=dict)
    throttled: Mapping[str, PodDemand] = field(default_factory=dict)
    restored: Mapping[str, PodDemand] = field(default_factory=dict)
    evicted: Mapping[str, PodDemand] = field(default_factory=dict)
    reclaim: Watermarks = field(default_factory=dict)
    reclaimed: Mapping[str, PodDemand] = field(default_factory=dict)
    memory_high: Watermarks = field(default_factory=dict)
    held: Mapping[str, PodDemand] = field(default_factory=dict)
    memory_high_restore: Watermarks = field(default_factory=dict)
    loosened: Mapping[str, PodDemand] = field(default_factory=dict)
    ceilings: Mapping[str, float] = field(default_factory=dict)
    missed: frozenset[str] = frozenset()
    since: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Analysis:
    """Result of one cycle's analysis. `demand` is to be carried out; `preview` is the demand of the rules in preview.
    `keep_away` is the decision about new pods, None for no change, and `because` its reason. `released` are pods with a
    lowered quota or weight that no rule covers any more."""

    time: float
    findings: tuple[RuleFinding, ...]
    demand: Demand
    preview: Demand
    keep_away: bool | None
    because: str
    may_restore: bool
    released: tuple[str, ...]
    events: tuple[NodeEvent, ...]
    warnings: tuple[str, ...]
    memory: AnalyzerState
    unheld: tuple[str, ...] = ()
    """Pods with a lowered memory.high that no rule covers any more."""
