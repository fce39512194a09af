"""The records of a trace. Times are unix seconds, to the thousandth; CPU is in cores, to the ten-thousandth, memory in
whole bytes. What is None, or "" for a text, was not known.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import msgspec

COLUMNS = (
    *("time", "record", "node", "uid", "cpu", "memory", "pod", "cpu_limit", "memory_limit", "lifetime"),
    *("priority", "owner", "allocatable_cpu", "allocatable_memory", "pods", "note"),
)
MOST_PODS = 110
"""Of a node that says nothing of it, as kubelet has it."""


class Begin(msgspec.Struct, frozen=True, gc=False):
    """The first record, if there is one: when the trace begins, and what it is of, in words."""

    time: float
    note: str = ""


class NodeRecord(msgspec.Struct, frozen=True, gc=False):
    """A node came, or has another size from now on: what it has, and what of it pods may ask for (None: all)."""

    time: float
    node: str
    cores: float
    bytes: int
    allocatable_cores: float | None = None
    allocatable_bytes: int | None = None
    pods: int = MOST_PODS


class LoadRecord(msgspec.Struct, frozen=True, gc=False):
    """What a node uses from now on beside the pods of the trace; None: as before."""

    time: float
    node: str
    cores: float | None = None
    bytes: int | None = None


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """A pod waits for a node: NAMESPACE/NAME, its effective requests, its limits (None: none), and how many seconds it
    runs once it has a node (None: until it is removed, or the trace ends). `owner` is KIND/NAME."""

    time: float
    uid: str
    pod: str
    cores: float = 0.0
    bytes: int = 0
    cores_limit: float | None = None
    bytes_limit: int | None = None
    lifetime: float | None = None
    priority: int = 0
    owner: str = ""


class UsageRecord(msgspec.Struct, frozen=True, gc=False):
    """What a pod uses from now on; None: as before."""

    time: float
    uid: str
    cores: float | None = None
    bytes: int | None = None


class BindRecord(msgspec.Struct, frozen=True, gc=False):
    """The node that a pod was really given."""

    time: float
    uid: str
    node: str


class RemoveRecord(msgspec.Struct, frozen=True, gc=False):
    """A pod is gone, ended or deleted; or a node, where there is no uid."""

    time: float
    uid: str = ""
    node: str = ""


class EndRecord(msgspec.Struct, frozen=True, gc=False):
    """The last record, if there is one: until when the trace goes. Else that is the time of the last of the others."""

    time: float


Record = Begin | NodeRecord | LoadRecord | PodRecord | UsageRecord | BindRecord | RemoveRecord | EndRecord
