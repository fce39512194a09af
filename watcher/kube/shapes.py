"""The Kubernetes objects that we read, cut down to what we read of them.

A node as the API server sends it is 2 to 20 kB (most of it the list of its container images), of which we need 200
bytes. What is not declared here is skipped while decoding and never becomes a Python object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Who an object is, and which version of it this is."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Object(Protocol):
    """What every object has."""

    @property
    def metadata(self) -> Metadata: ...


ItemT = TypeVar("ItemT", bound=Object)
T_co = TypeVar("T_co", bound=Object, covariant=True)

Quantity = str | int | float
"""As JSON may have it; `quantity.nano` reads it."""


@dataclass(frozen=True, slots=True)
class Resource(Generic[T_co]):
    """A kind of object that is not inside a namespace, or is looked for in all of them. `group` is "" for the core
    API, `item` the type to decode into."""

    group: str
    version: str
    plural: str
    item: type[T_co]

    @property
    def group_version(self) -> str:
        """As in apiVersion: "v1", "metrics.k8s.io/v1beta1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As Kubernetes' own messages have it: "nodes", "nodes.metrics.k8s.io"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def path(self) -> str:
        """Where it is listed."""
        return f"/{'apis' if self.group else 'api'}/{self.group_version}/{self.plural}"


def key_of(item: Object) -> str:
    """The name of an object, with its namespace if it has one: "node-1", "default/web-0"."""
    metadata = item.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


class NodeStatus(msgspec.Struct, frozen=True):
    """What a node has in all, by resource name ("cpu", "memory")."""

    capacity: dict[str, Quantity] = {}


class Node(msgspec.Struct, frozen=True):
    """A node of the cluster."""

    metadata: Metadata = Metadata()
    status: NodeStatus = NodeStatus()


class NodeMetrics(msgspec.Struct, frozen=True):
    """What a node used: `usage` by resource name, over the `window` ("10.062s", a Go duration) that ended at
    `timestamp` (RFC 3339). Both are texts here, so that a bad one costs its node and not the list."""

    metadata: Metadata = Metadata()
    timestamp: str = ""
    window: str = ""
    usage: dict[str, Quantity] = {}


NODES: Resource[Node] = Resource("", "v1", "nodes", Node)
NODE_METRICS: Resource[NodeMetrics] = Resource("metrics.k8s.io", "v1beta1", "nodes", NodeMetrics)


class ListMetadata(msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion", "more": "continue"}):
    """Of a list: at which version of the cluster it is true, and the mark of its next page."""

    resource_version: str = ""
    more: str = ""


class ObjectList(msgspec.Struct, Generic[T_co], frozen=True):
    """A page of a list. Go writes an empty one as null at times. The kind is required of it: any other JSON object
    would else pass for an empty list."""

    kind: str
    metadata: ListMetadata = ListMetadata()
    items: list[T_co] | None = None


class WatchLine(msgspec.Struct, frozen=True):
    """A line of a watch."""

    type: str
    object: msgspec.Raw


class Versioned(msgspec.Struct, frozen=True):
    """What a bookmark has: a version and nothing else."""

    metadata: Metadata = Metadata()


def list_decoder(item: type[Any]) -> msgspec.json.Decoder[ObjectList[Any]]:
    """A decoder of lists of this type."""
    return msgspec.json.Decoder(ObjectList[item])  # type: ignore[valid-type]  # msgspec reads it when it runs
