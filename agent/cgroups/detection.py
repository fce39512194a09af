"""What control groups a machine has, found by looking: version, driver of the kubelet, and where its groups begin.

Told by what stands in the tree and not by what is mounted: in a container the host's tree is mounted anywhere, and the
container's own says nothing of the host's.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from enum import StrEnum

from agent.cgroups.base import Tree
from agent.cgroups.paths import ROOT_SEGMENT, Driver, group_path, read_pod
from agent.cgroups.v1 import CONTROLLERS, UNIFIED, TreeV1
from agent.cgroups.v2 import TreeV2

log = logging.getLogger(__name__)

OF_VERSION_2 = "cgroup.controllers"
NESTS = ("", "kubelet")
"""A segment before the others that is looked for: kind starts its kubelets with --cgroup-root=/kubelet."""
NO_KUBELET = (
    "Is the host's cgroup file system mounted here, and does the kubelet have --cgroups-per-qos? "
    "If it has a --cgroup-root, name that as cgroup_nest"
)


class NoCgroups(Exception):
    """There is nothing here that could be read. `hint` says what may be wrong."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Version(StrEnum):
    """Of the interface. A hybrid is version 1 with an empty tree of version 2 beside it."""

    V1 = "v1"
    V2 = "v2"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the groups of this machine are laid out. `driver` is None where there are none of a kubelet. `nest` is a
    segment that comes before those of the kubelet, "" for none."""

    root: str
    version: Version
    driver: Driver | None
    nest: str = ""

    def path_of(self, segments: tuple[str, ...]) -> str:
        """Where the group with these segments (`paths.pod_segments`) is. Raises NoCgroups without a driver."""
        if self.driver is None:
            raise NoCgroups(f"there are no groups of a kubelet in {self.root}", hint=NO_KUBELET)
        return group_path((self.nest, *segments) if self.nest else segments, self.driver)


def find_layout(root: str, *, driver: Driver | None = None, nest: str | None = None) -> Layout:
    """What there is below `root`, usually /sys/fs/cgroup; `driver` and `nest` where they are known. Raises NoCgroups
    where there are no control groups at all."""
    version = _version(root)
    tree = root if version is Version.V2 else _controller(root, "cpu") or root
    nests = NESTS if nest is None else (nest,)
    candidates = [Layout(root, version, each, nest) for nest in nests for each in Driver if driver in (None, each)]
    pods = {layout: _pods(tree + layout.path_of((ROOT_SEGMENT,))) for layout in candidates}
    there = [layout for layout in candidates if pods[layout] is not None]
    if not there:
        return Layout(root, version, None)
    # A machine whose driver was changed keeps the empty groups of the old one until it starts anew.
    best = max(there, key=lambda layout: pods[layout] or 0)  # the first of equals
    if len(there) > 1:
        log.info("of %d layouts in %s that of %s is taken, with %s pods", len(there), root, best.driver, pods[best])
    return best


def top_of(layout: Layout) -> str:
    """The directory of the group that all of the kubelet's are in, of those that have quotas. Raises NoCgroups."""
    tree = layout.root if layout.version is Version.V2 else f"{layout.root}/cpu"
    return tree + layout.path_of((ROOT_SEGMENT,))


def open_tree(layout: Layout) -> Tree:
    """The tree, to be closed in the end. Raises CgroupError where it cannot be read."""
    if layout.version is Version.V2:
        return TreeV2(layout.root)
    roots = {name: path for name in (*CONTROLLERS, UNIFIED) if (path := _controller(layout.root, name))}
    return TreeV1(roots)


def _version(root: str) -> Version:
    if os.path.exists(f"{root}/{OF_VERSION_2}"):
        return Version.V2
    if _controller(root, "cpu") is None:
        hint = "Mount the host's /sys/fs/cgroup there, or say where it is (agent.cgroup)."
        raise NoCgroups(f"there are no control groups in {root}: neither {OF_VERSION_2} nor cpu", hint=hint)
    return Version.HYBRID if os.path.exists(f"{root}/{UNIFIED}/{OF_VERSION_2}") else Version.V1


def _controller(root: str, name: str) -> str | None:
    """Where the tree of a controller is. Distributions mount cpu and cpuacct together, with a link for each name; a
    link that leads out of `root` is none."""
    path, home = os.path.realpath(f"{root}/{name}"), os.path.realpath(root)
    return path if path.startswith(f"{home}/") and os.path.isdir(path) else None


def _pods(top: str) -> int | None:
    """How many pods have their groups below `top`, directly or one level down; None where there is no such group."""
    if not os.path.isdir(top):
        return None
    classes = _directories(top)
    names = [*classes, *(name for each in classes for name in _directories(f"{top}/{each}"))]
    return sum(read_pod(name) is not None for name in names)


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # it went meanwhile
        return []
