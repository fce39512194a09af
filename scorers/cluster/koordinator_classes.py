"""Koordinator's classes of pods: priority class and QoS class.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast, get_args

from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.pod_resources import CPU, MEMORY, Qos, is_best_effort, qos_class

PriorityClass = Literal["koord-prod", "koord-mid", "koord-batch", "koord-free"]
KoordQos = Literal["LSE", "LSR", "LS", "BE", "SYSTEM"]

_PRIORITY_LABELS = frozenset(get_args(PriorityClass))
_QOS_LABELS = frozenset(get_args(KoordQos))

PROD: PriorityClass = "koord-prod"
PRIORITY_LABEL = "koordinator.sh/priority-class"
QOS_LABEL = "koordinator.sh/qosClass"

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"

_RANGES: tuple[tuple[PriorityClass, int, int], ...] = (
    ("koord-prod", 9000, 9999),
    ("koord-mid", 7000, 7999),
    ("koord-batch", 5000, 5999),
    ("koord-free", 3000, 3999),
)
_QOS_OF: Mapping[Qos, KoordQos] = {"Guaranteed": "LSR", "Burstable": "LS", "BestEffort": "BE"}
_OWN_RESOURCES: Mapping[PriorityClass, Mapping[str, str]] = {
    "koord-mid": {CPU: "kubernetes.io/mid-cpu", MEMORY: "kubernetes.io/mid-memory"},
    "koord-batch": {CPU: BATCH_CPU, MEMORY: BATCH_MEMORY},
    "koord-free": {},
}


def qos_of(pod: Pod) -> KoordQos:
    """The QoS class from the pod's label, otherwise derived from its Kubernetes QoS class."""
    label = pod.metadata.labels.get(QOS_LABEL)
    return cast(KoordQos, label) if label in _QOS_LABELS else _QOS_OF[qos_class(pod)]


def priority_class(pod: Pod) -> PriorityClass:
    """The priority class from the pod's label, otherwise from its priority, otherwise from its QoS: best effort is
    batch, all others are prod. With an invalid label, the priority is ignored and the QoS decides."""
    label = pod.metadata.labels.get(PRIORITY_LABEL)
    found = _named(label) if label is not None else _in_range(pod.spec.priority)
    if found is not None:
        return found
    qos = pod.metadata.labels.get(QOS_LABEL)
    best_effort = qos == "BE" if qos in _QOS_LABELS else is_best_effort(pod)
    return "koord-batch" if best_effort else PROD


def resource_of(kind: PriorityClass, resource: str) -> str | None:
    """The name under which pods of this class request a resource; None if they cannot."""
    return resource if kind == PROD else _OWN_RESOURCES[kind].get(resource)


def _named(label: str) -> PriorityClass | None:
    return cast(PriorityClass, label) if label in _PRIORITY_LABELS else None


def _in_range(priority: int | None) -> PriorityClass | None:
    if priority is None:
        return None
    return next((kind for kind, lowest, highest in _RANGES if lowest <= priority <= highest), None)
