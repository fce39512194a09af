"""Which pods may suffer which action, and which none at all.

A PodQOS allows its actions on the pods that match it. It matches by labels and by scopes, all of which must hold;
without either it matches nothing, but an empty list of scopes matches every pod, as upstream has it: policies say so
aloud (`matches_everything`).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.metrics.options import Options, Quirk
from agent.model import CRITICAL_PRIORITY, PodQos, PodScope, PodState

FINISHED = ("Succeeded", "Failed")


def matches(policy: PodQos, pod: PodState, options: Options) -> bool:
    """Whether the PodQOS speaks of this pod."""
    selects = policy.selector is not None and bool(policy.selector.requirements)
    if not selects and policy.scopes is None:
        return False
    if policy.selector is not None and not policy.selector.matches(pod.labels):
        return False
    return all(_in_scope(scope, pod, options) for scope in policy.scopes or ())


def matches_everything(policy: PodQos) -> bool:
    """Whether it allows its actions on every pod of the node, which is seldom what was meant."""
    selects = policy.selector is not None and bool(policy.selector.requirements)
    return policy.scopes is not None and not policy.scopes and not selects


def allowed(
    action: str, policies: Iterable[PodQos], pods: Iterable[PodState], options: Options
) -> tuple[PodState, ...]:
    """The pods on which some PodQOS allows the action, each once, by name."""
    allowing = [policy for policy in policies if action in policy.allowed_actions]
    found = [pod for pod in pods if any(matches(policy, pod, options) for policy in allowing)]
    return tuple(sorted(found, key=lambda pod: pod.key))


def protection(pod: PodState, own: frozenset[str]) -> str:
    """Why nothing is ever done to this pod, or "". `own` are uids and namespace/names of the agent's own pods."""
    if pod.uid in own or pod.key in own:
        return "it is the agent itself"
    if pod.terminating:
        return "it is terminating already"
    if pod.phase in FINISHED:
        return f"it has finished ({pod.phase})"
    if pod.static:
        return "it is a static pod, or the mirror of one: the kubelet would start it again"
    if pod.priority >= CRITICAL_PRIORITY:
        return f"it is critical to the system (priority {pod.priority})"
    return ""


def _in_scope(scope: PodScope, pod: PodState, options: Options) -> bool:
    """In and NotIn of an exact string or of ranges; without values neither holds."""
    if scope.scope == "Priority":
        ranges = scope.ranges
        if scope.operator == "NotIn" and Quirk.NOT_IN in options.quirks:
            ranges = ranges[-1:]
        if not ranges:
            return False
        inside = any(lowest <= pod.priority <= highest for lowest, highest in ranges)
    else:
        if not scope.values:
            return False
        inside = (pod.qos.value if scope.scope == "QOSClass" else pod.namespace) in scope.values
    return inside == (scope.operator == "In")
