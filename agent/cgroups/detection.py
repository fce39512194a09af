"""Detection of the machine's cgroup layout: version, the kubelet's cgroup driver, and the parent of the kubelet's
groups; and the groups of pods and containers in it.

Version 1 has a tree for each controller (cpu, cpuacct, memory), version 2 one tree for all. A hybrid machine has the
trees of version 1 and an additional, empty version 2 tree that reports pressure.

Detection inspects the directories of the given tree instead of the mount table: in a container the host's tree can be
mounted at any path, and the container's own mounts do not describe the host.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from agent.cgroups.base import Group, Tree
from agent.cgroups.errors import CgroupError, CgroupGone
from agent.cgroups.paths import ROOT_SEGMENT, Driver, container_id, group_path, is_uid, pod_segments, read_pod
from agent.cgroups.v1 import CONTROLLERS, UNIFIED, GroupV1
from agent.cgroups.v2 import ALL, GroupV2
from agent.qos import QosClass

log = logging.getLogger(__name__)

V2_MARKER_FILE = "cgroup.controllers"
NESTS = ("", "kubelet")
"""Parent groups of `kubepods` that detection tries: none, and that of kind, which starts its kubelets with
--cgroup-root=/kubelet."""
NO_KUBELET = (
    "Check that the host's cgroup file system is mounted here and that the kubelet runs with --cgroups-per-qos. "
    "If the kubelet has a --cgroup-root, set cgroup_nest to it"
)


class NoCgroups(Exception):
    """No usable control groups were found. `hint` names the likely reason."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Version(StrEnum):
    """Version of the cgroup interface. HYBRID is version 1 with an additional, empty version 2 tree."""

    V1 = "v1"
    V2 = "v2"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the control groups of this machine. `driver` is None if no kubelet groups were found. `nest` is
    the parent group of the kubelet's groups, "" for none."""

    root: str
    version: Version
    driver: Driver | None
    nest: str = ""

    def path_of(self, segments: tuple[str, ...]) -> str:
        """The path of the group with these segments (see `paths.pod_segments`). Raises NoCgroups if the driver is
        unknown."""
        if self.driver is None:
            raise NoCgroups(f"no kubelet groups found in {self.root}", hint=NO_KUBELET)
        return group_path((self.nest, *segments) if self.nest else segments, self.driver)


def find_layout(root: str, *, driver: Driver | None = None, nest: str | None = None) -> Layout:
    """Detect the layout below `root`, usually /sys/fs/cgroup. Pass `driver` and `nest` if they are known. Raises
    NoCgroups if `root` contains no control groups."""
    version = _version(root)
    tree, candidates = _tree(root, version), _candidates(root, version, driver, nest)
    pods = {layout: _pods(tree + layout.path_of((ROOT_SEGMENT,))) for layout in candidates}
    there = [layout for layout in candidates if pods[layout] is not None]
    if not there:
        return Layout(root, version, None)
    # After a change of the driver the empty groups of the old driver remain until the machine restarts.
    best = max(there, key=lambda layout: pods[layout] or 0)  # of equal layouts, the first
    if len(there) > 1:
        log.info("found %d layouts in %s; using that of %s, with %s pods", len(there), root, best.driver, pods[best])
    return best


@dataclass(frozen=True, slots=True)
class PodGroups:
    """The groups of pods in one layout: their number, and how many have neither groups of containers nor processes."""

    layout: Layout
    pods: int
    elsewhere: int


def pod_groups(root: str, *, driver: Driver | None = None, nest: str | None = None) -> list[PodGroups]:
    """The layouts below `root` that have groups of pods, that of `find_layout` first. More than one: the driver of the
    kubelet was changed while pods ran. Groups without containers: the container runtime has another driver. Raises
    NoCgroups."""
    best = find_layout(root, driver=driver, nest=nest)
    found = []
    for layout in _candidates(root, best.version, driver, nest):
        paths = _pod_paths(_tree(root, best.version) + layout.path_of((ROOT_SEGMENT,)))
        if paths:
            found.append(PodGroups(layout, len(paths), sum(map(_runs_elsewhere, paths))))
    return sorted(found, key=lambda each: each.layout != best)


def top_of(layout: Layout) -> str:
    """The directory of the `kubepods` group; on version 1 that of the cpu controller. Raises NoCgroups."""
    tree = layout.root if layout.version is Version.V2 else f"{layout.root}/cpu"
    return tree + layout.path_of((ROOT_SEGMENT,))


def open_tree(layout: Layout) -> Tree:
    """Open the tree; the caller closes it. Raises CgroupError if it cannot be read."""
    if layout.version is Version.V2:
        return Tree({ALL: layout.root}, GroupV2)
    roots = {name: path for name in (*CONTROLLERS, UNIFIED) if (path := _controller(layout.root, name))}
    return Tree(roots, GroupV1)


class KubeletGroups:
    """The control groups that the kubelet created. `layout` is called for each operation, because the layout may
    change; the tree is opened at the first use, because the kubelet may start after this process. All methods raise
    CgroupError."""

    def __init__(self, layout: Callable[[], Layout], opening: Callable[[Layout], Tree] = open_tree) -> None:
        self._layout = layout
        self._opening = opening
        self._tree: Tree | None = None

    def close(self) -> None:
        """Close the tree; a later use opens it again."""
        if self._tree is not None:
            self._tree.close()
            self._tree = None

    def find(self, uid: str, container: str = "") -> str | None:
        """Path of the group of a container (by id), or of the pod's own group; None if it does not exist. The uid is
        searched in all QoS classes, because the pod's class may be unknown."""
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
        """Open the group at a path; it need not exist."""
        with _translated(path):
            if self._tree is None:
                self._tree = self._opening(self._layout())
            return self._tree.open(path)

    def check(self) -> None:
        """Raise CgroupError if the groups of the kubelet do not exist. The tree is then wrong or empty, so a missing
        group does not mean that its container has ended."""
        with _translated(ROOT_SEGMENT):
            self._layout().path_of((ROOT_SEGMENT,))


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except NoCgroups as error:
        raise CgroupError(str(error), path=path, hint=error.hint) from None


def _tree(root: str, version: Version) -> str:
    """The directory of the tree that is searched for groups of pods."""
    return root if version is Version.V2 else _controller(root, "cpu") or root


def _candidates(root: str, version: Version, driver: Driver | None, nest: str | None) -> list[Layout]:
    nests = NESTS if nest is None else (nest,)
    return [Layout(root, version, each, nest) for nest in nests for each in Driver if driver in (None, each)]


def _version(root: str) -> Version:
    if os.path.exists(f"{root}/{V2_MARKER_FILE}"):
        return Version.V2
    if _controller(root, "cpu") is None:
        hint = "Mount the host's /sys/fs/cgroup there, or set agent.cgroup to its path."
        raise NoCgroups(f"no control groups found in {root}: neither {V2_MARKER_FILE} nor cpu exists", hint=hint)
    return Version.HYBRID if os.path.exists(f"{root}/{UNIFIED}/{V2_MARKER_FILE}") else Version.V1


def _controller(root: str, name: str) -> str | None:
    """The directory of a controller's tree. Distributions mount cpu and cpuacct together, with a link for each name; a
    link that leads out of `root` is ignored."""
    path, home = os.path.realpath(f"{root}/{name}"), os.path.realpath(root)
    return path if path.startswith(f"{home}/") and os.path.isdir(path) else None


def _pods(top: str) -> int | None:
    """The number of pod groups directly below `top` or one level deeper; None if `top` does not exist."""
    return len(_pod_paths(top)) if os.path.isdir(top) else None


def _pod_paths(top: str) -> list[str]:
    """The pod groups directly below `top` or one level deeper."""
    classes = _directories(top)
    below = [*classes, *(f"{each}/{name}" for each in classes for name in _directories(f"{top}/{each}"))]
    return [f"{top}/{path}" for path in below if read_pod(path.rpartition("/")[2]) is not None]


def _runs_elsewhere(pod: str) -> bool:
    """Whether the group of a pod has neither groups of containers nor processes."""
    if any(container_id(name) is not None for name in _directories(pod)):
        return False
    try:
        with open(f"{pod}/cgroup.procs", "rb") as file:
            return not file.read(1)
    except OSError:  # it was removed meanwhile
        return False


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # it was removed meanwhile
        return []
