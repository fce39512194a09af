"""The attributes of a pod that plug-ins use."""

from __future__ import annotations

from dataclasses import dataclass

from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.pod_resources import (
    Amounts,
    counted_requests_of,
    limits_of,
    limits_raised_to_requests,
    requests_of,
)
from watcher.core.kubernetes.wire import key_of

ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod with its effective requests and limits as Kubernetes counts them, the limits raised to the requests, and
    the requests that kube-scheduler's scoring counts. Amounts are in millicores for CPU and whole units otherwise."""

    key: str
    pod: Pod
    requests: Amounts
    limits: Amounts
    raised_limits: Amounts
    counted_requests: Amounts


def pod_info(pod: Pod) -> PodInfo:
    """Compute the PodInfo of a pod. Raises ValueError that names the resource with an invalid quantity."""
    requests, limits = requests_of(pod), limits_of(pod)
    return PodInfo(
        identity(pod), pod, requests, limits, limits_raised_to_requests(limits, requests), counted_requests_of(pod)
    )


def identity(pod: Pod) -> str:
    """Return the uid, which differs from that of a later pod with the same name; without one, namespace and name."""
    return pod.metadata.uid or key_of(pod)


def scheduled_at(pod: Pod) -> float | None:
    """Return the time at which the pod was scheduled (unix seconds) from its PodScheduled condition."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True" and condition.last_transition_time:
            return condition.last_transition_time.timestamp()
    return None
