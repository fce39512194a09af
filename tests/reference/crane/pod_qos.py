"""Selects the pods of a PodQOS as Crane v0.11.0 does (analyzer/podqos-fetcher.go: match).

Faults: an empty list of scopes matches every pod; of several priorities with NotIn, only the last one counts
(podqos-fetcher.go:151); a priority below 0 cannot be written (:129); a pod without a priority causes a panic (:131).
The last fault is not emulated: a PodState always has a priority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.model import LabelSelector, PodState


@dataclass(frozen=True, slots=True)
class CraneScope:
    """One matchExpression of the scopeSelector, as it is written."""

    name: str
    operator: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class CranePodQos:
    """A PodQOS; `scopes` None: it has no scopeSelector."""

    name: str
    actions: frozenset[str] = frozenset()
    labels: LabelSelector = field(default_factory=LabelSelector)
    scopes: tuple[CraneScope, ...] | None = None


def matches(policy: CranePodQos, pod: PodState) -> bool:
    """Whether the PodQOS selects the pod."""
    if policy.scopes is None and not policy.labels.requirements:
        return False
    if not policy.labels.matches(pod.labels):
        return False
    texts: Mapping[str, str] = {"Namespace": pod.namespace, "QOSClass": pod.qos.value}
    for scope in policy.scopes or ():
        inside = _priority(scope, pod.priority) if scope.name == "Priority" else _text(scope, texts[scope.name])
        if not inside:
            return False
    return True


def _text(scope: CraneScope, text: str) -> bool:
    if scope.operator not in ("In", "NotIn") or not scope.values:
        return False
    return (text in scope.values) == (scope.operator == "In")


def _priority(scope: CraneScope, priority: int) -> bool:
    hits = [_hits(value, priority) for value in scope.values]
    if scope.operator == "In":
        return any(hits)
    return scope.operator == "NotIn" and bool(hits) and not hits[-1]


def _hits(value: str, priority: int) -> bool:
    """Whether `N` or `A-B` covers the priority."""
    parts = value.split("-")
    if not all(part.isdecimal() for part in parts) or len(parts) > 2:
        return False
    return int(parts[0]) <= priority <= int(parts[-1])
