"""Where the control groups of a pod and of its containers are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from agent.cgroups.base import Group, Tree
from agent.cgroups.detection import Layout, NoCgroups
from agent.cgroups.errors import CgroupError, CgroupGone
from agent.cgroups.paths import ROOT_SEGMENT, container_id, is_uid, pod_segments
from agent.qos import QosClass


class Groups(Protocol):
    """The control groups of this node. All raise CgroupError for what fails."""

    def find(self, uid: str, container: str = "") -> str | None:
        """The path of a container's group by its id, or of the pod's own; None if it is not there (any more)."""

    def open(self, path: str) -> Group:
        """The group at a path. It may not be there."""

    def look(self) -> None:
        """Fails where there are no groups of a kubelet at all: then the wrong tree is looked at, or an empty one, and
        that a group is not in it does not say that its container has ended."""


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
            with _translated(ROOT_SEGMENT):
                path = self._layout().path_of(pod_segments(qos, uid))
            names = self._children(path)
            if names is None:
                continue
            if not container:
                return path
            return next((f"{path}/{name}" for name in names if container_id(name) == container), None)
        return None

    def _children(self, path: str) -> list[str] | None:
        try:
            with self.open(path) as group:
                return group.children()
        except CgroupGone:
            return None

    def open(self, path: str) -> Group:
        """The group at a path."""
        with _translated(path):
            return self._tree().open(path)

    def look(self) -> None:
        """Fails where there are none."""
        with _translated(ROOT_SEGMENT):
            self._layout().path_of((ROOT_SEGMENT,))


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except NoCgroups as error:
        raise CgroupError(str(error), path=path, hint=error.hint) from None
