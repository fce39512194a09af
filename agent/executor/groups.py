"""Finds the control groups of pods and containers."""

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
    """The control groups of this node. All methods raise CgroupError."""

    def find(self, uid: str, container: str = "") -> str | None:
        """Path of the group of a container (by id), or of the pod's own group; None if it does not exist."""

    def open(self, path: str) -> Group:
        """Open the group at a path; it need not exist."""

    def look(self) -> None:
        """Raise CgroupError if there are no groups of a kubelet at all. The tree is then wrong or empty, so a missing
        group does not mean that its container has ended."""


class KubeletGroups:
    """The control groups that the kubelet created. `layout` and `tree` are called for each operation, because both may
    change."""

    def __init__(self, layout: Callable[[], Layout], tree: Callable[[], Tree]) -> None:
        self._layout = layout
        self._tree = tree

    def find(self, uid: str, container: str = "") -> str | None:
        """Search all QoS classes for the uid, because the pod's class may be unknown."""
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
        with _translated(path):
            return self._tree().open(path)

    def look(self) -> None:
        with _translated(ROOT_SEGMENT):
            self._layout().path_of((ROOT_SEGMENT,))


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except NoCgroups as error:
        raise CgroupError(str(error), path=path, hint=error.hint) from None
