"""Interfaces for names, metadata and capacities of nodes, from the cluster's node list or from a provider of a single
machine. Capacities convert the watcher's percentages to amounts.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.objects import Node, ObjectMetadata
from watcher.core.kubernetes.quantity import nano


@runtime_checkable
class CapacityProvider(Protocol):
    """A provider or node list that knows the capacities of nodes."""

    async def capacities(self) -> Mapping[str, Capacity]:
        """Return the known capacities by node name, from memory."""
        ...


@runtime_checkable
class NodeMetadataProvider(Protocol):
    """A provider or node list that knows the metadata of the cluster's nodes."""

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """Return the metadata of a node, None for an unknown node. May be called from any thread."""
        ...


@runtime_checkable
class NodeLister(Protocol):
    """A provider or node list that knows the names of the cluster's nodes."""

    def node_names(self) -> Collection[str] | None:
        """Return the node names of the last list, None before the first list. Reads from memory."""
        ...


def capacities_of(nodes: Mapping[str, Node]) -> dict[str, Capacity]:
    """Read capacities from `status.capacity`; nodes with missing, invalid or zero cpu or memory are left out."""
    found = {}
    for name, node in nodes.items():
        try:
            capacity = Capacity(
                nano(node.status.capacity["cpu"]) // 1_000_000, nano(node.status.capacity["memory"]) // 1_000_000_000
            )
        except (KeyError, ValueError):
            continue
        if min(capacity) > 0:
            found[name] = capacity
    return found
