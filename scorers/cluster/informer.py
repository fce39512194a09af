"""Source of nodes and pods for the scorers, and the bind operation: the Kubernetes API or a simulated cluster."""

from __future__ import annotations

from typing import Protocol

from scorers.cluster.node_metrics import NODE_METRIC_OBJECTS, NodeMetricObject
from watcher.core.config.settings import Settings
from watcher.core.kubernetes.objects import NODES, PODS, Node, Pod
from watcher.platform.kube import node_changes
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import AccessFinder
from watcher.platform.kube.informer import Informer, OnChange
from watcher.platform.kube.settings import KubernetesSettings
from watcher.platform.kube.shared_informer import SharedInformer

OnNode = OnChange[Node]
OnPod = OnChange[Pod]
OnNodeMetric = OnChange[NodeMetricObject]


class ClusterSource(Protocol):
    """Interface to the nodes and pods of a cluster."""

    async def start(self, *, on_node: OnNode, on_pod: OnPod, on_node_metric: OnNodeMetric | None) -> None:
        """Start to report, in the background, all existing objects and then every change; Koordinator's NodeMetrics
        only if `on_node_metric` is given. An unreachable cluster is not an error."""
        ...

    def pod(self, key: str) -> Pod | None:
        """Return the last reported state of the pod NAMESPACE/NAME."""
        ...

    def is_synced(self) -> bool:
        """Return whether all nodes and pods were reported since the start."""
        ...

    def is_current(self) -> bool:
        """Return whether all nodes and pods were reported, and changes of pods are being reported."""
        ...

    async def bind(self, key: str, *, node: str, uid: str) -> None:
        """Bind the pod NAMESPACE/NAME to a node if it still has this uid. Raises the error of the API on failure."""
        ...

    async def close(self) -> None:
        """Stop reporting and close the connections."""
        ...


class KubernetesCluster:
    """The cluster of the kubeconfig in the settings, by default the cluster that this process runs in."""

    def __init__(self, settings: Settings) -> None:
        self._access = AccessFinder.of(*settings[KubernetesSettings].access)
        self._kube = KubeClient(self._access)
        self._pods: SharedInformer[Pod] | None = None
        self._informers: list[SharedInformer[Node] | SharedInformer[Pod] | Informer[NodeMetricObject]] = []

    async def start(self, *, on_node: OnNode, on_pod: OnPod, on_node_metric: OnNodeMetric | None) -> None:
        self._pods = SharedInformer(self._access, PODS, on_change=on_pod)
        self._informers = [SharedInformer(self._access, NODES, on_change=on_node), self._pods]
        if on_node_metric is not None:
            self._informers.append(Informer(self._kube, NODE_METRIC_OBJECTS, on_change=on_node_metric))
        for informer in self._informers:
            await informer.start()

    def pod(self, key: str) -> Pod | None:
        return None if self._pods is None else self._pods.objects.get(key)

    def is_synced(self) -> bool:
        return bool(self._informers) and all(each.synced.is_set() for each in self._informers[:2])

    def is_current(self) -> bool:
        return self.is_synced() and self._pods is not None and self._pods.error is None

    async def bind(self, key: str, *, node: str, uid: str) -> None:
        await node_changes.bind(self._kube, key, node=node, uid=uid)

    async def close(self) -> None:
        for informer in reversed(self._informers):
            await informer.close()
        await self._kube.close()
