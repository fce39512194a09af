"""The nodes and pods of a trace as Kubernetes objects.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from lab.simulate.trace_columns import DAEMON, TracePod
from lab.traces.records import NodeRecord
from scorers.cluster.pods import PodInfo, pod_info
from watcher.core.kubernetes.objects import (
    Container,
    Node,
    NodeStatus,
    ObjectMetadata,
    Owner,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
    Resources,
)
from watcher.core.kubernetes.pod_resources import CPU, MEMORY

PODS = "pods"


def node_object(record: NodeRecord) -> Node:
    cores = record.cores if record.allocatable_cores is None else record.allocatable_cores
    size = record.bytes if record.allocatable_bytes is None else record.allocatable_bytes
    return Node(
        metadata=ObjectMetadata(name=record.node, uid=record.node),
        status=NodeStatus(
            capacity={CPU: f"{record.cores:.4f}", MEMORY: record.bytes, PODS: record.pods},
            allocatable={CPU: f"{cores:.4f}", MEMORY: size, PODS: record.pods},
        ),
    )


def _controller(kind: str, name: str) -> Owner:
    """The owner of a pod of a trace, which states no API group."""
    return Owner(kind, name, controller=True, api_version="apps/v1" if kind == DAEMON else "")


def waiting_pod(course: TracePod) -> PodInfo:
    """The pod before it has a node. The table receives its start time separately, not from its conditions."""
    record = course.record
    namespace, _, name = record.pod.partition("/")
    kind, _, owner = record.owner.partition("/")
    metadata = ObjectMetadata(
        name=name,
        namespace=namespace,
        uid=record.uid,
        owner_references=(_controller(kind, owner),) if record.owner else (),
    )
    requests = _quantities(record.cores or None, record.bytes or None)
    limits = _quantities(record.cores_limit, record.bytes_limit)
    spec = PodSpec(priority=record.priority, containers=(Container("main", Resources(requests, limits)),))
    return pod_info(Pod(metadata, spec, PodStatus("Pending")))


def _quantities(cores: float | None, size: int | None) -> Quantities:
    return {
        **({} if cores is None else {CPU: f"{cores:.4f}"}),
        **({} if size is None else {MEMORY: size}),
    }


def bound_pod(pod: Pod, node: str) -> Pod:
    spec = PodSpec(node, pod.spec.priority, pod.spec.priority_class_name, pod.spec.containers)
    return Pod(pod.metadata, spec, PodStatus("Running"))
