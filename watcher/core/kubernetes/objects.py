"""The Kubernetes objects that we read, cut down to what we read of them.

A node as the API server sends it is 2 to 20 kB (most of it the list of its container images), a pod 4 to 10 kB (most of
it its managed fields and what kubectl last applied). What is not declared here is skipped while decoding and never
becomes a Python object. What many objects have alike (labels of replicas, their requests, the words of conditions) is
held once. That leaves 1.5 kB of a pod; benchmarks/bench_kube.py measures it.

Who needs more, or another kind, declares a type with `metadata` and what it needs, and makes a `Resource` of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from watcher.core.kubernetes.wire import Metadata, Resource

Quantity = str | int | float
"""As JSON may have it; `quantity.nano` reads it."""
Quantities = Mapping[str, Quantity]
"""By resource name: "cpu", "memory", "nvidia.com/gpu"."""

ANNOTATION_DOMAINS = ("koordinator.sh", "crane.io", "gocrane.io", "load-watcher.io")
"""Whose annotations are kept, sub-domains included."""
ANNOTATIONS = frozenset({"kubernetes.io/config.source", "kubernetes.io/config.mirror", "kubernetes.io/config.hash"})
"""Others that are kept: they mark static pods and their mirrors, and name their control groups."""
POD_CONDITIONS = frozenset({"PodScheduled", "Initialized", "Ready"})

T = TypeVar("T")

# --- what objects have alike -----------------------------------------------------------------------------------------

_LARGEST_POOL = 1 << 16
_pool: dict[Hashable, Any] = {}


def _one(value: T, key: Hashable) -> T:
    """The first value that had this key. Not sys.intern: what that took in, Python 3.12 keeps for ever."""
    if len(_pool) >= _LARGEST_POOL:
        _pool.clear()  # costs memory, for a while, and nothing else
    found: T = _pool.setdefault(key, value)
    return found


def _one_text(text: str) -> str:
    return _one(text, text)


def _one_map(values: Mapping[str, T]) -> Mapping[str, T]:
    return _one(values, tuple(values.items()))


# --- every object ----------------------------------------------------------------------------------------------------


class Owner(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Who made an object: kind "DaemonSet", "ReplicaSet", "Node" (of a mirror pod), …; `controller` is true of the one
    that manages it."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class ObjectMetadata(Metadata, frozen=True, rename="camel", gc=False):
    """Who an object is, and what others wrote on it. Of annotations only those of ANNOTATION_DOMAINS and ANNOTATIONS
    are here."""

    uid: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner_references: tuple[Owner, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    """When it is to be gone at the latest, once somebody deleted it."""

    def __post_init__(self) -> None:
        force_setattr(self, "namespace", _one_text(self.namespace))
        force_setattr(self, "labels", _one_map(self.labels))
        if self.annotations:
            kept = {name: text for name, text in self.annotations.items() if _is_kept(name)}
            force_setattr(self, "annotations", _one_map(kept))
        if self.owner_references:
            owners = tuple(_one(owner, owner) for owner in self.owner_references)
            force_setattr(self, "owner_references", _one(owners, owners))


def _is_kept(annotation: str) -> bool:
    domain = annotation.partition("/")[0]
    return annotation in ANNOTATIONS or any(f".{domain}".endswith(f".{kept}") for kept in ANNOTATION_DOMAINS)


class Condition(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Whether something is the case ("True", "False", "Unknown"), and since when."""

    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "type", _one_text(self.type))
        force_setattr(self, "status", _one_text(self.status))


# --- nodes -----------------------------------------------------------------------------------------------------------


class Taint(msgspec.Struct, frozen=True, gc=False):
    """What keeps pods off a node: `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str = ""
    effect: str = ""
    value: str = ""


class NodeSpec(msgspec.Struct, frozen=True, gc=False):
    """What is wanted of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """How a node is reached: `type` is InternalIP, Hostname, InternalDNS, …"""

    type: str = ""
    address: str = ""


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """What a node has in all, and what of it pods may have."""

    capacity: Quantities = {}
    allocatable: Quantities = {}
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "capacity", _one_map(self.capacity))
        force_setattr(self, "allocatable", _one_map(self.allocatable))


class Node(msgspec.Struct, frozen=True, gc=False):
    """A node of the cluster."""

    metadata: ObjectMetadata = ObjectMetadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodeMetrics(msgspec.Struct, frozen=True):
    """What a node used: `usage` by resource name, over the `window` ("10.062s", a Go duration) that ended at
    `timestamp` (RFC 3339). Both are texts here, so that a bad one costs its node and not the list."""

    metadata: Metadata = Metadata()
    timestamp: str = ""
    window: str = ""
    usage: dict[str, Quantity] = {}


# --- pods ------------------------------------------------------------------------------------------------------------


class Resources(msgspec.Struct, frozen=True, gc=False):
    """What is asked for, and the most there may be."""

    requests: Quantities = {}
    limits: Quantities = {}

    def __post_init__(self) -> None:
        force_setattr(self, "requests", _one_map(self.requests))
        force_setattr(self, "limits", _one_map(self.limits))


class Container(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A container; an init container with the `restart_policy` Always is a sidecar, which stays."""

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "name", _one_text(self.name))


_REQUIRED = "requiredDuringScheduling"  # …IgnoredDuringExecution, as yet


def _forbids(affinity: Any) -> bool:
    """Whether rules of affinity keep a pod off nodes, rather than prefer some; true of what it was made from."""
    if not isinstance(affinity, dict):
        return bool(affinity)
    return any(name.startswith(_REQUIRED) for rules in affinity.values() if isinstance(rules, dict) for name in rules)


def _forbids_spreading(constraints: Any) -> bool:
    if not isinstance(constraints, list):
        return bool(constraints)
    return any(isinstance(each, dict) and each.get("whenUnsatisfiable") != "ScheduleAnyway" for each in constraints)


class PodSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What is wanted of a pod. `node_name` is "" until it is bound; `resources` are those of the pod as a whole, which
    Kubernetes 1.34 has by default, None where it has none. Of `affinity` and `topology_spread_constraints` no more is
    kept than whether they forbid anything."""

    node_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Quantities = {}
    resources: Resources | None = None
    node_selector: Mapping[str, str] = {}
    affinity: Any = None
    topology_spread_constraints: Any = None

    def __post_init__(self) -> None:
        force_setattr(self, "node_name", _one_text(self.node_name))
        if self.node_selector:
            force_setattr(self, "node_selector", _one_map(self.node_selector))
        if self.affinity is not None:
            force_setattr(self, "affinity", _forbids(self.affinity))
        if self.topology_spread_constraints is not None:
            force_setattr(self, "topology_spread_constraints", _forbids_spreading(self.topology_spread_constraints))
        force_setattr(self, "priority_class_name", _one_text(self.priority_class_name))


class PodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What became of a pod. Of its conditions only POD_CONDITIONS are here."""

    phase: str = ""
    qos_class: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "phase", _one_text(self.phase))
        force_setattr(self, "qos_class", _one_text(self.qos_class))
        if self.conditions:
            kept = tuple(condition for condition in self.conditions if condition.type in POD_CONDITIONS)
            force_setattr(self, "conditions", kept)


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A pod."""

    metadata: ObjectMetadata = ObjectMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class CustomObject(msgspec.Struct, frozen=True):
    """An object of a CustomResourceDefinition whose type is not declared here, as its JSON has it."""

    metadata: ObjectMetadata = ObjectMetadata()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class ConfigMap(msgspec.Struct, frozen=True):
    """Texts by name."""

    metadata: Metadata = Metadata()
    data: Mapping[str, str] = {}


class EventObject(msgspec.Struct, frozen=True):
    """Something that happened to an object, as `kubectl get events` shows it. We write them and read none."""

    metadata: Metadata = Metadata()


class AccessReviewStatus(msgspec.Struct, frozen=True):
    """The answer to a question for a right."""

    allowed: bool = False


class AccessReview(msgspec.Struct, frozen=True):
    """A question for a right of our own, with its answer."""

    metadata: Metadata = Metadata()
    status: AccessReviewStatus = AccessReviewStatus()


NODES: Resource[Node] = Resource("", "v1", "nodes", Node)
NODE_METRICS: Resource[NodeMetrics] = Resource("metrics.k8s.io", "v1beta1", "nodes", NodeMetrics)
PODS: Resource[Pod] = Resource("", "v1", "pods", Pod)
CONFIG_MAPS: Resource[ConfigMap] = Resource("", "v1", "configmaps", ConfigMap)
EVENTS: Resource[EventObject] = Resource("", "v1", "events", EventObject)
ACCESS_REVIEWS: Resource[AccessReview] = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", AccessReview
)
