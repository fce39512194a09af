"""Evaluates the rules against one cycle's samples and returns the actions that they demand.

For each rule, the analyzer takes the series of the rule's metric that the selector matches. A sample counts as above if
any series is over the watermark, and as below if all series are at or under the restore watermark.
`avoidanceThreshold` consecutive samples above trigger the rule; `restoreThreshold` consecutive samples below restore
it. A sample between the two watermarks interrupts both counts. A missing metric leaves the counts unchanged.

Any triggered rule keeps new pods away from the node. When no rule is triggered, a rule is restored, and the cool-down
of its action since its last trigger is over, its throttled pods get their original values back step by step, except
pods of another rule that was triggered and does not allow restoring yet. New pods are allowed again when no such rule
is left.

The counts are passed in and returned as a value, so that preview, replay and a restarted agent use the same function.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agent.decision.analysis import Analysis, AnalyzerState, Demand, NodeEvent, PodDemand, RuleState, gathered
from agent.decision.explanation import number
from agent.decision.plan import RuleFinding, RuleVerdict
from agent.decision.pod_selection import allowed, matches_everything
from agent.decision.restoring import LoweredValues, uncovered
from agent.metrics.action_metric import ActionMetric
from agent.model import (
    CPU_WEIGHT,
    MEMORY_HIGH,
    AvoidanceAction,
    CpuThrottle,
    MetricSample,
    PodState,
    Policies,
    Rule,
    StageKind,
    State,
)


@dataclass(frozen=True, slots=True)
class _Takes:
    """What a rule's action does to pods: quotas, memory.high, page cache, and evictions, each only if the rule's metric
    is reduced by it. (A rule on memory may name an action that throttles CPU, and a rule on CPU an action with
    memory.high.) Without `metrics`, every metric counts as reduced by all of them."""

    cpu: bool = False
    memory: bool = False
    cache: bool = False
    pods: bool = False

    @classmethod
    def of(cls, rule: Rule, action: AvoidanceAction | None, metrics: Mapping[str, ActionMetric] | None) -> _Takes:
        if action is None:
            return cls()

        def reduced_by(kind: StageKind) -> bool:
            metric = None if metrics is None else metrics.get(rule.metric)
            return metrics is None or (metric is not None and metric.reduced_by(kind))

        return cls(
            cpu=action.throttle is not None and reduced_by("throttle"),
            memory=MEMORY_HIGH in action.soft_limits and reduced_by("hold"),
            cache=action.force_gc and reduced_by("reclaim"),
            pods=action.evicts and reduced_by("evict"),
        )

    def lowered(self, pods: Iterable[PodState], values: LoweredValues) -> bool:
        """Whether any of these pods has a lowered value of the kinds that the action changes."""
        return any((self.cpu and values.cpu(pod)) or (self.memory and values.memory(pod)) for pod in pods)


@dataclass(frozen=True, slots=True)
class _RuleEvaluation:
    """One rule's finding with its counts, pods and action."""

    rule: Rule
    finding: RuleFinding
    before: RuleState
    after: RuleState
    pods: tuple[PodState, ...]
    action: AvoidanceAction | None
    takes: _Takes
    time: float

    @property
    def triggered(self) -> bool:
        return self.finding.verdict is RuleVerdict.TRIGGERED

    @property
    def restored(self) -> bool:
        return self.finding.verdict is RuleVerdict.RESTORED

    @property
    def may_restore(self) -> bool:
        """Whether the rule is restored and its cool-down is over; a rule in preview has no cool-down."""
        if not self.restored or self.rule.preview or self.action is None or self.after.last_triggered is None:
            return self.restored
        return self.time > self.after.last_triggered + self.action.cool_down_seconds

    @property
    def holds(self) -> bool:
        """Whether the rule was triggered and does not allow restoring yet."""
        return self.after.triggered and self.action is not None and not self.may_restore


def analyze(
    state: State,
    policies: Policies,
    memory: AnalyzerState,
    *,
    lowered: LoweredValues | None = None,
    metrics: Mapping[str, ActionMetric] | None = None,
) -> Analysis:
    """Analyze one cycle. `lowered` has the values that the agent may have lowered. `metrics` limits each rule to the
    actions that affect its metric; None means no such limit."""
    lowered = lowered or LoweredValues()
    pods_of = {name: allowed(name, policies.pod_qos, state.pods) for name in sorted({r.action for r in policies.rules})}
    judged = [
        _judge(rule, action, pods_of[rule.action], _Takes.of(rule, action, metrics), state, memory, lowered)
        for rule in policies.rules
        for action in (policies.actions.get(rule.action),)
    ]
    enforced = [each for each in judged if not each.rule.preview]
    scheduling = _scheduling(enforced, memory)
    demand = _demand(enforced)
    preview = _demand([each for each in judged if each.rule.preview])
    return Analysis(
        time=state.time,
        findings=tuple(each.finding for each in judged),
        demand=demand,
        preview=preview,
        keep_away=scheduling.keep_away,
        because=scheduling.because,
        may_restore=scheduling.may_restore,
        released=uncovered(state.pods, (each.pods for each in enforced if each.takes.cpu), lowered.cpu),
        unheld=uncovered(state.pods, (each.pods for each in enforced if each.takes.memory), lowered.memory),
        events=_events(judged),
        warnings=_warnings(policies),
        memory=_remembered(judged, scheduling, memory, lowered),
    )


# --- one rule --------------------------------------------------------------------------------------------------------


def _judge(
    rule: Rule,
    action: AvoidanceAction | None,
    pods: tuple[PodState, ...],
    takes: _Takes,
    state: State,
    memory: AnalyzerState,
    lowered: LoweredValues,
) -> _RuleEvaluation:
    before = _not_later(memory.rules.get(rule.key, RuleState()), state.time)
    series = [each for each in state.metrics.get(rule.metric, ()) if rule.selector.matches(each.labels)]
    owes = takes.lowered(pods, lowered)
    if series:
        worst = max(series, key=lambda each: each.value)
        seen = replace(before, seen=True)
        after, verdict = _counted(rule, seen, _side(rule, worst.value), state.time, owes)
        return _RuleEvaluation(
            rule, _finding(rule, verdict, after, worst), before, after, pods, action, takes, state.time
        )
    why = state.missing.get(rule.metric) or (
        "no series matches the selector" if rule.metric in state.metrics else "no source collects it"
    )
    if rule.on_missing == "all" and before.seen:
        after, verdict = _counted(rule, before, "above", state.time, owes)
        finding = _finding(rule, verdict, after, None, why)
        return _RuleEvaluation(rule, finding, before, after, pods, action, takes, state.time)
    finding = _finding(rule, RuleVerdict.MISSING, before, None, why)
    return _RuleEvaluation(rule, finding, before, before, pods, action, takes, state.time)


def _not_later(memory: RuleState, now: float) -> RuleState:
    """The rule's state without a trigger after `now`: if the wall clock was set back, the cool-down must not become
    longer by that amount."""
    if memory.last_triggered is None or memory.last_triggered <= now:
        return memory
    return replace(memory, last_triggered=now)


_Side = Literal["above", "between", "below"]


def _restore_watermark(rule: Rule) -> float:
    """The restore watermark, capped at the watermark: above it, a rule would be triggered and restored at once."""
    return rule.watermark if rule.restore_watermark is None else min(rule.restore_watermark, rule.watermark)


def _side(rule: Rule, sample: float) -> _Side:
    if sample > rule.watermark:
        return "above"
    return "below" if sample <= _restore_watermark(rule) else "between"


def _counted(rule: Rule, memory: RuleState, side: _Side, now: float, owes: bool) -> tuple[RuleState, RuleVerdict]:
    """Return the counts after one more sample, and the verdict. Thresholds below 1 count as 1."""
    needed, calm = max(1, rule.avoidance_threshold), max(1, rule.restore_threshold)
    if side == "above":
        counted = replace(memory, above=memory.above + 1, below=0)
        if counted.above < needed:
            return counted, RuleVerdict.COUNTING
        since = now if not memory.triggered or memory.since is None else min(memory.since, now)
        return replace(counted, triggered=True, since=since, last_triggered=now), RuleVerdict.TRIGGERED
    counted = replace(memory, above=0, below=memory.below + 1 if side == "below" else 0)
    if not memory.triggered and not owes:
        return counted, RuleVerdict.QUIET
    # A wall clock that was set back must not keep a rule triggered indefinitely.
    dwelt = memory.since is None or memory.since > now or now - memory.since >= rule.min_dwell_seconds
    return counted, RuleVerdict.RESTORED if counted.below >= calm and dwelt else RuleVerdict.HOLDING


def _finding(
    rule: Rule, verdict: RuleVerdict, memory: RuleState, worst: MetricSample | None, why: str = ""
) -> RuleFinding:
    finding = RuleFinding(
        rule=rule.key,
        metric=rule.metric,
        action=rule.action,
        verdict=verdict,
        watermark=rule.watermark,
        restore_watermark=_restore_watermark(rule),
        sample=None if worst is None else worst.value,
        series={} if worst is None else dict(worst.labels),
        above=memory.above,
        avoidance_threshold=max(1, rule.avoidance_threshold),
        below=memory.below,
        restore_threshold=max(1, rule.restore_threshold),
        preview=rule.preview,
        blind=worst is None and verdict is not RuleVerdict.MISSING,
    )
    return replace(finding, text=_finding_text(finding, why))


def _finding_text(finding: RuleFinding, why: str) -> str:
    """One-sentence description of the finding."""
    counts = {
        RuleVerdict.QUIET: "nothing to do",
        RuleVerdict.COUNTING: f"{finding.above} of {finding.avoidance_threshold} samples above to trigger",
        RuleVerdict.TRIGGERED: f"triggered, action {finding.action}",
        RuleVerdict.HOLDING: f"was triggered; {finding.below} of {finding.restore_threshold} samples below to restore",
        RuleVerdict.RESTORED: f"restored, action {finding.action}",
        RuleVerdict.MISSING: "counts unchanged, no action taken",
    }[finding.verdict]
    preview = " (preview: no action is taken)" if finding.preview else ""
    if finding.sample is None:
        counted = f"counts as above (onMissing: all); {counts}" if finding.blind else counts
        return f"{finding.rule}: {finding.metric} is missing ({why}): {counted}{preview}"
    held = _compared(finding.sample, watermark=finding.watermark, restore=finding.restore_watermark)
    return f"{finding.rule}: {finding.metric} is {number(finding.sample)}, {held}: {counts}{preview}"


def _compared(sample: float, *, watermark: float, restore: float) -> str:
    """Compare a sample with the watermark and, if restoring has a value of its own (restoreValue), with that."""
    if sample > watermark:
        return f"above the watermark {number(watermark)}"
    if restore == watermark:
        return f"not above the watermark {number(watermark)}"
    if sample <= restore:
        return f"not above the watermark {number(watermark)} and the restore value {number(restore)}"
    return f"not above the watermark {number(watermark)}, above the restore value {number(restore)}"


# --- all rules together ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scheduling:
    keep_away: bool | None
    because: str = ""
    may_restore: bool = False


def _scheduling(enforced: Sequence[_RuleEvaluation], memory: AnalyzerState) -> _Scheduling:
    """Decide whether to keep new pods away, and whether rules that allow it may restore their pods."""
    triggered = [each for each in enforced if each.triggered and each.action is not None]
    if triggered:
        return _Scheduling(True, f"triggered: {', '.join(each.rule.key for each in triggered)}")
    holding = any(each.holds for each in enforced)
    restoring = [each for each in enforced if each.may_restore and each.action is not None]
    if restoring:
        # A rule restores its own pods independently; new pods are allowed only if no other rule holds.
        because = f"{restoring[0].rule.key} is restored and its cool-down is over"
        return _Scheduling(None if holding or memory.keeps_away is False else False, because, True)
    unsure = memory.keeps_away is None and any(
        each.finding.verdict in (RuleVerdict.MISSING, RuleVerdict.COUNTING, RuleVerdict.HOLDING) for each in enforced
    )
    if memory.keeps_away is not False and not holding and not unsure:
        return _Scheduling(False, "no rule requires it")
    return _Scheduling(None)


def _demand(judged: Sequence[_RuleEvaluation]) -> Demand:
    """The demand of rules that are all enforced, or all in preview. While any of them is triggered, none restores.
    The watermarks include those of metrics that the action cannot reduce, for the explanation; the pods do not."""
    known = [(each, each.action) for each in judged if each.action is not None]
    triggered = [(each, action) for each, action in known if each.triggered]
    restoring = [] if triggered else [(each, action) for each, action in known if each.may_restore]
    down = [(each, action.throttle) for each, action in triggered if action.throttle is not None]
    up = [(each, action) for each, action in restoring if each.takes.cpu]
    evict = [(each, action) for each, action in triggered if action.evicts]
    reclaim = [each for each, _ in triggered if each.takes.cache]
    hold = [each for each, _ in triggered if each.takes.memory]
    loosen = [each for each, _ in restoring if each.takes.memory]
    up_metrics = {each.rule.metric for each, _ in up}
    # Restoring for one rule must not trigger another one, so all rules that throttle for the metric limit it.
    bounds = [each.rule for each in judged if each.takes.cpu and each.rule.metric in up_metrics]
    return Demand(
        down=gathered((each.rule.metric, each.rule.watermark) for each, _ in down),
        up=gathered((rule.metric, _restore_watermark(rule)) for rule in bounds),
        evict=gathered((each.rule.metric, each.rule.watermark) for each, _ in evict),
        throttled=_merged((each, _throttled(each, ratio)) for each, ratio in down if each.takes.cpu),
        restored=_without(
            _merged((each, PodDemand(frozenset((each.rule.metric,)), _restore_ratio(action))) for each, action in up),
            (each for each in judged if each.takes.cpu and each.holds),
        ),
        evicted=_merged(
            (each, PodDemand(frozenset((each.rule.metric,)), grace_seconds=action.grace_seconds))
            for each, action in evict
            if each.takes.pods
        ),
        reclaim=gathered((each.rule.metric, each.rule.watermark) for each in reclaim),
        reclaimed=_merged((each, PodDemand(frozenset((each.rule.metric,)))) for each in reclaim),
        memory_high=gathered((each.rule.metric, each.rule.watermark) for each in hold),
        held=_merged((each, PodDemand(frozenset((each.rule.metric,)))) for each in hold),
        memory_high_restore=gathered((each.rule.metric, _restore_watermark(each.rule)) for each in loosen),
        loosened=_without(
            _merged((each, PodDemand(frozenset((each.rule.metric,)))) for each in loosen),
            (each for each in judged if each.takes.memory and each.holds),
        ),
        ceilings=_ceilings(bounds),
        missed=frozenset(each.rule.metric for each in judged if each.triggered and each.finding.blind),
        since=_since(each for each, _ in evict),
    )


def _without(wanted: Mapping[str, PodDemand], holding: Iterable[_RuleEvaluation]) -> dict[str, PodDemand]:
    """Leave out the pods of rules that do not allow restoring yet."""
    kept = {pod.uid for each in holding for pod in each.pods}
    return {key: each for key, each in wanted.items() if key not in kept}


def _throttled(judged: _RuleEvaluation, ratio: CpuThrottle) -> PodDemand:
    weight_first = judged.action is not None and CPU_WEIGHT in judged.action.soft_limits
    return PodDemand(frozenset((judged.rule.metric,)), ratio, weight_first=weight_first)


def _restore_ratio(action: AvoidanceAction) -> CpuThrottle:
    ratio = action.throttle or CpuThrottle()
    return ratio if action.restore_step_ratio is None else replace(ratio, step_ratio=action.restore_step_ratio)


def _ceilings(rules: Iterable[Rule]) -> dict[str, float]:
    """The smallest throttling watermark of each metric."""
    found: dict[str, float] = {}
    for rule in rules:
        found[rule.metric] = min(rule.watermark, found.get(rule.metric, rule.watermark))
    return found


def _since(evicting: Iterable[_RuleEvaluation]) -> dict[str, float]:
    since: dict[str, float] = {}
    for each in evicting:
        if each.after.since is not None:
            since[each.rule.metric] = min(each.after.since, since.get(each.rule.metric, each.after.since))
    return since


def _merged(wanted: Iterable[tuple[_RuleEvaluation, PodDemand]]) -> dict[str, PodDemand]:
    """Merge by pod (uid, because an ended pod and its successor may have one name)."""
    found: dict[str, PodDemand] = {}
    for judged, each in wanted:
        for pod in judged.pods:
            found[pod.uid] = merge(found[pod.uid], each) if pod.uid in found else each
    return {key: found[key] for key in sorted(found)}


def merge(first: PodDemand, second: PodDemand) -> PodDemand:
    """Merge the demands of two rules on the same pod: the larger ratios, the shorter of the given grace periods, and
    cpu.weight first only if both rules ask for it."""
    graces = [grace for grace in (first.grace_seconds, second.grace_seconds) if grace is not None]
    return PodDemand(
        first.metrics | second.metrics,
        CpuThrottle(
            min_ratio=max(first.throttle.min_ratio, second.throttle.min_ratio),
            step_ratio=max(first.throttle.step_ratio, second.throttle.step_ratio),
        ),
        min(graces, default=None),
        first.weight_first and second.weight_first,
    )


def _remembered(
    judged: Sequence[_RuleEvaluation],
    scheduling: _Scheduling,
    memory: AnalyzerState,
    lowered: LoweredValues,
) -> AnalyzerState:
    """The state for the next cycle. A triggered rule is reset once it may restore and its pods have their original
    values again."""
    rules: dict[str, RuleState] = {}
    for each in judged:
        after = replace(each.after, restored=not each.triggered and (each.restored or each.before.restored))
        permitted = scheduling.may_restore or each.rule.preview or each.action is None
        if each.may_restore and permitted and not each.takes.lowered(each.pods, lowered):
            after = replace(after, triggered=False, since=None)
        rules[each.rule.key] = after
    keeps_away = memory.keeps_away if scheduling.keep_away is None else scheduling.keep_away
    return AnalyzerState(rules, keeps_away)


def _events(judged: Iterable[_RuleEvaluation]) -> tuple[NodeEvent, ...]:
    """Events of rules whose verdict changed."""
    events: list[NodeEvent] = []
    for each in judged:
        name = f"{each.rule.policy}/{each.rule.name}"
        if each.triggered and (not each.before.triggered or each.before.restored):
            note = f"{name} triggered action {each.rule.action}"
            events.append(NodeEvent("Warning", "AvoidanceTriggered", note, each.rule.key))
        if each.restored and each.before.triggered and not each.before.restored:
            note = f"{name} restored action {each.rule.action}"
            events.append(NodeEvent("Normal", "RestoreTriggered", note, each.rule.key))
    return tuple(events)


def _warnings(policies: Policies) -> tuple[str, ...]:
    everything = [policy.name for policy in policies.pod_qos if matches_everything(policy)]
    undefined = sorted({rule.action for rule in policies.rules if rule.action not in policies.actions})
    return (
        *(f"PodQOS {name} matches every pod of the node: its scopes are an empty list" for name in everything),
        *(f"AvoidanceAction {name}, named by a rule, does not exist: no action is taken for it" for name in undefined),
    )
