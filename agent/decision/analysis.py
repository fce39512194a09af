"""Values that the analyzer returns and the state that it carries from one cycle to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from agent.decision.plan import RuleFinding
from agent.decision.watermark import Watermarks
from agent.model import CpuThrottle


@dataclass(frozen=True, slots=True)
class RuleMemory:
    """The counts of one rule. `triggered`: it has been, and has not been restored in full since; `since` when that
    began. `restored`: it has been told to restore since. `seen`: its metric was there once, so that its absence is a
    loss and not a mistake or a start."""

    above: int = 0
    below: int = 0
    triggered: bool = False
    since: float | None = None
    restored: bool = False
    seen: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """What one cycle leaves to the next. `keeps_away` is what was last decided about new pods; None before the first
    decision, when a taint of an earlier run may still be there."""

    rules: Mapping[str, RuleMemory] = field(default_factory=dict)
    last_triggered: float | None = None
    keeps_away: bool | None = None

    def later(self, seconds: float) -> Memory:
        """The same for who counts time from elsewhere: every time in it is so much later (or earlier)."""
        last = None if self.last_triggered is None else self.last_triggered + seconds
        rules = {
            key: each if each.since is None else replace(each, since=each.since + seconds)
            for key, each in self.rules.items()
        }
        return replace(self, rules=rules, last_triggered=last)


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about the node, as upstream words it."""

    type: Literal["Normal", "Warning"]
    reason: Literal["AvoidanceTriggered", "RestoreTriggered"]
    note: str
    rule: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod that may be acted on, for these metrics; how, after merging all rules that want it. `weight_first`: its
    weight is lowered before its quota."""

    metrics: frozenset[str]
    throttle: CpuThrottle = field(default_factory=CpuThrottle)
    grace_seconds: float | None = None
    weight_first: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """What some rules want together. Watermarks and pods (namespace/name) of each action, `hold` and `loosen` being to
    lower memory.high and to give it back; `ceilings` are watermarks
    that restoring must not reach, of metrics whose rules leave room between the two; `missed` are metrics that are
    missing and whose rules say onMissing: all; `since` says when the rules that evict for a metric were first
    triggered."""

    down: Watermarks = field(default_factory=dict)
    up: Watermarks = field(default_factory=dict)
    evict: Watermarks = field(default_factory=dict)
    throttled: Mapping[str, Wanted] = field(default_factory=dict)
    restored: Mapping[str, Wanted] = field(default_factory=dict)
    evicted: Mapping[str, Wanted] = field(default_factory=dict)
    reclaim: Watermarks = field(default_factory=dict)
    reclaimed: Mapping[str, Wanted] = field(default_factory=dict)
    hold: Watermarks = field(default_factory=dict)
    held: Mapping[str, Wanted] = field(default_factory=dict)
    loosen: Watermarks = field(default_factory=dict)
    loosened: Mapping[str, Wanted] = field(default_factory=dict)
    ceilings: Mapping[str, float] = field(default_factory=dict)
    missed: frozenset[str] = frozenset()
    since: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Analysis:
    """The whole of a cycle's judgement. `demand` is to be carried out; `preview` is what the rules in preview would
    want on their own. `keep_away` is what to do about new pods, None for no change. `released` are pods that no rule
    may throttle any more, and that are still owed their quota."""

    time: float
    findings: tuple[RuleFinding, ...]
    demand: Demand
    preview: Demand
    keep_away: bool | None
    because: str
    may_restore: bool
    released: tuple[str, ...]
    events: tuple[Event, ...]
    warnings: tuple[str, ...]
    memory: Memory
    unheld: tuple[str, ...] = ()
    """The same of pods that no rule may hold back from memory any more."""
