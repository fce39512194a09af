"""Checks each plan of a closed loop against the rules of docs/concepts/agent.md.

The checker reads the public data of a plan, and computes verdicts, gaps, quotas, orders and pending effects again with
its own arithmetic. A finding is a sentence about a step that should not be there, or about one that is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from agent.decision.eviction_limits import EvictionLimits, EvictionRecord
from agent.decision.plan import Plan
from agent.model import (
    ContainerState,
    Eviction,
    Original,
    PageCacheReclaim,
    PodState,
    Policies,
    QuotaChange,
    SchedulingChange,
    State,
    Step,
)
from tests.agent.scenes import C, changes
from tests.plan_checker.arithmetic import (
    MEASURES,
    MOST_CORES,
    ROUNDED,
    TINY,
    gap_above,
    gap_below,
    highest_quota,
    importance,
    is_lowered,
    lower_quota,
    most_urgent_first,
    order,
    usage,
)
from tests.plan_checker.in_flight import PendingSteps
from tests.plan_checker.rules import CheckedRule, CheckedRules

SETTLE = 30.0
LIMITS = EvictionLimits()
MOST_LOW_CYCLES = 3
"""A container may have less than half of its share of the gap for this many cycles in a row."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the planner knows beside state and rules: pods (namespace/name) that are unavailable in this cycle, pods
    (uid) whose eviction was refused, and the evictions of the last 600 s. `is_second`: the second plan of a cycle."""

    unavailable: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    past: tuple[EvictionRecord, ...] = ()
    is_second: bool = False


@dataclass(slots=True)
class _Group:
    """The steps on one pod for one metric, and their release by resource."""

    pod: PodState
    metric: str
    released: dict[str, float]


@dataclass(slots=True)
class PlanChecker:
    """The checker of one node. Per cycle: `begin`, then `check` and `carried_out` for each plan, then `end`."""

    policies: Policies
    tainted: bool = False
    rules: CheckedRules = field(init=False)
    pending: PendingSteps = field(default_factory=PendingSteps)
    state: State = field(default_factory=lambda: State(0.0))
    pods: dict[str, PodState] = field(default_factory=dict)
    originals: Mapping[str, Original] = field(default_factory=dict)
    around: Circumstances = field(default_factory=Circumstances)
    low: dict[str, int] = field(default_factory=dict)
    """Cycles in a row in which a container had less than half of its share of the gap."""

    def __post_init__(self) -> None:
        self.rules = CheckedRules(self.policies)

    def begin(self, state: State, originals: Mapping[str, Original]) -> None:
        self.state, self.originals = state, originals
        self.pending.prune(state)
        self.rules.see(state, originals)

    def carried_out(self, steps: Iterable[Step]) -> None:
        self.pending.add(steps, self.state.time)

    def end(self) -> None:
        self.rules.finish(self.state, self.originals)

    def check(self, made: Plan, around: Circumstances) -> Iterator[str]:
        """The findings of one plan."""
        self.around = around
        self.pods = {pod.uid: self.pending.as_throttled(pod, self.state.time) for pod in self.state.pods}
        yield from self._verdicts(made)
        if not around.is_second:
            yield from self._scheduling(made)
        yield from self._protected(made.steps)
        yield from self._protected(made.preview)
        yield from self._once(made.steps)
        yield from self._limits(made.steps)
        quotas = changes(made.steps, QuotaChange)
        lowered = [each for each in quotas if each[0].kind == "throttle"]
        throttled = self._groups(lowered, self._released_by_quota)
        evictions = changes(made.steps, Eviction)
        evicted = self._groups(evictions, lambda pod, _: {name: usage(pod, name) for name in ("cpu", "memory")})
        yield from self._quotas(lowered)
        yield from self._stage("throttle", throttled, {})
        yield from self._reclaimed(changes(made.steps, PageCacheReclaim))
        yield from self._graces(made.steps)
        yield from self._stage("evict", evicted, _total(throttled), bool(lowered))
        restored = [each for each in quotas if each[0].kind == "restore"]
        yield from self._restored(restored)
        yield from self._restored_in_order([step for step, _ in restored if step.metric])

    def at_the_end(self, state: State, originals: Mapping[str, Original]) -> Iterator[str]:
        """What is left although the load has been gone for longer than all cool-downs."""
        if self.tainted:
            yield "the taint stays although the load is gone"
        lowered = [
            container.id
            for pod in state.pods
            if not pod.terminating and pod.phase == "Running"
            for container in pod.containers
            if is_lowered(container, originals.get(container.id))
        ]
        if lowered:
            yield f"the quotas of {lowered} stay lowered although the load is gone"

    # --- rules and scheduling ----------------------------------------------------------------------------------------

    def _verdicts(self, made: Plan) -> Iterator[str]:
        for found, own in zip(made.rules, self.rules.all, strict=True):
            if found.verdict.value != own.verdict:
                yield f"{found.rule} is {found.verdict.value}, expected {own.verdict}"

    def _scheduling(self, made: Plan) -> Iterator[str]:
        steps = changes(made.steps, SchedulingChange)
        expected = bool(self.rules.triggered) or (
            self.tainted and any(each.holds(self.state.time) for each in self.rules.enforced)
        )
        after = steps[-1][1].disable if steps else self.tainted
        if len(steps) > 1 or after != expected:
            yield f"the taint is {after}, expected {expected} ({[step.reason for step, _ in steps]})"
        self.tainted = expected

    # --- each step ---------------------------------------------------------------------------------------------------

    def _protected(self, steps: Iterable[Step]) -> Iterator[str]:
        for step in steps:
            if isinstance(step.change, SchedulingChange):
                continue
            pod = self.pods.get(step.uid)
            if pod is None or pod.key != step.pod or (reason := self._untouchable(pod, step.kind)):
                yield f"{step.kind} of {step.pod}: {'no such pod' if pod is None else reason}"

    def _untouchable(self, pod: PodState, kind: str) -> str:
        """The reason why no step of this kind is allowed on the pod; "" if it is."""
        reasons = {
            "critical": pod.priority >= 2_000_000_000,
            "static": pod.static,
            "terminating": pod.terminating,
            "finished": pod.phase != "Running",
            "leaving": pod.uid in self.pending.leaving(self.state.time),
            "unavailable": pod.uid in self.around.unavailable,
            "of a DaemonSet": kind == "evict" and pod.daemon,
            "unmanaged": kind == "evict" and not pod.managed,
            "refused": kind == "evict" and pod.uid in self.around.refused,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def _once(self, steps: Iterable[Step]) -> Iterator[str]:
        counted = Counter(
            each.change.container_id if isinstance(each.change, QuotaChange) else f"{each.kind} of {each.uid}"
            for each in steps
            if not isinstance(each.change, SchedulingChange)
        )
        yield from (f"{name} is changed {count} times" for name, count in counted.items() if count > 1)

    def _limits(self, steps: Iterable[Step]) -> Iterator[str]:
        planned: list[tuple[str, str]] = []
        for step, change in changes(steps, Eviction):
            if self._over_limits(step.pod, change.owner, planned):
                yield f"evicting {step.pod} exceeds the limits"
            planned.append((step.pod, change.owner))

    def _over_limits(self, key: str, owner: str, planned: Iterable[tuple[str, str]]) -> bool:
        """`planned` has the pods (namespace/name) of the evictions before, and their owners."""
        namespace = key.partition("/")[0]
        known = [(each.namespace, each.owner, each.refused) for each in self.around.past]
        known += [(pod.partition("/")[0], of, False) for pod, of in planned]
        same = [each for each in known if each[0] == namespace and not each[2]]
        owned = [each for each in same if each[1] == owner and owner]
        return (
            len(known) >= LIMITS.evictions_per_node
            or len(same) >= LIMITS.evictions_per_namespace
            or len(owned) >= LIMITS.evictions_per_owner
        )

    def _quotas(self, steps: Iterable[tuple[Step, QuotaChange]]) -> Iterator[str]:
        for step, change in steps:
            name = change.container_id
            container = next((each for each in self.pods[step.uid].containers if each.id == name), None)
            expected = None if container is None else lower_quota(container, *self._ratio(step.pod))
            if container is None or expected is None or container.quota != change.before:
                yield f"{name} cannot be lowered from {change.before} to {change.after}"
            elif change.before is None and expected[1] <= 0.0 and step.metric in self._gaps("throttle", {}):
                yield f"{name} gets a quota that releases nothing"
            elif change.after != expected[0] or abs(step.released.get("cpu", 0.0) - expected[1]) > TINY:
                yield f"{name} becomes {change.after} ({dict(step.released)}), expected {expected}"
            elif change.lag_seconds != _lag(self._throttling(step.pod)):
                yield f"{name} is lowered with a lag of {change.lag_seconds} s"

    def _graces(self, steps: Iterable[Step]) -> Iterator[str]:
        for step, change in changes(steps, Eviction):
            rules = [each for each in self._demanding("evict") if step.pod in each.pods]
            named = [each.action.grace_seconds for each in rules if each.action.grace_seconds is not None]
            expected = min(named, default=self.pods[step.uid].grace_seconds)
            if change.grace_seconds != expected:
                yield f"{step.pod} has {change.grace_seconds} s to end, expected {expected}"

    def _reclaimed(self, steps: Iterable[tuple[Step, PageCacheReclaim]]) -> Iterator[str]:
        gaps = self._gaps("reclaim", {})
        for step, change in steps:
            gap = gaps.get(step.metric, 0.0)
            if step.pod not in self._wanted("reclaim", step.metric) or change.bytes > gap + 1.0 + TINY:
                yield f"{change.bytes} bytes of {step.pod} are reclaimed for {step.metric}, gap {gap}"

    # --- throttling and eviction -------------------------------------------------------------------------------------

    def _demanding(self, kind: str) -> list[CheckedRule]:
        """The triggered rules whose action has such steps, and whose metric they reduce."""
        return [each for each in self.rules.triggered if _asks(each, kind) and MEASURES[each.rule.metric].how(kind)]

    def _wanted(self, kind: str, metric: str) -> frozenset[str]:
        return frozenset().union(*(each.pods for each in self._demanding(kind) if each.rule.metric == metric))

    def _throttling(self, key: str) -> list[CheckedRule]:
        return [each for each in self._demanding("throttle") if key in each.pods]

    def _ratio(self, key: str) -> tuple[int, int]:
        """stepCPURatio and minCPURatio of a pod, the largest of its rules."""
        found = [each.action.throttle for each in self._throttling(key) if each.action.throttle is not None]
        return max((each.step_ratio for each in found), default=0), max((each.min_ratio for each in found), default=0)

    def _gaps(self, kind: str, freed: Mapping[str, float]) -> dict[str, float]:
        """The gaps of the triggered metrics that can be quantified, after the release `freed`."""
        found: dict[str, float] = {}
        for name in {each.rule.metric for each in self._demanding(kind)}:
            measure, used = MEASURES[name], self.state.value(name)
            unit = measure.per_unit(self.state)
            if measure.how(kind) == "gap" and used is not None and unit is not None:
                mark = min(each.rule.watermark for each in self._demanding(kind) if each.rule.metric == name)
                pending = self.pending.releases(self.state, measure.resource)
                found[name] = gap_above(used, mark, unit, pending) - freed.get(measure.resource, 0.0)
        return found

    def _groups(
        self, steps: Iterable[tuple[Step, C]], released: Callable[[PodState, C], dict[str, float]]
    ) -> list[_Group]:
        """The steps by pod, in order."""
        groups: dict[str, _Group] = {}
        for step, change in steps:
            if step.uid not in self.pods:
                continue
            pod = self.pods[step.uid]
            group = groups.setdefault(step.uid, _Group(pod, step.metric, {}))
            for resource, amount in released(pod, change).items():
                group.released[resource] = group.released.get(resource, 0.0) + amount
        return list(groups.values())

    def _released_by_quota(self, pod: PodState, change: QuotaChange) -> dict[str, float]:
        container = next((each for each in pod.containers if each.id == change.container_id), None)
        found = None if container is None else lower_quota(container, *self._ratio(pod.key))
        return {"cpu": 0.0 if found is None else found[1]}

    def _waits(self, metric: str, throttles: bool) -> bool:
        """Whether evictions for the metric wait for the effect of throttling."""
        now, resource = self.state.time, MEASURES[metric].resource
        down = {each.rule.metric for each in self._demanding("throttle")}
        shared = any(name == metric or (resource and MEASURES[name].resource == resource) for name in down)
        since = [each.since or 0.0 for each in self._demanding("evict") if each.rule.metric == metric]
        recently = now - min(since, default=0.0) < SETTLE
        return shared and recently and (throttles or bool(self.pending.lowered(now)))

    def _stage(
        self, kind: str, groups: list[_Group], freed: Mapping[str, float], throttles: bool = False
    ) -> Iterator[str]:
        """Findings of one stage; `freed` is the release of the stages before."""
        gaps = self._gaps(kind, freed)
        names = {each.rule.metric for each in self._demanding(kind)}
        waiting = {name for name in names if kind == "evict" and self._waits(name, throttles)}
        gaps = {name: gap for name, gap in gaps.items() if name not in waiting}
        everybody = {
            each.rule.metric
            for each in self._demanding(kind)
            if MEASURES[each.rule.metric].how(kind) == "all" or each.missed(self.state)
        } - waiting
        for group in groups:
            name = f"{kind} of {group.pod.key} for {group.metric}"
            if group.pod.key not in self._wanted(kind, group.metric) or group.metric in waiting:
                yield f"{name}: no rule demands it"
            elif group.metric not in everybody and gaps.get(group.metric, 0.0) <= -TINY:
                yield f"{name}: the gap is closed already ({gaps.get(group.metric)})"
            for metric in gaps:
                gaps[metric] -= group.released.get(MEASURES[metric].resource, 0.0)
        taken = {group.pod.uid for group in groups}
        for metric in most_urgent_first(everybody | set(gaps)):
            left = [pod for pod in self._candidates(kind, metric) if pod.uid not in taken]
            left = [pod for pod in left if not self._limited(kind, pod, groups)]
            if metric in everybody:
                left = [pod for pod in left if kind == "evict" or not self._recent(pod)]
                yield from (f"{pod.key} is spared although {metric} selects all pods" for pod in left)
                continue
            if left and gaps[metric] > TINY:
                yield f"{kind} for {metric} leaves a gap of {gaps[metric]} and spares {[pod.key for pod in left]}"
            yield from self._out_of_order(kind, metric, left, [each for each in groups if each.metric == metric])
        if kind == "evict":
            yield from self._needless(groups, gaps, everybody)

    def _candidates(self, kind: str, metric: str) -> list[PodState]:
        """Pods on which a step is possible that reduces the metric."""
        wanted, resource = self._wanted(kind, metric), MEASURES[metric].resource
        allowed = [pod for pod in self.pods.values() if pod.key in wanted and not self._untouchable(pod, kind)]
        if kind == "evict":
            return [pod for pod in allowed if not resource or usage(pod, resource) > TINY]
        changed = self.pending.set_now(self.state.time)
        return [
            pod
            for pod in allowed
            if not any(each.id in changed for each in pod.containers)
            and any(
                (found := lower_quota(each, *self._ratio(pod.key))) and (each.quota is not None or found[1] > 0.0)
                for each in pod.containers
            )
        ]

    def _limited(self, kind: str, pod: PodState, groups: Iterable[_Group]) -> bool:
        planned = [(each.pod.key, each.pod.owner) for each in groups]
        return kind == "evict" and self._over_limits(pod.key, pod.owner, planned)

    def _recent(self, pod: PodState) -> bool:
        lowered = self.pending.lowered(self.state.time)
        return any(each.id in lowered for each in pod.containers)

    def _out_of_order(self, kind: str, metric: str, left: Iterable[PodState], chosen: list[_Group]) -> Iterator[str]:
        """Pods that were spared although they come before chosen ones. A more important pod may be chosen in place of
        none; among equally important pods, an eviction may make an earlier one unnecessary."""
        resource = MEASURES[metric].resource
        for pod in left:
            for each in chosen:
                before = order(pod, resource) < order(each.pod, resource)
                if before if kind == "throttle" else importance(pod) < importance(each.pod):
                    yield f"{kind} for {metric} takes {each.pod.key} before {pod.key}"

    def _needless(self, groups: list[_Group], gaps: Mapping[str, float], everybody: set[str]) -> Iterator[str]:
        for group in groups:
            more_important = any(importance(group.pod) < importance(each.pod) for each in groups)
            if more_important or any(group.pod.key in self._wanted("evict", name) for name in everybody):
                continue
            if all(gaps[name] + group.released.get(MEASURES[name].resource, 0.0) <= -TINY for name in gaps):
                yield f"evicting {group.pod.key} for {group.metric} is not needed"

    # --- restoring ---------------------------------------------------------------------------------------------------

    def _restored(self, steps: list[tuple[Step, QuotaChange]]) -> Iterator[str]:
        now = self.state.time
        lowering = [each for each in self.rules.enforced if each.lowers]
        covered = frozenset().union(*(each.pods for each in lowering))
        held = frozenset().union(*(each.pods for each in lowering if each.holds(now)))
        able = [] if self.rules.triggered else [each for each in lowering if each.cooled(now)]
        wanted = {
            key: [each for each in able if key in each.pods]
            for key in frozenset().union(*(each.pods for each in able)) - held
        }
        gaps, room = self._rooms(able, lowering)
        at_first = dict(gaps)
        yield from self._kept_low(steps, wanted, gaps)
        before = ""
        for step, change in steps:
            name, after = change.container_id, change.after
            container = next((each for each in self.pods[step.uid].containers if each.id == name), None)
            original = self.originals.get(name)
            if container is None or original is None or not is_lowered(container, original):
                yield f"{name} is restored although it is not lowered"
            elif step.metric == "":
                if step.pod in covered or after != original.quota:
                    yield f"{name} becomes {after} at once, original {original}, in {sorted(covered)}"
            elif step.metric not in {each.rule.metric for each in wanted.get(step.pod, ())}:
                yield f"{name} is restored for {step.metric} before all of its rules allow it"
            else:
                rules = wanted[step.pod]
                closed = [gaps[each.rule.metric] for each in rules if gaps.get(each.rule.metric, 1.0) <= -TINY]
                if closed and before != step.pod:
                    yield f"{name} is restored, but there is no gap: {closed}"
                yield from self._one_restore(step, change, container, rules, gaps, room, at_first)
                before = step.pod
        yield from self._not_restored({change.container_id for _, change in steps}, wanted, covered, gaps, room)

    def _kept_low(
        self,
        steps: Iterable[tuple[Step, QuotaChange]],
        wanted: Mapping[str, list[CheckedRule]],
        gaps: Mapping[str, float],
    ) -> Iterator[str]:
        """Containers that want more CPU, and have had less than half of their share of the gap for many cycles."""
        after = {change.container_id: change.after for _, change in steps}
        owing = [
            (pod, each, original)
            for pod in self.pods.values()
            for each in pod.containers
            if pod.key in wanted and not self._untouchable(pod, "restore")
            if is_lowered(each, original := self.originals.get(each.id)) and original is not None
        ]
        low: dict[str, int] = {}
        for pod, each, original in owing:
            found = [gaps[rule.rule.metric] for rule in wanted[pod.key] if rule.rule.metric in gaps]
            if not found or each.throttled is False:
                continue
            share = (each.cpu or 0.0) + max(0.0, min(found)) / 1_000.0 / len(owing)
            goal = float("inf") if original.quota is None else original.quota / original.period
            now = after.get(each.id, each.quota)
            if now is not None and now / each.period < 0.5 * min(goal, share) - ROUNDED:
                low[each.id] = self.low.get(each.id, 0) + 1
                if low[each.id] > MOST_LOW_CYCLES:
                    yield f"{each.id} has {now / each.period} cores for {low[each.id]} cycles, its share is {share}"
        self.low = low

    def _restored_in_order(self, steps: Iterable[Step]) -> Iterator[str]:
        for first, second in pairwise(steps):
            before, after = (order(self.pods[each.uid], MEASURES[each.metric].resource) for each in (first, second))
            if first.metric == second.metric and before < after:
                yield f"restore for {first.metric} takes {first.pod} before {second.pod}"

    def _rooms(self, able: list[CheckedRule], lowering: list[CheckedRule]) -> tuple[dict[str, float], dict[str, float]]:
        """By metric, what may be given back below the restore watermarks, and below the watermarks."""
        gaps: dict[str, float] = {}
        room: dict[str, float] = {}
        for name in {each.rule.metric for each in able}:
            measure, used = MEASURES[name], self.state.value(name)
            unit = measure.per_unit(self.state)
            if measure.throttle == "gap" and used is not None and unit is not None:
                rules = [each.rule for each in lowering if each.rule.metric == name]
                low = min(each.watermark if (mark := each.restore_watermark) is None else mark for each in rules)
                pending = self.pending.increases(self.state, measure.resource)
                gaps[name] = gap_below(used, low, unit, pending)
                room[name] = max(0.0, gap_below(used, min(each.watermark for each in rules), unit, pending))
        return gaps, room

    def _one_restore(
        self,
        step: Step,
        change: QuotaChange,
        container: ContainerState,
        rules: list[CheckedRule],
        gaps: dict[str, float],
        room: dict[str, float],
        at_first: Mapping[str, float],
    ) -> Iterator[str]:
        most, _ = highest_quota(container, _restore_step(rules), self.originals[container.id], self._node_cores)
        open_gaps = [at_first[each.rule.metric] for each in rules if each.rule.metric in at_first]
        if open_gaps:  # or half of the gap at once
            most = max(most, (container.cpu or 0.0) + 0.5 * max(0.0, min(open_gaps)) / 1_000.0)
        after = float("inf") if change.after is None else change.after / change.period
        rise = 1_000.0 * max(0.0, min(after, self._node_cores) - (container.cpu or 0.0))
        rise = 0.0 if container.throttled is False else rise
        if abs(step.released.get("cpu", 0.0) - rise) > ROUNDED or change.lag_seconds != _lag(rules):
            released = dict(step.released)
            yield f"{change.container_id} gives back {released} after {change.lag_seconds} s, expected {rise}"
        if after > most + 1e-9:
            yield f"{change.container_id} becomes {after} cores in one step, at most {most} allowed"
        if any(room[each.rule.metric] - rise < -TINY for each in rules if each.rule.metric in room):
            yield f"restoring {change.container_id} gives back {rise}, room {room}"
        for name in gaps:
            gaps[name] -= rise
            room[name] -= rise

    def _not_restored(
        self,
        done: set[str],
        wanted: Mapping[str, list[CheckedRule]],
        covered: frozenset[str],
        gaps: Mapping[str, float],
        room: Mapping[str, float],
    ) -> Iterator[str]:
        """Containers that stay lowered although nothing forbids restoring them."""
        now = self.state.time
        for pod in self.pods.values():
            here = {each.id for each in pod.containers}
            if self._untouchable(pod, "restore") or here & self.pending.set_now(now):
                continue
            for each in pod.containers:
                original = self.originals.get(each.id)
                if each.id in done or original is None or not is_lowered(each, original):
                    continue
                rules = wanted.get(pod.key, [])
                names = {rule.rule.metric for rule in rules} & gaps.keys()
                _, rise = highest_quota(each, _restore_step(rules), original, self._node_cores)
                is_free = all(gaps[name] > ROUNDED and room[name] > rise + ROUNDED for name in names)
                is_known = names or all(self.state.value(rule.rule.metric) is not None for rule in rules)
                if pod.key not in covered:
                    yield f"{each.id} stays lowered although no rule covers it"
                elif rules and is_known and is_free and (names or not here & self.pending.raised(now)):
                    yield f"{each.id} stays lowered although all of its rules allow to restore it"

    @property
    def _node_cores(self) -> float:
        return min(MOST_CORES, self.state.value("cpu_core_numbers") or MOST_CORES)


def _asks(rule: CheckedRule, kind: str) -> bool:
    """Whether the action of the rule has steps of this kind."""
    action = rule.action
    return {"throttle": action.throttle is not None, "reclaim": action.force_gc, "evict": action.evicts}[kind]


def _lag(rules: Iterable[CheckedRule]) -> float:
    """Seconds until the metrics of all rules show the effect of a step."""
    return max((MEASURES[each.rule.metric].lag for each in rules), default=0.0)


def _restore_step(rules: Iterable[CheckedRule]) -> int:
    """The largest restoring step of the rules, in percent."""
    steps = [
        throttle.step_ratio if (ratio := each.action.restore_step_ratio) is None else ratio
        for each in rules
        if (throttle := each.action.throttle) is not None
    ]
    return max(steps, default=0)


def _total(groups: Iterable[_Group]) -> dict[str, float]:
    found: Counter[str] = Counter()
    for group in groups:
        found.update(group.released)
    return dict(found)
