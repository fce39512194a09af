"""Which nodes there are and how large they are, from whoever has it at hand: a copy of the cluster's node list, or the
one machine that is the source. Needed where amounts are wanted of what the watcher knows in percent.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.objects import Node, ObjectMetadata
from watcher.core.kubernetes.quantity import nano


@runtime_checkable
class KnowsCapacities(Protocol):
    """A provider or directory that knows how large nodes are."""

    async def capacities(self) -> Mapping[str, Capacity]:
        """By the node's name; only those that are known. Answers from memory."""
        ...


@runtime_checkable
class KnowsNodes(Protocol):
    """A provider or directory that knows the nodes of the cluster."""

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """Who a node is, with its labels; None where there is no such node. May be called from any thread."""
        ...


@runtime_checkable
class ListsNodes(Protocol):
    """A provider or directory that knows which nodes the cluster has."""

    def node_names(self) -> Collection[str] | None:
        """The nodes of the cluster, as of the last list of them; None where none has come. Answers from memory."""
        ...


def capacities_of(nodes: Mapping[str, Node]) -> dict[str, Capacity]:
    """Of `status.capacity`; a node whose cpu or memory is missing, no quantity, or nothing, is left out."""
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
