"""Where the control groups of a pod and of its containers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agent.cgroups import CgroupGone, Group, Layout, NoCgroups, Tree
from agent.cgroups.paths import container_id, is_uid, pod_segments
from agent.model import QosClass


class Groups(Protocol):
    """The control groups of this node. Both raise CgroupError for what fails."""

    def find(self, uid: str, container: str = "") -> str | None:
        """The path of a container's group by its id, or of the pod's own; None if it is not there (any more)."""

    def open(self, path: str) -> Group:
        """The group at a path."""


class KubeletGroups:
    """Those that the kubelet made. `layout` and `tree` are asked for each time: they may change, as a machine does."""

    def __init__(self, layout: Callable[[], Layout], tree: Callable[[], Tree]) -> None:
        self._layout = layout
        self._tree = tree

    def find(self, uid: str, container: str = "") -> str | None:
        """Looked for under each QoS class: a pod's class may be unknown, its uid is not."""
        if not is_uid(uid):
            return None
        for qos in (QosClass.BEST_EFFORT, QosClass.BURSTABLE, QosClass.GUARANTEED):
            try:
                path = self._layout().path_of(pod_segments(qos, uid))
            except NoCgroups:
                return None
            names = self._children(path)
            if names is None:
                continue
            if not container:
                return path
            return next((f"{path}/{name}" for name in names if container_id(name) == container), None)
        return None

    def _children(self, path: str) -> list[str] | None:
        try:
            with self._tree().open(path) as group:
                return group.children()
        except CgroupGone:
            return None

    def open(self, path: str) -> Group:
        """The group at a path."""
        return self._tree().open(path)
