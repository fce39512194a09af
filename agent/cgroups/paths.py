"""Names of the control groups that the kubelet and container runtimes create for pods and containers.

The name of a pod's group consists of segments: `kubepods`, the QoS class (omitted for Guaranteed), and `pod` followed
by the UID. The cgroupfs driver joins the segments with slashes. The systemd driver creates slices: the name of a slice
contains the names of all its parents, joined with dashes, so dashes within a segment are replaced by underscores. Each
container has a group below its pod's group, named after its id and, with systemd, also after the runtime.

A pod's group is recognized by its name at any depth, because kind and nested kubelets put the hierarchy below another
directory. Crane compares only the last path element, and therefore takes systemd's pod slices for containers.

Pure functions on names; no file access.
"""

from __future__ import annotations

import re
from enum import StrEnum

from agent.qos import QosClass

ROOT_SEGMENT = "kubepods"

_CLASS_SEGMENTS: dict[str, tuple[str, ...]] = {
    QosClass.GUARANTEED: (),
    QosClass.BURSTABLE: ("burstable",),
    QosClass.BEST_EFFORT: ("besteffort",),
}

_UID = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_UID_OF_SYSTEMD = _UID.replace("-]", "_]", 1)
_VALID_UID = re.compile(_UID, re.ASCII)
_ID = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,126}[A-Za-z0-9])?"

_POD = re.compile(rf"pod(?P<uid>{_UID})", re.ASCII)
_POD_SLICE = re.compile(
    rf"(?:[A-Za-z0-9_]+-)*{ROOT_SEGMENT}(?:-(?:burstable|besteffort))?-pod(?P<uid>{_UID_OF_SYSTEMD})\.slice",
    re.ASCII,
)
# containerd's CRI plug-in, cri-o, dockershim's and cri-dockerd's Docker, podman; the groups of their monitors
# (crio-conmon-ID, libpod-conmon-ID) are not containers.
_CONTAINER = re.compile(rf"(?:(?:cri-containerd|crio|docker|libpod)-)?+(?!conmon-)(?P<id>{_ID})(?:\.scope)?", re.ASCII)


class Driver(StrEnum):
    """The cgroup driver, with the values of the kubelet's `cgroupDriver`."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


def is_uid(text: str) -> bool:
    """Whether the text is a valid pod UID: no slashes or dots, so that it cannot lead to another path. Static pods have
    a hash as UID."""
    return _VALID_UID.fullmatch(text) is not None


def pod_segments(qos: str, uid: str) -> tuple[str, ...]:
    """The segments of a pod's group name, as from the kubelet's GetCgroupName; () for an unknown QoS class. Raises
    ValueError for an invalid UID."""
    if qos not in _CLASS_SEGMENTS:
        return ()
    if not is_uid(uid):
        raise ValueError(f"{uid[:60]!r} is not a valid pod UID")
    return (ROOT_SEGMENT, *_CLASS_SEGMENTS[qos], f"pod{uid}")


def group_path(segments: tuple[str, ...], driver: Driver) -> str:
    """The path of a group in a controller's tree; "/" for no segments."""
    if not segments:
        return "/"
    if driver is Driver.CGROUPFS:
        return "/" + "/".join(segments)
    return expand_slice("-".join(segment.replace("-", "_") for segment in segments) + ".slice")


def expand_slice(name: str) -> str:
    """The path of a systemd slice: "a-b.slice" is /a.slice/a-b.slice, "-.slice" is the root. Raises ValueError for an
    invalid slice name."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "slice" or "/" in name:
        raise ValueError(f"{name[:60]!r} is not a slice name")
    if stem == "-":
        return "/"
    parts = stem.split("-")
    if not all(parts):
        raise ValueError(f"{name[:60]!r} is not a slice name: one of its parts is empty")
    return "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))


def read_pod(name: str) -> str | None:
    """The UID of the pod whose group has this name (the last path element); None for other groups."""
    if found := _POD_SLICE.fullmatch(name):
        return found["uid"].replace("_", "-")
    found = _POD.fullmatch(name)
    return found["uid"] if found else None


def container_id(name: str) -> str | None:
    """The id of the container whose group has this name below its pod's group; None for other groups."""
    if name.endswith((".slice", ".mount", ".service")):
        return None
    found = _CONTAINER.fullmatch(name)
    return found["id"] if found else None
