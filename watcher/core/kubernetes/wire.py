"""What all Kubernetes objects have in common on the wire: names, versions, lists and watches.

The objects themselves are in `objects`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from watcher.core.kubernetes.errors import KubeRefused, shown

_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9._:-]{0,251}[a-zA-Z0-9])?", re.ASCII)
"""A DNS name as objects have it, and the colon and capitals that RBAC's may have; no slash, no dots alone."""


class Metadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
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


@dataclass(frozen=True, slots=True)
class Resource(Generic[T_co]):
    """A kind of object, of Kubernetes itself or of a CustomResourceDefinition. `group` is "" for the core API, `item`
    the type to decode into: one of `objects`, or one that declares what is read of it."""

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
        """Where it is listed, in all namespaces if it has any."""
        return f"{self._root}/{self.plural}"

    def path_in(self, namespace: str) -> str:
        """Where objects of a namespace are made, or, without one, those of the cluster. Raises KubeRefused for what can
        be no name."""
        if not namespace:
            return self.path
        if not _NAME.fullmatch(namespace):
            raise KubeRefused(f"{shown(repr(namespace))} is no name of a namespace")
        return f"{self._root}/namespaces/{namespace}/{self.plural}"

    def path_of(self, key: str, subresource: str = "") -> str:
        """Where one object is, by its name or, if it is in a namespace, by NAMESPACE/NAME (`key_of`). Raises
        KubeRefused for what can be no name: it would lead elsewhere."""
        *namespace, name = key.split("/")
        if len(namespace) > 1 or not all(_NAME.fullmatch(part) for part in (*namespace, name)):
            raise KubeRefused(f"{shown(repr(key))} is no name of an object of Kubernetes")
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
    """Of a list: at which version of the cluster it is true, the mark of its next page, and how many objects there are
    on all pages that follow (not told for a selection)."""

    resource_version: str = ""
    more: str = ""
    remaining: int | None = None


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
