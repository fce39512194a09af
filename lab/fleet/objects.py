"""Simulated nodes and pods as Kubernetes objects."""

from __future__ import annotations

from datetime import UTC, datetime

from lab.fleet.machines import REGION, SimulatedMachine
from lab.fleet.workloads import PRIORITIES, Instance, SimulatedWorkload
from watcher.core.kubernetes.objects import (
    Condition,
    Container,
    Node,
    NodeAddress,
    NodeStatus,
    ObjectMetadata,
    Owner,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
    Resources,
)

MOST_PODS = 110
API_VERSIONS = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "Job": "batch/v1"}


def node_object(machine: SimulatedMachine, *, created: float) -> Node:
    """Return the Node object of a machine, created at `created` (unix seconds)."""
    labels = {
        "kubernetes.io/hostname": machine.name,
        "node.kubernetes.io/instance-type": machine.pool.instance,
        "topology.kubernetes.io/zone": f"{REGION}{machine.zone}",
        "pool": machine.pool.name,
    }
    status = NodeStatus(
        capacity={"cpu": str(machine.pool.cores), "memory": f"{machine.pool.memory_gib}Gi", "pods": str(MOST_PODS)},
        allocatable={
            "cpu": f"{machine.allocatable_milli}m",
            "memory": f"{machine.allocatable_bytes // 1024}Ki",
            "pods": str(MOST_PODS),
        },
        addresses=(NodeAddress("InternalIP", machine.address), NodeAddress("Hostname", machine.name)),
        conditions=(Condition("Ready", "True", _moment(created)),),
    )
    metadata = ObjectMetadata(name=machine.name, uid=machine.name, labels=labels, creation_timestamp=_moment(created))
    return Node(metadata=metadata, status=status)


def pending_pod(each: Instance, *, created: float) -> Pod:
    """Return the Pod object of an unscheduled pod, created at `created` (unix seconds)."""
    workload = each.workload
    version = API_VERSIONS[workload.owner]
    metadata = ObjectMetadata(
        name=each.name,
        namespace=workload.namespace,
        uid=each.uid,
        labels={"app": workload.name},
        owner_references=(Owner(workload.owner, each.owner_name, controller=True, api_version=version),),
        creation_timestamp=_moment(created),
    )
    spec = PodSpec(
        priority=PRIORITIES[workload.priority],
        priority_class_name=workload.priority,
        containers=(Container(workload.name, _resources(workload)),),
    )
    return Pod(metadata, spec, PodStatus("Pending"))


def _resources(workload: SimulatedWorkload) -> Resources:
    limits: Quantities = {
        **({"cpu": f"{workload.limit_milli}m"} if workload.limit_milli else {}),
        **({"memory": f"{workload.limit_mib}Mi"} if workload.limit_mib else {}),
    }
    return Resources({"cpu": f"{workload.milli}m", "memory": f"{workload.mib}Mi"}, limits)


def bound_pod(pod: Pod, node: str, *, at: float) -> Pod:
    """Return the Pod object of `pod` running on a node since `at` (unix seconds)."""
    moment = _moment(at)
    conditions = tuple(Condition(kind, "True", moment) for kind in ("PodScheduled", "Initialized", "Ready"))
    spec = PodSpec(node, pod.spec.priority, pod.spec.priority_class_name, pod.spec.containers)
    return Pod(pod.metadata, spec, PodStatus("Running", start_time=moment, conditions=conditions))


def ended_pod(pod: Pod) -> Pod:
    """Return the Pod object of `pod` after its completion (phase Succeeded)."""
    return Pod(pod.metadata, pod.spec, PodStatus("Succeeded", "", pod.status.start_time, pod.status.conditions))


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(int(at), UTC)
