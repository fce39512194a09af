"""The records of a trace. Times are unix seconds with 3 decimals, CPU is in cores with 4 decimals, memory in bytes.

None, or "" for a text, means unknown unless the record states otherwise.

A recorder writes events in order of time, as they happen: first all nodes and existing pods (each with the node that it
is bound to) at the start time, then the load of nodes once per tick, arrivals, bindings, usage of pods, and removals.
After `flush` the file is readable up to this point, even if the process is killed:

    with open_writer(path) as writer:
        writer.write(Begin(time, "https://watcher.example:2020"))
        writer.write(NodeRecord(time, "node-1", cores=8.0, bytes=32 << 30))
        writer.write(PodRecord(time, uid, "shop/cart-1", cores=0.5, bytes=512 << 20, owner="ReplicaSet/cart"))
        writer.write(BindRecord(time, uid, "node-1"))
        writer.write(LoadRecord(time, "node-1", cores=0.4, bytes=1 << 30))
        writer.write(UsageRecord(time, uid, cores=0.2, bytes=300 << 20))
        …
        writer.write(EndRecord(time))

`LoadRecord` is the usage of a node outside of the trace's pods. The total usage of a node at a given time, which
`replay` returns as samples, is its last load before this time plus the last usage of each pod bound to it at this time:

    for record in read_trace(path): match record: case LoadRecord(): … case UsageRecord(): … case BindRecord(): …

In a trace without pods the load records contain the total load. `replay` uses times relative to `Begin.time`.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import msgspec

COLUMNS = (
    *("time", "record", "node", "uid", "cpu", "memory", "pod", "cpu_limit", "memory_limit", "lifetime"),
    *("priority", "owner", "allocatable_cpu", "allocatable_memory", "pods", "note"),
)
MOST_PODS = 110
"""Default maximum of pods per node, the same as kubelet's."""


class Begin(msgspec.Struct, frozen=True, gc=False):
    """Optional first record: the start time of the trace, and a description."""

    time: float
    note: str = ""


class NodeRecord(msgspec.Struct, frozen=True, gc=False):
    """A node was added or its size changed: its capacity, and its allocatable resources (None: all of the capacity)."""

    time: float
    node: str
    cores: float
    bytes: int
    allocatable_cores: float | None = None
    allocatable_bytes: int | None = None
    pods: int = MOST_PODS


class LoadRecord(msgspec.Struct, frozen=True, gc=False):
    """New usage of a node outside of the trace's pods; None: unchanged."""

    time: float
    node: str
    cores: float | None = None
    bytes: int | None = None


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """A pod was created: `pod` is NAMESPACE/NAME; effective requests; limits (None: unlimited); `lifetime` in seconds
    after binding (None: until it is removed or the trace ends). `owner` is KIND/NAME."""

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
    """New usage of a pod; None: unchanged."""

    time: float
    uid: str
    cores: float | None = None
    bytes: int | None = None


class BindRecord(msgspec.Struct, frozen=True, gc=False):
    """The node that a pod was bound to when the trace was recorded."""

    time: float
    uid: str
    node: str


class RemoveRecord(msgspec.Struct, frozen=True, gc=False):
    """A pod ended or was deleted; without `uid`, a node was removed."""

    time: float
    uid: str = ""
    node: str = ""


class EndRecord(msgspec.Struct, frozen=True, gc=False):
    """Optional last record: the end time of the trace. Default: the time of the last record."""

    time: float


Record = Begin | NodeRecord | LoadRecord | PodRecord | UsageRecord | BindRecord | RemoveRecord | EndRecord
