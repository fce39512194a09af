"""How the kubelet and the container runtimes name the groups of pods and containers.

A pod's name is made of segments: `kubepods`, its QoS class unless it is Guaranteed, and `pod` with its uid. The driver
cgroupfs joins them with slashes. systemd has slices, whose name holds those of all slices above with a dash between, so
dashes within a segment become underscores. Below the pod each container has a group of its own, named by its id, and
for systemd by the runtime too.

A group is known for a pod's by what its name says and not by where it stands: kind and nested kubelets put all of it
below another directory, and upstream, which looked at the last element alone, took systemd's pods for containers.

Pure: names in, names out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from agent.qos import QosClass

ROOT_SEGMENT = "kubepods"

_CLASS_SEGMENTS: dict[str, tuple[str, ...]] = {
    QosClass.GUARANTEED: (),
    QosClass.BURSTABLE: ("burstable",),
    QosClass.BEST_EFFORT: ("besteffort",),
}
_CLASS_OF = {"": QosClass.GUARANTEED, "burstable": QosClass.BURSTABLE, "besteffort": QosClass.BEST_EFFORT}

_UID = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_UID_OF_SYSTEMD = _UID.replace("-]", "_]", 1)
_VALID_UID = re.compile(_UID, re.ASCII)
_ID = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,126}[A-Za-z0-9])?"

_POD = re.compile(rf"pod(?P<uid>{_UID})", re.ASCII)
_POD_SLICE = re.compile(
    rf"(?:[A-Za-z0-9_]+-)*{ROOT_SEGMENT}(?:-(?P<qos>burstable|besteffort))?-pod(?P<uid>{_UID_OF_SYSTEMD})\.slice",
    re.ASCII,
)
# containerd's CRI plug-in, cri-o, dockershim's and cri-dockerd's Docker, podman; the groups of their monitors
# (crio-conmon-ID, libpod-conmon-ID) are no containers.
_CONTAINER = re.compile(rf"(?:(?:cri-containerd|crio|docker|libpod)-)?+(?!conmon-)(?P<id>{_ID})(?:\.scope)?", re.ASCII)


class Driver(StrEnum):
    """Who lays the groups out, as the kubelet's `cgroupDriver` names it."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A group that is a pod's, or a container's of it: then `container` is its id, else ""."""

    uid: str
    qos: QosClass
    container: str = ""


def is_uid(text: str) -> bool:
    """Whether this can be the uid of a pod: no slash, no dot, nothing that leads elsewhere. Static pods have a hash."""
    return _VALID_UID.fullmatch(text) is not None


def pod_segments(qos: str, uid: str) -> tuple[str, ...]:
    """The name of a pod's group in segments, as upstream's GetCgroupName has it; () for a class that is none. Raises
    ValueError for a uid that is none."""
    if qos not in _CLASS_SEGMENTS:
        return ()
    if not is_uid(uid):
        raise ValueError(f"{uid[:60]!r} is no uid of a pod")
    return (ROOT_SEGMENT, *_CLASS_SEGMENTS[qos], f"pod{uid}")


def group_path(segments: tuple[str, ...], driver: Driver) -> str:
    """Where the group of that name is in the tree of a controller: "/" for no segments."""
    if not segments:
        return "/"
    if driver is Driver.CGROUPFS:
        return "/" + "/".join(segments)
    return expand_slice("-".join(segment.replace("-", "_") for segment in segments) + ".slice")


def pod_path(driver: Driver, qos: str, uid: str) -> str:
    """Where the group of a pod is; "/", which is nobody's, for a class that is none. Raises ValueError for a uid that
    is none."""
    return group_path(pod_segments(qos, uid), driver)


def expand_slice(name: str) -> str:
    """The path of a systemd slice from its name: "a-b.slice" is /a.slice/a-b.slice, "-.slice" the root. Raises
    ValueError for a name that is none."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "slice" or "/" in name:
        raise ValueError(f"{name[:60]!r} is no name of a slice")
    if stem == "-":
        return "/"
    parts = stem.split("-")
    if not all(parts):
        raise ValueError(f"{name[:60]!r} is no name of a slice: a part of it is empty")
    return "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))


def read_path(path: str) -> PodGroup | None:
    """Whose group a path names: a pod's, a container's, or None for any other. Works with both drivers, and wherever
    the kubelet's groups are."""
    elements = [element for element in path.split("/") if element]
    for depth, element in enumerate(elements):
        found = _pod_of(element, above=elements[depth - 1] if depth else "")
        if found is None:
            continue
        below = elements[depth + 1 :]
        if not below:
            return found
        identity = container_id(below[0])
        return None if identity is None or len(below) > 1 else PodGroup(found.uid, found.qos, identity)
    return None


def read_pod(name: str) -> str | None:
    """The uid of the pod whose group has this name (the last element of its path), None for any other group."""
    if found := _POD_SLICE.fullmatch(name):
        return found["uid"].replace("_", "-")
    found = _POD.fullmatch(name)
    return found["uid"] if found else None


def container_id(name: str) -> str | None:
    """The id of the container whose group has this name, below its pod's; None for a group that is no container's."""
    if name.endswith((".slice", ".mount", ".service")):
        return None
    found = _CONTAINER.fullmatch(name)
    return found["id"] if found else None


def _pod_of(element: str, *, above: str) -> PodGroup | None:
    if found := _POD_SLICE.fullmatch(element):
        return PodGroup(found["uid"].replace("_", "-"), _CLASS_OF[found["qos"] or ""])
    if found := _POD.fullmatch(element):
        return PodGroup(found["uid"], _CLASS_OF.get(above, QosClass.GUARANTEED))
    return None
