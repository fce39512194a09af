"""PodQOS objects: from a document to the pods that it selects and the actions that it allows."""

from __future__ import annotations

from typing import Literal

from agent import model
from agent.policy import schema
from agent.policy.documents import PolicyDocument
from agent.policy.metadata import _PRIORITY, _annotation
from agent.policy.problems import ProblemCollector, near, shown
from agent.qos import QosClass
from watcher.core.config.reader import read


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
    if _annotation(document, schema.EVERY_POD_ANNOTATION) == "true":
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
                    complaints.problem(f"unknown QoS class {shown(value)}", near(value, _CLASSES))
    if not given.scope_name or not given.operator:
        return None
    return model.PodScope(given.scope_name, given.operator, given.values, tuple(ranges))


_CLASSES = tuple(each.value for each in QosClass if each.value)


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
    for field, word in (("key", given.key), ("operator", given.operator)):
        if not word:
            with complaints.at(field):
                complaints.problem("is missing")
    with complaints.at("values"):
        if given.operator in ("In", "NotIn") and not given.values:
            complaints.problem(f"is missing: {given.operator} needs at least one value")
        if given.operator in ("Exists", "DoesNotExist") and given.values:
            complaints.problem(f"must be empty: {given.operator} takes no values")
