"""The pods that a PodQOS selects, and the pods that must never be changed.

A PodQOS allows its actions on the pods that match its labels and all of its scopes. Without labels and scopes it
matches no pod, but an empty list of scopes matches every pod, as in Crane; a warning names it (`matches_everything`).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.model import CRITICAL_PRIORITY, PodQos, PodScope, PodState

FINISHED = ("Succeeded", "Failed")


def matches(policy: PodQos, pod: PodState) -> bool:
    """Whether the PodQOS selects this pod."""
    selects = policy.selector is not None and bool(policy.selector.requirements)
    if not selects and policy.scopes is None:
        return False
    if policy.selector is not None and not policy.selector.matches(pod.labels):
        return False
    return all(_in_scope(scope, pod) for scope in policy.scopes or ())


def matches_everything(policy: PodQos) -> bool:
    """Whether the PodQOS selects every pod of the node, which is rarely intended."""
    selects = policy.selector is not None and bool(policy.selector.requirements)
    return policy.scopes is not None and not policy.scopes and not selects


def allowed(action: str, policies: Iterable[PodQos], pods: Iterable[PodState]) -> tuple[PodState, ...]:
    """The pods on which any PodQOS allows the action, sorted by namespace/name."""
    allowing = [policy for policy in policies if action in policy.allowed_actions]
    found = [pod for pod in pods if any(matches(policy, pod) for policy in allowing)]
    return tuple(sorted(found, key=lambda pod: pod.key))


def protection(pod: PodState, own: frozenset[str]) -> str:
    """The reason why this pod must never be changed; "" if it may be. `own` has the uid of the agent's own pod, or
    its namespace/name if the uid is unknown."""
    if pod.uid in own or pod.key in own:
        return "it is the agent's own pod"
    if pod.terminating:
        return "it is terminating already"
    if pod.phase in FINISHED:
        return f"it has finished ({pod.phase})"
    if pod.static:
        return "it is a static pod or a mirror pod: the kubelet would start it again"
    if pod.priority >= CRITICAL_PRIORITY:
        return f"it is system-critical (priority {pod.priority})"
    return ""


def _in_scope(scope: PodScope, pod: PodState) -> bool:
    """Whether In or NotIn holds for the exact string or the priority ranges; without values, neither holds."""
    if scope.scope == "Priority":
        if not scope.ranges:
            return False
        inside = any(lowest <= pod.priority <= highest for lowest, highest in scope.ranges)
    else:
        if not scope.values:
            return False
        inside = (pod.qos.value if scope.scope == "QOSClass" else pod.namespace) in scope.values
    return inside == (scope.operator == "In")
