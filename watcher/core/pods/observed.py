"""Nodes and pods of a cluster at one time, as returned by GET /scheduler/cluster.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import msgspec


class SnapshotNode(msgspec.Struct, frozen=True, gc=False):
    """Capacity and allocatable resources of a node; `pods` is the maximum number of pods (None: unknown)."""

    name: str
    cores: float
    bytes: int
    allocatable_cores: float
    allocatable_bytes: int
    pods: int | None = None


class SnapshotPod(msgspec.Struct, frozen=True, gc=False):
    """A bound pod. `created` (None: unknown) and `bound` are unix seconds. `cores` and `bytes` are the effective
    requests; limits are None if unset. `owner` is the controller as KIND/NAME, "" without one."""

    uid: str
    namespace: str
    name: str
    node: str
    bound: float
    created: float | None = None
    cores: float = 0.0
    bytes: int = 0
    cores_limit: float | None = None
    bytes_limit: int | None = None
    priority: int = 0
    owner: str = ""


class ClusterSnapshot(msgspec.Struct, frozen=True):
    """Nodes and pods at `time` (unix seconds, the service's clock), ordered by name."""

    time: float
    nodes: list[SnapshotNode]
    pods: list[SnapshotPod]
