"""Convert one object into the agent's model, with Crane's validation rules and some stricter ones.

The rules come from Crane's webhook (pkg/webhooks/ensurance) and CRD schemas. They are stricter where Crane's rules can
select pods by accident (an empty scopeSelector selects every pod of the node).

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from agent import model
from agent.policy import schema
from agent.policy.documents import PolicyDocument, annotation, check_annotations, check_label, check_name
from agent.policy.problems import PolicyLocation, ProblemCollector, near, shown
from agent.policy.schema import AVOIDANCE_ACTION, NODE_QOS, OLDER_NODE_QOS, POD_QOS
from agent.qos import QosClass
from watcher.core.config.reader import read
from watcher.core.kubernetes.quantity import NANO, nano
from watcher.decoding.yaml_text import decode_strict_yaml

KINDS = {
    schema.GROUP: (NODE_QOS, AVOIDANCE_ACTION, POD_QOS),
    schema.CRANE_GROUP: (NODE_QOS, OLDER_NODE_QOS, AVOIDANCE_ACTION, POD_QOS),
}
"""Kinds by API group; the group of load-watcher does not have the older name of NodeQOS."""
INERT_KINDS = {
    "PodQOSEnsurancePolicy": "no controller ever supported it",
    "ServicePolicy": "no component ever read it",
}
_RULE_NAME = re.compile(r"[a-z0-9](?:[-_a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
"""Allows underscores: Crane's own examples name rules after their metrics, although its webhook rejects such names."""
_NOT_MEASURED = {"disk_write_utilization": "The kernel reports reads and writes together: use disk_total_utilization."}
"""Metrics that Crane's documentation names but that cannot be measured, with the metric to use instead."""
_PRIORITY = re.compile(r"\s*(-?\d{1,10})\s*(?:-\s*(-?\d{1,10})\s*)?", re.ASCII)
_GENTLE: tuple[model.GentleKnob, ...] = (model.CPU_WEIGHT, model.MEMORY_HIGH)
_CLASSES = tuple(each.value for each in QosClass if each.value)


@dataclass(frozen=True, slots=True)
class NodeQos:
    """A NodeQOS object. It applies to nodes with labels that match `selector`; None selects every node."""

    name: str
    selector: model.LabelSelector | None
    rules: tuple[model.Rule, ...]


Parsed = NodeQos | model.AvoidanceAction | model.PodQos


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """One successfully read object, with its location and its API group."""

    place: PolicyLocation
    kind: str
    value: Parsed
    group: str = schema.GROUP

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name, without the API group. The older name of NodeQOS counts as a separate kind."""
        return self.kind, self.value.name


def read_object(
    document: PolicyDocument, *, metrics: Collection[str], complaints: ProblemCollector
) -> PolicyObject | None:
    """The policy in a document, as far as it can be read; None if the document does not contain a policy. `metrics` are
    the metric names that rules may use. Problems and notices are added to `complaints`."""
    complaints.place = document.place
    kind = _kind_of(document, complaints)
    if not kind:
        return None
    check_name(document, kind, complaints)
    check_annotations(document, kind, complaints)
    for field in document.content.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        with complaints.at(str(field)):
            complaints.problem("unknown field", near(str(field), ("metadata", "spec", "kind", "apiVersion")))
    value: Parsed
    if kind == AVOIDANCE_ACTION:
        value = _avoidance_action(document, complaints)
    elif kind == POD_QOS:
        value = _pod_qos(document, complaints)
    else:
        value = _node_qos(document, metrics, complaints)
    return PolicyObject(document.place, kind, value, document.group)


def _kind_of(document: PolicyDocument, complaints: ProblemCollector) -> str:
    """The document's kind if it is one of the KINDS of its group, otherwise "". Reports a problem or notice for other
    kinds."""
    kind, group = document.kind, document.group
    if group == schema.CRANE_GROUP and kind in INERT_KINDS:
        complaints.notice(f"is ignored: {INERT_KINDS[kind]}")
    elif group in KINDS and kind not in KINDS[group]:
        with complaints.at("kind"):
            complaints.problem(f"{kind or 'nothing'} is not a kind of {group}", near(kind, KINDS[group]))
    elif kind in KINDS[schema.CRANE_GROUP] and document.api_version not in schema.API_VERSIONS:
        with complaints.at("apiVersion"):
            given = document.api_version
            wanted = " or ".join(schema.API_VERSIONS)
            complaints.problem(f"must be {wanted}, and is {shown(given) if given else 'missing'}")
    elif group not in KINDS:
        complaints.notice("is ignored: it is not a policy" if kind else "is ignored: it has no kind")
    else:
        return kind
    return ""


def as_document(kind: str, item: Any, *, group: str, origin: str) -> PolicyDocument:
    """An object of the Kubernetes API (with `metadata` and `spec`) as a document."""
    metadata = {"name": item.metadata.name, "annotations": dict(item.metadata.annotations)}
    place = PolicyLocation(origin, object=f"{kind}/{item.metadata.name}")
    content = {"apiVersion": f"{group}/{schema.VERSION}", "kind": kind, "metadata": metadata, "spec": item.spec}
    return PolicyDocument(place, msgspec.to_builtins(content))


# --- NodeQOS ---------------------------------------------------------------------------------------------------------


def _node_qos(document: PolicyDocument, metrics: Collection[str], complaints: ProblemCollector) -> NodeQos:
    with complaints.at("spec"):
        spec = read(schema.NodeQosSpec, document.content.get("spec"), complaints)
        if spec.node_quality_probe is not None:
            with complaints.at("nodeQualityProbe"):
                check_probe(spec.node_quality_probe, document, complaints)
        selector = None
        if spec.selector is not None:
            with complaints.at("selector"):
                selector = label_selector(spec.selector, complaints)
    additions = _additions(document, {rule.name for rule in spec.rules}, complaints)
    older = "objectiveEnsurances" in (document.content.get("spec") or {})
    with complaints.at("spec", "objectiveEnsurances" if older else "rules"):
        rules = read_rules(
            spec.rules, policy=document.name, metrics=metrics, additions=additions, complaints=complaints
        )
    return NodeQos(document.name, selector, rules)


def check_probe(probe: schema.NodeQualityProbe, document: PolicyDocument, complaints: ProblemCollector) -> None:
    """Crane's rule: a probe has exactly one of nodeLocalGet and httpGet. (Without a probe, metrics are read on the
    node.)"""
    given = (document.content.get("spec") or {}).get("nodeQualityProbe") or {}
    if not isinstance(given, dict):
        return  # already reported
    if probe.node_local_get is not None and given.get("httpGet") is not None:
        complaints.problem("has nodeLocalGet and httpGet", "Remove httpGet: it is never called.")
    elif probe.node_local_get is None and given.get("httpGet") is None:
        complaints.problem("has neither nodeLocalGet nor httpGet", "Write nodeLocalGet: {}, or remove the probe.")


def read_rules(
    rules: Collection[schema.RuleSpec],
    *,
    policy: str,
    metrics: Collection[str],
    additions: Mapping[str, schema.RuleAddition],
    complaints: ProblemCollector,
) -> tuple[model.Rule, ...]:
    """The rules of a NodeQOS. A problem in one rule does not hide problems in the next."""
    if not rules:
        complaints.problem("is missing: a NodeQOS without rules does nothing")
    result: list[model.Rule] = []
    for number, given in enumerate(rules):
        with complaints.at(number):
            if given.name and given.name in {each.name for each in result}:
                with complaints.at("name"):
                    complaints.problem(f"{given.name} is also the name of another rule of this NodeQOS")
            result.append(
                _rule(given, policy=policy, metrics=metrics, addition=additions.get(given.name), complaints=complaints)
            )
    return tuple(result)


def _rule(
    given: schema.RuleSpec,
    *,
    policy: str,
    metrics: Collection[str],
    addition: schema.RuleAddition | None,
    complaints: ProblemCollector,
) -> model.Rule:
    with complaints.at("name"):
        if not given.name:
            complaints.problem("is missing")
        elif not _RULE_NAME.fullmatch(given.name):
            complaints.problem(
                f"{shown(given.name)} is not a valid name", "Lowercase letters, digits, - and _, at most 63."
            )
    with complaints.at("actionName"):
        if not given.action_name:
            complaints.problem("is missing")
        else:
            check_label(given.action_name, complaints)
    rule, watermark, selector = given.metric_rule or schema.MetricRule(), 0.0, model.LabelSelector()
    with complaints.at("metricRule"):
        if given.metric_rule is None:
            complaints.problem("is missing", "Add it with a name and a value.")
        else:
            watermark, selector = read_metric_rule(rule, metrics=metrics, complaints=complaints)
    addition = addition or schema.RuleAddition()
    return model.Rule(
        policy=policy,
        name=given.name,
        metric=rule.name,
        watermark=watermark,
        action=given.action_name,
        restore_watermark=None if addition.restore_value is None else _whole_or_zero(addition.restore_value),
        selector=selector,
        avoidance_threshold=given.avoidance_threshold,
        restore_threshold=given.restore_threshold,
        preview=given.strategy == "Preview",
        on_missing=addition.on_missing,
        min_dwell_seconds=float(addition.min_dwell_seconds),
    )


def read_metric_rule(
    rule: schema.MetricRule, *, metrics: Collection[str], complaints: ProblemCollector
) -> tuple[float, model.LabelSelector]:
    """The watermark and the series selector. Problems of name and value are reported independently of each other."""
    with complaints.at("name"):
        if not rule.name:
            complaints.problem("is missing")
        elif rule.name not in metrics:
            cure = _NOT_MEASURED.get(rule.name) or near(rule.name, metrics)
            complaints.problem(f"unknown metric {shown(rule.name)}", cure)
    selector = model.LabelSelector()
    if rule.selector is not None:
        with complaints.at("selector"):
            selector = label_selector(rule.selector, complaints)
    with complaints.at("value"):
        return _watermark(rule.value, complaints), selector


def _watermark(value: schema.Quantity | None, complaints: ProblemCollector) -> float:
    """The integer value of a quantity, rounded up like Quantity.Value() in Kubernetes; 0.0 if invalid."""
    cure = 'Give a quantity above 0, like "4000", "70" or "3Gi", in the unit of the metric.'
    if value is None:
        complaints.problem("the watermark is missing", cure)
        return 0.0
    try:
        whole, exact = whole_number(value), nano(value)
    except ValueError:
        complaints.problem(f"{shown(value)} is not a quantity", cure)
        return 0.0
    if exact <= 0:
        complaints.problem(f"must be above 0, and is {shown(value)}", cure)
    elif whole * NANO != exact:
        complaints.notice(f"{shown(value)} is rounded up to {whole}: watermarks are whole numbers")
    return float(whole)


def whole_number(quantity: str | int | float) -> int:
    """A quantity rounded up to an integer: "4500m" is 5, "500m" is 1. Raises ValueError for an invalid quantity."""
    return -(-nano(quantity) // NANO)


def _whole_or_zero(quantity: str | int | float) -> float:
    try:
        return float(whole_number(quantity))
    except ValueError:
        return 0.0


def _additions(
    document: PolicyDocument, rules: Collection[str], complaints: ProblemCollector
) -> Mapping[str, schema.RuleAddition]:
    """The rule settings in the annotation, by rule name."""
    text = annotation(document, schema.RULES_ANNOTATION)
    if not text:
        return {}
    with complaints.at("metadata", "annotations", schema.RULES_ANNOTATION):
        given, why = None, ""
        try:
            given = decode_strict_yaml(text)
        except ValueError as error:
            why = f" ({error})"
        if not isinstance(given, dict):
            cure = 'Example: {cpu-high: {restoreValue: "3500", minDwellSeconds: 60, onMissing: nothing}}.'
            complaints.problem(f"must be a mapping from rule names, in YAML or JSON{why}", cure)
            return {}
        return {str(name): _addition(str(name), value, rules, complaints) for name, value in given.items()}


def _addition(name: str, given: object, rules: Collection[str], complaints: ProblemCollector) -> schema.RuleAddition:
    with complaints.at(name):
        if name not in rules:
            complaints.problem("this NodeQOS has no rule with this name", near(name, rules))
        addition = read(schema.RuleAddition, given, complaints)
        if addition.restore_value is not None:
            with complaints.at("restoreValue"):
                _watermark(addition.restore_value, complaints)
    return addition


# --- AvoidanceAction -------------------------------------------------------------------------------------------------


def _avoidance_action(document: PolicyDocument, complaints: ProblemCollector) -> model.AvoidanceAction:
    with complaints.at("spec"):
        spec = read(schema.AvoidanceActionSpec, document.content.get("spec"), complaints)
        throttle = spec.throttle.cpu_throttle if spec.throttle is not None else None
        if throttle is not None and throttle.step_cpu_ratio == 0:
            with complaints.at("throttle", "cpuThrottle"):
                if complaints.is_clean():
                    complaints.notice("does not throttle: stepCPURatio is 0")
        if spec.throttle is not None and throttle is None:
            with complaints.at("throttle"):
                complaints.notice("does not throttle CPU: it has no cpuThrottle")
    memory = spec.throttle.memory_throttle if spec.throttle is not None else None
    gentle = _gentle(document, complaints)
    if model.CPU_WEIGHT in gentle and throttle is None:
        with complaints.at("metadata", "annotations", schema.GENTLE_ANNOTATION):
            complaints.notice(f"{model.CPU_WEIGHT} has no effect: it precedes cpuThrottle, which is missing")
    return model.AvoidanceAction(
        name=document.name,
        cool_down_seconds=float(spec.cool_down_seconds),
        throttle=None if throttle is None else model.CpuThrottle(throttle.min_cpu_ratio, throttle.step_cpu_ratio),
        restore_step_ratio=_restore_step(document, complaints),
        force_gc=memory is not None and memory.force_gc,
        evicts=spec.eviction is not None,
        grace_seconds=_grace(spec.eviction),
        soft_limits=gentle,
    )


def _grace(eviction: schema.EvictionSpec | None) -> float | None:
    seconds = None if eviction is None else eviction.termination_grace_period_seconds
    return None if seconds is None else float(seconds)


def _restore_step(document: PolicyDocument, complaints: ProblemCollector) -> int | None:
    text = annotation(document, schema.RESTORE_STEP_ANNOTATION)
    if not text:
        return None
    if re.fullmatch(r"\d{1,3}", text, re.ASCII) and 1 <= int(text) <= 100:
        return int(text)
    with complaints.at("metadata", "annotations", schema.RESTORE_STEP_ANNOTATION):
        complaints.problem(f"must be a whole number from 1 to 100, and is {shown(text)}")
    return None


def _gentle(document: PolicyDocument, complaints: ProblemCollector) -> frozenset[model.GentleKnob]:
    """The soft limits to set first, from the comma-separated annotation."""
    names = [name.strip() for name in annotation(document, schema.GENTLE_ANNOTATION).split(",") if name.strip()]
    with complaints.at("metadata", "annotations", schema.GENTLE_ANNOTATION):
        for name in names:
            if name not in _GENTLE:
                complaints.problem(f"unknown soft limit {shown(name)}", near(name, _GENTLE))
    return frozenset(knob for knob in _GENTLE if knob in names)


# --- PodQOS ----------------------------------------------------------------------------------------------------------


def _pod_qos(document: PolicyDocument, complaints: ProblemCollector) -> model.PodQos:
    with complaints.at("spec"):
        spec = read(schema.PodQosSpec, document.content.get("spec"), complaints)
        selector, scopes = None, None
        if spec.label_selector is not None:
            with complaints.at("labelSelector"):
                selector = label_selector(spec.label_selector, complaints)
        if spec.scope_selector is not None:
            with complaints.at("scopeSelector"):
                scopes = _scopes(spec.scope_selector, complaints)
                if not scopes and not (selector and selector.requirements) and complaints.is_clean():
                    _check_every_pod(document, complaints)
        elif selector is None or not selector.requirements:
            complaints.notice("selects no pods: it has neither a labelSelector nor a scopeSelector")
        if complaints.is_clean() and _says_only_who_is_spared(selector, scopes or ()):
            complaints.notice("selects every pod except the excluded ones")
        with complaints.at("allowedActions"):
            if not spec.allowed_actions and complaints.is_clean():
                complaints.notice("allows no action: it has no effect on any pod")
    return model.PodQos(document.name, frozenset(spec.allowed_actions), selector, scopes)


def _says_only_who_is_spared(selector: model.LabelSelector | None, scopes: tuple[model.PodScope, ...]) -> bool:
    """Whether all requirements only exclude pods or match every pod, so that nearly every pod is selected."""
    requirements = selector.requirements if selector is not None else ()
    labels = [operator in ("NotIn", "DoesNotExist") for _, operator, _ in requirements]
    spared = [*labels, *(scope.operator == "NotIn" or _is_everything(scope) for scope in scopes)]
    return bool(spared) and all(spared)


def _is_everything(scope: model.PodScope) -> bool:
    """Whether the scope lists every QoS class, or every priority that a user's pod may have."""
    if scope.scope == "QOSClass":
        return set(scope.values) >= set(_CLASSES)
    users = (-model.CRITICAL_PRIORITY, model.CRITICAL_PRIORITY // 2)
    return any(lowest <= users[0] and highest >= users[1] for lowest, highest in scope.ranges)


def _check_every_pod(document: PolicyDocument, complaints: ProblemCollector) -> None:
    """Reject an empty scopeSelector, which selects every pod in Crane, unless an annotation confirms it."""
    if annotation(document, schema.EVERY_POD_ANNOTATION) == "true":
        complaints.notice(f"selects every pod, as the annotation {schema.EVERY_POD_ANNOTATION} confirms")
    else:
        complaints.problem(
            "is empty, which selects every pod of every node",
            f'Add requirements, or remove it to select none; for every pod: {schema.EVERY_POD_ANNOTATION}: "true".',
        )


def _scopes(given: schema.ScopeSelector, complaints: ProblemCollector) -> tuple[model.PodScope, ...]:
    found = []
    with complaints.at("matchExpressions"):
        for number, each in enumerate(given.match_expressions):
            with complaints.at(number):
                scope = _scope(each, complaints)
            if scope is not None:
                found.append(scope)
    return tuple(found)


def _scope(given: schema.ScopeRequirement, complaints: ProblemCollector) -> model.PodScope | None:
    _check_given(complaints, scopeName=given.scope_name, operator=given.operator)
    with complaints.at("values"):
        if not given.values:
            complaints.problem("is missing: without values no pod matches")
        ranges = []
        for number, value in enumerate(given.values):
            with complaints.at(number):
                if given.scope_name == "Priority":
                    ranges += _range(value, complaints)
                elif given.scope_name == "QOSClass" and value not in _CLASSES:
                    complaints.problem(f"unknown QoS class {shown(value)}", near(value, _CLASSES))
    if not given.scope_name or not given.operator:
        return None
    return model.PodScope(given.scope_name, given.operator, given.values, tuple(ranges))


def _range(value: str, complaints: ProblemCollector) -> list[tuple[int, int]]:
    """Parse "1000" or "0-3000", both ends inclusive. Unlike in Crane, numbers may be negative ("-100--1")."""
    match = _PRIORITY.fullmatch(value)
    if match is None:
        complaints.problem(f'{shown(value)} is not a priority or a range of priorities, like "1000" or "0-3000"')
        return []
    lowest, highest = int(match[1]), int(match[2] or match[1])
    if lowest > highest:
        complaints.problem(f"{value} is an empty range", f'Swap the ends: "{highest}-{lowest}".')
        return []
    return [(lowest, highest)]


def label_selector(given: schema.LabelSelectorSpec, complaints: ProblemCollector) -> model.LabelSelector:
    """Convert a selector as Kubernetes interprets it; matchLabels become `In` with one value."""
    requirements: list[tuple[str, Literal["In", "NotIn", "Exists", "DoesNotExist"], tuple[str, ...]]] = [
        (key, "In", (value,)) for key, value in given.match_labels.items()
    ]
    with complaints.at("matchExpressions"):
        for number, each in enumerate(given.match_expressions):
            with complaints.at(number):
                _check_requirement(each, complaints)
            if each.operator:
                requirements.append((each.key, each.operator, each.values))
    return model.LabelSelector(tuple(requirements))


def _check_requirement(given: schema.LabelRequirement, complaints: ProblemCollector) -> None:
    _check_given(complaints, key=given.key, operator=given.operator)
    with complaints.at("values"):
        if given.operator in ("In", "NotIn") and not given.values:
            complaints.problem(f"is missing: {given.operator} needs at least one value")
        if given.operator in ("Exists", "DoesNotExist") and given.values:
            complaints.problem(f"must be empty: {given.operator} takes no values")


def _check_given(complaints: ProblemCollector, **fields: str) -> None:
    for field, word in fields.items():
        if not word:
            with complaints.at(field):
                complaints.problem("is missing")
