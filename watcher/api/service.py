"""The running service as the HTTP API, /metrics, the publisher of NodeMetrics and the modules of other packages see it.

No attribute waits for the source: requests are served from the data of the last tick. Only the coroutines take long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from watcher.core.config.settings import Settings
from watcher.core.decisions import DecisionStore
from watcher.core.koordinator.collect_policy import CollectPolicies
from watcher.core.koordinator.report import Capacity, NodeUsages, PodClass, measure
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import Pod
from watcher.core.problems.document import FleetProblem
from watcher.core.publishing.documents import Published
from watcher.core.windows.settings import RefreshSettings
from watcher.koordinator.publisher import NodeMetricPublisher
from watcher.koordinator.threshold_publisher import ThresholdPublisher
from watcher.model import Snapshot, Window
from watcher.platform.clock import Clock
from watcher.store.decisions.store import StoreDecisions
from watcher.store.store import Store
from watcher.tick.tick import Refresher


@dataclass
class ServiceView:
    """The parts of the running service. A reload replaces `settings`, `refresher` and `policies`. Of the
    modules, `class_sources` return Koordinator's classes of pods by namespace and name, `problem_sources` current
    problems."""

    settings: Settings
    clock: Clock
    store: Store
    refresher: Refresher
    policies: CollectPolicies
    publisher: NodeMetricPublisher | None = None
    threshold_publisher: ThresholdPublisher | None = None
    class_sources: tuple[Callable[[], Mapping[Pod, PodClass]], ...] = ()
    problem_sources: tuple[Callable[[], Sequence[FleetProblem]], ...] = ()

    def __post_init__(self) -> None:
        self.decisions: DecisionStore = StoreDecisions(self.store)

    def monotonic(self) -> float:
        """Monotonic time in seconds, to compute ages."""
        return self.clock.monotonic()

    def now(self) -> float:
        """Wall clock time in unix seconds."""
        return self.clock.now()

    @property
    def windows(self) -> tuple[Window, ...]:
        """The served windows in ascending order of length; never empty."""
        return self.settings[RefreshSettings].windows

    @property
    def max_staleness(self) -> float:
        """Maximum age of a served document in seconds."""
        return self.settings[RefreshSettings].max_staleness

    @property
    def published(self) -> Published | None:
        """The documents of the last tick that published some; None before the first."""
        return self.refresher.published

    @property
    def pods(self) -> PublishedPods | None:
        """The published pod usage; None if not available."""
        return self.refresher.pods.published

    def request_pods(self) -> str:
        """Request the collection of pod usage. Return the reason why none can be collected; "" if pod usage is
        available or may be after the next tick."""
        return self.refresher.pods.want()

    @property
    def collect_policies(self) -> CollectPolicies:
        """The report interval and averaging period of each node's NodeMetric. Returns the same object until a policy
        changes."""
        if self.publisher is not None and self.policies.specs is not self.publisher.specs:
            self.policies = replace(self.policies, specs=self.publisher.specs)
        return self.policies

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """The metadata of a cluster node, None if unknown. May be called from any thread."""
        return self.refresher.node_metadata(node)

    def node_labels(self, node: str) -> Mapping[str, str]:
        """The labels of a cluster node; empty if unknown. May be called from any thread."""
        known = self.node_metadata(node)
        return {} if known is None else known.labels

    def pod_classes(self) -> Mapping[Pod, PodClass]:
        """Koordinator's pod classes by (namespace, name); unknown pods are missing."""
        found: dict[Pod, PodClass] = {}
        for source in self.class_sources:
            found |= source()
        return found

    def problems_of_modules(self) -> list[FleetProblem]:
        """The current problems of the modules."""
        return [problem for source in self.problem_sources for problem in source()]

    def measure(self, snapshot: Snapshot) -> NodeUsages:
        """The usage of a snapshot's nodes by their collect policies. Slow; may be called from any thread."""
        return measure(snapshot, policies=self.collect_policies.of_all(snapshot.nodes, self.node_labels))

    async def capacities(self) -> Mapping[str, Capacity]:
        """The capacity of nodes by name; nodes with unknown capacity are missing."""
        return await self.refresher.capacities()
