"""Kubernetes objects, reduced to the fields that load-watcher reads.

A node from the API server is 2 to 20 kB (most of it the list of its container images), a pod 4 to 10 kB (most of it
managed fields and the last applied configuration). Fields that are not declared here are skipped while decoding and
never become Python objects. Values that many objects share (labels of replicas, their requests, condition types) are
stored once. A pod then takes 1.6 kB; benchmarks/bench_kube.py measures it.

To read more fields or another kind, declare a type with `metadata` and the fields needed, and create a `Resource` of
it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from watcher.core.kubernetes.wire import MinimalMetadata, Resource

Quantity = str | int | float
"""A quantity as in JSON; `quantity.nano` parses it."""
Quantities = Mapping[str, Quantity]
"""Quantities by resource name: "cpu", "memory", "nvidia.com/gpu"."""

ANNOTATION_DOMAINS = ("koordinator.sh", "crane.io", "gocrane.io", "load-watcher.io")
"""Annotations with these domains, including sub-domains, are stored."""
ANNOTATIONS = frozenset({"kubernetes.io/config.source", "kubernetes.io/config.mirror"})
"""Other annotations that are stored: they mark static pods and their mirror pods."""
POD_CONDITIONS = frozenset({"PodScheduled", "Initialized", "Ready", "PodResizePending", "DisruptionTarget"})

T = TypeVar("T")

# --- shared values ---------------------------------------------------------------------------------------------------

_LARGEST_POOL = 8 << 20
"""Characters of all shared values. They stay when their objects are gone."""
_LARGEST_VALUE = 1 << 12
"""Characters of a shared value; a larger one is not shared. Replicas have labels of some hundred characters."""
_ENTRY = 64
"""Characters that count for a value in addition to its text."""
_pool: dict[Hashable, Any] = {}
_pooled = 0


def _one(value: T, key: Hashable) -> T:
    """The first value stored under this key. Not sys.intern: Python 3.12 never frees interned strings."""
    global _pooled
    found: T | None = _pool.get(key)
    if found is not None:
        return found
    size = _size_of(key)
    if size > _LARGEST_VALUE:
        return value
    if _pooled + size > _LARGEST_POOL:
        _pool.clear()  # affects only memory use, and only for a while
        _pooled = 0
    _pool[key] = value
    _pooled += size
    return value


def _size_of(key: Hashable) -> int:
    if isinstance(key, str):
        return _ENTRY + len(key)
    return _ENTRY + sum(map(_size_of, key)) if isinstance(key, tuple) else 4 * _ENTRY


def _one_text(text: str) -> str:
    return _one(text, text)


def _one_map(values: Mapping[str, T]) -> Mapping[str, T]:
    return _one(values, tuple(values.items()))


# --- every object ----------------------------------------------------------------------------------------------------


class Owner(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """An owner reference: kind "DaemonSet", "ReplicaSet", "Node" (of a mirror pod), …; `controller` is true for the
    owner that manages the object."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None
    api_version: str = ""


class ObjectMetadata(MinimalMetadata, frozen=True, rename="camel", gc=False):
    """Metadata of an object. Annotations other than ANNOTATION_DOMAINS and ANNOTATIONS are not stored."""

    uid: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner_references: tuple[Owner, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    """Latest time of removal, set when the deletion was requested."""

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
    """A condition: `status` is "True", "False" or "Unknown"; `reason` is a word such as "Unschedulable"."""

    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "type", _one_text(self.type))
        force_setattr(self, "status", _one_text(self.status))
        force_setattr(self, "reason", _one_text(self.reason))


# --- nodes -----------------------------------------------------------------------------------------------------------


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A taint of a node: `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str = ""
    effect: str = ""
    value: str = ""


class NodeSpec(msgspec.Struct, frozen=True, gc=False):
    """Desired state of a node: cordoned or not, and its taints."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """An address of a node: `type` is InternalIP, Hostname, InternalDNS, …"""

    type: str = ""
    address: str = ""


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """Total (`capacity`) and allocatable resources, addresses and conditions of a node."""

    capacity: Quantities = {}
    allocatable: Quantities = {}
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "capacity", _one_map(self.capacity))
        force_setattr(self, "allocatable", _one_map(self.allocatable))


class Node(msgspec.Struct, frozen=True, gc=False):
    """A Node object, reduced to the declared fields."""

    metadata: ObjectMetadata = ObjectMetadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodeMetrics(msgspec.Struct, frozen=True):
    """Usage of a node: `usage` by resource name, over the `window` ("10.062s", a Go duration) that ended at `timestamp`
    (RFC 3339). Both are strings here, so that an invalid one affects only its node and not the list."""

    metadata: MinimalMetadata = MinimalMetadata()
    timestamp: str = ""
    window: str = ""
    usage: dict[str, Quantity] = {}


# --- pods ------------------------------------------------------------------------------------------------------------


class Resources(msgspec.Struct, frozen=True, gc=False):
    """Resource requests and limits of a container or pod."""

    requests: Quantities = {}
    limits: Quantities = {}

    def __post_init__(self) -> None:
        force_setattr(self, "requests", _one_map(self.requests))
        force_setattr(self, "limits", _one_map(self.limits))


class Container(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A container; an init container with the `restart_policy` Always is a sidecar, which keeps running."""

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "name", _one_text(self.name))


_REQUIRED = "requiredDuringScheduling"  # …IgnoredDuringExecution is the only suffix so far


def _forbids(affinity: Any) -> bool:
    """Whether affinity rules exclude nodes rather than only prefer some. A value that is already a boolean is returned
    as is."""
    if not isinstance(affinity, dict):
        return bool(affinity)
    return any(name.startswith(_REQUIRED) for rules in affinity.values() if isinstance(rules, dict) for name in rules)


def _forbids_spreading(constraints: Any) -> bool:
    if not isinstance(constraints, list):
        return bool(constraints)
    return any(isinstance(each, dict) and each.get("whenUnsatisfiable") != "ScheduleAnyway" for each in constraints)


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """A toleration of taints: `operator` is Equal (also if "") or Exists; "" as `key` or `effect` matches any."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Desired state of a pod. `node_name` is "" until the pod is bound; `resources` are pod-level resources (enabled by
    default in Kubernetes 1.34), None if it has none. Of `affinity` and `topology_spread_constraints`, only whether they
    exclude nodes is stored."""

    node_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Quantities = {}
    resources: Resources | None = None
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    affinity: Any = None
    topology_spread_constraints: Any = None

    def __post_init__(self) -> None:
        force_setattr(self, "node_name", _one_text(self.node_name))
        if self.node_selector:
            force_setattr(self, "node_selector", _one_map(self.node_selector))
        if self.tolerations:
            force_setattr(self, "tolerations", _one(self.tolerations, self.tolerations))
        if self.affinity is not None:
            force_setattr(self, "affinity", _forbids(self.affinity))
        if self.topology_spread_constraints is not None:
            force_setattr(self, "topology_spread_constraints", _forbids_spreading(self.topology_spread_constraints))
        force_setattr(self, "priority_class_name", _one_text(self.priority_class_name))


class ReportedResources(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Resources of a container on its node: `resources` as set, None if not reported; requests as granted by the
    kubelet in `allocated_resources`."""

    name: str = ""
    resources: Resources | None = None
    allocated_resources: Quantities | None = None

    def differs_from(self, spec: Resources) -> bool:
        """Whether they differ from the resources in the spec: while an in-place resize is under way."""
        if self.resources is None:
            return False  # kube-scheduler then ignores `allocated_resources` too
        return self.resources != spec or self.allocated_resources not in (None, spec.requests)


class PodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Status of a pod. Of its conditions, only POD_CONDITIONS are stored; of the resources that its containers and the
    pod have on the node, only those that differ from the spec (see `Pod`)."""

    phase: str = ""
    qos_class: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ReportedResources, ...] = ()
    init_container_statuses: tuple[ReportedResources, ...] = ()
    resources: Resources | None = None
    allocated_resources: Quantities | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "phase", _one_text(self.phase))
        force_setattr(self, "qos_class", _one_text(self.qos_class))
        if self.conditions:
            kept = tuple(condition for condition in self.conditions if condition.type in POD_CONDITIONS)
            force_setattr(self, "conditions", kept)


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A Pod object, reduced to the declared fields. The kubelet reports the resources of every container in the status;
    equal ones are dropped here, because few pods have a resize under way."""

    metadata: ObjectMetadata = ObjectMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def __post_init__(self) -> None:
        spec, status = self.spec, self.status
        if status.container_statuses:
            kept = _differing(status.container_statuses, spec.containers)
            force_setattr(status, "container_statuses", kept)
        if status.init_container_statuses:
            kept = _differing(status.init_container_statuses, spec.init_containers)
            force_setattr(status, "init_container_statuses", kept)
        if status.resources is not None or status.allocated_resources is not None:
            whole = ReportedResources("", status.resources, status.allocated_resources)
            if spec.resources is None or not whole.differs_from(spec.resources):
                force_setattr(status, "resources", None)
                force_setattr(status, "allocated_resources", None)


def _differing(
    statuses: tuple[ReportedResources, ...], containers: tuple[Container, ...]
) -> tuple[ReportedResources, ...]:
    specs = {each.name: each.resources for each in containers}
    return tuple(each for each in statuses if each.name in specs and each.differs_from(specs[each.name]))


class CustomObject(msgspec.Struct, frozen=True):
    """An object of a CustomResourceDefinition whose type is not declared here, with untyped spec and status."""

    metadata: ObjectMetadata = ObjectMetadata()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class ConfigMap(msgspec.Struct, frozen=True):
    """A ConfigMap object: its string values by key."""

    metadata: MinimalMetadata = MinimalMetadata()
    data: Mapping[str, str] = {}


class EventObject(msgspec.Struct, frozen=True):
    """An Event, as `kubectl get events` shows it. Events are only written, so no other fields are declared."""

    metadata: MinimalMetadata = MinimalMetadata()


class AccessReviewStatus(msgspec.Struct, frozen=True):
    """The result of a permission check."""

    allowed: bool = False


class AccessReview(msgspec.Struct, frozen=True):
    """A permission check for this account (SelfSubjectAccessReview), with its result."""

    metadata: MinimalMetadata = MinimalMetadata()
    status: AccessReviewStatus = AccessReviewStatus()


NODES: Resource[Node] = Resource("", "v1", "nodes", Node)
NODE_METRICS: Resource[NodeMetrics] = Resource("metrics.k8s.io", "v1beta1", "nodes", NodeMetrics)
PODS: Resource[Pod] = Resource("", "v1", "pods", Pod)
CONFIG_MAPS: Resource[ConfigMap] = Resource("", "v1", "configmaps", ConfigMap)
EVENTS: Resource[EventObject] = Resource("", "v1", "events", EventObject)
ACCESS_REVIEWS: Resource[AccessReview] = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", AccessReview
)
