"""The pods of this node, from the Kubernetes API or, while the API is unavailable, from the kubelet.

If neither source can be updated, the last known pods are used: allocations remain, and no pod is treated as ended. The
manager therefore does not depend on the availability of the API server.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from agent.qrm.pods import PodContainer, QrmPod
from agent.state.api_pods import InformerPodList
from agent.state.kubelet import KubeletPodList
from agent.state.pod_facts import HASH, MIRROR, NANO, is_static
from agent.state.readings import PodsUnknown
from watcher.core.kubernetes.objects import Container, Owner, Quantities
from watcher.core.kubernetes.quantity import nano
from watcher.core.kubernetes.wire import MinimalMetadata, Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess

FRESH_S = 60.0
"""Maximum age in seconds of a source's data; older data is used only if no source has newer data."""
ENDED = frozenset({"Succeeded", "Failed"})


class _QrmPodMetadata(MinimalMetadata, frozen=True, rename="camel", gc=False):
    """Pod metadata with all annotations, because roles and types can be in any annotation."""

    uid: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner_references: tuple[Owner, ...] = ()


class _ContainerStatus(msgspec.Struct, frozen=True, rename={"container_id": "containerID"}, gc=False):
    name: str = ""
    container_id: str = ""
    state: dict[str, Any] = {}


class _QrmPodSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class _QrmPodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    phase: str = ""
    qos_class: str = ""
    container_statuses: tuple[_ContainerStatus, ...] | None = None
    init_container_statuses: tuple[_ContainerStatus, ...] | None = None


class QrmPodObject(msgspec.Struct, frozen=True, gc=False):
    """A pod object, reduced to the fields that the manager and its plug-ins need."""

    metadata: _QrmPodMetadata = _QrmPodMetadata()
    spec: _QrmPodSpec = _QrmPodSpec()
    status: _QrmPodStatus = _QrmPodStatus()


PODS: Resource[QrmPodObject] = Resource("", "v1", "pods", QrmPodObject)
_POD = msgspec.json.Decoder(QrmPodObject)


def qrm_pod(pod: QrmPodObject) -> QrmPod | None:
    """Convert a pod object to a QrmPod; None for a pod that has ended. For a static pod, the UID is that of its control
    group, which is the same in the kubelet and in the API's mirror pod. Raises ValueError for an invalid quantity."""
    if pod.status.phase in ENDED:
        return None
    metadata, status = pod.metadata, pod.status
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    ids = {each.name: each.container_id.rpartition("//")[2] for each in statuses if "running" in each.state}
    group = metadata.annotations.get(MIRROR) or (
        metadata.annotations.get(HASH, "") if is_static(metadata.annotations) else ""
    )
    return QrmPod(
        uid=group or metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        labels=metadata.labels,
        annotations=metadata.annotations,
        qos_class=status.qos_class,
        owner_kinds=frozenset(owner.kind for owner in metadata.owner_references),
        containers=tuple(_containers(pod.spec, ids)),
    )


def _containers(spec: _QrmPodSpec, ids: Mapping[str, str]) -> Iterator[PodContainer]:
    for init, containers in ((True, spec.init_containers), (False, spec.containers)):
        for each in containers:
            requests = _amounts({**each.resources.limits, **each.resources.requests})
            restarts = init and each.restart_policy == "Always"
            yield PodContainer(each.name, requests, ids.get(each.name, ""), init, restarts)


def _amounts(quantities: Quantities) -> dict[str, float]:
    """Quantities in the unit of each resource, without zeros. A resource with only a limit is requested in that
    amount."""
    return {name: amount / NANO for name, text in quantities.items() if (amount := nano(text))}


class NodePodSource(Protocol):
    """A source of the node's pods."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def listing(self, *, monotonic: float, max_age: float) -> Sequence[QrmPod | None]:
        """The pods, with None for pods that are ignored. Raises PodsUnknown if the data is older than `max_age`
        seconds."""
        ...

    def age(self, *, monotonic: float) -> float | None:
        """The age of the data in seconds; None if there never was any."""
        ...


def api_pods(client: KubeClient, node: str) -> InformerPodList[QrmPodObject, QrmPod]:
    """A source that watches the pods of `node` in the Kubernetes API. The caller closes the client."""
    return InformerPodList(client, PODS, qrm_pod, node=node)


def kubelet_pods(access: KubeAccess, *, interval: float) -> KubeletPodList[QrmPod | None]:
    """A source that lists the kubelet's pods every `interval` seconds."""
    return KubeletPodList(access, lambda raw: qrm_pod(_POD.decode(raw)), interval=interval)


class NodePodSources:
    """Combines several sources: uses the first source with fresh data, otherwise the first source with any data."""

    def __init__(self, sources: Sequence[NodePodSource]) -> None:
        self._sources = sources

    async def start(self) -> None:
        for source in self._sources:
            await source.start()

    async def close(self) -> None:
        for source in self._sources:
            await source.close()

    def listing(self, *, monotonic: float) -> tuple[QrmPod, ...]:
        """The pods that have not ended, sorted by namespace and name. Raises PodsUnknown if no source ever had data."""
        failures: list[PodsUnknown] = []
        for max_age in (FRESH_S, math.inf):
            for source in self._sources:
                try:
                    found = source.listing(monotonic=monotonic, max_age=max_age)
                except PodsUnknown as error:
                    failures.append(error)
                    continue
                return tuple(sorted((pod for pod in found if pod is not None), key=lambda pod: (pod.key, pod.uid)))
        if not failures:
            hint = "set kubernetes.kubeconfig or qrm.kubelet"
            raise PodsUnknown("neither the Kubernetes API nor a kubelet is configured", hint=hint)
        raise failures[0]

    def age(self, *, monotonic: float) -> float | None:
        """The age in seconds of the data that `listing` returns; None if no source ever had data."""
        ages = [age for source in self._sources if (age := source.age(monotonic=monotonic)) is not None]
        return next((age for age in ages if age <= FRESH_S), ages[0] if ages else None)
