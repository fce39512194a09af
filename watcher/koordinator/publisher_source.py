"""The service as the writers for Koordinator read it, and their Leases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from watcher.core.config.settings import Settings
from watcher.core.koordinator.collect_policy import CollectPolicies
from watcher.core.koordinator.report import Capacity, PodClass
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import Pod
from watcher.koordinator.settings import KoordinatorSettings
from watcher.model import Window
from watcher.platform.elected_writer import LoadSource
from watcher.platform.kube.credentials import own_namespace

LEASE = "load-watcher-nodemetrics"
THRESHOLDS_LEASE = "load-watcher-thresholds"


class PublisherSource(LoadSource, Protocol):
    """The service as the writers read it: the data to write, the policies, and the clocks."""

    @property
    def pods(self) -> PublishedPods | None: ...

    @property
    def windows(self) -> tuple[Window, ...]: ...

    @property
    def collect_policies(self) -> CollectPolicies: ...

    def request_pods(self) -> str: ...

    def now(self) -> float: ...

    def node_metadata(self, node: str) -> ObjectMetadata | None: ...

    def node_labels(self, node: str) -> Mapping[str, str]: ...

    def pod_classes(self) -> Mapping[Pod, PodClass]: ...

    async def capacities(self) -> Mapping[str, Capacity]: ...


def lease_namespace(settings: Settings) -> str:
    """Return the namespace of the Leases: the configured one, that of this pod, or "default"."""
    return settings[KoordinatorSettings].lease_namespace or own_namespace() or "default"
