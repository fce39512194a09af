"""The nodes and pods of a cluster at one moment, as GET /scheduler/cluster tells them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import msgspec


class SeenNode(msgspec.Struct, frozen=True, gc=False):
    """A node: what it has, and what of it pods may ask for; `pods` is how many (None: it does not say)."""

    name: str
    cores: float
    bytes: int
    allocatable_cores: float
    allocatable_bytes: int
    pods: int | None = None


class SeenPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that is bound: when it was made (unix seconds, None where that is not known) and bound, its effective
    requests, its limits (None: none), and who controls it, as KIND/NAME ("": nobody)."""

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


class SeenCluster(msgspec.Struct, frozen=True):
    """All of them at `time` (unix seconds, by the service's clock), in the order of their names."""

    time: float
    nodes: list[SeenNode]
    pods: list[SeenPod]
