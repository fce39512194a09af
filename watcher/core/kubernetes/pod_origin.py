"""Which pods a kubelet or a DaemonSet has created. In the API, a user who may create pods may write any annotation and
any owner: docs/concepts/trust.md lists what can be checked.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from watcher.core.kubernetes.objects import Owner

OwnerT = TypeVar("OwnerT", bound=Owner)
MIRROR = "kubernetes.io/config.mirror"
"""The kubelet's annotation of a mirror pod: the uid of the static pod."""


class PodMetadata(Protocol):
    """The metadata that show where a pod comes from."""

    @property
    def annotations(self) -> Mapping[str, str]: ...

    @property
    def owner_references(self) -> Sequence[Owner]: ...


def mirrored_uid(metadata: PodMetadata, node: str) -> str:
    """The uid of the static pod whose mirror in the API this pod of `node` is; "" for another pod. The Node of the
    kubelet controls a mirror pod."""
    by_node = any(_is(owner, "v1", "Node") and owner.name == node for owner in metadata.owner_references)
    return metadata.annotations.get(MIRROR, "") if by_node and node else ""


def daemon_set_of(owners: Iterable[OwnerT]) -> OwnerT | None:
    """The DaemonSet that the owners name as the controller of a pod; None if they name none. DaemonSets of other API
    groups (OpenKruise) do not count."""
    return next((owner for owner in owners if _is(owner, "apps/v1", "DaemonSet")), None)


def _is(owner: Owner, version: str, kind: str) -> bool:
    return bool(owner.controller) and (owner.api_version, owner.kind) == (version, kind)
