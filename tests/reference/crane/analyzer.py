"""Emulates the analyzer of Crane v0.11.0 (analyzer/analyzer.go: Analyze, computeActionContext, merge).

A rule is restored in one cycle only (analyzer.go:297). Without rules nothing is decided, so pods of a removed policy
stay throttled (:198).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from agent.model import AvoidanceAction, CpuThrottle, PodState, Rule, State
from tests.reference.crane.faults import CraneFault
from tests.reference.crane.pod_qos import CranePodQos, matches

Marks = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class CranePolicies:
    """The rules in the order of their NodeQOS objects, the actions by name, and the PodQOS objects."""

    rules: Sequence[Rule]
    actions: Mapping[str, AvoidanceAction]
    pod_qos: Sequence[CranePodQos]


@dataclass(slots=True)
class CraneDecision:
    """The decision of one cycle. `down`, `up` and `evict` are the watermarks by metric, ascending; pods are named by
    key; `events` are type, reason and note. `notified`: the executor gets the decision."""

    notified: bool = False
    triggered: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    disable: bool = False
    restore: bool = False
    events: list[str] = field(default_factory=list)
    down: Marks = field(default_factory=dict)
    up: Marks = field(default_factory=dict)
    evict: Marks = field(default_factory=dict)
    down_pods: dict[str, CpuThrottle] = field(default_factory=dict)
    up_pods: dict[str, CpuThrottle] = field(default_factory=dict)
    evict_pods: dict[str, float | None] = field(default_factory=dict)


class CraneAnalyzer:
    """Keeps the counts from one cycle to the next. `evict_pods` of its decisions have grace periods in seconds only if
    NO_GRACE is among the `repaired` faults. If COUNTING is, no rule is restored."""

    def __init__(self, policies: CranePolicies, repaired: Set[CraneFault] = frozenset()) -> None:
        self._policies = policies
        self._repaired = repaired
        self._above: dict[str, int] = {}
        self._below: dict[str, int] = {}
        self._event_triggered: set[str] = set()
        self._last_triggered: float | None = None

    def analyze(self, state: State) -> CraneDecision:
        """Decide one cycle; the time of the state is in seconds."""
        made = CraneDecision(notified=bool(self._policies.rules))
        if not made.notified:
            return made
        for rule in self._policies.rules:
            self._count(rule, state, made)
        self._record_events(made)
        self._schedule(state.time, made)
        for rule in self._enforced():
            action = self._policies.actions.get(rule.action)
            if action is not None:
                self._merge(rule, action, state.pods, made)
        return made

    def _enforced(self) -> list[Rule]:
        return [rule for rule in self._policies.rules if not rule.preview]

    def _count(self, rule: Rule, state: State, made: CraneDecision) -> None:
        series = [each for each in state.metrics.get(rule.metric, ()) if rule.selector.matches(each.labels)]
        if not series:
            return
        key = rule.key
        if any(each.value > rule.watermark for each in series):
            self._below[key] = 0
            self._above[key] = min(self._above.get(key, 0) + 1, rule.avoidance_threshold)
            if self._above[key] >= rule.avoidance_threshold:
                made.triggered.append(key)
            return
        self._below[key] = min(self._below.get(key, 0) + 1, rule.restore_threshold)
        if CraneFault.COUNTING in self._repaired:
            self._above[key] = 0
        if self._above.get(key, 0) >= rule.avoidance_threshold and self._below[key] >= rule.restore_threshold:
            self._above[key] = 0
            made.restored.append(key)

    def _record_events(self, made: CraneDecision) -> None:
        for rule in self._policies.rules:
            name = f"{rule.policy}/{rule.name}"
            if rule.key in made.triggered:
                made.events.append(f"Warning:AvoidanceTriggered:{name} triggered action {rule.action}")
                self._event_triggered.add(rule.key)
            elif rule.key in made.restored and rule.key in self._event_triggered:
                made.events.append(f"Normal:RestoreTriggered:{name} restored action {rule.action}")
                self._event_triggered.discard(rule.key)

    def _schedule(self, now: float, made: CraneDecision) -> None:
        enforced = self._enforced()
        made.restore = not enforced
        for rule in enforced:
            action = self._policies.actions.get(rule.action)
            if rule.key in made.triggered and (action or CraneFault.UNKNOWN_ACTION not in self._repaired):
                break
            if action is None or rule.key not in made.restored:
                continue
            if self._last_triggered is None or now > self._last_triggered + action.cool_down_seconds:
                made.restore = True
            elif CraneFault.COOL_DOWN not in self._repaired:
                break
        else:
            return
        made.disable, made.restore = True, False
        self._last_triggered = now

    def _merge(self, rule: Rule, action: AvoidanceAction, pods: Iterable[PodState], made: CraneDecision) -> None:
        allowing = [each for each in self._policies.pod_qos if action.name in each.actions]
        chosen = [pod.key for pod in pods if any(matches(each, pod, self._repaired) for each in allowing)]
        for verdict, marks, ratios in (
            (made.triggered, made.down, made.down_pods),
            (made.restored, made.up, made.up_pods),
        ):
            if action.throttle is not None and rule.key in verdict:
                marks[rule.metric] = sorted([*marks.get(rule.metric, ()), rule.watermark])
                for key in chosen:
                    ratios[key] = _larger(ratios.get(key, action.throttle), action.throttle)
        if action.evicts and rule.key in made.triggered:
            made.evict[rule.metric] = sorted([*made.evict.get(rule.metric, ()), rule.watermark])
            grace = action.grace_seconds if CraneFault.NO_GRACE in self._repaired else None
            for key in chosen:
                known = [each for each in (made.evict_pods.get(key), grace) if each is not None]
                made.evict_pods[key] = min(known, default=None)


def _larger(first: CpuThrottle, second: CpuThrottle) -> CpuThrottle:
    return CpuThrottle(max(first.min_ratio, second.min_ratio), max(first.step_ratio, second.step_ratio))
