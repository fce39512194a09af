"""Wire format common to all Kubernetes objects: names, versions, lists and watches.

The objects themselves are in `objects`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from watcher.core.kubernetes.errors import KubeRefused
from watcher.core.messages import printable
from watcher.decoding.json_text import JsonDecoder

_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9._:-]{0,251}[a-zA-Z0-9])?", re.ASCII)
"""A DNS name, plus colons and capitals, which names of RBAC objects may have; no slash, and not only dots."""


class MinimalMetadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Name, namespace and resource version of an object."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Object(Protocol):
    """The attribute that every object has."""

    @property
    def metadata(self) -> MinimalMetadata: ...


ItemT = TypeVar("ItemT", bound=Object)
T_co = TypeVar("T_co", bound=Object, covariant=True)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T_co]):
    """A kind of object, built into Kubernetes or of a CustomResourceDefinition. `group` is "" for the core API. `item`
    is the type to decode into: one of `objects`, or a type that declares the fields needed."""

    group: str
    version: str
    plural: str
    item: type[T_co]

    @property
    def group_version(self) -> str:
        """The apiVersion of the objects: "v1", "metrics.k8s.io/v1beta1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """The name used in Kubernetes' messages: "nodes", "nodes.metrics.k8s.io"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def path(self) -> str:
        """URL path of the list, in all namespaces if the resource is namespaced."""
        return f"{self._root}/{self.plural}"

    def path_in(self, namespace: str) -> str:
        """URL path of the list in a namespace, or of the cluster-wide list if `namespace` is "". Raises KubeRefused for
        an invalid name."""
        if not namespace:
            return self.path
        if not _NAME.fullmatch(namespace):
            raise KubeRefused(f"{printable(repr(namespace))} is not a valid namespace name")
        return f"{self._root}/namespaces/{namespace}/{self.plural}"

    def path_of(self, key: str, subresource: str = "") -> str:
        """URL path of one object by its name or, if namespaced, by NAMESPACE/NAME (`key_of`). Raises KubeRefused for an
        invalid name, which could lead to another path."""
        *namespace, name = key.split("/")
        if len(namespace) > 1 or not all(_NAME.fullmatch(part) for part in (*namespace, name)):
            raise KubeRefused(f"{printable(repr(key))} is not a valid name of a Kubernetes object")
        parent = f"{self._root}/namespaces/{namespace[0]}" if namespace else self._root
        return "/".join(filter(None, (parent, self.plural, name, subresource)))

    @property
    def _root(self) -> str:
        return f"/{'apis' if self.group else 'api'}/{self.group_version}"


def key_of(item: Object) -> str:
    """The name of an object, with its namespace if it has one: "node-1", "default/web-0"."""
    metadata = item.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


_LIST_NAMES = {"resource_version": "resourceVersion", "more": "continue", "remaining": "remainingItemCount"}


class ListMetadata(msgspec.Struct, frozen=True, rename=_LIST_NAMES):
    """Metadata of a list: its resource version, the continue token of its next page, and the number of objects on all
    following pages (None for selected lists)."""

    resource_version: str = ""
    more: str = ""
    remaining: int | None = None


class ObjectList(msgspec.Struct, Generic[T_co], frozen=True):
    """A page of a list. Go sometimes encodes an empty list as null. `kind` is required: otherwise any JSON object would
    be accepted as an empty list."""

    kind: str
    metadata: ListMetadata = ListMetadata()
    items: list[T_co] | None = None


class ServedResource(msgspec.Struct, frozen=True):
    """An entry of a discovery document; `name` is the plural name, with "/status" for a subresource."""

    name: str


class ResourceList(msgspec.Struct, frozen=True):
    """The discovery document of a group and version; its metadata is empty."""

    metadata: MinimalMetadata = MinimalMetadata()
    resources: tuple[ServedResource, ...] = ()


class WatchLine(msgspec.Struct, frozen=True):
    """One line of a watch: the event type and the encoded object."""

    type: str
    object: msgspec.Raw


class Versioned(msgspec.Struct, frozen=True):
    """The metadata of any object; a bookmark contains nothing else."""

    metadata: MinimalMetadata = MinimalMetadata()


def list_decoder(item: type[Any]) -> JsonDecoder[ObjectList[Any]]:
    """A decoder for lists of this type."""
    return JsonDecoder(ObjectList[item])  # type: ignore[valid-type]  # evaluated by msgspec at run time
