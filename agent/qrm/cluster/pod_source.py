"""The pods of this node, from the Kubernetes API or, while the API is unavailable, from the kubelet.

If neither source can be updated, the last known pods are used: allocations remain, and no pod is treated as ended. The
manager therefore does not depend on the availability of the API server.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from agent.model import FINAL_PHASES
from agent.qrm.pods import PodContainer, QrmPod
from agent.state.api_pods import InformerPodList
from agent.state.kubelet import KubeletPodList
from agent.state.pod_facts import (
    NANO,
    AgentPod,
    AgentPodMetadata,
    created_at,
    is_static,
    with_resources,
)
from agent.state.readings import LACKING_S, PodsUnknown
from agent.state.unique_pods import PodIdentity, UniquePods
from watcher.core.kubernetes.objects import PodSpec, Quantities, Resources
from watcher.core.kubernetes.pod_origin import daemon_set_of, mirrored_uid
from watcher.core.kubernetes.pod_resources import is_sidecar, of_pod_level
from watcher.core.kubernetes.quantity import nano
from watcher.core.kubernetes.resize import spec_in_effect
from watcher.core.kubernetes.wire import Resource
from watcher.decoding.json_text import JsonDecoder
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess

log = logging.getLogger(__name__)

FRESH_S = 60.0
"""Maximum age in seconds of a source's data; older data is used only if no source has newer data."""


class _QrmPodMetadata(AgentPodMetadata, frozen=True, rename="camel", gc=False):
    """Pod metadata with all annotations, because roles and types can be in any annotation."""

    def __post_init__(self) -> None:
        """Keep the annotations, and share no values."""


class QrmPodObject(AgentPod, frozen=True, gc=False):
    """A Pod object as the manager reads it."""

    metadata: _QrmPodMetadata = _QrmPodMetadata()


PODS: Resource[QrmPodObject] = Resource("", "v1", "pods", QrmPodObject)
_POD = JsonDecoder(QrmPodObject)


def qrm_pod(pod: QrmPodObject, *, from_api: bool = False) -> QrmPod | None:
    """Convert a pod object from the API, or from the kubelet. Returns None for a pod that has ended. Raises ValueError
    for an invalid quantity.

    The identity of a pod is its uid, which nobody can choose. Only the kubelet's mirror pod of a static pod has the uid
    of its control group in an annotation; annotations of other pods are those of their users.
    """
    if pod.status.phase in FINAL_PHASES:
        return None
    metadata, status = pod.metadata, pod.status
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    ids = {each.name: each.container_id.rpartition("//")[2] for each in statuses if "running" in each.state}
    mirrored = mirrored_uid(metadata, pod.spec.node_name) if from_api else ""
    spec = spec_in_effect(with_resources(pod.spec, status))
    whole = {} if spec.resources is None else of_pod_level(_amounts(_requested(spec.resources)))
    return QrmPod(
        uid=mirrored or metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        labels=metadata.labels,
        annotations=metadata.annotations,
        qos_class=status.qos_class,
        daemon=daemon_set_of(metadata.owner_references) is not None,
        containers=with_pod_level(tuple(_containers(spec, ids)), whole),
        requests=whole,
        static=bool(mirrored) if from_api else is_static(metadata.annotations),
        created=created_at(metadata),
    )


def _containers(spec: PodSpec, ids: Mapping[str, str]) -> Iterator[PodContainer]:
    for init, containers in ((True, spec.init_containers), (False, spec.containers)):
        for each in containers:
            requests = _amounts(_requested(each.resources))
            yield PodContainer(each.name, requests, ids.get(each.name, ""), init, init and is_sidecar(each))


def with_pod_level(containers: tuple[PodContainer, ...], whole: Mapping[str, float]) -> tuple[PodContainer, ...]:
    """The containers with the part of each pod-level request that no container requests: it goes to the containers
    without a request of their own, in equal whole units (the first one gets the rest; less than a unit each: equal
    parts), or to the first container if all have requests. Init containers that end do not count."""
    added: dict[str, dict[str, float]] = {}
    running = sorted((each for each in containers if not each.init or each.restarts), key=lambda each: each.init)
    for resource, total in whole.items():
        rest = round(total - sum(each.requests.get(resource, 0.0) for each in running), 9)
        takers = [each.name for each in running if not each.requests.get(resource)] or [e.name for e in running[:1]]
        if rest <= 0 or not takers:
            continue
        share = float(rest // len(takers)) or rest / len(takers)
        for name in takers:
            added.setdefault(name, {})[resource] = share
        added[takers[0]][resource] = round(rest - share * (len(takers) - 1), 9)
    return tuple(
        replace(each, requests={**each.requests, **_sums(each.requests, added[each.name])})
        if each.name in added and each in running
        else each
        for each in containers
    )


def _sums(own: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {name: own.get(name, 0.0) + size for name, size in more.items()}


def _requested(resources: Resources) -> Quantities:
    """A resource with only a limit is requested in that amount."""
    return {**resources.limits, **resources.requests}


def _amounts(quantities: Quantities) -> dict[str, float]:
    """Quantities in the unit of each resource, without zeros."""
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
    return InformerPodList(client, PODS, partial(qrm_pod, from_api=True), node=node)


def kubelet_pods(access: KubeAccess, *, interval: float) -> NodePodSource:
    """A source that lists the kubelet's pods every `interval` seconds."""
    return LingeringPods(KubeletPodList(access, lambda raw: qrm_pod(_POD.decode(raw)), interval=interval))


class LingeringPods:
    """A source whose list may lack pods for a while: a kubelet that has restarted lists its pods before it knows all of
    them. A pod has ended once the list has lacked it for LACKING_S seconds; until then it has no running container."""

    def __init__(self, source: NodePodSource) -> None:
        self._source = source
        self._seen: dict[str, tuple[float, QrmPod]] = {}
        self._empty = False

    async def start(self) -> None:
        await self._source.start()

    async def close(self) -> None:
        await self._source.close()

    def age(self, *, monotonic: float) -> float | None:
        return self._source.age(monotonic=monotonic)

    def listing(self, *, monotonic: float, max_age: float) -> Sequence[QrmPod | None]:
        """As NodePodSource, with the pods that the list lacks for now."""
        found = self._source.listing(monotonic=monotonic, max_age=max_age)
        listed = {pod.uid for pod in found if pod is not None}
        self._seen |= {pod.uid: (monotonic, pod) for pod in found if pod is not None}
        self._seen = {uid: seen for uid, seen in self._seen.items() if monotonic - seen[0] < LACKING_S}
        lacking = [_stopped(pod) for uid, (_, pod) in self._seen.items() if uid not in listed]
        if lacking and not listed and not self._empty:
            log.warning(
                "the response of the kubelet has no pods; %d pods keep their allocations for %g s",
                len(lacking),
                LACKING_S,
            )
        self._empty = not listed
        return [*found, *lacking]


def _stopped(pod: QrmPod) -> QrmPod:
    return replace(pod, containers=tuple(replace(each, id="") for each in pod.containers))


class NodePodSources:
    """Combines several sources: uses the first source with fresh data, otherwise the first source with any data."""

    def __init__(self, sources: Sequence[NodePodSource]) -> None:
        self._sources = sources
        self._unique = UniquePods(_identity, log)

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
                known = self._unique.select(pod for pod in found if pod is not None)
                return tuple(sorted(known, key=lambda pod: (pod.key, pod.uid)))
        if not failures:
            hint = "set kubernetes.kubeconfig or qrm.kubelet"
            raise PodsUnknown("neither the Kubernetes API nor a kubelet is configured", hint=hint)
        raise failures[0]

    def age(self, *, monotonic: float) -> float | None:
        """The age in seconds of the data that `listing` returns; None if no source ever had data."""
        ages = [age for source in self._sources if (age := source.age(monotonic=monotonic)) is not None]
        return next((age for age in ages if age <= FRESH_S), ages[0] if ages else None)


def _identity(pod: QrmPod) -> PodIdentity:
    return PodIdentity(pod.uid, pod.static, pod.created, pod.key)
