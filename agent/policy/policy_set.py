"""Read and check a set of policies as a whole, select the policies that apply to a node, and describe what each rule
does for `load-watcher agent --check`.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from agent import model
from agent.metrics.action_metric import ActionMetric
from agent.policy import schema
from agent.policy.documents import PolicyDocument, read_text
from agent.policy.objects import NodeQos, PolicyObject, read_object
from agent.policy.problems import PolicyLocation, PolicyNotice, PolicyProblem, ProblemCollector, near
from agent.policy.schema import AVOIDANCE_ACTION

MOST_PERCENT = 100.0

Key = tuple[str, str]
"""Kind and name of an object."""


KnownMetrics = Mapping[str, ActionMetric]
"""By the names that rules may use. The rules of a metric without actions can only keep new pods away."""


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Consistent policies, sorted by kind and name."""

    objects: Mapping[Key, PolicyObject]

    def for_node(self, labels: Mapping[str, str] | None) -> model.Policies:
        """The policies that apply to a node with these labels. If the labels are unknown (None), a NodeQOS with a
        selector does not apply: acting on the wrong node is worse than not acting. Rules whose action does not exist do
        not apply either.

        The result does not depend on the order in which files were read: policies are sorted by name, rules keep their
        order.
        """
        actions = {each.value.name: each.value for each in self._of(model.AvoidanceAction)}
        rules = [
            rule
            for each in self._of(NodeQos)
            if _selects(each.value.selector, labels)
            for rule in each.value.rules
            if rule.action in actions
        ]
        pod_qos = tuple(each.value for each in self._of(model.PodQos))
        return model.Policies(tuple(rules), actions, pod_qos)

    def all_known(self, labels: Mapping[str, str] | None) -> bool:
        """Whether these labels decide for every NodeQOS if it applies."""
        return labels is not None or all(_selects(each.value.selector, None) for each in self._of(NodeQos))

    def _of(self, kind: type) -> Iterable:  # type: ignore[type-arg]  # callers narrow the type
        return (self.objects[key] for key in sorted(self.objects) if isinstance(self.objects[key].value, kind))

    def without(self, gone: Collection[Key]) -> PolicySet:
        """A copy without these objects."""
        return PolicySet({key: each for key, each in self.objects.items() if key not in gone})


@dataclass(frozen=True, slots=True)
class PolicyReadResult:
    """The result of reading policies. With problems, `policies` has only the objects that could be read and must not be
    used. `unread` are the origins (files or API objects) whose content is unknown."""

    policies: PolicySet
    problems: tuple[PolicyProblem, ...] = ()
    notices: tuple[PolicyNotice, ...] = ()
    unread: frozenset[str] = frozenset()

    @property
    def usable(self) -> bool:
        return not self.problems


def read_texts(
    texts: Mapping[str, str], *, metrics: KnownMetrics, unread: Mapping[str, str] | None = None
) -> PolicyReadResult:
    """Read policies from texts by file name. `unread` maps files that could not be opened to the reason. Raises
    nothing."""
    complaints, documents = ProblemCollector(PolicyLocation("")), list[PolicyDocument]()
    failed = dict(unread or {})
    for origin, why in sorted(failed.items()):
        complaints.place = PolicyLocation(origin)
        complaints.problem(f"cannot be read: {why}")
    for origin in sorted(texts):
        complaints.place = PolicyLocation(origin)
        found = read_text(origin, texts[origin], complaints)
        if found is None:
            failed[origin] = "not YAML"
        documents += found or ()
    return read_documents(documents, metrics=metrics, complaints=complaints, unread=failed)


def read_documents(
    documents: Sequence[PolicyDocument],
    *,
    metrics: KnownMetrics,
    complaints: ProblemCollector,
    unread: Collection[str] = (),
) -> PolicyReadResult:
    """Read policies from documents. Raises nothing."""
    objects: dict[Key, PolicyObject] = {}
    for document in documents:
        found = read_object(document, metrics=metrics, complaints=complaints)
        if found is None:
            continue
        if (first := objects.setdefault(found.key, found)) is not found:
            objects[found.key] = _preferred(first, found, complaints)
    result = PolicySet(dict(sorted(objects.items())))
    _check_actions(result, complaints)
    _check_abilities(result, metrics, complaints)
    _check_watermarks(result, complaints)
    problems = sorted(complaints.problems, key=lambda each: (each.place.origin, each.place.document))
    notices = sorted(complaints.notices, key=lambda each: (each.place.origin, each.place.document))
    return PolicyReadResult(result, tuple(problems), tuple(notices), frozenset(unread))


def _preferred(first: PolicyObject, second: PolicyObject, complaints: ProblemCollector) -> PolicyObject:
    """The object that is used of two with the same kind and name. Between groups, it is that of load-watcher.io, and a
    notice names the other one. If the set were rejected instead, agents that start while policies are moved from one
    group to the other would have none."""
    if first.group == second.group:
        complaints.place = second.place
        complaints.problem(f"is a duplicate of the object in {first.place.file}", "Remove one of them.")
        return first
    used, unused = sorted((first, second), key=lambda each: schema.GROUPS.index(each.group))
    complaints.place = unused.place
    message = f"is not used: the object of the same kind and name in {used.group} replaces it ({used.place.file})"
    complaints.notice(message, f"Delete the object of {unused.group}, or rename one of the two.")
    return used


def _selects(selector: model.LabelSelector | None, labels: Mapping[str, str] | None) -> bool:
    if selector is None or not selector.requirements:
        return True
    return labels is not None and selector.matches(labels)


def _check_actions(policies: PolicySet, complaints: ProblemCollector) -> None:
    """Every rule's action must exist. A PodQOS that names a missing action does not reject the set, because the removal
    of an AvoidanceAction would then stop the rules of all others."""
    actions = {name for kind, name in policies.objects if kind == AVOIDANCE_ACTION}
    for each in policies.objects.values():
        complaints.place = each.place
        if isinstance(each.value, NodeQos):
            for number, rule in enumerate(each.value.rules):
                with complaints.at("spec", "rules", number, "actionName"):
                    if rule.action and rule.action not in actions:
                        complaints.problem(f"unknown AvoidanceAction {rule.action}", near(rule.action, actions))
        elif isinstance(each.value, model.PodQos):
            with complaints.at("spec", "allowedActions"):
                for name in sorted(each.value.allowed_actions - actions):
                    complaints.notice(f"unknown AvoidanceAction {name}", near(name, actions), fails_check=True)


_STEPS: Mapping[model.StageKind, str] = {
    "throttle": "throttle pods",
    "reclaim": "reclaim page cache",
    "hold": "lower memory.high",
    "evict": "evict pods",
}


def _check_abilities(policies: PolicySet, metrics: KnownMetrics, complaints: ProblemCollector) -> None:
    """Report the parts of an action that do not reduce a rule's metric, such as throttling for memory, and those that
    act on all pods because the metric is not quantified."""
    actions = policies.for_node({}).actions
    for each in policies.objects.values():
        if not isinstance(each.value, NodeQos):
            continue
        complaints.place = each.place
        for number, rule in enumerate(each.value.rules):
            if rule.action in actions and rule.metric in metrics:
                with complaints.at("spec", "rules", number):
                    for message in _limitations(rule, actions[rule.action], metrics[rule.metric]):
                        complaints.notice(message)


def _limitations(rule: model.Rule, action: model.AvoidanceAction, metric: ActionMetric) -> Iterator[str]:
    kinds = [kind for kind in _STEPS if kind in _kinds(action)]
    able = [kind for kind in kinds if metric.reduced_by(kind)]
    if lacking := [_STEPS[kind] for kind in kinds if kind not in able]:
        rest = "for this rule, it can only " + " and ".join(_STEPS[kind] for kind in able)
        does = rest if able else "the rule only keeps new pods away"
        yield f"{rule.action} cannot {' or '.join(lacking)} for {rule.metric}: {does}"
    if whole := [_STEPS[kind] for kind in able if not metric.quantified_for(kind)]:
        yield (
            f"{rule.metric} cannot be quantified: to {' and '.join(whole)}, {rule.action} selects all pods on which "
            "it is allowed"
        )


def _kinds(action: model.AvoidanceAction) -> frozenset[model.StageKind]:
    """What the action does to pods."""
    asked: Mapping[model.StageKind, bool] = {
        "throttle": action.throttle is not None,
        "reclaim": action.force_gc,
        "hold": model.MEMORY_HIGH in action.soft_limits,
        "evict": action.evicts,
    }
    return frozenset(kind for kind, is_asked in asked.items() if is_asked)


def _check_watermarks(policies: PolicySet, complaints: ProblemCollector) -> None:
    rules: list[tuple[PolicyLocation, model.Rule]] = []
    for each in policies.objects.values():
        if not isinstance(each.value, NodeQos):
            continue
        for rule in each.value.rules:
            place = each.place
            rules.append((replace(place, path=f"rule {rule.name}"), rule))
    for place, rule in rules:
        complaints.place = place
        if rule.restore_watermark is not None and rule.restore_watermark > rule.watermark > 0:
            complaints.problem(
                f"restores below {rule.restore_watermark:.0f} but triggers above {rule.watermark:.0f}: "
                "between the two it would do both",
                f"The restoreValue in {schema.RULES_ANNOTATION} must not be above the value of the metricRule.",
            )
        if rule.watermark >= MOST_PERCENT and _is_percentage(rule.metric):
            complaints.notice(f"is never triggered: {rule.metric} is a percentage and never exceeds {MOST_PERCENT:.0f}")
    for (first, one), (place, other) in combinations(rules, 2):
        complaints.place = place
        if one.key == other.key and first.object != place.object and one.name:
            complaints.problem(
                f"has the same key, {one.key}, as the rule in {first.object}: their samples would be counted together",
                "NodeQOSEnsurancePolicy is the older name of NodeQOS: remove one of the two objects.",
            )
        elif one.metric and one.watermark and other.watermark:
            _check_pair(one, other, complaints)


def _is_percentage(metric: str) -> bool:
    return metric.endswith("_utilization") or metric.startswith(("psi_", "window_cpu_", "window_memory_"))


def _check_pair(one: model.Rule, other: model.Rule, complaints: ProblemCollector) -> None:
    """Check two rules on the same series with the same action. Several watermarks of a metric are allowed, and the
    lowest applies; but if one rule restores what the other takes, they contradict each other."""
    same = (one.metric, one.selector, one.action) == (other.metric, other.selector, other.action)
    if not same or one.preview != other.preview:
        return
    low, high = sorted((one, other), key=lambda rule: rule.watermark)
    if high.restore_watermark is not None and low.watermark < high.restore_watermark <= high.watermark:
        complaints.problem(
            f"contradicts {one.key if one.key != other.key else 'the other rule'}: above {low.watermark:.0f} "
            f"{low.key} runs {low.action}, which {high.key} undoes below {high.restore_watermark:.0f}",
            "Use different actions, or restore below the lower watermark.",
        )
    else:
        complaints.notice(
            f"has the same metric and action as {one.key}: the lower watermark, {low.watermark:.0f}, applies"
        )


# --- what each rule does ---------------------------------------------------------------------------------------------


_ASKED: tuple[tuple[model.StageKind, str, str], ...] = (
    ("throttle", "throttles", "does not throttle"),
    ("reclaim", "reclaims page cache", "does not reclaim page cache"),
    ("hold", "lowers memory.high", "does not lower memory.high"),
    ("evict", "evicts", "does not evict"),
)


def rule_effects(policies: PolicySet, metrics: KnownMetrics) -> tuple[str, ...]:
    """One sentence for each rule, in the order of the policies."""
    values = [policies.objects[key].value for key in sorted(policies.objects)]
    actions = {each.name: each for each in values if isinstance(each, model.AvoidanceAction)}
    rules = [rule for each in values if isinstance(each, NodeQos) for rule in each.rules]
    return tuple(_effect(rule, actions.get(rule.action), metrics) for rule in rules)


def _effect(rule: model.Rule, action: model.AvoidanceAction | None, metrics: KnownMetrics) -> str:
    start = f"{rule.key}: above {rule.watermark:g} of {rule.metric}"
    if action is None:
        return f"{start}, does nothing: the AvoidanceAction {rule.action} does not exist"
    metric = metrics.get(rule.metric)
    done, not_done = ["keeps new pods away"], []
    for kind, does, does_not in _ASKED:
        if not _asks(action, kind):
            continue
        if metric is None or not metric.reduced_by(kind):
            not_done.append(f"{does_not}, because that does not reduce {rule.metric}")
        elif metric.quantified_for(kind):
            done.append(f"{does} until the gap is closed")
        else:
            done.append(f"{does} all allowed pods, because {rule.metric} has no gap in millicores or bytes")
    preview = " (preview: only reports it)" if rule.preview else ""
    return f"{start}, {', '.join(done)}{preview}" + "".join(f"; {each}" for each in not_done)


def _asks(action: model.AvoidanceAction, kind: model.StageKind) -> bool:
    """Whether the action does this to pods; a throttling step of 0 percent does nothing."""
    if kind == "throttle" and action.throttle is not None and action.throttle.step_ratio <= 0:
        return False
    return kind in _kinds(action)
