"""Recent measured usage of the pods of a workload, used to estimate its next pod.

A workload is the controller of a pod: its StatefulSet, DaemonSet, Job, … A Deployment owns its pods through one
ReplicaSet per version, DEPLOYMENT-HASH, whose pods have the same hash in the label pod-template-hash; without the hash,
the name is that of the Deployment. A new version of a Deployment therefore starts with the usage of the previous one.

All available readings of a workload's pods, one per minute each, are combined, and a percentile is computed as koordlet
does. It is computed on request, over the pods of this workload only, and cached until one of its measured pods is added
or removed, or new readings arrive. The cost of an event therefore does not depend on the cluster's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from scorers.cluster.node_metrics import PodKey
from watcher.client import PodColumns
from watcher.core.koordinator.report import percentile
from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.pod_resources import CPU, MEMORY

TEMPLATE_HASH = "pod-template-hash"
MEASURED = (CPU, MEMORY)
MILLI = 1000.0


@dataclass(frozen=True, slots=True)
class PodController:
    """The controller that owns pods, such as a Deployment."""

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def workload_of(pod: Pod) -> PodController | None:
    """The controller of a pod; None if it has none."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            break
    else:
        return None
    kind, name = owner.kind, owner.name
    of_version = f"-{pod.metadata.labels.get(TEMPLATE_HASH, '')}"
    if kind == "ReplicaSet" and of_version != "-" and name.endswith(of_version):
        kind, name = "Deployment", name.removesuffix(of_version)
    return PodController(pod.metadata.namespace, kind, name)


class OwnerHistoryArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The percentile to use, and the minimum number of pods and readings."""

    percentile: Annotated[int, msgspec.Meta(ge=1, le=100)] = 95
    min_pods: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    min_readings: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10


@dataclass(frozen=True, slots=True)
class UsagePercentile:
    """Usage of one resource: the percentile in millicores or bytes, and the number of readings and pods; 0 without
    readings."""

    amount: int
    readings: int
    pods: int

    def __str__(self) -> str:
        readings = "1 reading" if self.readings == 1 else f"{self.readings} readings"
        return f"{readings} of {'1 pod' if self.pods == 1 else f'{self.pods} pods'}"


NONE = dict.fromkeys(MEASURED, UsagePercentile(0, 0, 0))


class WorkloadUsage:
    """The pods of all workloads, updated with each pod, and their usage."""

    def __init__(self, percent: int) -> None:
        self._share = percent / 100.0
        self._pods: PodColumns | None = None
        self._of_key: dict[str, tuple[PodController, PodKey]] = {}
        self._members: dict[PodController, dict[str, PodKey]] = {}
        self._known: dict[PodController, dict[str, UsagePercentile]] = {}

    @property
    def measured(self) -> bool:
        """Whether there are readings of any pods."""
        return self._pods is not None

    def add(self, key: str, pod: Pod) -> None:
        """Add a pod; `key` distinguishes it from an earlier pod of the same name."""
        workload = workload_of(pod)
        if workload is None:
            return
        name = (pod.metadata.namespace, pod.metadata.name)
        self._of_key[key] = workload, name
        self._members.setdefault(workload, {})[key] = name
        self._forget(workload, name)

    def remove(self, key: str) -> None:
        """Remove a pod if it was added."""
        if (found := self._of_key.pop(key, None)) is None:
            return
        workload, name = found
        members = self._members[workload]
        del members[key]
        self._forget(workload, name)
        if not members:
            del self._members[workload]
            self._known.pop(workload, None)

    def take(self, pods: PodColumns | None) -> None:
        """Replace the readings; None if there are none any more."""
        pods = None if pods is None or pods.recent is None else pods
        if pods is not self._pods:
            self._pods = pods
            self._known.clear()

    def of(self, workload: PodController) -> dict[str, UsagePercentile]:
        """Usage of a workload by resource."""
        if workload not in self._members:
            return NONE  # not cached: callers can request arbitrary names
        if workload not in self._known:
            self._known[workload] = self._computed(workload)
        return self._known[workload]

    def without_readings(self, workload: PodController, usage: UsagePercentile) -> int:
        """Number of pods that `usage` of a workload lacks: new pods, and those on nodes without known pod usage. 0 if
        no pod has readings."""
        if not any(each.pods for each in self.of(workload).values()):
            return 0
        return len(set(self._members[workload].values())) - usage.pods

    def _forget(self, workload: PodController, name: PodKey) -> None:
        if self._pods is not None and name in self._pods.row:
            self._known.pop(workload, None)

    def _computed(self, workload: PodController) -> dict[str, UsagePercentile]:
        pods = self._pods
        names = set(self._members[workload].values())
        rows = [] if pods is None else sorted(pods.row[name] for name in names if name in pods.row)
        if pods is None or pods.recent is None or not rows:
            return NONE
        found = {}
        for resource, recent, unit in zip(MEASURED, pods.recent, (MILLI, 1.0), strict=True):
            readings = recent[:, rows]
            known = ~np.isnan(readings)
            count = int(known.sum())
            amount = float(percentile(readings[known].reshape(-1, 1), self._share)[0]) * unit if count else 0.0
            found[resource] = UsagePercentile(round(amount), count, int(known.any(axis=0).sum()))
        return found
