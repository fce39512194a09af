"""What we need of the Kubernetes API, and no more: who we are to it, lists, watches, and a copy that keeps itself true.

A client library would bring every type of the API and none of what is hard: a watch that ends without a word, a list
that expires half read, objects that went while nobody looked. So the types here are cut down to what is used
(`shapes`), and the hard part is ours (`informer`). `credentials` finds out who we are, `client` asks, `errors` says
what an answer means for the operator, `quantity` reads Kubernetes' numbers.
"""

from watcher.kube.client import Event, KubeClient, Listing
from watcher.kube.credentials import Access, find_access
from watcher.kube.errors import (
    KubeError,
    KubeForbidden,
    KubeGone,
    KubeMalformed,
    KubeNotFound,
    KubeRefused,
    KubeUnauthorized,
    KubeUnreachable,
)
from watcher.kube.informer import Informer
from watcher.kube.quantity import nano
from watcher.kube.shapes import NODE_METRICS, NODES, Metadata, Node, NodeMetrics, Resource, key_of

__all__ = [
    "NODES",
    "NODE_METRICS",
    "Access",
    "Event",
    "Informer",
    "KubeClient",
    "KubeError",
    "KubeForbidden",
    "KubeGone",
    "KubeMalformed",
    "KubeNotFound",
    "KubeRefused",
    "KubeUnauthorized",
    "KubeUnreachable",
    "Listing",
    "Metadata",
    "Node",
    "NodeMetrics",
    "Resource",
    "find_access",
    "key_of",
    "nano",
]
