"""Sources of the agent that depend on how it runs: its Node object, no pods, and writable control groups."""

from __future__ import annotations

from collections.abc import Mapping

from agent.cgroups.base import Tree
from agent.cgroups.detection import Layout, find_layout, open_tree, top_of
from agent.cgroups.paths import Driver
from agent.executor.cgroup_lock import CgroupLock
from agent.executor.groups import Groups, KubeletGroups
from agent.service.settings import AgentSettings
from agent.state.readings import PodFacts, PodsUnknown
from watcher.core.kubernetes.objects import NODES, Node
from watcher.core.kubernetes.quantity import nano
from watcher.platform.kube.client import KubeClient, Selector
from watcher.platform.kube.informer import Informer

EXTENDED_CPU = "gocrane.io/cpu"


class OwnNode:
    """The Node object of this node, watched: its labels and allocatable extended CPU."""

    def __init__(self, client: KubeClient, name: str) -> None:
        self._informer: Informer[Node] = Informer(client, NODES, selector=Selector(fields=f"metadata.name={name}"))
        self._name = name

    async def start(self) -> None:
        """Start watching the Node object in the background."""
        await self._informer.start()

    async def close(self) -> None:
        await self._informer.close()

    def labels(self) -> Mapping[str, str] | None:
        """The node's labels; None while they are unknown."""
        node = self._informer.objects.get(self._name)
        return None if node is None else node.metadata.labels

    def extended_cpu(self) -> float | None:
        """Allocatable cores of gocrane.io/cpu; None if unknown."""
        node = self._informer.objects.get(self._name)
        given = None if node is None else node.status.allocatable.get(EXTENDED_CPU)
        try:
            return None if given is None else nano(given) / 1e9
        except ValueError:
            return None


class NoPodSource:
    """Pod source without kubelet and API: node metrics are available, the pods are unknown."""

    async def start(self) -> None:
        """Do nothing, because there is no source."""

    async def close(self) -> None:
        """Do nothing, because there is no source."""

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        """Always raises PodsUnknown, with a hint."""
        hint = "Set agent.kubelet, or kubernetes.kubeconfig."
        raise PodsUnknown("neither a kubelet nor a Kubernetes API is configured", hint=hint)


class WritableCgroups:
    """The control groups that the agent writes to, detected at the first use, because the kubelet may start after the
    agent."""

    def __init__(self, settings: AgentSettings) -> None:
        self._root = str(settings.cgroup)
        self._driver = None if settings.cgroup_driver is None else Driver(settings.cgroup_driver)
        self._nest = settings.cgroup_nest
        self._tree: Tree | None = None
        self.groups: Groups = KubeletGroups(self.layout, self._opened)
        self.claim = CgroupLock(lambda: top_of(self.layout()))

    def layout(self) -> Layout:
        """The layout of the kubelet's control groups. Raises NoCgroups."""
        return find_layout(self._root, driver=self._driver, nest=self._nest)

    def _opened(self) -> Tree:
        if self._tree is None:
            self._tree = open_tree(self.layout())
        return self._tree

    def close(self) -> None:
        """Release the lock on the control groups and close the tree."""
        self.claim.release()
        if self._tree is not None:
            self._tree.close()
            self._tree = None


def own_pod(environ: Mapping[str, str]) -> frozenset[str]:
    """Uid and namespace/name of the agent's own pod, from the DaemonSet's environment; it is never acted on."""
    name, namespace = environ.get("POD_NAME", ""), environ.get("POD_NAMESPACE", "")
    keys = {environ.get("POD_UID", ""), f"{namespace}/{name}" if name and namespace else ""}
    return frozenset(keys - {""})
