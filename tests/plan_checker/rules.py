"""The states of rules, evaluated again from their samples as docs/concepts/agent.md describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.model import AvoidanceAction, Original, PodState, Policies, Rule, State
from tests.plan_checker.arithmetic import MEASURES, is_lowered


@dataclass(slots=True)
class CheckedRule:
    """One rule with its counts; times in unix seconds."""

    rule: Rule
    action: AvoidanceAction
    above: int = 0
    below: int = 0
    was_triggered: bool = False
    since: float | None = None
    last: float | None = None
    seen: bool = False
    verdict: str = ""
    pods: frozenset[str] = frozenset()
    lowers: bool = field(init=False)

    def __post_init__(self) -> None:
        self.lowers = self.action.throttle is not None and bool(MEASURES[self.rule.metric].throttle)

    def see(self, state: State, owes: bool) -> None:
        """Count the sample of one cycle. `owes`: a pod of the rule has a lowered quota."""
        sample = state.value(self.rule.metric)
        if sample is None and not (self.rule.on_missing == "all" and self.seen):
            self.verdict = "missing"
            return
        self.seen = True
        rule = self.rule
        if sample is None or sample > rule.watermark:
            self.above, self.below = self.above + 1, 0
            self.verdict = "triggered" if self.above >= rule.avoidance_threshold else "counting"
            if self.verdict == "triggered":
                self.since = self.since if self.was_triggered and self.since is not None else state.time
                self.was_triggered, self.last = True, state.time
            return
        low = rule.watermark if rule.restore_watermark is None else rule.restore_watermark
        self.above, self.below = 0, self.below + 1 if sample <= low else 0
        if not self.was_triggered and not owes:
            self.verdict = "quiet"
            return
        dwelt = self.since is None or state.time - self.since >= rule.min_dwell_seconds
        self.verdict = "restored" if self.below >= rule.restore_threshold and dwelt else "holding"

    def cooled(self, now: float) -> bool:
        """Whether the rule is restored and its cool-down is over."""
        over = self.rule.preview or self.last is None or now > self.last + self.action.cool_down_seconds
        return self.verdict == "restored" and over

    def holds(self, now: float) -> bool:
        """Whether the rule was triggered and does not allow restoring yet."""
        return self.was_triggered and not self.cooled(now)

    def missed(self, state: State) -> bool:
        """Whether the rule is triggered because its metric is missing."""
        return self.verdict == "triggered" and state.value(self.rule.metric) is None


class CheckedRules:
    """All rules of a scenario."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self.all = [CheckedRule(rule, policies.actions[rule.action]) for rule in policies.rules]

    def see(self, state: State, originals: Mapping[str, Original]) -> None:
        """Evaluate one cycle."""
        for each in self.all:
            each.pods = frozenset(pod.key for pod in state.pods if self._allows(each.rule.action, pod))
            each.see(state, self._owes(each, state, originals))

    def finish(self, state: State, originals: Mapping[str, Original]) -> None:
        """Reset the rules that have restored everything."""
        calm = not self.triggered
        for each in self.all:
            if each.cooled(state.time) and (calm or each.rule.preview) and not self._owes(each, state, originals):
                each.was_triggered, each.since = False, None

    @property
    def enforced(self) -> list[CheckedRule]:
        return [each for each in self.all if not each.rule.preview]

    @property
    def triggered(self) -> list[CheckedRule]:
        """The triggered rules that are enforced."""
        return [each for each in self.enforced if each.verdict == "triggered"]

    def _owes(self, rule: CheckedRule, state: State, originals: Mapping[str, Original]) -> bool:
        return rule.lowers and any(
            is_lowered(container, originals.get(container.id))
            for pod in state.pods
            if pod.key in rule.pods
            for container in pod.containers
        )

    def _allows(self, action: str, pod: PodState) -> bool:
        """PodQOS objects of the scenarios select by the label "group"."""
        return any(
            action in qos.allowed_actions
            and qos.selector is not None
            and all(pod.labels.get(key) in values for key, _, values in qos.selector.requirements)
            for qos in self._policies.pod_qos
        )
