"""NodeQOS objects: from a document to rules with watermarks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agent import model
from agent.policy import schema
from agent.policy.documents import PolicyDocument
from agent.policy.metadata import _annotation, _check_label
from agent.policy.pod_qos import label_selector
from agent.policy.problems import ProblemCollector, near, shown
from watcher.core.config.reader import read
from watcher.core.kubernetes.quantity import NANO, nano
from watcher.decoding.yaml_text import decode_strict_yaml

_RULE_NAME = re.compile(r"[a-z0-9](?:[-_a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
"""Allows underscores: Crane's own examples name rules after their metrics, although its webhook rejects such names."""
_NOT_MEASURED = {"disk_write_utilization": "The kernel reports reads and writes together: use disk_total_utilization."}
"""Metrics that Crane's documentation names but that cannot be measured, with the metric to use instead."""


@dataclass(frozen=True, slots=True)
class NodeQos:
    """A NodeQOS object. It applies to nodes with labels that match `selector`; None selects every node."""

    name: str
    selector: model.LabelSelector | None
    rules: tuple[model.Rule, ...]


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
    with complaints.at("spec"), complaints.at("objectiveEnsurances" if older else "rules"):
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
            _check_label(given.action_name, complaints)
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
    text = _annotation(document, schema.RULES_ANNOTATION)
    if not text:
        return {}
    with complaints.at("metadata"), complaints.at("annotations"), complaints.at(schema.RULES_ANNOTATION):
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
