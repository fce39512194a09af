"""Where the scorers have nodes and pods from, and who binds: the Kubernetes API, or whoever stands in for it."""

from __future__ import annotations

from typing import Protocol

from scorers.cluster.node_metrics import NODE_METRIC_OBJECTS, NodeMetricObject
from watcher.core.kubernetes.objects import NODES, PODS, Node, Pod
from watcher.platform.kube import node_changes
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import AccessFinder
from watcher.platform.kube.informer import Informer, OnChange
from watcher.platform.kube.shared_informer import SharedInformer
from watcher.platform.settings.tables import Settings

OnNode = OnChange[Node]
OnPod = OnChange[Pod]
OnNodeMetric = OnChange[NodeMetricObject]


class Cluster(Protocol):
    """The nodes and pods of a cluster, as they come and go."""

    async def start(self, *, on_node: OnNode, on_pod: OnPod, on_node_metric: OnNodeMetric | None) -> None:
        """Begin to tell, in the background, of all that is there and then of each change; of Koordinator's NodeMetrics
        only where somebody wants them. Never fails because the cluster is away."""
        ...

    def pod(self, key: str) -> Pod | None:
        """The pod NAMESPACE/NAME, as it was last told of."""
        ...

    def is_whole(self) -> bool:
        """Whether all nodes and pods were told of since the start."""
        ...

    async def bind(self, key: str, *, node: str, uid: str) -> None:
        """Let the pod NAMESPACE/NAME run on a node, if it still has this uid. Raises whatever says why not."""
        ...

    async def close(self) -> None:
        """Stop telling, and hang up."""
        ...


class KubernetesCluster:
    """The cluster of the settings' kubeconfig, else the one that this runs in."""

    def __init__(self, settings: Settings) -> None:
        self._access = AccessFinder.of(kubeconfig=settings.kubeconfig, context=settings.kubernetes.context)
        self._kube = KubeClient(self._access)
        self._pods: Informer[Pod] | None = None
        self._informers: list[SharedInformer[Node] | Informer[Pod] | Informer[NodeMetricObject]] = []

    async def start(self, *, on_node: OnNode, on_pod: OnPod, on_node_metric: OnNodeMetric | None) -> None:
        self._pods = Informer(self._kube, PODS, on_change=on_pod)
        self._informers = [SharedInformer(self._access, NODES, on_change=on_node), self._pods]
        if on_node_metric is not None:
            self._informers.append(Informer(self._kube, NODE_METRIC_OBJECTS, on_change=on_node_metric))
        for informer in self._informers:
            await informer.start()

    def pod(self, key: str) -> Pod | None:
        return None if self._pods is None else self._pods.objects.get(key)

    def is_whole(self) -> bool:
        return bool(self._informers) and all(each.synced.is_set() for each in self._informers[:2])

    async def bind(self, key: str, *, node: str, uid: str) -> None:
        await node_changes.bind(self._kube, key, node=node, uid=uid)

    async def close(self) -> None:
        for informer in reversed(self._informers):
            await informer.close()
        await self._kube.close()
