"""The pods and containers of the container runtime, from the events of NRI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agent.qrm.cluster.pod_source import NodePodSources
from agent.qrm.pods import QrmPod
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import CallFailed, Code

STARTED = frozenset({pb.CONTAINER_RUNNING, pb.CONTAINER_PAUSED})
EXISTING = STARTED | {pb.CONTAINER_CREATED}
MAX_REMOVED = 10_000
"""Removed sandboxes whose late events are recognised."""
MAX_SYNCHRONIZED = 32 << 20
"""Bytes of pods and containers in one synchronization, without fields that the table does not need: more than 100,000
containers."""


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """A container that was created and has not stopped."""

    id: str
    name: str
    pod_uid: str
    sandbox_id: str
    started: bool


class SynchronizedParts:
    """The pods and containers of the synchronization of one connection, which comes in messages of up to 4 MiB.
    Annotations, labels and environments, which make up most of a message, are not kept."""

    def __init__(self) -> None:
        self.pods: list[pb.PodSandbox] = []
        self.containers: list[pb.Container] = []
        self._size = 0

    def add(self, request: pb.SynchronizeRequest) -> None:
        """Keep a part. Raises CallFailed if all parts together are too large; nothing is kept then, and all further
        parts are refused."""
        pods = [
            pb.PodSandbox(id=each.id, uid=each.uid, namespace=each.namespace, name=each.name) for each in request.pods
        ]
        containers = [
            pb.Container(
                id=each.id,
                pod_sandbox_id=each.pod_sandbox_id,
                name=each.name,
                state=each.state,
                linux=pb.LinuxContainer(resources=each.linux.resources),
            )
            for each in request.containers
        ]
        self._size += sum(each.ByteSize() for each in (*pods, *containers))
        if self._size > MAX_SYNCHRONIZED:
            self.pods, self.containers = [], []
            message = f"the pods and containers of a synchronization exceed {MAX_SYNCHRONIZED} bytes"
            raise CallFailed(Code.RESOURCE_EXHAUSTED, message)
        self.pods += pods
        self.containers += containers


class RuntimeTable:
    """What exists in the runtime. `connected`: whether this is known now; `synchronized`: whether it was ever known;
    `ended`: the UIDs of pods whose last sandbox was removed."""

    def __init__(self) -> None:
        self.connected = False
        self.synchronized = False
        self.ended: set[str] = set()
        self._removed: dict[str, None] = {}
        self._sandboxes: dict[str, str] = {}  # pod UIDs
        self._containers: dict[str, RuntimeContainer] = {}

    def replace(self, pods: Iterable[pb.PodSandbox], containers: Iterable[pb.Container]) -> None:
        """Use the runtime's lists instead of all earlier events. Containers of unknown pods are ignored."""
        self._sandboxes = {pod.id: pod.uid for pod in pods}
        self.ended -= set(self._sandboxes.values())
        self._containers, self._removed = {}, {}
        for each in containers:
            uid = self._sandboxes.get(each.pod_sandbox_id)
            if uid is not None and each.state in EXISTING:
                started = each.state in STARTED
                self._containers[each.id] = RuntimeContainer(each.id, each.name, uid, each.pod_sandbox_id, started)
        self.connected = self.synchronized = True

    def add_pod(self, pod: pb.PodSandbox) -> None:
        """A sandbox is created, the first of its pod or another one."""
        self._sandboxes[pod.id] = pod.uid
        self._removed.pop(pod.id, None)
        self.ended.discard(pod.uid)

    def is_removed(self, pod: pb.PodSandbox) -> bool:
        """Whether the sandbox was removed, so that an event of one of its containers comes late."""
        return pod.id in self._removed

    def stop_pod(self, pod: pb.PodSandbox) -> None:
        """All containers of a sandbox have ended."""
        self._containers = {id: each for id, each in self._containers.items() if each.sandbox_id != pod.id}

    def remove_pod(self, pod: pb.PodSandbox) -> bool:
        """Remove a sandbox and its containers. Returns whether it was the last sandbox of its pod."""
        self.stop_pod(pod)
        self._sandboxes.pop(pod.id, None)
        self._removed[pod.id] = None
        if len(self._removed) > MAX_REMOVED:
            del self._removed[next(iter(self._removed))]
        last = pod.uid not in self._sandboxes.values()
        if last:
            self.ended.add(pod.uid)
        return last

    def add_container(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        """A container is created. An earlier container with its name in its pod has ended."""
        self.add_pod(pod)
        self._containers = {
            id: each for id, each in self._containers.items() if (each.pod_uid, each.name) != (pod.uid, container.name)
        }
        self._containers[container.id] = RuntimeContainer(container.id, container.name, pod.uid, pod.id, started=False)

    def start(self, container: pb.Container) -> None:
        """A container has started; an unknown container is ignored."""
        known = self._containers.get(container.id)
        if known is not None:
            self._containers[container.id] = replace(known, started=True)

    def remove_container(self, container: pb.Container) -> None:
        """A container has stopped or was removed."""
        self._containers.pop(container.id, None)

    @property
    def containers(self) -> list[RuntimeContainer]:
        """All containers, sorted by pod and name."""
        return sorted(self._containers.values(), key=lambda each: (each.pod_uid, each.name, each.id))

    @property
    def pods(self) -> frozenset[str]:
        """The UIDs of the pods that have a container."""
        return frozenset(each.pod_uid for each in self._containers.values())

    def ids(self, *, created: bool = False) -> dict[tuple[str, str], str]:
        """The ids of the started containers, and with `created` of all, by pod UID and name."""
        return {(each.pod_uid, each.name): each.id for each in self._containers.values() if created or each.started}


class RuntimePods:
    """The pods of the node, with the runtime's view of what runs, which is never behind: a container that has just
    stopped is not updated, and a pod whose last sandbox was removed gets nothing again. Without a connection to the
    runtime, no container counts as running."""

    def __init__(self, pods: NodePodSources, table: RuntimeTable) -> None:
        self._pods = pods
        self._table = table

    def listing(self, *, monotonic: float, created: bool = False) -> tuple[QrmPod, ...]:
        """The pods, sorted by namespace and name; with `created`, containers that have not started count as running.
        Raises PodsUnknown."""
        table = self._table
        listed = self._pods.listing(monotonic=monotonic)
        table.ended &= {pod.uid for pod in listed}
        ids = table.ids(created=created) if table.connected else {}
        return tuple(_running(pod, ids) for pod in listed if pod.uid not in table.ended)

    def find(self, uid: str, *, monotonic: float) -> QrmPod | None:
        """The pod with this UID, None if the copies of the Kubernetes API and of the kubelet do not have it. Raises
        PodsUnknown."""
        return next((pod for pod in self._pods.listing(monotonic=monotonic) if pod.uid == uid), None)


def _running(pod: QrmPod, ids: Mapping[tuple[str, str], str]) -> QrmPod:
    containers = tuple(replace(each, id=ids.get((pod.uid, each.name), "")) for each in pod.containers)
    return replace(pod, containers=containers)
