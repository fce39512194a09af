"""The nodes of the cluster from the Kubernetes API, to resolve the source's names to nodes.

A copy of the node list is updated in the background. While the API is unreachable, the last list is used. If there is
no list yet, or no permission to read it, the source's names are used unchanged. Neither is fatal: while the API is
unreachable, no pods are scheduled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping

from watcher.core.config.settings import Settings
from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.errors import KubeError, KubeUnreachable
from watcher.core.kubernetes.node_facts import capacities_of
from watcher.core.kubernetes.objects import NODES, Node, ObjectMetadata
from watcher.core.naming.evidence import KnownNode
from watcher.core.naming.name_resolver import NodeIndex
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import AccessFinder, KubeAccess
from watcher.platform.kube.settings import KubernetesSettings
from watcher.platform.kube.shared_informer import SharedInformer
from watcher.sources.settings import ProviderSettings

NAMED_ALREADY = ("host", "metrics-server", "replay")
"""Providers whose node names are not resolved: they use the cluster's names, or may describe another cluster."""


def known_node(node: Node, *, label: str) -> KnownNode:
    """Convert a Node object for `names`, with the value of the label `label`."""
    addresses = tuple((each.type, each.address) for each in node.status.addresses)
    created = node.metadata.creation_timestamp
    since = float("-inf") if created is None else created.timestamp()
    ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
    return KnownNode(node.metadata.name, addresses, node.metadata.labels.get(label, ""), since, ready)


# --- node list -------------------------------------------------------------------------------------------------------


class ClusterNodes:
    """The nodes of the cluster that `access` connects to, each with the value of the label `label`."""

    def __init__(self, access: Callable[[], KubeAccess], *, label: str) -> None:
        self._label = label
        self._nodes: dict[str, KnownNode] = {}
        self._index: NodeIndex | None = None
        self._changed = False
        self._informer = SharedInformer(access, NODES, on_change=self._note)
        self._began = 0.0

    async def start(self) -> None:
        """Start watching the nodes in the background."""
        self._began = asyncio.get_running_loop().time()
        await self._informer.start()

    async def close(self) -> None:
        await self._informer.close()

    async def wait_known(self, patience: float) -> None:
        """Wait until the nodes are known or cannot be read; at most until `patience` seconds after the start."""
        with contextlib.suppress(TimeoutError, KubeError):
            async with asyncio.timeout_at(self._began + patience):
                try:
                    await self._informer.wait()
                except KubeUnreachable:  # the API may recover before the timeout
                    await self._informer.synced.wait()

    async def index(self) -> NodeIndex | None:
        """Return the index of the current nodes, None before the first list."""
        if not self._informer.synced.is_set():
            return None
        if self._changed or self._index is None:
            self._changed = False
            # not at every change: the index of thousands of nodes takes tens of milliseconds, and node statuses
            # change every few seconds
            self._index = await asyncio.to_thread(NodeIndex, tuple(self._nodes.values()))
        return self._index

    async def capacities(self) -> Mapping[str, Capacity]:
        """Return the capacities of the nodes by name; empty before the first list."""
        return await asyncio.to_thread(capacities_of, dict(self._informer.objects))

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """Return the metadata of a node, None for an unknown node."""
        known = self._informer.objects.get(node)
        return None if known is None else known.metadata

    def node_names(self) -> Collection[str] | None:
        """Return the node names of the last list, None before the first list."""
        return self._informer.objects.keys() if self._informer.synced.is_set() else None

    def error_text(self) -> str:
        """Return why the list is missing or may be out of date, with a hint; "" if it is up to date."""
        error = self._informer.error
        if error is None:
            return ""
        if self._informer.synced.is_set():
            return f"{error} (the last list of nodes is used). {error.hint}".strip()
        message = f"{error} (the source's names are used unchanged). {error.hint}".strip()
        return f'{message} If these are the node names of the cluster, set kubernetes.node_names = "off".'

    def _note(self, name: str, _old: Node | None, new: Node | None) -> None:
        """Mark the index as outdated if a node's names changed; most changes of a node do not affect its names."""
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
    """Return whether source names are resolved to cluster nodes (settings[KubernetesSettings].node_names)."""
    if settings[KubernetesSettings].node_names != "auto":
        return settings[KubernetesSettings].node_names == "on"
    known = settings[KubernetesSettings].path is not None or bool(environ.get("KUBERNETES_SERVICE_HOST"))
    return known and settings[ProviderSettings].name not in NAMED_ALREADY


def from_settings(settings: Settings) -> ClusterNodes | None:
    """Build the node list of the cluster that the settings name; None if source names are not resolved."""
    if not wanted(settings, environ=os.environ):
        return None
    return ClusterNodes(_access(settings), label=settings[KubernetesSettings].node_label)


async def read_index(settings: Settings) -> NodeIndex:
    """List the nodes of the cluster once, for commands that explain names (`NodeIndex.resolve`,
    `name_resolver.describe_match`). Raises KubeError."""
    client = KubeClient(_access(settings))
    try:
        listing = await client.list(NODES)
    finally:
        await client.close()
    return NodeIndex(known_node(item, label=settings[KubernetesSettings].node_label) for item in listing.items)


def _access(settings: Settings) -> AccessFinder:
    return AccessFinder.of(*settings[KubernetesSettings].access)
