"""Pods as the manager uses them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from agent.qrm.manager.request import ContainerType

ROLE_ANNOTATION = "kubernetes.io/pod-role"
TYPE_ANNOTATION = "kubernetes.io/resource-type"
ROLE_LABEL = "katalyst.kubewharf.io/pod_role"
POD_TYPE_ANNOTATION = "katalyst.kubewharf.io/pod_type"
MAIN_ANNOTATION = "kubernetes.io/main-container-name"
SKIP_ANNOTATION = "katalyst.kubewharf.io/skip_qrm_admit"
QOS_ANNOTATION = "katalyst.kubewharf.io/qos_level"
RECLAIMED_CORES = "reclaimed_cores"
SYSTEM_CORES = "system_cores"


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container of a pod: `requests` by resource in the unit of the resource (CPUs, bytes, devices), `id` as in the
    container runtime, empty while the container is not running."""

    name: str
    requests: Mapping[str, float] = field(default_factory=dict)
    id: str = ""
    init: bool = False
    restarts: bool = False
    """Whether an init container runs alongside the other containers (a native sidecar)."""


@dataclass(frozen=True, slots=True)
class QrmPod:
    """A pod of this node that has not ended."""

    uid: str
    namespace: str = ""
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    qos_class: str = ""
    daemon: bool = False
    """Whether a DaemonSet controls the pod."""
    containers: tuple[PodContainer, ...] = ()
    requests: Mapping[str, float] = field(default_factory=dict)
    """Pod-level requests, in the units of PodContainer."""
    static: bool = False
    """Whether the pod comes from the node, not from the API. Its uid is that of its control group."""
    created: float = math.inf
    """Creation time in the API in unix seconds, infinity if unknown."""

    @property
    def key(self) -> str:
        """namespace/name of the pod, for messages and API calls."""
        return f"{self.namespace}/{self.name}"

    @property
    def role(self) -> str:
        """The annotation kubernetes.io/pod-role, otherwise Katalyst's label."""
        return self.annotations.get(ROLE_ANNOTATION) or self.labels.get(ROLE_LABEL, "")

    @property
    def type(self) -> str:
        """The annotation kubernetes.io/resource-type, otherwise Katalyst's annotation."""
        return self.annotations.get(TYPE_ANNOTATION) or self.annotations.get(POD_TYPE_ANNOTATION, "")

    @property
    def qos_level(self) -> str:
        """The value of Katalyst's annotation; empty if the pod does not have it."""
        return self.annotations.get(QOS_ANNOTATION, "")

    def typed(self) -> Iterator[tuple[PodContainer, ContainerType, int]]:
        """Init containers first, then the other containers, each with its type and its index within its group. The main
        container is named by the annotation kubernetes.io/main-container-name, or the first one; the built-in plug-ins
        do not distinguish it from sidecars."""
        init = [each for each in self.containers if each.init]
        apps = [each for each in self.containers if not each.init]
        main = self.annotations.get(MAIN_ANNOTATION) or (apps[0].name if apps else "")
        for index, each in enumerate(init):
            yield each, ContainerType.SIDECAR if each.restarts else ContainerType.INIT, index
        for index, each in enumerate(apps):
            yield each, ContainerType.MAIN if each.name == main else ContainerType.SIDECAR, index

    def is_skipped(self, keys: Collection[str], *, first: bool) -> bool:
        """Whether the manager ignores the pod: it has one of the annotations `keys`, or (at its `first` admission) the
        skip annotation, or belongs to a DaemonSet without the QoS level system_cores."""
        if not self.annotations.keys().isdisjoint(keys):
            return True
        if first and self.annotations.get(SKIP_ANNOTATION) == "true":
            return True
        return self.daemon and self.qos_level != SYSTEM_CORES
