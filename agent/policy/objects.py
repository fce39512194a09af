"""From one object as it was given to what the agent knows of it, with Crane's own rules of validation and ours.

The rules are those of Crane's webhook (pkg/webhooks/ensurance) and of its CRDs' schemas. Where they leave a way to hit
pods by accident (an empty scopeSelector is every pod of the node), ours are stricter.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from agent import model
from agent.policy import schema
from agent.policy.documents import Document, one_value
from agent.policy.fields import read
from agent.policy.problems import Complaints, Place, near, shown
from agent.qos import QosClass
from watcher.kube.quantity import NANO, nano

NODE_QOS = "NodeQOS"
OLDER_NODE_QOS = "NodeQOSEnsurancePolicy"
AVOIDANCE_ACTION = "AvoidanceAction"
POD_QOS = "PodQOS"
KINDS = (NODE_QOS, OLDER_NODE_QOS, AVOIDANCE_ACTION, POD_QOS)
INERT_KINDS = {
    "PodQOSEnsurancePolicy": "it never had a controller",
    "ServicePolicy": "nothing ever read it",
}

_DNS_1123 = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_RULE_NAME = re.compile(r"[a-z0-9](?:[-_a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
"""Underscores too: Crane's own examples name rules by their metrics, although its webhook refuses that."""
_DNS_1035 = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_PRIORITY = re.compile(r"\s*(-?\d{1,10})\s*(?:-\s*(-?\d{1,10})\s*)?", re.ASCII)
_NOT_MEASURED = {"disk_write_utilization": "The kernel tells of reading and writing together: disk_total_utilization."}
"""Metrics that Crane's documents name and that cannot be had, with what to name in their place."""
_GENTLE: tuple[model.GentleKnob, ...] = (model.CPU_WEIGHT, model.MEMORY_HIGH)
_PERCENTAGE = re.compile(r"\d{1,10}(?:\.\d{1,10})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeQos:
    """What a NodeQOS says, on the nodes whose labels `selector` wants; None is every node."""

    name: str
    selector: model.LabelSelector | None
    rules: tuple[model.Rule, ...]


Parsed = NodeQos | model.AvoidanceAction | model.PodQos


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """One object that could be read, and where it stood."""

    place: Place
    kind: str
    value: Parsed

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name, the older name of NodeQOS being another one."""
        return self.kind, self.value.name


def read_object(document: Document, *, metrics: Collection[str], complaints: Complaints) -> PolicyObject | None:
    """The policy in a document, so far as it can be read; None for what is none. `metrics` are the names that rules may
    have. Problems and notices go to `complaints`."""
    complaints.place = document.place
    kind = _kind_of(document, complaints)
    if not kind:
        return None
    _check_name(document, kind, complaints)
    _check_annotations(document, kind, complaints)
    for field in document.content.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        with complaints.at(str(field)):
            complaints.problem("there is no such field", near(str(field), ("metadata", "spec", "kind", "apiVersion")))
    value: Parsed
    if kind == AVOIDANCE_ACTION:
        value = _avoidance_action(document, complaints)
    elif kind == POD_QOS:
        value = _pod_qos(document, complaints)
    else:
        value = _node_qos(document, metrics, complaints)
    return PolicyObject(document.place, kind, value)


def _kind_of(document: Document, complaints: Complaints) -> str:
    """Which of KINDS it is, "" for another; told, if somebody may have meant one of them."""
    kind, group = document.kind, document.api_version.partition("/")[0]
    if group == schema.GROUP and kind in INERT_KINDS:
        complaints.notice(f"is passed over: {INERT_KINDS[kind]}")
    elif group == schema.GROUP and kind not in KINDS:
        with complaints.at("kind"):
            complaints.problem(f"{kind or 'nothing'} is no kind of {schema.GROUP}", near(kind, KINDS))
    elif kind in KINDS and document.api_version != schema.API_VERSION:
        with complaints.at("apiVersion"):
            given = document.api_version
            complaints.problem(f"must be {schema.API_VERSION}, and is {shown(given) if given else 'missing'}")
    elif kind not in KINDS:
        complaints.notice("is passed over: it is no policy" if kind else "is passed over: it has no kind")
    else:
        return kind
    return ""


def _check_name(document: Document, kind: str, complaints: Complaints) -> None:
    name = document.metadata.get("name")
    with complaints.at("metadata"), complaints.at("name"):
        if not name:
            complaints.problem("is missing")
        elif kind in (NODE_QOS, OLDER_NODE_QOS):
            if not isinstance(name, str) or not _DNS_1035.fullmatch(name):
                complaints.problem(
                    f"{shown(name)} is no name for a {kind}", "Small letters, digits and -, a letter first, at most 63."
                )
        else:
            _check_label(name, complaints)


def _check_label(name: Any, complaints: Complaints) -> None:
    if not isinstance(name, str) or not _DNS_1123.fullmatch(name):
        complaints.problem(f"{shown(name)} is no name", "Small letters, digits and -, at most 63 (a DNS-1123 label).")


def _annotations(document: Document) -> Mapping[str, Any]:
    found = document.metadata.get("annotations")
    return found if isinstance(found, dict) else {}


def _check_annotations(document: Document, kind: str, complaints: Complaints) -> None:
    known = schema.ANNOTATIONS[NODE_QOS if kind == OLDER_NODE_QOS else kind]
    with complaints.at("metadata"), complaints.at("annotations"):
        for name, value in _annotations(document).items():
            if str(name).partition("/")[0] != "load-watcher.io":
                continue
            with complaints.at(str(name)):
                if name not in known:
                    complaints.problem(f"there is no such annotation of a {kind}", near(str(name), known))
                elif not isinstance(value, str):
                    complaints.problem(f"must be text, and is {shown(value)}", "Put it in quotes.")


def _annotation(document: Document, name: str) -> str:
    value = _annotations(document).get(name)
    return value if isinstance(value, str) else ""


# --- AvoidanceAction -------------------------------------------------------------------------------------------------


def _avoidance_action(document: Document, complaints: Complaints) -> model.AvoidanceAction:
    with complaints.at("spec"):
        spec = read(schema.AvoidanceActionSpec, document.content.get("spec"), complaints)
        throttle = spec.throttle.cpu_throttle if spec.throttle is not None else None
        if throttle is not None and throttle.step_cpu_ratio == 0:
            with complaints.at("throttle"), complaints.at("cpuThrottle"):
                if complaints.spotless():
                    complaints.notice("takes nothing off: stepCPURatio is 0")
        if spec.throttle is not None and throttle is None:
            with complaints.at("throttle"):
                complaints.notice("takes nothing off: it has no cpuThrottle")
    memory = spec.throttle.memory_throttle if spec.throttle is not None else None
    gentle = _gentle(document, complaints)
    if model.CPU_WEIGHT in gentle and throttle is None:
        with _at_annotation(schema.GENTLE_ANNOTATION, complaints):
            complaints.notice(f"{model.CPU_WEIGHT} has no effect: there is no cpuThrottle, which it would precede")
    return model.AvoidanceAction(
        name=document.name,
        cool_down_seconds=float(spec.cool_down_seconds),
        throttle=None if throttle is None else model.CpuThrottle(throttle.min_cpu_ratio, throttle.step_cpu_ratio),
        restore_step_ratio=_restore_step(document, complaints),
        force_gc=memory is not None and memory.force_gc,
        evicts=spec.eviction is not None,
        grace_seconds=_grace(spec.eviction),
        gentle=gentle,
    )


def _grace(eviction: schema.Eviction | None) -> float | None:
    seconds = None if eviction is None else eviction.termination_grace_period_seconds
    return None if seconds is None else float(seconds)


def _restore_step(document: Document, complaints: Complaints) -> int | None:
    text = _annotation(document, schema.RESTORE_STEP_ANNOTATION)
    if not text:
        return None
    if re.fullmatch(r"\d{1,3}", text, re.ASCII) and 1 <= int(text) <= 100:
        return int(text)
    with _at_annotation(schema.RESTORE_STEP_ANNOTATION, complaints):
        complaints.problem(f"must be a whole number from 1 to 100, and is {shown(text)}")
    return None


def _gentle(document: Document, complaints: Complaints) -> frozenset[model.GentleKnob]:
    """The knobs that are turned first, of a list with commas."""
    names = [name.strip() for name in _annotation(document, schema.GENTLE_ANNOTATION).split(",") if name.strip()]
    with _at_annotation(schema.GENTLE_ANNOTATION, complaints):
        for name in names:
            if name not in _GENTLE:
                complaints.problem(f"there is no gentler step {shown(name)}", near(name, _GENTLE))
    return frozenset(knob for knob in _GENTLE if knob in names)


@contextmanager
def _at_annotation(name: str, complaints: Complaints) -> Iterator[None]:
    with complaints.at("metadata"), complaints.at("annotations"), complaints.at(name):
        yield


# --- NodeQOS ---------------------------------------------------------------------------------------------------------


def _node_qos(document: Document, metrics: Collection[str], complaints: Complaints) -> NodeQos:
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
    with complaints.at("spec"), complaints.at("objectiveEnsurances" if older else "rules"):
        rules = read_rules(
            spec.rules, policy=document.name, metrics=metrics, additions=additions, complaints=complaints
        )
    return NodeQos(document.name, selector, rules)


def check_probe(probe: schema.NodeQualityProbe, document: Document, complaints: Complaints) -> None:
    """Crane's rule: exactly one way of looking at the node. (Without a probe at all ours is taken.)"""
    given = (document.content.get("spec") or {}).get("nodeQualityProbe") or {}
    if not isinstance(given, dict):
        return  # which is told already
    if probe.node_local_get is not None and given.get("httpGet") is not None:
        complaints.problem("has nodeLocalGet and httpGet", "Leave httpGet out: nothing calls it.")
    elif probe.node_local_get is None and given.get("httpGet") is None:
        complaints.problem("has neither nodeLocalGet nor httpGet", "Write nodeLocalGet: {}, or leave the probe out.")


def read_rules(
    rules: Collection[schema.Rule],
    *,
    policy: str,
    metrics: Collection[str],
    additions: Mapping[str, schema.RuleAddition],
    complaints: Complaints,
) -> tuple[model.Rule, ...]:
    """The rules of a NodeQOS. What is wrong with one does not hide what is wrong with the next."""
    if not rules:
        complaints.problem("is missing: a NodeQOS without rules does nothing")
    result: list[model.Rule] = []
    for number, given in enumerate(rules):
        with complaints.at(number):
            if given.name and given.name in {each.name for each in result}:
                with complaints.at("name"):
                    complaints.problem(f"{given.name} is the name of another rule of this NodeQOS, too")
            result.append(
                _rule(given, policy=policy, metrics=metrics, addition=additions.get(given.name), complaints=complaints)
            )
    return tuple(result)


def _rule(
    given: schema.Rule,
    *,
    policy: str,
    metrics: Collection[str],
    addition: schema.RuleAddition | None,
    complaints: Complaints,
) -> model.Rule:
    with complaints.at("name"):
        if not given.name:
            complaints.problem("is missing")
        elif not _RULE_NAME.fullmatch(given.name):
            complaints.problem(f"{shown(given.name)} is no name", "Small letters, digits, - and _, at most 63.")
    with complaints.at("actionName"):
        if not given.action_name:
            complaints.problem("is missing")
        else:
            _check_label(given.action_name, complaints)
    rule, watermark, selector = given.metric_rule or schema.MetricRule(), 0.0, model.LabelSelector()
    with complaints.at("metricRule"):
        if given.metric_rule is None:
            complaints.problem("is missing", "It has a name and a value.")
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
    rule: schema.MetricRule, *, metrics: Collection[str], complaints: Complaints
) -> tuple[float, model.LabelSelector]:
    """The watermark and the selector of series. Both are told of, name and value, whatever is wrong with the other."""
    with complaints.at("name"):
        if not rule.name:
            complaints.problem("is missing")
        elif rule.name not in metrics:
            cure = _NOT_MEASURED.get(rule.name) or near(rule.name, metrics)
            complaints.problem(f"there is no metric {shown(rule.name)}", cure)
    selector = model.LabelSelector()
    if rule.selector is not None:
        with complaints.at("selector"):
            selector = label_selector(rule.selector, complaints)
    with complaints.at("value"):
        return _watermark(rule.value, complaints), selector


def _watermark(value: schema.Quantity | None, complaints: Complaints) -> float:
    """As Kubernetes' Quantity.Value() has it: the whole number, rounded up."""
    cure = 'A quantity above 0, like "4000", "70" or "3Gi", in the unit of the metric.'
    if value is None:
        complaints.problem("a watermark must be given", cure)
        return 0.0
    try:
        whole, exact = whole_number(value), nano(value)
    except ValueError:
        complaints.problem(f"{shown(value)} is no quantity", cure)
        return 0.0
    if exact <= 0:
        complaints.problem(f"must be above 0, and is {shown(value)}", cure)
    elif whole * NANO != exact:
        complaints.notice(f"{shown(value)} counts as {whole}: watermarks are whole numbers, rounded up")
    return float(whole)


def whole_number(quantity: str | int | float) -> int:
    """A quantity's whole number, rounded up: "4500m" is 5, "500m" is 1. Raises ValueError for what is no quantity."""
    return -(-nano(quantity) // NANO)


def _whole_or_zero(quantity: str | int | float) -> float:
    try:
        return float(whole_number(quantity))
    except ValueError:
        return 0.0


def _additions(document: Document, rules: Collection[str], complaints: Complaints) -> Mapping[str, schema.RuleAddition]:
    """What the annotation adds to the rules, by their names."""
    text = _annotation(document, schema.RULES_ANNOTATION)
    if not text:
        return {}
    with complaints.at("metadata"), complaints.at("annotations"), complaints.at(schema.RULES_ANNOTATION):
        given, why = None, ""
        try:
            given = one_value(text)
        except ValueError as error:
            why = f" ({error})"
        if not isinstance(given, dict):
            cure = 'Like {cpu-high: {restoreValue: "3500", minDwellSeconds: 60, onMissing: nothing}}.'
            complaints.problem(f"must be YAML or JSON: a mapping of rules' names{why}", cure)
            return {}
        return {str(name): _addition(str(name), value, rules, complaints) for name, value in given.items()}


def _addition(name: str, given: object, rules: Collection[str], complaints: Complaints) -> schema.RuleAddition:
    with complaints.at(name):
        if name not in rules:
            complaints.problem("this NodeQOS has no rule of that name", near(name, rules))
        addition = read(schema.RuleAddition, given, complaints)
        if addition.restore_value is not None:
            with complaints.at("restoreValue"):
                _watermark(addition.restore_value, complaints)
    return addition


# --- PodQOS ----------------------------------------------------------------------------------------------------------


def _pod_qos(document: Document, complaints: Complaints) -> model.PodQos:
    with complaints.at("spec"):
        spec = read(schema.PodQosSpec, document.content.get("spec"), complaints)
        selector, scopes = None, None
        if spec.label_selector is not None:
            with complaints.at("labelSelector"):
                selector = label_selector(spec.label_selector, complaints)
        if spec.scope_selector is not None:
            with complaints.at("scopeSelector"):
                scopes = _scopes(spec.scope_selector, complaints)
                if not scopes and not (selector and selector.requirements) and complaints.spotless():
                    _check_every_pod(document, complaints)
        elif selector is None or not selector.requirements:
            complaints.notice("selects no pod: it has neither a labelSelector nor a scopeSelector")
        if complaints.spotless() and _says_only_who_is_spared(selector, scopes or ()):
            complaints.notice("selects every pod but for those that it leaves out")
        with complaints.at("allowedActions"):
            if not spec.allowed_actions and complaints.spotless():
                complaints.notice("allows no action: no pod suffers anything by it")
    return model.PodQos(document.name, frozenset(spec.allowed_actions), selector, scopes)


def _says_only_who_is_spared(selector: model.LabelSelector | None, scopes: tuple[model.PodScope, ...]) -> bool:
    """Whether all that it asks for is what nearly every pod has: not to be one of some."""
    requirements = selector.requirements if selector is not None else ()
    labels = [operator in ("NotIn", "DoesNotExist") for _, operator, _ in requirements]
    spared = [*labels, *(scope.operator == "NotIn" or _is_everything(scope) for scope in scopes)]
    return bool(spared) and all(spared)


def _is_everything(scope: model.PodScope) -> bool:
    """Whether it names each class there is, or every priority that a pod of a user's may have."""
    if scope.scope == "QOSClass":
        return set(scope.values) >= set(_CLASSES)
    users = (-model.CRITICAL_PRIORITY, model.CRITICAL_PRIORITY // 2)
    return any(lowest <= users[0] and highest >= users[1] for lowest, highest in scope.ranges)


def _check_every_pod(document: Document, complaints: Complaints) -> None:
    """To Crane an empty scopeSelector is every pod, which nobody means who writes it."""
    if _annotation(document, schema.EVERY_POD_ANNOTATION) == "true":
        complaints.notice(f"selects every pod, as the annotation {schema.EVERY_POD_ANNOTATION} says")
    else:
        complaints.problem(
            "is empty, which selects every pod of every node",
            f'Say which, or leave it out to select none; if every pod is meant: {schema.EVERY_POD_ANNOTATION}: "true".',
        )


def _scopes(given: schema.ScopeSelector, complaints: Complaints) -> tuple[model.PodScope, ...]:
    found = []
    with complaints.at("matchExpressions"):
        for number, each in enumerate(given.match_expressions):
            with complaints.at(number):
                scope = _scope(each, complaints)
            if scope is not None:
                found.append(scope)
    return tuple(found)


def _scope(given: schema.ScopeRequirement, complaints: Complaints) -> model.PodScope | None:
    for field, word in (("scopeName", given.scope_name), ("operator", given.operator)):
        if not word:
            with complaints.at(field):
                complaints.problem("is missing")
    with complaints.at("values"):
        if not given.values:
            complaints.problem("is missing: without values no pod matches")
        ranges = []
        for number, value in enumerate(given.values):
            with complaints.at(number):
                if given.scope_name == "Priority":
                    ranges += _range(value, complaints)
                elif given.scope_name == "QOSClass" and value not in _CLASSES:
                    complaints.problem(f"there is no QoS class {shown(value)}", near(value, _CLASSES))
    if not given.scope_name or not given.operator:
        return None
    return model.PodScope(given.scope_name, given.operator, given.values, tuple(ranges))


_CLASSES = tuple(each.value for each in QosClass if each.value)


def _range(value: str, complaints: Complaints) -> list[tuple[int, int]]:
    """ "1000" or "0-3000", both ends inclusive; unlike Crane's, the numbers may be negative ("-100--1")."""
    match = _PRIORITY.fullmatch(value)
    if match is None:
        complaints.problem(f'{shown(value)} is no priority and no range of them, like "1000" or "0-3000"')
        return []
    lowest, highest = int(match[1]), int(match[2] or match[1])
    if lowest > highest:
        complaints.problem(f"{value} is an empty range", f'Turn it round: "{highest}-{lowest}".')
        return []
    return [(lowest, highest)]


# --- what several have -----------------------------------------------------------------------------------------------


def label_selector(given: schema.LabelSelector, complaints: Complaints) -> model.LabelSelector:
    """A selector as Kubernetes reads it; matchLabels are `In` with one value."""
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


def _check_requirement(given: schema.LabelRequirement, complaints: Complaints) -> None:
    for field, word in (("key", given.key), ("operator", given.operator)):
        if not word:
            with complaints.at(field):
                complaints.problem("is missing")
    with complaints.at("values"):
        if given.operator in ("In", "NotIn") and not given.values:
            complaints.problem(f"is missing: {given.operator} needs at least one")
        if given.operator in ("Exists", "DoesNotExist") and given.values:
            complaints.problem(f"must be empty: {given.operator} takes none")


def read_percentage(text: str) -> float:
    """ "10%" as 0.1, and "" as 0, as Crane's flag --execute-excess has it. Raises ValueError for anything else."""
    if not text:
        return 0.0
    number = text.removesuffix("%")
    if number == text or not _PERCENTAGE.fullmatch(number):
        raise ValueError(f'{shown(text)} is no percentage, like "10%"')
    return float(number) / 100


def as_document(kind: str, item: Any, *, origin: str) -> Document:
    """An object of the Kubernetes API (with `metadata` and `spec`) as a document."""
    metadata = {"name": item.metadata.name, "annotations": dict(item.metadata.annotations)}
    place = Place(origin, object=f"{kind}/{item.metadata.name}")
    content = {"apiVersion": schema.API_VERSION, "kind": kind, "metadata": metadata, "spec": item.spec}
    return Document(place, msgspec.to_builtins(content))
