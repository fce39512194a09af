"""NodeQOS objects: from a document to rules with watermarks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agent import model
from agent.policy import schema
from agent.policy.documents import Document, one_value
from agent.policy.metadata import _annotation, _check_label
from agent.policy.pod_qos import label_selector
from agent.policy.problems import Complaints, near, shown
from agent.policy.struct_reader import read
from watcher.core.kubernetes.quantity import NANO, nano

_RULE_NAME = re.compile(r"[a-z0-9](?:[-_a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
"""Underscores too: Crane's own examples name rules by their metrics, although its webhook refuses that."""
_NOT_MEASURED = {"disk_write_utilization": "The kernel tells of reading and writing together: disk_total_utilization."}
"""Metrics that Crane's documents name and that cannot be had, with what to name in their place."""


@dataclass(frozen=True, slots=True)
class NodeQos:
    """What a NodeQOS says, on the nodes whose labels `selector` wants; None is every node."""

    name: str
    selector: model.LabelSelector | None
    rules: tuple[model.Rule, ...]


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
