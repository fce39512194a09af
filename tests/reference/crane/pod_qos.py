"""Selects the pods of a PodQOS as Crane v0.11.0 does (analyzer/podqos-fetcher.go: match).

An empty list of scopes matches every pod. A pod without a priority causes a panic (podqos-fetcher.go:131), which is not
emulated: a PodState always has a priority.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from agent.model import LabelSelector, PodState
from tests.reference.crane.faults import CraneFault

RANGE = re.compile(r"(-?\d+)(?:-(-?\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CraneScope:
    """One matchExpression of the scopeSelector, as it is written."""

    name: str
    operator: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class CranePodQos:
    """A PodQOS. `labels` is None without matchLabels and matchExpressions, `scopes` is None without a scopeSelector."""

    name: str
    actions: frozenset[str] = frozenset()
    labels: LabelSelector | None = None
    scopes: tuple[CraneScope, ...] | None = None


def matches(policy: CranePodQos, pod: PodState, repaired: Set[CraneFault] = frozenset()) -> bool:
    """Whether the PodQOS selects the pod."""
    labels = policy.labels
    if CraneFault.EMPTY_LABELS in repaired and labels is not None and not labels.requirements:
        labels = None
    if policy.scopes is None and labels is None:
        return False
    if labels is not None and not labels.matches(pod.labels):
        return False
    texts: Mapping[str, str] = {"Namespace": pod.namespace, "QOSClass": pod.qos.value}
    for scope in policy.scopes or ():
        if scope.name == "Priority":
            inside = _priority(scope, pod.priority, repaired)
        else:
            inside = _text(scope, texts[scope.name])
        if not inside:
            return False
    return True


def _text(scope: CraneScope, text: str) -> bool:
    if scope.operator not in ("In", "NotIn") or not scope.values:
        return False
    return (text in scope.values) == (scope.operator == "In")


def _priority(scope: CraneScope, priority: int, repaired: Set[CraneFault]) -> bool:
    hits = [_hits(value, priority, repaired) for value in scope.values]
    if scope.operator == "In":
        return any(hits)
    excluded = any(hits) if CraneFault.LAST_PRIORITY in repaired else bool(hits) and hits[-1]
    return scope.operator == "NotIn" and bool(hits) and not excluded


def _hits(value: str, priority: int, repaired: Set[CraneFault]) -> bool:
    """Whether `N` or `A-B` covers the priority."""
    found = RANGE.fullmatch(value)
    if found is None:
        return False
    if CraneFault.NEGATIVE_PRIORITY not in repaired and "-" in found[1] + (found[2] or ""):
        return False
    return int(found[1]) <= priority <= int(found[2] or found[1])
