"""What we need of the Kubernetes API, and no more: who we are to it, lists, watches, and a copy that keeps itself true.

A client library would bring every type of the API and none of what is hard: a watch that ends without a word, a list
that expires half read, objects that went while nobody looked. So the types here are cut down to what is used
(`objects`, on the common `shapes`), and the hard part is ours (`informer`, and `sharing` for all who want the same).
`credentials` finds out who we are, `client` asks, `answers` reads what comes back, `errors` says what a refusal means
for the operator, `quantity` reads Kubernetes' numbers. What changes anything is in `eviction` and `changes`, what tells
of it in `events`; `leases` says which of several replicas may.
"""

from watcher.kube.answers import Event, Listing
from watcher.kube.changes import add_taint, bind, remove_taint, set_condition
from watcher.kube.client import EVERYTHING, KubeClient, PatchKind, Selector
from watcher.kube.credentials import Access, AccessFinder, find_access, own_namespace
from watcher.kube.errors import (
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeGone,
    KubeMalformed,
    KubeNoApi,
    KubeNotFound,
    KubeRefused,
    KubeUnauthorized,
    KubeUnreachable,
    missing_rule,
)
from watcher.kube.events import About, Reporter, report
from watcher.kube.eviction import Eviction, Evictor, Outcome
from watcher.kube.informer import Informer, OnChange
from watcher.kube.leases import LEASES, Election, Lease
from watcher.kube.objects import (
    CONFIG_MAPS,
    EVENTS,
    NODE_METRICS,
    NODES,
    PODS,
    Condition,
    ConfigMap,
    Container,
    CustomObject,
    Node,
    NodeAddress,
    NodeMetrics,
    ObjectMetadata,
    Owner,
    Pod,
    Quantities,
    Quantity,
    Resources,
    Taint,
)
from watcher.kube.quantity import nano
from watcher.kube.shapes import Metadata, Resource, key_of
from watcher.kube.sharing import SharedInformer

__all__ = [
    "CONFIG_MAPS",
    "EVENTS",
    "EVERYTHING",
    "LEASES",
    "NODES",
    "NODE_METRICS",
    "PODS",
    "About",
    "Access",
    "AccessFinder",
    "Condition",
    "ConfigMap",
    "Container",
    "CustomObject",
    "Election",
    "Event",
    "Eviction",
    "Evictor",
    "Informer",
    "KubeClient",
    "KubeConflict",
    "KubeError",
    "KubeForbidden",
    "KubeGone",
    "KubeMalformed",
    "KubeNoApi",
    "KubeNotFound",
    "KubeRefused",
    "KubeUnauthorized",
    "KubeUnreachable",
    "Lease",
    "Listing",
    "Metadata",
    "Node",
    "NodeAddress",
    "NodeMetrics",
    "ObjectMetadata",
    "OnChange",
    "Outcome",
    "Owner",
    "PatchKind",
    "Pod",
    "Quantities",
    "Quantity",
    "Reporter",
    "Resource",
    "Resources",
    "Selector",
    "SharedInformer",
    "Taint",
    "add_taint",
    "bind",
    "find_access",
    "key_of",
    "missing_rule",
    "nano",
    "own_namespace",
    "remove_taint",
    "report",
    "set_condition",
]
