"""The nodes of the cluster, as its API tells them, for whoever must know which node a source means (`names`).

A copy of the node list is kept true in the background. While the API is away the last one stands; if it never came, or
may not be read, there is none, and names stay as the source gives them. Neither is worth failing for: where the API is
away nothing is scheduled either.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.errors import KubeError, KubeUnreachable
from watcher.core.kubernetes.node_facts import capacities_of
from watcher.core.kubernetes.objects import NODES, Node, ObjectMetadata
from watcher.core.naming.node_index import NodeIndex
from watcher.core.naming.resolution import KnownNode
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import Access, AccessFinder
from watcher.platform.kube.shared_informer import SharedInformer

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings

NAMED_ALREADY = ("host", "metrics-server", "replay")
"""Providers of one machine, whose names are those of the cluster, or whose cluster may be another one."""


def known_node(node: Node, *, label: str) -> KnownNode:
    """What `names` wants of a node, with the value of this label."""
    addresses = tuple((each.type, each.address) for each in node.status.addresses)
    created = node.metadata.creation_timestamp
    since = float("-inf") if created is None else created.timestamp()
    return KnownNode(node.metadata.name, addresses, node.metadata.labels.get(label, ""), since)


# --- the list that keeps itself true ---------------------------------------------------------------------------------


class ClusterNodes:
    """The nodes of the cluster that `access` leads to, with what `label` says of each."""

    def __init__(self, access: Callable[[], Access], *, label: str) -> None:
        self._label = label
        self._nodes: dict[str, KnownNode] = {}
        self._index: NodeIndex | None = None
        self._changed = False
        self._informer = SharedInformer(access, NODES, on_change=self._note)
        self._began = 0.0

    async def start(self) -> None:
        """Begin to list in the background."""
        self._began = asyncio.get_running_loop().time()
        await self._informer.start()

    async def close(self) -> None:
        """Stop."""
        await self._informer.close()

    async def settle(self, patience: float) -> None:
        """Wait until the nodes are known, or cannot be; at most until `patience` seconds after the start."""
        with contextlib.suppress(TimeoutError, KubeError):
            async with asyncio.timeout_at(self._began + patience):
                try:
                    await self._informer.wait()
                except KubeUnreachable:  # it may be back in a moment
                    await self._informer.synced.wait()

    async def index(self) -> NodeIndex | None:
        """The nodes by all that they are known by, as they are now; None as long as no list has come."""
        if not self._informer.synced.is_set():
            return None
        if self._changed or self._index is None:
            self._changed = False
            # thousands of nodes are tens of milliseconds, and their status changes every few seconds: not for each
            self._index = await asyncio.to_thread(NodeIndex, tuple(self._nodes.values()))
        return self._index

    async def capacities(self) -> Mapping[str, Capacity]:
        """How large the nodes are; nothing as long as no list has come."""
        return await asyncio.to_thread(capacities_of, dict(self._informer.objects))

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """Who a node is; None where there is no such node."""
        known = self._informer.objects.get(node)
        return None if known is None else known.metadata

    def node_names(self) -> Collection[str] | None:
        """The nodes as of the last list; None as long as none has come."""
        return self._informer.objects.keys() if self._informer.synced.is_set() else None

    def trouble(self) -> str:
        """Why the list is not there, or may be out of date, and what to do about it; empty while all is well."""
        error = self._informer.error
        if error is None:
            return ""
        if self._informer.synced.is_set():
            return f"{error} (the nodes are those of the last list). {error.hint}".strip()
        told = f"{error} (names stay as the source gives them). {error.hint}".strip()
        return f'{told} If they are those of the cluster already, set kubernetes.node_names = "off".'

    def _note(self, name: str, _old: Node | None, new: Node | None) -> None:
        """Of the many changes of a node few are of its names."""
        known = None if new is None else known_node(new, label=self._label)
        if known == self._nodes.get(name):
            return
        self._changed = True
        if known is None:
            del self._nodes[name]
        else:
            self._nodes[name] = known


# --- from the settings -----------------------------------------------------------------------------------------------


def wanted(settings: Settings, *, environ: Mapping[str, str]) -> bool:
    """Whether names of nodes are to be those of the cluster (settings.kubernetes.node_names)."""
    if settings.kubernetes.node_names != "auto":
        return settings.kubernetes.node_names == "on"
    known = settings.kubeconfig is not None or bool(environ.get("KUBERNETES_SERVICE_HOST"))
    return known and settings.provider.name not in NAMED_ALREADY


def from_settings(settings: Settings) -> ClusterNodes | None:
    """What keeps the nodes of the cluster that the settings name; None where names stay as they are."""
    if not wanted(settings, environ=os.environ):
        return None
    return ClusterNodes(_access(settings), label=settings.kubernetes.node_label)


async def read_index(settings: Settings) -> NodeIndex:
    """The nodes of the cluster, asked for once, for who explains names (`NodeIndex.resolve`, `names.told`) and does not
    go on to use them. Raises KubeError."""
    client = KubeClient(_access(settings))
    try:
        listing = await client.list(NODES)
    finally:
        await client.close()
    return NodeIndex(known_node(item, label=settings.kubernetes.node_label) for item in listing.items)


def _access(settings: Settings) -> AccessFinder:
    return AccessFinder.of(kubeconfig=settings.kubeconfig, context=settings.kubernetes.context)
